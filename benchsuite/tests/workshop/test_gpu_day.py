"""The quarter of an hour with a GPU: jobs that end in every way, a checkout without pip, a page that claims no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from benchsuite.machine import provenance
from benchsuite.tests.rig import Run
from benchsuite.workshop.gpu_day import __main__ as command
from benchsuite.workshop.gpu_day import checkout, jobs, page, stages
from benchsuite.workshop.gpu_day.failures import failed_items
from benchsuite.workshop.gpu_day.jobs import GpuJob, GpuOutcome

ROOT = Path(__file__).parents[3]
STATUS = ROOT / "docs" / "status.md"


def _job(name: str, code: str, seconds: float = 30, settles: tuple[str, ...] = ()) -> GpuJob:
    return GpuJob(name, seconds, (sys.executable, "-c", code), settles)


def _ended(ended: str, *settles: str) -> GpuOutcome:
    return GpuOutcome(GpuJob(ended, 1, (), settles), ended, 1.0, "last")


@pytest.mark.slow
def test_a_job_that_fails_hangs_crashes_or_is_missing_costs_only_itself(tmp_path: Path) -> None:
    waits = "[sys.executable, '-c', 'import signal; signal.pause()']"
    hangs = f"import subprocess, sys; print('begun', flush=True); subprocess.run({waits})"
    wave = [
        _job("fails", "print('why'); raise SystemExit(3)"),
        _job("hangs", hangs, seconds=2),
        _job("crashes", "import os, signal; print('so far', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"),
        GpuJob("missing", 30, ("no-such-program",)),
        _job("passes", "print('fine')"),
    ]
    start = time.monotonic()
    outcomes = jobs.run_wave(wave, tmp_path, start + 60)
    assert time.monotonic() - start < 30, "the job that hangs was not ended"
    assert [one.ended for one in outcomes] == ["failed", "out of time", "crashed", "not run", "passed"]
    assert [one.said for one in outcomes] == ["why", "begun", "so far", "no-such-program is not here", "fine"]
    assert outcomes[-1].seconds < outcomes[1].seconds, "a job's time is its own"
    [late] = jobs.run_wave([_job("late", "print(1)")], tmp_path, time.monotonic())
    assert (late.ended, late.said) == ("not run", "0 s were left, and it needs 5")


def test_a_checkout_that_is_not_installed_has_its_entry_points(tmp_path: Path) -> None:
    path = checkout.look_installed(tmp_path)
    [made] = distributions(path=[str(tmp_path)])
    assert made.name == "specdec-bench"
    code = (
        "from importlib.metadata import entry_points, distribution as d; import specdec_kernels, specdec_plugins;"
        "print(len(d('specdec-bench').entry_points), d('specdec-bench')._path.parent)"
    )
    environment = {**os.environ, "PYTHONPATH": path}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path.parent, capture_output=True, text=True
    )
    count, folder = said.stdout.split()
    assert int(count) == len(made.entry_points) > 30
    assert Path(folder) == tmp_path
    assert {point.group for point in made.entry_points} == {"pytest11", "specdec"}


def test_the_commit_of_a_copy_without_git_comes_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkout.commit_of(tmp_path) is None
    with pytest.raises(ValueError, match="write the commit into that file"):
        checkout.keep_commit(tmp_path)
    file = tmp_path / ".gpu" / "commit"
    file.parent.mkdir()
    file.write_text("abc\n")
    assert checkout.commit_of(tmp_path) == "abc"
    assert checkout.keep_commit(tmp_path) == file
    monkeypatch.setenv(provenance.COMMIT, "abc")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    assert provenance.own_commit() == "abc"


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_call_names_lines_of_the_status_and_fits_its_time(call: int, tmp_path: Path) -> None:
    waves = stages.Stages("cuda", tmp_path, tmp_path, tmp_path / "none").waves(call)
    table = STATUS.read_text(encoding="utf-8").splitlines()
    lines = [line.split("|")[1].strip() for line in table if line.startswith("| ")]
    assert {line for wave in waves for job in wave for line in job.settles} <= set(lines)
    assert sum(max(job.seconds for job in wave) for wave in waves) <= 1.7 * 200, "most need less than they may take"
    names = [job.name for wave in waves for job in wave]
    assert len(names) == len(set(names))
    for name in stages.SHAPES if call == 3 else ():
        config = AutoConfig.from_pretrained(tmp_path / name)
        assert config.hidden_size == json.loads((tmp_path / name / "config.json").read_text())["hidden_size"]


@pytest.mark.slow
def test_the_calls_run_every_file_that_has_a_test_for_a_gpu(run: Run) -> None:
    assert _collected(run, (), ["benchsuite.tests"]) == set(stages.TESTS)


@pytest.mark.slow
def test_a_file_with_a_test_for_a_gpu_needs_no_package_that_docs_gpu_md_does_not_name(run: Run) -> None:
    """The image of a machine with a GPU had none of these, and what could not be imported was not tested."""
    absent = ("gguf", "libcst", "mutmut", "submitit", "hatchling", "importlinter")
    names = [f"benchsuite.tests.{name}" for name in stages.TESTS]
    assert _collected(run, absent, names) == set(stages.TESTS)


def _collected(run: Run, absent: Sequence[str], names: Sequence[str]) -> set[str]:
    """The files of which pytest collects a test for a GPU, without some packages."""
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-m", "cuda", "--pyargs", *names]
    code = f"import sys; sys.modules |= dict.fromkeys({absent}); import pytest; sys.exit(pytest.main({words}))"
    done = run("-c", code)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    files = {Path(line.partition("::")[0]) for line in done.stdout.splitlines() if "::" in line}
    return {f"{file.parent.name}.{file.stem}" for file in files}


def test_the_second_call_asks_for_what_failed_in_the_first(tmp_path: Path) -> None:
    file = tmp_path / "failures.txt"
    file.write_text("=== a.py::b[x y] (call, 1.0 s)\nE   1\n=== a.py::c (setup, 0.1 s)\n=== a.py::b[x y] (call, 2 s)\n")
    assert failed_items(file) == ["a.py::b[x y]", "a.py::c"]
    [[again, _], *_] = stages.Stages("cuda", tmp_path, tmp_path, file).waves(2)
    assert again.command[-2:] == ("a.py::b[x y]", "a.py::c")
    assert failed_items(tmp_path / "none") == []


def test_a_step_below_the_floor_of_bytes_is_impossible() -> None:
    """3B: 6.425 GB at 3.35 TB/s are 1.918 ms; an H200 reads 4.8 TB/s."""
    hundred, other = page.plain_expected("3b", "NVIDIA H100 80GB HBM3"), page.plain_expected("3b", "")
    assert hundred
    assert other
    verdicts = [hundred.verdict(ms) for ms in (1.9, 1.93, 3.5, 5.0)]
    assert verdicts == ["impossible", "below", "as predicted", "above"]
    assert other.verdict(1.9) == "below"
    assert other.verdict(1.3) == "impossible"
    assert page.plain_expected("tiny", "") is None


def test_a_page_sets_figures_beside_predictions_and_claims_hardware_for_cuda_alone(tmp_path: Path) -> None:
    row = {"workload": "chat", "draft": None, "baseline": "plain", "verdict": "baseline", "tokens_per_s": 1000.0}
    slow = {"workload": "chat", "draft": "ngram", "baseline": "plain", "verdict": None, "tokens_per_s": 900.0}
    slow |= {
        "speedup": 0.9,
        "num_speculative_tokens": 4,
        "verify_cost": 1.3,
        "not_comparable": "graphed in part, for _judge cannot be recorded",
    }
    results = [tmp_path / "3b.json", tmp_path / "1b.json"]
    results[0].write_text(json.dumps({"benchmarks": [{"extra_info": row}, {"extra_info": slow}]}))
    results[1].write_text("{")
    outcomes = [_ended("passed", "a", "b"), _ended("failed", "b")]
    figures: list[dict[str, Any]] = [
        {"name": "card", "value": "NVIDIA H100 80GB HBM3: 79 GiB"},
        {"name": "copy, TB/s", "value": 3.0},
    ]
    text = page.visit_page(3, "cuda", outcomes, figures, results, "abc")
    assert "| 3b, chat, plain, ms a token | 1 | 3.2 to 4.1, floor 1.92 | impossible |" in text
    assert "| 3b, chat, ngram, K = 4, times plain | 0.9 | 0.95 to 1.3 | below |" in text
    assert "| 3b, chat, ngram, K = 4, window over one slot | 1.3 | 1 to 1.1 | above |" in text
    assert "| copy, TB/s | 3 | 2.7 to … | as predicted |" in text
    assert "- 3b, chat, ngram: graphed in part, for _judge cannot be recorded" in text
    assert "- 1b: its JSON cannot be read" in text
    assert "- a: run on hardware" in text
    assert "- b: open: failed failed" in text
    tried = page.visit_page(3, "cpu", outcomes, figures, results, "")
    assert "run on hardware" not in tried
    assert "impossible" not in tried
    assert "- commit unknown: python3 -m benchsuite.workshop.gpu_day commit" in tried


@pytest.mark.slow
def test_a_call_on_a_cpu_makes_its_eight_files_and_a_planted_fault_costs_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "CACHES", tmp_path / "caches")
    monkeypatch.setattr(command, "CARRIED", tmp_path / "carried")
    words = ["1", "--device", "cpu", "--into", str(tmp_path / "out"), "--seconds", "100"]
    only = ["--only", "probe-versions,probe-guard,builds", "--plant", "builds=crash"]
    assert command.gpu_day_main([*words, *only]) == 1
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        *("caches.tar.gz", "failures.txt", "figures.json", "logs.tar.gz", "outcomes.json", "page.md"),
        *("results.tar.gz", "tables.md"),
    ]
    ended = {one["job"]["name"]: one["ended"] for one in json.loads((tmp_path / "out" / "outcomes.json").read_text())}
    assert ended == {"probe-versions": "passed", "probe-guard": "passed", "builds": "crashed"}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU answers")
def test_without_a_gpu_it_says_so_and_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.gpu_day_main(["1", "--into", str(tmp_path / "day")]) == 2
    assert "the device 'cuda' is not here" in capsys.readouterr().err
    assert not (tmp_path / "day").exists()


def test_an_unknown_fault_is_refused_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.gpu_day_main(["1", "--plant", "builds=melt"])
    assert "--plant has the fault 'melt'; expected one of fail, crash, hang" in capsys.readouterr().err
