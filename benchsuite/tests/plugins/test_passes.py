"""Seconds of slots in passes: the few that are measured tell of all, where slots cost what they cost on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.models import tiny
from benchsuite.tests.steps_rig import sized_env
from specdec.calibration import Calibration, Point
from specdec.devices import Stopwatch
from specdec.stats import RowStats, Stats
from specdec_plugins.calibrated import CalibratedCosts
from specdec_plugins.controllers.budget import Budget
from specdec_plugins.passes import measured_slots, share_of_a_begin


def _seconds(slots: int, rows: int, length: int, size: int, begins: float = 3.0) -> float:
    """Ten seconds; of the first pass 0.2 a slot, of others 0.5 a slot and more for that which begins it; 0.1 a row."""
    begun = (slots - 1) // size
    return (
        10 + 0.1 * rows + 0.01 * length + 0.2 * min(slots, size) + (begins - 0.5) * begun + 0.5 * max(0, slots - size)
    )


class Staircase(Calibration):
    """Measures what a forward takes by ``_seconds``, and knows nothing of what was not measured."""

    def __init__(self, size: int, begins: float = 3.0) -> None:
        nothing: Any = None
        super().__init__(nothing)
        self.size, self.begins = size, begins

    def measure_points(self, points: Iterable[Point]) -> None:
        """Without a clock."""
        for point in points:
            self.seconds[point] = _seconds(sum(point.widths), point.rows, point.length, self.size, self.begins)


@given(st.integers(1, 20), st.integers(0, 300), st.sampled_from([3, 6, 8]), st.sampled_from([0.5, 3.0]), st.data())
def test_what_was_measured_of_a_few_slots_tells_of_all(
    rows: int, more: int, size: int, begins: float, data: st.DataObject
) -> None:
    """Beside the law itself: of any number of rows and slots, at any context."""
    known = Staircase(size, begins)
    costs = CalibratedCosts(sized_env(known, 20, 400, skips_padding=True, slots_of_a_pass=size), [1, 16])
    costs.length = data.draw(st.integers(100, 380))
    slots = rows + more % (15 * rows)
    assert costs.at(slots / rows, rows) == pytest.approx(_seconds(slots, rows, int(costs.length), size, begins))
    between = costs.at((slots + 0.25) / rows, rows) - costs.at(slots / rows, rows)
    assert between == pytest.approx((costs.at((slots + 1) / rows, rows) - costs.at(slots / rows, rows)) / 4)


def test_no_forward_of_many_slots_is_measured_beside_many_rows() -> None:
    """It takes seconds, and a further pass costs what the last ones do."""
    for rows in (1, 8, 32, 100):
        for size in (3, 6, 8):
            found = measured_slots(rows, 16, size)
            assert rows == found[0]
            assert found[-1] <= max(64, rows + 2 * size)


@pytest.mark.parametrize(
    ("begun", "full", "share"), [(11.0, 14.0, 0.25), (20.0, 14.0, 1.0), (9.0, 14.0, 1 / 8), (9, 8, 1 / 8)]
)
def test_a_slot_that_begins_a_pass_costs_no_less_than_one_that_fills_it(
    begun: float, full: float, share: float
) -> None:
    """Whatever the noise of three measurements says."""
    assert share_of_a_begin({8: 10.0, 9: begun, 16: full}, 4, 8) == pytest.approx(share)


def test_budget_fills_passes_and_begins_none_for_a_single_slot() -> None:
    """Four rows of one slot share a pass of eight: four more slots cost 0.2 each, the fifth three seconds, and the next
    seven 0.5. A token is worth 11.4 / 4 seconds."""
    env = sized_env(Staircase(8), 4, 200, skips_padding=True, slots_of_a_pass=8)
    controller, stats = Budget(env, maximum=4), Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    stats.batch, stats.lengths = 4, (20,) * 4
    stats.rows = tuple(RowStats(row, length=20, room=9) for row in range(4))
    controller.next_k(stats)
    price = controller.slot_price
    assert price is not None
    assert price.counts([[0.5, 0.3]] * 4) == [1, 1, 1, 1]
    assert price.counts([[0.9, 0.8]] * 2 + [[0.3, 0.0], [0.05, 0.0]]) == [2, 2, 0, 0]
    assert price.counts([[0.9, 0.8, 0.7, 0.3]] * 4) == [3, 3, 3, 3], "twelve and four fill two passes"


@pytest.mark.parametrize(("backend", "passes"), [("reference", False), ("cpu", True)])
def test_a_target_says_whether_its_backend_computes_slots_in_passes(backend: str, passes: bool) -> None:
    assert (tiny.assembly(backend=backend).target.slots_of_a_pass > 1) is passes
