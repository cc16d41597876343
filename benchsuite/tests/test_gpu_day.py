"""The day on which a GPU is there: parts that end in every way, and a page that claims no more than they showed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from benchsuite import gpu_day
from benchsuite.gpu_day import GpuPart

STATUS = Path(__file__).parents[2] / "docs" / "status.md"


def _part(name: str, code: str, seconds: float = 30, settles: tuple[str, ...] = ()) -> GpuPart:
    return GpuPart(name, seconds, (sys.executable, "-c", code), settles)


@pytest.mark.slow
def test_a_part_that_fails_hangs_or_is_missing_leaves_its_output_and_the_next_runs(tmp_path: Path) -> None:
    waits = "[sys.executable, '-c', 'import signal; signal.pause()']"
    hangs = f"import subprocess, sys; print('begun', flush=True); subprocess.run({waits})"
    each = [
        _part("fails", "print('why'); raise SystemExit(3)", settles=("a", "b")),
        _part("hangs", hangs, seconds=2),
        GpuPart("missing", 30, ("no-such-program",), ()),
        _part("passes", "print('fine')", settles=("b", "c")),
    ]
    start = time.monotonic()
    outcomes = gpu_day.run_parts(each, tmp_path, 60)
    assert time.monotonic() - start < 30, "the part that hangs was not ended"
    assert [outcome.ended for outcome in outcomes] == ["failed", "out of time", "not run", "passed"]
    assert [outcome.said for outcome in outcomes] == ["why", "begun", "no-such-program is not here", "fine"]
    assert (tmp_path / "hangs.txt").read_text() == "begun\n"
    page = gpu_day.verdict_page(outcomes, ["a machine"])
    assert "| passes | passed |" in page
    assert [line for line in page.splitlines() if line.startswith("- ")] == [
        "- a machine",
        "- a: open",
        "- b: open",
        "- c: settled",
    ]


def test_a_part_for_which_no_time_is_left_is_not_run(tmp_path: Path) -> None:
    [outcome] = gpu_day.run_parts([_part("late", "print(1)")], tmp_path, 0)
    assert (outcome.ended, outcome.said) == ("not run", "no time was left")


@pytest.mark.skipif(not STATUS.exists(), reason="an installed wheel has no docs")
def test_parts_settle_lines_that_the_status_has_and_fit_the_time(tmp_path: Path) -> None:
    each = gpu_day.gpu_parts(tmp_path)
    table = STATUS.read_text(encoding="utf-8").splitlines()
    lines = [line.split("|")[1].strip() for line in table if line.startswith("| ")]
    assert {line for part in each for line in part.settles} <= set(lines)
    assert sum(part.seconds for part in each) <= 1.3 * 9 * 60, "most parts need less than they may take"
    for name in gpu_day.SHAPES:
        config = AutoConfig.from_pretrained(tmp_path / "shapes" / name)
        assert config.hidden_size == json.loads((tmp_path / "shapes" / name / "config.json").read_text())["hidden_size"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU answers")
def test_without_a_gpu_it_says_so_and_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_day.gpu_day_main(["--into", str(tmp_path / "day")]) == 2
    assert "the device 'cuda' is not here" in capsys.readouterr().err
    assert not (tmp_path / "day").exists()
