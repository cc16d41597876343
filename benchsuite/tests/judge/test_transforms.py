"""Sampled outputs under plain's lists: every sum once more by hand, and the stated sizes of the temperature's test."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest

from benchsuite.judge import transforms
from benchsuite.judge.transforms import ServedSample, read_tokens
from specdec_plugins.endpoints.replies import Token

FACTORS = (1.05, 1 / 1.05, 1.1, 1 / 1.1, 1.2, 1 / 1.2, 1.35, 1 / 1.35, 1.5, 1 / 1.5, 2.0, 0.5, 3.0, 1 / 3)


def _token(text: str, *chances: float) -> Token:
    """A token whose list has the texts "a", "b", … with these probabilities."""
    return Token(text, None, None, tuple(("abcdefg"[n], math.log(chance)) for n, chance in enumerate(chances)))


def test_fourteen_temperatures_are_mixed_each_with_its_inverse() -> None:
    assert pytest.approx(FACTORS) == transforms.HEATS
    assert (transforms.FALSE_ALARM_OF_HEAT, transforms.LEAST_REST, transforms.HOTTEST) == (1e-6, 1e-6, 4.0)


@pytest.mark.parametrize("seed", [None, 0, 3])
def test_the_sums_over_tokens_are_those_written_out(seed: int | None) -> None:
    """Tokens without a list and with unclear ones count for nothing, and those after them do."""
    outputs = [
        [_token("b", 0.5, 0.3), Token("b"), Token("a", None, None, (("a", -1.0), ("a", -2.0))), _token("a", 0.6)],
        [_token("z", 0.5, 0.4), _token("c", 0.4, 0.2, 0.1, 0.05), *[_token("a", 0.9)] * 6],
        [],
    ]
    places = [([0.5, 0.3, 0.2], 1), ([0.6, 0.4], 0), ([0.5, 0.4, 0.1], 2), ([0.4, 0.2, 0.1, 0.05, 0.25], 2)]
    places += [([0.9, 0.1], 0)] * 6
    dice, bins, surplus, ratios = random.Random(seed or 0), [0] * 10, 0.0, [0.0] * 14
    for chances, place in places:
        bins[math.floor(10 * (sum(chances[:place]) + dice.random() * chances[place]))] += 1
        surplus += math.log(chances[place]) + sum(-p * math.log(p) for p in chances)
        for n, factor in enumerate(FACTORS):
            powers = [math.exp(math.log(p) / factor) for p in chances]
            ratios[n] += math.log(powers[place] / sum(powers)) - math.log(chances[place])
    found = read_tokens(outputs) if seed is None else read_tokens(outputs, seed)
    assert found.bins == tuple(bins)
    assert max(bins) > 1, "a bin with several tokens"
    assert found.surplus == pytest.approx(surplus)
    assert found.ratios == pytest.approx(ratios)
    assert [list(one) for one in found.lists] == [pytest.approx(chances) for chances, _ in places]
    assert found.tokens == len(places)


def test_a_list_that_leaves_nothing_has_a_rest_of_a_millionth() -> None:
    """So has one whose rounded probabilities are more than one together; the whole is one again."""
    for last in (0.5, 0.6):
        [chances] = read_tokens([[_token("z", 0.5, last)]]).lists
        whole = 0.5 + last + 1e-6
        assert chances == pytest.approx((0.5 / whole, last / whole, 1e-6 / whole), rel=1e-9)
        assert read_tokens([[_token("z", 0.5, last)]]).bins == (0,) * 9 + (1,)


class _Highest(random.Random):
    """Dice whose share is one, which rounding can make of a share below one."""

    def random(self) -> float:
        return 1.0


def test_a_transform_that_is_rounded_to_one_lies_in_the_last_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "Random", _Highest)
    assert read_tokens([[_token("z", 0.5, 0.3)]]).bins == (0,) * 9 + (1,)


@pytest.mark.parametrize(
    ("ratios", "p"),
    [
        ((math.log(2), math.log(4)), 1 / 3),  # the mean of the ratios is three
        ((math.log(4), math.log(2), math.log(0.5), math.log(1.5)), 1 / 2),
        ((math.log(0.5), math.log(1.5)), 1.0),  # a mean of one
        ((math.log(0.5), math.log(0.25)), 1.0),  # less than one: a probability is not more than one
        ((2000.0, 0.0), 0.0),  # too small for a number, and no error
    ],
)
def test_the_p_value_of_the_temperature_is_one_over_the_mean_of_the_ratios(ratios: tuple[float, ...], p: float) -> None:
    assert ServedSample((), 0.0, ratios, ()).heat_p == pytest.approx(p)


def test_a_sample_without_tokens_finds_no_temperature() -> None:
    nothing = read_tokens([])
    assert (nothing.bins, nothing.surplus, nothing.ratios, nothing.tokens) == ((0,) * 10, 0.0, (0.0,) * 14, 0)
    assert nothing.tokens_for(2.0) == math.inf
    assert nothing.heat_found() is None
    assert nothing.heat_p == nothing.evenness == 1.0


@pytest.mark.slow
def test_the_factor_found_is_the_one_for_which_there_are_just_enough_tokens() -> None:
    sample = read_tokens([[_token("a", 0.5, 0.3, 0.15)] * 400])
    factor = sample.heat_found()
    assert factor is not None
    assert sample.tokens_for(factor) == pytest.approx(400, rel=1e-5)
    assert sample.tokens_for(factor) == sample.tokens_for(factor, 0.99) < sample.tokens_for(factor, 0.999)
    assert sample.heat_found(0.99) == factor < (sample.heat_found(0.999) or 0.0)
    assert sample.tokens_for(factor + 0.1) < 400 < sample.tokens_for(factor - 0.1)


@dataclass(frozen=True)
class _Threshold(ServedSample):
    """A sample of two tokens that finds a factor with two tokens from ``least`` on, and not below."""

    least: float = 1.0

    def tokens_for(self, factor: float, probability: float = 0.99) -> float:
        return 2.0 if factor >= self.least else 2.5


@pytest.mark.parametrize("least", [1.0000001, 1.3, 2.2, 3.9, 4.0])
def test_as_many_tokens_as_are_needed_are_enough_and_the_factor_is_found_by_thirty_halvings(least: float) -> None:
    """From 1 to 4: the smallest of 2**30 equal steps that is enough."""
    sample = _Threshold((), 0.0, (), ((1.0,),) * 2, least)
    assert sample.heat_found() == 1 + 3 * math.ceil((least - 1) / 3 * 2**30) / 2**30


def test_up_to_four_times_the_temperature_is_looked_for() -> None:
    assert _Threshold((), 0.0, (), ((1.0,),) * 2, 4.0001).heat_found() is None


def test_the_tokens_that_are_needed_do_not_depend_on_how_many_were_read() -> None:
    token = _token("a", 0.5, 0.3, 0.15)
    few, many = read_tokens([[token] * 2]), read_tokens([[token] * 200])
    for factor in (0.8, 1.2, 2.0):
        assert few.tokens_for(factor) == pytest.approx(many.tokens_for(factor))
