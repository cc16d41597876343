"""The validation report counts false alarms and detections, and shows when the gate is wrong."""

from __future__ import annotations

import random
from math import log1p
from pathlib import Path

import pytest

from benchsuite.gate.record import PARTS, GatedRow, GateError, Launch, Record
from benchsuite.gate.validation import draws
from benchsuite.gate.validation.draws import PLANTED, report

COUNT = 20


def _launch(coin: random.Random, part: str, slower: float) -> Launch:
    """A launch with noise of 0.5 %, slower by the fraction ``slower`` in one part."""
    noise = coin.gauss(0, 0.005)
    parts = dict.fromkeys(PARTS, 0.25) | {part: 0.25 + slower}
    return Launch(0.01, log1p(slower) + noise, parts, 2.0)


def _write(folder: Path, planted: float, accepted: int = 8) -> None:
    """Write launches A, B and P as the validation does; launches of B accept ``accepted`` tokens."""
    coin = random.Random(0)
    for side in "ABP":
        for number in range(COUNT):
            counters = {"num_accepted_tokens": accepted if side == "B" else 8}
            rows = {
                f"tiny-chat-{draft}-match-k4": GatedRow(
                    {}, "d", "p", True, counters, (_launch(coin, part, planted if side == "P" else 0.0),)
                )
                for draft, part in PLANTED.items()
            }
            Record({}, rows).save(folder / f"quiet-{side}-{number:03}.json")


def _counted(text: str, level: int, what: str) -> list[tuple[int, int, str]]:
    """(comparisons, REGRESSED, where right) of the table's lines of a level whose comparison starts with ``what``."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [
        (int(line[2]), int(line[6]), line[8]) for line in lines if line[0] == str(level) and line[1].startswith(what)
    ]


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "DRAWS", 30)


def test_alike_sides_raise_no_alarm_and_a_slowdown_is_found_in_its_part(tmp_path: Path) -> None:
    _write(tmp_path, planted=0.06)
    text, values = report(tmp_path, COUNT)
    assert _counted(text, 0, "A/A") == [(30, 0, "")]
    for level in (1, 2):
        assert _counted(text, level, "A/A") == [(30, 0, "")]
        assert _counted(text, level, "6%") == [(30, 30, "100%")] * len(PLANTED)
    assert len(values["quiet"]["A"]["tiny-chat-ngram-match-k4"]) == COUNT


def test_what_is_not_slower_is_not_found(tmp_path: Path) -> None:
    _write(tmp_path, planted=0.0)
    text, _ = report(tmp_path, COUNT)
    assert _counted(text, 1, "6%") == _counted(text, 2, "6%") == [(30, 0, "0%")] * len(PLANTED)


def test_launches_whose_counters_do_not_repeat_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, planted=0.06, accepted=7)
    with pytest.raises(GateError, match="do not repeat"):
        report(tmp_path, COUNT)
