"""Contrasts: the speed of one arm over another's, over the workloads that both have, and what may be said of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from benchsuite.measure.arms import Arm
from benchsuite.measure.guards import why_not
from benchsuite.measure.interval import Estimate, estimate
from benchsuite.measure.paired import Cost, Series, logs
from benchsuite.measure.runners import Outcome
from benchsuite.measure.verdict import SpeedVerdict, noise_of

Pool = Mapping[str, Series]
"""The series of one arm, by workload."""


def contrast(ours: Pool, base: Pool, cost: Cost) -> dict[str, list[float]]:
    """Return ln(cost of base / cost of ours) of every independent unit, by workload."""
    found = {name: logs(series, base[name], cost) for name, series in ours.items() if name in base}
    return {name: values for name, values in found.items() if values}


def compared_with(ours: Pool, base: Pool, cost: Cost) -> Estimate | None:
    """Return the speed of one arm over another's, over all their workloads; None if they share no unit."""
    found = contrast(ours, base, cost)
    return estimate(found) if found else None


def decoding(outcome: Outcome) -> float:
    """The cost that speedups are ratios of: decoding seconds per token."""
    return outcome.seconds_per_token


def end_to_end(outcome: Outcome) -> float | None:
    """Seconds from prompt to last token, per token; None where the prompt may have been in a cache."""
    return None if outcome.warm else outcome.wall_per_token


def noise_between(pools: Mapping[Arm, Pool], cost: Cost) -> float:
    """Return the noise of ``SpeedVerdict``: of plain decoding against itself; 0 where it was not measured again."""
    plain = next(pool for arm, pool in pools.items() if arm.plain)
    again = next((pool for arm, pool in pools.items() if arm.again), {})
    return noise_of(compared_with(again, plain, cost))


def verdict_between(
    ours: Pool, base: Pool, cost: Cost, noise: float, across: Collection[str] = (), *, baseline: bool = False
) -> SpeedVerdict:
    """Return the speed of one arm over another's, over the workloads that both have, and what may be said of it.

    ``noise`` and ``baseline`` as in ``SpeedVerdict``; ``across``: conditions in which the arms may differ.
    """
    shared = [name for name in ours if name in base]
    mine, theirs = ([pool[name] for name in shared] for pool in (ours, base))
    reason = why_not(mine, theirs, across) if shared else None
    return SpeedVerdict(compared_with(ours, base, cost), noise, reason, baseline)
