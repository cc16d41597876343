"""The renderers of documents: one for a terminal, one for Markdown, one for a page that needs nothing else."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from benchsuite.report.document import Code, Document, Lines, Part, Section, Table
from benchsuite.report.plots import Plot
from specdec.errors import folded

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTH = 100
"""Characters of a terminal's line."""

LEAST = 12
"""Characters to which a column of a wide table is narrowed at most."""


def terminal(document: Document, titled: bool = True) -> list[str]:
    """Return the lines for a terminal, below the title if ``titled``. Sentences have lines of ``WIDTH`` characters;
    details, plots and generations are left out.

    Example: ``print("\\n".join(terminal(document)))``
    """
    blocks = [document.title if titled else "", "\n".join(wrapped(document.lead))]
    blocks += ["\n".join(section_lines(section)) for section in document.sections if not section.detail]
    return "\n\n".join(block for block in blocks if block).splitlines()


def section_lines(section: Section, titled: bool = True) -> list[str]:
    """Return a section's lines for a terminal; ``titled``: below its title."""
    blocks = [block for part in section.parts if (block := _for_terminal(part))]
    if not blocks:
        return []
    return [*wrapped([section.title] * titled), *"\n\n".join(blocks).splitlines()]


def _for_terminal(part: Part) -> str:
    if isinstance(part, Code):
        return part.text
    if isinstance(part, Lines):
        return "" if part.detail else "\n".join(wrapped(part.lines))
    if not isinstance(part, Table) or part.detail or not part.rows:
        return ""
    title = f"{part.title}:\n" if part.title else ""
    return title + _laid_out(part, "plain")


def wrapped(lines: Sequence[str]) -> list[str]:
    """Return lines of at most ``WIDTH`` characters, cut at blanks; the rest of a longer one is indented."""
    return [part for line in lines for part in folded(line, WIDTH).splitlines()]


def _laid_out(table: Table, form: Literal["plain", "github"]) -> str:
    """The table's rows; for a terminal within its width: long names lose their middle, other texts are wrapped."""
    headers, body = [*table.headers], [[cell.text for cell in row] for row in table.cells]
    if form == "plain":
        lines = [headers, *body]
        widths = _fitted([max(map(len, column)) for column in zip(*lines, strict=True)], table.narrow)
        fits = [narrowed if table.narrow and not place else _filled for place in range(len(widths))]
        headers, *body = [
            [fit(text, width) for fit, text, width in zip(fits, row, widths, strict=True)] for row in lines
        ]
    return laid_out(headers, body, form)


def _fitted(widths: list[int], narrow: int | None) -> list[int]:
    """The widths of a table's columns, of which the widest give way until the table fits, down to ``LEAST``."""
    found = [min(widths[0], narrow or widths[0]), *widths[1:]]
    while sum(found) + 2 * (len(found) - 1) > WIDTH and max(found) > LEAST:
        found[found.index(max(found))] -= 1
    return found


def _filled(text: str, width: int) -> str:
    return text if len(text) <= width else textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def laid_out(headers: Sequence[str], body: Sequence[Sequence[str]], form: Literal["plain", "github"]) -> str:
    """Return rows as a table of left-aligned columns for a terminal, or of Markdown. Numbers stay as they are written.

    Example: ``laid_out(["arm", "tok/s"], [["plain", "12.5"]], "github")``
    """
    from tabulate import tabulate

    headers, body = [*headers], [[*row] for row in body]
    if form == "github":
        headers, *body = [[_in_a_cell(text) for text in row] for row in (headers, *body)]
    else:
        # tabulate pads headers by two, so that the tables would exceed their width: headers are a row.
        lines = [[line for cell in column for line in cell.split("\n")] for column in zip(headers, *body, strict=True)]
        headers, body = [], [headers, ["-" * max(map(len, column)) for column in lines], *body]
    return tabulate(body, headers, tablefmt=form, disable_numparse=True)


def _in_a_cell(text: str) -> str:
    """A text that Markdown takes for one cell: a bar would begin another, and a new line another row.

    Backslashes before a bar are doubled, or they would escape the one that escapes the bar.
    """
    return re.sub(r"(\\*)\|", lambda found: 2 * found[1] + r"\|", text).replace("\n", "<br>")


def narrowed(name: str, most: int) -> str:
    """Return a name of at most ``most`` characters: a longer one loses its middle."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"


def markdown(document: Document) -> str:
    """Return the document as Markdown, with every detail; plots and generations are left out."""
    blocks = [f"# {document.title}" if document.title else "", "\n\n".join(document.lead)]
    for section in document.sections:
        parts = [block for part in section.parts for block in _in_markdown(part) if block]
        blocks += [f"## {section.title}"] * bool(section.title and parts) + parts
    return "\n\n".join(block for block in blocks if block) + "\n"


def _in_markdown(part: Part) -> Iterator[str]:
    if isinstance(part, Table) and part.rows:
        yield f"### {part.title}" if part.title else ""
        yield _laid_out(part, "github")
    elif isinstance(part, Lines):
        yield "\n".join(f"- {line}" for line in part.lines)
    elif isinstance(part, Code):
        yield f"```{part.language}\n{part.text}\n```"


def page(document: Document) -> str:
    """Return the document as one HTML page: no network, no library. Texts are escaped."""
    sections = [
        (section.title, [(type(part).__name__.lower(), part) for part in section.parts])
        for section in document.sections
        if section.parts
    ]
    return template("document.html.j2", title=document.title, lead=document.lead, sections=sections)


def picture(plot: Plot) -> str:
    """Return a plot as an SVG file of its own."""
    return template("plot_file.svg.j2", p=plot.drawn())


def template(name: str, **values: Any) -> str:
    """Return a template of ``benchsuite/report/templates`` with ``values`` filled in and escaped."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("benchsuite.report"), autoescape=True)
