"""Counts of an engine's own speculation: made of steps or a histogram, added, and refused where they contradict."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from specdec import DraftCounts, SpecdecError

Steps = list[tuple[int, int]]
"""(proposed, accepted) of each step."""


def drawn_steps(seed: int, count: int) -> Steps:
    coin = random.Random(seed)
    return [(made := coin.randrange(5), coin.randint(0, made)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_counts_of_steps_are_those_of_a_count_by_hand(seed: int) -> None:
    steps = drawn_steps(seed, seed)
    counts = DraftCounts.of_steps(steps)
    drafted = [step for step in steps if step[0]]
    depths = range(1, 5)
    kept = [sum(accepted >= depth for _, accepted in drafted) for depth in depths]
    made = [sum(proposed >= depth for proposed, _ in drafted) for depth in depths]
    assert counts.drafts == len(drafted)
    assert (counts.proposed, counts.accepted) == tuple(map(sum, zip(*drafted, strict=True))) or not drafted
    assert [*counts.accepted_by_position] == [n for n in kept if n]
    assert [*counts.proposed_by_position] == [n for n in made if n]
    rates = [one / other for one, other in zip(kept, made, strict=True) if other]
    assert [*counts.acceptance_by_position] == rates
    assert counts.histogram == Counter(accepted for _, accepted in drafted)
    if drafted:
        assert counts.acceptance_rate == sum(accepted for _, accepted in drafted) / sum(made)
        assert counts.mean_acceptance_length == 1 + sum(accepted for _, accepted in drafted) / len(drafted)


@pytest.mark.parametrize("seed", range(10))
def test_two_works_together_are_their_steps_in_a_row(seed: int) -> None:
    one, other = drawn_steps(seed, 3), drawn_steps(seed + 100, 4)
    both = DraftCounts.of_steps(one + other)
    assert DraftCounts.of_steps(one) + DraftCounts.of_steps(other) == both
    assert DraftCounts.total([DraftCounts.of_steps([step]) for step in one + other]) == both
    assert DraftCounts.total([DraftCounts.of_steps(one), None]) is None
    assert DraftCounts.total([]) is None


@pytest.mark.parametrize("seed", range(10))
def test_a_histogram_says_what_its_steps_accepted_and_not_what_they_proposed(seed: int) -> None:
    steps = [step for step in drawn_steps(seed, 6) if step[0]]
    found = Counter(accepted for _, accepted in steps)
    whole, said = DraftCounts.of_steps(steps), DraftCounts.of_histogram([found[n] for n in range(7)])
    assert (said.drafts, said.accepted, said.histogram) == (whole.drafts, whole.accepted, whole.histogram)
    assert said.accepted_by_position == whole.accepted_by_position
    assert (said.proposed, said.acceptance_rate, said.proposed_by_position) == (None, None, ())


def test_without_proposals_by_position_the_share_is_of_all_drafts_as_in_vllm() -> None:
    steps = [(4, 2), (1, 1)]
    assert DraftCounts.of_steps(steps).acceptance_by_position == (1.0, 1.0, 0.0, 0.0)
    assert DraftCounts.of_histogram([0, 1, 1]).acceptance_by_position == (1.0, 0.5)


def test_what_an_engine_does_not_say_is_not_known() -> None:
    some = DraftCounts(proposed=4, accepted=3)
    assert some.acceptance_rate == 0.75
    assert (some.mean_acceptance_length, some.acceptance_by_position, some.histogram) == (None, (), {})
    whole = some + DraftCounts.of_steps([(4, 1)])
    assert whole == DraftCounts(None, 8, 4)
    nothing = DraftCounts(3, 9, 0)
    assert (nothing.histogram, nothing.acceptance_rate, nothing.mean_acceptance_length) == ({0: 3}, 0.0, 1.0)
    assert (nothing + DraftCounts(1, 2, 1, (1,))).accepted_by_position == (1,)
    assert DraftCounts().acceptance_rate is None
    none = DraftCounts.of_steps([(0, 0)])
    assert (none.drafts, none.acceptance_rate, none.mean_acceptance_length, none.histogram) == (0, None, None, {})


@pytest.mark.parametrize(
    "said",
    [
        {"accepted": 5, "proposed": 4},
        {"drafts": 5, "proposed": 4},
        {"accepted": -1},
        {"drafts": 2, "accepted": 3, "accepted_by_position": (3,)},
        {"accepted": 3, "accepted_by_position": (1, 2)},
        {"accepted": 3, "accepted_by_position": (2,)},
        {"accepted": 1, "accepted_by_position": (2,)},
        {"proposed": 2, "proposed_by_position": (2, 1)},
        {"drafts": 1, "proposed": 4, "proposed_by_position": (2, 2)},
        {"accepted_by_position": (2, 1), "proposed_by_position": (3, 0)},
    ],
)
def test_counts_that_cannot_be_of_one_work_are_refused(said: dict[str, object]) -> None:
    with pytest.raises(SpecdecError, match=r"^an engine counted DraftCounts\(.*; these numbers cannot all be of one"):
        DraftCounts(**said)  # type: ignore[arg-type]
