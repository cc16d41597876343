"""Sampled outputs under plain's lists: every sum once more by hand, and the stated sizes of the temperature's test."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace

import pytest

from benchsuite.judge import transforms
from benchsuite.judge.transforms import ServedSample, read_tokens
from specdec_plugins.endpoints.replies import Token

FACTORS = (1.05, 1 / 1.05, 1.1, 1 / 1.1, 1.2, 1 / 1.2, 1.35, 1 / 1.35, 1.5, 1 / 1.5, 2.0, 0.5, 3.0, 1 / 3)


def _token(text: str, *chances: float) -> Token:
    """A token whose list has the texts "a", "b", … with these probabilities."""
    return Token(text, None, None, tuple(("abcdefg"[n], math.log(chance)) for n, chance in enumerate(chances)))


def _filtered(chances: list[float], place: int, kept: list[bool], whole: bool) -> float:
    """A token's likelihood where a filter keeps these of a list, and lets a fiftieth through, over that without; 1
    where it may keep some that are not listed."""
    mass = sum(chance for chance, one in zip(chances, kept, strict=False) if one)
    return 0.02 + 0.98 * (place < len(kept) and kept[place]) / mass if whole else 1.0


def _written_out(chances: list[float], place: int) -> list[float]:
    """The likelihood ratio of every alternative, of a list with a rest."""
    heated, listed, size = [], chances[:-1], 2**18
    for factor in FACTORS:
        powers = [math.exp(math.log(p) / factor) for p in chances]
        heated.append(powers[place] / sum(powers) / chances[place])
    nuclei = []
    for most in (0.8, 0.9, 0.95, 0.98):
        before = [sum(listed[:n]) < most for n in range(len(listed))]  # a nucleus ends with the token that fills it
        nuclei.append(_filtered(chances, place, before, sum(listed) >= most))
    floors = []
    for least in (0.02, 0.05, 0.1):
        above = [p >= least * listed[0] for p in listed]
        floors.append(_filtered(chances, place, above, not above[-1]))
    uniform = [1 / size] * len(listed) + [1 - len(listed) / size]
    strange = [1 - share + share * uniform[place] / chances[place] for share in (0.01, 0.03, 0.1)]
    led = [1 - share + share * (place == 0) / chances[0] for share in (0.05, 0.1, 0.2)]
    if len(listed) > 1 and math.log(listed[0] / listed[1]) <= 0.5:
        led += [1 - share + share * (place == 1) / listed[1] for share in (0.1, 0.2, 0.4)]
    else:
        led += [1.0] * 3
    return heated + nuclei + floors + strange + led


def test_a_token_that_is_not_listed_is_judged_by_its_own_log_probability() -> None:
    """Eight tokens of a hundred replaced by any: with the rest as one class their transforms were even (p = 0.71)."""
    dice, listed = random.Random(1), (0.4, 0.2, 0.15, 0.1, 0.05)
    honest = [_token("abcde"[place], *listed) for place in dice.choices(range(5), listed, k=828)]
    likely = [replace(_token("z", *listed), logprob=math.log(dice.uniform(1e-3, 2e-2))) for _ in range(72)]
    strange = [replace(token, logprob=math.log(dice.uniform(1e-9, 1e-7))) for token in likely]
    assert read_tokens([[*honest, *likely]]).ratio_p > 1e-3
    assert read_tokens([[*honest, *strange]]).ratio_p < transforms.FALSE_ALARM_OF_RATIOS
    assert read_tokens([[*honest, *strange]]).evenness > 1e-3, "which nothing else sees"
    [one] = [read_tokens([[replace(token, logprob=-30.0)]]) for token in honest[:1]]
    assert one == read_tokens([honest[:1]]), "a listed token is judged by its list"


def test_a_nucleus_that_nobody_asked_for_is_found_with_few_tokens() -> None:
    """A server's default of top_p: bins alone need several times as many tokens."""
    dice, found, most = random.Random(2), list[Token](), 0.95
    for _ in range(900):
        weights = sorted((math.exp(dice.gauss(0, 3)) for _ in range(12)), reverse=True)
        chances = [one / sum(weights) for one in weights]
        kept = [p for n, p in enumerate(chances) if sum(chances[:n]) < most]
        place = dice.choices(range(len(kept)), kept)[0]
        found.append(replace(_token("abcdefghijkl"[place], *chances[:5]), logprob=math.log(chances[place])))
    assert read_tokens([found]).ratio_p < transforms.FALSE_ALARM_OF_RATIOS
    assert read_tokens([found]).evenness > 1e-6


