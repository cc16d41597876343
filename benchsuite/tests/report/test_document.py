"""Documents: every cell and line as it was given, under its header, in each renderer."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.report.document import Code, Document, Lines, Part, Plots, Section, Table, TableCell
from benchsuite.report.plots import Plot, Trace
from benchsuite.report.renderers import markdown, page, section_lines, terminal

CELLS = st.text("ab1.0%x", min_size=1, max_size=9)
HEADERS = ("row", "ratio", "a long header")


def shown_lines(*parts: Part) -> list[str]:
    """The lines of parts on a terminal."""
    return section_lines(Section(parts=parts))


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4))
def test_a_terminals_columns_begin_where_their_headers_begin_and_cells_stay_as_they_are(
    rows: list[tuple[str, str, str]],
) -> None:
    head, rule, *body = shown_lines(Table(HEADERS, rows))
    starts = [found.start() for found in re.finditer("-+", rule)]
    ends = [*starts[1:], None]
    assert [head[a:b].strip() for a, b in zip(starts, ends, strict=True)] == list(HEADERS)
    assert [tuple(line[a:b].strip() for a, b in zip(starts, ends, strict=True)) for line in body] == rows
    widest = [max(map(len, column)) for column in zip(HEADERS, *rows, strict=True)]
    assert len(rule) == sum(widest) + 2 * (len(HEADERS) - 1), "no column is wider than what it holds"


@given(
    st.lists(st.lists(st.text("ab ", min_size=1, max_size=60), min_size=4, max_size=4), min_size=1, max_size=3),
    st.sampled_from([None, 28]),
)
def test_a_terminals_table_has_at_most_a_hundred_columns_and_loses_no_word_but_of_a_narrow_name(
    rows: list[list[str]], narrow: int | None
) -> None:
    short = [[" ".join(word[:12] for word in cell.split()) for cell in row] for row in rows]
    headers = ("row", "ratio", "a long header", "said")
    head, rule, *body = shown_lines(Table(headers, short, narrow=narrow))
    assert all(len(line) <= 100 for line in (head, rule, *body))
    starts = [found.start() for found in re.finditer("-+", rule)]
    columns = [" ".join(line[a:b] for line in body).split() for a, b in zip(starts, [*starts[1:], None], strict=True)]
    whole = [[word for row in short for word in row[place].split()] for place in range(4)]
    assert columns[1:] == whole[1:]
    assert narrow or columns[0] == whole[0]


@given(
    st.lists(st.lists(st.text("ab1.0 <&", max_size=40), min_size=3, max_size=3), max_size=3),
    st.lists(st.text("ab <&", max_size=200)),
)
def test_every_renderer_shows_every_cell_and_every_line(rows: list[list[str]], lines: list[str]) -> None:
    document = Document("title", [Section("section", [Table(HEADERS, rows), Lines(lines), Code("a  b\n c")])], ["lead"])
    wanted = ["".join(text.split()) for text in (*(cell for row in rows for cell in row), *lines, "a  b\n c", "lead")]
    for text in ("\n".join(terminal(document)), markdown(document), unescape(page(document))):
        flat = "".join(re.sub(r" \| ", "", text).split())
        assert all(one in flat for one in wanted if len(one) <= 20), (
            text
        )  # longer ones may be cut by a terminal's columns


@given(st.lists(st.lists(st.text("a|\\\n`", max_size=6), min_size=2, max_size=2), min_size=1, max_size=3))
def test_a_row_of_markdown_has_as_many_cells_as_its_header_whatever_is_in_them(rows: list[list[str]]) -> None:
    _, *lines = markdown(Document("t", [Section(parts=[Table(("x|y", "z"), rows)])])).strip().split("\n\n")
    bars = [re.sub(r"\\[\\|`]", "", line).count("|") for line in lines[0].splitlines()]
    assert bars == [3] * (len(rows) + 2)


def test_numbers_keep_their_zeros_and_none_is_empty_in_every_renderer() -> None:
    table = Table(("row", "ratio"), [("007", "1.50"), (None, 2)])
    assert shown_lines(table) == ["row  ratio", "---  -----", "007  1.50", "     2"]
    document = Document("t", [Section(parts=[table])])
    assert markdown(document).splitlines()[4:] == ["| 007   | 1.50    |", "|       | 2       |"]
    assert re.findall("<td[^>]*>(.*?)</td>", page(document)) == ["007", "1.50", "", "2"]


def test_a_table_that_is_too_wide_wraps_its_last_column_and_a_long_name_loses_its_middle() -> None:
    name, words = "a" * 30 + "b" * 30, "word " * 40
    lines = shown_lines(Table(("name", "what else"), [(name, words)], narrow=20))
    assert max(map(len, lines)) <= 120
    assert "".join(lines[2:]).count("word") == 40
    assert lines[2].split()[0] == "a" * 10 + "…" + "b" * 9
    assert name in markdown(Document(sections=[Section(parts=[Table(("name", "n"), [(name, 1)], narrow=20)])]))


def test_a_terminal_leaves_details_and_plots_out_and_a_page_has_all() -> None:
    plot = Plot("a plot", "note", "x", "y", [Trace("t", [(1.0, 2.0)], 0)])
    hidden: list[Part] = [Table(("h",), [("cell",)], "table", detail=True), Lines(["line"], detail=True), Plots([plot])]
    document = Document("title", [Section("seen", hidden), Section("unseen", [Lines(["other"])], detail=True)])
    assert terminal(document) == ["title"], "a section without anything to show has no title"
    for words in ("a plot", "cell", "table", "line", "seen", "unseen", "other"):
        assert words in page(document)
    assert "## unseen\n\n- other" in markdown(document)


def test_a_page_gives_a_cell_its_colour_and_its_hint() -> None:
    heat = Table(("arm", "all"), [("<b>", TableCell("1.5x", "h4", 'a "hint"'))], heat=True)
    html = page(Document("t", [Section(parts=[heat])]))
    assert '<th scope="row">&lt;b&gt;</th><td data-head="all" class="h4" title="a &#34;hint&#34;">1.5x</td>' in html


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got a row of 1 cells under 2 headers: \['x'\]"):
        Table(("a", "b"), [("x",)])
