"""What a strategy does at each width of its window: whether outputs are plain's, and what the width costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchsuite.measure.rows import Row
from benchsuite.report.document import Lines, Table
from specdec.amounts import amount

FEWEST_WIDTHS = 4
"""Of a strategy, from which on its widths have a table of their own."""


def widths_parts(pooled: Sequence[Row]) -> list[Table | Lines]:
    """Return a table and its summary for each strategy that ran with fixed K at several widths, and none for others.

    ``pooled``: the rows of one setting over all workloads. ``plain again`` is the row of width 1.
    """
    again = [row for row in pooled if row.arm.again]
    found = list[Table | Lines]()
    for name, rows in _by_strategy(pooled).items():
        widths = dict.fromkeys([1], again[0]) | rows if again else rows
        body = [
            [
                str(width),
                row.figures.contract_checked or "not compared",
                width_finding(row),
                "-" if row.figures.verify_cost is None else f"{row.figures.verify_cost:.2f}",
                "-" if row.figures.tokens_per_s is None else f"{row.figures.tokens_per_s:.1f}",
            ]
            for width, row in sorted(widths.items())
        ]
        headers = ["width", "outputs as plain's", "found", "v(W)", "tok/s"]
        found += [Table(headers, body, f"By window width: {name}"), Lines([widths_summary(widths)])]
    return found


def width_finding(row: Row) -> str:
    """Return what is found of a row that promises plain's tokens: ``equal``, ``2 ties``, ``bug``, or how it failed."""
    if row.failure:
        return "bug" if row.figures.failed == "contract" else f"failed: {row.figures.failed}"
    return amount(len(row.ties), "tie") if row.ties else "equal"


def widths_summary(widths: Mapping[int, Row]) -> str:
    """Return a sentence of which widths are equal, have certified ties, or a bug, and which is the first with one.

    Example: "window widths: equal at 1-8; bug at 9-16, the first at 9"
    """
    kinds: dict[str, list[int]] = {}
    for width, row in sorted(widths.items()):
        found = width_finding(row)
        kinds.setdefault("certified ties" if row.ties and not row.failure else found, []).append(width)
    return kinds_by_width(kinds)


def kinds_by_width(kinds: Mapping[str, Sequence[int]]) -> str:
    """Return the sentence of what was found, by its kind, at which widths.

    Example: ``kinds_by_width({"equal": [1, 2], "bug": [3, 4]})``
    """
    said = [f"{kind} at {spans_text(places)}" for kind, places in kinds.items()]
    first = f", the first at {kinds['bug'][0]}" if len(kinds.get("bug", ())) > 1 else ""
    return f"window widths: {'; '.join(said)}{first}"


def spans_text(numbers: Sequence[int]) -> str:
    """Return rising whole numbers with spans for those that follow each other: "1-8, 11"."""
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after > before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after > before + 1), numbers[-1]]
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in zip(starts, ends, strict=True))


def _by_strategy(pooled: Sequence[Row]) -> dict[str, dict[int, Row]]:
    """The rows of each strategy that promises plain's tokens with fixed K, by width; of at least ``FEWEST_WIDTHS``."""
    found: dict[str, dict[int, Row]] = {}
    for row in pooled:
        arm = row.arm
        if arm.draft and arm.k is not None and arm.controller == "fixed" and row.figures.contract == "exact":
            found.setdefault(f"{arm.draft} {arm.policy}", {})[arm.k + 1] = row
    return {name: rows for name, rows in found.items() if len(rows) >= FEWEST_WIDTHS}
