"""The plan of the forward that runs, for code inside of a model, whatever arguments the model hands down.

Some models hand no keyword arguments to their layers. The plan is set for the duration of a forward, in the thread
that runs it, so two arenas can use the same modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.arena import Plan

_PLAN: ContextVar[Plan | None] = ContextVar("specdec_plan", default=None)


@contextmanager
def running(plan: Plan) -> Iterator[None]:
    """A context in which the forwards of a wrapped model write and read the cells of ``plan``."""
    token = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(token)


def running_plan() -> Plan | None:
    """The plan of the forward that runs in this thread; None outside of ``running``."""
    return _PLAN.get()
