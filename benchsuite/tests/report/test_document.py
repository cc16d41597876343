"""Tables: every cell as it was given, under its header, in each style."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.report.document import Table

CELLS = st.text("ab1.0%x", min_size=1, max_size=9)
HEADERS = ("row", "ratio", "a long header")


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4))
def test_a_terminals_columns_begin_where_their_headers_begin_and_cells_stay_as_they_are(
    rows: list[tuple[str, str, str]],
) -> None:
    head, rule, *body = Table(HEADERS, rows).drawn().splitlines()
    starts = [found.start() for found in re.finditer("-+", rule)]
    ends = [*starts[1:], None]
    assert [head[a:b].strip() for a, b in zip(starts, ends, strict=True)] == list(HEADERS)
    assert [tuple(line[a:b].strip() for a, b in zip(starts, ends, strict=True)) for line in body] == rows
    widest = [max(map(len, column)) for column in zip(HEADERS, *rows, strict=True)]
    assert len(rule) == sum(widest) + 2 * (len(HEADERS) - 1), "no column is wider than what it holds"


def test_numbers_keep_their_zeros_and_none_is_empty_in_every_style() -> None:
    table = Table(("row", "ratio"), [("007", "1.50"), (None, 2)])
    assert table.drawn().splitlines() == ["row  ratio", "---  -----", "007  1.50", "     2"]
    assert table.drawn("github").splitlines()[2:] == ["| 007   | 1.50    |", "|       | 2       |"]
    assert re.findall("<td>(.*?) *</td>", table.drawn("html")) == ["007", "1.50", "", "2"]


def test_a_cell_of_several_lines_keeps_its_column() -> None:
    assert Table(("a", "b"), [("x\nlonger", "1")]).drawn().splitlines() == [
        "a       b",
        "------  -",
        "x       1",
        "longer",
    ]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got a row of 1 cells under 2 headers: \['x'\]"):
        Table(("a", "b"), [("x",)]).drawn()
