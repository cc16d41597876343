"""A run held against its base: whole lists of findings, of rows that are made by hand and launches that are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any, cast

import pytest

from benchsuite.gate import trial
from benchsuite.gate.environment import PinnedLayer
from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import CALL, DECODE, FIRST, FigureTimes, GatedRow, GateError, Launch, Record
from benchsuite.gate.rules import Rules
from benchsuite.gate.trial import BLIND, NOTHING, SUITE, UNJUDGED, Limit, Trial
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.tests.gate_rig import PLAIN_RULES

PASS, INCONCLUSIVE, REGRESSED, ERROR = (
    *(GateVerdict.PASS, GateVerdict.INCONCLUSIVE),
    *(GateVerdict.REGRESSED, GateVerdict.ERROR),
)
RULES = Rules(file=Path("g.json"), **{**PLAIN_RULES, "launches": (5, 8), "alpha": 0.05})
LIVE = replace(RULES, file=None, base="c" * 40)
EQUAL = Finding("a", 0, PASS, "1 counters and the emitted tokens repeat exactly")


def _launch(ratio: float = 1.0, figure: str = DECODE, seconds: float = 1.0) -> Launch:
    return Launch({figure: FigureTimes((seconds,), (log(ratio),))})


ROW = GatedRow({"seed": 0}, {"prompts": "p"}, "plain", "d", "p", True, {"num_drafts": 9}, {}, (_launch(),))
BENCHMARK = GatedRow(launches=(Launch({CALL: FigureTimes((1.0,))}),))


class _Told:
    """A launcher whose launches are told beforehand: of the base, of this checkout, and of it with each plant."""

    def __init__(self, head: Record, base: Record | None = None, planted: Mapping[str, Record] | None = None) -> None:
        self.told = {"": head, **(planted or {})}
        self.base, self.calls = base, list[tuple[Path | None, str]]()
        self.lacking = list[str]()
        self.layers = (PinnedLayer({"torch": "2"}), PinnedLayer())

    def root(self) -> Path:
        """The top of the checkout."""
        return Path("top")

    def measure(self, checkout: Path | None = None, plant: str = "") -> Record:
        """The launch that was told."""
        self.calls.append((checkout, plant))
        if checkout:
            assert self.base is not None
            return self.base
        return self.told[plant]


def _record(made: Mapping[str, Any] | None = None, **rows: GatedRow) -> Record:
    return Record(made or {}, rows)


def _many(row: GatedRow, count: int = 5) -> GatedRow:
    return replace(row, launches=row.launches * count)


def _trial(base: Record, head: Record, rules: Rules = RULES, **given: Any) -> Trial:
    """A trial against a file, at level 0 unless another is given; of the head's rows unless others are wanted."""
    fields: dict[str, Any] = {"levels": (0,), "launcher": _Told(head), "wanted": dict.fromkeys(head.rows), **given}
    return Trial(rules, head=head, baseline=base, say=lambda text: None, **fields)


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str]]:
    """Worktrees are not made; those that were asked for are listed."""
    asked: list[tuple[Path, str]] = []

    @contextmanager
    def worktree(folder: Path, commit: str) -> Iterator[Path]:
        asked.append((folder, commit))
        yield Path("base")

    monkeypatch.setattr(trial, "worktree", worktree)
    return asked


def _live(base: Record, head: Record, rules: Rules = LIVE, **given: Any) -> Trial:
    """A trial against a revision, at level 0 unless another is given."""
    fields: dict[str, Any] = {
        "levels": (0,),
        "launcher": _Told(head, base),
        "wanted": dict.fromkeys(head.rows),
        **given,
    }
    return Trial(rules, head=head, baseline=None, say=lambda text: None, **fields)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"a": None}, "no row was measured"),
        ({}, "no row was measured"),
        ({"a": "later", "b": "earlier", "c": "later", "d": None}, "earlier; later"),
    ],
)
def test_a_run_without_rows_is_an_error_with_the_reasons(wanted: Mapping[str, str | None], why: str) -> None:
    found = _trial(_record(a=ROW), _record(), wanted=wanted).findings()
    assert found == [Finding(SUITE, 0, ERROR, f"nothing was measured, so nothing is shown: {why}")]


