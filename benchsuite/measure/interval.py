"""The figure of an arm over units and workloads, and its 95 % interval.

A unit (a prompt, or a batch of prompts) has one number: the log of its paired ratio to the baseline. The figure is the
geometric mean over workloads of the geometric means within them. Units are independent; the workloads are strata.

The interval is Student's t on the logs. Its variance is the sum of the workloads' own, and its degrees of freedom are
the harmonic mean of Satterthwaite's for the spreads as seen and for equal spreads: with two or three units a workload
the first alone is too wide and the second too narrow (docs/measuring.md has the coverages).

Sources: Satterthwaite 1946 (degrees of freedom of a sum of variances); Cochran, Sampling Techniques, chapter 5
(stratified means); Abramowitz and Stegun, 26.5.4 and 26.7.1 (the incomplete beta function and Student's t).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, fsum, inf, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist, fmean

FEWEST = 6
"""Units in all below which a figure has no interval."""

MOST = 1_000_000
"""Units of the smallest workload up to which ``units_needed`` looks."""

WITHIN = "Student's t over units within workloads"
BETWEEN = "Student's t over workloads (one has a single unit)"
NONE = f"none below {FEWEST} units"


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval, as ratios to the baseline.

    ``low`` and ``high`` are None below ``FEWEST`` units; ``units`` counts those of all workloads; ``method`` names how
    the interval was made.
    """

    ratio: float
    low: float | None
    high: float | None
    units: int
    method: str

    @property
    def half_width(self) -> float | None:
        """``high / ratio - 1``, which is ``ratio / low - 1`` too; None without an interval. 0.05 reads "within 5 %"."""
        return None if self.high is None else self.high / self.ratio - 1


@dataclass(frozen=True)
class LogMean:
    """A mean of logs over so many ``units``, its standard ``error``, and the ``degrees`` of freedom of that."""

    mean: float
    error: float
    degrees: float
    units: int


def estimate(logs: Mapping[str, Sequence[float]], level: float = 0.95) -> Estimate:
    """Return the geometric mean of the workloads' geometric means, with an interval that covers it at ``level``.

    ``logs``: for each workload the natural log of each unit's paired ratio, the repeats of a unit averaged before.
    Workloads weigh the same whatever their number of units; those without units are left out.

    With two units or more in every workload the interval is about these workloads, for further units of theirs. A
    workload with a single unit does not show its spread: the means of the workloads are then one sample, whose spread
    between workloads stands in. That is right for workloads drawn at random and too wide for chosen ones.

    Raises ValueError if there are no units at all.

    Example: ``estimate({"chat": [0.0, 0.2, 0.4], "code": [0.5, 0.6, 0.7]})`` is 1.49, from 1.23 to 1.81.
    """
    strata = _strata(logs)
    units = sum(map(len, logs.values()))
    if not units:
        raise ValueError("got no unit, expected at least one log ratio: leave the figure out where nothing was paired")
    middle = fmean(fmean(stratum) for stratum in strata)
    if units < FEWEST:
        return Estimate(exp(middle), None, None, units, NONE)
    half = half_interval([len(stratum) for stratum in strata], [sample_variance(stratum) for stratum in strata], level)
    method = BETWEEN if _single(logs) else WITHIN
    return Estimate(exp(middle), exp(middle - half), exp(middle + half), units, method)


def units_needed(logs: Mapping[str, Sequence[float]], precision: float) -> int | None:
    """Return how many units in all would give a 95 % interval whose ``half_width`` is at most ``precision``.

    The spread is taken to stay as seen. The units are spread over the workloads as now: so many in the smallest, at
    least two, and the others in proportion, rounded up. Where a workload has a single unit, further workloads are
    counted, each with as many units as now on average; fewer units usually do if they are of the same workloads.

    None below ``FEWEST`` units, and where the smallest workload would need more than ``MOST``.

    Example: ``units_needed({"chat": [0.0, 0.2, 0.4], "code": [0.5, 0.6, 0.7]}, 0.1)`` is 14.
    """
    units = sum(map(len, logs.values()))
    if units < FEWEST:
        return None
    strata = _strata(logs)
    variances = [sample_variance(stratum) for stratum in strata]
    smallest = min(map(len, strata))
    # A stratum of workloads counts these.
    share = units / sum(map(len, strata))

    def counts(size: int) -> list[int]:
        return [ceil(len(stratum) * size / smallest) for stratum in strata]

    def total(size: int) -> int:
        return ceil(sum(counts(size)) * share)

    def enough(size: int) -> bool:
        return total(size) >= FEWEST and expm1(half_interval(counts(size), variances, 0.95)) <= precision

    size = 2 + bisect_left(range(2, MOST + 1), True, key=enough)
    return total(size) if size <= MOST else None


