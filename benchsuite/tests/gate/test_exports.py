"""What is printed and exported of a gated run, word by word, and the rules for levels and launches."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchsuite.gate import figures
from benchsuite.gate.record import CALL, FigureTimes, GatedRow, GateError, Launch, Record
from benchsuite.gate.rules import Rules
from benchsuite.gate.trial import SUITE, Trial, different, levels_of, refuse_too_few, refuse_unfit_anchor
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.report import exports
from benchsuite.report.findings import finding_sentence, findings_table, run_sentence
from benchsuite.tests.gate_rig import PLAIN_RULES

PASS, IMPROVED, INCONCLUSIVE, REGRESSED, ERROR = (
    *(GateVerdict.PASS, GateVerdict.IMPROVED, GateVerdict.INCONCLUSIVE),
    *(GateVerdict.REGRESSED, GateVerdict.ERROR),
)
RULES = Rules(file=Path("g.json"), **PLAIN_RULES)
LONG = "a/very/long/path/to/a/test/file/test_theirs.py::test_work"
FOUND = [
    Finding("ours", 0, PASS, "the same counters"),
    Finding("ours", 2, REGRESSED, "slower \x01", "s/token", 0.06, 0.05, 0.07, "draft", 7),
    Finding(LONG, 1, INCONCLUSIVE, "unsure", "first token", -0.01, -inf, 0.02, None, 5, "anchor"),
    Finding(SUITE, 0, PASS, "a note"),
]


def is_blocking(finding: Finding) -> bool:
    return finding.verdict == REGRESSED


def test_a_table_has_a_line_for_a_finding_and_sentences_for_what_did_not_pass() -> None:
    assert [line.rstrip() for line in findings_table(FOUND).splitlines()] == [
        "row                                                 level  of                   verdict       change  bounds"
        "          where",
        "--------------------------------------------------  -----  -------------------  ------------  ------  --------"
        "------  -----",
        "ours                                                0                           PASS",
        "ours                                                2      s/token              REGRESSED     +6.0%   +5.0% to"
        " +7.0%  draft",
        "…ong/path/to/a/test/file/test_theirs.py::test_work  1      first token, anchor  INCONCLUSIVE  -1.0%   any to +"
        "2.0%",
        "suite                                               0                           PASS",
        "",
        "REGRESSED at level 2, ours: slower \x01; where: draft",
        f"INCONCLUSIVE at level 1, {LONG}: unsure",
        "PASS at level 0, suite: a note",
    ]
    assert [line.rstrip() for line in findings_table(FOUND[:1]).splitlines()] == [
        "row   level  verdict",
        "----  -----  -------",
        "ours  0      PASS",
    ]
    assert findings_table(FOUND[:1])[-1] == "S", "without sentences no line follows the table"
    path = "a" * 150
    assert path in findings_table([Finding("ours", 0, ERROR, path)]), "a path that is cut cannot be copied"
    words = " ".join(["word"] * 40)
    wrapped = findings_table([Finding("ours", 0, ERROR, words)]).splitlines()[4:]
    assert [len(line) <= 120 for line in wrapped] == [True, True]
    assert wrapped[1].startswith("  word")
    assert not wrapped[1].startswith("   ")
    assert findings_table(FOUND, "github").count("\n") == 5


def test_a_sentence_says_verdict_level_row_and_where() -> None:
    assert finding_sentence(FOUND[0]) == "PASS at level 0, ours: the same counters"
    assert finding_sentence(FOUND[1]) == "REGRESSED at level 2, ours: slower \x01; where: draft"


def finding_of(verdict: GateVerdict, row: str = "r", level: int = 0) -> Finding:
    return Finding(row, level, verdict, "m")


@pytest.mark.parametrize(
    ("found", "rules", "compared", "sentence"),
    [
        (
            [finding_of(PASS), finding_of(PASS, "q", 2), finding_of(PASS, SUITE)],
            RULES,
            True,
            "2 rows at levels 0, 2 against g.json: nothing got worse",
        ),
        (
            [finding_of(PASS)],
            RULES,
            False,
            "1 rows at levels 0 against g.json: nothing was compared, the baseline is this run",
        ),
        (
            [finding_of(IMPROVED)],
            RULES,
            True,
            "1 rows at levels 0 against g.json: something got better: write it down with --gate-update, or the next "
            "loss of it goes unseen",
        ),
        (
            [finding_of(IMPROVED)],
            replace(RULES, file=None, base="abc"),
            True,
            "1 rows at levels 0 against abc: something got better",
        ),
        (
            [finding_of(INCONCLUSIVE)],
            RULES,
            True,
            "1 rows at levels 0 against g.json: something could not be decided, and does not pass unseen "
            "(--gate-inconclusive=report lets it)",
        ),
        (
            [finding_of(INCONCLUSIVE)],
            replace(RULES, inconclusive="report"),
            True,
            "1 rows at levels 0 against g.json: something could not be decided, and is let through by "
            "--gate-inconclusive=report",
        ),
        (
            [finding_of(REGRESSED), finding_of(PASS)],
            RULES,
            True,
            "1 rows at levels 0 against g.json: something got worse; if it is meant, accept it with --gate-update",
        ),
        (
            [finding_of(REGRESSED)],
            replace(RULES, file=None, base="abc"),
            True,
            "1 rows at levels 0 against abc: something got worse; if it is meant, merge it all the same",
        ),
        (
            [finding_of(REGRESSED)],
            replace(RULES, update=True),
            True,
            "1 rows at levels 0 against g.json: accepted by --gate-update",
        ),
        ([finding_of(PASS)], replace(RULES, update=True), True, "1 rows at levels 0 against g.json: nothing got worse"),
        (
            [finding_of(ERROR)],
            replace(RULES, update=True, mode="report"),
            True,
            "1 rows at levels 0 against g.json: something could not be compared, and does not pass unseen "
            "(--gate=report: nothing fails)",
        ),
        (
            [finding_of(PASS)],
            replace(RULES, file=None, self_test=True),
            True,
            "1 rows at levels 0 against itself: this machine tells a slowdown of 6.0% from none",
        ),
        (
            [finding_of(ERROR)],
            replace(RULES, file=None, self_test=True),
            True,
            "1 rows at levels 0 against itself: this machine does not reliably tell a slowdown of 6.0% from none",
        ),
    ],
)
def test_a_run_is_a_sentence_with_the_next_action(
    found: list[Finding], rules: Rules, compared: bool, sentence: str
) -> None:
    assert run_sentence(found, rules, compared) == sentence
    if compared:
        assert run_sentence(found, rules) == sentence


def test_verdicts_as_json_have_every_finding_and_both_sides() -> None:
    trial = SimpleNamespace(head=Record({"a": 1}, {}), baseline=Record({"b": 2}, {}), order={"seed": 5})
    content = json.loads(exports.as_json(FOUND, cast(Trial, trial)))
    assert {name: value for name, value in content.items() if name != "findings"} == {
        "format": "specdec-gate-verdicts",
        "version": 1,
        "verdict": "REGRESSED",
        "head": {"a": 1},
        "base": {"b": 2},
        "order": {"seed": 5},
    }
    assert content["findings"][1] == {
        "row": "ours",
        "level": 2,
        "verdict": "REGRESSED",
        "message": "slower \x01",
        "figure": "s/token",
        "change": 0.06,
        "low": 0.05,
        "high": 0.07,
        "where": "draft",
        "launches": 7,
        "against": "base",
    }
    assert (content["findings"][2]["low"], content["findings"][2]["high"]) == (None, 0.02)
    assert content["findings"][0]["launches"] == 0
    live = SimpleNamespace(head=Record({"a": 1}, {}), baseline=None, order={})
    for each in (cast(Trial, live), None):
        bare = json.loads(exports.as_json([], each))
        assert (bare["verdict"], bare["base"], bare["order"]) == ("PASS", None, None)
    assert bare["head"] is None


def test_benchers_format_has_changes_with_bounds_and_failures_of_what_was_not_timed() -> None:
    assert json.loads(exports.FORMATS["bmf"](FOUND, is_blocking)) == {
        "ours": {
            "fails-level-0": {"value": 0.0},
            "s-per-token-level-2": {"value": 0.06, "lower_value": 0.05, "upper_value": 0.07},
        },
        LONG: {"first-token-anchor-level-1": {"value": -0.01, "upper_value": 0.02}},
        SUITE: {"fails-level-0": {"value": 0.0}},
    }
    failed = exports.FORMATS["bmf"]([finding_of(REGRESSED)], is_blocking)
    assert json.loads(failed) == {"r": {"fails-level-0": {"value": 1.0}}}


def test_the_actions_format_has_factors_and_what_is_said_of_them() -> None:
    found = json.loads(exports.FORMATS["github-action-benchmark"]([*FOUND[:3], finding_of(REGRESSED)], is_blocking))
    assert found == [
        {
            "name": "ours (level 0)",
            "unit": "x, against the base",
            "value": 1.0,
            "extra": "PASS at level 0, ours: the same counters",
        },
        {
            "name": "ours (s/token, level 2)",
            "unit": "x, against the base",
            "value": 1.06,
            "extra": "REGRESSED at level 2, ours: slower \x01; where: draft",
        },
        {
            "name": f"{LONG} (first token, anchor, level 1)",
            "unit": "x, against the anchor",
            "value": 0.99,
            "extra": f"INCONCLUSIVE at level 1, {LONG}: unsure",
        },
        {"name": "r (level 0)", "unit": "x, against the base", "value": 2.0, "extra": "REGRESSED at level 0, r: m"},
    ]


def test_markdown_has_the_verdict_the_table_and_what_did_not_pass() -> None:
    title, table, sentences = exports.FORMATS["markdown"](FOUND, is_blocking).split("\n\n")
    assert title == "## Gate: REGRESSED"
    assert table == findings_table(FOUND, "github")
    assert sentences == (
        f"- REGRESSED at level 2, ours: slower \x01; where: draft\n- INCONCLUSIVE at level 1, {LONG}: unsure\n"
    )
    assert exports.FORMATS["markdown"](FOUND[:1], is_blocking) == (
        "## Gate: PASS\n\n" + findings_table(FOUND[:1], "github") + "\n"
    )


def test_junit_has_a_case_for_each_finding() -> None:
    assert exports.FORMATS["junit"](FOUND, is_blocking) == (
        '<testsuite name="gate" tests="4" failures="1" errors="0" skipped="1">'
        '<testcase classname="gate" name="ours level 0" />'
        '<testcase classname="gate" name="ours s/token, level 2">'
        '<failure message="REGRESSED at level 2, ours: slower ?; where: draft" /></testcase>'
        f'<testcase classname="gate" name="{LONG} first token, anchor, level 1">'
        f'<skipped message="INCONCLUSIVE at level 1, {LONG}: unsure" /></testcase>'
        '<testcase classname="gate" name="suite level 0" /></testsuite>\n'
    )
    all_fail = exports.FORMATS["junit"](FOUND[2:3], lambda finding: True)
    assert 'failures="1" errors="0" skipped="0"' in all_fail
    assert "<failure" in all_fail


def test_the_worst_of_verdicts_is_the_last_of_their_order() -> None:
    order = [IMPROVED, PASS, INCONCLUSIVE, REGRESSED, ERROR]
    assert list(GateVerdict) == order == [str(verdict) for verdict in order]
    for place, verdict in enumerate(order):
        assert worst(order[: place + 1]) == worst(reversed(order[: place + 1])) == verdict
    assert worst([]) == PASS


def stored(launches: int, machine: Any = None) -> Record:
    row = GatedRow(launches=(Launch({CALL: FigureTimes((1.0,))}),) * launches)
    return Record({"machine": machine}, {"r": row})


@pytest.mark.parametrize(
    ("changed", "launches", "same", "levels"),
    [
        ({}, None, True, (0, 2)),
        ({"dedicated": True}, None, False, (0, 2, 3)),
        ({"levels": (2,)}, None, False, (2,)),
        ({}, 5, True, (0, 1)),
        ({}, 4, True, (0,)),
        ({"levels": (0,)}, 4, False, (0,)),
        ({"dedicated": True}, 5, True, (0, 1, 3)),
        ({"levels": (0,), "dedicated": True}, 5, True, (0, 3)),
        ({"on_mismatch": "ignore"}, 5, False, (0, 1)),
        ({"on_mismatch": "counters"}, 5, False, (0,)),
        ({"on_mismatch": "counters"}, 5, True, (0, 1)),
    ],
)
def test_levels_follow_from_what_the_base_holds(
    changed: dict[str, Any], launches: int | None, same: bool, levels: tuple[int, ...]
) -> None:
    base = None if launches is None else stored(launches)
    assert levels_of(replace(RULES, **changed), base, same) == levels


@pytest.mark.parametrize(
    ("changed", "launches", "same", "sentence"),
    [
        ({"levels": (0, 2)}, 9, True, "level 2 measures both sides live: gate against a revision, not against a file"),
        (
            {"levels": (0, 1)},
            4,
            True,
            "the baseline holds 4 launches of a row and level 1 takes 5; make it with --gate-save FILE "
            "--gate-launches 5, or gate with --gate-level 0",
        ),
        (
            {"dedicated": True},
            4,
            True,
            "the baseline holds 4 launches of a row and level 3 takes 5; make it with --gate-save FILE "
            "--gate-launches 5, or gate with --gate-level 0",
        ),
        (
            {},
            5,
            False,
            "the baseline was made on another machine, whose times cannot be compared; gate with --gate-level 0 or "
            "--gate-on-mismatch=counters, make a baseline here with --gate-save, or say --gate-on-mismatch=ignore",
        ),
    ],
)
def test_levels_that_are_not_possible_are_refused(
    changed: dict[str, Any], launches: int, same: bool, sentence: str
) -> None:
    with pytest.raises(GateError) as refused:
        levels_of(replace(RULES, **changed), stored(launches), same)
    assert str(refused.value) == sentence


def test_too_few_launches_for_any_verdict_are_refused() -> None:
    def few(launches: tuple[int, int], **more: Any) -> Rules:
        return replace(RULES, launches=launches, **more)

    refuse_too_few(few((1, 0)), (0,), 1, None)
    refuse_too_few(few((5, 2)), (0, 2), 1, None)  # 1/128 is less than 0.01
    refuse_too_few(few((5, 5)), (0, 2), 10, None)  # 1/1024 is less than 0.001
    refuse_too_few(few((5, 0)), (0, 1), 2, stored(5))  # 1/252
    refuse_too_few(few((5, 0), alpha=0.5), (0, 2), 16, None)
    for rules, levels, rows, base, least in (
        (few((5, 1)), (0, 2), 1, None, 7),
        (few((4, 9)), (0, 2), 1, None, 7),
        (few((5, 4)), (0, 2), 10, None, 10),
        (few((5, 0)), (0, 1), 3, stored(5), 9),
        (few((5, 0), alpha=0.5), (0, 2), 17, None, 6),
        (few((4, 0), alpha=0.5), (0, 2), 1, None, 5),
        (few((5, 1), self_test=True), (0,), 1, None, 7),
    ):
        with pytest.raises(GateError) as refused:
            refuse_too_few(rules, levels, rows, base)
        first, more = rules.launches
        assert str(refused.value) == (
            f"--gate-launches {first}+{more} can show nothing of {rows} rows at --gate-alpha {rules.alpha:g}: no exact "
            f"test of so few reaches that; give at least 5 first and {least} in all"
        )


def test_an_anchor_of_few_launches_or_of_another_machine_is_refused() -> None:
    rules = replace(RULES, anchor=Path("a.json"))
    here = figures.machine(None)
    refuse_unfit_anchor(rules, stored(5, here))
    other = stored(5, {**here, "cores": 99})
    refuse_unfit_anchor(replace(rules, on_mismatch="ignore"), other)
    for anchor, sentence in (
        (
            stored(4, here),
            "--gate-anchor a.json holds 4 launches of a row and takes 5; pin it with --gate-save FILE "
            "--gate-launches 5",
        ),
        (
            other,
            "--gate-anchor a.json was made on another machine, whose times cannot be compared (cores 99 there and "
            f"{here['cores']} here); pin one here, or say --gate-on-mismatch=ignore",
        ),
    ):
        with pytest.raises(GateError) as refused:
            refuse_unfit_anchor(rules, anchor)
        assert str(refused.value) == sentence
    assert (
        different({"machine": {"a": 1, "b": 2}}, {"machine": {"b": 3}})
        == "a 1 there and None here, b 2 there and 3 here"
    )
    assert different({}, {"machine": None}) is None
    assert different({"machine": {"a": 1}}, {}) == "a 1 there and None here"
