"""The crossover: the load from which an arm is slower than plain decoding, with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Literal

from benchsuite.measure.interval import LogMean, student

STEPS = 100
"""Places between two measured loads at which the interval of the ratio is looked at."""


@dataclass(frozen=True)
class Crossover:
    """Where the ratio to plain falls below 1, along the measured loads.

    ``at``: the load from which the ratio stays below 1, on straight lines between the measured ratios' logs over the
    log of the load; None if it does not fall below 1, or is never above it. ``low`` and ``high`` enclose every load at
    which the 95 % interval of the ratio holds 1: below the first the arm is certainly faster, above the second
    certainly slower. Each is None where no measured load is so. ``state``: ``falls`` from above 1 to below, each for
    certain; ``faster`` or ``slower``: for certain at every load; else ``unclear``.
    """

    state: Literal["falls", "faster", "slower", "unclear"]
    at: float | None
    low: float | None
    high: float | None

    def sentence(self, unit: str) -> str:
        """What may be said, with the loads' ``unit``: ``slower than plain from 2.7 at once on (2.3 to 3.2)``."""
        if self.state in ("faster", "slower"):
            return f"{self.state} than plain at every load"
        if self.at is None and self.low is None and self.high is None:
            return "no load at which it is certainly faster or slower than plain"
        since = "" if self.at is None else f" from {self.at:.3g} {unit} on"
        ends = [
            *([] if self.low is None else [f"certainly faster up to {self.low:.3g}"]),
            *([] if self.high is None else [f"certainly slower from {self.high:.3g}"]),
        ]
        if self.state == "falls":
            return f"slower than plain{since} ({self.low:.3g} to {self.high:.3g})"
        line = f"; its line is below plain's{since}" if since else ""
        return f"{', '.join(ends) or 'nothing is certain'} {unit}{line}"


def crossover(loads: Sequence[float], ratios: Sequence[LogMean], level: float = 0.95) -> Crossover:
    """Return the crossover of an arm whose log ratios to plain are ``ratios`` at ``loads``, which rise.

    The loads are measured in blocks of their own, so that their errors are independent. Between two loads the log
    ratio is their weighted mean, and so is its error, with Satterthwaite's degrees of freedom. The interval is the set
    of loads at which a test of that log ratio against 0 does not reject: it holds the true crossover of the straight
    lines with probability ``level``, for however few blocks, and has no end where the runs show none.

    Example: ``crossover([1, 2, 4], [LogMean(0.4, 0.01, 5, 6), LogMean(0.1, 0.01, 5, 6), LogMean(-0.3, 0.01, 5, 6)])``
    """
    places = [
        (exp((1 - share) * log(loads[n]) + share * log(loads[n + 1])), _between(ratios[n], ratios[n + 1], share))
        for n in range(len(loads) - 1)
        for share in (step / STEPS for step in range(STEPS))
    ]
    places.append((loads[-1], ratios[-1]))
    halves = [student(level, max(1.0, one.degrees)) * one.error for _, one in places]
    open_places = [n for n, (_, one) in enumerate(places) if abs(one.mean) <= halves[n]]
    means = [one.mean for _, one in places]
    if not open_places:
        if means[0] > 0 > means[-1]:  # it falls within one step, for certain
            at = next(place for (place, _), mean in zip(places, means, strict=True) if mean <= 0)
            return Crossover("falls", at, at, at)
        return Crossover("faster" if means[0] > 0 else "slower", None, None, None)
    first, last = open_places[0], open_places[-1]
    low = places[first][0] if first > 0 and means[first - 1] > 0 else None
    high = places[last][0] if last + 1 < len(places) and means[last + 1] < 0 else None
    falls = low is not None and high is not None
    return Crossover("falls" if falls else "unclear", _last_fall(places, means), low, high)


def _last_fall(places: Sequence[tuple[float, LogMean]], means: Sequence[float]) -> float | None:
    """The load of the last fall from above 0 to below, after which the mean stays below."""
    if means[-1] >= 0:
        return None
    above = [n for n, mean in enumerate(means) if mean >= 0]
    return places[above[-1] + 1][0] if above else None


def _between(one: LogMean, other: LogMean, share: float) -> LogMean:
    """The weighted mean of two independent means."""
    parts = [((1 - share) * one.error) ** 2, (share * other.error) ** 2]
    whole = sum(parts)
    inverse = sum((part / whole) ** 2 / mean.degrees for part, mean in zip(parts, (one, other), strict=True) if whole)
    degrees = 1 / inverse if inverse else min(one.degrees, other.degrees)
    mean = (1 - share) * one.mean + share * other.mean
    return LogMean(mean, sqrt(whole), degrees, min(one.units, other.units))
