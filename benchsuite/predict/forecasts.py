"""A run's forecasts: its costs, probed or read from a file, and each of its cells beside what they say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from pathlib import Path
from statistics import fmean, median

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.session import Bench, Stage
from benchsuite.predict.accuracy import Accuracy, accuracies_of
from benchsuite.predict.checked import CheckedCell, check_cells, interval_factors, known_units, with_factors
from benchsuite.predict.costs import Costs, costs_identity, costs_path, strategy_of
from benchsuite.predict.prediction import WRONG, Prediction, Replay
from benchsuite.predict.probe import TOKENS, measure_costs
from benchsuite.values import COSTS_FROM
from specdec.engine import Engine


@dataclass(frozen=True)
class Forecasts:
    """Predicted and measured speedups of a run's cells.

    ``costs``: of each setting without its workload; ``cells``: each predicted from the other texts of its workload;
    ``texts``: each unit of them, predicted from the others; ``arms``: each arm over all its workloads; ``accuracies``:
    by what had not been run; ``said``: where the costs are from. Intervals are wider or narrower by
    ``interval_factors``.
    """

    costs: Mapping[Setting, Costs]
    cells: Sequence[CheckedCell]
    texts: Sequence[CheckedCell]
    arms: Mapping[Arm, CheckedCell]
    said: Sequence[str]
    accuracies: Mapping[str, Accuracy] = field(default_factory=dict)

    @staticmethod
    def of(cells: Sequence[Cell], costs: Mapping[Setting, Costs], said: Sequence[str] = ()) -> Forecasts:
        """Predict measured cells at ``costs``."""
        known = known_units(cells, costs)
        found, texts = check_cells(known, costs), check_cells(known, costs, alone=True)
        factors = interval_factors(found)
        groups: dict[Arm, list[CheckedCell]] = defaultdict(list)
        for cell in found:
            groups[replace(cell.arm, setting=cell.arm.setting.without_workload)].append(cell)
        arms = with_factors([_pooled(arm, mine) for arm, mine in groups.items()], factors)
        return Forecasts(
            costs,
            with_factors(found, factors),
            with_factors(texts, interval_factors(texts)),
            {cell.arm: cell for cell in arms},
            said,
            accuracies_of(known, costs, texts),
        )

    def paces(self) -> dict[Setting, float]:
        """Return how long plain decoding took over what the costs say, by setting without workload: the median over the
        units of its cells."""
        found: dict[Setting, list[float]] = defaultdict(list)
        for cell in self.cells:
            setting = cell.arm.setting.without_workload
            replay = Replay(self.costs[setting], strategy_of(cell.arm))
            for unit in cell.units:
                if unit.plain_s:
                    tokens = unit.prompts.tokens * len(unit.prompts.lengths)
                    found[setting].append(unit.plain_s * tokens / replay.plain(unit.prompts))
        return {setting: median(values) for setting, values in found.items()}


def _pooled(arm: Arm, cells: Sequence[CheckedCell]) -> CheckedCell:
    """An arm over all its workloads: geometric means. Errors of the texts are independent between workloads, those of
    the costs are not."""

    def mean(values: Sequence[float]) -> float:
        return exp(fmean(values))

    every = [cell.prediction for cell in cells]
    ratio = mean([one.log_ratio for one in every])
    halves = [one.half for one in every if one.half is not None]
    half = None
    if len(halves) == len(every):
        known = WRONG * 1.645
        texts = sum(max(0.0, half**2 - known**2) for half in halves) / len(halves) ** 2
        half = sqrt(texts + known**2)
    measured = mean([cell.log_measured for cell in cells])
    whole = mean([one.log_end_to_end for one in every])
    said = Prediction.around(ratio, half, whole, min(one.texts for one in every))
    return CheckedCell(arm, measured, said, tuple(unit for cell in cells for unit in cell.units))


def forecasts_of(bench: Bench, given: str) -> Forecasts:
    """Measure what is missing of the costs, and predict every measured cell.

    ``given``: ``cached`` takes the costs of this machine, code and model from the cache folder, ``fresh`` measures all
    anew, anything else is a file; what was measured is kept in the cache folder. Takes some seconds a strategy. Raises
    SpecdecError for a file of another machine, model, dtype or commit.
    """
    found = costs_of(bench, given)
    costs = {setting: one for settings, one, _ in found for setting in settings}
    said = [line for _, _, line in found]
    return Forecasts.of([*bench.cells.values()], costs, said)


def costs_of(bench: Bench, given: str, arms: Sequence[Arm] | None = None) -> list[tuple[list[Setting], Costs, str]]:
    """Return the costs of each target of a run, with the settings (without workloads) that share them, and a line that
    says where they are from. ``given`` and errors as of ``forecasts_of``; ``arms``: those whose strategies are needed,
    by default all of the bench."""
    wanted = None if arms is None else {strategy_of(arm) for arm in arms}
    groups: dict[Setting, dict[int, tuple[Setting, Stage]]] = defaultdict(dict)
    for setting, stage in bench.stages():
        groups[replace(setting, batch=0)][setting.batch] = setting, stage
    return [
        ([setting for setting, _ in of_batch.values()], *_costs(bench, of_batch, given, wanted))
        for of_batch in groups.values()
    ]


def _costs(
    bench: Bench, of_batch: Mapping[int, tuple[Setting, Stage]], given: str, wanted: set[str] | None
) -> tuple[Costs, str]:
    setting, stage = next(iter(of_batch.values()))
    identity = costs_identity(setting, stage.target)
    path = costs_path(identity)
    known = None
    if given not in COSTS_FROM:
        known = Costs.load(Path(given), identity)
    elif given == "cached" and path.is_file():
        known = Costs.load(path, identity)
    engines: dict[int, dict[str, Engine]] = {batch: {} for batch in of_batch}
    for arm, engine in bench.engines():
        if arm.draft is None or replace(arm.setting, batch=0) != replace(setting, batch=0):
            continue
        mine, name = engines[arm.setting.batch], strategy_of(arm)
        if wanted is not None and name not in wanted:
            continue
        if name not in mine or mine[name].max_window < engine.max_window:
            mine[name] = engine
    texts = [tokens for _, _, tokens in bench.prompts()]
    room = stage.assembly.max_length - TOKENS // 2
    lengths = probed_lengths([len(text) for text in texts], setting.sampling.max_new_tokens, room)
    assemblies = {batch: one.assembly for batch, (_, one) in of_batch.items()}
    costs = measure_costs(assemblies, engines, texts, lengths, setting.params(()), identity, known)
    costs.save(path)
    new = "" if known is None else f"; {known.age()}: what was known of {len(known.strategies)} strategies"
    return costs, f"costs of {setting.target} and {len(costs.strategies)} strategies: {path}{new}"


def probed_lengths(prompts: Sequence[int], tokens: int, room: int) -> list[int]:
    """Return the contexts whose costs are measured: the middle of the shortest request's and of the longest one's, at
    most ``room``.

    It is one where these two are nearer to each other than a request's first token to its last: the line through them,
    which goes on to the end of the longest request, would multiply the noise of both.

    Example: ``probed_lengths([100, 300], 32, 1000)`` is ``[116, 316]``.
    """
    short, long = (min(room, end + tokens // 2) for end in (min(prompts), max(prompts)))
    return [short, long] if long - short >= tokens else [(short + long) // 2]
