"""The bets of an examination: exact laws by enumeration, and made-up heads whose readings are equal, or not."""

from __future__ import annotations

import itertools
from math import exp, inf, log, log1p, prod

import numpy as np
import pytest

from benchsuite.doctor import evidence
from benchsuite.doctor.evidence import STAKES, most_gain, prompts_to_clear, prompts_to_prove, proved, wealth
from benchsuite.doctor.examination import ExaminedReading, HeadReading, OtherReading, beside_taken
from benchsuite.doctor.hits import Floats, Hits

Q = 10
"""Prompts whose outcomes are enumerated."""


def test_wealth_is_the_mean_of_products() -> None:
    scores = [0.5, -1.0, 0.25]
    by_hand = sum(prod(1 + stake * score for score in scores) for stake in STAKES) / len(STAKES)
    assert exp(wealth(np.array(scores))[-1]) == pytest.approx(by_hand)


@pytest.mark.parametrize("values", [(-1.0, 1.0), (-0.2, 1.0), (-1.0, 0.1)])
def test_without_a_gain_wealth_is_expected_to_stay_and_seldom_ever_grows(values: tuple[float, float]) -> None:
    """Enumerated: two scores with the mean 0, in every order of ten prompts."""
    low, high = values
    up = -low / (high - low)
    expected, ever = 0.0, {2: 0.0, 10: 0.0, 100: 0.0}
    for ups in itertools.product((False, True), repeat=Q):
        chance = prod(up if one else 1 - up for one in ups)
        path = wealth(np.array([high if one else low for one in ups]))
        expected += chance * exp(path[-1])
        for bound in ever:
            ever[bound] += chance * bool(path.max() >= log(bound))
    assert expected == pytest.approx(1)
    assert all(share <= 1 / bound + 1e-12 for bound, share in ever.items())


def test_no_single_prompt_makes_more_than_twice_of_a_wealth() -> None:
    scores = np.array([0.3, -0.5, 1.0, 0.0])
    steps = np.diff(wealth(scores), prepend=0.0)
    assert bool((steps <= log(2)).all())
    assert not proved(np.array([1.0] * 9), 0.001)
    assert proved(np.array([1.0] * 20), 0.001)
    assert not proved(np.zeros(0), 0.5)


@pytest.mark.parametrize("scores", [[1.0], [0.9, 0.4], [0.5, -0.2, 0.7]])
def test_the_prompts_that_prove_a_gain_do_so_and_half_of_them_do_not(scores: list[float]) -> None:
    needed = int(prompts_to_prove(np.array(scores), 0.001))
    repeated = np.resize(np.array(scores), needed)
    assert proved(repeated, 0.0013)
    assert not proved(repeated[: needed // 2], 0.001)


def test_what_is_not_above_zero_is_never_proved() -> None:
    assert prompts_to_prove(np.array([0.5, -0.5]), 0.01) == inf
    assert prompts_to_prove(np.zeros(0), 0.01) == inf


def test_a_gain_is_bounded_by_an_interval_over_prompts() -> None:
    gains = np.array([0.1, -0.1] * 8)
    assert most_gain(gains) == pytest.approx(3.1 * (16 * 0.01 / 15) ** 0.5 / 4)
    assert most_gain(gains[:11]) == inf
    assert most_gain(np.zeros(12)) == 0
    enough = int(prompts_to_clear(gains))
    assert most_gain(np.resize(gains, 2 * (enough // 2 + 1))) < evidence.NO_MATTER
    assert most_gain(np.resize(gains, enough // 4 * 2)) >= evidence.NO_MATTER
    assert prompts_to_clear(np.array([0.06, 0.05])) == inf


def made_up_hits(rates: Floats, dice: np.random.Generator, places: int = 20, k: int = 3) -> tuple[Hits, ...]:
    """Return hits of one reading: each prompt has its own rate, in which all its proposals are right or wrong."""
    right = dice.random((len(rates), places, k)) < rates[:, None, None]
    counted = np.arange(places) <= places - k
    return tuple(Hits(one, counted) for one in right)


def read_as(hits: tuple[Hits, ...]) -> ExaminedReading:
    return ExaminedReading(HeadReading("another", "another"), hits, hits)


def outcomes_of(taken: tuple[Hits, ...], others: list[tuple[Hits, ...]]) -> list[OtherReading]:
    return [beside_taken(taken, read_as(hits), len(others)) for hits in others]


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_the_luckiest_of_ten_equal_readings_is_not_accused(rate: float, deep: bool) -> None:
    """Prompts differ more than readings do, and each reading has its own luck in each prompt."""
    dice, accused, runs = np.random.default_rng(11), 0, 400 if deep else 12
    for _ in range(runs):
        prompts = np.clip(dice.normal(rate, 0.15, 24), 0, 1)
        own = [np.clip(prompts + dice.normal(0, 0.1, 24), 0, 1) for _ in range(11)]
        taken, *others = (made_up_hits(rates, dice) for rates in own)
        accused += any(other.outcome == "accepts more" for other in outcomes_of(taken, others))
    assert accused <= runs // 40


def test_a_reading_that_shines_in_one_prompt_alone_accuses_nobody() -> None:
    dice, even = np.random.default_rng(5), np.full(24, 0.4)
    odd = even.copy()
    odd[3] = 1.0
    taken, one = made_up_hits(even, dice), list(made_up_hits(even, dice))
    one[3] = made_up_hits(odd[3:4], dice, places=4000)[0]
    plain = made_up_hits(even, dice, places=4000)[3]
    [found] = outcomes_of((*taken[:3], plain, *taken[4:]), [tuple(one)])
    assert found.gain > 0.05
    assert found.outcome == "open"


@pytest.mark.parametrize(("rate", "outcome"), [(0.8, "accepts more"), (0.02, "no better")])
def test_a_reading_that_differs_much_is_decided_by_24_prompts(rate: float, outcome: str) -> None:
    dice = np.random.default_rng(2)
    taken, other = made_up_hits(np.full(24, 0.3), dice), made_up_hits(np.full(24, rate), dice)
    assert [found.outcome for found in outcomes_of(taken, [other] * 8)] == [outcome] * 8


def test_a_reading_with_the_same_proposals_is_no_better_and_needs_nothing() -> None:
    taken = made_up_hits(np.full(12, 0.3), np.random.default_rng(0))
    [found] = outcomes_of(taken, [taken])
    assert (found.gain, found.error, found.outcome, found.needs) == (0, 0, "no better", 0)


def test_the_prompts_that_an_open_reading_is_said_to_need_mostly_decide_it(deep: bool) -> None:
    """Of 12 prompts the need is a guess; with half as many again as it says most readings are decided."""
    dice, decided, runs = np.random.default_rng(3), list[bool](), 200 if deep else 30
    for _ in range(runs):
        share = 0.3 + float(dice.uniform(0.05, 0.2))
        taken, other = (made_up_hits(np.full(400, rate), dice) for rate in (0.3, share))
        [first] = outcomes_of(taken[:12], [other[:12]])
        if first.outcome == "open" and first.needs < 250:
            prompts = int(1.5 * first.needs)
            decided.append(outcomes_of(taken[:prompts], [other[:prompts]])[0].outcome != "open")
    assert len(decided) > runs / 3
    assert np.mean(decided) > 0.7


def test_growth_of_wealth_is_that_of_the_best_stake() -> None:
    scores = np.array([0.4, -0.3, 0.5, 0.2])
    growth = max(sum(log1p(stake * score) for score in scores) / 4 for stake in STAKES)
    assert prompts_to_prove(scores, 0.01) == -(-(log(len(STAKES)) + log(100)) // growth)
