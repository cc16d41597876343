"""The shift between two sets of launches: exact rank tests, Hodges-Lehmann estimates and their intervals.

Null distributions are exact, because a gate can afford only a few launches. No shape of the noise is assumed.

Sources: Wilcoxon 1945; Mann and Whitney 1947; Hodges and Lehmann 1963; Hollander and Wolfe, Nonparametric
Statistical Methods, sections 3.1 to 3.3 and 4.1 to 4.3; Holm 1979.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import comb, inf
from statistics import median
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Shift:
    """How much larger the second set is, in the unit of the values.

    ``low`` and ``high``: one-sided bounds at the requested level; infinite if there are too few values for that level.
    ``p_more`` and ``p_less``: exact p-values of the null hypotheses "no larger" and "no smaller".
    """

    estimate: float
    low: float
    high: float
    p_more: float
    p_less: float


def paired(differences: Sequence[float], level: float) -> Shift:
    """Wilcoxon's signed-rank test of one difference per pair; the estimate is the median of their Walsh averages.

    Example: ``paired([0.05, 0.06, 0.07, 0.05, 0.06], 1 / 32)`` has low 0.05, high 0.07 and p_more 1/32.
    """
    averages = sorted((a + b) / 2 for i, a in enumerate(differences) for b in differences[i:])
    null = _signed_ranks(len(differences))
    # The statistic is the number of averages above 0. Averages equal to 0 count against rejection in both tests.
    above, below = sum(a > 0 for a in averages), sum(a < 0 for a in averages)
    return _shift(averages, null, above, below, level)


def unpaired(base: Sequence[float], head: Sequence[float], level: float) -> Shift:
    """Mann and Whitney's rank-sum test; the estimate is the median of all differences head - base.

    Example: ``unpaired([1, 2, 3], [11, 12, 13], 0.05)`` has estimate 10, low 8, high 12.
    """
    differences = sorted(b - a for a in base for b in head)
    above, below = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return _shift(differences, _rank_sums(len(base), len(head)), above, below, level)


def _shift(values: Sequence[float], null: Sequence[float], above: int, below: int, level: float) -> Shift:
    """The shift of sorted elementary estimates. ``null``: the distribution of their number above 0 without a shift."""
    cut = sum(chance <= level for chance in null) - 1
    low, high = (values[cut], values[-1 - cut]) if cut >= 0 else (-inf, inf)
    # Both null distributions are symmetric: P(T >= t) = P(T <= maximum - t).
    return Shift(median(values), low, high, null[len(values) - above], null[len(values) - below])


@cache
def _signed_ranks(n: int) -> tuple[float, ...]:
    """P(T <= t) of the signed rank statistic, t from 0 to n (n + 1) / 2."""
    counts = [1]
    for rank in range(1, n + 1):
        none = [0] * rank
        counts = [left + taken for left, taken in zip([*counts, *none], [*none, *counts], strict=True)]
    return tuple(total / 2**n for total in accumulate(counts))


@cache
def _rank_sums(m: int, n: int) -> tuple[float, ...]:
    """P(U <= u) of Mann and Whitney's statistic, u from 0 to m n."""
    # counts[k][u]: the number of subsets of k of the ranks so far that have statistic u.
    counts = [[1] + [0] * (m * n)] + [[0] * (m * n + 1) for _ in range(n)]
    for rank in range(m + n):
        for chosen in range(n, 0, -1):
            more = [0] * (rank - chosen + 1)  # one for each value of the other set that is below this one
            taken = [*more, *counts[chosen - 1]]
            counts[chosen] = [left + one for left, one in zip(counts[chosen], taken, strict=False)]
    return tuple(total / comb(m + n, n) for total in accumulate(counts[n]))


def holm(p_values: Mapping[Name, float], level: float) -> set[Name]:
    """Holm's method: the names whose null hypothesis is rejected; P(any false rejection) is at most ``level``."""
    rejected: set[Name] = set()
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > level / (len(p_values) - rank):
            break
        rejected.add(name)
    return rejected
