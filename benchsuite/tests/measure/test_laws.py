"""The laws behind p-values and intervals, by exact sums and closed forms: beta, Student, binomial, ten even bins."""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction
from functools import cache
from math import asin, atan, comb, exp, expm1, log, nextafter, pi, sqrt

import pytest
import torch

from benchsuite.judge import fidelity, ties
from benchsuite.judge.agreement import Agreement
from benchsuite.judge.fidelity import BINS, Fidelity, examine
from benchsuite.judge.ties import upper_limit
from benchsuite.measure import interval
from benchsuite.measure.interval import student
from specdec import Request, SamplingParams

SHARES = (Fraction(1, 1000), Fraction(1, 9), Fraction(1, 3), Fraction(1, 2), Fraction(3, 5), Fraction(9, 10))


@pytest.mark.parametrize("a", [1, 2, 5, 11])
@pytest.mark.parametrize("b", [1, 2, 4, 30])
def test_the_incomplete_beta_function_of_integers_is_a_binomial_tail(a: int, b: int) -> None:
    """At least ``a`` of a + b - 1 trials, the smallest of them 1e-33."""
    trials = a + b - 1
    for x in SHARES:
        exact = sum(comb(trials, n) * x**n * (1 - x) ** (trials - n) for n in range(a, trials + 1))
        assert interval.incomplete_beta(float(x), a, b) == pytest.approx(float(exact), rel=1e-12, abs=0)


def test_the_incomplete_beta_function_of_halves_has_closed_forms() -> None:
    for x in map(float, SHARES):
        for a in (0.5, 1.5, 2.25):
            assert interval.incomplete_beta(x, a, 1) == pytest.approx(x**a, rel=1e-13, abs=0)
            assert interval.incomplete_beta(x, 1, a) == pytest.approx(1 - (1 - x) ** a, rel=1e-12, abs=0)
        assert interval.incomplete_beta(x, 0.5, 0.5) == pytest.approx(2 / pi * asin(sqrt(x)), rel=1e-13, abs=0)
        arc = asin(sqrt(x)) - sqrt(x * (1 - x))
        assert interval.incomplete_beta(x, 1.5, 0.5) == pytest.approx(2 / pi * arc, rel=1e-9, abs=0)


def test_an_incomplete_beta_function_too_small_for_a_number_is_none() -> None:
    assert interval.incomplete_beta(1e-200, 2.0, 1.0) == 0.0


@pytest.mark.parametrize("t", [1e-9, 1e-3, 0.3, 0.999, 1.0, 1.7, 2.5, 12.7, 300.0, 1e9])
def test_students_probability_has_the_closed_forms_of_one_to_four_degrees(t: float) -> None:
    """Far out and near the middle too, where the share of the incomplete beta function is rounded to 0 or 1."""
    angle = [atan(t / sqrt(degrees)) for degrees in range(1, 5)]
    cosine = [1 / sqrt(1 + t * t / degrees) for degrees in range(1, 5)]
    sine = [t / sqrt(degrees) * one for degrees, one in enumerate(cosine, 1)]
    closed = (
        2 / pi * angle[0],
        sine[1],
        2 / pi * (angle[2] + sine[2] * cosine[2]),
        sine[3] * (1 + cosine[3] ** 2 / 2),
    )
    for degrees, expected in enumerate(closed, 1):
        assert interval.student_central(t, degrees) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999, 0.999999])
@pytest.mark.parametrize("degrees", [1, 1.3, 2, 3, 4.7, 60, 1000.5])
def test_students_quantile_has_the_probability_that_was_asked_for(level: float, degrees: float) -> None:
    """Newton's last step is of the order of the square of 1e-7."""
    assert interval.student_central(student(level, degrees), degrees) == pytest.approx(level, rel=2e-12)


def test_half_an_interval_of_uneven_workloads_is_that_worked_out_in_fractions() -> None:
    counts, variances = [2, 5, 3], [Fraction(1, 2), Fraction(3), Fraction(1, 8)]
    parts = [variance / n for n, variance in zip(counts, variances, strict=True)]
    shares = [part / sum(parts) for part in parts]
    even = [Fraction(1, n) / sum(Fraction(1, n) for n in counts) for n in counts]
    seen, alike = (sum(share**2 / (n - 1) for share, n in zip(each, counts, strict=True)) for each in (shares, even))
    degrees = 2 / (seen + alike)  # the harmonic mean of 1 / seen and 1 / alike
    for level in (0.5, 0.95):
        half = interval.half_interval(counts, [float(variance) for variance in variances], level)
        assert half == pytest.approx(student(level, float(degrees)) * sqrt(sum(parts)) / 3, rel=1e-12)
    assert interval.half_interval([2, 9], [0.0, 0.0], 0.95) == 0.0
    assert interval.sample_variance([0.5, 1.5, 4.0]) == pytest.approx(3.25)


