"""Runs that are compared: which rows a file has, what each is compared by, and how values are told."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from benchsuite.compare.changes import MARKS, Change, changes, summary
from benchsuite.compare.sides import SHARED, ComparedSide, Figures, read_side
from benchsuite.gate.record import DECODE, FIRST, FigureTimes, GatedRow, Launch, Record
from benchsuite.measure.figures import KEYS
from benchsuite.store.journal import Journal, manifest
from benchsuite.tests.report.made import AGAIN, NGRAM, PLAIN, made_cell
from benchsuite.tests.rig import SETTING
from specdec.errors import SpecdecError


def side(**rows: Figures) -> ComparedSide:
    """A run with these rows."""
    return ComparedSide("a", {}, rows)


def one_change(before: Figures, now: Figures) -> Change:
    """The change of a row."""
    [found] = changes(side(row=before), side(row=now))
    return found


@pytest.mark.parametrize(
    ("made", "title"),
    [
        ({}, "a: commit unknown, an unknown processor, at an unknown time"),
        ({"commit": None, "machine": None}, "a: commit unknown, an unknown processor, at an unknown time"),
        (
            {"commit": "0123456789abcdef", "machine": {"processor": "X"}, "time": "now"},
            "a: commit 0123456789ab, X, now",
        ),
        ({"machine": "an old name"}, "a: commit unknown, an old name, at an unknown time"),
    ],
)
def test_a_run_is_told_by_its_commit_its_processor_and_its_time(made: dict[str, Any], title: str) -> None:
    assert ComparedSide("a", made, {}).title == title


def test_changes_are_in_the_order_of_the_newer_run_with_those_that_are_gone_at_the_end() -> None:
    before = side(gone=Figures(3.0), b=Figures(1.0), a=Figures(1.0))
    now = side(a=Figures(2.0), new=Figures(4.0), b=Figures(1.5))
    found = changes(before, now)
    assert [(one.row, one.kind, one.before, one.now) for one in found] == [
        ("a", "too few units", 1.0, 2.0),
        ("new", "new", None, 4.0),
        ("b", "too few units", 1.0, 1.5),
        ("gone", "gone", 3.0, None),
    ]
    assert [one.ratio for one in found] == [2.0, None, 1.5, None]
    assert summary(found) == "4 rows: 2 too few units, 1 new, 1 gone"
    assert [mark for mark in MARKS.values() if len(mark) != 1] == []


def test_a_row_that_fails_is_told_with_both_speeds_and_the_first_line_of_its_failure() -> None:
    works, fails = Figures(2.0), Figures(None, failure="BUG: one\nmore")
    found = one_change(works, fails)
    assert (found.kind, found.before, found.now, found.also) == ("fails now", 2.0, None, "BUG: one")
    found = one_change(fails, works)
    assert (found.kind, found.before, found.now, found.also) == ("works again", None, 2.0, "BUG: one")
    found = one_change(replace(works, same={"k": 1}), replace(works, speedup=3.0, same={"k": 2}))
    assert (found.kind, found.before, found.now, found.ratio) == ("not comparable", 2.0, 3.0, None)
    assert one_change(works, Figures(None)).kind == one_change(Figures(None), works).kind == "no speed"
    assert one_change(Figures(None), works).now == 2.0
    counted = one_change(Figures(None, counted={"tau": 1.0}), replace(works, counted={"tau": 2.0}))
    assert (counted.kind, counted.also, counted.changed) == ("no speed", "tau 1 → 2", True)
    assert one_change(works, Figures(None)).before == 2.0


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        (Figures(1.0, 0.99, 1.01), Figures(1.1, 1.09, 1.11), "faster"),
        (Figures(1.1, 1.09, 1.11), Figures(1.0, 0.99, 1.01), "slower"),
        (Figures(1.0, 0.9, 1.1), Figures(1.1, 1.0, 1.2), "within noise"),
        (Figures(1.0, 0.99, 1.01, noise=0.08), Figures(1.1, 1.09, 1.11, noise=0.06), "within noise"),
        (Figures(1.0, 0.99, 1.01, noise=0.07), Figures(1.1, 1.09, 1.11, noise=0.06), "faster"),
        (Figures(1.0, None, 1.01), Figures(1.1, 1.09, 1.11), "too few units"),
        (Figures(1.0, 0.99, 1.01), Figures(1.1, 1.09, None), "too few units"),
        (Figures(1.0, 0.99, None), Figures(1.1, None, 1.11), "too few units"),
        (Figures(1.0, 1.0, 1.0), Figures(2.0, 1.0, 4.0), "within noise"),
        (Figures(2.0, 1.0, 4.0), Figures(1.0, 1.0, 1.0), "within noise"),
        (Figures(1.0, 0.99, 1.01, noise=log(2)), Figures(2.0, 1.99, 2.01), "within noise"),
    ],
)
def test_a_change_is_one_if_its_interval_and_the_noise_of_plain_decoding_say_so(
    before: Figures, now: Figures, kind: str
) -> None:
    """ln 1.1 is 0.095; noises of 0.08 and 0.06 together are 0.1, of 0.07 and 0.06 together 0.092. A bound is inside."""
    found = one_change(before, now)
    assert (found.kind, found.ratio) == (kind, pytest.approx(now.speedup / before.speedup))  # type: ignore[operator]


def test_units_are_paired_only_where_both_runs_have_the_same_ones() -> None:
    logs = [0.1, 0.9, 0.3, 0.7, 0.5, 0.2, 0.8, 0.4]
    wide = Figures(exp(0.4875), 1.0, 2.6, {"chat": logs})
    moved = replace(wide, logs={"chat": [x - 0.03 for x in logs]}, speedup=exp(0.4575))
    assert one_change(wide, moved).kind == "slower"
    assert one_change(wide, replace(moved, logs={"chat": moved.logs["chat"][1:]})).kind == "within noise"
    assert one_change(wide, replace(moved, logs={"other": moved.logs["chat"]})).kind == "within noise"
    assert one_change(replace(wide, logs={}), replace(moved, logs={})).kind == "within noise"


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (1.23456, 2.0, "x 1.23 → 2"),
        (1.0, 1.0 + 1e-12, ""),
        (1.0, 1.0 + 1e-8, "x 1 → 1"),
        (None, 7, "x none → 7"),
        (None, 2.5, "x none → 2.5"),
        (2.5, "a", "x 2.5 → a"),
        ("0" * 20, "1" * 21, f"x {'0' * 20} → {'1' * 19}…"),
        (4, 4.0, ""),
        (3, 4.0, "x 3 → 4"),
    ],
)
def test_values_are_told_briefly_and_floats_that_differ_by_their_rounding_are_equal(
    before: Any, now: Any, told: str
) -> None:
    """What only one of two sources knows is no difference."""
    one, other = (Figures(1.0, counted={"x": x, name: 1}) for x, name in ((before, "old"), (now, "new")))
    found = one_change(one, other)
    assert found.also == told
    assert found.changed == bool(told)
    two = one_change(one, replace(other, counted={"x": now, "old": 2}))
    assert two.also == ", ".join(filter(None, (told, "old 1 → 2")))


def saved_baseline(path: Path, rows: dict[str, GatedRow]) -> ComparedSide:
    """A baseline file, read."""
    Record({"commit": "c", "time": "now"}, rows).save(path)
    return read_side(str(path))


def test_a_row_of_a_baseline_is_as_fast_as_its_launches_on_average_and_compared_by_its_work(tmp_path: Path) -> None:
    """By hand: launches of twice and eight times the control's speed, the mean of whose logs is that of four."""
    times = [Launch({DECODE: FigureTimes((1.0,) * 2, (-x, -x - 0.2))}) for x in (0.6, 2.0)]
    slow = Launch({FIRST: FigureTimes((1.0,), (5.0,))})
    alone = Launch({DECODE: FigureTimes((1.0,))})
    row = GatedRow({"seed": 1}, {"prompts": "p"}, "plain", "d", "d", True, {"n": 1}, {}, (*times, slow, alone))
    found = saved_baseline(tmp_path / "x.json", {"a": row, "b": replace(row, launches=(slow, alone))})
    assert found.made == {"commit": "c", "time": "now"}
    a, b = found.rows["a"], found.rows["b"]
    assert a.speedup == pytest.approx(exp((0.7 + 2.1) / 2))
    assert (a.low, a.high) == (None, None)
    assert a.counted == {"n": 1, "emitted_digest": "d"}
    assert a.same == {"seed": 1, "prompts": "p", "control": "plain"}
    assert b == replace(a, speedup=None)
    many = saved_baseline(tmp_path / "y.json", {"a": replace(row, launches=tuple(times * 4))}).rows["a"]
    assert many.low is not None
    assert many.high is not None
    assert many.low < exp(1.4) < many.high