def test_what_a_launch_refuses_is_an_error_of_the_suite() -> None:
    class Refusing(_Told):
        def measure(self, checkout: Path | None = None, plant: str = "") -> Record:
            raise GateError("it broke")

    head, said = _record(a=ROW), list[str]()
    made = _trial(_record(a=_many(ROW)), head, levels=(0, 1), launcher=Refusing(head))
    made.say = said.append
    assert made.findings() == [Finding(SUITE, 0, ERROR, "it broke")]
    assert said == ["launch 1 of 5", "ERROR: it broke"], "before any table"


GONE = "the baseline has no such row"
NEW = "let new rows pass with --gate-on-missing=new"
OTHERWISE = "measured otherwise than the baseline: "
AGAIN = "; make the baseline again with --gate-save"
IS_NEW = Finding("a", 0, PASS, f"{GONE}: it is new, and compared with nothing")


@pytest.mark.parametrize(
    ("head", "base", "changed", "finding"),
    [
        (ROW, {"a": ROW}, {}, EQUAL),
        (
            replace(ROW, counters={"num_drafts": 10}),
            {"a": ROW},
            {},
            Finding("a", 0, REGRESSED, "num_drafts was 9 and is 10", where="draft"),
        ),
        (
            replace(ROW, work={"seed": 1, "k": 4}),
            {"a": ROW},
            {},
            Finding("a", 0, ERROR, OTHERWISE + "k None there and 4 here, seed 0 there and 1 here"),
        ),
        (
            replace(ROW, inputs={"prompts": "q", "weights": "w"}),
            {"a": ROW},
            {},
            Finding("a", 0, ERROR, f"{OTHERWISE}other prompts, weights{AGAIN}"),
        ),
        (
            replace(ROW, inputs={}),
            {"a": ROW},
            {},
            Finding("a", 0, ERROR, f"{OTHERWISE}other prompts{AGAIN}"),
        ),
        # The control is nothing to counters.
        (replace(ROW, control="transformers"), {"a": ROW}, {}, EQUAL),
        (ROW, {"b": ROW}, {}, Finding("a", 0, ERROR, f"{GONE}; write it down with --gate-update, or {NEW}")),
        (ROW, {"b": ROW}, {"on_missing": "new"}, IS_NEW),
        (ROW, {"b": ROW}, {"on_missing": "report"}, IS_NEW),
        (ROW, {"b": ROW}, {"update": True}, IS_NEW),
    ],
)
def test_a_row_is_compared_or_said_to_be_another(
    head: GatedRow, base: dict[str, GatedRow], changed: dict[str, Any], finding: Finding
) -> None:
    assert _trial(Record({}, base), _record(a=head), replace(RULES, **changed)).findings()[0] == finding


def test_a_row_that_was_renamed_is_told_with_the_name_it_had() -> None:
    base = _record(tiny_chat_ngram=ROW, tiny_chat_plain=ROW, other=ROW)
    head = _record(tiny_chat_ngrams=ROW, tiny_chat_plain=ROW)
    hint = "; the baseline has 'tiny_chat_ngram', which this run has not: renamed?"
    found = _trial(base, head).findings()[0]
    assert found.message == f"{GONE}{hint}; write it down with --gate-update, or {NEW}"
    found = _trial(base, head, replace(RULES, on_missing="new")).findings()[0]
    assert found.message == f"{GONE}{hint}: it is new, and compared with nothing"


def test_against_a_revision_nothing_can_be_written_down(trees: list[tuple[Path, str]]) -> None:
    found = _live(_record(b=ROW), _record(a=ROW), wanted={"a": None, "b": "its test failed"}).findings()
    assert found[0] == Finding("a", 0, ERROR, f"{GONE}; {NEW}")
    assert found[1] == Finding("b", 0, ERROR, "it was not measured: its test failed")
    assert trees == [(Path("top"), "c" * 40)]


