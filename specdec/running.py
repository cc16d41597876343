"""The plan of the forward that runs, for code inside of a model, whatever arguments the model hands down.

Some models hand no keyword arguments to their layers. The plan is set for the duration of a forward, in the thread
that runs it, so two arenas can use the same modules. A module that several layers share says for which it runs by
what it asks of the cache.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.arena import Plan


class running:
    """A context in which the forwards of a wrapped model write and read the cells of ``plan``; None: of no arena.

    A class, since every forward enters it, and a generator would cost four times as much.
    """

    __slots__ = ("_token", "layer", "plan", "turns")

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan
        self.layer: int | None = None
        self.turns = 0

    def __enter__(self) -> None:
        self._token: Token[running | None] = _RUNNING.set(self)

    def __exit__(self, *_: object) -> None:
        _RUNNING.reset(self._token)


_RUNNING: ContextVar[running | None] = ContextVar("specdec_running", default=None)


def _now() -> running:
    return _RUNNING.get() or running(None)


def running_plan() -> Plan | None:
    """The plan of the forward that runs in this thread; None outside of ``running``."""
    return _now().plan


def attend_in(layer: int) -> None:
    """Say for which layer the next attention runs."""
    _now().layer = layer


def attending_layer() -> int | None:
    """The layer that ``attend_in`` named last in this forward; None if the model asks no cache."""
    return _now().layer


def next_turn() -> int:
    """How often this was called before in the forward that runs."""
    now = _now()
    now.turns += 1
    return now.turns - 1
