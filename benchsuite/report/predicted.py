"""Forecasts as they are shown: a section of a report, and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, isnan, log
from statistics import fmean
from typing import Any

from benchsuite.measure.arms import Arm
from benchsuite.predict.accuracy import Accuracy
from benchsuite.predict.checked import CheckedCell
from benchsuite.predict.contexts import context_slope
from benchsuite.predict.forecasts import Forecasts
from benchsuite.predict.recommendation import recommended_by_text
from benchsuite.predict.suggestions import suggestion
from benchsuite.report.document import Lines, Part, Plots, Section, Table
from benchsuite.report.pictures import predicted_and_measured
from benchsuite.report.tables import WIDEST

LEGEND = (
    "predicted: speedup over plain of the other texts' steps, replayed at costs that were probed apart; over all texts "
    "of a row each has served for the others, so that the residual is the error of the costs, and says nothing of "
    "texts that were not run",
    "interval: 90 %, for the measured speedup, as wide as the errors of the other strategies ask for; residual: "
    "measured / predicted - 1; rows with a large one show which cost is wrong",
)
"""How the table is read."""

ACCURACY = (
    "how good predictions of what was not run are; without: how good a measured speedup of the same strategy is in "
    "their place, the mean of the other texts' (in batches: of the other units'), that with a larger K, that in "
    "another batch; error: the median of |measured / said - 1|; explained: the part of the differences within "
    "strategies (R² around the mean of each)"
)
"""How the table of accuracies is read."""

FAR_PACE = 1.1
"""The factor between measured and probed plain decoding from which the machine is said to have changed."""


def forecast_section(found: Mapping[str, Any]) -> Section:
    """Return the section of a run's predictions; ``found``: as ``prediction.json`` has them (``forecast_json``)."""
    title = "Predicted and measured"
    if not found["arms"]:
        none = "nothing is predicted: every workload needs two texts or more, and a strategy that was built here"
        return Section(title, [Lines([none])])
    rows = [
        (
            one["label"],
            one["arm"],
            one["batch"],
            f"{one['measured']:.2f}x",
            f"{one['predicted']:.2f}x",
            "-" if one["low"] is None else f"{one['low']:.2f} to {one['high']:.2f}",
            f"{(one['measured'] / one['predicted'] - 1) * 100:+z.1f} %",
        )
        for one in found["arms"]
    ]
    headers = ("arm", "strategy", "batch", "measured", "predicted", "interval", "residual")
    return Section(
        title,
        [
            Table(headers, rows, narrow=WIDEST),
            Plots([predicted_and_measured(found["cells"])]),
            Lines([f"{one['label']}, batch {one['batch']}: {one['lever']}" for one in found["arms"]]),
            Lines([*LEGEND, *found["said"]]),
            # Files of runs before 2026-11-28 have none.
            *accuracy_parts(found.get("accuracy", ())),
            Lines(
                [
                    "the fastest of this run, text by text, and what cannot be distinguished from it; a K that was not "
                    "run is expected from the steps that were:",
                    *found["advice"],
                    "to search further: python -m benchsuite advise --workload TEXT --batch 1,4 --minutes 2",
                ]
            ),
        ],
    )


def cell_parts(cells: Sequence[CheckedCell]) -> list[Part]:
    """Return a table of every predicted cell, and what its columns mean."""
    rows = [
        (
            cell.arm.label,
            cell.arm.setting.workload,
            cell.arm.setting.batch,
            f"{cell.measured:.2f}",
            f"{cell.prediction.ratio:.2f}",
            _interval(cell),
            f"{(cell.measured / cell.prediction.ratio - 1) * 100:+z.1f}",
            " ".join(f"{share:.2f}" for share in cell.kept[:4]),
            " ".join(f"{share:.2f}" for share in cell.expected_kept[:4]),
        )
        for cell in cells
    ]
    headers = ("row", "text", "batch", "measured", "predicted", "90 % interval", "residual, %", "kept", "expected")
    meaning = (
        "kept: shares of the steps that asked for proposals in which one of depth 1, 2, 3, 4 was accepted, for trees "
        "too; expected: the same of the texts that the cell is predicted from."
    )
    return [Table(headers, rows), Lines([meaning])]


