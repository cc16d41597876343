"""The command that measures how often the gate is wrong: what it makes, in which order, and what it writes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from benchsuite.workshop.gate import validate
from benchsuite.workshop.gate.plan import CONDITIONS, PAIRS, STAGES, SUITE, TOLERANCE


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The calls that the command makes; nothing is measured."""
    made: list[tuple[Any, ...]] = []
    for name in ("count_once", "collect", "live"):
        monkeypatch.setattr(validate, name, lambda *given, name=name: made.append((name, *given)))

    def report(*given: Any) -> tuple[str, dict[str, int]]:
        made.append(("report", *given))
        return "the table\n", {"a": 1}

    origin = {"machine": {"processor": "P", "cores": 2}, "versions": {"x": "1", "y": None, "z": "3"}, "commit": "c"}
    monkeypatch.setattr(validate, "report", report)
    monkeypatch.setattr(validate, "launcher", lambda: SimpleNamespace(folder=tmp_path))
    monkeypatch.setattr(
        validate, "record_origin", lambda folder, device: origin if (folder, device) == (tmp_path, None) else {}
    )
    monkeypatch.setattr(
        validate, "Record", SimpleNamespace(load=lambda file: SimpleNamespace(made={"commit": file.read_text()}))
    )
    with patch.dict(os.environ):
        yield made


def run_validation(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["validate", *arguments])
    validate.validation_main()


def test_what_is_missing_is_made_for_both_conditions_and_reported_with_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for name, commit in (("q-A-1.json", "two"), ("q-B-1.json", "one"), ("q-A-2.json", "one"), ("other.json", "no")):
        (folder / name).write_text(commit)
    given = ("--folder", str(folder), "--launches", "30", "--live", "4")
    run_validation(monkeypatch, *given)
    each = [call for one in CONDITIONS for call in (("collect", folder, one, 30), ("live", folder, one, 4))]
    assert calls == [("count_once", folder), *each, ("report", folder, 30)]
    assert (os.environ["OMP_NUM_THREADS"], os.environ["HF_HUB_OFFLINE"]) == ("1", "1")
    text = (
        "# How often the gate is wrong\n\n- machine P, 2 cores, one thread a launch\n- versions x 1, z 3\n"
        f"- launches at commit one, two; reported at c\n- suite `pytest {' '.join(SUITE)}`, {PAIRS} pairs or more a "
        f"launch\n- tolerance {TOLERANCE:.0%}, stages {STAGES[0]}+{STAGES[1]}\n\nthe table\n"
    )
    assert (folder / "report.md").read_text() == text
    assert capsys.readouterr().out == f"{text}\n"
    values = json.loads((folder / "values.json").read_text())
    assert values["relative"] == {"a": 1}
    assert values["made"]["command"] == ["python", "-m", "benchsuite.workshop.gate.validate", *given]
    assert values["made"]["commit"] == "c"


def test_one_condition_and_a_report_alone_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    run_validation(monkeypatch, "--condition", [*CONDITIONS][-1])
    folder, one = tmp_path / "results" / "gate-validation", [*CONDITIONS][-1]
    made = [("count_once", folder), ("collect", folder, one, 26), ("live", folder, one, 10), ("report", folder, 26)]
    assert calls == made
    calls.clear()
    run_validation(monkeypatch, "--report", "--launches", str(sum(STAGES) + 1))
    assert calls == [("report", folder, sum(STAGES) + 1)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--condition", "none"), "invalid choice: 'none'"),
        (("--live", "x"), "invalid int value: 'x'"),
        (("--launches", "x"), "invalid int value: 'x'"),
        (("--launches", str(sum(STAGES))), f"comparisons are drawn from {sum(STAGES) + 1} or more"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_made(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    calls: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run_validation(monkeypatch, *arguments)
    assert said in capsys.readouterr().err
    assert calls == []