def benchmark_row(setting: str, **given: Any) -> dict[str, Any]:
    """The figures of a row."""
    usual = {"speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6, "verdict": "faster", "draft": "ngram"}
    return {**dict.fromkeys(KEYS), "setting": setting, **usual, **given}


def file_of_benchmarks(path: Path, rows: dict[str, dict[str, Any]], **beside: Any) -> ComparedSide:
    """A file of pytest-benchmark, read; ``rows`` by the names of their tests."""
    every = [{"name": name, "extra_info": info} for name, info in rows.items()]
    path.write_text(
        json.dumps({"benchmarks": [*every, {"name": "other"}, {"name": "more", "extra_info": {}}], **beside})
    )
    return read_side(str(path))


def test_rows_of_pytest_benchmark_are_named_by_their_parameters_and_plains_are_left_out(tmp_path: Path) -> None:
    rows = {
        "test_speculation[a-ngram]": benchmark_row(
            "a", tau=2.0, acceptance_rate=0.5, emitted_digest="d", units=8, baseline="b"
        ),
        "alone": benchmark_row("a", draft="suffix"),
        "test_speculation[a-plain]": benchmark_row("a", draft=None, verdict="baseline", emitted_digest="p"),
        "test_speculation[b-plain]": benchmark_row("b", draft=None, verdict="baseline", emitted_digest="q"),
        "test_speculation[a-again]": benchmark_row(
            "a", draft="plain again", speedup_low=exp(-0.2), speedup_high=exp(0.1)
        ),
        "test_speculation[b-again]": benchmark_row("b", draft="plain again", speedup_low=None, speedup_high=None),
        "test_speculation[late[0]]": benchmark_row("a", draft="last"),
    }
    beside = {"commit_info": {"id": "c"}, "datetime": "then", "machine_info": {"cpu": {"brand_raw": "X"}}}
    found = file_of_benchmarks(tmp_path / "b.json", rows, **beside)
    assert found.title == f"{tmp_path / 'b.json'}: commit c, X, then"
    assert [*found.rows] == ["a-ngram", "alone", "a-again", "b-again", "late[0]"]
    row = found.rows["a-ngram"]
    assert (row.speedup, row.low, row.high, row.logs, row.failure) == (1.5, 1.4, 1.6, {}, None)
    assert row.counted == {"tau": 2.0, "acceptance_rate": 0.5, "emitted_digest": "d"}
    assert row.same == {"units": 8, "baseline": "b", "plain's output": "p", **dict.fromkeys(SHARED)}
    assert row.noise == pytest.approx(0.2)
    assert found.rows["b-again"].noise == 0.0
    assert found.rows["b-again"].same["plain's output"] == "q"
    less = file_of_benchmarks(tmp_path / "b.json", {"x[y]": benchmark_row("a")})
    assert less.title.endswith(": commit unknown, an unknown processor, None")
    assert less.rows["y"].same["plain's output"] is None
    assert less.rows["y"].noise == 0.0


def test_a_file_is_refused_by_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text, says in (
        ("{", r"x\.json is no JSON .*; expected a folder of results"),
        ('{"rows": []}', "has neither benchmarks nor a baseline of the gate; expected a folder of results"),
        ('{"benchmarks": [{"name": "a"}]}', "has no benchmark of specdec-bench; run pytest"),
        ('{"format": "specdec-gate"}', r"x\.json: the baseline .* is corrupt"),
    ):
        file.write_text(text)
        with pytest.raises(SpecdecError, match=says):
            read_side(str(file))


def test_a_folder_has_a_row_for_each_text_and_one_over_all_with_the_logs_of_their_ratios(tmp_path: Path) -> None:
    """By hand: plain takes a second for each of three prompts, and against itself two percent more or less."""
    other = SETTING.replaced(workload="code")
    seconds = {"chat": [0.5, 0.25, 0.5], "code": [2.0, 1.0, 0.5]}
    journal = Journal.begin(tmp_path / "run", manifest({"baseline": "plain", "target": "tiny"}))
    for place, setting in enumerate((SETTING, other)):
        times = {PLAIN: [1.0] * 3, AGAIN: [1.0, 1.02, 0.98], NGRAM: seconds[setting.workload]}
        journal.keep(replace(made_cell(setting, times), place=place))
    found = read_side(str(tmp_path))
    assert (found.name, found.made) == (str(tmp_path), journal.said)
    names = {kind: replace(NGRAM, setting=SETTING.replaced(workload=kind)).id for kind in ("chat", "code", "all")}
    assert {name for name in found.rows if "again" not in name} == {*names.values()}, "plain is what they are over"
    logs = {kind: [log(1 / one) for one in each] for kind, each in seconds.items()}
    for kind, expected in (("chat", ["chat"]), ("code", ["code"]), ("all", ["chat", "code"])):
        row = found.rows[names[kind]]
        assert row.logs == {one: pytest.approx(logs[one]) for one in expected}
        assert row.failure is None
        mean = sum(sum(logs[one]) / 3 for one in expected) / len(expected)
        assert row.speedup == pytest.approx(exp(mean))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecdecError, match="empty holds no results; expected a folder of results"):
        read_side(str(tmp_path / "empty"))
