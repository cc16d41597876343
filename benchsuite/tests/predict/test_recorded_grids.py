"""The advisor beside two recorded grids of every K: its runs against its predictions, and more prompts traced."""

from __future__ import annotations

import pytest

from benchsuite.tests.recorded_acceptance import PROMPTS, ROWS
from benchsuite.tests.recorded_grids import GRIDS, RecordedGrid
from benchsuite.tests.rig import some_of


@pytest.mark.parametrize("tokens", GRIDS)
def test_a_tournament_between_predicted_strategies_found_no_more_than_the_predictions(tokens: int) -> None:
    """About half of a budget went into it: 10 of 12 choices were within 3 % of the fastest before it, and after it."""
    grid = RecordedGrid.load(tokens)
    alone, after = grid.choices(grid.predicted), grid.choices(grid.expected)
    assert len(alone.shares) == len(after.shares) == 12
    assert alone.close == after.close == 10
    assert after.mean - alone.mean < 0.008


@pytest.mark.slow
@pytest.mark.parametrize("tokens", some_of(1, [*GRIDS]))
def test_all_prompts_traced_in_its_place_find_the_fastest_cell_of_each_text(tokens: int) -> None:
    """At costs that were known before the grid: 12 of 12, where half of the prompts leave out one or two, and half of
    their error of a cell."""
    grid = RecordedGrid.load(tokens)
    every = grid.choices(grid.traced(range(PROMPTS)))
    halves = [grid.choices(grid.traced(some)) for some in (range(ROWS), range(ROWS, PROMPTS))]
    assert every.close == 12
    assert all(half.close < 12 and half.error > 1.3 * every.error for half in halves)
    assert every.mean > max(grid.choices(grid.predicted).mean, grid.choices(grid.expected).mean)
    assert every.error < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("tokens", some_of(1, [*GRIDS]))
def test_a_k_and_a_batch_that_were_not_run_are_predicted_where_a_measured_speedup_says_little(tokens: int) -> None:
    """What a prediction adds to a run: 2 to 4 % in place of 10 to 32 %."""
    for found in RecordedGrid.load(tokens).accuracies.values():
        assert found.predicted.median < 0.04 < 0.1 < found.known.median
        assert found.predicted.explained > 0.95 > 0.5 > found.known.explained
