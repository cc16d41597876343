"""The report: its first sentence claims no more than was measured, and its plots show the rows' own figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.results import Results
from benchsuite.measure.session import Bench
from benchsuite.report import pictures
from benchsuite.report.answer import answers
from benchsuite.report.document import Document, Plots, Section
from benchsuite.report.files import comparison_files
from benchsuite.report.generation import generation
from benchsuite.report.plots import Plot, Scale, Trace
from benchsuite.report.renderers import page, picture
from benchsuite.report.speculation import speculation_document
from benchsuite.report.tables import STEPS
from benchsuite.tests.rig import SETTING


@pytest.fixture(scope="module")
def reported() -> Results:
    """Two workloads with a lookup, a useless draft, and a replayer."""
    made = Bench(MeasuringPlan(prompts=4))
    strategies: list[dict[str, Any]] = [
        {"draft": "ngram", "k": 4, "name": "fast"},
        {"draft": "garbage", "k": 2},
        {"draft": "oracle(0.8)", "k": 4},
        {"peer": "transformers"},
    ]
    settings = [SETTING.replaced(workload=name, max_new_tokens=12) for name in ("chat", "reasoning")]
    made.prepare([Arm(setting, **strategy) for setting in settings for strategy in strategies])
    for arm in made.arms:
        made.row(arm, lambda what: None)
    return made.results()


def claimed(reported: Results, **changed: dict[str, Any]) -> str:
    """The answer where the pooled rows of the drafts named have other figures than they had."""
    fine: dict[str, Any] = {
        "speedup": 1.5,
        "speedup_low": 1.4,
        "speedup_high": 1.6,
        "verdict": "faster",
        "not_comparable": None,
    }
    rows = []
    [measured] = reported.settings
    for row in measured.pooled:
        name = (row.arm.draft or "").partition("(")[0]
        given = fine | {"speedup": {"ngram": 1.5, "garbage": 1.2}.get(name, 9.0)} | changed.get(name, {})
        rows.append(replace(row, figures=replace(row.figures, **given)) if row.arm.draft else row)
    return answers(Results((replace(measured, cells=(), rows=(), pooled=tuple(rows)),)))[0]


@pytest.mark.slow
def test_the_answer_never_recommends_a_replayer(reported: Results) -> None:
    assert "oracle" not in claimed(reported)


@pytest.mark.slow
def test_where_nothing_can_be_recommended_the_reason_of_each_strategy_is_given(reported: Results) -> None:
    worse: dict[str, Any] = {"not_comparable": "lengths"}
    assert claimed(reported, ngram=worse, garbage={"contract": "lossy"}) == (
        "On this machine nothing can be recommended: 1 could not be compared with plain, 1 promised no contract that "
        "keeps the target's outputs, 1 replayed plain's own output, over 2 workloads."
    )


@pytest.mark.slow
def test_every_plot_of_a_run_has_data_and_lies_inside_its_frame(reported: Results) -> None:
    plots = pictures.pictures(reported.settings[0])
    assert len(plots) == 5
    for plot in plots:
        drawn = plot.drawn()
        left, top, right, bottom = drawn["frame"]
        marks = [mark for trace in drawn["traces"] for mark in trace["marks"]]
        assert marks
        assert all(left <= x <= right and top <= y <= bottom for x, y, _ in marks)
        assert len({text for _, text in drawn["y_ticks"]}) == len(drawn["y_ticks"])


@pytest.mark.slow
@given(
    st.lists(st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_a_scale_holds_every_value_between_few_round_ticks(values: list[float], zero: bool, whole: bool) -> None:
    scale = Scale.of(values, 0, 100, zero, whole)
    assert all(-0.1 <= scale.at(value) <= 100.1 for value in values)
    assert 2 <= len(scale.ticks) <= 8
    assert not whole or all(tick == round(tick) for tick in scale.ticks)


@pytest.mark.slow
def test_v_of_w_is_the_ratio_of_the_steps_own_times(reported: Results) -> None:
    group = reported.pooled
    cost = pictures.widths(group)
    steps = [step for row in group for step in row.steps if step["proposed_len"] == step["rows"] * (step["width"] - 1)]
    mean = {
        w: sum(s["verify_ms"] for s in steps if s["width"] == w) / sum(s["width"] == w for s in steps) for w in cost
    }
    assert cost == {w: pytest.approx(mean[w] / mean[1]) for w in mean}


def test_a_generation_is_the_output_and_its_kinds_are_the_counters(reported: Results) -> None:
    cell = reported.cells[0]
    for series in cell.series.values():
        outcome = series.outcomes[0]
        if outcome.stats is None:
            continue
        shown = generation(outcome, cell.pieces)
        assert [token.text for token in shown] == [cell.pieces[token] for token in outcome.tokens[0]]
        kinds = [token.kind for token in shown]
        assert kinds.count("accepted") == outcome.stats.counts["num_accepted_tokens"]
        assert [token.step for token in shown] == sorted(token.step for token in shown)
        if series.arm.plain:
            assert set(kinds) == {"plain"}


def test_the_page_is_alone_small_and_names_are_whole(reported: Results) -> None:
    files = comparison_files(reported, {"command": ["pytest", "a b"], "commit": "c0ffee"})
    html = files["report.html"]
    assert not re.search(r"(src|href)=|url\(|@import|https?://", html)
    assert len(html.encode()) < 500_000
    assert "…" not in html
    assert "pytest &#39;a b&#39;" in html
    assert html.index(answers(reported)[0][:30]) < html.index("<table")
    assert json.loads(files["benchmark.json"])["rows"]


@pytest.mark.slow
def test_a_runs_predictions_stand_in_its_report_and_beside_it(reported: Results) -> None:
    row = {"label": "suffix <1>", "workload": "chat", "batch": 1, "measured": 1.5, "predicted": 1.25, "low": 1.0}
    row |= {"high": 1.6, "arm": "suffix/match/fixed/4", "lever": "a window of 5 costs 1.40 forwards"}
    content = json.dumps({"said": ["1 cell"], "advice": ["chat: plain decoding"], "cells": [row], "arms": [row]})
    files = comparison_files(reported, more={"prediction.json": content, "prediction.txt": "lines"})
    assert files["prediction.json"] == content
    html = files["report.html"]
    for words in ("Predicted and measured", "suffix &lt;1&gt;", "+20.0 %", "1.00 to 1.60", "chat: plain decoding"):
        assert words in html
    assert "suffix &lt;1&gt;, chat, batch 1: 1.50x, predicted 1.25x" in html, "the point says what it is"
    assert "Predicted and measured" not in comparison_files(reported)["report.html"]


def test_the_heat_maps_colour_follows_the_number_and_its_text_stands_without_it(reported: Results) -> None:
    html = page(speculation_document(reported))
    cells = re.findall(r'<td data-head="[^"]*" class="h(\d)" title="([^"]*)">([\d.]+)x([~!?])?</td>', html)
    assert cells
    for level, said, text, _ in cells:
        exact = float(re.search(r": ([\d.]+)x", said)[1])  # type: ignore[index]
        assert f"{exact:.2f}" == text
        assert abs(sum(exact >= step for step in STEPS) - int(level)) <= 1  # rounding


def test_texts_of_arms_are_escaped() -> None:
    plot = Plot("t", "<b>", "x", "y", [Trace("<script>", [(1.0, 2.0), (2.0, 3.0)], 0, joined=True)])
    for drawn in (picture(plot), page(Document("t", [Section(parts=[Plots([plot])])]))):
        assert "<script>" not in drawn.partition("</main>")[0]
        assert "<title>&lt;script&gt;: 2</title>" in drawn


@pytest.mark.slow
@given(st.lists(st.floats(1e-3, 1e3), min_size=1))
def test_a_scale_of_ratios_holds_every_value_and_equal_ratios_are_equally_far(values: list[float]) -> None:
    scale = Scale.of_ratios(values, 0, 100)
    assert all(-0.1 <= scale.at(value) <= 100.1 for value in values)
    assert scale.ticks[0] <= min(values)
    assert scale.ticks[-1] >= max(values)
    unit = scale.ticks[0]
    assert scale.at(4 * unit) - scale.at(2 * unit) == pytest.approx(scale.at(2 * unit) - scale.at(unit), abs=0.2)


@pytest.mark.parametrize("diagonal", [None, "equal"])
@pytest.mark.parametrize("ratios", [False, True])
@pytest.mark.parametrize("points", [[], [(1.0, 1.0)]], ids=["no point", "one point"])
def test_a_plot_of_little_or_nothing_still_has_its_axes(
    points: list[tuple[float, float]], ratios: bool, diagonal: str | None
) -> None:
    """A run of kernels that selects no curve writes its files all the same."""
    traces = [Trace("t", points, 0, joined=True)] if points else []
    drawn = Plot("t", "n", "across", "up", traces, diagonal=diagonal, ratios=ratios).drawn()
    assert all(len({place for place, _ in drawn[ticks]}) >= 2 for ticks in ("x_ticks", "y_ticks"))
    assert "across" in page(Document("t", [Section(parts=[Plots([Plot("t", "n", "across", "up", traces)])])]))


def test_no_two_of_many_traces_look_alike() -> None:
    plot = Plot("t", "n", "x", "y", [Trace(f"t{i}", [(1.0, 2.0)], i) for i in range(60)])
    assert len({(trace["colour"], trace["shape"]) for trace in plot.drawn()["traces"]}) == 60