def test_a_nucleus_is_found_in_lists_that_reach_its_end_and_not_in_those_of_the_five_likeliest() -> None:
    """As real lists are: the five likeliest have half of the mass, and 0.95 of it ends behind some two hundred. A
    llama.cpp server with such a default was certified."""
    dice, found, honest, most = random.Random(4), list[Token](), list[Token](), 0.95
    names = tuple(f"t{n}" for n in range(400))
    for _ in range(500):
        weights = sorted((math.exp(dice.gauss(0, 2.5)) for _ in names), reverse=True)
        chances = [one / sum(weights) for one in weights]
        below = [0.0, *itertools.accumulate(chances)]
        top = tuple((name, math.log(p)) for name, p in zip(names, chances, strict=True))
        for tokens, width in ((found, sum(one < most for one in below[:-1])), (honest, len(names))):
            place = dice.choices(range(width), chances[:width])[0]
            tokens.append(Token(names[place], None, top[place][1], top))
    long, short = (read_tokens([[replace(one, top=one.top[:n]) for one in found]]) for n in (400, 5))
    assert long.ratio_p < transforms.FALSE_ALARM_OF_RATIOS < 1e-3 < short.ratio_p
    assert long.tokens_for_nucleus(most) < len(found) < short.tokens_for_nucleus(most)
    assert read_tokens([honest]).ratio_p > 1e-3


def test_fourteen_temperatures_are_mixed_each_with_its_inverse() -> None:
    assert pytest.approx(FACTORS) == transforms.HEATS
    assert (transforms.FALSE_ALARM_OF_RATIOS, transforms.LEAST_REST, transforms.HOTTEST) == (1e-6, 1e-6, 4.0)


@pytest.mark.parametrize("seed", [None, 0, 3])
def test_the_sums_over_tokens_are_those_written_out(seed: int | None) -> None:
    """Tokens without a list and with unclear ones count for nothing, and those after them do."""
    outputs = [
        [_token("b", 0.5, 0.31), Token("b"), Token("a", None, None, (("a", -1.0), ("a", -2.0))), _token("a", 0.6)],
        [_token("z", 0.5, 0.4), _token("c", 0.4, 0.2, 0.1, 0.05), *[_token("a", 0.9)] * 6],
        [],
    ]
    places = [([0.5, 0.31, 0.19], 1), ([0.6, 0.4], 0), ([0.5, 0.4, 0.1], 2), ([0.4, 0.2, 0.1, 0.05, 0.25], 2)]
    places += [([0.9, 0.1], 0)] * 6
    dice, bins, surplus, ratios = random.Random(seed or 0), [0] * 10, 0.0, [0.0] * 30
    for chances, place in places:
        bins[math.floor(10 * (sum(chances[:place]) + dice.random() * chances[place]))] += 1
        surplus += math.log(chances[place]) + sum(-p * math.log(p) for p in chances)
        ratios = [total + math.log(one) for total, one in zip(ratios, _written_out(chances, place), strict=True)]
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
def test_the_p_value_of_the_alternatives_is_one_over_the_mean_of_the_ratios(
    ratios: tuple[float, ...], p: float
) -> None:
    assert ServedSample((), 0.0, ratios, ()).ratio_p == pytest.approx(p)


def test_a_sample_without_tokens_finds_no_temperature() -> None:
    nothing = read_tokens([])
    assert (nothing.bins, nothing.surplus, nothing.ratios, nothing.tokens) == ((0,) * 10, 0.0, (0.0,) * 30, 0)
    assert nothing.tokens_for(2.0) == math.inf
    assert nothing.heat_found() is None
    assert nothing.ratio_p == nothing.evenness == 1.0


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
