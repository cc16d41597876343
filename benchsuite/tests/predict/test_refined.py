"""Costs that are refined by the steps of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.measure.arms import Arm
from benchsuite.predict.costs import Costs, DraftCosts, strategy_of
from benchsuite.predict.refined import PROBED, RefinedCosts
from benchsuite.tests.rig import SETTING
from specdec.calibration import Point
from specdec.stats import Marks, Step

ROWS = 2
PLAIN, ARM = Arm(SETTING), Arm(SETTING, "ngram", "match", "fixed", 4)
NAME = strategy_of(ARM)


class PartTimes(NamedTuple):
    target: float
    draft: float
    rest: float


NO_TIMES = PartTimes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class MadeStep(Step):
    """A step with the times of its parts."""

    times: PartTimes = NO_TIMES


def made_step(rows: int, width: int, times: PartTimes, proposed: int = 0) -> MadeStep:
    """A step whose rows have made so many proposals together."""
    return MadeStep(width - 1, width, rows, proposed, 0, rows, Marks(*range(10)), times=times)


class MadeRun:
    """A run of steps that are made up."""

    mean_length = 100.0

    def __init__(self, steps: Sequence[MadeStep]) -> None:
        self.steps = steps

    @property
    def stats(self) -> Any:
        return self

    def times(self, step: MadeStep) -> PartTimes:
        return step.times


def made_run(made: Sequence[MadeStep]) -> Any:
    return MadeRun(made)


def costs(**forward: Any) -> Costs:
    """A forward of W slots takes 1 + W / 10 s, a plain step 1.2 s, a draft a tenth of a second for each proposal."""
    drafts = DraftCosts({rows: {100: {0: 0.0, 1: 0.1, 8: 0.8}} for rows in (1, ROWS)}, {ROWS: {0: 0.0}}, {}, **forward)
    forwards = {Point(rows, 100, width): 1 + width / 10 for rows in (1, ROWS) for width in (1, 3, 5)}
    plain = {Point(rows, 100, 1): 1.2 for rows in (1, ROWS)}
    return Costs({}, forwards, {}, plain, {NAME: drafts}, 0.05, made=0.0)


def steps(
    count: int, width: int, wrong: float = 1.0, dear: float = 1.0, pace: float = 1.0, rows: int = ROWS
) -> list[MadeStep]:
    k = width - 1
    times = PartTimes(pace * wrong * (1 + width / 10), pace * dear * k / 10, pace * 0.1)
    return [made_step(rows, width, times, k * rows)] * count


def plain_run(count: int, wrong: float = 1.0, pace: float = 1.0) -> Any:
    return made_run([made_step(ROWS, 1, PartTimes(pace * wrong * 1.1, 0.0, pace * wrong * 0.1))] * count)


def refined_by(*rounds: Any, refined: RefinedCosts | None = None) -> Costs:
    refined = refined or RefinedCosts(costs(), ROWS)
    for one in rounds:
        refined.seen(one)
    return refined.costs


@settings(max_examples=5)
@given(st.floats(0.2, 5), st.floats(0.5, 2), st.floats(0.3, 3))
def test_a_wrong_width_and_a_dear_draft_are_corrected_at_any_pace_of_the_machine(
    pace: float, wrong: float, dear: float
) -> None:
    """Of 16 steps and the probe, each counts half in the log; a draft costs what it took."""
    many = [*steps(40, 1, pace=pace), *steps(PROBED, 5, wrong, dear, pace)]
    found = refined_by({PLAIN: plain_run(40, pace=pace), ARM: made_run(many)})
    assert found.verify(5, ROWS, 100) == pytest.approx(1.5 * wrong**0.5)
    assert found.verify(1, ROWS, 100) == pytest.approx(1.1)
    assert found.plain_step(ROWS, 100) == pytest.approx(1.2)
    assert found.strategies[NAME].draft(ROWS, 100, 4) == pytest.approx(0.4 * dear)


def test_what_a_batch_shows_changes_no_other_batchs_forwards() -> None:
    found = refined_by({PLAIN: plain_run(40, 0.8), ARM: made_run([*steps(60, 1), *steps(9, 3, 2.0)])})
    assert found.verify(3, 1, 100) == 1.3
    assert found.plain_step(1, 100) == 1.2
    assert found.verify(3, ROWS, 100) > 1.5
    assert found.plain_step(ROWS, 100) < 1.1


def test_one_slow_step_of_a_width_says_no_more_than_one_slow_step() -> None:
    found = refined_by({ARM: made_run([*steps(20, 1), *steps(15, 5), *steps(1, 5, 100.0)])})
    assert found.verify(5, ROWS, 100) == pytest.approx(1.5)


def test_a_width_that_is_known_to_be_dear_is_not_taken_for_a_slow_machine() -> None:
    first = {ARM: made_run([*steps(1000, 1), *steps(400, 5, 2.0)])}
    found = refined_by(first, {ARM: made_run([*steps(60, 5, 2.0), *steps(40, 3)])})
    assert found.verify(3, ROWS, 100) == pytest.approx(1.3, rel=0.03)


def test_where_padding_costs_nothing_a_step_is_held_against_the_slots_of_its_rows() -> None:
    """One row has eight proposals and the other none: five slots a row, which take twice what was probed. One proposal
    makes 1.5 slots, which take what lies between one and two."""
    refined = RefinedCosts(replace(costs(), skips_padding=True), ROWS)
    sound, slow = (
        made_step(ROWS, made + 1, PartTimes(took, made / 10, 0.1), made) for made, took in ((1, 1.15), (8, 3))
    )
    found = refined_by({ARM: made_run([*[sound] * 40, *[slow] * PROBED])}, refined=refined)
    assert found.verify(5, ROWS, 100) == pytest.approx(1.5 * 2**0.5)
    assert found.verify(1, ROWS, 100) == pytest.approx(1.1)
    assert found.skips_padding


def test_a_drafts_share_is_the_median_over_runs_and_is_shared_by_batches() -> None:
    first = RefinedCosts(costs(), ROWS)
    other = RefinedCosts(costs(), 1, first.drafting)
    for dear in (1.0, 2.0, 9.0):
        first.seen({ARM: made_run([*steps(40, 1), *steps(9, 5, dear=dear)])})
    assert other.costs.strategies[NAME].draft(1, 100, 4) == pytest.approx(0.8)


def test_rows_that_ended_trees_and_runs_without_steps_say_nothing() -> None:
    assert refined_by({}, {ARM: made_run([])}, {ARM: made_run(steps(9, 5, 3.0, rows=1))}) == costs()
    tree = {Point(ROWS, 100, 5): 9.0}
    of_trees = RefinedCosts(costs(forward=tree), ROWS)
    found = refined_by({PLAIN: plain_run(9), ARM: made_run(steps(9, 5, 3.0, 2.0))}, refined=of_trees)
    assert found.verify(5, ROWS, 100) == 1.5
    assert found.verify(5, ROWS, 100, NAME) == 9.0
    assert found.strategies[NAME].draft(ROWS, 100, 4) == pytest.approx(0.8), "what a tree's draft takes does"


def test_steps_of_other_rows_and_steps_that_took_no_time_change_nothing_wherever_they_are() -> None:
    sound = [*steps(20, 1), *steps(PROBED, 5, 2.0, 1.5), *steps(4, 3)]
    odd = [*steps(1, 5, 9.0, 9.0, rows=1), *steps(1, 5, 0.0, 9.0)]
    whole = refined_by({PLAIN: plain_run(9), ARM: made_run(sound)})
    mixed = [*odd, *sound[:20], *odd, *sound[20:], *odd]
    assert refined_by({PLAIN: plain_run(9), ARM: made_run(mixed)}) == whole
    late = made_run([made_step(1, 1, PartTimes(9.0, 0.0, 9.0)), *plain_run(9).steps])
    assert refined_by({PLAIN: late, ARM: made_run(sound)}) == whole


def test_what_a_draft_takes_is_held_against_what_was_expected_of_it_at_the_pace_of_the_round() -> None:
    """A draft that took nothing, or of which nothing was expected, says nothing."""
    free = made_run([made_step(ROWS, 3, PartTimes(1.3, 0.0, 0.1))] * 9)
    found = refined_by({PLAIN: plain_run(9, pace=2.0), ARM: free})
    assert found.strategies == costs().strategies
    lookup = {NAME: DraftCosts({ROWS: {100: {0: 0.0, 8: 0.0}}}, {ROWS: {0: 0.0}}, {})}
    free_by_the_probe = RefinedCosts(replace(costs(), strategies=lookup), ROWS)
    assert refined_by({ARM: made_run(steps(9, 3))}, refined=free_by_the_probe).strategies == lookup
    idle = made_run([made_step(ROWS, 1, PartTimes(1.1, 5.0, 0.1))] * 9)
    assert refined_by({ARM: idle}).strategies == costs().strategies
