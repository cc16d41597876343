"""The gate's words at their edges: widths of tables and sentences, rounding, option help, the validation's command."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from benchsuite.gate import rules
from benchsuite.gate.rules import add_gate_options, without_own
from benchsuite.gate.trial import SUITE
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.report import exports, findings
from benchsuite.report.findings import findings_table, run_sentence
from benchsuite.workshop.gate import validate
from benchsuite.workshop.gate.plan import STAGES

PASS, ERROR = GateVerdict.PASS, GateVerdict.ERROR


def _lines(finding: Finding) -> list[str]:
    return findings_table([finding]).splitlines()[3:]


def test_a_sentence_of_120_characters_is_one_line_and_one_more_is_two() -> None:
    start = "ERROR at level 0, r: "
    fits = "a" * 60 + " " + "b" * (120 - len(start) - 61)
    assert _lines(Finding("r", 0, ERROR, fits)) == ["", start + fits]
    assert _lines(Finding("r", 0, ERROR, fits + "b")) == ["", f"{start}{'a' * 60}", f"  {fits[61:]}b"]


def test_a_sentence_is_cut_at_blanks_and_never_at_a_hyphen() -> None:
    name = "-".join(["part"] * 20)
    assert _lines(Finding("r", 0, ERROR, f"{'a' * 60} {name}")) == ["", f"ERROR at level 0, r: {'a' * 60}", f"  {name}"]


def test_only_what_did_not_pass_and_the_suite_get_a_sentence() -> None:
    found = [Finding("r", 0, PASS, "m"), Finding("q", 0, ERROR, "n"), Finding(SUITE, 0, ERROR, "o")]
    assert findings_table(found).splitlines()[5:] == ["", "ERROR at level 0, q: n", "ERROR at level 0, suite: o"]


def test_githubs_table_has_its_pipes() -> None:
    found = [Finding("r", 0, ERROR, "m", "s/token", 0.5, 0.25, 1.0)]
    assert findings_table(found, "github") == (
        "| row   | level   | of      | verdict   | change   | bounds            |\n"
        "|-------|---------|---------|-----------|----------|-------------------|\n"
        "| r     | 0       | s/token | ERROR     | +50.0%   | +25.0% to +100.0% |"
    )


@pytest.mark.parametrize(("size", "shown"), [(1, "x"), (49, "x" * 49), (50, "x" * 50), (51, "…" + "x" * 49)])
def test_a_name_of_more_than_fifty_characters_is_cut_to_fifty(size: int, shown: str) -> None:
    assert findings._short("x" * size) == shown


def test_the_end_of_a_long_name_is_kept() -> None:
    assert findings._short("abcdefghij" * 6) == "…" + ("abcdefghij" * 6)[11:]


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(None, None, ""), (0.1, None, ""), (None, 0.1, ""), (0.0, 0.0, "+0.0% to +0.0%"), (-0.1, 0.1, "-10.0% to +10.0%")],
)
def test_bounds_are_shown_where_both_are_known(low: float | None, high: float | None, shown: str) -> None:
    assert findings._bounds(Finding("r", 0, PASS, "m", low=low, high=high)) == shown


def test_a_sentence_of_a_run_counts_rows_and_levels_once() -> None:
    given = dict.fromkeys(inspect.signature(rules.Rules).parameters) | {"mode": "fail", "base": "abc"}
    found = [Finding(row, level, PASS, "m") for level in (2, 0, 1) for row in ("a", "b", SUITE)]
    said = run_sentence(found, rules.Rules(**given))  # type: ignore[arg-type]
    assert said == "2 rows at levels 0, 1, 2 against abc: nothing got worse"


@pytest.mark.parametrize(
    ("change", "value"), [(0.0, 1.0), (0.123456, 1.12346), (0.1234549, 1.12345), (-0.5, 0.5), (1e-6, 1.0)]
)
def test_a_factor_has_five_digits(change: float, value: float) -> None:
    found = [Finding("r", 2, PASS, "m", "s/token", change)]
    content = json.loads(exports.FORMATS["github-action-benchmark"](found, lambda finding: True))
    assert [one["value"] for one in content] == [value]


def test_a_finding_as_a_dict_has_every_field_and_no_infinity() -> None:
    short = Finding("r", 0, PASS, "m")
    bare = {"row": "r", "level": 0, "verdict": "PASS", "message": "m", "figure": None, "change": None, "low": None}
    bare |= {"high": None, "where": None, "launches": 0, "against": "base"}
    assert (short.record(), short.subject) == (bare, "")
    bounded = Finding("r", 0, PASS, "m", low=-float("inf"), high=float("inf"), against="anchor")
    assert (bounded.record(), bounded.subject) == ({**bare, "against": "anchor"}, "anchor")
    zero = Finding("r", 0, PASS, "m", "E2E", 0.0, 0.0, 0.0)
    assert (zero.record(), zero.subject) == (
        {**bare, "figure": "E2E", "change": 0.0, "low": 0.0, "high": 0.0},
        "E2E",
    )


def test_the_worst_verdict_is_by_order_and_not_by_name() -> None:
    assert worst([GateVerdict.REGRESSED, ERROR]) == worst([ERROR, GateVerdict.REGRESSED]) == ERROR
    assert worst([PASS, GateVerdict.INCONCLUSIVE]) == GateVerdict.INCONCLUSIVE
    assert worst(iter(())) == PASS


def test_the_options_that_take_comma_lists_and_those_without_a_value_are_known() -> None:
    assert [option.name for option in rules.OPTIONS if option.many] == ["level", "export"]
    assert [option.name for option in rules.OPTIONS if option.flag] == ["update", "dedicated", "self-test"]


def test_help_names_the_gate_its_modes_and_the_comma_lists_and_hides_plants() -> None:
    parser = pytest.Parser(_ispytest=True)
    add_gate_options(parser)
    group = parser.getgroup("gate")
    made = {option.names()[0]: option.attrs() for option in group.options}
    assert made["--gate"]["metavar"] == "MODE"
    assert made["--gate-plant"]["help"] == argparse.SUPPRESS
    lists = [name for name, attributes in made.items() if "comma list" in str(attributes["help"]).split("; ")]
    assert lists == ["--gate-level", "--gate-export"]
    assert parser._inidict["gate"][-1] == "off"
    given = parser.parse_known_args(["--gate"])
    assert (given.gate, given.gate_plant) == ("fail", "")
    assert parser.parse_known_args([]).gate is None
    assert parser.parse_known_args(["--gate-plant=a"]).gate_plant == "a"


WRITERS = ("--benchmark-json", "--benchmark-save", "--specdec-results", "--junitxml", "--junit-xml", "--log-file")


@pytest.mark.parametrize("option", WRITERS)
def test_a_launch_is_given_no_option_that_writes_a_file(option: str) -> None:
    assert without_own(["a", option, "f", "b"]) == ["a", "b"]
    assert without_own(["a", f"{option}=f=g=h", "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([], []),
        (["--gate"], []),
        (["--gate", "off"], []),
        (["--gate", "test_a.py"], ["test_a.py"]),
        (["-k", "fail"], ["-k", "fail"]),
        (["-k", "report", "--gate", "report", "x"], ["-k", "report", "x"]),
        (["--gate-dedicated", "x", "--gate-update", "y", "--gate-self-test"], ["x", "y"]),
        (["--gate-level", "0", "--gate-export=bmf=a=b", "z"], ["z"]),
        (["--benchmark-autosave", "--benchmark-autosaves"], ["--benchmark-autosaves"]),
        (["-o", "a=b=c", "--gates"], ["-o", "a=b=c", "--gates"]),
    ],
)
def test_of_a_runs_arguments_a_launch_keeps_the_others_in_their_order(given: list[str], kept: list[str]) -> None:
    assert without_own(given) == kept


@pytest.fixture
def encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the validation writes, by name: the encoding. Nothing is measured."""
    origin = {"machine": {"processor": "P", "cores": 2}, "versions": {"x": "1"}, "commit": "c"}
    seen: dict[str, Any] = {}
    write = Path.write_text

    def noted(path: Path, text: str, encoding: str | None = None) -> int:
        seen[path.name] = encoding
        return write(path, text, encoding)

    monkeypatch.setattr(validate, "report", lambda folder, launches: ("the täble", {}))
    monkeypatch.setattr(validate, "launcher", lambda: SimpleNamespace(folder=tmp_path))
    monkeypatch.setattr(validate, "record_origin", lambda folder, device: origin)
    monkeypatch.setattr(Path, "write_text", noted)
    with patch.dict(os.environ):
        yield seen


