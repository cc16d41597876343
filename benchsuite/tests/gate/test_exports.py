"""What is printed and exported of a gated run, and the rules for levels and launches."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchsuite.gate import figures
from benchsuite.gate.record import CALL, DECODE, MEANS, STARTS, FigureTimes, GatedRow, GateError, Launch, Record
from benchsuite.gate.rules import Rules
from benchsuite.gate.trial import SUITE, different, levels_of, refuse_too_few, refuse_unfit_anchor
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.report import exports
from benchsuite.report.document import Table
from benchsuite.report.findings import finding_sentence, findings_section, run_sentence
from benchsuite.report.renderers import section_lines
from benchsuite.tests.gate_rig import PLAIN_RULES
from specdec.amounts import amount

PASS, IMPROVED, COARSE, INCONCLUSIVE, REGRESSED, ERROR = (
    *(GateVerdict.PASS, GateVerdict.IMPROVED, GateVerdict.COARSE, GateVerdict.INCONCLUSIVE),
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


def cells_of(finding: Finding) -> dict[str, str]:
    """The cells of a finding's line in a table, by the heads of their columns."""
    table = findings_section([finding]).parts[0]
    assert isinstance(table, Table)
    return dict(zip(table.headers, (cell.text for cell in table.cells[0]), strict=True))


def test_a_line_has_what_a_finding_knows_and_no_other_column() -> None:
    assert cells_of(FOUND[0]) == {"row": "ours", "level": "0", "verdict": "PASS"}
    assert cells_of(FOUND[1]) == {
        **{"row": "ours", "level": "2", "of": "s/token", "verdict": "REGRESSED"},
        **{"change": "+6.0%", "bounds": "+5.0% to +7.0%", "where": "draft"},
    }
    assert cells_of(FOUND[2])["of"] == "first token, anchor"
    assert cells_of(FOUND[2])["bounds"] == "any to +2.0%"
    assert cells_of(replace(FOUND[0], change=0.0, low=0.0, high=0.0))["bounds"] == "+0.0% to +0.0%"
    for half in ({"low": 0.1}, {"high": 0.1}):
        assert "bounds" not in cells_of(replace(FOUND[0], **half))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 49, 50, 51, 150])
def test_a_name_of_more_than_fifty_characters_keeps_its_end(size: int) -> None:
    name = "".join(chr(ord("a") + place % 26) for place in range(size))
    shown = cells_of(Finding(name, 0, PASS, "m"))["row"]
    assert (shown == name) == (size <= 50)
    assert len(shown) == min(size, 50)
    assert name.endswith(shown.removeprefix("…"))


def test_sentences_follow_for_what_did_not_pass_and_for_the_suite() -> None:
    table, _, sentences = "\n".join(section_lines(findings_section(FOUND))).partition("\n\n")
    assert len(table.splitlines()) == 2 + len(FOUND)
    assert sentences.splitlines() == [
        "REGRESSED at level 2, ours: slower \x01; where: draft",
        f"INCONCLUSIVE at level 1, {LONG}: unsure",
        "PASS at level 0, suite: a note",
    ]
    assert len(section_lines(findings_section(FOUND[:1]))) == 3, "without sentences no line follows the table"
    assert [finding_sentence(one) for one in FOUND[:2]] == [
        "PASS at level 0, ours: the same counters",
        "REGRESSED at level 2, ours: slower \x01; where: draft",
    ]


def test_a_sentence_is_cut_at_blanks_to_lines_of_100_characters_and_never_within_a_word() -> None:
    """A path that is cut cannot be copied."""

    def lines(message: str) -> list[str]:
        return section_lines(findings_section([Finding("r", 0, ERROR, message)]))[4:]

    start = "ERROR at level 0, r: "
    fits = "a" * 60 + " " + "b" * (100 - len(start) - 61)
    assert lines(fits) == [start + fits]
    assert lines(fits + "b") == [f"{start}{'a' * 60}", f"  {fits[61:]}b"]
    for word in ("-".join(["part"] * 20), "a" * 150):
        assert lines(f"{'a' * 60} {word}") == [f"{start}{'a' * 60}", f"  {word}"]


