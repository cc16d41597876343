"""The document of a run: for each setting its tables, notes, plots and generations, and how all was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.measure.results import Results, SettingResults
from benchsuite.report import pictures, tables
from benchsuite.report.answer import answers, usable
from benchsuite.report.depths import depth_tables
from benchsuite.report.document import Code, Document, Generations, Lines, Plots, Section
from benchsuite.report.engines import engines_table
from benchsuite.report.generation import ShownToken, generation
from benchsuite.report.predicted import forecast_section
from benchsuite.report.widths import widths_parts

REPEAT = (
    "To repeat it, on this machine or another: pytest --pyargs benchsuite.test_speculation --specdec-repeat FOLDER, "
    "where FOLDER holds this page; it says what differs."
)


def speculation_document(
    results: Results, said: Mapping[str, Any] | None = None, predicted: Mapping[str, Any] | None = None
) -> Document:
    """Return the document of a run. ``said``: its manifest; ``predicted``: the content of its ``prediction.json``."""
    said = said or {}
    failures = [row.failure for row in results.rows if row.failure]
    batches = pictures.batches(results)
    command = shlex.join(said.get("command") or [])
    sections = [
        Section("Contracts that failed", [Lines(failures)] if failures else [], detail=True),
        *map(_section, results.settings),
        Section("Batches", [Plots([batches])] if batches else []),
        *([forecast_section(predicted)] if predicted and predicted["cells"] else []),
        Section(
            "Precision",
            [
                tables.weights_table(results.weights),
                Lines([*results.said, *([tables.success(results.rows)] if results.rows else [])]),
            ],
        ),
        Section(
            "How this was measured",
            [Lines([*results.card, _made(results), REPEAT]), *([Code(command)] if command else [])],
            detail=True,
        ),
        Section("Columns", [Lines(tables.meanings())], detail=True),
    ]
    return Document("Speculative decoding", sections, answers(results) or ["Nothing was measured."])


def _section(one: SettingResults) -> Section:
    pooled, rows = one.pooled, one.rows
    workload = tables.Column("workload", lambda row: row.figures.workload, "kind of text")
    name, *speed = tables.SPEED
    return Section(
        tables.section_title(pooled[0]),
        [
            tables.overview(pooled, rows),
            tables.rows_table(pooled, tables.SPEED, "Speed"),
            tables.rows_table(pooled, tables.LATENCY, "Contract and latency"),
            tables.rows_table(pooled, tables.REASONS, "Why"),
            tables.rows_table(pooled, tables.SHARES, "Where the time goes"),
            *widths_parts(pooled),
            *depth_tables(one),
            Lines([*tables.LEGEND, *tables.op_lines(rows)]),
            Lines(tables.notes(pooled, rows)),
            engines_table(one),
            Plots([*pictures.pictures(one), *pictures.break_even(pooled)]),
            Generations(_generations(one)),
            tables.contrasts_table(one.contrasts),
            tables.rows_table(rows, (name, workload, *speed), "Every row", detail=True),
        ],
    )


def _generations(one: SettingResults) -> list[tuple[str, Sequence[ShownToken]]]:
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


def _made(results: Results) -> str:
    """When the cells were measured, and of which commits."""
    made = [cell.made for cell in results.cells]
    times = sorted(str(one["time"])[:19].replace("T", " ") for one in made)
    commits = sorted({str(one["commit"] or "unknown") for one in made})
    when = " to ".join(dict.fromkeys((times[0], times[-1]))) if times else "never"
    return f"measured {when}, commit {', '.join(commits) or 'unknown'}"
