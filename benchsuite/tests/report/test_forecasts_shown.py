"""Forecasts as a report and JSON show them: measured beside predicted, with what follows for the reader."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any

import pytest

from benchsuite.measure.arms import Arm
from benchsuite.predict.accuracy import Accuracy, Errors
from benchsuite.predict.breakeven import ACCEPTANCES, MapCheck, MapPoint, fastest_ks
from benchsuite.predict.checked import CheckedCell, UnitTraces
from benchsuite.predict.contexts import context_slope
from benchsuite.predict.costs import Costs, DraftCosts, strategy_of
from benchsuite.predict.forecasts import Forecasts
from benchsuite.predict.prediction import Prediction, PromptSizes
from benchsuite.predict.recommendation import recommended_by_text
from benchsuite.predict.suggestions import suggestion
from benchsuite.predict.traces import Seen, StepTrace
from benchsuite.report.breakeven import map_document, map_plot
from benchsuite.report.document import Section
from benchsuite.report.pictures import predicted_and_measured
from benchsuite.report.predicted import (
    accuracy_json,
    accuracy_parts,
    advice_strings,
    cell_parts,
    context_lines,
    forecast_json,
    forecast_section,
    pace_lines,
)
from benchsuite.report.renderers import section_lines
from benchsuite.tests.report.made import NGRAM, lines_shown, plots_of, tables_of, texts_of_table
from benchsuite.tests.rig import SETTING
from specdec.calibration import Point

TREE = Arm(SETTING, "tree", "block", k=8)


def made_costs(*arms: Arm, pace: float = 1.0) -> Costs:
    """A forward takes a second, a further slot 0.05 s, a proposal 0.02 s; of one row and up to four."""
    forward = {
        Point(rows, length, width): pace * (1 + 0.05 * (width - 1))
        for rows in (1, 4)
        for length in (16, 512)
        for width in (1, 17)
    }
    steps = {rows: {length: {-1: 0.0, 0: 0.0, 16: 0.32} for length in (16, 512)} for rows in (1, 4)}
    one = DraftCosts(steps, {1: {0: 0.0, 1: 0.0}, 4: {0: 0.0, 1: 0.0}}, {16: 0.0, 512: 0.0})
    plain = {point: seconds for point, seconds in forward.items() if point.width == 1}
    prefill = {16: 0.1, 512: 3.2}
    return Costs(
        {"machine": "a machine", "torch": "2"}, forward, prefill, plain, dict.fromkeys(map(strategy_of, arms), one), 0.0
    )


def made_unit(number: int, length: int = 100, accepted: Sequence[int] = (2, 0), plain_s: float = 1.0) -> UnitTraces:
    """A unit of one prompt whose steps proposed four."""
    trace = StepTrace(tuple(Seen(4, 4, kept) for kept in accepted))
    return UnitTraces(number, ((number,),), PromptSizes((length,), 60), (trace,), 0.0, plain_s=plain_s)


def predicted_cell(
    arm: Arm,
    measured: float,
    predicted: float,
    bounds: tuple[float | None, float | None] = (None, None),
    units: Sequence[UnitTraces] | None = None,
    **given: Any,
) -> CheckedCell:
    """A cell by its measured and its predicted speedup."""
    said = Prediction(predicted, *bounds, predicted, 3)
    return CheckedCell(arm, measured, said, (made_unit(0),) if units is None else tuple(units), **given)


def made_forecasts(cells: Sequence[CheckedCell], texts: Sequence[CheckedCell] = (), **given: Any) -> Forecasts:
    """Forecasts over these cells, each of which is the only one of its strategy."""
    arms = {replace(cell.arm, setting=cell.arm.setting.without_workload): cell for cell in cells}
    every = [*cells, *texts]
    settings = dict.fromkeys(cell.arm.setting.without_workload for cell in every)
    costs = {setting: made_costs(*(cell.arm for cell in every)) for setting in settings}
    return replace(
        Forecasts(costs, cells, texts, {arm: replace(cell, arm=arm) for arm, cell in arms.items()}, []), **given
    )


FOUND: Mapping[str, Any] = {
    "arms": [
        {
            **{"label": "ngram", "arm": "ngram/match/fixed/4", "batch": 1, "measured": 1.5, "predicted": 1.25},
            **{"low": 1.125, "high": 1.375, "lever": "a lever"},
        },
        {
            **{"label": "tree", "arm": "tree/block/fixed/8", "batch": 4, "measured": 0.996, "predicted": 2.0},
            **{"low": None, "high": None, "lever": "another lever"},
        },
    ],
    "cells": [{"label": "ngram", "batch": 1, "predicted": 1.25, "measured": 1.5, "workload": "chat"}],
    "said": ["how good", "from where"],
    "accuracy": [
        {
            **{"not_run": "a text", "trials": 162, "error": 0.1207, "explained": 0.5747},
            **{"measured_error": 0.1185, "measured_explained": None},
        }
    ],
    "advice": ["chat, batch 1: ngram as run, 1.50x"],
}


def test_a_strategy_is_shown_with_what_was_measured_and_predicted_of_it_and_the_residual() -> None:
    section = forecast_section(FOUND)
    assert section.title == "Predicted and measured"
    table, accuracies = tables_of(section)
    assert texts_of_table(table) == [
        {
            **{"arm": "ngram", "strategy": "ngram/match/fixed/4", "batch": "1", "measured": "1.50x"},
            **{"predicted": "1.25x", "interval": "1.12 to 1.38", "residual": "+20.0 %"},
        },
        {
            **{"arm": "tree", "strategy": "tree/block/fixed/8", "batch": "4", "measured": "1.00x"},
            **{"predicted": "2.00x", "interval": "-", "residual": "-50.2 %"},
        },
    ]
    assert plots_of(section) == [predicted_and_measured(FOUND["cells"])]
    assert texts_of_table(accuracies) == [
        {
            **{"not run": "a text", "cells": "162", "error": "12.1%", "explained": "0.57"},
            **{"error without": "11.8%", "explained without": "-"},
        }
    ]
    shown = lines_shown(section)
    assert shown[:2] == ["ngram, batch 1: a lever", "tree, batch 4: another lever"]
    assert [line for line in shown if line in (*FOUND["said"], *FOUND["advice"])] == [*FOUND["said"], *FOUND["advice"]]
    assert {line.partition(":")[0] for line in shown} >= {"predicted", "interval", "to search further"}


def test_a_file_of_an_earlier_run_without_accuracies_is_shown_all_the_same() -> None:
    earlier = {name: value for name, value in FOUND.items() if name != "accuracy"}
    assert len(tables_of(forecast_section(earlier))) == 1


def test_a_long_name_of_a_strategy_loses_its_middle_on_a_terminal() -> None:
    arms = [{**FOUND["arms"][0], "label": "a" * 40 + "b" * 40}]
    lines = section_lines(forecast_section({**FOUND, "arms": arms}))
    assert any(re.search("a{13,14}…b{12,13}  ngram/match", line) for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_where_nothing_is_predicted_the_section_says_why() -> None:
    [line] = lines_shown(forecast_section({**FOUND, "arms": []}))
    assert line.startswith("nothing is predicted: ")


def test_a_cell_is_shown_with_the_shares_of_its_proposals_that_were_kept_by_depth() -> None:
    batch = replace(NGRAM, setting=SETTING.replaced(batch=4))
    cells = [
        predicted_cell(NGRAM, 1.5, 1.25, (1.125, 1.375), kept=(0.9, 0.8, 0.7, 0.6, 0.5), expected_kept=(0.25,)),
        predicted_cell(batch, 0.9, 1.0, (0.5, None)),
        predicted_cell(TREE, 1.0, 1.0, (None, 1.5)),
    ]
    section = Section(parts=cell_parts(cells))
    [table] = tables_of(section)
    assert texts_of_table(table) == [
        {
            **{"row": "ngram", "text": "chat", "batch": "1", "measured": "1.50", "predicted": "1.25"},
            **{"90 % interval": "1.12 to 1.38", "residual, %": "+20.0", "kept": "0.90 0.80 0.70 0.60"},
            "expected": "0.25",
        },
        {
            **{"row": "ngram", "text": "chat", "batch": "4", "measured": "0.90", "predicted": "1.00"},
            **{"90 % interval": "", "residual, %": "-10.0", "kept": "", "expected": ""},
        },
        {
            **{"row": "tree", "text": "chat", "batch": "1", "measured": "1.00", "predicted": "1.00"},
            **{"90 % interval": "", "residual, %": "+0.0", "kept": "", "expected": ""},
        },
    ]
    deep = predicted_cell(NGRAM, 1.5, 1.25, expected_kept=(0.5, 0.4, 0.3, 0.2, 0.1))
    [row] = texts_of_table(tables_of(Section(parts=cell_parts([deep])))[0])
    assert row["expected"] == "0.50 0.40 0.30 0.20"
    assert len(lines_shown(section)) == 1


def test_an_accuracy_is_told_beside_that_of_the_speedups_that_were_measured() -> None:
    """Nothing is explained where one trial of each strategy does not differ from itself."""
    whole, single = Errors(0.25, 0.5), Errors(0.125, float("nan"))
    found = accuracy_json({"a K": Accuracy(7, whole, Errors(0.5, -0.25)), "a batch": Accuracy(1, single, single)})
    assert found == [
        {
            **{"not_run": "a K", "trials": 7, "error": 0.25, "explained": 0.5},
            **{"measured_error": 0.5, "measured_explained": -0.25},
        },
        {
            **{"not_run": "a batch", "trials": 1, "error": 0.125, "explained": None},
            **{"measured_error": 0.125, "measured_explained": None},
        },
    ]
    assert accuracy_parts([]) == []
    assert len(lines_shown(Section(parts=accuracy_parts(found)))) == 1


def sloped(slope: float, texts: int = 10) -> list[UnitTraces]:
    """Units whose accepted tokens of a step change by ``slope`` a token of context, more or less."""
    return [made_unit(n, 100 + 30 * n, [max(0, round(40 + slope * 30 * n + (-1) ** n))] * 3) for n in range(texts)]


def test_acceptance_that_depends_on_the_context_is_told_by_row_and_the_other_rows_are_counted() -> None:
    """Over all workloads of a row together: five texts of each of two kinds."""
    falls = [
        predicted_cell(replace(NGRAM, setting=SETTING.replaced(workload=kind)), 1.5, 1.25, units=part)
        for kind, part in (("chat", sloped(-0.1)[::2]), ("code", sloped(-0.1)[1::2]))
    ]
    flat = predicted_cell(TREE, 1.5, 1.25, units=sloped(0.0))
    level = predicted_cell(replace(TREE, setting=SETTING.replaced(batch=4)), 1.5, 1.25, units=sloped(0.0))
    short = predicted_cell(replace(TREE, policy="match"), 1.5, 1.25, units=sloped(-0.1, texts=3))
    slope = context_slope([cell.units for cell in falls])
    assert slope is not None
    told = (
        f"ngram, batch 1: accepted tokens of a step change by {slope.slope:+.2f} ({slope.low:+.2f} to "
        f"{slope.high:+.2f}) for each 100 tokens of context, over 10 texts"
    )
    still = "no dependence of acceptance on context was seen in {} of {} rows (90 %)"
    assert context_lines(made_forecasts([*falls, flat, level, short])) == [told, still.format(2, 3)]
    assert context_lines(made_forecasts(falls)) == [told]
    assert context_lines(made_forecasts([flat])) == [still.format(1, 1)]
    [unknown] = context_lines(made_forecasts([short]))
    assert unknown.startswith("whether acceptance depends on the context is not told")


@pytest.mark.parametrize(("pace", "far"), [(1.09, False), (1.11, True), (1 / 1.09, False), (1 / 1.11, True)])
def test_plain_decoding_that_is_a_tenth_off_what_was_probed_asks_for_new_costs(pace: float, far: bool) -> None:
    """Of one batch among two: the other is as fast as it was."""
    batch = replace(NGRAM, setting=SETTING.replaced(batch=4))
    sizes = PromptSizes((100,) * 4, 60)
    four = replace(made_unit(0), prompts=sizes, plain_s=0.25)
    cells = [
        predicted_cell(NGRAM, 1.5, 1.25, units=[made_unit(0, plain_s=pace)]),
        predicted_cell(batch, 1.5, 1.25, units=[four]),
    ]
    [line] = pace_lines(made_forecasts(cells))
    assert line.startswith(f"plain decoding took {pace:.2f} times (batch 1), 1.00 times (batch 4) what the costs say")
    assert ("probes again" in line) is far
    assert line.endswith("what the costs say") is not far
    assert pace_lines(made_forecasts([])) == []


def test_a_text_is_advised_from_the_cells_of_its_own_setting() -> None:
    batch = replace(NGRAM, setting=SETTING.replaced(batch=4, workload="code"))
    cells = [predicted_cell(NGRAM, 1.5, 1.25), predicted_cell(TREE, 1.125, 1.25), predicted_cell(batch, 0.5, 1.25)]
    found = made_forecasts(cells)
    lines = advice_strings(found)
    costs = found.costs[SETTING.without_workload]
    [best] = recommended_by_text(cells[:2], costs).values()
    assert lines[0] == f"chat, batch 1: {best}"
    assert [line.partition(": ")[0] for line in lines] == ["chat, batch 1", "code, batch 4"]


def test_json_has_every_cell_text_and_strategy_with_what_was_measured_and_predicted() -> None:
    one = predicted_cell(
        NGRAM, 1.5, 1.25, (1.125, 1.375), [made_unit(0), replace(made_unit(1), whole_gain=0.5)], kept=(0.5,)
    )
    cells = [replace(one, expected_kept=(0.25, 0.125)), predicted_cell(TREE, 1.0, 1.1)]
    texts = [replace(cell, others=(replace(made_unit(2), gain=0.25),)) for cell in cells]
    told = {"a text": Accuracy(2, Errors(0.25, 0.5), Errors(0.5, -0.25))}
    forecasts = made_forecasts(cells, texts, said=["costs are old"], accuracies=told)
    found = forecast_json(forecasts)
    costs = forecasts.costs[SETTING.without_workload]
    assert found["cells"][0] == {
        "row": NGRAM.id,
        "arm": "ngram/match/fixed/4",
        "label": "ngram",
        "workload": "chat",
        "batch": 1,
        "others": None,
        "measured": 1.5,
        "predicted": 1.25,
        "low": 1.125,
        "high": 1.375,
        "predicted_end_to_end": 1.25,
        "measured_end_to_end": exp(0.25),
        "texts": 3,
        "kept": [0.5],
        "expected_kept": [0.25, 0.125],
        "lever": suggestion(cells[0], costs),
    }
    assert [(one["label"], one["others"]) for one in found["texts"]] == [("ngram", exp(0.25)), ("tree", exp(0.25))]
    assert found["accuracy"] == accuracy_json(told)
    assert [(one["label"], one["workload"]) for one in found["arms"]] == [("ngram", "all"), ("tree", "all")]
    assert found["paces"] == [{"batch": 1, "pace": pytest.approx(1.0)}]
    assert found["advice"] == advice_strings(forecasts)
    held = "90 % intervals hold 0% of 1 cells (strategy x workload)"
    apart = "90 % intervals hold 0% of 1 texts, each predicted from the others"
    assert found["said"] == [held, apart, *context_lines(forecasts), *pace_lines(forecasts), "costs are old"]
    assert forecast_json(replace(forecasts, texts=[]))["said"] == [line for line in found["said"] if line != apart]


def map_point(rows: int, length: int, k: int, needed: float | None = None) -> MapPoint:
    """A point of a map whose speedups grow with the acceptance, most where ten times the acceptance is about K."""
    speedups = tuple(0.7 + chance - abs(10 * chance - k) / 10 for chance in ACCEPTANCES)
    return MapPoint(rows, length, k, 1 + k / 8, needed, speedups)


POINTS = [
    map_point(1, 256, 2, 0.3456),
    map_point(1, 256, 8),
    map_point(4, 512, 2, 0.5),
    map_point(4, 512, 8, 0.625),
]
CHECKS = [MapCheck(1, 300, 2, 0.4, 0.4321, 1.2, 1.25), MapCheck(4, 300, 8, 0.95, 0.9, 1.5, 1.0)]


def test_the_map_is_shown_as_tables_with_what_was_run_beside_it() -> None:
    made = replace(made_costs(), made=0.0)
    document = map_document(POINTS, CHECKS, made, 0.125)
    assert document.title == "Break-even map"
    shown, fastest, checked = tables_of(document)
    at = [f"at {chance:g}" for chance in ACCEPTANCES]
    assert texts_of_table(shown) == [
        {
            **{"batch": str(one.rows), "context": str(one.length), "K": str(one.k)},
            **{"v(K + 1)": f"{one.window:.2f}", "needed": needed},
            **{name: f"{speedup:.2f}x" for name, speedup in zip(at, one.speedups, strict=True)},
        }
        for one, needed in zip(POINTS, ("0.35", "-", "0.50", "0.62"), strict=True)
    ]
    assert "cost 0.125 of a forward" in shown.title
    ks = fastest_ks(POINTS)
    assert {0} < {k for found in ks.values() for k in found}
    assert texts_of_table(fastest) == [
        {"batch": str(rows), "context": str(length)}
        | {name: str(k) if k else "plain" for name, k in zip(at, found, strict=True)}
        for (rows, length), found in ks.items()
    ]
    assert texts_of_table(checked) == [
        {
            **{"batch": "1", "context": "300", "K": "2", "oracle": "0.4", "accepted": "0.43"},
            **{"measured": "1.20x", "map": "1.25x", "difference": "-4.0 %"},
        },
        {
            **{"batch": "4", "context": "300", "K": "8", "oracle": "0.95", "accepted": "0.90"},
            **{"measured": "1.50x", "map": "1.00x", "difference": "+50.0 %"},
        },
    ]
    lines = lines_shown(document)
    assert lines[0].startswith("needed: ")
    assert lines[1] == f"{made.age()}: machine a machine; torch 2"


def test_each_map_is_drawn_with_the_checks_of_its_own_batch() -> None:
    """A line for each acceptance over the K of its batch and context, and a ring where something was run."""
    plots = plots_of(map_document(POINTS, CHECKS, made_costs(), 0.0))
    assert [plot.title for plot in plots] == [
        "Batch 1, 256 tokens of context",
        "Batch 4, 512 tokens of context",
    ]
    for plot, points, check in zip(plots, (POINTS[:2], POINTS[2:]), CHECKS, strict=True):
        *lines, ring = plot.traces
        for place, (trace, chance) in enumerate(zip(lines, ACCEPTANCES, strict=True)):
            assert trace.points == [(one.k, one.speedups[place]) for one in points]
            assert (trace.name, trace.number, trace.joined) == (f"{chance:g} accepted", place, True)
        assert ring.points == [(float(check.k), check.measured)]
        assert ring.said == [
            f"oracle({check.acceptance:g}), K = {check.k}: {check.measured:.2f}x, map {check.mapped:.2f}x"
        ]
        assert (ring.name, ring.joined) == ("run with oracle", False)
        assert plot.drawn()["traces"][-1]["shape"] == "ring"
        assert (plot.x, plot.y, plot.level, plot.whole) == ("K", "speedup over plain", (1.0, "plain decoding"), True)
    assert [trace.name for trace in map_plot("t", "n", POINTS).traces] == [f"{rate:g} accepted" for rate in ACCEPTANCES]