def finding_of(verdict: GateVerdict, row: str = "r", level: int = 0) -> Finding:
    return Finding(row, level, verdict, "m")


LIVE = replace(RULES, file=None, base="abc")
ITSELF = replace(RULES, file=None, self_test=True)


@pytest.mark.parametrize(
    ("verdict", "rules", "says"),
    [
        (PASS, RULES, "against g.json: nothing got worse"),
        (PASS, replace(RULES, update=True), "against g.json: nothing got worse"),
        (IMPROVED, RULES, "against g.json: something got better: write it down with --gate-update"),
        (IMPROVED, LIVE, "against abc: something got better"),
        (INCONCLUSIVE, RULES, "does not pass unseen (--gate-inconclusive=report lets it)"),
        (INCONCLUSIVE, replace(RULES, inconclusive="report"), "is let through by --gate-inconclusive=report"),
        (REGRESSED, RULES, "something got worse; if it is meant, accept it with --gate-update"),
        (REGRESSED, LIVE, "against abc: something got worse; if it is meant, merge it all the same"),
        (REGRESSED, replace(RULES, update=True), "accepted by --gate-update"),
        (ERROR, replace(RULES, update=True), "something could not be compared, and does not pass unseen"),
        (PASS, ITSELF, "against itself: this machine tells a slowdown of 6.0% from none"),
        (ERROR, ITSELF, "against itself: this machine does not reliably tell a slowdown of 6.0% from none"),
    ],
)
def test_a_run_is_a_sentence_with_the_next_action(verdict: GateVerdict, rules: Rules, says: str) -> None:
    """Of the worst verdict; the suite is no row, and rows and levels count once."""
    found = [finding_of(verdict, row, level) for level in (2, 0) for row in ("a", "b", SUITE)]
    said = run_sentence([*found, finding_of(IMPROVED, "a")], rules)
    assert said.startswith("2 rows at levels 0, 2 against ")
    assert says in said
    assert run_sentence([*found, finding_of(IMPROVED, "a")], replace(rules, mode="report")).startswith(said + " (")


def test_a_run_that_made_its_baseline_compared_nothing() -> None:
    assert run_sentence([finding_of(PASS)], RULES, compared=False).endswith(
        "nothing was compared, the baseline is this run"
    )


def test_what_was_measured_and_not_gated_is_named_whatever_the_verdict() -> None:
    """An engine of one's own that had become three times slower was in no word of "PASS: nothing got worse"."""
    left = {"peers": ["a", "b"], "new": []}
    for verdict in (PASS, COARSE, REGRESSED, ERROR):
        said = run_sentence([finding_of(verdict)], RULES, ungated=left)
        assert said.endswith("; not gated (peers): a, b")
        assert (" of what was gated" in said) == (verdict in (PASS, COARSE))
    assert run_sentence([finding_of(PASS)], RULES, ungated={"new": list("abcdef")}).endswith(
        "nothing got worse of what was gated; not gated (new): a, b, c, d and 2 more"
    )
    assert run_sentence([finding_of(PASS)], RULES, ungated={"new": []}).endswith("nothing got worse")


def test_an_anchor_says_which_rows_it_cannot_hold() -> None:
    """Five merges of 14 % each passed, and the anchor, which had no control of plain, with them."""
    held = Finding("held", 1, PASS, "m", DECODE, against="anchor")
    unheld = Finding("plain", 1, PASS, "the anchor cannot hold it", against="anchor")
    said = run_sentence([finding_of(PASS), held, unheld], RULES)
    assert said.endswith("nothing got worse; not held against the anchor: plain")
    assert "anchor" not in run_sentence([finding_of(PASS), held], RULES)