def test_a_row_that_was_not_measured_is_an_error_with_its_reason() -> None:
    wanted = {"a": None, "b": "its test was skipped: no", "c": None}
    found = _trial(_record(a=ROW, b=ROW, c=ROW), _record(a=ROW), wanted=wanted).findings()
    assert found == [
        EQUAL,
        Finding("b", 0, ERROR, "it was not measured: its test was skipped: no"),
        Finding("c", 0, ERROR, "it was not measured: its test made no figures"),
    ]


def test_other_weights_alone_on_another_machine_are_inconclusive() -> None:
    base, other = _record({"machine": {"cores": 1}}, a=ROW), replace(ROW, inputs={"prompts": "p", "weights": "w"})
    message = (
        "numerics: the weights are others than the baseline's, as random ones may be on another processor; counters "
        "cannot be compared; make the baseline again where the gate runs"
    )
    assert _trial(base, _record({"machine": {"cores": 2}}, a=other)).findings() == [
        Finding("a", 0, INCONCLUSIVE, message)
    ]
    again = "make the baseline again with --gate-save"
    same = Finding("a", 0, ERROR, f"measured otherwise than the baseline: other weights; {again}")
    assert _trial(base, _record({"machine": {"cores": 1}}, a=other)).findings() == [same]
    both = _record({"machine": {"cores": 2}}, a=replace(other, inputs={"prompts": "q", "weights": "w"}))
    assert _trial(base, both).findings()[0].message == (
        f"measured otherwise than the baseline: other prompts, weights; {again}"
    )


def test_prompts_that_a_template_rendered_otherwise_are_named_on_any_machine() -> None:
    """A template that prints the clock: no processor and no torch is to blame. An older baseline lacks the digest."""
    base = _record({"machine": {"cores": 1}}, a=replace(ROW, inputs={"prompts": "p", "rendered prompts": "at noon"}))
    later = replace(ROW, inputs={"prompts": "p", "rendered prompts": "at one"})
    for cores in (1, 2):
        [found] = _trial(base, _record({"machine": {"cores": cores}}, a=later)).findings()
        assert (found.verdict, "does it print the date or the time?" in found.message) == (ERROR, True)
    older = _record({"machine": {"cores": 1}}, a=replace(ROW, inputs={"prompts": "p"}))
    assert [one.verdict for one in _trial(older, _record({"machine": {"cores": 1}}, a=later)).findings()] == [PASS]


def test_backends_are_compared_on_the_same_machine_alone() -> None:
    base = _record({"machine": {"cores": 1}}, a=replace(ROW, ops={"mix on cpu": 4}))
    for cores, verdict in ((1, REGRESSED), (2, PASS)):
        assert [one.verdict for one in _trial(base, _record({"machine": {"cores": cores}}, a=ROW)).findings()] == [
            verdict
        ]


def test_times_over_another_control_are_refused_where_times_are_gated() -> None:
    base, head = _record(a=_many(ROW)), _record(a=replace(ROW, control="transformers"))
    message = (
        "its times are relative to transformers here and to plain there; run the same --specdec-peer as the baseline, "
        "or make the baseline again with --gate-save"
    )
    assert _trial(base, head, levels=(0, 1)).findings()[0] == Finding("a", 0, ERROR, message)
    assert _trial(base, head, levels=(0,)).findings() == [EQUAL]
    # A row without times has none over another control.
    untimed = _record(a=replace(ROW, launches=()))
    assert _trial(untimed, head, levels=(0, 1)).findings()[0] == EQUAL


def test_a_row_of_which_no_level_compares_anything_is_an_error() -> None:
    both = _record(a=BENCHMARK)
    message = f"nothing of it can be compared at levels 0, 1: {NOTHING}"
    assert _trial(both, both, levels=(0, 1)).findings() == [Finding("a", 0, ERROR, message)]
    limits = {"a": Limit(level=2)}
    assert _trial(_record(a=ROW), _record(a=ROW), levels=(0,), limits=limits).findings() == [
        Finding("a", 0, ERROR, f"nothing of it can be compared at levels 0: {NOTHING}")
    ]


