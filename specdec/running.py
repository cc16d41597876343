"""The plan of the forward that runs, for code inside of a model, whatever arguments the model hands down.

Some models hand no keyword arguments to their layers. The plan is set for the duration of a forward, in the thread
that runs it, so two arenas can use the same modules. A module that several layers share says for which it runs by
what it asks of the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.arena import Plan

_PLAN: ContextVar[Plan | None] = ContextVar("specdec_plan", default=None)
_LAYER: ContextVar[int | None] = ContextVar("specdec_layer", default=None)
_TURNS: ContextVar[Iterator[int]] = ContextVar("specdec_turns")


@contextmanager
def running(plan: Plan | None) -> Iterator[None]:
    """A context in which the forwards of a wrapped model write and read the cells of ``plan``; None: of no arena."""
    tokens = _PLAN.set(plan), _LAYER.set(None), _TURNS.set(count())
    try:
        yield
    finally:
        _PLAN.reset(tokens[0])
        _LAYER.reset(tokens[1])
        _TURNS.reset(tokens[2])


def running_plan() -> Plan | None:
    """The plan of the forward that runs in this thread; None outside of ``running``."""
    return _PLAN.get()


def attend_in(layer: int) -> None:
    """Say for which layer the next attention runs."""
    _LAYER.set(layer)


def attending_layer() -> int | None:
    """The layer that ``attend_in`` named last in this forward; None if the model asks no cache."""
    return _LAYER.get()


def next_turn() -> int:
    """How often this was called before in the forward that runs."""
    return next(_TURNS.get())
