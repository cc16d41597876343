"""A server's speed over another's, and its 95 % interval, from requests that shared the drift of the machine.

Requests that were sent together met the same machine: their ratios are no independent units, and their group is one
(a cluster). With a block of all prompts to each endpoint and a drift of 5 % between blocks, intervals over prompts held
the truth in 36 of 100 runs. Where rounds are the units, prompts are clusters as well.

Sources: Bell and McCaffrey 2002 (a variance over few clusters that is unbiased for equal spreads, and its degrees of
freedom); Pustejovsky and Tipton 2018; Cameron, Gelbach and Miller 2011 (clusters in two ways).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from benchsuite.measure.interval import FEWEST, NONE, Estimate, LogMean, estimate, sample_variance, student

CLUSTERS = "Student's t over groups of prompts that were sent together"
ROUNDS = "Student's t over rounds and over prompts"


@dataclass(frozen=True)
class PairedLog:
    """The log of one paired ratio: of a prompt, of a workload, in the ``group`` and the ``round`` in which it was
    sent."""

    workload: str
    prompt: int
    group: int
    round: int
    log: float


def speed_of(logs: Sequence[PairedLog]) -> Estimate | None:
    """Return the geometric mean over workloads of those over prompts, with its interval; None of nothing.

    Repeats of a prompt in several rounds are averaged first. The units are prompts where each was sent by itself, else
    groups. Where these are fewer than ``FEWEST`` and there are as many rounds, the interval's square is that of the one
    over rounds and of the one over prompts, less what both have of single requests; with fewer rounds there is none.
    """
    if not logs:
        return None
    prompts = _averaged(logs)
    found, groups = _estimated(prompts), len({one.group for one in prompts})
    if groups == len(prompts):
        return found
    if groups >= FEWEST:
        wide = exp(half_interval_of_groups(prompts))
        return Estimate(found.ratio, found.ratio / wide, found.ratio * wide, groups, CLUSTERS)
    turns = sorted({one.round for one in logs})
    if found.half_width is None or len(turns) < FEWEST:
        return Estimate(found.ratio, None, None, max(groups, len(turns)), NONE)
    each = [_estimated(_averaged([one for one in logs if one.round == turn])).ratio for turn in turns]
    over_rounds, over_prompts, over_requests = map(
        _half, (estimate({"rounds": list(map(log, each))}), found, _estimated(logs))
    )
    # Both of the latter with the quantile of the prompts.
    free = [max(1, count - len({one.workload for one in logs})) for count in (len(prompts), len(logs))]
    over_requests *= student(0.95, free[0]) / student(0.95, free[1])
    wide = exp(sqrt(over_rounds**2 + max(0.0, over_prompts**2 - over_requests**2)))
    return Estimate(found.ratio, found.ratio / wide, found.ratio * wide, len(turns), ROUNDS)


def _averaged(logs: Sequence[PairedLog]) -> list[PairedLog]:
    """One for each prompt: the mean of its rounds."""
    by_prompt: dict[int, list[PairedLog]] = defaultdict(list)
    for one in logs:
        by_prompt[one.prompt].append(one)
    return [replace(some[0], log=fmean(one.log for one in some)) for _, some in sorted(by_prompt.items())]


def _half(found: Estimate) -> float:
    """Half an interval, of the log."""
    assert found.high is not None
    return log(found.high / found.ratio)


def _estimated(logs: Sequence[PairedLog]) -> Estimate:
    """As if each were a unit."""
    units: dict[str, list[float]] = defaultdict(list)
    for one in logs:
        units[one.workload].append(one.log)
    return estimate(units)


def half_interval_of_groups(prompts: Sequence[PairedLog], level: float = 0.95) -> float:
    """Return half the interval of the mean over workloads of the means over prompts, whose groups are the units.

    The residual sum of each group, from the means of workloads, is scaled so that its square is right on average where
    all prompts are independent and spread alike; Bell and McCaffrey's degrees of freedom are of the same assumption.
    A workload that is in one group alone does not show its spread: the residuals are then from the mean of all.

    Example: of groups with as many prompts of one workload each, it is Student's t over the groups' means.
    """
    spread, degrees = _spread_over_groups(prompts)
    return student(level, degrees) * spread


def mean_of_groups(logs: Sequence[PairedLog]) -> LogMean | None:
    """Return the mean over workloads of the means over prompts, and how far it may be off; None of too few units.

    The units are groups, as in ``half_interval_of_groups``, also where each is a prompt. Where they are fewer than
    ``FEWEST``, rounds are, each the mean of all its prompts: what is said is then of these prompts.
    """
    prompts = _averaged(logs)
    groups, turns = len({one.group for one in prompts}), sorted({one.round for one in logs})
    if groups >= FEWEST:
        return LogMean(log(_estimated(prompts).ratio), *_spread_over_groups(prompts), groups)
    if len(turns) < FEWEST:
        return None
    each = [log(_estimated([one for one in logs if one.round == turn]).ratio) for turn in turns]
    return LogMean(fmean(each), sqrt(sample_variance(each) / len(each)), len(each) - 1, len(each))


def _spread_over_groups(prompts: Sequence[PairedLog]) -> tuple[float, float]:
    """The standard error over groups, and its degrees of freedom."""
    names = [one.workload for one in prompts]
    inside = np.array([[one.group == group for one in prompts] for group in {one.group for one in prompts}], float)
    same = np.array([[name == other for other in names] for name in names], float)
    weights = 1 / same.sum(1) / len(set(names))
    means = same / same.sum(1)
    alone = any(len({one.group for one in prompts if one.workload == name}) == 1 for name in set(names))
    residuals = np.eye(len(names)) - (weights if alone else means)
    sums = (inside * weights) @ residuals
    sums *= np.sqrt((inside * weights**2).sum(1) / (sums**2).sum(1))[:, None]
    alike = sums @ sums.T
    degrees = np.trace(alike) ** 2 / (alike**2).sum()
    spread = np.sqrt(((sums @ [one.log for one in prompts]) ** 2).sum())
    return float(spread), float(max(1.0, degrees))