def test_a_row_that_its_marker_keeps_to_one_level_has_findings_of_that_level_alone() -> None:
    base, head = _record(a=_many(ROW), b=_many(ROW)), _record(a=ROW, b=ROW)
    found = _trial(base, head, levels=(0, 1), limits={"a": Limit(level=1), "b": Limit(level=0)}).findings()
    assert [(one.row, one.level) for one in found if one.row != SUITE] == [("b", 0), ("a", 1)]


def test_a_marker_gives_a_row_its_own_tolerance() -> None:
    base, head = _record(a=_many(ROW), b=_many(ROW)), _record(a=replace(ROW, launches=(_launch(1.05),)))
    head = _record(a=head.rows["a"], b=head.rows["a"])
    found = _trial(base, head, levels=(0, 1), limits={"b": Limit(0.06)}).findings()
    assert [(one.row, one.verdict) for one in found if one.level == 1] == [("a", REGRESSED), ("b", PASS)]
    assert ", beyond the tolerance of 3.0%" in next(one.message for one in found if one.verdict == REGRESSED)
    assert "; a slowdown of 12.0% is excluded" in found[-1].message


def test_each_figure_has_the_tolerance_of_the_rules(trees: list[tuple[Path, str]]) -> None:
    def row(ratio: float) -> GatedRow:
        return replace(ROW, launches=(_launch(ratio, FIRST),))

    for ratio, verdict in ((1.09, PASS), (1.2, REGRESSED)):
        found = _trial(_record(a=_many(row(1.0))), _record(a=row(ratio)), levels=(1,)).findings()
        assert [one.verdict for one in found if one.level] == [verdict]
    plain = replace(ROW, digest="p", counters={"target_forwards": 9})
    base, head = (replace(plain, launches=(Launch({DECODE: FigureTimes((seconds,))}),)) for seconds in (1.0, 1.12))
    assert [one.verdict for one in _live(_record(a=base), _record(a=head), levels=(2,)).findings()] == [PASS]
    strict = replace(LIVE, coarse_tolerance=0.1)
    assert [one.verdict for one in _live(_record(a=base), _record(a=head), strict, levels=(2,)).findings()] == [
        REGRESSED
    ]


def test_without_a_change_five_launches_are_made_and_with_one_all() -> None:
    for ratio, launches in ((1.0, 5), (1.1, 13)):
        head = _record(a=replace(ROW, launches=(_launch(ratio),)))
        made = _trial(_record(a=_many(ROW)), head, levels=(0, 1))
        assert made.findings()[-1].launches == launches
        assert cast(_Told, made.launcher).calls == [(None, "")] * launches
        assert made.head.launches == launches, "the run is replaced by its launches"


def test_at_level_0_no_launch_is_made() -> None:
    made = _trial(_record(a=ROW), _record(a=ROW))
    assert made.findings() == [EQUAL]
    assert cast(_Told, made.launcher).calls == []
    assert made.order == {}


def test_levels_are_judged_in_turn_with_the_same_launches() -> None:
    made = _trial(_record(a=_many(ROW)), _record(a=ROW), replace(RULES, dedicated=True), levels=(0, 1, 3))
    assert [(one.row, one.level, one.verdict) for one in made.findings()] == [
        (name, level, PASS) for name, level in (("a", 0), ("a", 1), ("a", 3))
    ]
    assert len(cast(_Told, made.launcher).calls) == 5


def test_a_row_that_cannot_be_compared_is_not_timed() -> None:
    base = _record(a=_many(ROW), b=_many(ROW))
    head = _record(a=replace(ROW, work={"seed": 1}), b=ROW, c=ROW)
    found = _trial(base, head, levels=(0, 1)).findings()
    assert [(one.row, one.level, one.verdict) for one in found if one.row != SUITE] == [
        ("a", 0, ERROR),
        ("b", 0, PASS),
        ("c", 0, ERROR),
        ("b", 1, PASS),
    ]


