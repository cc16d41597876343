"""The search for a precision: what it measures next, when it ends, and what it says of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from benchsuite.measure.interval import estimate, units_needed
from benchsuite.measure.plan import FLOOR, MeasuringPlan, Search, unseen


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
    assert search.said == (
        "the precision is reached: every interval is within 3 %, with 50 units; "
        "a kind of prompt that is rarer than 6 % may be missing"
    )
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
    for room, ended in ((4, "all 4 prompts of each workload are used: "), (12, "the precision is reached: ")):
        noisy = Counted(room, spread=0.0, noise=0.2)
        search = noisy.search(MeasuringPlan(precision=0.05))
        search.run()
        assert noisy.asked.count(0) >= 1
        assert search.said.startswith(f"{ended}every interval is within 5 %, with {2 * room} units; ")


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


def asked_of(
    widths: list[list[float] | None], room: int, workloads: int = 2, spent_after: int = 99, **plan: Any
) -> tuple[list[int], str]:
    """What a search measures whose arm has these logs of ratios after each measurement, and what it says."""
    asked: list[int] = []

    def measure(units: int, enough: Callable[[], bool]) -> dict[str, dict[str, list[float]]]:
        asked.append(units)
        logs = widths[min(len(asked), len(widths)) - 1]
        return {"narrow": {"a": [0.1] * FLOOR}, "wide": {"a": logs or [0.1, 0.2]}}

    search = Search(
        MeasuringPlan(**plan), room, workloads, measure, lambda: float(len(asked)) if len(asked) >= spent_after else 0.0
    )
    search.run()
    return asked, search.said


WIDE, CLOSE = [0.0, 0.4] * (FLOOR // 2), [0.0, 0.01] * (FLOOR // 2)
REACHED = "the precision is reached: every interval is within "


@pytest.mark.parametrize(
    ("workloads", "room", "first"), [(1, 99, 6), (2, 99, 3), (4, 99, 2), (6, 99, 2), (5, 99, 2), (1, 4, 4), (12, 1, 1)]
)
def test_a_search_begins_with_the_fewest_units_that_have_an_interval(workloads: int, room: int, first: int) -> None:
    asked, said = asked_of([CLOSE], room, workloads, precision=0.5)
    assert asked == [first]
    assert said.startswith(f"{REACHED}50 %, with 24 units; ")


@pytest.mark.slow
def test_a_search_at_most_doubles_its_units_and_repeats_what_has_no_more() -> None:
    asked, said = asked_of([WIDE], 20, precision=0.0001)
    assert asked == [3, 6, 12, 20, 0], "a pass that narrows nothing is the last one"
    assert said.startswith(
        "all 20 prompts of each workload are used and a further pass narrows nothing: the interval of wide"
    )
    assert asked_of([WIDE, CLOSE], 20, precision=0.05)[0] == [3, 6]
    assert asked_of([WIDE, WIDE, WIDE, CLOSE], 20, precision=0.05)[0] == [3, 6, 12, 20]
    width = estimate({"a": WIDE}).half_width
    assert width
    seconds = set[int]()
    for factor in (1.01, 1.1, 1.25, 1.35, 2.5):
        needed = units_needed({"a": WIDE}, width / factor)
        assert needed
        asked = asked_of([WIDE], 99, precision=width / factor)[0]
        assert asked[:3] == [3, 6, 12], "the fewest from which a precision is told"
        assert asked[3] == max(13, min(24, (needed + 1) // 2)), "what the spread needs, but one more, and no double"
        seconds.add(asked[3])
    assert {13, 24} < seconds


def test_a_pass_that_narrows_by_a_twentieth_is_followed_by_another() -> None:
    base = estimate({"a": WIDE}).half_width
    assert base
    asked, _ = asked_of([WIDE, [0.0, 0.376] * 12, [0.0, 0.36] * 12], 3, precision=0.0001)
    assert asked == [3, 0, 0]
    asked, _ = asked_of([WIDE, [0.0, 0.36] * 12, [0.0, 0.32] * 12, [0.0, 0.319] * 12], 3, precision=0.0001)
    assert asked == [3, 0, 0, 0]


def test_fewer_prompts_than_show_a_spread_reach_no_precision() -> None:
    """The spread of six prompts is small by luck: of intervals that ended a run then, 72 to 84 % held the truth."""
    few = [0.1, 0.1001] * (FLOOR // 2 - 1)
    asked, said = asked_of([few[:6], few[:12], few], 99, precision=0.03, spent_after=4, budget=4.0)
    assert asked[:3] == [3, 6, 12]
    assert len(asked) > 3, "22 units are no reason to end"
    asked, said = asked_of([few], 11, precision=0.03)
    assert asked == [3, 6, 11]
    assert said == (
        "all 11 prompts of each workload are used: every interval is within 3 %, with 22 units; fewer than the 24 that "
        "show a spread; a kind of prompt that is rarer than 13 % may be missing"
    )


@pytest.mark.parametrize("units", [1, 6, 24, 200])
def test_a_kind_of_prompt_that_is_not_rarer_is_among_them_with_95_percent(units: int) -> None:
    assert 1 - (1 - unseen(units)) ** units == pytest.approx(0.95)
    assert unseen(units, 0.5) < unseen(units)


def test_where_no_number_of_prompts_would_do_it_says_so() -> None:
    said = asked_of([WIDE], 12, precision=1e-6)[1]
    assert said.endswith("with 24 units, and 0.0001 % would have taken more than a million")


def test_without_an_interval_of_every_arm_nothing_is_said_of_a_precision() -> None:
    asked, said = asked_of([None], 3, precision=0.5)
    assert (asked, said) == ([3], "all 3 prompts of each workload are used and a further pass narrows nothing")
    asked, said = asked_of([None, None], 9, spent_after=2, budget=2.0, precision=0.5)
    assert (asked, said) == ([3, 6], "the budget of 2 s is spent")
    asked, said = asked_of([WIDE, WIDE, CLOSE], 99, spent_after=3, budget=3.0, precision=0.05)
    assert asked == [3, 6, 12]
    assert said.startswith("the budget of 3 s is spent: every interval is within 5 %, with 24 units; "), "what ended it"
    asked, said = asked_of([WIDE], 9, spent_after=3, budget=3.0)
    assert (asked, said) == ([3, 6, 9], "the budget of 3 s is spent")


def test_a_plan_chooses_only_if_a_precision_or_a_budget_is_given() -> None:
    plain = MeasuringPlan()
    assert [plan.chooses for plan in (plain, MeasuringPlan(precision=0.1), MeasuringPlan(budget=1.0))] == [
        False,
        True,
        True,
    ]
    given = (plain.pairs, plain.least, plain.baseline, plain.judge, plain.across, plain.passes(5))
    assert given == (1, 1, "plain", "", (), 1)
    assert (plain.dry, plain.debug, plain.graphs, plain.exact) == (False, False, True, False)
