"""The plots of a run: which rows a point stands for, what is left out, and that a plot without data is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchsuite.measure.arms import Arm
from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row
from benchsuite.predict.breakeven import ACCEPTANCES, map_of_windows
from benchsuite.report import pictures
from benchsuite.report.plots import Plot, Trace
from benchsuite.tests.report.made import AGAIN, NGRAM, PEER, PLAIN, everywhere, made_row
from benchsuite.tests.rig import SETTING

TREE = Arm(SETTING, "tree", "block", k=8)
FAILED = Arm(SETTING, "garbage", k=2)


def step(width: int, milliseconds: float, rows: int = 1, less: int = 0) -> dict[str, Any]:
    """A step as a row keeps it; ``less``: proposals that its rows have fewer than the widest."""
    return {"rows": rows, "width": width, "proposed_len": rows * (width - 1) - less, "verify_ms": milliseconds}


def setting_of_rows(rows: Sequence[Row], pooled: Sequence[Row]) -> SettingResults:
    """Results of one setting."""
    return SettingResults(SETTING.without_workload, (), tuple(rows), tuple(pooled))


@pytest.fixture
def drawn_plots() -> Mapping[str, Plot]:
    """The plots of two strategies, one of which failed nowhere, on two workloads, by their titles."""
    rows = [
        made_row(
            replace(arm, setting=SETTING.replaced(workload=kind)),
            speedup + more,
            tau=2 * (speedup + more),
            sum_of_parts=speedup + more + 0.25,
            ratios={kind: [1.5 + more, 1.25 + more]},
        )
        for kind, more in (("chat", 0.0), ("code", 0.5))
        for arm, speedup in ((PLAIN, 1.0), (AGAIN, 1.0), (NGRAM, 1.5), (TREE, 1.75), (FAILED, 0.5), (PEER, 3.0))
    ]
    rows.append(made_row(replace(NGRAM, setting=SETTING.replaced(workload="story")), 1.5))
    rows.append(made_row(replace(NGRAM, setting=SETTING.replaced(workload="mail")), tau=9.0, sum_of_parts=9.0))
    pooled = [
        made_row(everywhere(PLAIN), 1.0, steps=[step(1, 2.0), step(1, 4.0), step(1, 90.0, rows=2)]),
        made_row(everywhere(FAILED), failure="it differs", acceptance_by_position=(0.9,)),
        made_row(everywhere(NGRAM), 1.5, acceptance_by_position=(0.75, 0.5, 0.0), steps=[step(5, 4.5), step(1, 3.0)]),
        made_row(everywhere(PEER), 3.0),
        made_row(everywhere(TREE), 1.75, acceptance_by_position=(0.5, 0.25), steps=[step(9, 6.0), step(5, 7.5)]),
    ]
    return {plot.title: plot for plot in pictures.pictures(setting_of_rows(rows, pooled))}


def test_a_point_is_a_strategy_on_a_workload_and_what_failed_or_does_not_draft_has_none(
    drawn_plots: Mapping[str, Plot],
) -> None:
    """Across: tau, or the sum of parts; up: the speedup. A row without one of both is no point."""
    speedups = {"ngram, match 4": [1.5, 2.0], "tree, block 8": [1.75, 2.25]}
    for title, factor, more in (("Speed beside acceptance", 2, 0.0), ("Sum of parts against measured", 1, 0.25)):
        plot = drawn_plots[title]
        points = {name: [(factor * speedup + more, speedup) for speedup in found] for name, found in speedups.items()}
        assert [(trace.name, trace.points, trace.number, trace.joined) for trace in plot.traces] == [
            (name, found, number, False) for number, (name, found) in enumerate(points.items())
        ]
        (chat, _), (code, _) = points["ngram, match 4"]
        assert list(plot.traces[0].said) == [
            f"ngram, match 4, chat: {chat:.2f}, 1.50x",
            f"ngram, match 4, code: {code:.2f}, 2.00x",
        ]
        assert (plot.level, plot.y.split()[-1]) == ((1.0, "plain"), "speedup")
        assert plot.diagonal
        assert plot.ratios


def test_acceptance_by_position_begins_at_the_first_proposal_and_a_strategy_keeps_its_colour(
    drawn_plots: Mapping[str, Plot],
) -> None:
    plot = drawn_plots["Acceptance by position"]
    assert plot.traces == [
        Trace("ngram, match 4", [(1.0, 0.75), (2.0, 0.5), (3.0, 0.0)], 0, joined=True),
        Trace("tree, block 8", [(1.0, 0.5), (2.0, 0.25)], 1, joined=True),
    ]
    assert plot.whole


def test_a_wider_window_costs_its_mean_over_that_of_one_slot_in_steps_of_the_whole_batch(
    drawn_plots: Mapping[str, Plot],
) -> None:
    """One slot: 2, 4 and 3 ms; five: 4.5 and 7.5; nine: 6. Steps of other numbers of rows do not count."""
    plot = drawn_plots["v(W): what a wider window costs"]
    assert plot.traces == [Trace("measured", [(1.0, 1.0), (5.0, 2.0), (9.0, 2.0)], 0, joined=True)]
    assert (plot.y, plot.level, plot.whole, plot.zero) == ("v(W)", (1.0, "free"), True, True)


def test_noise_is_plains_ratio_to_itself_prompt_by_prompt(drawn_plots: Mapping[str, Plot]) -> None:
    plot = drawn_plots["Noise: plain decoding against itself"]
    assert [trace.points for trace in plot.traces] == [[(1.0, 1.5), (2.0, 1.25), (3.0, 2.0), (4.0, 1.75)]]
    assert (plot.x, plot.y) == ("prompt", "speedup")
    assert (plot.level, plot.whole, plot.zero) == ((1.0, "equal"), True, False)
    assert [(trace.name, trace.number) for trace in plot.traces] == [("plain again", 0)]


def test_the_plots_of_a_run_are_those_that_have_data() -> None:
    """Plain decoding alone has none, nor have steps of one width."""
    alone = setting_of_rows([made_row(PLAIN, 1.0)], [made_row(everywhere(PLAIN), 1.0, steps=[step(1, 2.0)])])
    assert pictures.pictures(alone) == []
    again = setting_of_rows([made_row(AGAIN, 1.0, ratios={"chat": [1.0]})], [made_row(everywhere(PLAIN), 1.0)])
    assert [plot.title for plot in pictures.pictures(again)] == ["Noise: plain decoding against itself"]
    two = [made_row(everywhere(PLAIN), 1.0, steps=[step(1, 2.0), step(2, 3.0)])]
    [width] = pictures.pictures(setting_of_rows([], two))
    assert width.traces[0].points == [(1.0, 1.0), (2.0, 1.5)]
    one = setting_of_rows([made_row(NGRAM, 1.5, tau=2.0)], [made_row(everywhere(NGRAM), 1.5)])
    [speed] = pictures.pictures(one)
    assert [(trace.name, trace.points) for trace in speed.traces] == [("ngram, match 4", [(2.0, 1.5)])]


def test_v_of_w_needs_a_step_of_one_slot_and_rows_that_have_all_slots() -> None:
    batch = replace(NGRAM, setting=SETTING.replaced(batch=2))
    row = made_row(batch, 1.5, steps=[step(5, 9.0, rows=2), step(1, 1.0), step(3, 6.0, rows=2)])
    assert pictures.widths([row]) == {}
    more = replace(row, steps=[*row.steps, step(1, 3.0, rows=2), step(5, 4.0, rows=2, less=3)])
    assert pictures.widths([more]) == {1: 1.0, 3: 2.0, 5: 3.0}
    assert list(pictures.widths([more])) == [1, 3, 5]


def batch_row(arm: Arm, batch: int, latency: float | None, speed: float | None, **given: Any) -> Row:
    """A row of one batch by its latency in ms and its tokens a second."""
    setting = SETTING.replaced(batch=batch).without_workload
    return made_row(replace(arm, setting=setting), 1.5, tpot_ms=latency, tokens_per_s=speed, **given)


def drawn_run_of(*rows: Row) -> Results:
    """Results of these rows, a setting each."""
    return Results(tuple(SettingResults(row.arm.setting, (), (), (row,)) for row in rows))


def test_latency_is_drawn_against_throughput_from_the_smallest_batch_to_the_largest() -> None:
    """Of every strategy that was measured with more than one; what is no strategy, or failed, is left out."""
    rows = [
        batch_row(NGRAM, 4, 20.0, 200.4),
        batch_row(PLAIN, 4, 40.0, 100.0),
        batch_row(NGRAM, 1, 10.0, 90.0),
        batch_row(PLAIN, 1, 25.04, 40.0),
        batch_row(NGRAM, 2, 15.0, 150.0),
        batch_row(TREE, 1, 9.0, 99.0),
        batch_row(FAILED, 1, 9.0, 99.0, failure="it differs"),
        batch_row(FAILED, 2, 9.0, 99.0, failure="it differs"),
        batch_row(PEER, 1, 9.0, 99.0),
        batch_row(PEER, 2, 9.0, 99.0),
        batch_row(TREE, 2, None, 99.0),
        batch_row(TREE, 4, 9.0, None),
    ]
    plot = pictures.batches(drawn_run_of(*rows))
    assert plot is not None
    assert [(trace.name, trace.points, trace.joined) for trace in plot.traces] == [
        ("ngram, match 4", [(10.0, 90.0), (15.0, 150.0), (20.0, 200.4)], True),
        ("plain", [(25.04, 40.0), (40.0, 100.0)], True),
    ]
    assert [list(trace.said) for trace in plot.traces] == [
        [
            "ngram, match 4, batch 1: 10.0 ms, 90 tokens/s",
            "ngram, match 4, batch 2: 15.0 ms, 150 tokens/s",
            "ngram, match 4, batch 4: 20.0 ms, 200 tokens/s",
        ],
        ["plain, batch 1: 25.0 ms, 40 tokens/s", "plain, batch 4: 40.0 ms, 100 tokens/s"],
    ]
    assert len({trace.number for trace in plot.traces}) == 2


def test_settings_that_differ_in_more_than_the_batch_share_no_line() -> None:
    """One strategy at two temperatures is two lines; with one batch each there is no plot."""
    warm = SETTING.replaced(temperature=0.5).without_workload
    two = [batch_row(NGRAM, 1, 10.0, 90.0), batch_row(NGRAM, 2, 15.0, 150.0)]
    hot = [replace(row, arm=replace(row.arm, setting=warm.replaced(batch=row.arm.setting.batch))) for row in two]
    both = pictures.batches(drawn_run_of(*two, *hot))
    assert both is not None
    assert [len(trace.points) for trace in both.traces] == [2, 2]
    assert pictures.batches(drawn_run_of(two[0], hot[1])) is None
    assert pictures.batches(Results()) is None


def test_a_break_even_map_is_drawn_for_free_proposals_and_for_the_dearest_that_were_measured() -> None:
    """At the run's own v(W): 1, 1.5 and 2 for one, three and five slots."""
    steps = [step(1, 2.0), step(3, 3.0), step(5, 4.0)]
    group = [
        made_row(everywhere(PLAIN), 1.0, steps=steps),
        made_row(everywhere(TREE), 1.5, draft_cost=0.2),
        made_row(everywhere(NGRAM), 1.5, draft_cost=0.1),
    ]
    found = pictures.break_even(group)
    assert [plot.title for plot in found] == [
        "Break-even: a draft that costs nothing (c = 0.00)",
        "Break-even: a draft as dear as tree, block 8 (c = 0.20)",
    ]
    for plot, drafting in zip(found, (0.0, 0.2), strict=True):
        points = map_of_windows({1: 1.0, 3: 1.5, 5: 2.0}, drafting)
        assert [trace.name for trace in plot.traces] == [f"{rate:g} accepted" for rate in ACCEPTANCES]
        for place, trace in enumerate(plot.traces):
            assert trace.points == [(point.k, point.speedups[place]) for point in points]
            assert (trace.number, trace.joined) == (place, True)
        assert (plot.x, plot.level, plot.whole) == ("K", (1.0, "plain decoding"), True)


