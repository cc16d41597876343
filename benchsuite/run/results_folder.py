"""What keeps a run's results: its folder with a cell for everything measured, also where several processes measure.

Imports no torch until a run has rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm, Setting
    from benchsuite.measure.cells import Cell
    from benchsuite.measure.measured import Measured
    from benchsuite.run.request import RunRequest
    from benchsuite.store.journal import Journal

FOLDER, LINES, DIST = "specdec_results", "specdec_lines", "specdec_dist"
"""Keys under which a pytest-xdist worker is given the run's folder, returns its lines, and is told how tests are
distributed."""


class RunKeeper:
    """Keeps cells in the folder of ``--specdec-results``; without one it keeps nothing.

    ``full``: why something could not be written, or empty. ``outcome``: a line that says where the results are.
    """

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        self.config, self.request = config, request
        self.journal: Journal | None = None
        self.full = self.outcome = ""
        self._unwritten: list[Cell] = []
        self._places: dict[Setting, int] = {}

    @property
    def given(self) -> dict[str, Any] | None:
        """What the controller gave to this process, if it is a worker of pytest-xdist."""
        found: dict[str, Any] | None = getattr(self.config, "workerinput", None)
        return found

    def begin(self, arms: Sequence[Arm]) -> None:
        """Begin the run of ``arms``, the whole matrix, or go on with it. SpecdecError if it cannot be."""
        from benchsuite.store.journal import Journal, manifest

        self._places = {setting: place for place, setting in enumerate(dict.fromkeys(arm.setting for arm in arms))}
        root = self.request.results_root()
        if root is None:
            return
        if self.given is not None and FOLDER in self.given:
            self.journal = Journal.load(Path(self.given[FOLDER]))
            return
        name = "+".join(dict.fromkeys(Path(arm.setting.target).name for arm in arms))
        made = manifest(self.request.texts)
        if self.request.resume:
            self.journal = Journal.resume(root, name, made)
        else:
            self.journal = Journal.begin_in(root, name, made)

    def repeated(self) -> list[str]:
        """The card's lines on the run that ``--specdec-repeat`` repeats."""
        from benchsuite.store.journal import Journal, differences, manifest

        folder = self.request.repeat
        if folder is None:
            return []
        there = Journal.load(folder).said
        different = differences(there, manifest(self.request.texts))
        same = [f"repeats the run in {folder}, of the same commit, versions, machine and options"]
        if not there.get("commit"):
            same = [
                f"repeats the run in {folder}, of the same versions, machine and options; no commit is known of either"
            ]
        return [f"repeats the run in {folder}, and differs in {line}" for line in different] or same

    def go_on(self, measured: Measured, arms: Sequence[Arm]) -> list[Arm]:
        """Give what is there already to ``measured``; return the arms that are to be measured.

        A cell that lacks one of ``arms`` is measured again, with its own arms and these.
        """
        if self.journal is None:
            return [*arms]
        self.journal.tell(measured)
        wanted: dict[Setting, set[Arm]] = {}
        for arm in arms:
            wanted.setdefault(arm.setting, set()).add(arm)
        more: list[Arm] = []
        for cell in self.journal.cells():
            if wanted.get(cell.setting, set()) <= cell.series.keys():
                measured.add(cell)
            else:
                more += cell.series
        if self.request.resume:
            found = f"{len(wanted.keys() & measured.cells.keys())} of {len(wanted)} cells were there"
            measured.card.append(f"resumed: {found}, in {self.journal.folder}")
        return list(dict.fromkeys((*arms, *more)))

    def keep(self, cell: Cell, measured: Measured) -> None:
        """Write a cell, and the lines of what was ``measured``; if that fails, ``full`` says why, and it is tried again
        with the tables."""
        from benchsuite.store.journal import lines_of

        if self.journal is None:
            return
        cell = replace(cell, place=self._places[cell.setting])
        try:
            self.journal.keep(cell)
            if self.given is None:
                self.journal.note(lines_of(measured))
        except OSError as error:
            self._unwritten.append(cell)
            self.full = (
                f"the cell {cell.setting.id} could not be written to {self.journal.folder}: "
                f"{error.strerror or error}; free space and go on with --specdec-resume"
            )

    def write(self, measured: Measured, complete: bool, more: Mapping[str, str] | None = None) -> bool:
        """Write the files made of all cells, if there are any, and ``more`` texts by their names; False if that failed.
        A worker leaves them to the controller, and returns its lines."""
        if not measured.cells:
            return True
        from benchsuite.report.files import comparison_files
        from benchsuite.store.journal import lines_of

        if self.given is not None:
            self.config.workeroutput[LINES] = lines_of(measured)  # type: ignore[attr-defined]
            return not self.full
        if self.journal is None:
            return True

        try:
            for cell in self._unwritten:
                self.journal.keep(cell)
            steps = self.request.detail == "steps"
            files = comparison_files(measured.results(), self.journal.said, steps, more)
            self.journal.finish(files, measured, complete)
        except OSError as error:
            self.full = self.outcome = (
                f"the results could not be written to {self.journal.folder}: {error.strerror or error}; free space and "
                "go on with --specdec-resume, which measures only the cells that are missing"
            )
            return False
        self.outcome = f"results: {self.journal.folder}\nreport: {self.journal.folder / 'report.html'}"
        return True
