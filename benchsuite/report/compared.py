"""Comparisons of runs, and their history, as documents."""

from __future__ import annotations

from collections.abc import Sequence

from benchsuite.compare.changes import MARKS, Change, changes, summary
from benchsuite.compare.sides import ComparedSide
from benchsuite.report.document import Document, Lines, Plots, Section, Table, TableCell
from benchsuite.report.plots import Plot, Trace

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


TONES = {"faster": "good", "slower": "bad", "fails now": "bad"}
"""The colour of a change's mark on a page."""


def _cells(change: Change) -> list[TableCell | str]:
    def speed(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}x"

    ratio = "-" if change.ratio is None else f"{change.ratio:.3f}"
    bounds = "-" if change.low is None else f"{change.low:.3f}-{change.high:.3f}"
    mark = TableCell(MARKS[change.kind], TONES.get(change.kind, ""), change.kind)
    return [mark, change.row, speed(change.before), speed(change.now), ratio, bounds, change.also]


def comparison_document(sides: Sequence[ComparedSide], every: bool) -> Document:
    """Return the comparison of the first side with each other; ``every``: also the rows without a change."""
    sections = [
        Section(
            title,
            [
                Table(HEADERS, [_cells(change) for change in kept]),
                Lines([told if every else f"{told} (all of them: --all)"]),
            ],
        )
        for title, kept, told in comparisons(sides, every)
    ]
    card = Section(parts=[Lines([side.title for side in sides])])
    return Document("Runs compared", [card, *sections, Section(parts=[Lines([LEGEND])])])


def history_document(sides: Sequence[ComparedSide]) -> Document:
    """Return a plot of the speedup of every row over runs in the order of their times."""
    ordered = sorted(sides, key=lambda side: str(side.made.get("time", "")))
    names = list(dict.fromkeys(name for side in ordered for name in side.rows))
    numbered = [f"{place}: {side.title}" for place, side in enumerate(ordered, 1)]
    return Document(
        f"History of {len(sides)} runs",
        [Section(parts=[Lines(numbered), Plots([plot for name in names if (plot := _plot(name, ordered))])])],
    )


def _plot(name: str, sides: Sequence[ComparedSide]) -> Plot | None:
    """The speedups of one row; None if no run has one."""
    figures = [(place, side, side.rows.get(name)) for place, side in enumerate(sides, 1)]
    seen = [(place, side, found, found.speedup) for place, side, found in figures if found and found.speedup]
    if not seen:
        return None
    trace = Trace(
        name,
        [(float(place), speedup) for place, _, _, speedup in seen],
        0,
        joined=True,
        bars=[(found.low or speedup, found.high or speedup) for _, _, found, speedup in seen],
        said=[f"{side.title}: {speedup:.2f}x" for _, side, _, speedup in seen],
    )
    note = f"With the 95 % interval of each run; the last: {seen[-1][3]:.2f}x."
    return Plot(name, note, "run", "speedup", [trace], level=(1.0, "the baseline"), whole=True, zero=False)
