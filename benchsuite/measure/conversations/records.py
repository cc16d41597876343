"""Records of a trace's file: an object of JSON a line, an array of them, rows of CSV, or lines of text."""

from __future__ import annotations

import csv
import io
from typing import Any

from benchsuite.machine.user_files import UserFileError, parsed_json
from benchsuite.measure.conversations.form import trace_refusal
from benchsuite.measure.conversations.line import TraceLine

LONGEST_CELL = 2**31 - 1
"""Characters of a cell: Python's own limit is 131,072, which a long prompt exceeds."""


class CsvRow(TraceLine):
    """A row of CSV by the names of its columns: an empty cell is none, and what is no text is read from it as JSON."""

    def value(self, name: str) -> Any:
        """What the cell says, or its text where that is no JSON; 5.0, as tables write it beside empty cells, is 5."""
        text = super().value(name)
        try:
            found = None if text is None else parsed_json(text)
        except UserFileError:
            return text
        return int(found) if isinstance(found, float) and found.is_integer() else found


def json_lines(path: str, text: str) -> list[TraceLine]:
    """Return the objects of a file with one a line; blank lines are none.

    Raises SpecdecError, with the line, for what is no JSON and no object, and for a file without lines.
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                found.append(TraceLine(where, parsed_json(line)))
            except UserFileError as error:
                raise trace_refusal(f"{where}: {line[:60]!r} is no JSON ({error}); expected an object") from error
    return _some(path, found, "a JSON object a line")


def json_values(path: str, text: str) -> list[TraceLine]:
    """Return the objects of a file that is an array of them, or has one a line.

    Raises SpecdecError as ``json_lines``.
    """
    if not text.lstrip().startswith("["):
        return json_lines(path, text)
    try:
        objects = parsed_json(text)
    except UserFileError as error:
        raise trace_refusal(f"the trace {path} is no JSON ({error}); expected an array of objects") from error
    found = [TraceLine(f"{path}, object {number}", one) for number, one in enumerate(objects, 1)]
    return _some(path, found, "an array of objects, at least one")


def csv_rows(path: str, text: str) -> list[TraceLine]:
    """Return the rows of CSV under the header that is the first of them; blank lines are none.

    Raises SpecdecError, with the line, for what is no CSV, a name that stands twice in the header, more or fewer cells
    than the header has, and a file without rows.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    found: list[TraceLine] = []
    begins = 1
    limit = csv.field_size_limit(LONGEST_CELL)
    try:
        for cells in reader:
            where, begins = f"{path}, line {begins}", reader.line_num + 1
            if cells and not header:
                header = cells
                if twice := [name for name in header if header.count(name) > 1]:
                    raise trace_refusal(f"{where}: the column {twice[0]!r} stands twice; expected each once")
            elif cells and len(cells) != len(header):
                raise trace_refusal(
                    f"{where}: it has {len(cells)} cells; expected {len(header)}, one under each name of the header: "
                    "write a text with commas or line breaks between double quotes"
                )
            elif cells:
                found.append(CsvRow(where, {name: cell or None for name, cell in zip(header, cells, strict=True)}))
    except csv.Error as error:
        raise trace_refusal(f"{path}, line {begins}: it is no CSV ({error}); expected a row of cells") from error
    finally:
        csv.field_size_limit(limit)
    return _some(path, found, "a header and a row under it")


def text_lines(path: str, text: str) -> list[TraceLine]:
    """Return each line as a record with ``text``, which keeps its line break, as GuideLLM's has it.

    Raises SpecdecError for a file without lines.
    """
    lines = io.StringIO(text)
    found = [TraceLine(f"{path}, line {number}", {"text": line}) for number, line in enumerate(lines, 1)]
    return _some(path, found, "a prompt a line")


def _some(path: str, found: list[TraceLine], expected: str) -> list[TraceLine]:
    if not found:
        raise trace_refusal(f"the trace {path} has no lines; expected {expected}")
    return found
