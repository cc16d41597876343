"""Steps of runs that are made up: counted and timed as an engine does, without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from specdec.calibration import Calibration
from specdec.interfaces import Env
from specdec.stats import Marks, RowStep, Stats, Step


def book_step(
    stats: Stats, now: float, parts: Iterable[float], each: Sequence[RowStep], width: int, draft_forwards: int = 0
) -> float:
    """Add a step of these rows, whose ten ``parts`` took so many seconds from ``now`` on. Returns its end.

    In place: counters, steps and marks of ``stats``.
    """
    marks = []
    for seconds in parts:
        now += seconds
        stats.stopwatch.marks.append(now)
        marks.append(len(stats.stopwatch.marks) - 1)
    for row in each:
        stats.proposed(row.proposed, row.deepest)
        stats.accepted(row.accepted)
    stats.steps.append(Step.of(tuple(each), width, Marks(*marks), draft_forwards))
    return now


class KnownCosts(Calibration):
    """A calibration without a target: a forward takes ``cost(width, rows, length)`` seconds.

    ``wanted`` has the rows, lengths and widths of each call of ``measure``, which measures nothing.
    """

    def __init__(self, cost: Callable[[Any, int, int], float]) -> None:
        self.cost = cost
        self.wanted: list[tuple[set[int], list[int], list[float]]] = []

    def measure(self, rows: Iterable[int], lengths: Iterable[int], widths: Iterable[float]) -> None:
        """Keep what was asked for."""
        self.wanted.append(({*rows}, [*lengths], [*widths]))

    def forward(self, width: float, rows: int, length: int) -> float:
        """The cost."""
        return self.cost(width, rows, length)


def sized_env(
    calibration: Calibration,
    max_rows: int,
    max_length: int,
    max_window: int = 1,
    skips_padding: bool = False,
    slots_of_a_pass: int = 1,
) -> Env:
    """What a plugin is built with that reads sizes and costs, and of a target only what slots and padding cost."""
    none: Any = None
    target: Any = SimpleNamespace(skips_padding=skips_padding, slots_of_a_pass=slots_of_a_pass)
    return Env(target, none, none, max_rows, max_length, max_window, 0, none, none, none, calibration)
