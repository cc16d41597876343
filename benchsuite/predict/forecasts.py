"""A run's forecasts: its costs, probed or read from a file, and each of its cells beside what they say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from pathlib import Path
from statistics import fmean

from benchsuite.measure.matrix import Arm, Setting
from benchsuite.measure.session import Bench, Stage
from benchsuite.predict.checked import Accuracy, CheckedCell, check_cells
from benchsuite.predict.costs import Costs, costs_identity, costs_path, strategy_of
from benchsuite.predict.prediction import WRONG, Prediction
from benchsuite.predict.probe import TOKENS, measure_costs
from specdec.engine import Engine
from specdec.errors import SpecdecError

SOURCES = ("off", "cached", "fresh")
"""Values of ``--specdec-predict`` that name no file."""


@dataclass(frozen=True)
class Forecasts:
    """Predicted and measured speedups of a run's cells.

    ``costs``: of each setting without its workload; ``cells``: each predicted from the other texts of its workload;
    ``halves``: each half of a cell predicted from the other half; ``said``: where the costs are from.
    """

    costs: Mapping[Setting, Costs]
    cells: Sequence[CheckedCell]
    halves: Sequence[CheckedCell]
    said: Sequence[str]

    def by_arm(self) -> dict[Arm, CheckedCell]:
        """Each arm over all its workloads: geometric means. Errors of the texts are independent between workloads,
        those of the costs are not."""
        groups: dict[Arm, list[CheckedCell]] = defaultdict(list)
        for cell in self.cells:
            groups[replace(cell.arm, setting=cell.arm.setting.without_workload)].append(cell)
        return {arm: _pooled(arm, cells) for arm, cells in groups.items()}

    def accuracy(self) -> Accuracy | None:
        """Of all cells; None without any."""
        return Accuracy.of(self.cells) if self.cells else None


def _pooled(arm: Arm, cells: Sequence[CheckedCell]) -> CheckedCell:
    def mean(values: Sequence[float]) -> float:
        return exp(fmean(values))

    every = [cell.prediction for cell in cells]
    ratio = mean([one.log_ratio for one in every])
    halves = [one.half for one in every if one.half is not None]
    low = high = None
    if len(halves) == len(every):
        known = WRONG * 1.645
        texts = sum(max(0.0, half**2 - known**2) for half in halves) / len(halves) ** 2
        half = sqrt(texts + known**2)
        low, high = ratio * exp(-half), ratio * exp(half)
    measured = mean([cell.log_measured for cell in cells])
    whole = mean([one.log_end_to_end for one in every])
    said = Prediction(ratio, low, high, whole, min(one.texts for one in every))
    return CheckedCell(arm, 0, measured, said, tuple(unit for cell in cells for unit in cell.units))


def check_source(given: str) -> None:
    """Refuse a value of ``--specdec-predict`` that is neither known nor a file, before anything is loaded."""
    if given not in SOURCES and not Path(given).is_file():
        raise SpecdecError(
            f"--specdec-predict is {given!r}; expected {', '.join(SOURCES)}, or the file of an earlier calibration: "
            "there is no such file"
        )


def forecasts_of(bench: Bench, given: str) -> Forecasts:
    """Measure what is missing of the costs, and predict every measured cell.

    ``given``: ``cached`` takes the costs of this machine, code and model from the cache folder, ``fresh`` measures all
    anew, anything else is a file; what was measured is kept in the cache folder. Takes some seconds a strategy. Raises
    SpecdecError for a file of another machine, model, dtype or commit.
    """
    groups: dict[Setting, dict[int, tuple[Setting, Stage]]] = defaultdict(dict)
    for setting, stage in bench.stages():
        groups[replace(setting, batch=0)][setting.batch] = setting, stage
    costs: dict[Setting, Costs] = {}
    said = []
    for of_batch in groups.values():
        found, line = _costs(bench, of_batch, given)
        costs |= {setting: found for setting, _ in of_batch.values()}
        said.append(line)
    cells = [*bench.cells.values()]
    return Forecasts(costs, check_cells(cells, costs), check_cells(cells, costs, parts=2), said)


def costs_of(bench: Bench, given: str) -> list[tuple[list[Setting], Costs, str]]:
    """Return the costs of each target of a run, with the settings (without workloads) that share them, and a line that
    says where they are from. ``given`` and errors as of ``forecasts_of``."""
    groups: dict[Setting, dict[int, tuple[Setting, Stage]]] = defaultdict(dict)
    for setting, stage in bench.stages():
        groups[replace(setting, batch=0)][setting.batch] = setting, stage
    return [
        ([setting for setting, _ in of_batch.values()], *_costs(bench, of_batch, given)) for of_batch in groups.values()
    ]


def _costs(bench: Bench, of_batch: Mapping[int, tuple[Setting, Stage]], given: str) -> tuple[Costs, str]:
    setting, stage = next(iter(of_batch.values()))
    identity = costs_identity(setting, stage.target)
    path = costs_path(identity)
    known = None
    if given not in SOURCES:
        known = Costs.load(Path(given), identity)
    elif given == "cached" and path.is_file():
        known = Costs.load(path, identity)
    engines: dict[int, dict[str, Engine]] = {batch: {} for batch in of_batch}
    for arm, engine in bench.engines():
        if arm.draft is None or replace(arm.setting, batch=0) != replace(setting, batch=0):
            continue
        mine, name = engines[arm.setting.batch], strategy_of(arm)
        if name not in mine or mine[name].max_window < engine.max_window:
            mine[name] = engine
    texts = [tokens for _, _, tokens in bench.prompts()]
    room = stage.assembly.max_length - TOKENS // 2
    sizes = [len(text) + setting.max_new_tokens // 2 for text in texts]
    lengths = sorted({min(room, min(sizes)), min(room, max(sizes))})
    assemblies = {batch: one.assembly for batch, (_, one) in of_batch.items()}
    costs = measure_costs(assemblies, engines, texts, lengths, setting.sampling(()), identity, known)
    costs.save(path)
    new = "" if known is None else f"; {known.age()}: what was known of {len(known.strategies)} strategies"
    return costs, f"costs of {setting.target} and {len(costs.strategies)} strategies: {path}{new}"
