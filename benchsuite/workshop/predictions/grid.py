"""An exhaustive grid, to set the advisor beside: every draft with every K at every batch, measured once on a text."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import fmean, median, stdev

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.paired import Series
from benchsuite.measure.session import Bench
from benchsuite.predict.advisor import CLOSE, Advice
from benchsuite.predict.checked import UnitTraces, units_of
from benchsuite.predict.interleave import run_in_turn
from benchsuite.predict.ks import KS

KS_OF_GRID = tuple(k for k in KS if 0 < k <= 8)
"""K of every draft of the grid."""

WARM_UP = 8
"""Tokens that every arm decodes before its first timed run."""


@dataclass(frozen=True)
class Grid:
    """A text's grid. ``units``: of each arm, with their paired speedups over plain and their traces; ``seconds``: what
    measuring its cells took."""

    units: Mapping[Arm, Sequence[UnitTraces]]
    seconds: float

    def speedup(self, arm: Arm) -> float:
        """The geometric mean over the units; 1 for plain decoding."""
        return 1.0 if arm.plain else exp(fmean(unit.gain for unit in self.units[arm]))

    def cells(self, setting: Setting) -> list[Arm]:
        """The arms of one batch, and plain decoding, which has K = 0."""
        return [Arm(setting), *[arm for arm in self.units if arm.setting == setting]]

    def best(self, setting: Setting) -> Arm:
        """The fastest cell of one batch."""
        return max(self.cells(setting), key=self.speedup)


@dataclass(frozen=True)
class GridChoice:
    """The advisor's choice beside the fastest cell of the grid, for one batch of a text.

    ``share``: the choice's speed over that of the fastest cell, in the grid. ``again``: the same from further runs of
    these two alone: the fastest of many cells was also a lucky one, by about twice the noise of a cell.
    """

    best: Arm
    chosen: Arm
    best_speedup: float
    chosen_speedup: float
    share: float
    again: float

    @property
    def close(self) -> bool:
        """Whether the choice is about as fast as the fastest cell (``CLOSE``), where they were run again."""
        return self.again >= CLOSE


@dataclass(frozen=True)
class Regret:
    """A controller's speed beside the best fixed K of its draft, on one text at one batch.

    ``regret``: the share of the best K's speed that is missing, below 0 where it was faster; None where no K was
    measured. ``speedup``: over plain. ``error``: the standard error of the log of each of them, from unit to unit.
    """

    arm: Arm
    best_k: int
    regret: float | None
    speedup: float
    error: float


def grid_arms(settings: Sequence[Setting], drafts: Mapping[str, str]) -> list[Arm]:
    """Return the grid's arms. ``drafts``: by their short names.

    Example: ``grid_arms(settings, {"ngram": "ngram"})`` has six cells for each setting.
    """
    return [
        Arm(setting, draft, "match", "fixed", k, name=name)
        for setting in settings
        for name, draft in drafts.items()
        for k in KS_OF_GRID
    ]


def adapting_arms(settings: Sequence[Setting], drafts: Mapping[str, str]) -> list[Arm]:
    """Return each draft with ``goodput``, up to the largest K of the grid."""
    return [
        Arm(setting, draft, "match", "goodput", KS_OF_GRID[-1], name=name)
        for setting in settings
        for name, draft in drafts.items()
    ]


def measure_grid(bench: Bench, arms: Sequence[Arm]) -> Grid:
    """Measure each arm once on every unit of its setting, all in turn with plain decoding."""
    stages, dice = dict(bench.stages()), random.Random(1)
    found: dict[Arm, list[UnitTraces]] = defaultdict(list)
    seconds = 0.0
    for setting in dict.fromkeys(arm.setting for arm in arms):
        mine, units, plain = [arm for arm in arms if arm.setting == setting], bench.units(setting), Arm(setting)
        first = units[0].requests[0]
        short = replace(first, params=replace(first.params, max_new_tokens=WARM_UP))
        run_in_turn(stages, [plain, *mine], [short], dice)
        for unit in units:
            began = time.perf_counter()
            ran = run_in_turn(stages, [plain, *mine], unit.requests, dice)
            seconds += time.perf_counter() - began
            for arm in mine:
                series = Series(arm, "exact", units=[unit], outcomes=[ran[arm]], plain=[ran[plain]])
                found[arm] += units_of(series, setting.sampling.max_new_tokens)
    return Grid(found, seconds)


AGAIN = 24
"""Units, at least, on which the fastest cell and the choice are run again."""

BESIDE = 8
"""Units, at least, on which controllers run beside plain decoding and the best K of their drafts."""


def choice(bench: Bench, grid: Grid, advice: Advice) -> GridChoice:
    """Set an advice beside the grid, and run the two strategies in turn once more, on ``AGAIN`` units or more."""
    setting = advice.best.setting
    best = grid.best(setting)
    # By what is known so far, the advice is to decode without a draft.
    chosen = advice.best if advice.speedup >= 1 else Arm(setting)
    again = 1.0
    if chosen != best:
        logs = _run_again(bench, setting, [best, chosen], AGAIN, random.Random(2))
        again = exp(fmean(logs[best]) - fmean(logs[chosen])) if logs[best] else 1.0
    speeds = grid.speedup(best), grid.speedup(chosen)
    return GridChoice(best, chosen, *speeds, speeds[1] / speeds[0], again)


def _run_again(
    bench: Bench, setting: Setting, arms: Sequence[Arm], least: int, dice: random.Random
) -> dict[Arm, list[float]]:
    """Run arms in turn on ``least`` units or more, in whole rounds: the logs of each one's seconds per token, of those
    units on which all of them decoded something."""
    stages, units = dict(bench.stages()), bench.units(setting)
    logs: dict[Arm, list[float]] = {arm: [] for arm in arms}
    for unit in units * -(-least // len(units)):
        ran = run_in_turn(stages, arms, unit.requests, dice)
        if all(outcome.decoded for outcome in ran.values()):
            for arm, outcome in ran.items():
                logs[arm].append(log(outcome.seconds_per_token))
    return logs


def regrets(bench: Bench, arms: Sequence[Arm], grid: Grid | None = None) -> list[Regret]:
    """Return the regret of every arm, whose controller adapts, against its draft's best fixed K, or plain decoding.

    Which K is the best is known from ``grid``; how much faster it is, from runs apart from it, all in turn with plain
    decoding: the best of several cells was also a lucky one. Without a grid there are speedups alone.
    """
    dice, found = random.Random(3), []
    for setting in dict.fromkeys(arm.setting for arm in arms):
        mine, plain = [arm for arm in arms if arm.setting == setting], Arm(setting)
        beside = {arm: _best_k(grid, arm) for arm in mine} if grid else {}
        fixed = dict.fromkeys(arm for arm in beside.values() if not arm.plain)
        logs = _run_again(bench, setting, [plain, *fixed, *mine], BESIDE, dice)
        for arm in mine:
            other = beside.get(arm, plain)
            missing = [ours - theirs for ours, theirs in zip(logs[arm], logs[other], strict=True)]
            speedup = exp(fmean(logs[plain]) - fmean(logs[arm]))
            error = stdev(missing) / sqrt(len(missing)) if len(missing) > 1 else 0.0
            regret = 1 - exp(-fmean(missing)) if grid else None
            found.append(Regret(arm, other.k or 0, regret, speedup, error))
    return found


def _best_k(grid: Grid, arm: Arm) -> Arm:
    """The fastest cell of an arm's draft, or plain decoding."""
    same = [cell for cell in grid.cells(arm.setting) if cell.plain or cell.draft == arm.draft]
    return max(same, key=grid.speedup)


def median_regret(found: Sequence[Regret]) -> float:
    """The median over texts."""
    return median(one.regret for one in found if one.regret is not None)