def test_a_row_that_is_inconclusive_by_its_counters_is_timed_all_the_same() -> None:
    found = _trial(_record(a=_many(ROW)), _record(a=replace(ROW, digest="e")), levels=(0, 1)).findings()
    assert [(one.level, one.verdict) for one in found if one.row == "a"] == [(0, INCONCLUSIVE), (1, PASS)]


def test_a_revision_is_launched_in_an_order_that_is_kept_with_its_seed(trees: list[tuple[Path, str]]) -> None:
    made = _live(_record(a=ROW), _record(a=ROW), replace(LIVE, order_seed=7), levels=(0,))
    assert made.findings() == [EQUAL]
    assert made.order["seed"] == 7
    assert sorted(made.order["ran"]) == ["base", "head"]
    assert sorted(made.order) == ["ran", "seed"]
    assert sorted(cast(_Told, made.launcher).calls, key=str) == sorted([(None, ""), (Path("base"), "")], key=str)
    made = _live(_record(a=ROW), _record(a=ROW), replace(LIVE, order_seed=7), levels=(0, 2))
    assert [(one.row, one.level, one.verdict) for one in made.findings()] == [("a", 0, PASS), ("a", 2, PASS)]
    assert made.order["ran"] == _order(7)


def _order(seed: int) -> list[str]:
    made = _live(_record(a=ROW), _record(a=ROW), replace(LIVE, order_seed=seed), levels=(2,))
    made.findings()
    assert len(made.order["ran"]) == 10
    return list(made.order["ran"])


def test_against_a_revision_counters_are_those_of_a_launch(trees: list[tuple[Path, str]]) -> None:
    """This process may have measured an installed copy: its counters, of an older one, passed."""
    launched = _record(a=replace(ROW, counters={"num_drafts": 10}))
    for own in (True, False):
        head = _record(a=ROW)
        made = _live(_record(a=ROW), head, replace(LIVE, own_environment=own), launcher=_Told(launched, _record(a=ROW)))
        found = made.findings()
        assert found[0].verdict == REGRESSED
        notes = ["environment of the base: torch 2", "environment of this checkout: as installed"] if own else []
        assert [one.message for one in found[1:]] == notes


def _notes(made: Trial) -> list[str]:
    found = [one for one in made.findings() if one.row == SUITE]
    assert {(one.level, one.verdict) for one in found} <= {(0, PASS)}
    return [one.message for one in found]


def test_a_commit_against_itself_is_said(trees: list[tuple[Path, str]]) -> None:
    one, other, none = (_record(made, a=ROW) for made in ({"commit": "e" * 40}, {"commit": "f" * 40}, {}))
    note = f"base and head are the same commit, {'e' * 12}, and nothing is changed"
    assert [_notes(_live(*both)) for both in ((one, one), (one, other), (none, none))] == [[note], [], []]
    assert _notes(_trial(one, one)) == [], "a file may be of the same commit"


@pytest.mark.parametrize(
    ("controls", "levels", "blind"),
    [
        (("plain",), (0, 1), True),
        (("plain", None), (0, 1), True),
        ((None,), (0, 1), False),
        (("plain", "transformers"), (0, 1), False),
        (("transformers",), (0, 1), False),
        (("plain",), (0,), False),
        (("plain",), (0, 1, 3), False),
    ],
)
def test_what_level_1_cannot_see_is_said_where_nothing_else_sees_it(
    controls: tuple[str | None, ...], levels: tuple[int, ...], blind: bool
) -> None:
    rows = {f"r{place}": _many(replace(ROW, control=control)) for place, control in enumerate(controls)}
    made = _trial(Record({}, rows), Record({}, rows), levels=levels)
    assert (BLIND in _notes(made)) == blind