def student(level: float, degrees: float) -> float:
    """Return the t for which P(-t < T < t) is ``level``, T being Student's with ``degrees`` of freedom, 1 or more.

    Degrees may be fractions. The result is exact to 1e-7 up to a million degrees.

    Example: ``student(0.95, 5)`` is 2.5706.
    """
    normal = NormalDist().inv_cdf((1 + level) / 2)
    # The expansion in 1 / degrees to its second term lies below the root, and the probability is concave in t: Newton's
    # steps only rise.
    t = normal + (normal**3 + normal) / (4 * degrees)
    constant = lgamma((degrees + 1) / 2) - lgamma(degrees / 2) - log(degrees * pi) / 2
    step = inf
    while abs(step) > 1e-7 * t:  # the next step would be of the order of its square
        density = exp(constant - (degrees + 1) / 2 * log1p(t * t / degrees))
        step = (level - student_central(t, degrees)) / (2 * density)
        t += step
    return t


def _single(logs: Mapping[str, Sequence[float]]) -> bool:
    """Whether a workload has one unit, which does not show its spread."""
    return any(len(units) == 1 for units in logs.values())


def _strata(logs: Mapping[str, Sequence[float]]) -> list[Sequence[float]]:
    """The samples whose spreads make the interval: the workloads' units or, as one sample, the workloads' means."""
    workloads = [units for units in logs.values() if units]
    return [[fmean(units) for units in workloads]] if _single(logs) else workloads


def sample_variance(values: Sequence[float]) -> float:
    """Return the unbiased variance of two values or more."""
    middle = fmean(values)
    return fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def half_interval(counts: Sequence[int], variances: Sequence[float], level: float) -> float:
    """Half the interval of the mean of the strata's means, given their counts (2 or more) and variances."""
    error, degrees = _spread(counts, variances)
    return student(level, degrees) * error if error else 0.0


def mean_of_strata(strata: Sequence[Sequence[float]]) -> LogMean:
    """Return the mean of the strata's means, each of two values or more, and how far it may be off.

    Example: ``mean_of_strata([[0.0, 0.2], [0.4, 0.6]]).mean`` is 0.3.
    """
    error, degrees = _spread([len(one) for one in strata], [sample_variance(one) for one in strata])
    return LogMean(fmean(map(fmean, strata)), error, degrees, sum(map(len, strata)))


def _spread(counts: Sequence[int], variances: Sequence[float]) -> tuple[float, float]:
    """The standard error of the mean of the strata's means, and its degrees of freedom."""
    parts = [variance / n for n, variance in zip(counts, variances, strict=True)]
    whole, even = fsum(parts), fsum(1 / n for n in counts)
    if not whole:
        return 0.0, float(sum(counts) - len(counts))
    # Twice the reciprocal of the harmonic mean: Satterthwaite's reciprocals for these parts, and for equal variances.
    inverse = fsum(((part / whole) ** 2 + (1 / n / even) ** 2) / (n - 1) for n, part in zip(counts, parts, strict=True))
    return sqrt(whole) / len(counts), 2 / inverse


def student_central(t: float, degrees: float) -> float:
    """P(-t < T < t): the incomplete beta function of t² / (degrees + t²), from the side where its series is short."""
    inside = t * t / (degrees + t * t)
    if inside < 0.5:
        return incomplete_beta(inside, 0.5, degrees / 2)
    return 1 - incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function at ``x`` in (0, 1), by its series in x, whose terms are all positive."""
    term = whole = exp(lgamma(a + b) - lgamma(a + 1) - lgamma(b) + a * log(x) + b * log1p(-x))
    n, ratio = 0, inf
    while ratio >= 1 or term > 1e-16 * whole:
        ratio = x * (a + b + n) / (a + 1 + n)
        term *= ratio
        whole += term
        n += 1
    return whole
