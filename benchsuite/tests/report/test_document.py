"""Documents: every cell and line as it was given, under its header, in each renderer."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.report.document import Code, Document, Lines, Part, Plots, Section, Table, TableCell
from benchsuite.report.plots import Plot, Trace
from benchsuite.report.renderers import laid_out, markdown, narrowed, page, section_lines, terminal, wrapped

CELLS = st.text("ab1.0%x", min_size=1, max_size=9)
HEADERS = ("row", "ratio", "a long header")


def shown_lines(*parts: Part) -> list[str]:
    """The lines of parts on a terminal."""
    return section_lines(Section(parts=parts))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


WHOLE = Document(
    "a title",
    [
        Section("first", [Lines(["one", "two"]), Table(("h", "i"), [("x", "y")], "a table"), Code("a\nb", "sh")]),
        Section(parts=[Lines([]), Table(("h",), []), Lines(["three"])]),
        Section("empty", [Lines([]), Table(("h",), [], "a table")]),
        Section("hidden", [Lines(["four"])], detail=True),
        Section("partly", [Lines(["five"], detail=True), Table(("j",), [("z",)], detail=True), Lines(["six"])]),
    ],
    ["first answer", "second answer"],
)


def test_a_terminal_has_a_blank_line_between_parts_and_a_title_right_above_its_section() -> None:
    lines = [
        *("first answer", "second answer", "", "first", "one", "two", "", "a table:", "h  i", "-  -", "x  y", ""),
        *("a", "b", "", "three", "", "partly", "six"),
    ]
    assert terminal(WHOLE) == ["a title", "", *lines]
    assert terminal(WHOLE, titled=False) == lines
    assert section_lines(WHOLE.sections[4]) == ["partly", "six"]
    assert section_lines(WHOLE.sections[4], titled=False) == ["six"]
    assert section_lines(WHOLE.sections[2]) == []


def test_markdown_has_every_part_below_its_title_with_a_blank_line_between_them() -> None:
    """Details too; what holds nothing has no title."""
    blocks = markdown(WHOLE).removesuffix("\n").split("\n\n")
    assert blocks == [
        *("# a title", "first answer", "second answer", "## first", "- one\n- two", "### a table"),
        *("| h   | i   |\n|-----|-----|\n| x   | y   |", "```sh\na\nb\n```", "- three", "## hidden", "- four"),
        *("## partly", "- five", "| j   |\n|-----|\n| z   |", "- six"),
    ]
    assert markdown(Document(sections=[Section(parts=[Code("x")])])) == "```\nx\n```\n"


def test_a_page_has_what_holds_something_and_opens_what_is_no_detail() -> None:
    html = page(WHOLE)
    assert re.findall("<h2>(.*?)</h2>", html) == ["first", "empty", "hidden", "partly"]
    assert re.findall('<p class="answer">(.*?)</p>', html) == ["first answer", "second answer"]
    assert re.findall('<details class="table"( open)?><summary>(.*?)</summary>', html) == [(" open", "a table")]
    closed = Document(sections=[Section("s", [Table(("h",), [("x",)], "t", detail=True)]), Section("no parts")])
    assert re.findall('<details class="table"( open)?><summary>(.*?)</summary>', page(closed)) == [("", "t")]
    assert "no parts" not in page(closed)
    assert "<title>a title</title>" in html
    assert re.findall("<li>(one|two|three|four|five|six)</li>", html) == ["one", "two", "three", "four", "five", "six"]


@pytest.mark.slow
@given(st.lists(st.sampled_from(["a", "word", "co-operate-with-every-other", "x" * 30, "y" * 130]), max_size=40))
def test_a_long_sentence_goes_on_below_with_an_indent_and_no_word_is_cut(words: list[str]) -> None:
    first, *others = wrapped([" ".join(words)]) or [""]
    assert all(line.startswith("  ") and line[2] != " " for line in others)
    assert not first.startswith(" ")
    assert [word for line in (first, *others) for word in line.split()] == words
    assert all(len(line) <= 100 or len(line.split()) == 1 for line in (first, *others))
    for line, after in zip((first, *others), others, strict=False):
        assert len(line) + 1 + len(after.split()[0]) > 100, "a line ends where the next word would not fit"


@given(st.text("abcdef", max_size=40), st.integers(4, 30))
def test_a_name_that_is_too_long_keeps_its_beginning_and_its_end(name: str, most: int) -> None:
    short = narrowed(name, most)
    if len(name) <= most:
        assert short == name
    else:
        begin, end = short.split("…")
        assert len(short) == most - most % 2
        assert (name.startswith(begin), name.endswith(end)) == (True, True)
        assert len(begin) - len(end) == 1


@pytest.mark.parametrize(
    ("widths", "fitted"),
    [
        ((30, 31, 35), (30, 31, 35)),  # 96 characters and two gaps of two: just 100
        ((30, 31, 37), (30, 31, 35)),
        ((41, 5, 7), (41, 5, 7)),
        ((10, 99, 5), (10, 81, 5)),
        ((61, 61), (49, 49)),
        ((12, 13, 91), (12, 13, 71)),
        ((12,) * 9, (12,) * 9),
        ((14, *(13,) * 8), (12, *(11,) * 8)),  # of an odd number of letters one more does not fit
    ],
)
def test_the_widest_column_gives_way_until_the_table_fits_and_none_below_twelve(
    widths: tuple[int, ...], fitted: tuple[int, ...]
) -> None:
    """Words of one letter after one of one or two, so that a column can be as narrow as it must."""
    texts = ["ab"[: 2 - width % 2] + " c" * ((width - 1) // 2) for width in widths]
    rule = shown_lines(Table([f"h{n}" for n in range(len(widths))], [texts]))[1]
    assert tuple(map(len, rule.split())) == fitted


def test_a_narrow_name_is_narrow_however_much_room_there_is_and_other_columns_are_not() -> None:
    table = Table(("name", "what"), [("a" * 30, "b" * 30), ("c" * 20, "d")], narrow=20)
    assert shown_lines(table)[2:] == ["a" * 10 + "…" + "a" * 9 + "  " + "b" * 30, "c" * 20 + "  d"]
    assert shown_lines(Table(("name", "n"), [("a" * 30, 1)], narrow=40))[2] == "a" * 30 + "  1"


def test_a_column_gives_way_one_letter_at_a_time() -> None:
    """103 letters with their gaps: the last column is to have three fewer, which are its last word and a blank."""
    words = "a" + " b" * 18
    lines = shown_lines(Table(("h", "i", "j"), [("x" * 29, "y" * 30, f"{words} cc")]))
    assert lines[2] == f"{'x' * 29}  {'y' * 30}  {words}"


def test_no_word_of_a_table_is_cut_though_its_column_is_narrower() -> None:
    words = [f"co-operate-with-{letter * 8}" for letter in "abcdefghi"]
    [_, _, line] = shown_lines(Table(words, [words]))
    assert line.split() == words


def test_a_cell_of_several_lines_has_a_row_of_each_and_of_markdown_one() -> None:
    assert laid_out(["h", "i"], [["a\nbc", "1.50"]], "plain").splitlines() == ["h   i", "--  ----", "a   1.50", "bc"]
    assert shown_lines(Table(("h",), [("a\nb",)]))[2:] == ["a", "b"]
    assert laid_out(["h", "i"], [["a\nb|c", "1.50"]], "github").splitlines()[2] == "| a<br>b\\|c | 1.50 |"
