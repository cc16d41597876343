"""Schedules of accepted proposals: what each description means, and how many forwards its shape takes."""

from __future__ import annotations

from itertools import product
from math import floor, fsum, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.schedule import Schedule, schedule_of

chance = st.integers(0, 20).map(lambda n: n / 20)


@pytest.mark.parametrize(
    ("length", "k", "reached"),
    [(2.6, 3, [1, 0.6, 0]), (1, 3, [0, 0, 0]), (4, 3, [1, 1, 1]), (2, 3, [1, 0, 0]), (3.5, 4, [1, 1, 0.5, 0])],
)
def test_a_length_is_the_schedule_that_vllm_makes_of_it(length: float, k: int, reached: list[float]) -> None:
    """The values are of vLLM's own tests of its ``synthetic_acceptance_length``."""
    assert schedule_of(k, length=length).reached == pytest.approx(reached)


def test_vllms_rates_are_not_given_what_came_before() -> None:
    """vLLM's test of how it makes conditional rates of ``synthetic_acceptance_rates`` 0.9, 0.5, 0.2."""
    found = schedule_of(3, histogram="0.1-0.4-0.3-0.2")
    assert found.reached == pytest.approx((0.9, 0.5, 0.2))
    assert found.rates == pytest.approx((0.9, 0.5 / 0.9, 0.2 / 0.5))


@given(st.lists(chance, max_size=5))
def test_the_histogram_is_that_of_coins_that_are_thrown_until_one_fails(rates: list[float]) -> None:
    found = schedule_of(len(rates), rates="-".join(map(str, rates))) if rates else Schedule(())
    expected = [0.0] * (len(rates) + 1)
    for coins in product((True, False), repeat=len(rates)):
        count = next((place for place, right in enumerate(coins) if not right), len(coins))
        expected[count] += prod(rate if right else 1 - rate for rate, right in zip(rates, coins, strict=True))
    assert found.histogram == pytest.approx(expected, abs=1e-12)
    assert found.length == pytest.approx(1 + fsum(n * one for n, one in enumerate(expected)))
    assert found.variance == pytest.approx(
        fsum(n * n * one for n, one in enumerate(expected)) - (found.length - 1) ** 2, abs=1e-12
    )


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any))
def test_a_histogram_is_kept_and_none_of_its_mean_varies_less_than_the_schedule_of_its_length(
    counts: list[int],
) -> None:
    chances, k = [count / sum(counts) for count in counts], len(counts) - 1
    found = schedule_of(k, histogram="-".join(f"{one:.9f}" for one in chances))
    assert found.histogram == pytest.approx(chances, abs=1e-7)
    even = schedule_of(k, length=min(max(found.length, 1), k + 1))
    assert even.length == pytest.approx(found.length)
    part = even.length - floor(even.length)
    assert even.variance == pytest.approx(part * (1 - part), abs=1e-9)
    assert even.variance <= found.variance + 1e-9


def ways_of(schedule: Schedule, tokens: int) -> dict[int, float]:
    """The distribution of the steps in which a row gets its tokens, by every way to get them."""
    if tokens <= 0:
        return {0: 1.0}
    found: dict[int, float] = {}
    for count, chance_of in enumerate(schedule.histogram):
        for steps, rest in ways_of(schedule, tokens - 1 - count).items():
            found[steps + 1] = found.get(steps + 1, 0) + chance_of * rest
    return found


@given(st.lists(chance, min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 3))
def test_forwards_are_those_of_every_way_to_the_last_row(rates: list[float], tokens: int, rows: int) -> None:
    schedule = Schedule(tuple(rates))
    ways = ways_of(schedule, tokens)
    expected = fsum(max(steps) * prod(ways[one] for one in steps) for steps in product(ways, repeat=rows))
    assert schedule.forwards(tokens, rows) == pytest.approx(expected)


def test_one_mean_has_as_many_forwards_alone_and_more_in_a_batch_the_wider_it_is_spread() -> None:
    """A mean of 3 of at most 5 tokens a step: always 3; each proposal as likely; all or nothing."""
    even, coins, all_or_none = (
        schedule_of(4, length=3),
        schedule_of(4, rate=0.741270910566),
        schedule_of(4, histogram="0.5-0-0-0-0.5"),
    )
    assert [one.length for one in (even, coins, all_or_none)] == pytest.approx([3, 3, 3])
    assert even.forwards(60) == even.forwards(60, 8) == 20
    alone = [one.forwards(60) for one in (even, coins, all_or_none)]
    batch = [one.forwards(60, 8) for one in (even, coins, all_or_none)]
    assert alone == pytest.approx([20] * 3, rel=0.05)
    assert batch == sorted(batch)
    assert batch[2] > 1.2 * batch[0]
