"""The report of a run as one HTML page that needs nothing else: no network, no library."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row
from benchsuite.report import html, pictures, tables
from benchsuite.report.answer import answers, usable
from benchsuite.report.generation import ShownToken, generation
from benchsuite.report.plots import Plot

STEPS = (0.9, 0.98, 1.02, 1.25, 1.6, 2.2)
"""Speedups between which the heat map changes its colour."""


@dataclass(frozen=True)
class Heat:
    """A cell of the heat map: its text, its colour's step from 0 to ``len(STEPS)``, and what it says in full.

    Without a step (None) it has no colour: nothing was measured, or the number cannot be distinguished from 1.
    """

    text: str
    level: int | None
    said: str


def page(
    results: Results, said: Mapping[str, Any], notes: Sequence[str], predicted: Mapping[str, Any] | None = None
) -> str:
    """Return the page. ``said``: the manifest of the run; ``notes``: the lines that follow the card; ``predicted``: the
    content of its ``prediction.json``."""
    batches = pictures.batches(results)
    return html.template(
        "report.html.j2",
        answers=answers(results) or ["Nothing was measured."],
        card=[*results.card, *results.said, *notes],
        command=shlex.join(said.get("command") or []),
        commit=said.get("commit"),
        sections=[_section(one) for one in results.settings],
        batches=batches and batches.drawn(),
        predicted=_predicted(predicted) if predicted and predicted["cells"] else None,
        success=tables.success(results.rows) if results.rows else "",
        failures=[row.failure for row in results.rows if row.failure],
        glossary=tables.meanings(),
    )


def plots_page(title: str, said: Sequence[str], plots: Sequence[Plot]) -> str:
    """Return a page of plots alone, below a title and some lines.

    Example: ``plots_page("Break-even map", [], plots)``
    """
    return html.template("plots.html.j2", title=title, said=said, plots=[plot.drawn() for plot in plots])


def _predicted(found: Mapping[str, Any]) -> dict[str, Any]:
    """The plot of the predictions, a table of the rows over all workloads, and what was said of them."""

    def times(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}x"

    headers = ("strategy", "batch", "measured", "predicted", "90 % interval", "residual", "what would help")
    body = [
        (
            one["label"],
            one["batch"],
            times(one["measured"]),
            times(one["predicted"]),
            "-" if one["low"] is None else f"{one['low']:.2f} to {one['high']:.2f}",
            f"{(one['measured'] / one['predicted'] - 1) * 100:+.1f} %",
            one["lever"],
        )
        for one in found["arms"]
    ]
    plot = pictures.predicted_and_measured(found["cells"]).drawn()
    return {"plot": plot, "headers": headers, "body": body, "said": [*found["said"], *found["advice"]]}


def _section(one: SettingResults) -> dict[str, Any]:
    group, rows = one.pooled, one.rows
    workloads = list(dict.fromkeys(row.figures.workload for row in rows))
    return {
        "title": tables.section_title(group[0]),
        "baseline": group[0].figures.baseline,
        "workloads": [tables.SHORT_NAMES.get(name, name.replace("_", " ")) for name in workloads],
        "heat": [
            (tables.full_name(row), _heat(row, rows, workloads)) for row in group if row.figures.verdict != "baseline"
        ],
        "plots": [plot.drawn() for plot in pictures.pictures(one)],
        "maps": pictures.break_even(group),
        "generations": _generations(one),
        "tables": tables.report_tables(one),
        "notes": tables.notes(group, rows),
    }


def _heat(pooled: Row, rows: Sequence[Row], workloads: Sequence[str]) -> list[Heat]:
    by_workload = {row.figures.workload: row for row in rows if row.arm.strategy == pooled.arm.strategy}
    return [heat_cell(by_workload.get(name)) for name in workloads] + [heat_cell(pooled)]


def heat_cell(row: Row | None) -> Heat:
    """Return the cell of a row; None: the row was not measured."""
    if row is not None and row.failure:
        return Heat("FAILED", None, row.failure.splitlines()[0])
    if row is None or row.figures.speedup is None:
        return Heat("-", None, "not measured")
    speedup = row.figures.speedup
    coloured = row.verdict.distinguishable and not row.arm.again
    return Heat(
        row.verdict.shown,
        sum(speedup >= step for step in STEPS) if coloured else None,
        f"{tables.full_name(row)}, {row.figures.workload}: {row.verdict.sentence}",
    )


def _generations(one: SettingResults) -> list[tuple[str, list[ShownToken]]]:
    """The first prompt's output by each strategy that drafts: those that can be recommended before the others, the
    fastest first. Batches are left out."""
    if not one.cells or one.setting.batch > 1:
        return []
    cell = one.cells[0]
    fastest = sorted(
        (row for row in one.pooled if row.arm.draft and row.figures.speedup),
        key=lambda row: (not usable(row), -(row.figures.speedup or 0.0)),
    )
    series = {arm.strategy: found for arm, found in cell.series.items()}
    return [
        (f"{tables.full_name(row)}, {cell.label}", generation(series[row.arm.strategy].outcomes[0], cell.pieces))
        for row in fastest
        if row.arm.strategy in series and series[row.arm.strategy].outcomes
    ]