def accuracy_parts(found: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return a table of accuracies, as ``accuracy_json`` has them, and what its columns mean; nothing without any."""
    rows = [
        (
            one["not_run"],
            one["trials"],
            f"{one['error']:.1%}",
            _share(one["explained"]),
            f"{one['measured_error']:.1%}",
            _share(one["measured_explained"]),
        )
        for one in found
    ]
    headers = ("not run", "cells", "error", "explained", "error without", "explained without")
    return [Table(headers, rows, narrow=WIDEST), Lines([ACCURACY])] if rows else []


def accuracy_json(found: Mapping[str, Accuracy]) -> list[dict[str, Any]]:
    """Return accuracies by what had not been run, as JSON has them."""
    return [
        {
            "not_run": what,
            "trials": one.trials,
            "error": one.predicted.median,
            "explained": _known(one.predicted.explained),
            "measured_error": one.known.median,
            "measured_explained": _known(one.known.explained),
        }
        for what, one in found.items()
    ]


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _held(cells: Sequence[CheckedCell], what: str) -> list[str]:
    """How many intervals hold what was measured."""
    inside = [cell.inside for cell in cells if cell.inside is not None]
    return [f"90 % intervals hold {fmean(inside):.0%} of {len(inside)} {what}"] if inside else []


def advice_strings(forecasts: Forecasts) -> list[str]:
    """Return what is recommended for each text and batch."""
    lines = []
    for setting, costs in forecasts.costs.items():
        mine = [cell for cell in forecasts.cells if cell.arm.setting.without_workload == setting]
        found = recommended_by_text(mine, costs)
        lines += [f"{of.workload}, batch {of.batch}: {recommendation}" for of, recommendation in found.items()]
    return lines


def context_lines(forecasts: Forecasts) -> list[str]:
    """Return a sentence for each row whose acceptance depends on the context, and one that counts the others."""
    groups: dict[Arm, list[CheckedCell]] = defaultdict(list)
    for cell in forecasts.cells:
        groups[replace(cell.arm, setting=cell.arm.setting.without_workload)].append(cell)
    slopes = {arm: context_slope([cell.units for cell in cells]) for arm, cells in groups.items()}
    known = {arm: slope for arm, slope in slopes.items() if slope is not None}
    lines = [
        f"{arm.label}, batch {arm.setting.batch}: accepted tokens of a step change by {slope.slope:+z.2f} "
        f"({slope.low:+z.2f} to {slope.high:+z.2f}) for each 100 tokens of context, over {slope.texts} texts"
        for arm, slope in known.items()
        if slope.seen
    ]
    if not known:
        return [
            "whether acceptance depends on the context is not told: the prompts of each text are of about one length"
        ]
    still = len(known) - len(lines)
    if still:
        lines.append(f"no dependence of acceptance on context was seen in {still} of {len(known)} rows (90 %)")
    return lines


def pace_lines(forecasts: Forecasts) -> list[str]:
    """Return how long plain decoding took over what the costs say, and what follows where it is far from as long."""
    paces = forecasts.paces()
    if not paces:
        return []
    said = ", ".join(f"{pace:.2f} times (batch {setting.batch})" for setting, pace in paces.items())
    far = any(abs(log(pace)) > log(FAR_PACE) for pace in paces.values())
    why = (
        ": the machine has changed since they were probed, and its narrow windows may have more than its wide ones; "
        "--specdec-predict fresh probes again"
    )
    return [f"plain decoding took {said} what the costs say{why * far}"]


def _interval(cell: CheckedCell) -> str:
    low, high = cell.prediction.low, cell.prediction.high
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _said(forecasts: Forecasts) -> list[str]:
    return [
        *_held(forecasts.cells, "cells (strategy x workload)"),
        *_held(forecasts.texts, "texts, each predicted from the others"),
        *context_lines(forecasts),
        *pace_lines(forecasts),
        *forecasts.said,
    ]


def forecast_json(forecasts: Forecasts) -> dict[str, Any]:
    """Return every predicted cell with its measured speedup, as JSON has it."""
    return {
        "said": _said(forecasts),
        "accuracy": accuracy_json(forecasts.accuracies),
        "paces": [{"batch": setting.batch, "pace": pace} for setting, pace in forecasts.paces().items()],
        "advice": advice_strings(forecasts),
        "cells": [_public(cell, forecasts) for cell in forecasts.cells],
        "texts": [_public(cell, forecasts) for cell in forecasts.texts],
        "arms": [_public(cell, forecasts) for cell in forecasts.arms.values()],
    }


def _public(cell: CheckedCell, forecasts: Forecasts) -> dict[str, Any]:
    said = cell.prediction
    return {
        "row": cell.arm.id,
        "arm": cell.arm.strategy,
        "label": cell.arm.label,
        "workload": cell.arm.setting.workload or "all",
        "batch": cell.arm.setting.batch,
        "others": exp(fmean(other.gain for other in cell.others)) if cell.others else None,
        "measured": cell.measured,
        "predicted": said.ratio,
        "low": said.low,
        "high": said.high,
        "predicted_end_to_end": said.end_to_end,
        "measured_end_to_end": cell.measured_end_to_end,
        "texts": said.texts,
        "kept": list(cell.kept),
        "expected_kept": list(cell.expected_kept),
        "lever": suggestion(cell, forecasts.costs[cell.arm.setting.without_workload]),
    }
