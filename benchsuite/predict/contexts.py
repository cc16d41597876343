"""Acceptance and context: whether longer prompts have more or fewer accepted tokens in a step, within one workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from benchsuite.measure.interval import student
from benchsuite.predict.checked import UnitTraces

FEWEST_TEXTS = 6
"""Degrees of freedom from which a slope is shown."""

SPREAD = 1.5
"""Least ratio of the longest to the shortest prompt of a workload that is taken in."""


@dataclass(frozen=True)
class ContextSlope:
    """By how much the accepted tokens of a step change for each 100 tokens of context, with the 90 % interval; from
    ``texts`` texts."""

    slope: float
    low: float
    high: float
    texts: int

    @property
    def seen(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def context_slope(workloads: Sequence[Sequence[UnitTraces]]) -> ContextSlope | None:
    """Return the slope over the texts of several workloads, each around its own means; None without enough of them.

    ``workloads``: an arm's units in each. A text is its mean accepted tokens over the steps that asked for some, at its
    prompt and half its output. Workloads whose prompts are of about one length say nothing and are left out.
    Source: ordinary least squares with a level of its own for each workload.
    """
    points: list[tuple[float, float]] = []
    groups = 0
    for units in workloads:
        mine = []
        for unit in units:
            for length, trace in zip(unit.prompts.lengths, unit.traces, strict=True):
                steps = [step.accepted for step in trace.steps if step.asked]
                if steps:
                    mine.append((length + unit.prompts.tokens / 2, fmean(steps)))
        if len(mine) < 2 or max(x for x, _ in mine) < SPREAD * min(x for x, _ in mine):
            continue
        groups += 1
        middle_x, middle_y = fmean(x for x, _ in mine), fmean(y for _, y in mine)
        points += [(x - middle_x, y - middle_y) for x, y in mine]
    freedom = len(points) - groups - 1
    if freedom < FEWEST_TEXTS:
        return None
    squares = sum(x * x for x, _ in points)
    slope = sum(x * y for x, y in points) / squares
    error = sqrt(sum((y - slope * x) ** 2 for x, y in points) / freedom / squares)
    half = student(0.9, freedom) * error
    return ContextSlope(100 * slope, 100 * (slope - half), 100 * (slope + half), len(points))
