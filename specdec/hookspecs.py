"""The five hooks that register drafts, policies, controllers, backends and other engines.

Implement a hook in a module and name the module in the entry-point group ``specdec``; the module is loaded when
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
from specdec.peer import PeerFactory

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
        ``factory(env, rate=0.9)``. A class whose ``__init__`` has that signature is a factory. Instead of a
        factory, a text makes the name an alias of any registered name: ``register("vanilla", "draft_model")``.

    The factory runs once for each engine, before the first token. The tensors that a draft returns
    belong to the engine afterwards; the tensors that it receives belong to the engine and change after the step.
    Every call of ``env.plain`` is counted, and makes the draft a replay.

    Errors: a name that is taken (the message names both owners), an invalid name, or a factory with another
    signature raises SpecdecError when the registry is built; a factory that does not return a Draft raises it when
    the draft is built.

    Since 0.1.
    """


@hookspec
def specdec_register_policies(register: Callable[[str, PolicyFactory | str], None]) -> None:
    """Register acceptance policies by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when a registry is built; never during a run. Every implementation is called, none
    wins over another, and return values are ignored.

    :param register:
        Takes a name and ``factory(env, **options) -> Policy``, with the same rules as for drafts.

    ``Policy.accept`` receives logits float32 [B, W, V], processed unless the policy is ``raw``; they belong to the
    engine and must not be changed. The verdict's tensors belong to the engine afterwards.

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
        If a factory's attribute ``k_option`` names one of its options, ``--specdec-k`` sets this option, like
        ``--specdec-controller "name(option=K)"``.

    ``Controller.forget`` makes a controller that learns from run to run as it was when built.

    Errors: as for drafts; a ``next_k`` that returns anything but a K within 0 … ``max_k``, or a list with one for each
    row, ends the run with SpecdecError.

    Since 0.1; before 0.1 was released, factories were given K as a second argument.
    """


@hookspec
def specdec_register_backends(register: Callable[[str, BackendFactory | str], None]) -> None:
    """Register kernel backends by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when a registry is built; never during a run. Every implementation is called and
    return values are ignored. Of the backends that can run here, each call of an op goes to the backend of the highest
    ``priority`` that takes it (``Backend.takes``); a backend that the user names comes first.

    :param register:
        Takes a name and ``factory(**options) -> Backend``. The factory must be cheap: kernels are compiled
        on first use, and ``Backend.missing()`` says why a backend cannot run on this machine.

    Errors: as for drafts; a named backend that cannot run here raises SpecdecError with its reason.

    Since 0.1.
    """


@hookspec
def specdec_register_engines(register: Callable[[str, PeerFactory | str], None]) -> None:
    """Register other engines, which run as peers beside ours, by calling ``register(name, factory)`` once for each.

    Called once, for every plugin, when a registry is built; never during a run. Every implementation is called, none
    wins over another, and return values are ignored. ``--specdec-peer "name(option=value)"`` makes a row of one.

    :param register:
        Takes a name and ``factory(env, **options) -> Peer``, with the same rules as for drafts; ``env`` is a
        ``specdec.peer.PeerEnv``. If the factory is a class, its ``missing`` and ``check_options`` are called before any
        model is loaded.

    The factory runs once for each setting that has the peer, outside all timing, and may load a model.

    Errors: as for drafts; an engine that cannot run here (``Peer.missing``) raises SpecdecError with its reason when it
    is named.

    Since 0.2.
    """
