"""Pins of test_sanitized.py: tests that read what is private."""

from __future__ import annotations

import subprocess

import pytest

from benchsuite.workshop.native import sanitized


def _says(code: int, words: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, "", words)


@pytest.mark.parametrize("said", [_says(0), _says(1, "another error"), _says(1, "heap-buffer-overflow in main")])
def test_sanitizers_that_miss_a_planted_fault_end_the_command_before_any_level(
    said: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def sanitised(*given: str) -> subprocess.CompletedProcess[str]:
        asked.append(given)
        return said

    monkeypatch.setattr(sanitized, "sanitised", sanitised)
    assert sanitized._main([]) == 1
    assert "do not find what was planted" in capsys.readouterr().out
    assert [first for first, _ in asked] == ["--planted"] * len(sanitized.PLANTED)


def test_a_level_with_a_finding_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sanitised(way: str, level: str) -> subprocess.CompletedProcess[str]:
        if way == "--inside":
            return _says(1, "runtime error: load of misaligned address")
        planted = sanitized.PLANTED[int(level)]
        return _says(1, f"{planted.sign} specdec_{planted.op}")

    monkeypatch.setattr(sanitized, "sanitised", sanitised)
    assert sanitized._main(["--level", "plain"]) == 1
    assert "misaligned" in capsys.readouterr().out
