"""A run that is killed goes on where it was, and its tables are those of a run that was not."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.__main__ import benchsuite_main
from benchsuite.compare.sides import read_side
from benchsuite.machine.files import write_file
from benchsuite.measure.arms import Arm
from benchsuite.measure.measured import Measured
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.report import files
from benchsuite.run import cluster
from benchsuite.store.journal import Journal, differences, manifest
from benchsuite.tests.rig import SETTING, SHORT, Python, Run, child_variables, repeatable
from specdec.errors import SpecdecError
from specdec.installed import LOAD_PLUGINS

pytestmark = pytest.mark.usefixtures("endless_line")

OPTIONS = {"baseline": "plain", "target": "tiny", "shard": ""}
SETTINGS = [SETTING.replaced(workload=name, max_new_tokens=8) for name in ("chat", "reasoning")]


@pytest.fixture(scope="module")
def two_cells() -> Bench:
    """Two cells with every kind of arm: plain, ours, a peer, and one that cannot run."""
    made = Bench(MeasuringPlan(prompts=3, pairs=2))
    strategies: list[dict[str, Any]] = [
        {"draft": "ngram", "k": 4},
        {"draft": "garbage", "k": 2},
        {"peer": "transformers"},
    ]
    made.prepare([Arm(setting, **strategy) for setting in SETTINGS for strategy in strategies])
    failing = next(arm for arm in made.arms if arm.draft == "garbage" and arm.setting.workload == "chat")
    for arm in made.arms:
        made.row(arm, lambda what: None)
    cell = made.cells[failing.setting]
    broken = replace(cell.series[failing], error="garbage could not be measured: on purpose", ended="crashed")
    made.add(replace(cell, series={**cell.series, failing: broken}))
    return made


def shown(measured: Measured) -> Any:
    """Everything that tables show of a run."""
    written = files.comparison_files(measured.results())
    return {name: json.loads(text) for name, text in written.items() if name in ("benchmark.json", "ratios.json.gz")}


@pytest.mark.slow
def test_rows_of_cells_that_were_read_are_those_of_the_cells_that_were_measured(
    two_cells: Bench, tmp_path: Path
) -> None:
    journal = Journal.begin(tmp_path / "run", manifest(OPTIONS))
    for place, cell in enumerate(two_cells.cells.values()):
        journal.keep(replace(cell, place=place))
    read = Journal.load(tmp_path).measured()
    assert shown(read) == shown(two_cells)
    assert [row.failure for row in read.rows] == [row.failure for row in two_cells.rows]
    assert [row.ties for row in read.rows] == [row.ties for row in two_cells.rows]
    for one, other in zip(read.results().settings, two_cells.results().settings, strict=True):
        assert one.contrasts == other.contrasts


@pytest.mark.slow
def test_a_folder_is_compared_by_the_ratios_of_its_rows_and_those_over_all_texts(
    two_cells: Bench, tmp_path: Path
) -> None:
    journal = Journal.begin(tmp_path / "run", manifest(OPTIONS))
    for place, cell in enumerate(two_cells.cells.values()):
        journal.keep(replace(cell, place=place))
    found = read_side(str(tmp_path))
    assert found.made == journal.said
    rows = [row for row in two_cells.rows if row.info["verdict"] != "baseline"]
    every = [row for row in two_cells.results().pooled if row.info["verdict"] != "baseline"]
    over_all = [row.arm.id.replace("tiny--", "tiny-all-") for row in every]
    assert [*found.rows] == [*(row.arm.id for row in rows), *over_all]
    assert len(over_all) == len(rows) / 2
    for figures, row in zip(found.rows.values(), [*rows, *every], strict=True):
        assert figures.speedup == row.info["speedup"]
        assert (figures.failure is None) is (row.failure is None)
        assert {name: [exp(one) for one in logs] for name, logs in figures.logs.items()} == {
            name: pytest.approx(ratios) for name, ratios in row.ratios.items()
        }
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecdecError, match="holds no results; expected a folder of results, a --benchmark-json file"):
        read_side(str(tmp_path / "empty"))


@pytest.mark.slow
def test_contrasts_are_those_of_all_strategies_that_did_not_fail_both_ways(two_cells: Bench) -> None:
    [results] = two_cells.results().settings
    found = {
        (one.label, other.label): said.speed.ratio
        for (one, other), said in results.contrasts.items()
        if said.speed is not None
    }
    labels = {label for pair in found for label in pair}
    assert {"ngram", "transformers"} <= labels
    assert "garbage" not in labels, "it broke on one of the texts"
    assert found.keys() == {(one, other) for one in labels for other in labels if one != other}
    for one, other in found:
        assert found[one, other] * found[other, one] == pytest.approx(1)


def test_a_cell_does_not_grow_when_its_series_does(two_cells: Bench) -> None:
    cell = next(iter(two_cells.cells.values()))
    series = two_cells._comparisons[cell.setting].series
    for arm, one in cell.series.items():
        assert one.outcomes == series[arm].outcomes
        assert one.outcomes is not series[arm].outcomes


def test_known_cells_are_not_measured_again_and_load_no_model(two_cells: Bench) -> None:
    again = Bench(MeasuringPlan(prompts=3, pairs=2))
    for cell in two_cells.cells.values():
        again.add(cell)
    again.prepare([arm for arm in two_cells.arms if not arm.again])
    assert not again._stages
    assert [again.row(row.arm, lambda what: None).info for row in two_cells.rows] == [
        row.info for row in two_cells.rows
    ]


def test_cells_of_two_machines_make_no_speed_over_both(two_cells: Bench) -> None:
    both = Measured()
    for place, cell in enumerate(two_cells.cells.values()):
        series = {
            arm: replace(one, conditions={**one.conditions, "machine": f"m{place}"}) for arm, one in cell.series.items()
        }
        both.add(replace(cell, series=series))
    assert {row.info["not_comparable"] for row in both.rows if not row.failure} == {
        row.info["not_comparable"] for row in two_cells.rows if not row.failure
    }
    reasons = {row.info["not_comparable"] for row in both.results().pooled if not row.failure}
    assert reasons == {"machines: measured on m0, m1"}


def test_another_commit_machine_version_or_option_is_named() -> None:
    before = {
        "commit": "a",
        "versions": {"torch": "2.13.0"},
        "machine": {"processor": "X", "vectors": ["avx2"]},
        "options": {"batch": "1", "k": ""},
    }
    now = {
        "commit": "b",
        "changes": "0ff",
        "versions": {"torch": "2.12.0"},
        "machine": {"processor": "Y", "vectors": ["avx2", "avx512f"]},
        "options": {"batch": "1", "k": "4"},
    }
    assert differences(before, before) == []
    assert differences(before, now) == [
        "commit: a there, b here",
        "changes that are not committed: nothing there, 0ff here",
        "torch: 2.13.0 there, 2.12.0 here",
        "processor: X there, Y here",
        "vectors: avx2 there, avx2 avx512f here",
        "--specdec-k: nothing there, 4 here",
    ]


def test_to_go_on_with_another_run_is_refused_by_the_name_of_what_differs(tmp_path: Path) -> None:
    Journal.begin(tmp_path / "run", manifest(OPTIONS))
    with pytest.raises(SpecdecError, match=r"(?s)one table would mix two runs.*--specdec-target: tiny there, x here"):
        Journal.resume(tmp_path, "x", manifest({**OPTIONS, "target": "x"}))
    with pytest.raises(SpecdecError) as refused:
        Journal.resume(tmp_path, "x", manifest({**OPTIONS, "target": "x", "shard": "1/2"}))
    assert str(refused.value).splitlines()[1:3] == [
        "  --specdec-target: tiny there, x here",
        "  --specdec-shard: nothing there, 1/2 here",
    ]
    assert Journal.resume(tmp_path, "x", manifest(OPTIONS)).folder == tmp_path / "run"


FLIPPED = bytearray(gzip.compress(bytes(range(256)) * 9))
FLIPPED[len(FLIPPED) // 2] ^= 255


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x1f\x8b", id="cut"),
        pytest.param(gzip.compress(b"{"), id="no JSON"),
        pytest.param(gzip.compress(b'{"version": 0}'), id="another version"),
        pytest.param(bytes(FLIPPED), id="a bit flipped"),
    ],
)
def test_a_corrupt_cell_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    journal = Journal.begin(tmp_path / "run", manifest(OPTIONS))
    (journal.folder / "cells" / "00000-x.json.gz").write_bytes(content)
    with pytest.raises(SpecdecError, match=r"00000-x\.json\.gz cannot be read .*; remove it, and --specdec-resume"):
        list(journal.cells())


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a", b"before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "a", b"after")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


SWEEP = (*SHORT, "--specdec-draft", "ngram", "--specdec-peer", "none", "--specdec-prompts", "1", "-q")
FOUR = ("--specdec-max-new-tokens", "4,5", "--specdec-temperature", "0,0.7")
"""A sweep of four cells."""


@pytest.fixture(scope="module")
def measured_whole(python: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of ``FOUR``, measured by one process from the first cell to the last."""
    folder = tmp_path_factory.mktemp("whole")
    arguments = ("-m", "pytest", *SWEEP, *FOUR, "--specdec-results", "out")
    done = python(arguments, folder, child_variables("", {LOAD_PLUGINS: ""}))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


