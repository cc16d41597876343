"""Runs compared, their history, and results of other programs: what a reader of the tables and plots sees."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest

from benchsuite.compare.changes import MARKS, changes, summary
from benchsuite.compare.sides import ComparedSide, Figures
from benchsuite.foreign.files import ForeignFile, ForeignRun
from benchsuite.foreign.glossary import FORMATS, WORDS
from benchsuite.report.compared import comparison_document, comparisons, history_document
from benchsuite.report.document import TableCell
from benchsuite.report.foreign import foreign_document
from benchsuite.tests.report.made import lines_shown, plots_of, tables_of, texts_of_table

OTHERS = [0.001 * (-1) ** n for n in range(8)]


def eight_prompts(speedup: float, **other: object) -> Figures:
    """Figures of eight prompts that are so many times as fast as plain, with an interval of 2 % around it."""
    logs = {"chat": [log(speedup) + x for x in OTHERS]}
    found = Figures(speedup, speedup / 1.02, speedup * 1.02, logs)
    return replace(found, **other)  # type: ignore[arg-type]


BEFORE = {
    "faster": eight_prompts(1.25),
    "slower": eight_prompts(1.5),
    "same": eight_prompts(1.5),
    "broken": eight_prompts(1.5),
    "mended": eight_prompts(1.5, failure="it differed\nmore"),
    "gone": eight_prompts(1.75),
    "other": eight_prompts(1.5, same={"units": 8}),
    "counted": eight_prompts(1.5, counted={"tau": 2.0}),
}
NOW = {
    "new": eight_prompts(2.0),
    "faster": eight_prompts(1.5),
    "slower": eight_prompts(1.2),
    "same": eight_prompts(1.5),
    "broken": Figures(None, failure="it differs\nmore"),
    "mended": eight_prompts(1.5),
    "other": eight_prompts(1.5, same={"units": 9}),
    "counted": eight_prompts(1.5, counted={"tau": 1.5}),
}
BASE, HEAD = ComparedSide("base", {"time": "2", "commit": "c1"}, BEFORE), ComparedSide("head", {"time": "1"}, NOW)


@pytest.mark.parametrize("every", [True, False])
def test_a_row_of_a_comparison_has_its_mark_its_speeds_their_ratio_and_what_else_changed(every: bool) -> None:
    document = comparison_document([BASE, HEAD, HEAD], every)
    card, one, again, legend = document.sections
    assert (document.title, lines_shown(card)) == ("Runs compared", [side.title for side in (BASE, HEAD, HEAD)])
    assert (one.title, again) == ("base → head", one)
    found = changes(BASE, HEAD)
    shown = [change for change in found if every or change.row != "same"]
    [table] = tables_of(one)
    assert table.headers == ("", "row", "before", "now", "ratio", "95 % interval", "what else")
    cells = {row["row"]: row for row in texts_of_table(table)}
    assert list(cells) == [change.row for change in shown]
    assert {row: cells[row][""] for row in cells} == {change.row: MARKS[change.kind] for change in shown}
    values = {name: tuple(cells[name].values())[2:] for name in cells}
    assert values["new"] == ("-", "2.00x", "-", "-", "")
    assert values["gone"] == ("1.75x", "-", "-", "-", "")
    assert values["broken"] == ("1.50x", "-", "-", "-", "it differs")
    assert values["mended"] == ("1.50x", "1.50x", "-", "-", "it differed")
    slower = next(change for change in found if change.row == "slower")
    assert slower.low is not None
    assert slower.high is not None
    assert values["slower"] == ("1.50x", "1.20x", "0.800", f"{slower.low:.3f}-{slower.high:.3f}", "")
    assert values["counted"][-1] == "tau 2 → 1.5"
    tones = {change.row: row[0] for change, row in zip(shown, table.cells, strict=True)}
    assert tones["faster"] == TableCell(MARKS["faster"], "good", "faster")
    assert tones["slower"].tone == tones["broken"].tone == "bad"
    assert {tones[row].tone for row in ("new", "gone", "mended", "other", "counted")} == {""}
    assert all(tones[change.row].hint == change.kind for change in shown)
    assert lines_shown(one) == [summary(found) + ("" if every else " (all of them: --all)")]
    [marks] = lines_shown(legend)
    assert marks.split(", ") == [f"{mark} {kind}" for kind, mark in MARKS.items() if mark != " "]


def test_each_side_after_the_first_is_compared_with_the_first() -> None:
    third = ComparedSide("third", {}, BEFORE)
    found = comparisons([BASE, HEAD, third], every=False)
    assert [(title, told) for title, _, told in found] == [
        ("base → head", summary(changes(BASE, HEAD))),
        ("base → third", summary(changes(BASE, third))),
    ]
    assert found[1][1] == [change for change in changes(BASE, third) if change.changed]


def test_a_history_has_a_plot_of_every_row_with_a_point_of_each_run_that_has_it() -> None:
    """Runs in the order of their times, one without a time first; a row that never had a speed has no plot."""
    sides = [
        ComparedSide("late", {"time": "2026-11-02"}, {"a": eight_prompts(1.5), "b": Figures(2.0), "c": Figures(None)}),
        ComparedSide("early", {"time": "2026-11-01"}, {"a": Figures(None), "b": eight_prompts(1.75)}),
        ComparedSide("unknown", {}, {"a": eight_prompts(1.25, low=None)}),
    ]
    document = history_document(sides)
    assert document.title == "History of 3 runs"
    unknown, early, late = sides[2], sides[1], sides[0]
    assert lines_shown(document) == [f"1: {unknown.title}", f"2: {early.title}", f"3: {late.title}"]
    first, second = plots_of(document)
    assert [plot.title for plot in (first, second)] == ["a", "b"]
    [trace] = first.traces
    assert trace.points == [(1.0, 1.25), (3.0, 1.5)]
    assert trace.bars == [(1.25, 1.25 * 1.02), (1.5 / 1.02, 1.5 * 1.02)]
    assert trace.said == [f"{unknown.title}: 1.25x", f"{late.title}: 1.50x"]
    assert (trace.name, trace.number, trace.joined) == ("a", 0, True)
    assert second.traces[0].points == [(2.0, 1.75), (3.0, 2.0)]
    assert second.traces[0].bars == [(1.75 / 1.02, 1.75 * 1.02), (2.0, 2.0)]
    for plot, last in ((first, "1.50x"), (second, "2.00x")):
        assert plot.note.endswith(f"the last: {last}.")
        assert (plot.x, plot.y, plot.level, plot.whole, plot.zero) == (
            "run",
            "speedup",
            (1.0, "the baseline"),
            True,
            False,
        )


def test_a_foreign_result_has_a_line_for_each_word_that_a_run_has_and_a_column_for_each_run() -> None:
    """Units are ours; the place there is named with its unit where that is another."""
    figures = {"ttft_ms": 12.3456789, "requests": 6, "acceptance_histogram": {"0": 3, "2": 1}, "e2e_s": 1.5}
    per = {"counters.num_accepted_tokens_per_pos": [3, 2, 1]}
    runs = (
        ForeignRun("one", figures, ("a.b", "c", "a.d.e")),
        ForeignRun("two", per | {"requests": None}),
        ForeignRun("three", {}, ("z",)),
    )
    document = foreign_document(ForeignFile("vllm", None, runs, ("a note",)))
    [table] = tables_of(document)
    assert table.headers == ["figure", "unit", "one", "two", "three", FORMATS["vllm"]]
    rows = {row["figure"]: row for row in texts_of_table(table)}
    assert list(rows) == [word.name for word in WORDS if word.name in {**figures, **per}]
    assert {name: (row["one"], row["two"], row["three"]) for name, row in rows.items()} == {
        "ttft_ms": ("12.3457", "", ""),
        "requests": ("6", "", ""),
        "acceptance_histogram": ("0:3 2:1", "", ""),
        "e2e_s": ("1.5", "", ""),
        "counters.num_accepted_tokens_per_pos": ("", "3 2 1", ""),
    }
    for word in WORDS:
        if word.name in rows:
            place = word.places.get("vllm")
            theirs = rows[word.name][FORMATS["vllm"]]
            assert rows[word.name]["unit"] == word.unit
            assert theirs.partition(" ")[0] == (place.path if place else "")
            assert ("(in " in theirs) is bool(place and place.unit != word.unit)
            if place and place.unit != word.unit and not place.per:
                assert theirs.endswith(f" (in {place.unit})")
            if place and place.per:
                assert theirs.endswith(f" (in shares of {place.per})")
    assert lines_shown(document) == ["a note", "one: not read: a (2), c", "three: not read: z"]
    page = foreign_document(ForeignFile("a server", None, (ForeignRun("server", {"requests": 3}),)))
    assert tables_of(page)[0].headers[-1] == "a server"
    assert texts_of_table(tables_of(page)[0]) == [
        {"figure": "requests", "unit": rows["requests"]["unit"], "server": "3", "a server": ""}
    ]


def test_all_units_of_another_format_are_named_where_they_differ() -> None:
    """Of every word and format, whether its place keeps another unit or shares of another figure."""
    for format_ in FORMATS:
        run = ForeignRun("one", {word.name: 1 for word in WORDS})
        [table] = tables_of(foreign_document(ForeignFile(format_, None, (run,))))
        for word, row in zip(WORDS, table.rows, strict=True):
            place = word.places.get(format_)
            unit = f" (in {f'shares of {place.per}' if place.per else place.unit})" if place else ""
            assert row[-1] == ("" if place is None else place.path + (unit if place.unit != word.unit else ""))


def test_a_change_of_a_thousandth_has_three_decimals() -> None:
    sides = [
        ComparedSide(name, {}, {"row": eight_prompts(speedup)})
        for name, speedup in (("a", 1.5), ("b", 1.5 * exp(0.03)))
    ]
    [row] = texts_of_table(tables_of(comparison_document(sides, every=True))[0])
    assert (row["ratio"], row["before"], row["now"]) == ("1.030", "1.50x", "1.55x")
