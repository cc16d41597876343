"""Mistakes planted into costs: in which rows the residuals show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.predict.costs import Costs, DraftCosts, strategy_of
from benchsuite.predict.forecasts import Forecasts
from benchsuite.predict.traces import traces_of
from benchsuite.report.document import Lines, Part, Table
from specdec.calibration import Point, forward_seconds
from specdec.errors import SpecdecError

OFF = 1.2
"""Factor of a planted mistake."""


def wide_off(costs: Costs, width: int) -> Costs:
    """Return costs in which a forward of ``width`` slots takes 20 % more than was measured; its neighbours are kept."""
    kept = {
        Point(rows, length, near): forward_seconds(costs.forward, near, rows, length)
        for rows, length in {(point.rows, point.length) for point in costs.forward}
        for near in (width - 1, width, width + 1)
        if near > 0
    }
    wrong = {point: seconds * (OFF if point.width == width else 1) for point, seconds in kept.items()}
    return replace(costs, forward={**costs.forward, **wrong})


def slow_with_context(costs: Costs, strategy: str, seconds: float) -> Costs:
    """Return costs in which each proposing step of a strategy's draft takes ``seconds`` more at the longest context
    that was probed, half of that half way, and nothing more at the shortest."""
    known = costs.strategies[strategy]

    def slower(lengths: Mapping[int, Mapping[int, float]]) -> dict[int, dict[int, float]]:
        least, most = min(lengths), max(lengths)
        shares = {length: (length - least) / max(1, most - least) for length in lengths}
        return {
            length: {made: value + seconds * shares[length] * (made > 0) for made, value in kinds.items()}
            for length, kinds in lengths.items()
        }

    wrong: DraftCosts = replace(known, steps={rows: slower(lengths) for rows, lengths in known.steps.items()})
    return costs.with_strategies({strategy: wrong})


def planted_parts(cells: Sequence[Cell], true: Forecasts) -> list[Part]:
    """Return tables of the rows' residuals at the costs that were measured, and at costs with a mistake.

    One mistake is the forward of the window that most steps of fixed chains have; the other a draft that costs half a
    forward more at long contexts, of the first strategy. In the first, rows whose steps have that width change; in the
    second, that strategy's rows, and among its texts those with long prompts most.
    """
    width = _commonest_width(cells)
    first = strategy_of(next(iter(true.arms)))
    costs = dict(true.costs)
    off = {setting: wide_off(one, width) for setting, one in costs.items()}
    slow = {
        setting: slow_with_context(one, first, 0.5 * one.verify(1, setting.batch, 0)) for setting, one in costs.items()
    }
    return [
        Lines(
            [
                f"residuals of the rows, in percent; v({width}) 20 % too large, and {first} half a forward dearer at "
                "the longest context:"
            ]
        ),
        _beside(cells, true, {f"v({width}) off": off, "slow draft": slow}),
        Lines([f"the same of {first} by text, which have prompts of different lengths:"]),
        _by_text(cells, true, first, slow),
    ]


def refusals(costs: Costs) -> list[str]:
    """Return what is said where the file of these costs is used on another machine, and for another dtype.

    AssertionError if it is taken.
    """
    found = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "costs.json"
        costs.save(path)
        for name in ("machine", "dtype"):
            try:
                Costs.load(path, {**costs.identity, name: f"another {name}"})
            except SpecdecError as error:
                found.append(str(error).replace(str(path), path.name))
            else:
                raise AssertionError(f"costs of another {name} were taken")
    return found


def _commonest_width(cells: Sequence[Cell]) -> int:
    """The width of most steps that proposed something, of chains with a fixed K."""
    seen: dict[int, int] = {}
    for cell in cells:
        for arm, series in cell.series.items():
            if arm.draft is None or arm.controller != "fixed":
                continue
            traces = [trace for outcome in series.outcomes for trace in traces_of(outcome) if not trace.branched]
            for step in (step for trace in traces for step in trace.steps if step.proposed):
                seen[step.proposed + 1] = seen.get(step.proposed + 1, 0) + 1
    return max(seen, key=lambda width: seen[width], default=2)


def _percent(residual: float) -> str:
    return f"{(exp(residual) - 1) * 100:+z.1f}"


def _beside(cells: Sequence[Cell], true: Forecasts, planted: Mapping[str, Mapping[Setting, Costs]]) -> Table:
    wrong = {name: Forecasts.of(cells, costs).arms for name, costs in planted.items()}
    rows = [
        (arm.label, arm.setting.batch, _percent(cell.residual), *[_percent(of[arm].residual) for of in wrong.values()])
        for arm, cell in true.arms.items()
    ]
    return Table(("row", "batch", "as measured", *wrong), rows)


def _by_text(cells: Sequence[Cell], true: Forecasts, strategy: str, costs: Mapping[Setting, Costs]) -> Table:
    wrong: dict[Arm, float] = {cell.arm: cell.residual for cell in Forecasts.of(cells, costs).cells}
    rows = [
        (
            cell.arm.setting.workload,
            cell.arm.setting.batch,
            round(fmean(size for unit in cell.units for size in unit.prompts.lengths)),
            _percent(cell.residual),
            _percent(wrong[cell.arm]),
        )
        for cell in true.cells
        if strategy_of(cell.arm) == strategy
    ]
    headers = ("text", "batch", "prompt tokens", "as measured", "slow draft")
    return Table(headers, rows)
