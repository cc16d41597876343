"""What counts as a hit, a place and a rate: by hand, and by brute force over made-up texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.doctor.hits import (
    CONTEXT,
    Hits,
    by_position,
    clustered_rate,
    new_places,
    scores_of_collapse,
    scores_of_gain,
)

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=4)


def hits(*rows: str, counted: str = "") -> Hits:
    """Return hits whose places are ``rows``, ``x`` a right proposal; those that count, by default all."""
    right = np.array([[mark == "x" for mark in row] for row in rows])
    return Hits(right, np.array([mark == "x" for mark in counted or "x" * len(rows)]))


def test_a_length_ends_at_the_first_wrong_proposal() -> None:
    assert hits("xxx", "x.x", ".xx", "...").lengths.tolist() == [3, 1, 0, 0]
    assert hits("xxx", "x.x", ".xx", counted="x.x").lengths.tolist() == [3, 0]


@given(TEXTS, st.integers(1, 3))
def test_a_place_counts_once_and_only_where_its_tokens_follow(texts: list[list[int]], k: int) -> None:
    firsts = [len(text) // 3 for text in texts]
    found = new_places(texts, firsts, k)
    earlier: list[list[int]] = []
    for text, first, counted in zip(texts, firsts, found, strict=True):
        assert len(counted) == len(text) - first
        for place in range(first, len(text)):
            before = text[:place][-CONTEXT:]
            assert counted[place - first] == (place + k <= len(text) and before not in earlier)
            if place + k <= len(text):
                earlier.append(before)


def test_an_answer_that_repeats_itself_or_another_counts_once() -> None:
    loop = [9, *[5] * 40]
    counted = new_places([loop, loop, [1, 2, 3, 4, *loop]], [1, 1, 4], 2)
    assert [int(places.sum()) for places in counted] == [5, 0, 4]


def test_a_rate_has_the_error_of_a_mean_where_all_prompts_are_as_long() -> None:
    found = clustered_rate([3, 5, 4, 8], [10, 10, 10, 10])
    shares = np.array([0.3, 0.5, 0.4, 0.8])
    assert found.share == pytest.approx(shares.mean())
    assert found.error == pytest.approx(shares.std(ddof=1) / 2)
    assert found.tried == 40


def test_one_prompt_of_many_tries_has_no_error_that_is_known() -> None:
    assert clustered_rate([500], [1000]).error == float("inf")
    assert clustered_rate([], []) == clustered_rate([0], [0])


def test_a_position_is_tried_where_all_before_it_are_right_and_beside_the_first_proposal_there() -> None:
    texts = [hits("xx.", "x.x", "xxx", ".xx", "x..", counted="xxx.."), hits("...", "xxx", "...", "x..", counted="xx..")]
    own, fed = by_position(texts, 1)
    # Four places reach position 1: 0, 1 and 2 of the first text and 1 of the second.
    assert (own.share, own.tried, fed.share) == (3 / 4, 4, 2 / 4)
    own, fed = by_position(texts, 2)
    assert (own.share, own.tried, fed.share) == (2 / 3, 3, 3 / 3)
    assert by_position(texts, 0)[0] == by_position(texts, 0)[1]


def test_a_gain_is_a_share_of_what_differs_and_turns_with_the_sides() -> None:
    one, other = [hits("xxx", "x..", "...")], [hits("x..", "x..", "x..")]
    assert scores_of_gain(one, other).tolist() == [pytest.approx(1 / 3)]
    assert scores_of_gain(other, one).tolist() == [pytest.approx(-1 / 3)]
    assert scores_of_gain(one, one).tolist() == [0]


def test_a_head_collapses_where_its_own_states_keep_less_than_half() -> None:
    sound = hits("xx", "xx", "xx", "xx", counted="xxx.")
    lost = hits("x.", "x.", "x.", "x.", counted="xxx.")
    half = hits("xx", "x.", "xx", "x.", "xx", "x.", counted="xxxx..")
    assert scores_of_collapse([sound, lost, half]).tolist() == [-1, 1, 0]


def test_chance_is_the_same_proposals_beside_the_text_half_an_answer_on() -> None:
    tokens = np.array([[1], [2], [3], [4]])
    knows, guesses = np.array([[1], [2], [3], [4]]), np.array([[3], [3], [3], [3]])
    right = Hits(knows == tokens, np.ones(4, dtype=np.bool_))
    assert right.by_chance(tokens, knows).lengths.sum() == 0
    assert Hits(guesses == tokens, right.counted).lengths.sum() == right.by_chance(tokens, guesses).lengths.sum()
