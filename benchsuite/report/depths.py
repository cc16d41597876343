"""Speed and acceptance by the tokens before a question."""

from __future__ import annotations

from benchsuite.measure.results import SettingResults
from benchsuite.report import tables
from benchsuite.report.document import Table


def depth_tables(one: SettingResults) -> list[Table]:
    """Return a table with a line for each strategy at each depth, over all workloads of that depth; none where no
    question has text before it.

    ``speedup`` and ``tok/s`` are of decoding alone; the prefill is in ``TTFT``.
    """
    if not one.by_depth:
        return []
    arms = dict.fromkeys(row.arm for rows in one.by_depth.values() for row in rows)
    body = [
        [
            tables.full_name(row),
            str(depth),
            *(column.cell(row) for column in COLUMNS_BY_DEPTH),
            " ".join(f"{share:.2f}" for share in row.figures.acceptance_by_position or ()) or "-",
        ]
        for arm in arms
        for depth, rows in one.by_depth.items()
        for row in rows
        if row.arm == arm
    ]
    headers = ["arm", "depth", *(column.header for column in COLUMNS_BY_DEPTH), "accepted at 1, 2, …"]
    return [Table(headers, body, "By tokens before the question", narrow=tables.WIDEST)]


COLUMNS_BY_DEPTH = tuple(
    column
    for column in (*tables.SPEED, *tables.REASONS, *tables.LATENCY)
    if column.header in ("tok/s", "speedup", "interval", "verdict", "acc len", "TTFT ms")
)
"""Columns of other tables that are shown at each depth."""
