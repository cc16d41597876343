"""The terminal's output at the end of a run: the tables, their legend, and the path of the results."""

from __future__ import annotations

from typing import Any

from benchsuite.measure.session import Bench
from benchsuite.report import tables


def show(reporter: Any, bench: Bench, outcome: str) -> None:
    """Write all results to pytest's terminal reporter, with ``outcome`` as the last line."""
    for group in bench.pooled():
        rows = bench.rows_of(group[0].arm.setting)
        reporter.section(f"speculative decoding: {tables.section_title(group[0])}", sep="=")
        lines = [
            f"Speedup over {group[0].info['baseline']}, geometric means of paired ratios:",
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
    for line in (*tables.weights_table(bench.weights), *tables.wrapped(bench.said), *([outcome] if outcome else [])):
        reporter.write_line(line)
