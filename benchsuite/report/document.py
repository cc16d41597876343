"""Reports as values: a document of sections, each of tables, lines, code, plots and generations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchsuite.report.generation import ShownToken
from benchsuite.report.plots import Plot


@dataclass(frozen=True)
class TableCell:
    """A cell that a page colours: its text, its ``tone`` in the style sheet (``h0`` to ``h6``, ``good``, ``bad``), and
    a ``hint`` that says it in full."""

    text: str
    tone: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headers, each as it is shown; a cell that is None is empty.

    ``detail``: not on the terminal, and closed on a page. ``heat``: a page draws a heat map. ``narrow``: the most
    characters of the first column on a terminal; a longer name loses its middle there. ValueError if a row has another
    number of cells than there are headers.

    Example: ``terminal(Document(sections=[Section(parts=[Table(("draft", "speedup"), [("ngram", "1.25x")])])]))``
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    detail: bool = False
    heat: bool = False
    narrow: int | None = None

    def __post_init__(self) -> None:
        wrong = next((row for row in self.rows if len(row) != len(self.headers)), None)
        if wrong is not None:
            raise ValueError(f"got a row of {len(wrong)} cells under {len(self.headers)} headers: {[*wrong]}")

    @property
    def cells(self) -> list[list[TableCell]]:
        """The rows, every cell as one."""
        return [
            [cell if isinstance(cell, TableCell) else TableCell("" if cell is None else str(cell)) for cell in row]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Lines:
    """Sentences below or above tables: a terminal wraps them, Markdown and pages make a list. ``detail``: not on the
    terminal."""

    lines: Sequence[str]
    detail: bool = False


@dataclass(frozen=True)
class Code:
    """Text that is shown as it is: a command, a diff."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Plots:
    """Plots, which only pages show."""

    plots: Sequence[Plot]


@dataclass(frozen=True)
class Generations:
    """Outputs token by token, each with its name; only pages show them."""

    outputs: Sequence[tuple[str, Sequence[ShownToken]]]


Part = Table | Lines | Code | Plots | Generations
"""What a section holds."""


@dataclass(frozen=True)
class Section:
    """Parts below a title. ``detail``: not on the terminal."""

    title: str = ""
    parts: Sequence[Part] = ()
    detail: bool = False


@dataclass(frozen=True)
class Document:
    """A report: a title, the lines that matter most (``lead``), and sections.

    ``benchsuite.report.renderers`` has one function each for a terminal, for Markdown and for a page.
    """

    title: str = ""
    sections: Sequence[Section] = ()
    lead: Sequence[str] = ()
