"""What a run prints, and where: the card before its tests, the answer where a reader looks first, an error's line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchsuite.tests.rig import SHORT, Run

FEW = ("--specdec-draft=garbage", "--specdec-peer=none", "--specdec-prompts=1", "--specdec-max-new-tokens=3")


def positions(text: str, *patterns: str) -> list[int]:
    """Where each pattern is found, which must be once."""
    found = [[one.start() for one in re.finditer(pattern, text, re.MULTILINE)] for pattern in patterns]
    assert [len(starts) for starts in found] == [1] * len(patterns), text
    return [starts[0] for starts in found]


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True], ids=["log", "terminal"])
def test_the_answer_stands_at_the_top_of_a_log_and_at_the_bottom_of_a_terminal(
    terminal: bool, inside: Run, tmp_path: Path
) -> None:
    seen = f"import sys\nsys.stdout.isatty = sys.stderr.isatty = lambda: {terminal}\n"
    (tmp_path / "seen.py").write_text(seen)
    kept = () if terminal else ("--specdec-results=kept",)
    done = inside("-m", "pytest", "-p", "seen", "-p", "no:randomly", "--color=no", *SHORT, *FEW, *kept)
    assert done.returncode == 0, done.stdout
    # A terminal's bar counts the runs and is gone at the end.
    assert (re.search(r"\d/\d+ .*[\d? ]runs\b", done.stderr) is not None, done.stderr[-1:]) == (
        terminal,
        "\r" * terminal,
    )
    card, read, tests = positions(
        done.stdout,
        r"^-+ specdec-bench -+\n(?=target tiny: )",
        "^measured read bandwidth",
        r"^(\S*benchsuite/test_speculation.py )?\.* ?\.\.\.",
    )
    heading, answer, tables, rows, last, others = positions(
        done.stdout,
        "^=+ Speculative decoding =+$",
        "^On this machine ",
        "^-+ tiny, cpu, float32, batch 1, 3 tokens -+\\nSpeedup over plain",
        r"^garbage +match 4 +\d\.\d\dx\?",
        "^-+ Precision -+$",
        "^-+ benchmark 'tiny chat': 3 tests -+",
    )
    assert card < read < tests < heading < tables < rows < last < others
    assert (heading < answer < tables) if not terminal else (last < answer < others)
    assert done.stdout.count("\nSpeedup over plain") == 1
    folders = re.findall(r"^results: (.*)\nreport: \1/report\.html$", done.stdout, re.MULTILINE)
    assert len(folders) == len(kept)
    for folder in map(Path, folders):
        assert json.loads((folder / "MANIFEST.json").read_text())["complete"] is True
        assert (folder / "steps.jsonl.gz").is_file()
    assert "tables: without -q" not in done.stdout
    names = re.findall(r"^test_speculation\[(\S+)\]", done.stdout, re.MULTILINE)
    assert {*names} == {f"tiny-chat-{arm}-max_new_tokens3" for arm in ("garbage-match-k4", "plain", "plain-again")}


@pytest.mark.slow
def test_a_row_whose_target_cannot_be_loaded_fails_with_one_line_and_the_others_are_shown(
    inside: Run, tmp_path: Path
) -> None:
    kept = ("--specdec-results=kept", "--specdec-detail=rows")
    words = ("-m", "pytest", "-p", "no:randomly", "-q", "--color=no", *SHORT, *FEW)
    done = inside(*words, *kept, "--specdec-target=tiny,nobody/nothing", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    [folder] = tmp_path.glob("kept/*")
    assert json.loads((folder / "MANIFEST.json").read_text())["complete"] is False
    assert not (folder / "steps.jsonl.gz").exists(), "--specdec-detail rows"
    assert len(list((folder / "cells").iterdir())) == 1
    assert folder.name.endswith("-tiny+nothing")
    assert "3 passed" in done.stdout
    assert "3 errors" in done.stdout
    failed = re.findall(r"^E? *nobody:nothing-chat-(\S+): (.*)$", done.stdout, re.MULTILINE)
    assert {name for name, _ in failed} == {
        f"{arm}-max_new_tokens3" for arm in ("garbage-match-k4", "plain", "plain-again")
    }
    assert all(said.startswith("the model 'nobody/nothing' cannot be loaded: ") for _, said in failed)
    assert "speculation.py:" not in done.stdout, "no traceback"
    assert " specdec-bench -" not in done.stdout, "the card of a quiet run is left out"
    assert "Speedup over plain" not in done.stdout


FULL = """
from benchsuite.store.journal import Journal

def full(self, cell):
    raise OSError(28, "No space left on device")

kept = Journal.keep

def pytest_configure():
    Journal.keep = full

def pytest_unconfigure():
    Journal.keep = kept
"""
"""A plugin on whose machine no cell can be written."""


@pytest.mark.slow
def test_a_full_disk_ends_a_run_after_its_first_cell_and_what_was_measured_is_shown_however_quiet_it_is(
    inside: Run, tmp_path: Path
) -> None:
    (tmp_path / "full.py").write_text(FULL)
    words = ("-m", "pytest", "-p", "full", "-p", "no:randomly", "-q", "--color=no", *SHORT, *FEW)
    done = inside(*words, "--specdec-max-new-tokens=3,4", "--specdec-results=kept")
    assert done.returncode == 1
    [where] = (tmp_path / "kept").iterdir()
    flat = " ".join(done.stdout.split())
    assert f"Interrupted: the cell tiny-chat-max_new_tokens3 could not be written to {where}: No space left" in flat
    assert f"the results could not be written to {where}: No space left on device; free space and go on" in flat
    assert "1 passed" in done.stdout
    assert "Speedup over plain" in done.stdout
    assert "max_new_tokens4" not in done.stdout, "the second cell is not measured"


@pytest.mark.slow
def test_rows_are_measured_without_pytest_benchmark_and_nothing_is_loaded_where_it_skips_them(
    inside: Run, tmp_path: Path
) -> None:
    (tmp_path / "test_rows.py").write_text("def test_row(specdec_row): assert specdec_row.failure is None\n")
    words = ("-m", "pytest", "test_rows.py", "-q", *SHORT[2:], *FEW)
    done = inside(*words, "-p", "no:benchmark", "-p", "no:randomly")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    assert "tables: without -q, or in the report of --specdec-results FOLDER" in done.stdout
    (tmp_path / "test_rows.py").write_text("def test_row(specdec_benchmark): assert False\n")
    skipped = inside(*words, "--benchmark-skip", "-v", "-p", "no:randomly")
    assert "3 skipped" in skipped.stdout
    assert "target tiny" not in skipped.stdout
