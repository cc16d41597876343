"""Predictions checked: every measured cell beside what other texts and the costs say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from statistics import fmean, geometric_mean, median

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.paired import Series
from benchsuite.measure.runners import Outcome
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.prediction import PredictedUnit, Prediction, PromptSizes, Replay, Text, predict, text_spread
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

    ``part``: which units of the cell, where it was divided (from 0); all of them otherwise. ``units``: what was
    measured. ``kept``: the shares of the steps that asked for proposals in which one of depth 1, 2 … was accepted, of a
    tree too; ``expected_kept``: the same of the texts that it is predicted from.
    """

    arm: Arm
    part: int
    measured: float
    prediction: Prediction
    units: tuple[UnitTraces, ...] = ()
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


@dataclass(frozen=True)
class Accuracy:
    """How good predictions were.

    ``median_error``: the median of |measured / predicted - 1|; ``r_squared``: 1 - the residuals' sum of squares over
    that of ln(measured) around its mean; ``held``: the share of cells inside their intervals, of ``intervals`` that had
    one.
    """

    cells: int
    median_error: float
    r_squared: float
    held: float
    intervals: int

    @staticmethod
    def of(cells: Sequence[CheckedCell]) -> Accuracy:
        """Return the accuracy over cells; ValueError without any."""
        logs = [log(cell.measured) for cell in cells]
        middle = fmean(logs)
        whole = sum((value - middle) ** 2 for value in logs)
        inside = [cell.inside for cell in cells if cell.inside is not None]
        return Accuracy(
            len(cells),
            median(abs(exp(cell.residual) - 1) for cell in cells),
            1 - sum(cell.residual**2 for cell in cells) / whole if whole else float("nan"),
            fmean(inside) if inside else float("nan"),
            len(inside),
        )


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


def check_cells(cells: Iterable[Cell], costs: Mapping[Setting, Costs], parts: int = 1) -> list[CheckedCell]:
    """Predict every cell of our strategies from texts that are not in it, and set the measured speedup beside it.

    ``costs``: of each setting without its workload; cells of others are left out, as are those whose arm failed or that
    have fewer units than ``parts`` + 1 and no other batch. With ``parts`` = 1 each unit is predicted from all other
    units of its workload (leave one out), those of other batches included; the cell is the geometric mean of these.
    Every text has then served for the others: what is left is mostly the error of the costs. With 2 a cell is divided:
    each half of the units is a cell of its own, predicted from the other half alone, so that it holds the difference
    between texts as well.
    """
    known: dict[Arm, dict[Arm, list[UnitTraces]]] = defaultdict(dict)
    for cell in cells:
        for arm, series in cell.series.items():
            have = costs.get(arm.setting.without_workload)
            if arm.draft is None or series.failure or have is None or strategy_of(arm) not in have.strategies:
                continue
            units = units_of(series, cell.setting.sampling.max_new_tokens)
            if units:
                known[replace(arm, setting=arm.setting.without_workload)][arm] = units
    found = []
    for without, arms in known.items():
        spread = text_spread([_gains_of_texts(costs[without.setting], arm, units) for arm, units in arms.items()])
        for arm, units in arms.items():
            # The same strategy on the same workload in another batch.
            others = [
                unit
                for other in known
                if other != without
                for unit in known[other].get(replace(arm, setting=replace(arm.setting, batch=other.setting.batch)), [])
            ]
            found += list(_checked(arm, units, others, costs[without.setting], parts, spread))
    return found


def _gains_of_texts(costs: Costs, arm: Arm, units: Sequence[UnitTraces]) -> list[float]:
    """The replayed gain of each text from its own trace: how texts differ, without the clock."""
    replay = Replay(costs, strategy_of(arm))
    return [replay.gains([trace] * len(unit.texts), unit.prompts)[0] for unit in units for trace in unit.traces]


def _checked(
    arm: Arm,
    units: Sequence[UnitTraces],
    others: Sequence[UnitTraces],
    costs: Costs,
    parts: int,
    spread: float | None,
) -> Iterable[CheckedCell]:
    numbers = sorted({unit.number for unit in units})
    for part in range(parts):
        mine = [unit for unit in units if unit.number in numbers[part::parts]]
        held = {text for unit in mine for text in unit.texts}
        targets = []
        for unit in mine:
            hidden = held if parts > 1 else {text for one in mine if one.number == unit.number for text in one.texts}
            donors = {
                text: trace
                for one in (*others, *units)
                for text, trace in zip(one.texts, one.traces, strict=True)
                if text not in hidden
            }
            targets.append(PredictedUnit(unit.prompts, unit.texts, donors))
        if mine and all(target.donors for target in targets):
            measured = exp(fmean(unit.gain for unit in mine))
            traces = [trace for unit in mine for trace in unit.traces]
            deepest = max(step.accepted for trace in traces for step in trace.steps)
            expected = [kept_by_depth([*target.donors.values()], deepest) for target in targets]
            yield CheckedCell(
                arm,
                part,
                measured,
                predict(costs, strategy_of(arm), targets, spread),
                tuple(mine),
                tuple(kept_by_depth(traces, deepest)),
                tuple(map(fmean, zip(*expected, strict=True))),
            )