MORE = (
    "--specdec-max-new-tokens",
    "4,5,6,7,8,9",
    "--specdec-temperature",
    "0,0.7",
    "--specdec-workload",
    "chat,reasoning",
)
"""A sweep of 24 cells."""

KILLED = """
import os, signal, sys, threading
import benchsuite.machine.files as folder
left, place, later = int(sys.argv.pop(1)), float(sys.argv.pop(1)), float(sys.argv.pop(1))
whole = folder.write_file
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
def write_file(file, content):
    global left
    left -= 1
    if left == -1 and later:
        threading.Timer(later, kill).start()
    elif left == -1:
        with file.with_name(f".{file.name}.part").open("wb") as out:
            out.write(content[: int(place * len(content))])
        kill()
    whole(file, content)
folder.write_file = write_file
import pytest
pytest.main(sys.argv[1:])
if left < 0:
    threading.Event().wait()
"""
"""Runs pytest until so many files are written, and kills it at a share of the next file, or a while after.

It ends by itself, unkilled, where fewer files are left to write, or where pytest refuses to go on.
"""


@pytest.mark.slow
def test_a_sweep_that_is_killed_wherever_it_is_ends_with_the_results_of_one_that_is_not(
    run: Run, measured_whole: Path, tmp_path: Path, deep: bool
) -> None:
    """Four cells and four kills; 24 cells and ten kills with ``--specdec-deep``."""
    sweep = (*SWEEP, *(MORE if deep else FOUR))
    if deep:
        measured_whole = tmp_path / "whole"
        more = run("-m", "pytest", *sweep, "--specdec-results", "whole")
        assert more.returncode == 0, more.stdout + more.stderr
    coin = random.Random(0)
    again = (*sweep, "--specdec-results", "part", "--specdec-resume")
    for number in range(10 if deep else 4):
        files_before = coin.randint(number == 0, 4 if deep else 2)  # the first file of all is the manifest
        later = coin.random() if number % 2 else 0.0
        killed = run("-c", KILLED, str(files_before), str(coin.random()), str(later), *again)
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
        print(len(list(tmp_path.glob("part/*/cells/*.gz"))), "cells after kill", number + 1)
    done = run("-m", "pytest", *again)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "part").iterdir())) == 1
    assert not list((tmp_path / "part").rglob("*.part"))
    assert repeatable(tmp_path / "part") == repeatable(measured_whole)


