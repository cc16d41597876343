"""The search for a precision: what it measures next, when it ends, and what it says of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from benchsuite.measure.interval import estimate
from benchsuite.measure.plan import MeasuringPlan, Search


class Counted:
    """Measures a unit in one second; the units of a workload have ratios that differ by ``spread`` in their logs."""

    def __init__(self, room: int, spread: float, noise: float = 0.0) -> None:
        self.room, self.spread, self.noise = room, spread, noise
        self.now, self.units, self.passes = 0.0, [0, 0], 1
        self.asked: list[int] = []

    def measure(self, units: int, enough: Callable[[], bool]) -> dict[str, dict[str, list[float]]]:
        self.asked.append(units)
        self.passes += units == 0
        for workload in range(2):
            for _ in range(self.room if units == 0 else units - self.units[workload]):
                if enough():
                    break
                self.now += 1
                self.units[workload] += units > 0
        spread = self.spread + self.noise / self.passes
        logs = {f"kind {w}": [spread * (-1) ** i for i in range(self.units[w])] for w in range(2)}
        return {"ngram": {name: values for name, values in logs.items() if values}}

    def search(self, plan: MeasuringPlan) -> Search:
        return Search(plan, self.room, 2, self.measure, lambda: self.now)


def half_width(machine: Counted) -> float:
    found = machine.measure(1, lambda: True)["ngram"]
    width = estimate(found).half_width
    assert width is not None
    return width


def test_it_measures_until_the_interval_is_as_narrow_as_asked() -> None:
    machine = Counted(room=200, spread=0.1)
    search = machine.search(MeasuringPlan(precision=0.03))
    search.run()
    assert half_width(machine) <= 0.03
    assert search.said == "precision 3 % reached: every interval is within it"
    assert machine.asked[0] == 3, "three of two workloads are the fewest with an interval"
    assert machine.units[0] < 100, "far more than was needed"


def test_a_budget_that_ends_first_says_how_many_prompts_it_would_have_taken() -> None:
    machine = Counted(room=1000, spread=0.1)
    search = machine.search(MeasuringPlan(precision=0.01, budget=40.0))
    search.run()
    assert machine.now == 40.0, "the budget ends in the middle of a workload"
    said = (
        r"the budget of 40 s is spent: the interval of ngram reaches [\d.]+ % with 40 units, and 1 % would have taken"
    )
    assert re.match(said, search.said), search.said
    wanted = int(search.said.rsplit(" ", 1)[1])
    more = Counted(room=1000, spread=0.1)
    more.units = [wanted // 2, wanted // 2]
    assert half_width(more) <= 0.0105


def test_prompts_that_run_out_are_repeated_while_that_narrows_anything() -> None:
    noisy = Counted(room=4, spread=0.0, noise=0.2)
    search = noisy.search(MeasuringPlan(precision=0.05))
    search.run()
    assert noisy.asked.count(0) >= 3
    assert search.said == "precision 5 % reached: every interval is within it"


def test_a_spread_between_prompts_is_not_repeated_away() -> None:
    machine = Counted(room=4, spread=0.2)
    search = machine.search(MeasuringPlan(precision=0.01))
    search.run()
    assert machine.asked.count(0) == 1
    assert search.said.startswith("all 4 prompts of each workload are used and a further pass narrows nothing: ")
    assert "would have taken about" in search.said


def test_a_budget_alone_is_spent_on_prompts_and_says_so() -> None:
    machine = Counted(room=1000, spread=0.1)
    search = machine.search(MeasuringPlan(budget=25.0))
    search.run()
    assert machine.now == 25.0
    assert search.said == "the budget of 25 s is spent"


@pytest.mark.parametrize(
    ("pairs", "least", "units", "passes"), [(1, 1, 3, 1), (4, 1, 3, 4), (1, 10, 3, 4), (2, 1, 8, 2)]
)
def test_fixed_pairs_are_passes_over_all_units(pairs: int, least: int, units: int, passes: int) -> None:
    assert MeasuringPlan(pairs=pairs, least=least).passes(units) == passes
