"""The terminal's output at the end of a run: the tables, their legend, and the path of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchsuite.measure.results import Results
from benchsuite.report import tables
from benchsuite.report.answer import answers


def show(reporter: Any, results: Results, outcome: str, predicted: Sequence[str] = ()) -> None:
    """Write all results to pytest's terminal reporter: the tables, the lines of the predictions, and at the end the
    answer and ``outcome``."""
    for one in results.settings:
        group, rows = one.pooled, one.rows
        reporter.section(f"speculative decoding: {tables.section_title(group[0])}", sep="=")
        lines = [
            f"Speedup over {group[0].figures.baseline}, geometric means of paired ratios:",
            tables.overview(group, rows),
            "",
            tables.render(group, tables.SPEED),
            "",
            tables.render(group, tables.LATENCY),
            "",
            tables.render(group, tables.REASONS),
            "",
            *tables.LEGEND,
            *tables.op_lines(rows),
            "",
            *tables.notes(group, rows),
        ]
        for line in lines:
            reporter.write_line(line)
    if predicted:
        reporter.section("predicted and measured", sep="=")
        for line in (*predicted, ""):
            reporter.write_line(line)
    for line in (
        *tables.weights_table(results.weights),
        *tables.wrapped(results.said),
        tables.success(results.rows),
        *answers(results),  # each in one line, as the report's first one
        *([outcome] if outcome else []),
    ):
        reporter.write_line(line)
