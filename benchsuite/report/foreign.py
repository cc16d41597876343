"""Foreign results on the terminal: a table of our words, and what was not read."""

from __future__ import annotations

from typing import Any

from benchsuite.foreign.files import ForeignFile
from benchsuite.foreign.glossary import FORMATS, WORDS
from benchsuite.report.document import Document, Lines, Section, Table


def foreign_document(found: ForeignFile) -> Document:
    """Return the runs side by side, a line for each word, with its unit, its name there, and what was converted."""
    words = [word for word in WORDS if any(word.name in run.figures for run in found.runs)]
    body = []
    for word in words:
        place = word.places.get(found.format)
        theirs = place.path if place else ""
        if place and place.unit != word.unit:
            theirs += f" (in {f'shares of {place.per}' if place.per else place.unit})"
        body.append([word.name, word.unit, *(_cell(run.figures.get(word.name)) for run in found.runs), theirs])
    headers = ["figure", "unit", *(run.name for run in found.runs), FORMATS.get(found.format, found.format)]
    lines = [*found.notes, *(f"{run.name}: not read: {_grouped(run.left)}" for run in found.runs if run.left)]
    return Document(sections=[Section(parts=[Table(headers, body), Lines(lines)])])


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}:{count}" for name, count in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _grouped(paths: tuple[str, ...]) -> str:
    """Paths by their first key, with how many each has; all of them stand in a file that ``--to ours`` writes."""
    counts: dict[str, int] = {}
    for path in paths:
        first = path.partition(".")[0]
        counts[first] = counts.get(first, 0) + 1
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())
