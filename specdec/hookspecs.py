"""The four hooks through which everything enters the engine.

Implement one in a module, name the module in the entry-point group ``specdec``, and it is loaded when
the registry is built::

    from specdec import hookimpl

    @hookimpl
    def specdec_register_drafts(register):
        register("repeat", Repeat)

pluggy is used at start-up only; no hook is called during a step.
"""

from __future__ import annotations

from collections.abc import Callable

import pluggy

from specdec.interfaces import BackendFactory, ControllerFactory, DraftFactory, PolicyFactory

hookspec = pluggy.HookspecMarker("specdec")
hookimpl = pluggy.HookimplMarker("specdec")


@hookspec
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register draft strategies by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when a registry is built; never during a run. Every implementation is called, none
    wins over another, and return values are ignored.

    :param register:
        Takes a name (a letter, then letters, digits and ``_``) and ``factory(env, **options) -> Draft``.
        The options are the factory's own keyword arguments, each with a default and, for the listing, a meaning
        (``Annotated[float, "share of right proposals"]``): ``--specdec-draft "oracle(rate=0.9)"`` calls
        ``factory(env, rate=0.9)``. A class whose ``__init__`` has that signature is a factory. In place of a factory
        a text makes the name short for another one registered before it: ``register("vanilla", "draft_model")``.

    The factory runs once for each engine, before the first token. The tensors that a draft returns
    belong to the engine afterwards; those it is handed are the engine's and change after the step.

    Errors: a name that is taken (the message names both owners), a name that is none, or a factory with another
    signature raises SpecdecError when the registry is built; a factory that returns something else than a Draft, when
    the draft is asked for.

    Since 0.1.
    """


@hookspec
def specdec_register_policies(register: Callable[[str, PolicyFactory | str], None]) -> None:
    """Register acceptance policies by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when a registry is built; never during a run. Every implementation is called, none
    wins over another, and return values are ignored.

    :param register:
        Takes a name and ``factory(env, **options) -> Policy``, with the same rules as for drafts.

    The logits that ``Policy.accept`` is handed are float32 [B, W, V], processed unless the policy is ``raw``, and the
    engine's: not to be written to. The verdict's tensors belong to the engine afterwards.

    Errors: as for drafts.

    Since 0.1.
    """


@hookspec
def specdec_register_controllers(register: Callable[[str, ControllerFactory | str], None]) -> None:
    """Register draft-length controllers by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when a registry is built; never during a run. Every implementation is called, none
    wins over another, and return values are ignored.

    :param register:
        Takes a name and ``factory(env, **options) -> Controller``, with the same rules as for drafts.
        A factory whose attribute ``k_option`` names one of its options has that option set by
        ``--specdec-k``, the short way for ``--specdec-controller "name(option=K)"``.

    Errors: as for drafts; and a controller whose ``next_k`` leaves 0 … ``max_k`` ends the run with SpecdecError.

    Since 0.1; before 0.1 was released, factories were given K as a second argument.
    """


@hookspec
def specdec_register_backends(register: Callable[[str, BackendFactory | str], None]) -> None:
    """Register kernel backends by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when a registry is built; never during a run. Every implementation is called and
    return values are ignored. Of the backends that can run here, each call of an op goes to the one of the highest
    ``priority`` that takes it (``Backend.takes``); one that the user names comes first.

    :param register:
        Takes a name and ``factory(**options) -> Backend``. The factory must be cheap: what needs compiling is
        compiled on first use, and ``Backend.missing()`` says why a backend cannot run on this machine.

    Errors: as for drafts; and a backend that the user names and that is missing something, with its reason.

    Since 0.1.
    """