def test_the_validations_files_are_utf_8_on_every_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encodings: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "kept"
    before = os.environ
    monkeypatch.setenv("SPECDEC_KEPT", "kept")
    monkeypatch.setattr(sys, "argv", ["validate", "--report", "--folder", str(folder)])
    validate.validation_main()
    assert encodings == {"report.md": "utf-8", "values.json": "utf-8"}
    assert (folder / "report.md").read_bytes().endswith("the täble".encode())
    text = (folder / "values.json").read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text)) + "\n"
    assert os.environ is before, "the variables of this process were replaced"
    assert os.environ["SPECDEC_KEPT"] == "kept"
    assert capsys.readouterr().out.endswith("the täble\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--condition", "none"), "invalid choice: 'none'"),
        (("--live", "x"), "invalid int value: 'x'"),
        (("--launches", "x"), "invalid int value: 'x'"),
        (("--launches", str(sum(STAGES))), f"comparisons are drawn from {sum(STAGES) + 1} or more"),
    ],
)
def test_the_validation_refuses_what_it_cannot_mean(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["validate", *arguments])
    with pytest.raises(SystemExit):
        validate.validation_main()
    assert said in capsys.readouterr().err


def test_the_validation_is_described_by_its_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["validate", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        validate.validation_main()
    described = capsys.readouterr().out.split("\n\n")[1]
    assert described.startswith("Measure how often the gate is wrong here: ``python -m benchsuite.workshop.gate")