def test_rows_that_this_run_leaves_out_say_nothing_of_what_it_sees() -> None:
    base = _record(a=_many(ROW), b=_many(replace(ROW, control="transformers")))
    made = _trial(base, _record(a=ROW), replace(RULES, on_missing="report"), levels=(0, 1))
    assert _notes(made) == ["1 row of the baseline is gone: b", BLIND]


def test_what_the_base_lacks_is_said(trees: list[tuple[Path, str]]) -> None:
    rules = replace(LIVE, on_missing="new")
    head = _record(a=ROW, b=ROW)
    made = _live(_record(a=ROW), head, rules)
    cast(_Told, made.launcher).lacking = ["test_b.py", "test_c.py"]
    assert _notes(made) == ["the base lacks test_b.py, test_c.py", "1 row is new, and compared with nothing: b"]


def test_a_run_of_which_nothing_could_be_judged_is_no_pass(trees: list[tuple[Path, str]]) -> None:
    """Every row is new, and new rows pass: it was "PASS: nothing got worse"."""
    made = _live(_record(), _record(a=ROW, b=ROW), replace(LIVE, on_missing="new"))
    cast(_Told, made.launcher).lacking = ["test_b.py"]
    *notes, last = (one for one in made.findings() if one.row == SUITE)
    assert [one.message for one in notes] == [
        "the base has none of the rows of this run: every row is new",
        "2 rows are new, and compared with nothing: a, b",
    ]
    assert (last.verdict, last.message) == (ERROR, UNJUDGED)
    assert made.new == ["a", "b"]
    peer = replace(BENCHMARK, peer=True)
    alone = _trial(_record(a=peer), _record(a=peer)).findings()
    assert [one.verdict for one in alone] == [PASS, ERROR]
    assert alone[0].message == "1 row of a peer is not gated: no level compares anything of peers: a"
    assert [one.verdict for one in _trial(_record(a=peer, b=ROW), _record(a=peer, b=ROW)).findings()] == [PASS, PASS]


@pytest.mark.parametrize(("new", "shown"), [("bcd", "b, c, d"), ("bcde", "b, c, d …"), ("b", "b")])
def test_of_many_new_rows_the_first_three_are_named(new: str, shown: str) -> None:
    head = Record({}, dict.fromkeys(f"a{new}", ROW))
    made = _trial(_record(a=ROW), head, replace(RULES, on_missing="new"))
    are = "row is" if len(new) == 1 else "rows are"
    assert _notes(made) == [f"{len(new)} {are} new, and compared with nothing: {shown}"]


def test_other_versions_are_said() -> None:
    base, head = (
        {"versions": versions} for versions in ({"torch": "2", "old": "1", "same": "0"}, {"torch": "3", "same": "0"})
    )
    note = "versions differ: old '1' there and None here, torch '2' there and '3' here"
    assert _notes(_trial(_record(base, a=ROW), _record(head, a=ROW))) == [note]
    assert _notes(_trial(_record(a=ROW), _record({"versions": {"torch": "3"}}, a=ROW))) == [
        "versions differ: torch None there and '3' here"
    ]
    assert _notes(_trial(_record({"versions": {"torch": "3"}}, a=ROW), _record({"versions": None}, a=ROW))) == [
        "versions differ: torch '3' there and None here"
    ]


@pytest.mark.parametrize(
    ("gone", "on_missing", "verdict", "message"),
    [
        ("b", "fail", ERROR, "1 row of the baseline is gone: b"),
        ("b", "new", ERROR, "1 row of the baseline is gone: b"),
        ("bcde", "fail", ERROR, "4 rows of the baseline are gone: b, c, d …"),
        ("b", "report", PASS, "1 row of the baseline is gone: b"),
    ],
)
def test_rows_that_are_gone_fail_unless_they_may(
    gone: str, on_missing: str, verdict: GateVerdict, message: str, trees: list[tuple[Path, str]]
) -> None:
    base, rules = Record({}, dict.fromkeys(f"{gone}a", ROW)), replace(RULES, on_missing=on_missing)
    tail = "; run them, or let it pass with --gate-on-missing=report" if verdict == ERROR else ""
    again = ", or make a new file with --gate-save" if verdict == ERROR else ""
    found = Finding(SUITE, 0, verdict, f"{message}{tail}{again}")
    assert _trial(base, _record(a=ROW), rules).findings() == [EQUAL, found]
    found = Finding(SUITE, 0, verdict, f"{message}{tail}")
    assert _live(base, _record(a=ROW), replace(LIVE, on_missing=on_missing)).findings() == [EQUAL, found]


