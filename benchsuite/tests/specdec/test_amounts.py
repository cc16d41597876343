"""Counts and bytes in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.amounts import UNITS, amount, memory_text


@pytest.mark.parametrize(
    ("one", "many"), [("row", "rows"), ("launch", "launches"), ("pass", "passes"), ("box", "boxes"), ("page", "pages")]
)
def test_one_has_the_noun_itself_and_every_other_count_its_plural(one: str, many: str) -> None:
    assert [amount(count, one) for count in (0, 1, 2)] == [f"0 {many}", f"1 {one}", f"2 {many}"]
    assert [amount(count, one, "others") for count in (1, 2)] == [f"1 {one}", "2 others"]


@given(st.integers(0, 2**44))
def test_bytes_are_never_nothing_and_have_their_unit(count: int) -> None:
    number, unit = memory_text(count).split()
    size = dict(UNITS).get(unit, 1)
    shown = float(number) * size
    assert shown == pytest.approx(count, abs=0.005 * size)
    assert bool(shown) == bool(count)
    assert memory_text(1) == "1 byte"
