"""Fixed thresholds beside the gate's rule: shares by hand, and the table of docs/gate.md."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import pytest

from benchsuite.workshop.gate.fixed import LOSSES, fixed_rates, fixed_table, gate_rates, read_ratios

ROOT = Path(__file__).parents[3]
LAUNCHES = ROOT / "docs" / "results" / "20261123-gate-validation-tiny-cpu-avx2.json"


def table_of(text: str) -> list[list[str]]:
    """The lines of the table of fixed thresholds, cell by cell."""
    lines = [line for line in text.splitlines() if re.match(r"\| (fixed, |the gate's, )", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_fixed_tolerance_fails_each_launch_that_is_slower_by_more_than_it() -> None:
    """Three launches of two rows: a is 4 % slower in the last, and b is always the same."""
    sides = {"a": [0.0, 0.0], "b": [0.0, 0.0]}, {"a": [log(1.04)], "b": [0.0]}
    # Two of the six pairs in order have the slow launch as their head; two have it as their base.
    assert fixed_rates(sides, 0.02) == pytest.approx([2 / 12, 2 / 6, 2 / 12, 0.0])
    assert fixed_rates(sides, 0.05) == pytest.approx([0.0, 0.0, 10 / 12, 0.0])
    assert fixed_rates(sides, 0.0) == pytest.approx([2 / 12, 2 / 6, 0.0, 0.0])
    assert LOSSES == (0.0, 0.05, 0.1)


def test_means_of_launches_vary_less() -> None:
    quiet = read_ratios(LAUNCHES)["quiet"]
    one, many = (fixed_rates(quiet, 0.05, launches) for launches in (1, 13))
    assert many[0] < one[0] / 10
    assert many[2] == pytest.approx(0.5, abs=0.05), "a loss of the tolerance is found half of the time however many"


def test_the_gate_finds_what_is_far_beyond_its_tolerance_in_launches_without_noise() -> None:
    sides = {"a": [0.0] * 14}, {"a": [0.0] * 14}
    for level in (1, 2):
        assert gate_rates(sides, level, 3) == [(0.0, 0.0)] * 4


def test_the_page_has_the_shares_of_fixed_tolerances() -> None:
    found = fixed_table(read_ratios(LAUNCHES), 0)
    shown = table_of((ROOT / "docs" / "gate.md").read_text(encoding="utf-8"))
    assert [list(map(str, row)) for row in found.rows] == shown[: len(found.rows)]
    assert len(shown) == len(found.rows) + 2


@pytest.mark.slow
def test_the_page_has_the_shares_of_the_gate() -> None:
    found = fixed_table(read_ratios(LAUNCHES), 100)
    assert [list(map(str, row)) for row in found.rows] == table_of((ROOT / "docs" / "gate.md").read_text("utf-8"))