def test_no_row_in_common_fails_even_where_gone_rows_may() -> None:
    found = _trial(_record(b=ROW), _record(a=ROW), replace(RULES, on_missing="report")).findings()
    message = (
        "baseline and run have no row in common: b; run them, or let it pass with --gate-on-missing=report, or make a "
        "new file with --gate-save"
    )
    assert found[1] == Finding(SUITE, 0, ERROR, message)


OVER = "seconds per token, over plain's ({0} to {0}, each bound at {1}; 5 and {2} launches)"


@pytest.mark.parametrize(
    ("ratio", "verdict", "message"),
    [
        (1.0, PASS, f"+0.0% {OVER.format('+0.0%', '0.031', 5)}; a slowdown of 6.0% is excluded"),
        (1.1, REGRESSED, f"+10.0% {OVER.format('+10.0%', '0.05', 13)}, beyond the tolerance of 3.0%"),
        (
            0.8,
            PASS,
            f"-20.0% {OVER.format('-20.0%', '0.05', 13)}; plain got slower or this row faster, which this level "
            "cannot tell apart: gate against a revision",
        ),
    ],
)
def test_a_row_is_held_against_the_anchor_with_its_launches(ratio: float, verdict: GateVerdict, message: str) -> None:
    now = replace(ROW, launches=(_launch(ratio),))
    made = _trial(_record(a=_many(now)), _record(a=now), anchor=_record(a=_many(ROW)), levels=(0,))
    found = made.findings()
    assert found[0] == EQUAL
    (held,) = found[1:]
    assert (held.row, held.level, held.verdict, held.against) == ("a", 1, verdict, "anchor")
    assert held.message == f"against the anchor, {message}"


def test_a_gain_over_the_anchor_is_no_news() -> None:
    peer = replace(ROW, control="transformers")
    faster = replace(peer, launches=(_launch(0.8),))
    made = _trial(_record(a=_many(faster)), _record(a=faster), anchor=_record(a=_many(peer)))
    (held,) = (one for one in made.findings() if one.against == "anchor")
    assert held.verdict == PASS
    assert held.message.startswith("against the anchor, -20.0% seconds per token, over transformers's")


@pytest.mark.parametrize("changed", [{"work": {"seed": 1}}, {"inputs": {"prompts": "q"}}, {"control": "transformers"}])
def test_a_row_that_was_measured_otherwise_than_the_anchor_is_an_error(changed: dict[str, Any]) -> None:
    anchor = _record(a=_many(replace(ROW, **changed)), b=_many(ROW))
    made = _trial(
        _record(a=ROW, b=ROW), _record(a=ROW, b=ROW), replace(RULES, anchor=Path("pinned.json")), anchor=anchor
    )
    found = made.findings()[2:]
    message = "measured otherwise than the anchor; pin it again with --gate-save pinned.json"
    assert found[0] == Finding("a", 1, ERROR, message, against="anchor")
    assert [(one.row, one.level, one.verdict, one.against) for one in found[1:]] == [("b", 1, PASS, "anchor")]


