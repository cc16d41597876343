"""Tables as values, and the one place that lays them out: for a terminal, in Markdown, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Style = Literal["simple", "github", "html"]
"""A terminal of 100 to 120 columns; Markdown; an element of a page."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headers, each as it is shown; a cell that is None is empty.

    Example: ``print(Table(("draft", "speedup"), [("ngram", "1.25x")]).drawn())``
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]

    def drawn(self, style: Style = "simple") -> str:
        """Return the table as text. Columns are left-aligned, and numbers are shown as they are written.

        Cells of several lines are laid out in ``simple`` only. ValueError if a row has another number of cells than
        there are headers.
        """
        from tabulate import tabulate

        body = [["" if cell is None else str(cell) for cell in row] for row in self.rows]
        wrong = next((row for row in body if len(row) != len(self.headers)), None)
        if wrong is not None:
            raise ValueError(f"got a row of {len(wrong)} cells under {len(self.headers)} headers: {wrong}")
        if style == "simple":
            # tabulate pads headers by two, so that the tables would exceed 120 columns: headers are a row.
            columns = zip(self.headers, *body, strict=True)
            widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
            body = [list(self.headers), ["-" * width for width in widths], *body]
        headers, form = ((), "plain") if style == "simple" else (self.headers, style)
        return tabulate(body, headers, tablefmt=form, disable_numparse=True, stralign="left")
