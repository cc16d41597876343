"""Predictions checked: every measured cell and text beside what other texts and the costs say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from statistics import fmean, geometric_mean

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.paired import Series
from benchsuite.measure.runners import Outcome
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.prediction import PredictedUnit, Prediction, PromptSizes, Replay, Text, pooled_variance, predict
from benchsuite.predict.traces import StepTrace, kept_by_depth, traces_of


@dataclass(frozen=True)
class UnitTraces:
    """One unit of an arm: its number, its requests' texts and sizes, their traces, and the log of its paired speedup
    over plain. Units of one number are not independent of each other. ``replays``: the strategy asked for plain's
    output. ``whole_gain``: the log of the speedup from prompt to last token. ``plain_s``: seconds of decoding per token
    of plain, of all rows; 0 where they are not known.
    """

    number: int
    texts: tuple[Text, ...]
    prompts: PromptSizes
    traces: tuple[StepTrace, ...]
    gain: float
    replays: bool = False
    whole_gain: float = 0.0
    plain_s: float = 0.0


@dataclass(frozen=True)
class CheckedCell:
    """One arm on one workload: its measured speedup over plain, and the predicted one.

    ``units``: what was measured; a single one where a text is a cell of its own, and ``others`` are then the cell's
    other units, of which none has its number. ``kept``: the shares of the steps that asked for proposals in which one
    of depth 1, 2 … was accepted, of a tree too; ``expected_kept``: the same of the texts that it is predicted from.
    """

    arm: Arm
    measured: float
    prediction: Prediction
    units: tuple[UnitTraces, ...] = ()
    others: tuple[UnitTraces, ...] = ()
    kept: tuple[float, ...] = ()
    expected_kept: tuple[float, ...] = ()

    @property
    def residual(self) -> float:
        """ln(measured / predicted): above 0, it was faster than predicted."""
        return log(self.measured / self.prediction.ratio)

    @property
    def measured_end_to_end(self) -> float:
        """The measured speedup from prompt to last token: the geometric mean over the units."""
        return exp(fmean(unit.whole_gain for unit in self.units))

    @property
    def log_measured(self) -> float:
        """ln(measured)."""
        return log(self.measured)

    @property
    def inside(self) -> bool | None:
        """Whether the measured speedup lies in the interval; None without one."""
        low, high = self.prediction.low, self.prediction.high
        return None if low is None or high is None else low <= self.measured <= high


FEWEST_OTHERS = 9
"""Cells of other strategies from which a factor is taken: with fewer, none of their errors is a 90 % one."""


def interval_factors(cells: Sequence[CheckedCell]) -> dict[str, float]:
    """Return, for each strategy, the factor by which the errors of the other strategies' predictions ask for wider
    intervals than ``predict`` gave, or allow narrower ones.

    It is the 90th percentile of their errors, each relative to its own interval. So no interval depends on what was
    measured of its own strategy. A strategy with fewer than ``FEWEST_OTHERS`` cells of others has 1.
    Source: conformal prediction, with scaled residuals as in Lei et al. 2018, section 5.2, and one strategy left out as
    one fold is in the CV+ of Barber et al. 2021.
    """
    scaled = [
        (strategy_of(cell.arm), abs(cell.residual) / cell.prediction.half) for cell in cells if cell.prediction.half
    ]
    found = {}
    for strategy in dict.fromkeys(strategy_of(cell.arm) for cell in cells):
        others = sorted(share for other, share in scaled if other != strategy)
        fit = len(others) >= FEWEST_OTHERS
        found[strategy] = others[ceil(0.9 * (len(others) + 1)) - 1] if fit else 1.0
    return found


def with_factors(cells: Sequence[CheckedCell], factors: Mapping[str, float]) -> list[CheckedCell]:
    """Return the cells with their intervals multiplied (on the log scale) by the factors of their strategies."""
    return [replace(cell, prediction=cell.prediction.widened(factors[strategy_of(cell.arm)])) for cell in cells]


def units_of(series: Series, tokens: int) -> list[UnitTraces]:
    """Return the units of an arm; of several runs of a unit, the gains' mean and the first run's traces."""
    pairs: dict[tuple[Text, ...], list[tuple[Outcome, Outcome]]] = defaultdict(list)
    first: dict[tuple[Text, ...], tuple[int, tuple[StepTrace, ...], bool]] = {}
    for unit, mine, theirs in zip(series.units, series.outcomes, series.plain, strict=False):
        made = tuple(traces_of(mine))
        if not mine.decoded or not theirs.decoded or not all(trace.steps for trace in made):
            continue
        texts = tuple(request.prompt for request in unit.requests)
        pairs[texts].append((mine, theirs))
        first.setdefault(texts, (unit.number, made, mine.replays > 0))
    return [
        UnitTraces(
            number,
            texts,
            PromptSizes(tuple(map(len, texts)), tokens),
            made,
            fmean(log(theirs.seconds_per_token / mine.seconds_per_token) for mine, theirs in pairs[texts]),
            replays,
            fmean(log(theirs.wall_per_token / mine.wall_per_token) for mine, theirs in pairs[texts]),
            geometric_mean(theirs.seconds_per_token for _, theirs in pairs[texts]),
        )
        for texts, (number, made, replays) in first.items()
    ]


KnownUnits = Mapping[Arm, Sequence[UnitTraces]]
"""What was measured of each arm."""


def known_units(cells: Iterable[Cell], costs: Mapping[Setting, Costs]) -> dict[Arm, list[UnitTraces]]:
    """Return the units of our strategies whose costs are known, of arms that did not fail.

    ``costs``: of each setting without its workload.
    """
    found: dict[Arm, list[UnitTraces]] = {}
    for cell in cells:
        for arm, series in cell.series.items():
            have = costs.get(arm.setting.without_workload)
            if arm.draft is None or series.failure or have is None or strategy_of(arm) not in have.strategies:
                continue
            units = units_of(series, cell.setting.sampling.max_new_tokens)
            if units:
                found[arm] = units
    return found


def check_cells(known: KnownUnits, costs: Mapping[Setting, Costs], alone: bool = False) -> list[CheckedCell]:
    """Predict every arm's units from texts that are not in them, and set the measured speedup beside it.

    Each unit is predicted from all other units of its workload (leave one out), those of other batches included; arms
    without any are left out. A cell is the geometric mean of its units. Every text of it has then served for the
    others, so that the mean is nearly that of the texts' own replays: what is left is mostly the error of the costs.
    With ``alone`` each unit is a cell of its own, which holds the difference between texts as well.
    """
    groups: dict[Arm, dict[Arm, Sequence[UnitTraces]]] = defaultdict(dict)
    for arm, units in known.items():
        groups[replace(arm, setting=arm.setting.without_workload)][arm] = units
    found = []
    for without, arms in groups.items():
        of_arm = costs[without.setting]
        spread = pooled_variance([_gains_of_texts(of_arm, arm, units) for arm, units in arms.items()])
        for arm, units in arms.items():
            hidden: dict[int, set[Text]] = defaultdict(set)
            for unit in units:
                hidden[unit.number] |= {*unit.texts}
            elsewhere = [unit for other in _in_other_batches(known, arm) for unit in known[other]]
            targets = [_target(unit, [*elsewhere, *units], hidden[unit.number]) for unit in units]
            if not all(target.donors for target in targets):
                continue
            if not alone:
                found.append(_checked(arm, units, targets, of_arm, spread))
                continue
            for unit, target in zip(units, targets, strict=True):
                others = tuple(other for other in units if other.number != unit.number)
                found.append(replace(_checked(arm, [unit], [target], of_arm, spread), others=others))
    return found


def _gains_of_texts(costs: Costs, arm: Arm, units: Sequence[UnitTraces]) -> list[float]:
    """The replayed gain of each text from its own trace: how texts differ, without the clock."""
    replay = Replay(costs, strategy_of(arm))
    return [replay.gains([trace] * len(unit.texts), unit.prompts)[0] for unit in units for trace in unit.traces]


def _in_other_batches(known: KnownUnits, arm: Arm) -> list[Arm]:
    """Return the same strategy on the same workload in other batches."""
    batch = arm.setting.batch
    return [other for other in known if other != arm == replace(other, setting=replace(other.setting, batch=batch))]


def _target(unit: UnitTraces, every: Sequence[UnitTraces], hidden: Collection[Text]) -> PredictedUnit:
    """The unit, to be predicted from the texts of ``every`` that are not ``hidden``."""
    donors = {
        text: trace for one in every for text, trace in zip(one.texts, one.traces, strict=True) if text not in hidden
    }
    return PredictedUnit(unit.prompts, unit.texts, donors)


def _checked(
    arm: Arm, units: Sequence[UnitTraces], targets: Sequence[PredictedUnit], costs: Costs, spread: float | None
) -> CheckedCell:
    traces = [trace for unit in units for trace in unit.traces]
    deepest = max(step.accepted for trace in traces for step in trace.steps)
    expected = [kept_by_depth([*target.donors.values()], deepest) for target in targets]
    return CheckedCell(
        arm,
        exp(fmean(unit.gain for unit in units)),
        predict(costs, strategy_of(arm), targets, spread),
        tuple(units),
        kept=tuple(kept_by_depth(traces, deepest)),
        expected_kept=tuple(map(fmean, zip(*expected, strict=True))),
    )
