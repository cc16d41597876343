"""What a run has measured so far: its cells, the rows made of them, and the lines that say how."""

from __future__ import annotations

from collections.abc import Mapping

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.contrasts import Pool
from benchsuite.measure.results import Results, SettingResults, pools_of, rows_of, setting_results
from benchsuite.measure.rows import Row
from benchsuite.measure.weights import Weights


class Measured:
    """Cells and their rows, as they are measured; ``results`` is what reports are made of.

    ``baseline``: the arm that speedups are relative to, as ``arm_named`` reads it. ``dry``: no figure means anything.
    ``across``: conditions in which a row may differ from the baseline and is compared nevertheless.
    ``card``: the lines printed before the measurement; ``said``: what the plan reached; ``weights``: quantised targets.
    """

    def __init__(self, baseline: str = "plain", dry: bool = False, across: tuple[str, ...] = ()) -> None:
        self.baseline, self.dry, self.across = baseline, dry, across
        self.card: list[str] = []
        self.said: list[str] = []
        self.weights: list[Weights] = []
        self._cells: dict[Setting, Cell] = {}
        self._rows: dict[Setting, dict[Arm, Row]] = {}
        self._settings: tuple[SettingResults, ...] | None = None  # of these cells, once they were asked for

    def add(self, cell: Cell) -> None:
        """Make the rows of a cell; they replace those of an earlier cell of the same setting."""
        self._cells[cell.setting] = cell
        self._settings = None
        pools: dict[Arm, Pool] = {
            arm: {cell.setting.workload: series}
            for arm, series in cell.series.items()
            if series.outcomes or series.error
        }
        self._rows[cell.setting] = rows_of(pools, [cell], cell.label, cell.text, self.baseline, self.across)

    def drop(self, setting: Setting) -> None:
        """Take back the cell of a setting, if there is one, with its rows."""
        self._cells.pop(setting, None)
        self._rows.pop(setting, None)
        self._settings = None

    @property
    def cells(self) -> Mapping[Setting, Cell]:
        """The cells measured so far, in the order of measurement."""
        return self._cells

    @property
    def rows(self) -> list[Row]:
        """The rows measured so far, in the order of measurement."""
        return [row for rows in self._rows.values() for row in rows.values()]

    def pools(self, setting: Setting) -> dict[Arm, Pool]:
        """The series of each strategy of a setting, apart from its workload, by workload."""
        return pools_of([cell for cell in self._cells.values() if cell.setting.without_workload == setting])

    def results(self) -> Results:
        """Return what was measured so far. Of the same cells, rows over all workloads are made once."""
        cells, rows = tuple(self._cells.values()), tuple(self.rows)
        if self._settings is None:
            settings = dict.fromkeys(cell.setting.without_workload for cell in cells)
            self._settings = tuple(setting_results(one, cells, rows, self.baseline, self.across) for one in settings)
        lines = tuple(self.card), tuple(self.said)
        return Results(self._settings, cells, rows, *lines, tuple(self.weights), self.dry)
