"""A comparison of runs as people read it: on the terminal, in Markdown, as a page; and their history as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.compare.changes import MARKS, Change, changes, summary
from benchsuite.compare.sides import ComparedSide
from benchsuite.report import html
from benchsuite.report.document import Style, Table

LEGEND = ", ".join(f"{mark} {kind}" for kind, mark in MARKS.items() if mark.strip())

HEADERS = ("", "row", "before", "now", "ratio", "95 % interval", "what else")


def comparisons(sides: Sequence[ComparedSide], every: bool) -> list[tuple[str, list[Change], str]]:
    """For each side after the first, return its title, the changes from the first that are shown, and a summary."""
    base, found = sides[0], []
    for head in sides[1:]:
        all_of_them = changes(base, head)
        kept = [change for change in all_of_them if every or change.changed]
        found.append((f"{base.name} → {head.name}", kept, summary(all_of_them)))
    return found


def _cells(change: Change) -> list[str]:
    def speed(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}x"

    ratio = "-" if change.ratio is None else f"{change.ratio:.3f}"
    bounds = "-" if change.low is None else f"{change.low:.3f}-{change.high:.3f}"
    return [MARKS[change.kind], change.row, speed(change.before), speed(change.now), ratio, bounds, change.also]


def as_text(sides: Sequence[ComparedSide], every: bool, style: Style) -> str:
    """Return the comparison for a terminal of 120 columns (``simple``), or in Markdown (``github``)."""
    parts = ["\n".join(side.shown for side in sides)]
    for title, found, told in comparisons(sides, every):
        body = [_cells(change) for change in found]
        if style == "simple":
            widest = max((len(cells[-1]) for cells in body), default=0)
            if widest > 30:
                body = [[*cells[:-1], textwrap.fill(cells[-1], 30)] for cells in body]
        parts.append(f"## {title}" if style == "github" else title)
        if body:
            parts.append(Table(HEADERS, body).drawn(style))
        parts.append(told if every else f"{told} (all of them: --all)")
    return "\n\n".join([*parts, LEGEND]) + "\n"


def as_page(sides: Sequence[ComparedSide], every: bool) -> str:
    """Return the comparison as one self-contained HTML page."""
    found = [
        {"title": title, "rows": [(change.kind, _cells(change)) for change in kept], "summary": told}
        for title, kept, told in comparisons(sides, every)
    ]
    return html.template("compare.html.j2", sides=sides, found=found, headers=HEADERS, legend=LEGEND)


def history(sides: Sequence[ComparedSide]) -> str:
    """Return a self-contained HTML page with the speedup of every row over runs in the order of their times."""
    ordered = sorted(sides, key=lambda side: str(side.made.get("time", "")))
    names = list(dict.fromkeys(name for side in ordered for name in side.rows))
    return html.template("history.html.j2", sides=ordered, rows=[_line(name, ordered) for name in names])


WIDTH, HEIGHT = 360, 90
"""Of one row's chart, in pixels."""


def _line(name: str, sides: Sequence[ComparedSide]) -> dict[str, Any]:
    """One row's chart: its points, and where a speedup of 1 is."""
    figures = [(place, side, side.rows.get(name)) for place, side in enumerate(sides)]
    seen = [(place, side, found) for place, side, found in figures if found and found.speedup]
    values = [value for _, _, found in seen for value in (found.low, found.speedup, found.high) if value]
    top, bottom = max([1.05, *values]), min([0.95, *values])

    def x(place: int) -> float:
        return 14 + (WIDTH - 28) * place / max(len(sides) - 1, 1)

    def y(value: float) -> float:
        return 12 + (HEIGHT - 24) * (top - value) / (top - bottom)

    points: list[Mapping[str, Any]] = [
        {
            "x": x(place),
            "y": y(found.speedup or 1.0),
            "low": y(found.low or found.speedup or 1.0),
            "high": y(found.high or found.speedup or 1.0),
            "title": f"{side.shown}: {found.speedup:.2f}x",
        }
        for place, side, found in seen
    ]
    last = seen[-1][2].speedup if seen else None
    return {"name": name, "points": points, "one": y(1.0), "last": last, "width": WIDTH, "height": HEIGHT}