@pytest.mark.parametrize(("cost", "maps"), [(None, 1), (0.01, 1), (0.011, 2)])
def test_a_draft_that_costs_next_to_nothing_has_no_map_of_its_own(cost: float | None, maps: int) -> None:
    steps = [step(1, 2.0), step(2, 3.0)]
    group = [made_row(everywhere(NGRAM), 1.5, draft_cost=cost, steps=steps)]
    assert len(pictures.break_even(group)) == maps
    assert pictures.break_even([replace(group[0], steps=steps[:1])]) == []
    assert pictures.break_even([replace(group[0], steps=[])]) == []


def forecast_cell(label: str, batch: int, predicted: float, measured: float, workload: str) -> dict[str, Any]:
    """A cell as ``prediction.json`` has it."""
    return {
        **{"label": label, "batch": batch, "predicted": predicted, "measured": measured, "workload": workload},
        **{"arm": f"{label}/match/fixed/4", "low": 1.0, "high": 2.0, "lever": "a lever"},
    }


@pytest.mark.parametrize("batches", [(1, 1), (1, 4)])
def test_predictions_are_drawn_beside_what_was_measured_a_name_for_each_strategy_and_batch(
    batches: tuple[int, int],
) -> None:
    cells = [
        forecast_cell("ngram", batches[0], 1.25, 1.5, "chat"),
        forecast_cell("suffix", batches[0], 1.75, 2.0, "chat"),
        forecast_cell("ngram", batches[1], 1.375, 1.625, "code"),
    ]
    plot = pictures.predicted_and_measured(cells)
    said = [
        f"{one['label']}, {one['workload']}, batch {one['batch']}: {one['measured']:.2f}x, "
        f"predicted {one['predicted']:.2f}x"
        for one in cells
    ]
    if batches == (1, 1):
        assert plot.traces == [
            Trace("ngram", [(1.25, 1.5), (1.375, 1.625)], 0, said=[said[0], said[2]]),
            Trace("suffix", [(1.75, 2.0)], 1, said=[said[1]]),
        ]
    else:
        assert plot.traces == [
            Trace("ngram, batch 1", [(1.25, 1.5)], 0, said=[said[0]]),
            Trace("suffix, batch 1", [(1.75, 2.0)], 1, said=[said[1]]),
            Trace("ngram, batch 4", [(1.375, 1.625)], 2, said=[said[2]]),
        ]
    assert (plot.diagonal, plot.ratios, plot.level) == ("as predicted", True, None)
