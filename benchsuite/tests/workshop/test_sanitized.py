"""The command that runs the C++ under sanitizers does not trust sanitizers that find nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchsuite.conformance.ops.cases import EVERY_TAIL, TAILS
from benchsuite.workshop.native import sanitized


def _says(code: int, words: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, "", words)


@pytest.mark.parametrize("planted", sanitized.PLANTED, ids=lambda planted: f"{planted.op}: {planted.sign}")
def test_what_is_planted_is_still_a_line_of_the_sources(planted: sanitized.Planted, tmp_path: Path) -> None:
    planted.into(tmp_path)
    assert planted.new in (tmp_path / planted.file).read_text()
    assert any(f"specdec_{planted.op}(" in source.read_text() for source in tmp_path.glob("*.cpp"))


def test_every_number_of_floats_that_a_vector_of_16_leaves_over_is_a_case_of_every_op_with_vectors() -> None:
    sizes: dict[tuple[str, str], set[int]] = {}
    for case in EVERY_TAIL:
        kind, _, size = case.name.rpartition("-")
        sizes.setdefault((case.op, kind), set()).add(int(size))
    assert {op for op, _ in sizes} == {"decoder_layers", *(case.op for case in TAILS)}
    for cases, found in sizes.items():
        assert {size % 16 for size in found} == {*range(16)}, cases


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
