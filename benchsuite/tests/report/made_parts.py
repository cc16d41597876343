"""Made-up parts of a run: folders of cells of plain decoding, of which nothing is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchsuite.measure.arms import Arm
from benchsuite.measure.cells import Cell
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.store.journal import Journal
from benchsuite.tests.rig import SETTING
from specdec import Request

CELLS = 4
"""Cells of the matrix that is measured in parts."""

Part = tuple[int, int]
"""A part's number, and of how many."""


def plain_cell(place: int) -> Cell:
    """A cell of plain decoding alone."""
    setting = SETTING.replaced(max_new_tokens=8 + place)
    unit = Unit((Request(0, (1, 2), setting.params(())),), 0)
    run = Outcome([(1, 2, 3)], 1.0, 0.5, 3, [[(0.5, 1), (1.0, 2)]], 3, 5.0)
    series = Series(Arm(setting), "exact", units=[unit], outcomes=[run])
    machine = Machine("tiny", "reference", "cpu", "float32", 1000, 10, 1e6, 77)
    made = {"machine": "m", "host": "h", "commit": "c", "time": "2026-11-28T00:00:00+0000"}
    return Cell(setting, "chat", machine, (), {Arm(setting): series}, {}, None, made, {}, place)


def measured_part(root: Path, matrix_said: dict[str, Any], part: Part, ended: str) -> Path:
    """The folder of a part that was measured to its end, was interrupted, or was killed: every n-th cell is its own."""
    shard = "" if part == (1, 1) else f"{part[0]}/{part[1]}"
    again = json.loads(json.dumps(matrix_said))
    journal = Journal.begin(root / f"{part[0]}of{part[1]}", again | {"options": again["options"] | {"shard": shard}})
    for place in range(part[0] - 1, CELLS, part[1]):
        journal.keep(plain_cell(place))
    if ended != "killed":
        journal.finish({}, journal.measured(), ended == "whole")
    return journal.folder
