"""The conformance kit: a plugin is certified by the checks that the built-in ones pass.

One line of a test file each, and ``pytest`` on that file::

    from benchsuite import conformance

    TestRepeat = conformance.draft("repeat")

Names are those that the plugin is registered under, options included: ``conformance.draft("repeat(n=2)")``.
What a plugin is able to do is declared here, not sniffed; a false declaration fails, saying what was claimed,
what was measured and the smallest example.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchsuite.conformance.backends import BackendChecks
from benchsuite.conformance.controllers import ControllerChecks
from benchsuite.conformance.drafts import DraftChecks
from benchsuite.conformance.policies import PolicyChecks
from benchsuite.prove.tiny import Extra
from specdec.interfaces import BackendFactory, Contract, ControllerFactory, DraftFactory, Factory, PolicyFactory


def draft(
    text: str,
    *,
    trees: bool = False,
    sampled: bool = False,
    hidden: bool = False,
    remembers: bool = False,
    memoryless: bool = True,
    k: int = 4,
    family: str = "llama",
    factory: DraftFactory | None = None,
) -> type[DraftChecks]:
    """Checks of a draft.

    ``trees``: its windows may branch. ``sampled``: at a temperature, under a policy that lends it no noise, its
    proposals are drawn, and q says from which distribution; otherwise they are certain (q None). ``hidden``: it is
    given the target's hidden states. ``remembers``: requests that have ended change its proposals until ``forget``.
    ``memoryless``: what it proposes follows from the request and its text so far, however that came about. ``k``
    proposals a step over a tiny random target of ``family`` (the names of ``benchsuite.prove.families``). ``factory``
    stands for the name where the plugin is not installed.

    Example: ``TestMedusa = conformance.draft("medusa", sampled=True, hidden=True)``
    """
    claims = {
        "text": text,
        "trees": trees,
        "sampled": sampled,
        "hidden": hidden,
        "remembers": remembers,
        "memoryless": memoryless,
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
    """Checks of a policy.

    ``greedy`` and ``sampled`` are its contracts at temperature 0 and above: exact, distribution or lossy. A
    distribution that is promised is enumerated over whole runs of the engine; of a lossy one the distance is printed
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
    """Checks of a controller; ``deterministic`` False if it reads the clock, ``k`` a K given apart, for one that
    takes it (``Controller.k_option``).

    Example: ``TestAdaptive = conformance.controller("adaptive(window=2)")``
    """
    claims = {"text": text, "deterministic": deterministic, "k": k, "extra": _extra("controller", text, factory)}
    return type("ControllerChecks", (ControllerChecks,), claims)


def backend(
    text: str, *, ops: Sequence[str], device: str = "cpu", factory: BackendFactory | None = None
) -> type[BackendChecks]:
    """Checks of a backend on a device; ``ops`` are those that it runs itself.

    Example: ``TestCpu = conformance.backend("cpu", ops=("linear", "rms_norm"))``
    """
    claims = {"text": text, "ops": tuple(ops), "device": device, "extra": _extra("backend", text, factory)}
    return type("BackendChecks", (BackendChecks,), claims)


def _extra(kind: str, text: str, factory: Factory | None) -> tuple[Extra, ...]:
    return ((kind, text.partition("(")[0].strip(), factory),) if factory else ()