def test_an_anchor_with_which_no_row_can_be_compared_is_an_error() -> None:
    lacking = Finding("a", 1, PASS, "the anchor has no such row", against="anchor")
    none = Finding(SUITE, 0, ERROR, "no row can be held against the anchor: none has times and a control")
    assert _trial(_record(a=ROW), _record(a=ROW), anchor=_record(b=_many(ROW))).findings() == [EQUAL, lacking, none]
    both = _record(a=replace(ROW, control=None, launches=(Launch({DECODE: FigureTimes((1.0,))}),)))
    unheld = replace(lacking, message="the anchor cannot hold it: it has no control in its own process")
    assert _trial(both, both, anchor=both).findings() == [EQUAL, unheld, none]


def test_against_the_anchor_the_launches_of_the_level_before_are_used_again() -> None:
    made = _trial(_record(a=_many(ROW)), _record(a=ROW), anchor=_record(a=_many(ROW)), levels=(0, 1))
    made.findings()
    assert len(cast(_Told, made.launcher).calls) == 5


def _self_test(
    as_is: float, slowed: float, rules: Rules = RULES
) -> tuple[list[Finding], list[tuple[Path | None, str]]]:
    drafted, plain = ROW, replace(ROW, control=None, digest="p")
    peer = replace(ROW, control="transformers", digest="p", counters={"num_drafts": 0})
    head = _record(a=drafted, plain=plain, peer=peer)
    slow = _record(a=replace(ROW, launches=(_launch(slowed),)), plain=plain, peer=peer)
    launcher = _Told(
        _record(a=replace(ROW, launches=(_launch(as_is),)), plain=plain, peer=peer),
        planted={f"host={2 * rules.tolerance}": slow},
    )
    made = _trial(head, head, replace(rules, self_test=True), launcher=launcher)
    return made.findings(), launcher.calls


def test_a_self_test_passes_where_the_same_is_the_same_and_the_slower_slower() -> None:
    found, calls = _self_test(1.0, 1.1)
    over = "{0} seconds per token, over {1}'s ({0} to {0}, each bound at {2}; {3} and {3} launches)"
    excluded, beyond = "; a slowdown of 6.0% is excluded", ", beyond the tolerance of 3.0%"
    assert [(one.row, one.level, one.verdict, one.message) for one in found] == [
        ("a (as it is)", 2, PASS, f"PASS; {over.format('+0.0%', 'plain', '0.031', 5)}{excluded}"),
        ("peer (as it is)", 2, PASS, f"PASS; {over.format('+0.0%', 'transformers', '0.031', 5)}{excluded}"),
        (SUITE, 2, PASS, "as it is: 2 of 2 rows PASS"),
        ("a (6.0% slower)", 2, PASS, f"REGRESSED; {over.format('+10.0%', 'plain', '0.05', 13)}{beyond}"),
        (SUITE, 2, PASS, "6.0% slower: 1 of 1 rows REGRESSED"),
    ]
    assert [calls.count((None, plant)) for plant in ("", "host=0.06")] == [10 + 13, 13]


def test_a_self_test_fails_where_the_slower_is_not_told() -> None:
    found, _ = _self_test(1.0, 1.0)
    assert [(one.row, one.verdict) for one in found] == [
        ("a (as it is)", PASS),
        ("peer (as it is)", PASS),
        (SUITE, PASS),
        ("a (6.0% slower)", ERROR),
        (SUITE, ERROR),
    ]
    assert found[3].message.startswith("PASS; ")
    assert found[4].message == "6.0% slower: 0 of 1 rows REGRESSED"


def test_a_self_test_without_a_draft_is_an_error_and_launches_nothing() -> None:
    for row in (replace(ROW, control=None), replace(ROW, counters={"num_drafts": 0}), BENCHMARK):
        made = _trial(_record(a=row), _record(a=row), replace(RULES, self_test=True))
        assert made.findings() == [
            Finding(SUITE, 0, ERROR, "no row has a control and a draft that could be slowed down; select some of ours")
        ]
        assert cast(_Told, made.launcher).calls == []


def test_the_trial_takes_a_launcher() -> None:
    """What the tests above tell it is what a launcher has."""
    assert {"measure", "root"} <= set(dir(Launcher))
    assert {"lacking", "layers"} <= set(Launcher.__dataclass_fields__)
