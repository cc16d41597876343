"""Folders of runs and of other jobs: what they keep, which of them is read, and who may write into them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.gate.figures import machine
from benchsuite.machine import files, provenance
from benchsuite.machine.files import FolderLock, runs, strict_json, write_file, write_files, write_folder
from benchsuite.measure.arms import Arm
from benchsuite.measure.cells import Cell
from benchsuite.measure.measured import Measured
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine
from benchsuite.measure.weights import Weights
from benchsuite.store.journal import Journal, differences, lines_of, manifest
from benchsuite.tests.rig import SETTING
from specdec.errors import SpecdecError

OPTIONS = {"baseline": "plain", "target": "tiny"}
WEIGHTS = Weights("tiny", "int8", 10, 40, 9.5, 9.25, 100)


@cache
def whole_manifest() -> str:
    """What this process's runs are: to ask git and the processor takes a while."""
    return json.dumps(manifest({}))


def manifest_of(options: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of a run with these options."""
    return {**json.loads(whole_manifest()), "options": dict(options)}


def empty_cell(place: int) -> Cell:
    """A cell of which nothing was measured yet, at its place in the matrix."""
    setting = SETTING.replaced(max_new_tokens=100 - place)
    series = {Arm(setting): Series(Arm(setting), "exact")}
    made = Machine("tiny", "reference", "cpu", "float32", 1000, 10, 1e6, 77)
    return Cell(setting, "chat", made, (), series, {}, None, {}, {}, place)


def test_a_run_that_has_begun_is_unfinished_and_has_nothing(tmp_path: Path) -> None:
    begun = Journal.begin(tmp_path / "deep" / "run", manifest_of(OPTIONS))
    read = Journal.load(tmp_path / "deep")
    assert read.said["complete"] is False
    assert read.said["options"] == OPTIONS
    assert read.said["sha256"] == {}
    assert {"format", "version", "command", "time", "commit", "changes", "machine", "weights"} < read.said.keys()
    assert read == begun, "a lock is no part of what a run is"
    assert not (read.folder / ".running").stat().st_mode & 0o111, "no program"
    found = read.measured()
    assert ([*found.cells], found.card, found.said, found.weights) == ([], [], [], [])
    assert not found.dry


def test_the_machine_of_a_run_is_that_of_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr("benchsuite.store.journal.joined_ranks", lambda: None)
    found = manifest({})["machine"]
    assert found["threads"] == "3"
    assert {**found, "device": None, "system": platform.system()} == machine(None)
    monkeypatch.setattr("benchsuite.store.journal.joined_ranks", lambda: "two ranks")
    assert manifest({})["machine"] == {**found, "ranks": "two ranks"}
    gpus = [{"name": "A", "bytes": 1}, {"name": "B", "bytes": 2}]
    monkeypatch.setattr(provenance, "accelerators", lambda: gpus)
    said = manifest({})
    assert said["machine"] == {**found, "ranks": "two ranks", "gpus": ["A", "B"]}
    assert said["accelerators"] == gpus


def test_cells_are_read_in_the_order_of_the_matrix_and_their_files_have_no_time(tmp_path: Path) -> None:
    """The time of a gzip file is in the bytes 4 to 7, and 0 where there is none (RFC 1952, section 2.3.1)."""
    journal = Journal.begin(tmp_path / "run", manifest_of(OPTIONS))
    shutil.rmtree(journal.folder / "cells")
    for place in (2, 0, 3, 1):
        journal.keep(empty_cell(place))
    assert [one.place for one in Journal.load(tmp_path).cells()] == [0, 1, 2, 3]
    written = [*(journal.folder / "cells").iterdir()]
    assert {file.read_bytes()[4:8] for file in written} == {bytes(4)}
    assert len(written) == 4


def test_a_cell_with_a_number_that_json_lacks_is_not_written(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path / "run", manifest_of(OPTIONS))
    odd = replace(empty_cell(0), set_up={next(iter(empty_cell(0).series)): math.nan})
    with pytest.raises(ValueError, match="JSON"):
        journal.keep(odd)
    assert [*(journal.folder / "cells").iterdir()] == []


def test_lines_are_kept_once_and_none_is_taken_back(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path / "run", manifest_of(OPTIONS))
    first, second = Measured(), Measured()
    first.card, first.said, first.weights = ["a", "b"], ["one"], [WEIGHTS]
    second.card = ["b", "c"]
    assert lines_of(first) == {"card": ["a", "b"], "said": ["one"], "weights": [asdict(WEIGHTS)]}
    for measured in (first, second, first):
        journal.note(lines_of(measured))
    told = Measured()
    told.card, told.said = ["before"], ["zero"]
    Journal.load(tmp_path).tell(told)
    assert (told.card, told.said, told.weights) == (["before", "a", "b", "c"], ["zero", "one"], [WEIGHTS])


@pytest.mark.parametrize("complete", [True, False])
def test_a_run_that_ends_has_the_digests_of_its_files_and_leaves_its_folder_to_others(
    complete: bool, tmp_path: Path
) -> None:
    journal = Journal.begin(tmp_path / "run", manifest_of(OPTIONS))
    with pytest.raises(SpecdecError, match="is writing its results into"):
        Journal.resume(tmp_path, "x", manifest_of(OPTIONS))
    measured = Measured()
    measured.said = ["said"]
    journal.finish({"table.md": "| ä |\n", "ratios.json.gz": "[]"}, measured, complete)
    again = Journal.resume(tmp_path, "x", manifest_of(OPTIONS))
    assert again.said["complete"] is complete
    assert again.said["said"] == ["said"]
    assert again.said["sha256"].keys() == {"table.md", "ratios.json.gz"}
    for name, digest in again.said["sha256"].items():
        assert hashlib.sha256((journal.folder / name).read_bytes()).hexdigest() == digest
    assert (journal.folder / "table.md").read_text(encoding="utf-8") == "| ä |\n"
    assert again.lock is not None
    again.lock.release()
    again.lock.release()
    loaded = Journal.load(tmp_path)
    loaded.finish({}, measured, complete)
    assert not (journal.folder / ".running").exists()


def test_to_go_on_removes_what_was_cut_in_any_folder_and_nothing_else(tmp_path: Path) -> None:
    folder = Journal.begin(tmp_path / "run", manifest_of(OPTIONS)).folder
    for name in (".table.md.77.part", "cells/.00000-x.json.gz.77.part", "cells/mine.part", "table.md"):
        (folder / name).touch()
    Journal.resume(tmp_path, "x", manifest_of(OPTIONS))
    kept = {str(file.relative_to(folder)) for file in folder.rglob("*")}
    assert kept == {"MANIFEST.json", ".running", "cells", "cells/mine.part", "table.md"}


def test_the_newest_run_of_a_folder_is_read_or_the_one_that_is_named(tmp_path: Path) -> None:
    made = [
        Journal.begin(tmp_path / name, manifest_of({**OPTIONS, "target": name})) for name in ("20260102", "20260101")
    ]
    for one in made:
        assert one.lock is not None
        one.lock.release()
    (tmp_path / "20270101").mkdir()
    assert runs(tmp_path) == [made[1].folder, made[0].folder]
    assert Journal.load(tmp_path).said["options"]["target"] == "20260102"
    assert runs(made[1].folder) == [made[1].folder]
    assert Journal.load(made[1].folder).said["options"]["target"] == "20260101"
    assert Journal.resume(tmp_path, "x", manifest_of({**OPTIONS, "target": "20260102"})).folder == made[0].folder
    new = Journal.resume(tmp_path / "none", "name", manifest_of(OPTIONS))
    assert new.folder.parent == tmp_path / "none"
    assert new.folder.name.endswith("-name")
    with pytest.raises(SpecdecError, match="is writing its results"):
        Journal.resume(tmp_path / "none", "name", manifest_of(OPTIONS))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (None, "MANIFEST.json cannot be read"),
        ("{", "cannot be read"),
        ("[]", "is not of the format specdec-results, version 1"),
        ({"format": "specdec-gate"}, "is not of the format"),
        ({"version": 2}, "is not of the format"),
        ({}, ""),
    ],
)
def test_a_folder_of_another_kind_is_refused(changed: Any, says: str, tmp_path: Path) -> None:
    folder = Journal.begin(tmp_path / "run", manifest_of(OPTIONS)).folder
    said = folder / "MANIFEST.json"
    text = json.dumps(json.loads(said.read_text()) | changed) if isinstance(changed, dict) else changed
    said.unlink()
    if text is not None:
        said.write_text(text)
    if says:
        with pytest.raises(SpecdecError, match=says):
            Journal.load(folder)
    else:
        assert Journal.load(folder).said["options"] == OPTIONS


def test_a_runs_options_are_those_of_what_it_measured(tmp_path: Path) -> None:
    options = {"baseline": "ngram", "dry-run": "true", "across": "dtype, runtime"}
    found = Journal.begin(tmp_path / "run", manifest_of(options)).measured()
    assert (found.baseline, found.dry, found.across) == ("ngram", True, ("dtype", "runtime"))
    assert not Journal.begin(tmp_path / "other", manifest_of({**options, "dry-run": "false"})).measured().dry


def test_only_a_run_without_cells_is_given_up(tmp_path: Path) -> None:
    empty, kept = (Journal.begin(tmp_path / name, manifest_of(OPTIONS)) for name in ("empty", "kept"))
    kept.keep(empty_cell(0))
    for one in (empty, kept):
        one.give_up()
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_files_beside_the_cells_are_found_by_their_stem(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path / "run", manifest_of(OPTIONS))
    for name in ("speed.svg", "speed.png", "speed", "speedup.svg", "traces/speed.svg"):
        (journal.traces() / name if name == "speed" else journal.folder / name).touch()
    assert journal.kept("speed") == ["speed.png", "speed.svg"]
    assert journal.traces() == journal.folder / "traces"


def test_results_that_cannot_be_written_are_refused_with_another_folder_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    for root, made in ((tmp_path / "there", Journal.begin), (tmp_path / "file" / "a", Journal.begin)):
        with pytest.raises(SpecdecError, match=rf"no results can be written to {root}: .*; name another folder"):
            made(root, manifest_of(OPTIONS))
    with pytest.raises(SpecdecError, match=rf"no results can be written to {tmp_path / 'file'}: .*; name another"):
        Journal.begin_in(tmp_path / "file", "x", manifest_of(OPTIONS))


def test_runs_differ_in_versions_of_what_decides_times_and_in_what_only_one_of_them_says() -> None:
    deciding = ("torch", "transformers", "specdec-bench")
    before: dict[str, Any] = {"commit": "a", "versions": dict.fromkeys((*deciding, "numpy"), "1")}
    for name in (*deciding, "numpy"):
        now = {**before, "versions": {**before["versions"], name: "2"}}
        assert differences(before, now) == ([] if name == "numpy" else [f"{name}: 1 there, 2 here"])
    assert {*deciding} <= manifest_of({})["versions"].keys()
    assert differences({}, {}) == []
    assert differences({"machine": {"vectors": ["a", "b"]}}, {}) == ["vectors: a b there, nothing here"]
    assert differences({}, {"machine": {"cores": 0, "vectors": []}}) == ["cores: nothing there, 0 here", NONE_HERE]
    assert differences({"changes": ""}, {"options": {"k": "4"}}, but=["--specdec-k"]) == [
        "changes that are not committed: nothing there, nothing here"
    ]


NONE_HERE = "vectors: nothing there, none here"


def test_a_folder_of_a_job_says_what_it_was_and_has_the_digests_of_its_files(tmp_path: Path) -> None:
    texts = {"a.json": "{}\n", "b.txt.gz": "text"}
    before = time.strftime("%Y%m%d-%H%M%S")
    folder = write_folder(tmp_path / "new", "job", texts, ["a line"], 7, True)
    assert before <= folder.name.removesuffix("-job") <= time.strftime("%Y%m%d-%H%M%S")
    said = json.loads((folder / files.MANIFEST).read_text())
    assert (said["complete"], said["seed"], said["machine"]["card"]) == (True, 7, ["a line"])
    assert said["machine"]["platform"] == platform.platform()
    assert said["machine"]["python"] == platform.python_version()
    assert said["sha256"] == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("a.json", "b.txt.gz")
    }
    assert {"command", "time", "commit", "versions"} < said.keys()
    assert {file.name for file in folder.iterdir()} == {*texts, files.MANIFEST}
    other = write_folder(tmp_path / "new", "job", {}, [], 7, complete=False)
    assert other != folder
    assert json.loads((other / files.MANIFEST).read_text())["complete"] is False


def test_folders_of_one_second_are_numbered_from_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "time", SimpleNamespace(strftime=lambda form: time.strftime(form, time.gmtime(0))))
    found = [files.new_folder(tmp_path / "new", "job").name for _ in range(3)]
    assert found == ["19700101-000000-job", "19700101-000000-job-2", "19700101-000000-job-3"]


def test_who_is_refused_a_folder_is_told_which_process_has_it(tmp_path: Path) -> None:
    """Also where a process that was killed has left a longer name of itself, and where none is written yet."""
    (tmp_path / ".running").write_text("process 77 of a machine with a name that is longer than that of this one" * 9)
    lock = FolderLock(tmp_path)
    mine = f"process {os.getpid()} of {platform.node()}"
    with pytest.raises(SpecdecError, match=f"^{re.escape(f'{mine} is writing its results into {tmp_path}: wait')}"):
        FolderLock(tmp_path)
    (tmp_path / ".running").write_text("")
    with pytest.raises(SpecdecError, match="^another process is writing its results into"):
        FolderLock(tmp_path)
    (tmp_path / ".running").unlink()
    lock.release()
    FolderLock(tmp_path).release()
    assert [*tmp_path.iterdir()] == []


def test_what_cannot_be_put_in_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "a", b"content")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_the_same_text_is_compressed_to_the_same_bytes(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.gz": "text", "b": "text"})
    assert (tmp_path / "a.gz").read_bytes()[4:8] == bytes(4)
    assert (tmp_path / "b").read_bytes() == b"text"


def test_what_is_written_stands_beside_the_file_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is killed at the end of a write has left all of it in a hidden file, which ends as cut ones do."""
    seen = list[tuple[str, bytes]]()

    def kept(descriptor: int) -> None:
        [part] = tmp_path.iterdir()
        seen.append((part.name, part.read_bytes()))

    monkeypatch.setattr(os, "fsync", kept)
    write_file(tmp_path / "a", b"content")
    [(name, content)] = seen
    assert content == b"content"
    assert name.startswith(".a.")
    assert name.endswith(files.PART)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_json_is_readable_ends_with_a_line_and_has_no_number_that_parsers_lack() -> None:
    assert strict_json({"a": [1.5], "é": None}) == '{\n "a": [\n  1.5\n ],\n "\\u00e9": null\n}\n'
    for odd in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            strict_json([odd])
