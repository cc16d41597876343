"""The validation report counts false alarms and detections, and shows when the gate is wrong."""

from __future__ import annotations

import random
from math import log1p
from pathlib import Path

import pytest

from benchsuite.gate import plants
from benchsuite.gate.plants import Plant
from benchsuite.gate.record import DECODE, PARTS, FigureTimes, GatedRow, GateError, Launch, Record
from benchsuite.workshop.gate import draws
from benchsuite.workshop.gate.draws import report
from benchsuite.workshop.gate.plan import COUNTED, DRAFTS, SIDES

COUNT = 16
WHERE = dict(zip(DRAFTS, ("host", "draft", "K/V"), strict=True))


def _launch(coin: random.Random, part: str, slower: tuple[float, ...]) -> Launch:
    """A launch with noise of 0.5 %, whose prompts are slower by these fractions, in one part."""
    noise = coin.gauss(0, 0.005)
    parts = dict.fromkeys(PARTS, 0.25) | {part: 0.25 + sum(slower) / 3}
    relative = tuple(log1p(one) + noise for one in slower)
    return Launch({DECODE: FigureTimes((0.01, 0.01, 0.01), relative)}, {DECODE: parts}, 2.0)


def _write(folder: Path, planted: dict[str, tuple[float, ...]], accepted: int = 8, hourly: int = 6) -> None:
    """Write launches of A, B and the planted sides, so many an hour; launches of B accept ``accepted`` tokens."""
    coin = random.Random(0)
    for side in ("A", "B", *planted):
        for number in range(COUNT):
            counters = {"num_accepted_tokens": accepted if side == "B" else 8, "num_drafts": 4}
            rows = {
                f"tiny-chat-{draft}-match-k4": GatedRow(
                    control="plain",
                    digest="d",
                    plain_digest="p",
                    counters=counters,
                    launches=(_launch(coin, part, planted.get(side, (0.0, 0.0, 0.0))),),
                )
                for draft, part in WHERE.items()
            }
            Record({"time": f"2026-01-01T{number // hourly:02}:00"}, rows).save(
                folder / f"quiet-{side}-{number:03}.json"
            )


def _lines(text: str, *starts: str) -> list[list[str]]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [line for line in lines if line[: len(starts)] == [*starts]]


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "DRAWS", 20)


@pytest.mark.slow
def test_alike_sides_raise_no_alarm_and_a_slowdown_is_found_in_its_part(tmp_path: Path) -> None:
    _write(tmp_path, {"parts": (0.06,) * 3, "prompt-1.2x": (0.2, 0.0, 0.0), "all-6%": (0.06,) * 3})
    text, values = report(tmp_path, COUNT)
    assert _lines(text, "0", "A/A, drawn")[0][3:] == ["0", "20", "0", "0", "0", "0"]
    for level in ("1", "2"):
        assert _lines(text, level, "A/A, drawn")[0][3:] == ["0", "20", "0", "0", "0", "0"]
        assert _lines(text, level, SIDES["parts"].what)[0][3:] == ["100.0%", "100.0%", "100.0%", "0"]
        found = _lines(text, level, SIDES["prompt-1.2x"].what)[0]
        assert found[3:5] == ["100.0%", "100.0%"]
        assert found[5] == "33.3%", "it must be in the host, and was planted in another part of two of three drafts"
        assert _lines(text, level, "0%")[0][3:] == ["0.0%"] * 4
        assert _lines(text, level, "6%")[0][3] == "100.0%"
    assert "Launched in 3 different hours, from 2026-01-01T00 to 2026-01-01T02." in text
    assert len(values["quiet"]["A"]["tiny-chat-ngram-match-k4"]) == COUNT


@pytest.mark.slow
def test_what_is_not_slower_is_not_found(tmp_path: Path) -> None:
    _write(tmp_path, {"parts": (0.0,) * 3})
    text, _ = report(tmp_path, COUNT)
    assert [_lines(text, level, SIDES["parts"].what)[0][3] for level in ("1", "2")] == ["0.0%", "0.0%"]


@pytest.mark.slow
def test_launches_of_one_hour_are_said_to_be(tmp_path: Path) -> None:
    _write(tmp_path, {"parts": (0.0,) * 3}, hourly=COUNT)
    text, _ = report(tmp_path, COUNT)
    assert "Launched in one hour, 2026-01-01T00." in text


def test_launches_whose_counters_do_not_repeat_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, {}, accepted=7)
    with pytest.raises(GateError, match="do not repeat"):
        report(tmp_path, COUNT)


def test_every_side_can_be_planted() -> None:
    texts = [side.plant for side in SIDES.values() if side.plant] + [plant for _, plant, _ in COUNTED.values() if plant]
    assert {Plant.of(entry).kind for text in texts for entry in text.split(",")} == {*plants.KINDS}
