"""The document of a run: its sections in their order, what each holds, and one generation of each strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchsuite.measure.arms import Arm
from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Text
from benchsuite.measure.weights import Weights
from benchsuite.report import tables
from benchsuite.report.answer import answers
from benchsuite.report.document import Code, Document, Generations, Section
from benchsuite.report.generation import ShownToken, generation
from benchsuite.report.renderers import markdown, terminal
from benchsuite.report.speculation import REPEAT, speculation_document
from benchsuite.tests.report.made import (
    AGAIN,
    NGRAM,
    PARTS,
    PEER,
    PLAIN,
    lines_shown,
    made_cell,
    made_outcome,
    made_row,
    plots_of,
    run_of_cells,
    tables_of,
    texts_of_table,
)
from benchsuite.tests.rig import SETTING
from specdec.stats import RowStep

MINE = Arm(SETTING, "garbage", k=2, name="mine")
SECONDS = {PLAIN: [1.0] * 3, AGAIN: [1.0] * 3, MINE: [2.0] * 3, NGRAM: [0.5] * 3, PEER: [0.25] * 3}


@pytest.fixture(scope="module")
def run_results() -> Results:
    """A strategy that is twice as fast as plain, one half as fast, and a peer, on two workloads."""
    made = run_of_cells(
        made_cell(SETTING.replaced(workload="chat"), SECONDS, Text(0.5, 1.5)),
        made_cell(
            SETTING.replaced(workload="code_editing"),
            SECONDS,
            made={"time": "2026-11-29T00:00:00+0100", "commit": "beef"},
        ),
    )
    made.card, made.said = ["a card"], ["how precise"]
    made.weights = [Weights("tiny", "int8", 2**30, 2**32, 11.0, 10.0, 7)]
    return made.results()


def sections_of(document: Document) -> dict[str, Section]:
    """The sections that show something, by their titles, in their order."""
    shown = {line.removeprefix("## ") for line in markdown(document).splitlines() if line.startswith("## ")}
    return {section.title: section for section in document.sections if section.title in shown}


TITLE = "tiny, cpu, float32, batch 1, 24 tokens"


def test_a_run_is_shown_by_setting_then_how_precise_and_how_it_was_measured(run_results: Results) -> None:
    document = speculation_document(run_results, {"command": ["pytest", "a b"]})
    assert (document.title, document.lead) == ("Speculative decoding", answers(run_results))
    found = sections_of(document)
    assert list(found) == [TITLE, "Precision", "How this was measured", "Columns"]
    assert [title for title, section in found.items() if section.detail] == ["How this was measured", "Columns"]
    assert lines_shown(found["Precision"]) == ["how precise", tables.success(run_results.rows)]
    assert texts_of_table(tables_of(found["Precision"])[0])[0]["GiB"] == "1.000"
    assert lines_shown(found["How this was measured"]) == [
        "a card",
        "measured 2026-11-28 09:30:15 to 2026-11-29 00:00:00, commit beef, c0ffee",
        REPEAT,
    ]
    assert [part.text for part in found["How this was measured"].parts if isinstance(part, Code)] == ["pytest 'a b'"]
    assert lines_shown(found["Columns"]) == tables.meanings()
    without = sections_of(speculation_document(run_results))["How this was measured"]
    assert not any(isinstance(part, Code) for part in without.parts)


def test_a_settings_section_has_its_tables_over_all_workloads_and_every_row_below(run_results: Results) -> None:
    section = sections_of(speculation_document(run_results))[TITLE]
    heat, *whole, contrasts, every = tables_of(section)
    assert heat.headers == ["arm", "policy K", "chat", "code", "all"]
    assert [row[0].text for row in heat.cells] == [
        *("plain *", "plain again", "mine", "ngram", "transformers prompt lookup", "copy rate", "entropy, bits"),
    ]
    assert [cell.text for cell in heat.cells[3][2:]] == ["2.00x?", "2.00x?", "2.00x"]
    assert [table.title for table in whole] == ["Speed", "Contract and latency", "Why", "Where the time goes"]
    for table, columns in zip(whole, (tables.SPEED, tables.LATENCY, tables.REASONS, tables.SHARES), strict=True):
        assert table.headers == [column.header for column in columns]
        assert [row[0].text for row in table.cells] == [row[0].text for row in heat.cells[:-2]]
        assert not table.detail
    speed = {row["arm"]: row for row in texts_of_table(whole[0])}
    assert {name: (row["tok/s"], row["speedup"]) for name, row in speed.items()} == {
        "plain *": ("10.0", "1.00x"),
        "plain again": ("10.0", "1.00x"),
        "mine": ("5.0", "0.50x"),
        "ngram": ("20.0", "2.00x"),
        "transformers prompt lookup": ("40.0", "4.00x"),
    }
    assert [[cell.text for cell in row][1:] for row in contrasts.cells][3] == ["2.00x", "2.00x", "4.00x", "-", "0.50x"]
    assert every.headers == [
        *tables.SPEED[0:1][0].header.split(),
        "workload",
        *(one.header for one in tables.SPEED[1:]),
    ]
    assert [(row["arm"], row["workload"]) for row in texts_of_table(every)[::5]] == [
        ("plain *", "chat"),
        ("plain *", "code_editing"),
    ]
    assert (every.title, every.detail, len(every.rows)) == ("Every row", True, 10)
    said = lines_shown(section)
    assert said == [*tables.LEGEND, *tables.notes(run_results.pooled, run_results.rows)]
    assert plots_of(section)


def test_a_terminal_shows_the_tables_and_the_answer_and_leaves_the_rest_to_the_files(run_results: Results) -> None:
    lines = terminal(speculation_document(run_results, {"command": ["pytest"]}))
    assert lines[0] == "Speculative decoding"
    text = "\n".join(lines)
    for words in ("Speed:", "Why:", "how precise", "1.000"):
        assert words in text
    for words in ("Every row", "How this was measured", "a card", "faster than", "copy rate: share"):
        assert words not in text


def test_contracts_that_failed_stand_before_everything_else(run_results: Results) -> None:
    failed = [replace(row, failure=f"{row.arm.id} differs") for row in run_results.rows[3:5]]
    rows = (*run_results.rows[:3], *failed)
    found = sections_of(speculation_document(replace(run_results, rows=rows)))
    assert next(iter(found)) == "Contracts that failed"
    assert lines_shown(found["Contracts that failed"]) == [row.failure for row in failed]
    assert found["Contracts that failed"].detail


def test_a_run_that_measured_nothing_says_so() -> None:
    document = speculation_document(Results(card=("a card",)))
    assert document.lead == ["Nothing was measured."]
    assert lines_shown(sections_of(document)["How this was measured"]) == [
        "a card",
        "measured never, commit unknown",
        REPEAT,
    ]
    assert "Precision" not in sections_of(document)


def test_one_moment_and_one_unknown_commit_are_named_once() -> None:
    results = run_of_cells(made_cell(SETTING, {PLAIN: [1.0]}, made={"commit": None})).results()
    lines = lines_shown(speculation_document(results))
    assert "measured 2026-11-28 09:30:15, commit unknown" in lines


def test_several_batches_have_a_plot_of_their_own(run_results: Results) -> None:
    rows = [
        made_row(Arm(SETTING.replaced(batch=batch).without_workload, "ngram", k=4), 1.5, tpot_ms=9.0, tokens_per_s=5.0)
        for batch in (1, 2)
    ]
    settings = tuple(SettingResults(row.arm.setting, (), (), (row,)) for row in rows)
    document = speculation_document(Results(settings))
    [plot] = plots_of(next(section for section in document.sections if section.title == "Batches"))
    assert plot.title == "Latency against throughput"
    assert all(plots_of(one) == [] for one in speculation_document(run_results).sections if one.title == "Batches")


@pytest.mark.parametrize("cells", [[], [{"label": "ngram", "batch": 1, "predicted": 1.5, "measured": 1.25}]])
def test_predictions_have_a_section_if_a_cell_was_predicted(cells: list[dict[str, Any]], run_results: Results) -> None:
    cells = [one | {"workload": "chat"} for one in cells]
    predicted = {"cells": cells, "arms": [], "said": [], "advice": []}
    titles = [section.title for section in speculation_document(run_results, None, predicted).sections]
    assert ("Predicted and measured" in titles) is bool(cells)
    assert "Predicted and measured" not in [one.title for one in speculation_document(run_results).sections]


def outputs_of(results: Results) -> Mapping[str, Any]:
    """The generations of a run, by their names in their order."""
    found = [part for section in speculation_document(results).sections for part in section.parts]
    return {name: tokens for part in found if isinstance(part, Generations) for name, tokens in part.outputs}


def test_generations_are_of_the_first_prompt_and_the_fastest_that_can_be_recommended_is_first(
    run_results: Results,
) -> None:
    """A strategy that replays is fast and comes last; peers, and what has no speedup, have none."""
    [one] = run_results.settings
    assert list(outputs_of(run_results)) == ["ngram, match 4, chat", "mine, chat"]
    replayed = [
        replace(row, figures=replace(row.figures, marks=("replays",))) if row.arm.draft == "ngram" else row
        for row in one.pooled
    ]
    again = Results((replace(one, pooled=tuple(replayed)),))
    assert list(outputs_of(again)) == ["mine, chat", "ngram, match 4, chat"]
    unknown = [replace(row, figures=replace(row.figures, speedup=None)) for row in one.pooled]
    assert outputs_of(Results((replace(one, pooled=tuple(unknown)),))) == {}
    tokens = outputs_of(run_results)["ngram, match 4, chat"]
    assert [token.text for token in tokens] == [f"<{n}>" for n in range(10)]


def test_a_strategy_that_was_not_run_on_the_first_workload_has_no_generation() -> None:
    """Nor has one that failed there."""
    later = {PLAIN: [1.0], NGRAM: [0.5], MINE: [0.25]}
    results = run_of_cells(
        made_cell(SETTING, {PLAIN: [1.0], NGRAM: [0.5]}),
        made_cell(SETTING.replaced(workload="code"), later),
    ).results()
    assert list(outputs_of(results)) == ["ngram, match 4, chat"]
    [one] = results.settings
    died = replace(one.cells[0].series[NGRAM], outcomes=[], units=[])
    cell = replace(one.cells[0], series={**one.cells[0].series, NGRAM: died})
    assert outputs_of(Results((replace(one, cells=(cell, one.cells[1])),))) == {}


def test_batches_have_no_generation() -> None:
    setting = SETTING.replaced(batch=2)
    results = run_of_cells(made_cell(setting, {PLAIN: [1.0], NGRAM: [0.5]})).results()
    assert outputs_of(results) == {}


def test_every_token_says_how_it_came_to_be_there_and_what_its_step_took() -> None:
    """A chain of two: both kept and a bonus; one kept and one recovered; none kept. A tree of five nodes, two deep:
    a bonus only where its deepest was kept. A step without proposals is plain decoding's. Each step takes 1 s."""
    steps = [
        RowStep(2, 2, 2, 3),
        RowStep(2, 2, 1, 2),
        RowStep(2, 2, 0, 1),
        RowStep(5, 2, 1, 2),
        RowStep(5, 2, 2, 3),
        RowStep(0, 0, 0, 1),
    ]
    outcome = made_outcome(6.0, steps)
    control, _, propose, target, accept, commit, _, observe, _ = (1e3 * share for share in PARTS)
    host = 1e3 * (PARTS[1] + PARTS[6] + PARTS[8])
    parts = (
        f"draft {propose + observe + control:.2f} ms, target {target:.2f} ms, accept {accept:.2f} ms, "
        f"commit {commit:.2f} ms, host {host:.2f} ms"
    )
    told = ["2 of 2", "1 of 2", "0 of 2", "1 of 5", "2 of 5"]
    said = [f"step {n}: {words} proposals accepted; {parts}" for n, words in enumerate(told, 1)]
    said.append(f"step 6: nothing proposed; {parts}")
    kinds = [
        *(["accepted", "accepted", "bonus"], ["accepted", "recovered"], ["recovered"], ["accepted", "recovered"]),
        *(["accepted", "accepted", "bonus"], ["plain"]),
    ]
    expected = [(kind, number) for number, found in enumerate(kinds, 1) for kind in found]
    pieces = {token: chr(ord("a") + token) for token in range(11)}
    assert generation(outcome, pieces) == [
        ShownToken(pieces.get(token, "�"), kind, number, said[number - 1])
        for token, (kind, number) in enumerate(expected)
    ], "the twelfth token has no text"


def test_a_generation_ends_with_its_request_though_the_last_step_would_emit_more() -> None:
    outcome = made_outcome(2.0, [RowStep(2, 2, 2, 3), RowStep(2, 2, 2, 3)])
    cut = replace(outcome, tokens=[outcome.tokens[0][:4]])
    assert [token.kind for token in generation(cut, {})] == ["accepted", "accepted", "bonus", "accepted"]
    assert generation(replace(outcome, stats=None), {}) == []