@pytest.mark.slow
def test_shards_and_a_merge_are_one_run(
    run: Run, measured_whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in (1, 2, 3):
        done = run("-m", "pytest", *SWEEP, *FOUR, "--specdec-results", f"part{part}", "--specdec-shard", f"{part}/3")
        assert done.returncode == 0, done.stdout + done.stderr
    folders = [str(tmp_path / f"part{part}") for part in (1, 2, 3)]
    assert benchsuite_main(["merge", *folders, "--into", str(tmp_path / "merged")]) == 0
    assert repeatable(tmp_path / "merged") == repeatable(measured_whole)
    assert benchsuite_main(["merge", *folders[:2], "--into", str(tmp_path / "two")]) == 0
    two = Journal.load(tmp_path / "two").said
    assert "shards that are missing: 3/3" in two["card"]
    assert not two["complete"]
    assert benchsuite_main(["merge", folders[0], folders[0], "--into", str(tmp_path / "twice")]) == 2
    assert benchsuite_main(["merge", *folders, str(measured_whole), "--into", str(tmp_path / "both")]) == 2
    assert "have both measured" in capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_one_sentence_and_loses_nothing(run: Run, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the manifest fits, a cell does not."""
    limited = (
        "import resource, sys, pytest; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    two = ("--specdec-max-new-tokens", "60,61")
    # Python would leave cut files of bytecode behind.
    nothing = {"PYTHONDONTWRITEBYTECODE": "1"}
    full = run("-c", limited, *SWEEP, *two, "--specdec-results", "out", "-p", "no:cacheprovider", **nothing)
    assert full.returncode not in (0, -signal.SIGKILL)
    assert re.search(r"the cell tiny-chat-\S+ could not be written to", full.stdout)
    assert "File too large" in full.stdout
    assert "ngram" in full.stdout, "what was measured is shown"
    done = run("-m", "pytest", *SWEEP, *two, "--specdec-results", "out", "--specdec-resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(repeatable(tmp_path / "out")) == 6


@pytest.mark.slow
def test_a_run_that_cannot_begin_leaves_no_folder_that_a_later_one_would_go_on_with(
    inside: Run, tmp_path: Path
) -> None:
    done = inside("-m", "pytest", *SWEEP, "--specdec-baseline", "nothing", "--specdec-results", "out")
    assert done.returncode == 4
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_a_run_is_repeated_from_its_folder_and_says_what_differs(run: Run, tmp_path: Path) -> None:
    arms = ("--specdec-arm", "fast=ngram/match/fixed/3", "--specdec-peer", "none", "--specdec-prompts", "1")
    first = run("-m", "pytest", *SHORT, *arms, "--specdec-max-new-tokens", "5", "--specdec-results", "first")
    assert first.returncode == 0, first.stdout + first.stderr
    repeat = ("-m", "pytest", *SHORT[:2], "--specdec-repeat", "first", "--specdec-results")
    same = run(*repeat, "same")
    assert same.returncode == 0, same.stdout + same.stderr
    said = " ".join(same.stdout.split())
    assert f"repeats the run in {tmp_path / 'first'}, of the same commit, versions, machine and options" in said
    assert repeatable(tmp_path / "same") == repeatable(tmp_path / "first")
    other = run(*repeat, "other", "--specdec-max-new-tokens", "6")
    assert other.returncode == 0, other.stdout + other.stderr
    assert "differs in --specdec-max-new-tokens: 5 there, 6 here" in " ".join(other.stdout.split())


@pytest.mark.slow
def test_parts_submitted_as_jobs_are_one_run(
    run: Run, measured_whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are done when they are submitted stand for a cluster's, and their processes start warm."""
    submitit = pytest.importorskip("submitit")

    def submit(auto: object, part: Callable[..., int], *arguments: object) -> SimpleNamespace:
        code = part(*arguments)
        return SimpleNamespace(result=lambda: code)

    def started(words: Sequence[str], check: bool) -> subprocess.CompletedProcess[str]:
        assert (words[0], check) == (sys.executable, False)
        return run(*words[1:])

    monkeypatch.setattr(submitit.AutoExecutor, "submit", submit)
    monkeypatch.setattr(cluster, "subprocess", SimpleNamespace(run=started))
    jobs = ("submit", "--shards", "2", "--into", str(tmp_path / "jobs"), "--cluster", "local")
    assert benchsuite_main([*jobs, "--", *SWEEP, *FOUR]) == 0
    assert len(list(tmp_path.glob("jobs/part-*/*/cells/*"))) == 4
    assert repeatable(tmp_path / "jobs" / "merged") == repeatable(measured_whole)


@pytest.mark.slow
def test_a_job_of_this_machine_measures_its_part(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    submit = ("-m", "benchsuite", "submit", "--shards", "1", "--into", "jobs", "--cluster", "local")
    done = run(*submit, "--", *SWEEP, "--specdec-max-new-tokens", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 cell of 1 part" in done.stdout
    assert len(repeatable(tmp_path / "jobs" / "merged")) == 3
    wrong = run(*submit, "--set", "no_such=1", "--", *SWEEP)
    assert wrong.returncode == 2
    assert "submitit does not take these settings" in wrong.stderr


@pytest.mark.parametrize(("given", "minutes"), [((), 30), (("--set", "timeout_min=5"), 5)])
def test_a_job_has_half_an_hour_unless_it_is_told_otherwise(
    given: tuple[str, ...], minutes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """submitit would end a local job after two minutes, which a busy machine needs to begin."""
    submitit = pytest.importorskip("submitit")
    found = []

    def submit(executor: Any, *arguments: object) -> None:
        found.append(executor.parameters["timeout_min"])
        raise SpecdecError("no job is begun")

    monkeypatch.setattr(submitit.local.local.LocalExecutor, "submit", submit)
    monkeypatch.setattr(submitit.AutoExecutor, "submit", lambda auto, *arguments: auto._executor.submit(*arguments))
    command = ("submit", "--shards", "1", "--into", str(tmp_path), "--cluster", "local", *given)
    assert benchsuite_main([*command, "--", "test_nothing.py"]) == 2
    assert found == [minutes]
