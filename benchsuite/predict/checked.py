"""Predictions checked: every measured cell beside what other texts and the costs say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean, median

from benchsuite.measure.cells import Cell
from benchsuite.measure.matrix import Arm
from benchsuite.measure.paired import Series
from benchsuite.predict.costs import Costs
from benchsuite.predict.prediction import Prediction, PromptSizes, Replay, predict, text_spread
from benchsuite.predict.traces import StepTrace, traces_of


@dataclass(frozen=True)
class CheckedCell:
    """One arm on one workload: its measured speedup over plain, and the predicted one.

    ``part``: which units of the cell, where it was divided (from 0); all of them otherwise.
    """

    arm: Arm
    part: int
    measured: float
    prediction: Prediction

    @property
    def residual(self) -> float:
        """ln(measured / predicted): above 0, it was faster than predicted."""
        return log(self.measured / self.prediction.ratio)

    @property
    def inside(self) -> bool | None:
        """Whether the measured speedup lies in the interval; None without one."""
        low, high = self.prediction.low, self.prediction.high
        return None if low is None or high is None else low <= self.measured <= high


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


@dataclass(frozen=True)
class UnitTraces:
    """One unit of an arm: its requests' prompts, their traces, and the log of its paired speedup over plain."""

    prompts: PromptSizes
    traces: tuple[StepTrace, ...]
    gain: float


def units_of(series: Series, tokens: int) -> dict[int, UnitTraces]:
    """Return the units of an arm by number; of several runs of a unit, the gains' mean and the first run's traces."""
    gains: dict[int, list[float]] = defaultdict(list)
    found: dict[int, UnitTraces] = {}
    for unit, mine, theirs in zip(series.units, series.outcomes, series.plain, strict=False):
        if not mine.decoded or not theirs.decoded:
            continue
        gains[unit.number].append(log(theirs.seconds_per_token / mine.seconds_per_token))
        lengths = tuple(len(request.prompt) for request in unit.requests)
        made = tuple(trace for trace in traces_of(mine) if trace.steps)
        if made:
            found.setdefault(unit.number, UnitTraces(PromptSizes(lengths, tokens), made, 0.0))
    return {number: UnitTraces(one.prompts, one.traces, fmean(gains[number])) for number, one in found.items()}


def check_cells(cells: Iterable[Cell], costs: Mapping[int, Costs] | Costs, parts: int = 1) -> list[CheckedCell]:
    """Predict every cell of our strategies from texts that are not in it, and set the measured speedup beside it.

    With ``parts`` = 1 each unit is predicted from all other units of its workload (leave one out), and the cell is the
    geometric mean of these: every text has then been used for the others, so that the spread between texts hardly
    shows. With 2 a cell is divided: each half of the units is a cell of its own, predicted from the other half alone.
    Cells whose arm failed, or that have fewer units than parts + 1, are left out.
    """
    by_arm: dict[Arm, dict[Arm, dict[int, UnitTraces]]] = defaultdict(dict)
    for cell in cells:
        for arm, series in cell.series.items():
            if arm.draft is not None and not series.failure:
                units = units_of(series, cell.setting.max_new_tokens)
                if len(units) > 1:
                    by_arm[arm_without_workload(arm)][arm] = units
    found = []
    for arms in by_arm.values():
        one = next(iter(arms))
        known = costs if isinstance(costs, Costs) else costs[one.setting.batch]
        if one.strategy not in known.strategies:
            continue
        spread = text_spread([_gains_of_texts(known, one.strategy, units) for units in arms.values()])
        for arm, units in arms.items():
            found += list(_checked(arm, units, known, parts, spread))
    return found


def arm_without_workload(arm: Arm) -> Arm:
    """Return the arm as it is on every workload of its setting."""
    return replace(arm, setting=arm.setting.without_workload)


def _gains_of_texts(costs: Costs, strategy: str, units: Mapping[int, UnitTraces]) -> list[float]:
    """The replayed gain of each unit from its own traces: how texts differ, without the clock."""
    replay = Replay(costs, strategy)
    return [replay.gains(unit.traces, unit.prompts)[0] for unit in units.values()]


def _checked(
    arm: Arm, units: Mapping[int, UnitTraces], costs: Costs, parts: int, spread: float | None
) -> Iterable[CheckedCell]:
    numbers = sorted(units)
    groups: list[tuple[list[int], dict[int, list[int]]]] = []
    if parts == 1:
        groups = [(numbers, {number: [other for other in numbers if other != number] for number in numbers})]
    for part in range(parts if parts > 1 else 0):
        mine = numbers[part::parts]
        rest = [number for number in numbers if number not in mine]
        if mine and rest:
            groups.append((mine, dict.fromkeys(mine, rest)))
    for part, (mine, others) in enumerate(groups):
        targets = [
            (units[number].prompts, [trace for other in others[number] for trace in units[other].traces])
            for number in mine
        ]
        measured = exp(fmean(units[number].gain for number in mine))
        yield CheckedCell(arm, part, measured, predict(costs, arm.strategy, targets, spread))
