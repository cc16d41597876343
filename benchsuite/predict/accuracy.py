"""Accuracy: how far predictions were from what was measured, beside what measured speedups say without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from math import exp, log
from statistics import fmean, median
from typing import NamedTuple

from benchsuite.measure.arms import Arm, Setting
from benchsuite.predict.checked import CheckedCell, KnownUnits
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.prediction import Replay


class PredictionTrial(NamedTuple):
    """A prediction of what was measured: logs of the ``measured`` and the ``predicted`` speedup, and of the one that is
    ``known`` without costs and steps. ``strategy``: in its setting, without K and workload."""

    strategy: tuple[Setting, str]
    measured: float
    predicted: float
    known: float


class Errors(NamedTuple):
    """Of said speedups: ``median`` of |measured / said - 1|; ``explained``: the part of the differences within
    strategies that is explained, 1 - the residuals' sum of squares over that of ln(measured) around the mean of its
    strategy, NaN without any. That strategies differ from each other explains nothing."""

    median: float
    explained: float


@dataclass(frozen=True)
class Accuracy:
    """How good so many predictions were, and how good the measured speedups were that they are set beside."""

    trials: int
    predicted: Errors
    known: Errors

    @staticmethod
    def of(trials: Sequence[PredictionTrial]) -> Accuracy:
        """Return the accuracy over trials; ValueError without any."""
        groups: dict[tuple[Setting, str], list[float]] = defaultdict(list)
        for trial in trials:
            groups[trial.strategy].append(trial.measured)
        within = sum((value - fmean(mine)) ** 2 for mine in groups.values() for value in mine)

        def errors(residuals: Sequence[float]) -> Errors:
            left = sum(residual**2 for residual in residuals)
            found = median(abs(exp(residual) - 1) for residual in residuals)
            return Errors(found, 1 - left / within if within else float("nan"))

        return Accuracy(
            len(trials),
            errors([trial.measured - trial.predicted for trial in trials]),
            errors([trial.measured - trial.known for trial in trials]),
        )


def accuracies_of(
    known: KnownUnits, costs: Mapping[Setting, Costs], texts: Sequence[CheckedCell]
) -> dict[str, Accuracy]:
    """Return the accuracy by what had not been run, where something is known of that. ``texts``: as ``check_cells`` has
    them ``alone``."""
    trials = {
        "a text": text_trials(texts),
        "a text, end to end": text_trials(texts, whole=True),
        "a K": k_trials(known, costs),
        "a batch": batch_trials(known, costs),
    }
    return {what: Accuracy.of(mine) for what, mine in trials.items() if mine}


def text_trials(texts: Sequence[CheckedCell], whole: bool = False) -> list[PredictionTrial]:
    """Return each text, predicted from the others of its workload, beside the mean of their measured speedups of the
    same strategy. ``texts``: as ``check_cells`` has them ``alone``; those without others are left out. ``whole``: from
    prompt to last token, without strategies that replay plain's output, which they decode in some of the prefills."""
    return [
        PredictionTrial(
            _strategy(cell.arm),
            log(cell.measured_end_to_end) if whole else cell.log_measured,
            cell.prediction.log_end_to_end if whole else cell.prediction.log_ratio,
            fmean(other.whole_gain if whole else other.gain for other in cell.others),
        )
        for cell in texts
        if cell.others and not (whole and any(unit.replays for unit in cell.units))
    ]


def k_trials(known: KnownUnits, costs: Mapping[Setting, Costs]) -> list[PredictionTrial]:
    """Return each fixed K, predicted from each larger one of its draft that was run on the same texts, beside the
    measured speedup of that one. Trees are left out: they are proposed whole."""
    chains = {
        arm: units for arm, units in known.items() if not any(trace.branched for unit in units for trace in unit.traces)
    }
    pairs = [pair for pair in _pairs(chains, lambda arm: replace(arm, k=0)) if (pair[0].k or 0) < (pair[1].k or 0)]
    return _carried(pairs, known, costs)


def batch_trials(known: KnownUnits, costs: Mapping[Setting, Costs]) -> list[PredictionTrial]:
    """Return each strategy with a fixed K, predicted from each other batch in which it was run on the same texts,
    beside the measured speedup in that one."""
    pairs = _pairs(known, lambda arm: replace(arm, setting=replace(arm.setting, batch=1)))
    return _carried(pairs, known, costs)


def _pairs(arms: Iterable[Arm], without: Callable[[Arm], Arm]) -> list[tuple[Arm, Arm]]:
    """Every two arms with a fixed K that differ in one thing, which ``without`` takes away, in both orders."""
    groups: dict[Arm, list[Arm]] = defaultdict(list)
    for arm in arms:
        if arm.controller == "fixed":
            groups[without(arm)].append(arm)
    return [pair for mine in groups.values() for pair in permutations(mine, 2)]


def _carried(
    pairs: Iterable[tuple[Arm, Arm]], known: KnownUnits, costs: Mapping[Setting, Costs]
) -> list[PredictionTrial]:
    """The first arm of each pair, predicted from what was measured of the second on the texts of both, and from the
    ratio of two replays of that one's steps, as what was not run is recommended."""
    replay = cache(lambda setting, strategy: Replay(costs[setting], strategy))
    found = []
    for arm, other in pairs:
        common = {text for unit in known[arm] for text in unit.texts} & {t for unit in known[other] for t in unit.texts}
        mine, theirs = ([unit for unit in known[one] if common >= {*unit.texts}] for one in (arm, other))
        if not mine or not theirs:
            continue
        traces = {text: trace for unit in known[other] for text, trace in zip(unit.texts, unit.traces, strict=True)}
        here, there = replay(*_strategy(arm)), replay(*_strategy(other))
        expected = fmean(
            here.gains([traces[text].with_k(arm.k or 0) for text in unit.texts], unit.prompts)[0] for unit in mine
        )
        ran = fmean(there.gains(unit.traces, unit.prompts)[0] for unit in theirs)
        measured = fmean(unit.gain for unit in theirs)
        gain = fmean(unit.gain for unit in mine)
        found.append(PredictionTrial(_strategy(arm), gain, measured + expected - ran, measured))
    return found


def _strategy(arm: Arm) -> tuple[Setting, str]:
    return arm.setting.without_workload, strategy_of(arm)
