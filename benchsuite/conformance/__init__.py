"""The conformance kit: the checks that every built-in plugin passes, for any plugin.

A test file has one line for each plugin; run ``pytest`` on it::

    from benchsuite import conformance

    TestRepeat = conformance.draft("repeat")

The name is the registered one, options included: ``conformance.draft("repeat(n=2)")``. The caller declares what a
plugin can do; the kit does not detect it. A false declaration fails with the claim, the measurement and the smallest
example.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchsuite.conformance.backends import BackendChecks
from benchsuite.conformance.controllers import ControllerChecks
from benchsuite.conformance.drafts import DraftChecks
from benchsuite.conformance.engines import EngineChecks
from benchsuite.conformance.heads import HeadChecks
from benchsuite.conformance.models.tiny import Extra
from benchsuite.conformance.policies import PolicyChecks
from specdec.interfaces import BackendFactory, Contract, ControllerFactory, DraftFactory, Factory, PolicyFactory
from specdec.peer import PeerFactory


def draft(
    text: str,
    *,
    trees: bool = False,
    sampled: bool = False,
    hidden: bool = False,
    remembers: bool = False,
    memoryless: bool = True,
    replays: bool = False,
    fakes: bool = True,
    one_read: bool = True,
    k: int = 4,
    family: str = "llama",
    factory: DraftFactory | None = None,
) -> type[DraftChecks]:
    """Return checks of a draft, as a test class.

    ``trees``: its windows may branch. ``sampled``: at a temperature above 0 and under a policy that is not coupled, its
    proposals are drawn from q; otherwise they are certain (q None). ``hidden``: it receives the target's hidden states.
    ``remembers``: finished requests change its proposals until ``forget``; the class declares it as ``learns``.
    ``memoryless``: its proposals depend only on the request and its text so far, not on the steps that led there.
    ``replays``: it asks ``Env.plain`` for the output that it is to propose. ``fakes``: it can be built and asked on
    fake tensors of a GPU; False for one that loads a model of its own. ``one_read``: False for one that
    itself reads the device in a step, so that a GPU would wait for it. ``k``: proposals of a step, over a tiny random
    target of ``family`` (the names of ``benchsuite.conformance.models.families``). ``factory``: the factory of a plugin
    that is not installed.

    Example: ``TestMedusa = conformance.draft("medusa", sampled=True, hidden=True)``
    """
    claims = {
        "text": text,
        "trees": trees,
        "sampled": sampled,
        "hidden": hidden,
        "remembers": remembers,
        "memoryless": memoryless,
        "replays": replays,
        "fakes": fakes,
        "one_read": one_read,
        "k": k,
        "family": family,
        "extra": _extra("draft", text, factory),
    }
    return type("DraftChecks", (DraftChecks,), claims)


def policy(
    text: str,
    *,
    greedy: Contract,
    sampled: Contract,
    trees: bool = False,
    coupled: bool = False,
    factory: PolicyFactory | None = None,
) -> type[PolicyChecks]:
    """Return checks of a policy, as a test class.

    ``greedy`` and ``sampled``: its contracts at temperature 0 and above: exact, distribution or lossy. A promised
    distribution is checked by enumerating whole runs of the engine; for a lossy policy the distance is printed
    (``pytest -s``). ``trees`` and ``coupled`` as in ``specdec.Policy``.

    Example: ``TestRejection = conformance.policy("rejection", greedy="exact", sampled="distribution")``
    """
    claims = {
        "text": text,
        "greedy": greedy,
        "sampled": sampled,
        "trees": trees,
        "coupled": coupled,
        "extra": _extra("policy", text, factory),
    }
    return type("PolicyChecks", (PolicyChecks,), claims)


def controller(
    text: str, *, deterministic: bool = True, k: int | None = None, factory: ControllerFactory | None = None
) -> type[ControllerChecks]:
    """Return checks of a controller, as a test class.

    ``deterministic``: False if it reads the clock. ``k``: the K of a controller that takes it as a separate value
    (``Controller.k_option``).

    Example: ``TestAdaptive = conformance.controller("adaptive(window=2)")``
    """
    claims = {"text": text, "deterministic": deterministic, "k": k, "extra": _extra("controller", text, factory)}
    return type("ControllerChecks", (ControllerChecks,), claims)


def backend(
    text: str, *, ops: Sequence[str], device: str = "cpu", factory: BackendFactory | None = None
) -> type[BackendChecks]:
    """Return checks of a backend on a device, as a test class; ``ops`` are those that it runs itself.

    Example: ``TestCpu = conformance.backend("cpu", ops=("linear", "rms_norm"))``
    """
    claims = {"text": text, "ops": tuple(ops), "device": device, "extra": _extra("backend", text, factory)}
    return type("BackendChecks", (BackendChecks,), claims)


def engine(
    text: str,
    *,
    own_arithmetic: bool = False,
    sampled: bool = True,
    refuses: Sequence[str] = (),
    factory: PeerFactory | None = None,
) -> type[EngineChecks]:
    """Return checks of another engine that runs as a peer, as a test class. They skip where it cannot run.

    ``own_arithmetic``: its kernels or its weights round in a way of their own, so that equality with the target is not
    checked. ``sampled``: it decodes at temperatures above 0; otherwise it refuses them. ``refuses``: values of options
    that it must refuse before anything is loaded. The target is a tiny Llama, also as a GGUF file (``env.gguf()``).

    Example: ``TestLlamaCpp = conformance.engine("llama_cpp", own_arithmetic=True, refuses=["threads=0"])``
    """
    claims = {
        "text": text,
        "own_arithmetic": own_arithmetic,
        "sampled": sampled,
        "refuses": tuple(refuses),
        "extra": _extra("peer", text, factory),
    }
    return type("EngineChecks", (EngineChecks,), claims)


def head(
    text: str,
    *,
    target: str,
    workload: str = "chat,reasoning,multi_turn,json",
    k: int = 3,
    prompts: int = 24,
) -> type[HeadChecks]:
    """Return checks of a draft head beside its target, as a test class; they load both.

    ``text``: a published head's path, or a draft that reads it, options included. ``target`` is a target's name,
    ``workload`` has the prompts that it answers, at most ``prompts`` of them; ``k`` proposals are made at each place.

    Example: ``TestMyHead = conformance.head("path/to/head", target="path/to/target")``
    """
    claims = {"text": text, "target": target, "workload": workload, "k": k, "prompts": prompts}
    return type("HeadChecks", (HeadChecks,), claims)


def _extra(kind: str, text: str, factory: Factory | None) -> tuple[Extra, ...]:
    return ((kind, text.partition("(")[0].strip(), factory),) if factory else ()
