"""What a run has measured: its cells, the rows made of them, and the lines that say how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchsuite.measure.arms import Arm, Setting, arm_named
from benchsuite.measure.cells import Cell
from benchsuite.measure.interval import Estimate
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Pool, Row, Text, compared_with, decoding, make_rows
from benchsuite.measure.weights import Weights


class Measured:
    """Cells, and the rows of each and of each setting's workloads together.

    ``baseline``: the arm that speedups are relative to, as ``arm_named`` reads it. ``dry``: no figure means anything.
    ``across``: conditions in which a row may differ from the baseline and is compared nevertheless.
    ``card``: the lines printed before the measurement; ``said``: what the plan reached; ``weights``: quantised targets.
    """

    def __init__(self, baseline: str = "plain", dry: bool = False, across: tuple[str, ...] = ()) -> None:
        self.baseline, self.dry, self.across = baseline, dry, across
        self.card: list[str] = []
        self.said: list[str] = []
        self.weights: list[Weights] = []
        self.cells: dict[Setting, Cell] = {}
        self._rows: dict[Arm, Row] = {}

    def add(self, cell: Cell) -> None:
        """Make the rows of a cell; they replace those of an earlier cell of the same setting."""
        self.cells[cell.setting] = cell
        pools: dict[Arm, Pool] = {
            arm: {cell.setting.workload: series}
            for arm, series in cell.series.items()
            if series.outcomes or series.error
        }
        self._rows |= self._made(pools, [cell], cell.label, cell.text)

    @property
    def rows(self) -> list[Row]:
        """The rows measured so far, in the order of measurement."""
        return list(self._rows.values())

    def rows_of(self, setting: Setting) -> list[Row]:
        """The rows measured so far with a setting, whatever their workload."""
        return [row for row in self.rows if row.arm.setting.without_workload == setting.without_workload]

    def pooled(self) -> list[list[Row]]:
        """For each setting apart from its workload, return the rows of each strategy over all measured workloads."""
        settings = dict.fromkeys(setting.without_workload for setting in self.cells)
        return [
            list(self._made(self.pools(setting), self._cells_of(setting), "all", None).values()) for setting in settings
        ]

    def contrasts(self, setting: Setting) -> dict[tuple[Arm, Arm], Estimate]:
        """The speed of each strategy of a setting over each other's, over all measured workloads; failed ones apart."""
        pools = {
            arm: pool
            for arm, pool in self.pools(setting.without_workload).items()
            if not any(series.failure for series in pool.values())
        }
        found = {}
        for one, ours in pools.items():
            for other, base in pools.items():
                speed = compared_with(ours, base, decoding) if one != other else None
                if speed is not None:
                    found[one, other] = speed
        return found

    def pools(self, setting: Setting) -> dict[Arm, Pool]:
        """The series of each strategy of a setting, by workload."""
        pools: dict[Arm, dict[str, Series]] = {}
        for cell in self._cells_of(setting):
            for arm, series in cell.series.items():
                pools.setdefault(replace(arm, setting=setting), {})[cell.setting.workload] = series
        return dict(pools)

    def _cells_of(self, setting: Setting) -> list[Cell]:
        return [cell for one, cell in self.cells.items() if one.without_workload == setting]

    def _made(self, pools: dict[Arm, Pool], cells: Sequence[Cell], name: str, text: Text | None) -> dict[Arm, Row]:
        machine = replace(cells[-1].machine, peak_memory_bytes=max(cell.machine.peak_memory_bytes for cell in cells))
        by_strategy = {arm.strategy: seconds for cell in cells for arm, seconds in cell.set_up.items()}
        set_up = {arm: by_strategy[arm.strategy] for arm in pools if arm.strategy in by_strategy}
        baseline = arm_named(self.baseline, list(pools))
        return make_rows(pools, baseline, machine, name, text, set_up, self.across)