def test_an_estimates_half_width_is_how_far_its_upper_end_is_above_it() -> None:
    found = interval.estimate({"a": [0.1, 0.2, 0.4, 0.1, 0.9, 0.3]})
    half = interval.half_interval([6], [interval.sample_variance([0.1, 0.2, 0.4, 0.1, 0.9, 0.3])], 0.95)
    assert found.half_width == pytest.approx(expm1(half))
    assert (found.low, found.high) == pytest.approx((exp(2 / 6 - half), exp(2 / 6 + half)))


@cache
def _half_ways(tokens: int) -> list[dict[int, int]]:
    """For each count of tokens in five bins: the number of sequences with each sum of squares."""
    found: list[dict[int, int]] = [{0: 1}] + [{} for _ in range(tokens)]
    for _ in range(BINS // 2):
        more = [defaultdict[int, int](int) for _ in range(tokens + 1)]
        for count, squares in enumerate(found):
            for own in range(tokens - count + 1):
                for square, ways in squares.items():
                    more[count + own][square + own * own] += ways * comb(count + own, own)
        found = [dict(one) for one in more]
    return found


@cache
def _whole_ways(tokens: int) -> dict[int, int]:
    """The number of sequences with each sum of squares of ten bins."""
    half, whole = _half_ways(tokens), defaultdict[int, int](int)
    for count in range(tokens + 1):
        for a, ways in half[count].items():
            for b, others in half[tokens - count].items():
                whole[a + b] += ways * others * comb(tokens, count)
    assert sum(whole.values()) == BINS**tokens
    return whole


@pytest.mark.parametrize("alarm", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("tokens", [9, 13, 23])
def test_the_chance_that_the_test_rejects_is_known_for_every_share_of_the_halves(tokens: int, alarm: float) -> None:
    """All fillings of both halves; the test rejects sums of squares whose p-value is below the alarm."""
    tail, least = 0, 0
    for square, ways in sorted(_whole_ways(tokens).items(), reverse=True):
        tail += ways
        if Fraction(tail, BINS**tokens) >= Fraction(alarm):
            break
        least = square
    half = _half_ways(tokens)
    expected = []
    for count in range(tokens + 1):
        rejected = sum(
            ways * others
            for a, ways in half[count].items()
            for b, others in half[tokens - count].items()
            if a + b >= least
        )
        expected.append(float(Fraction(rejected, (BINS // 2) ** tokens)))
    found = fidelity.found_by_half(tokens, alarm).tolist()
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert 0 <= min(found) <= max(found) <= 1


@pytest.mark.parametrize("tokens", [63, 64, 80, 151])
def test_where_the_halves_alone_are_uneven_enough_the_test_always_rejects(tokens: int) -> None:
    """Exactly: the most even filling of such halves has Pearson's statistic (difference of the halves)² / tokens."""
    tails = fidelity.excess_tails(tokens)
    least = int((tails < 1e-6).sum())
    found = fidelity.found_by_half(tokens, 1e-6).tolist()
    assert len(found) == tokens + 1
    certain = 0
    for count, share in enumerate(found):
        even = [one // 5 + (n < one % 5) for one in (count, tokens - count) for n in range(5)]
        if fidelity.excess_of(even) >= len(tails) - least:  # so many of the p-values are below the alarm
            assert share == pytest.approx(1.0, abs=1e-12)
            certain += 1
        else:
            assert share < 1 - 1e-12
    assert certain > 4
    assert found == pytest.approx(found[::-1], rel=1e-6, abs=1e-9)
    assert 0 <= min(found) < 1e-6 < max(found) == 1.0


@pytest.mark.parametrize(("trials", "chance"), [(0, 0.25), (1, 0.25), (7, 0.125), (24, 0.5)])
def test_ties_have_the_tails_of_the_binomial_from_none_to_one_more_than_all(trials: int, chance: float) -> None:
    p = Fraction(chance)
    law = [comb(trials, n) * p**n * (1 - p) ** (trials - n) for n in range(trials + 1)]
    expected = [float(sum(law[n:])) for n in range(trials + 2)]
    assert ties.binomial_tails(trials, chance).tolist() == pytest.approx(expected, rel=1e-12)
    assert len(expected) == trials + 2


def test_where_every_trial_was_an_event_the_rate_has_no_limit_below_one() -> None:
    assert upper_limit(50, 50) == upper_limit(1, 1) == 1.0
    assert upper_limit(0, 459) == pytest.approx(1 - 0.01 ** (1 / 459), rel=1e-9)
    assert upper_limit(0, 10, 0.5) == pytest.approx(1 - 0.5**0.1, rel=1e-9)
    assert upper_limit(0, 459) == upper_limit(0, 459, 0.99)


def test_ties_with_exactly_the_least_probability_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = float(ties.binomial_tails(24, ties.rate(torch.bfloat16))[3])
    monkeypatch.setattr(ties, "TOO_MANY", tail)
    assert ties.too_many(3, 24, torch.bfloat16) is None
    monkeypatch.setattr(ties, "TOO_MANY", nextafter(tail, 1))
    assert (ties.too_many(3, 24, torch.bfloat16) or "").startswith("3 certified ties in 24 compared tokens, expected")
    assert ties.too_many(2, 24, torch.bfloat16) is None


def test_a_difference_is_told_with_its_three_pairs_of_logits() -> None:
    pair = (1.5, -0.25)
    tie = ties.Difference(7, 3, (11, 12), pair, None, (0.0, 2.0), 0.00123, True, "close")
    assert str(tie) == (
        "tie: request 7, output token 3: plain 11, other 12; their logits: plain 1.500000 / -0.250000, other unknown, "
        "unmodified model 0.000000 / 2.000000, bound 1.2e-03: close"
    )
    bug = ties.Difference(7, 3, (11, -1), None, pair, (0.0, 0.0), 1.0, False, "far")
    assert str(bug) == (
        "BUG: request 7, output token 3: plain 11, other -1; their logits: plain unknown, other 1.500000 / -0.250000, "
        "unmodified model 0.000000 / 0.000000, bound 1.0e+00: far"
    )


class _Given:
    """A judge that knows one prompt's logits, and plain's surprise."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def after(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> torch.Tensor:
        assert prompt == (1, 2)
        return self.logits[: len(output)]

    def surprise(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> float:
        return float(100 * len(prompt) + len(output))


def test_an_output_is_examined_by_the_transforms_of_its_tokens_and_beside_plains() -> None:
    """Each row is a law over four tokens: 0.4, 0.3, 0.2 and 0.1, at the temperature asked for, in another order."""
    law = [0.4, 0.3, 0.2, 0.1]
    places = [0, 3, 1, 2, 0, 0, 1, 0, 2, 0]
    rows = [[law[(token - n) % 4] for token in range(4)] for n in range(len(places))]
    got = tuple((place + n) % 4 for n, place in enumerate(places))
    plain = (got[0], got[1] - 1, got[2], got[3])
    logits = torch.tensor(rows, dtype=torch.float32).log() * 2
    request = Request(5, (1, 2), SamplingParams(temperature=2.0, seed=8, max_new_tokens=20))
    found = examine(_Given(logits), request, plain, got)  # type: ignore[arg-type]
    coin, bins = random.Random("8 5"), [0] * BINS
    for place in places:
        bins[int(10 * (sum(law[:place]) + coin.random() * law[place]))] += 1
    squared = [share**2 / sum(one**2 for one in law) for share in law]
    surprise = -sum(log(squared[place]) for place in places)
    expected = Fidelity(bins, 3, 10, pytest.approx(surprise, rel=1e-5), 4, 204.0)  # type: ignore[arg-type]
    assert found == expected
    assert max(bins) > 1, "a bin with several tokens"


def test_agreements_start_from_nothing_and_add_up() -> None:
    pairs = [((1, 2, 3), (1, 2)), ((1, 2), (1, 2, 3)), ((), ()), ((), (1,)), ((5,), (6,)), ((4, 4), (4, 4))]
    every = [Agreement.of(*pair) for pair in pairs]
    assert every == [
        Agreement(1, 0, 3, 2),
        Agreement(1, 0, 2, 2),
        Agreement(1, 1, 0, 0),
        Agreement(1, 0, 0, 0),
        Agreement(1, 0, 1, 0),
        Agreement(1, 1, 2, 2),
    ]
    assert sum(every, Agreement()) == Agreement(6, 2, 8, 6)
    assert [sum(every, Agreement()).summary, every[3].summary, Agreement().summary, every[0].summary] == [
        "2/6 equal, 75% before",
        "0/1 equal, 0% before",
        "0/0 equal",
        "0/1 equal, 67% before",
    ]
