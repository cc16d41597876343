"""The folder of a run as it grows: cells in the matrix's order, a run gone on with, a full disk, a worker's share."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.machine import provenance
from benchsuite.measure.arms import Arm
from benchsuite.measure.measured import Measured
from benchsuite.run.request import RunRequest, texts_of
from benchsuite.run.results_folder import FOLDER, LINES, RunKeeper
from benchsuite.store.journal import Journal, manifest
from benchsuite.tests.report.made_parts import plain_cell

CELLS = [plain_cell(place) for place in range(2)]
ARMS = [Arm(cell.setting) for cell in CELLS]
"""Two cells of plain decoding and the matrix that they are."""


def keeper_of(root: Path, config: object = None, **given: str) -> RunKeeper:
    """The keeper of a run into ``kept`` below ``root``, after it has begun."""
    request = RunRequest.of(texts_of({"results": "kept", "target": "tiny", **given}, root))
    made: Any = config or SimpleNamespace()
    keeper = RunKeeper(made, request)
    keeper.begin(ARMS)
    return keeper


def kept_run(root: Path) -> tuple[RunKeeper, Measured]:
    """A run whose cells were measured and kept, the last of the matrix first."""
    keeper, measured = keeper_of(root), Measured()
    measured.card.append("a card")
    for cell in reversed(CELLS):
        measured.add(cell)
        keeper.keep(cell, measured)
    return keeper, measured


def folder_of_run(root: Path) -> Path:
    [folder] = (root / "kept").iterdir()
    return folder


def test_cells_are_kept_with_their_places_in_the_matrix_and_the_lines_of_the_run(tmp_path: Path) -> None:
    keeper, _ = kept_run(tmp_path)
    folder = folder_of_run(tmp_path)
    assert folder.name.endswith("-tiny")
    assert not keeper.full
    found = Journal.load(folder)
    assert {cell.setting: cell.place for cell in found.cells()} == {arm.setting: n for n, arm in enumerate(ARMS)}
    assert found.said["card"] == ["a card"]
    assert not found.said["complete"]
    assert keeper.write(Measured(), complete=True), "nothing was measured, and nothing is written"
    assert not (folder / "report.html").exists()


@pytest.mark.slow
def test_files_are_written_of_what_was_measured_with_more_texts_beside_them(tmp_path: Path) -> None:
    keeper, measured = kept_run(tmp_path)
    folder = folder_of_run(tmp_path)
    assert keeper.write(measured, complete=True, more={"more.txt": "more"})
    assert keeper.outcome == f"results: {folder}\nreport: {folder / 'report.html'}"
    assert (folder / "more.txt").read_text() == "more"
    assert (folder / "report.html").is_file()
    assert Journal.load(folder).said["complete"]


def test_a_run_is_gone_on_with_where_it_ended_and_a_cell_that_lacks_an_arm_is_measured_again(tmp_path: Path) -> None:
    kept_run(tmp_path)
    folder = folder_of_run(tmp_path)
    again = Measured()
    assert keeper_of(tmp_path, resume="true").go_on(again, ARMS) == ARMS
    assert set(again.cells) == {arm.setting for arm in ARMS}
    assert again.card == ["a card", f"resumed: 2 of 2 cells were there, in {folder}"]
    more, other = Measured(), Arm(ARMS[0].setting, draft="ngram", k=2)
    assert keeper_of(tmp_path, resume="true").go_on(more, [other, ARMS[1]]) == [other, ARMS[1], ARMS[0]]
    assert set(more.cells) == {ARMS[1].setting}
    assert more.card[1] == f"resumed: 1 of 2 cells were there, in {folder}"
    assert keeper_of(tmp_path).go_on(more, [other]) == [other], "a run that begins anew"
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert len(more.card) == 2


def test_a_run_without_a_folder_keeps_nothing(tmp_path: Path) -> None:
    keeper = keeper_of(tmp_path, results="")
    measured = Measured()
    measured.add(CELLS[0])
    keeper.keep(CELLS[0], measured)
    assert keeper.go_on(measured, ARMS) == ARMS
    assert keeper.write(measured, complete=True)
    assert (keeper.full, keeper.outcome, keeper.repeated()) == ("", "", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cell_that_found_no_room_is_written_at_the_end_if_there_is_room_then(tmp_path: Path) -> None:
    keeper, measured = keeper_of(tmp_path), Measured()
    measured.add(CELLS[0])
    cells = folder_of_run(tmp_path) / "cells"
    shutil.rmtree(cells)
    cells.touch()
    keeper.keep(CELLS[0], measured)
    said = f"the cell {ARMS[0].setting.id} could not be written to {cells.parent}: "
    assert keeper.full.startswith(said)
    assert keeper.full.endswith("; free space and go on with --specdec-resume")
    assert not keeper.write(measured, complete=False), "there is none yet"
    said = f"the results could not be written to {cells.parent}: "
    assert keeper.full == keeper.outcome
    assert keeper.full.startswith(said)
    assert keeper.full.endswith("which measures only the cells that are missing")
    cells.unlink()
    cells.mkdir()
    assert keeper.write(measured, complete=False)
    assert [cell.setting for cell in Journal.load(cells.parent).cells()] == [ARMS[0].setting]


def test_a_worker_keeps_cells_in_the_folder_of_the_run_and_returns_its_lines(tmp_path: Path) -> None:
    folder = Journal.begin_in(tmp_path / "kept", "tiny", manifest({})).folder
    worker = SimpleNamespace(workerinput={FOLDER: str(folder)}, workeroutput={})
    keeper, measured = keeper_of(tmp_path, worker), Measured()
    assert len(list((tmp_path / "kept").iterdir())) == 1, "no folder of its own"
    measured.card.append("mine")
    measured.add(CELLS[1])
    keeper.keep(CELLS[1], measured)
    assert keeper.write(measured, complete=True) is True
    assert worker.workeroutput[LINES]["card"] == ["mine"]
    found = Journal.load(folder)
    assert [cell.place for cell in found.cells()] == [1]
    assert "mine" not in found.said["card"], "the controller writes the lines of all"
    assert not (folder / "report.html").exists()
    alone = SimpleNamespace(workerinput={})
    assert keeper_of(tmp_path / "alone", alone).journal is not None


@pytest.mark.slow
def test_a_repeated_run_says_that_it_is_the_same_or_what_differs(tmp_path: Path) -> None:
    kept_run(tmp_path)
    folder = folder_of_run(tmp_path)
    same = keeper_of(tmp_path / "again", repeat=str(folder)).repeated()
    assert same == [f"repeats the run in {folder}, of the same commit, versions, machine and options"]
    [said] = keeper_of(tmp_path / "again", repeat=str(folder), batch="2").repeated()
    assert said.startswith(f"repeats the run in {folder}, and differs in --specdec-batch: 1 there, 2 here")


def test_two_runs_of_unknown_commits_are_not_said_to_be_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an installed package no commit is known: its code may have changed in between."""
    monkeypatch.setattr(provenance, "own_commit", lambda: None)
    kept_run(tmp_path)
    [said] = keeper_of(tmp_path / "again", repeat=str(folder_of_run(tmp_path))).repeated()
    assert said.endswith("of the same versions, machine and options; no commit is known of either")
