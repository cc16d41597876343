"""Steps of runs that are made up: counted and timed as an engine does, without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specdec.stats import Marks, RowStep, Stats, Step


def book_step(stats: Stats, now: float, parts: Iterable[float], each: Sequence[RowStep], width: int) -> float:
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
    stats.steps.append(Step.of(tuple(each), width, Marks(*marks)))
    return now
