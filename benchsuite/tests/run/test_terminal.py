"""What a run prints, and where: the card before its tests, the answer where a reader looks first, an error's line."""

from __future__ import annotations

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
    (tmp_path / "seen.py").write_text(f"import sys\nsys.stdout.isatty = lambda: {terminal}\n")
    done = inside("-m", "pytest", "-p", "seen", "-p", "no:randomly", "--color=no", *SHORT, *FEW)
    assert done.returncode == 0, done.stdout
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
    assert "results: " not in done.stdout
    assert "tables: without -q" not in done.stdout
    names = re.findall(r"^test_speculation\[(\S+)\]", done.stdout, re.MULTILINE)
    assert {*names} == {f"tiny-chat-{arm}-max_new_tokens3" for arm in ("garbage-match-k4", "plain", "plain-again")}


@pytest.mark.slow
def test_a_row_whose_target_cannot_be_loaded_fails_with_one_line_and_the_others_are_shown(inside: Run) -> None:
    words = ("-m", "pytest", "-p", "no:randomly", "-q", "--color=no", *SHORT, *FEW)
    done = inside(*words, "--specdec-target=tiny,nobody/nothing", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "3 passed" in done.stdout
    assert "3 errors" in done.stdout
    failed = re.findall(r"^E? *nobody:nothing-chat-(\S+): (.*)$", done.stdout, re.MULTILINE)
    assert {name for name, _ in failed} == {
        f"{arm}-max_new_tokens3" for arm in ("garbage-match-k4", "plain", "plain-again")
    }
    assert all(said.startswith("the model 'nobody/nothing' cannot be loaded: ") for _, said in failed)
    assert "speculation.py:" not in done.stdout, "no traceback"
    assert " specdec-bench -" not in done.stdout, "the card of a quiet run is left out"
    assert "tables: without -q, or in the report of --specdec-results FOLDER" in done.stdout
    assert "Speedup over plain" not in done.stdout