def test_figures_whose_bounds_exclude_nothing_are_counted_and_no_pass() -> None:
    """Plain by the clock with bounds of -40 to +66 % was PASS: "nothing got worse"."""
    wide = Finding("plain", 2, COARSE, "m", f"{DECODE} by the clock", 0.0, -0.4, 0.66)
    found = [finding_of(PASS), replace(wide, row="r", verdict=PASS), wide, replace(wide, figure=MEANS[DECODE])]
    said = run_sentence(found, RULES)
    assert "nothing is shown to have got worse; COARSE: 2 of 3 figures, of which twice the tolerance is" in said
    assert "COARSE" not in run_sentence(found[:2], RULES)


def test_a_mean_beside_a_median_has_a_line_where_it_did_not_pass_and_the_median_did() -> None:
    clock = " by the clock"
    figures = (DECODE, MEANS[DECODE], f"{DECODE}{clock}", f"{MEANS[DECODE]}{clock}", STARTS[DECODE])

    def lines(*verdicts: GateVerdict) -> list[tuple[str, str]]:
        found = [Finding("r", 2, verdict, "m", figure) for figure, verdict in zip(figures, verdicts, strict=True)]
        table, *told = findings_section([*found, replace(found[0], row="s", verdict=REGRESSED)]).parts
        assert isinstance(table, Table)
        shown = [(cells[2].text, cells[3].text) for cells in table.cells if cells[0].text == "r"]
        sentences = sum(verdict not in ("PASS", "COARSE") for _, verdict in shown) + 1
        assert len("".join(str(one) for one in told).split(" at level 2, ")) == sentences + 1
        return shown

    assert lines(PASS, PASS, PASS, COARSE, COARSE) == [(DECODE, "PASS"), (f"{DECODE}{clock}", "PASS")]
    assert lines(PASS, REGRESSED, COARSE, INCONCLUSIVE, PASS) == [
        (DECODE, "PASS"),
        (MEANS[DECODE], "REGRESSED"),
        (f"{DECODE}{clock}", "COARSE"),
        (f"{MEANS[DECODE]}{clock}", "INCONCLUSIVE"),
    ]
    assert lines(REGRESSED, REGRESSED, PASS, REGRESSED, INCONCLUSIVE) == [
        (DECODE, "REGRESSED"),
        (f"{DECODE}{clock}", "PASS"),
        (f"{MEANS[DECODE]}{clock}", "REGRESSED"),
    ]


@pytest.mark.parametrize(
    ("change", "value"), [(0.0, 1.0), (0.123456, 1.12346), (0.1234549, 1.12345), (-0.5, 0.5), (1e-6, 1.0)]
)
def test_a_factor_has_five_digits(change: float, value: float) -> None:
    found = [Finding("r", 2, PASS, "m", "s/token", change)]
    content = json.loads(exports.FORMATS["github-action-benchmark"](found, lambda finding: True))
    assert [one["value"] for one in content] == [value]


def test_verdicts_as_json_have_every_finding_and_both_sides() -> None:
    origins = {"head": {"a": 1}, "base": {"b": 2}, "order": {"seed": 5}}
    content = json.loads(exports.as_json(FOUND, origins))
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
    assert json.loads(exports.as_json([], {}))["verdict"] == "PASS"


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
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [cells_of(one)["row"] for one in FOUND]
    assert sentences == (
        f"- REGRESSED at level 2, ours: slower \x01; where: draft\n- INCONCLUSIVE at level 1, {LONG}: unsure\n"
        "- PASS at level 0, suite: a note\n"
    )
    title, table = exports.FORMATS["markdown"](FOUND[:1], is_blocking).split("\n\n")
    assert title == "## Gate: PASS"
    assert len(table.splitlines()) == 3


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
            f"--gate-launches {first}+{more} can show nothing of {amount(rows, 'row')} at --gate-alpha "
            f"{rules.alpha:g}: no exact test of so few reaches that; give at least 5 first and {least} in all"
        )


@pytest.mark.slow
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
