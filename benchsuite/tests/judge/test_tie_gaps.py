"""Ties that rounding makes are excused, and those of a server that takes the second likeliest token are not."""

from __future__ import annotations

import random

import pytest

from benchsuite.judge.tie_gaps import RELAXED, UNLIKE_ROUNDING, gap_changes, ties_p
from specdec_plugins.endpoints.replies import Token

NOISE = 0.05
"""The standard deviation of what rounding does to a gap, in nats."""


def gaps(dice: random.Random, count: int) -> list[float]:
    """Gaps of near places, up to half a nat: they are even there, as those of a language model are."""
    return [dice.uniform(0, 0.5) for _ in range(count)]


def moved_gaps(dice: random.Random, count: int = 1000) -> list[float]:
    return sorted(abs(dice.gauss(0, NOISE)) for _ in range(count))


def test_a_server_that_takes_the_second_likeliest_token_within_half_a_nat_is_found() -> None:
    """Of 60 such places, at 45 %: 4.9 % of all tokens. A fair coin excused it."""
    for seed in range(20):
        dice = random.Random(seed)
        near = [(gap, dice.random() < 0.45) for gap in gaps(dice, 60)]
        assert ties_p(near, moved_gaps(dice)) < UNLIKE_ROUNDING


@pytest.mark.parametrize("seen", [30, 1000])
def test_ties_of_rounding_are_excused(seen: int) -> None:
    """400 honest servers with 60 near places each: by Ville's inequality at most a share p has a p-value below p."""
    dice, found = random.Random(3), []
    for _ in range(400):
        near = [(gap, dice.gauss(0, NOISE) > gap) for gap in gaps(dice, 60)]
        found.append(ties_p(near, moved_gaps(dice, seen)))
    assert min(found) > UNLIKE_ROUNDING
    assert sum(one < 0.05 for one in found) <= 20


def test_where_plain_agrees_with_itself_to_the_bit_equal_tokens_alone_may_change_places() -> None:
    equal = [(0.0, True)] * 30 + [(0.0, False)] * 30
    assert ties_p(equal, [0.0] * 500) == 1.0
    assert ties_p([(0.125, True)] * 4 + [(0.125, False)] * 4, [0.0] * 500) < UNLIKE_ROUNDING
    assert ties_p([], [0.0] * 500) == ties_p([], []) == 1.0
    assert ties_p([(0.125, True)] * 9, []) == 1.0, "of a plain server that was not seen twice nothing is known"


def test_each_likelihood_ratio_has_the_expectation_one_at_the_largest_allowed_probability() -> None:
    """And less below it, which the false alarm rests on: of one place, whose two outcomes are summed."""
    seen = [0.1] * 3 + [0.5] * 16  # as large as 0.2 are 16 of 19: half; as large as 0.6 none: a twentieth
    for gap, most in ((0.2, 0.5), (0.6, 0.05)):
        flipped, kept = (1 / ties_p([(gap, one)], seen) for one in (True, False))
        assert kept <= 1.0
        ratios = [(share / most, (1 - share) / (1 - most)) if share > most else (1.0, 1.0) for share in RELAXED]
        assert flipped == pytest.approx(max(1.0, sum(one for one, _ in ratios) / len(RELAXED)))
        assert sum(most * one + (1 - most) * two for one, two in ratios) == pytest.approx(len(RELAXED))


def test_a_change_of_a_gap_is_that_of_the_two_likeliest_tokens_up_to_the_first_different_one() -> None:
    one = [Token("a", None, -0.1, (("a", -0.1), ("b", -0.5))), Token("c", None, -0.1, (("c", -0.1), ("d", -0.2)))]
    two = [Token("a", None, -0.2, (("a", -0.2), ("b", -0.4))), Token("d", None, -0.1, (("d", -0.1), ("c", -0.3)))]
    after = Token("e", None, -0.1, (("e", -0.1), ("f", -0.2)))
    assert gap_changes([([*one, after], [*two, after])]) == pytest.approx([0.2, 0.3])
    assert gap_changes([(one, [Token("a"), two[1]])]) == pytest.approx([0.3]), "a place without a list says nothing"
    part = Token("\ufffd", None, -0.1, (("\ufffd", -0.1), ("b", -0.5)))
    assert gap_changes([([part], [part])]) == [], "a part of a character may be several tokens"
