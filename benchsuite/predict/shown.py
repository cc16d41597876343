"""Forecasts as they are shown: lines for the terminal, and JSON."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from benchsuite.predict.checked import Accuracy, CheckedCell
from benchsuite.predict.forecasts import Forecasts
from benchsuite.predict.levers import lever

LEGEND = (
    "predicted: speedup over plain of the other texts' steps, replayed at costs that were probed apart (leave one "
    "text out; what is left is mostly the error of the costs)",
    "interval: 90 %, for the measured speedup; residual: measured / predicted - 1; a row of K with a large one shows "
    "which cost is wrong",
)
"""How the table is read."""


def forecast_lines(forecasts: Forecasts) -> list[str]:
    """Return the table of the arms over all workloads, a sentence for each, and the accuracy over all cells."""
    arms = forecasts.by_arm()
    if not arms:
        return ["nothing is predicted: every workload needs two texts or more, and a strategy that was built here"]
    rows = [
        (
            cell.arm.label,
            cell.arm.controller,
            "" if cell.arm.k is None else cell.arm.k,
            cell.arm.setting.batch,
            f"{cell.measured:.2f}x",
            f"{cell.prediction.ratio:.2f}x",
            _interval(cell),
            f"{(cell.measured / cell.prediction.ratio - 1) * 100:+.1f} %",
        )
        for cell in arms.values()
    ]
    headers = ("arm", "controller", "K", "batch", "measured", "predicted", "interval", "residual")
    said = [
        f"{cell.arm.label}, batch {cell.arm.setting.batch}: {lever(cell, forecasts.costs[arm.setting])}"
        for arm, cell in arms.items()
    ]
    return [
        tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True),
        "",
        *said,
        "",
        *LEGEND,
        accuracy_line(Accuracy.of(forecasts.cells), "cells (strategy x workload), leave one text out"),
        *(
            [accuracy_line(Accuracy.of(forecasts.halves), "halves of cells, each predicted from the other half alone")]
            if forecasts.halves
            else []
        ),
        *forecasts.said,
    ]


def accuracy_line(found: Accuracy, what: str) -> str:
    """Return an accuracy in words."""
    held = f"; 90 % intervals hold {found.held:.0%} of {found.intervals}" if found.intervals else ""
    return f"{found.cells} {what}: median error {found.median_error:.1%}, R² of ln(speedup) {found.r_squared:.3f}{held}"


def _interval(cell: CheckedCell) -> str:
    low, high = cell.prediction.low, cell.prediction.high
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def forecast_json(forecasts: Forecasts) -> dict[str, Any]:
    """Return every predicted cell with its measured speedup, as JSON has it."""
    return {
        "said": list(forecasts.said),
        "cells": [_public(cell, forecasts) for cell in forecasts.cells],
        "halves": [_public(cell, forecasts) for cell in forecasts.halves],
        "arms": [_public(cell, forecasts) for cell in forecasts.by_arm().values()],
    }


def _public(cell: CheckedCell, forecasts: Forecasts) -> dict[str, Any]:
    said = cell.prediction
    return {
        "row": cell.arm.id,
        "arm": cell.arm.strategy,
        "workload": cell.arm.setting.workload or "all",
        "batch": cell.arm.setting.batch,
        "part": cell.part,
        "measured": cell.measured,
        "predicted": said.ratio,
        "low": said.low,
        "high": said.high,
        "predicted_end_to_end": said.end_to_end,
        "texts": said.texts,
        "lever": lever(cell, forecasts.costs[cell.arm.setting.without_workload]),
    }
