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
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register draft strategies by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when the registry is built; return values are ignored.

    :param register:
        Takes a name (a letter, then letters, digits and ``_``) and ``factory(env, **options) -> Draft``.
        The options are the factory's own keyword arguments: ``--specdec-draft "oracle(rate=0.9)"``
        calls ``factory(env, rate=0.9)``. A class whose ``__init__`` has that signature is a factory.

    The factory runs once for each engine, before the first token. The tensors that a draft returns
    belong to the engine afterwards; those it is handed are the engine's and change after the step.
    """


@hookspec
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register acceptance policies by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when the registry is built; return values are ignored.

    :param register:
        Takes a name and ``factory(env, **options) -> Policy``, with the same rules as for drafts. The
        logits that ``Policy.accept`` receives are processed, float32 [B, W, V], and not to be written to.
    """


@hookspec
def specdec_register_controllers(register: Callable[[str, ControllerFactory], None]) -> None:
    """Register draft-length controllers by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when the registry is built; return values are ignored.

    :param register:
        Takes a name and ``factory(env, **options) -> Controller``, with the same rules as for drafts.
        A factory whose attribute ``k_option`` names one of its options has that option set by
        ``--specdec-k``, the short way for ``--specdec-controller "name(option=K)"``.
    """


@hookspec
def specdec_register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register kernel backends by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when the registry is built; return values are ignored.

    :param register:
        Takes a name and ``factory() -> Backend``. The factory must be cheap: what needs compiling is
        compiled on first use, and ``Backend.missing()`` says why a backend cannot run on this machine.
    """
