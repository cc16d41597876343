"""The gate's statistics, compared with brute force, published tables and their stated properties."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.gate.record import CALL, DECODE, FIRST, PARTS, FigureTimes, Launch
from benchsuite.gate.shift import paired, unpaired
from benchsuite.gate.speed import Side, Subject, Tolerances, decide
from benchsuite.gate.verdict import GateVerdict
from benchsuite.gate.where import attribution, where

DISTINCT = st.lists(st.integers(-1000, 1000).filter(bool), min_size=1, max_size=8, unique_by=abs)


def above(values: list[float]) -> int:
    return sum((a + b) / 2 > 0 for i, a in enumerate(values) for b in values[i:])


@pytest.mark.slow
@given(DISTINCT)
def test_the_signed_rank_p_value_is_the_share_of_sign_patterns_at_least_as_extreme(values: list[int]) -> None:
    got = paired(values, 0.05)
    patterns = [
        above([s * v for s, v in zip(signs, values, strict=True)])
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert got.p_more == pytest.approx(sum(p >= above(list(values)) for p in patterns) / len(patterns))
    assert got.p_less == pytest.approx(sum(p <= above(list(values)) for p in patterns) / len(patterns))


@pytest.mark.slow
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=9, unique=True), st.data())
def test_the_rank_sum_p_value_is_the_share_of_splits_at_least_as_extreme(
    values: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(values) - 1))
    base, head = values[:count], values[count:]
    got = unpaired(base, head, 0.05)

    def wins(heads: tuple[int, ...]) -> int:
        return sum(h > b for h in heads for b in values if b not in heads)

    splits = [wins(heads) for heads in itertools.combinations(values, len(head))]
    assert got.p_more == pytest.approx(sum(s >= wins(tuple(head)) for s in splits) / len(splits))
    assert got.p_less == pytest.approx(sum(s <= wins(tuple(head)) for s in splits) / len(splits))


@pytest.mark.parametrize(("count", "statistic"), [(5, 0), (6, 2), (8, 5), (10, 10), (13, 21)])
def test_the_signed_rank_reaches_five_percent_where_the_tables_say(count: int, statistic: int) -> None:
    """One-sided critical values of T at 0.05 (Hollander and Wolfe, table A.4)."""
    signs = [1] * count
    left = statistic
    for rank in range(count, 0, -1):
        if rank <= left:
            signs[rank - 1], left = -1, left - rank
    values = [float(sign * rank) for rank, sign in enumerate(signs, 1)]
    assert paired(values, 0.05).p_more <= 0.05
    flipped = [*values]
    flipped[flipped.index(1.0 if 1.0 in values else min(v for v in values if v > 0))] *= -1
    assert paired(flipped, 0.05).p_more > 0.05


def test_five_pairs_that_agree_show_one_in_thirty_two_and_no_more() -> None:
    got = paired([0.05, 0.06, 0.07, 0.05, 0.06], 1 / 32)
    assert (got.p_more, got.low, got.high) == (1 / 32, 0.05, 0.07)
    assert paired([0.05, 0.06, 0.07, 0.05, 0.06], 1 / 33).low == -math.inf


@pytest.mark.slow
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=6), st.sampled_from([1 / 32, 0.01, 0.1, 0.5]))
def test_bounds_are_averages_of_pairs_as_many_from_the_ends_as_the_level_allows(
    values: list[int], level: float
) -> None:
    """Also where values are equal or 0: the level's ranks are those of all patterns of signs."""
    averages = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    sums = [
        sum(rank * sign for rank, sign in enumerate(signs, 1))
        for signs in itertools.product((0, 1), repeat=len(values))
    ]
    within = [cut for cut in range(len(averages)) if sum(one <= cut for one in sums) / len(sums) <= level]
    low, high = (averages[within[-1]], averages[-1 - within[-1]]) if within else (-math.inf, math.inf)
    got = paired(values, level)
    assert (got.low, got.high) == (low, high)
    assert got.p_more == sum(one >= sum(a > 0 for a in averages) for one in sums) / len(sums)
    assert got.p_less == sum(one >= sum(a < 0 for a in averages) for one in sums) / len(sums)


@pytest.mark.slow
@given(
    st.lists(st.integers(-9, 9), min_size=1, max_size=4),
    st.lists(st.integers(-9, 9), min_size=1, max_size=4),
    st.sampled_from([0.01, 0.1, 0.5]),
)
def test_bounds_of_two_sets_are_differences_as_many_from_the_ends_as_the_level_allows(
    base: list[int], head: list[int], level: float
) -> None:
    differences = sorted(b - a for a in base for b in head)
    ranks = itertools.combinations(range(len(base) + len(head)), len(head))
    sums = [sum(chosen) - len(head) * (len(head) - 1) // 2 for chosen in ranks]
    within = [cut for cut in range(len(differences)) if sum(one <= cut for one in sums) / len(sums) <= level]
    low, high = (differences[within[-1]], differences[-1 - within[-1]]) if within else (-math.inf, math.inf)
    got = unpaired(base, head, level)
    assert (got.low, got.high) == (low, high)
    assert got.p_more == sum(one >= sum(d > 0 for d in differences) for one in sums) / len(sums)
    assert got.p_less == sum(one >= sum(d < 0 for d in differences) for one in sums) / len(sums)


@pytest.mark.slow
@given(DISTINCT, st.integers(-50, 50), st.sampled_from([1 / 32, 0.01, 0.1]))
def test_a_bound_moves_with_the_values_and_lies_on_its_side(values: list[int], by: int, level: float) -> None:
    got, moved = paired(values, level), paired([v + by for v in values], level)
    assert moved.low == got.low + by
    assert moved.high == got.high + by
    assert got.low <= got.estimate <= got.high
    swapped = paired([-v for v in values], level)
    assert (swapped.low, swapped.estimate, swapped.high) == (-got.high, -got.estimate, -got.low)


@given(DISTINCT, st.sampled_from([1 / 32, 0.01, 0.1]))
def test_a_bound_excludes_nothing_exactly_where_the_test_does_not_reject(values: list[int], level: float) -> None:
    assert (paired(values, level).low > 0) is (paired(values, level).p_more <= level)
    base, head = values[::2], values[1::2] or [5000]
    got = unpaired(base, head, level)
    if 0 not in [h - b for h in head for b in base]:
        assert (got.low > 0) is (got.p_more <= level)


CALLED = Launch({CALL: FigureTimes((1.0,))})


def sides(differences: list[float]) -> tuple[Side, Side]:
    return Side([[0.0]] * len(differences), [CALLED]), Side([[value] for value in differences], [CALLED])


def verdict(differences: list[float], final: bool) -> GateVerdict:
    case = Subject("row", DECODE, alone=True, coarse=True)
    tolerances = Tolerances({"row": 0.03}, first=0.1, coarse=0.15)
    return decide({case: sides(differences)}, tolerances, 0.01, final, live=True)[case][0]


@pytest.mark.parametrize(
    ("differences", "final", "expected"),
    [
        ([0.3, -0.2, 0.1, -0.3, 0.2], False, GateVerdict.COARSE),  # excludes nothing, and says so
        ([0.2, -0.2, 0.1, -0.3, 0.2], False, GateVerdict.PASS),
        ([-0.3, -0.2, -0.4, -0.3, -0.2, -0.3, -0.3, -0.2], True, GateVerdict.PASS),  # a gain by the clock is no news
        ([0.3, 0.2, 0.1, 0.3, 0.2], False, GateVerdict.INCONCLUSIVE),
        ([0.3, 0.2, 0.1, 0.3, 0.2, 0.3, 0.2, 0.3], True, GateVerdict.REGRESSED),
        ([0.3, 0.2, -0.1, 0.4, 0.2, -0.3, 0.3, 0.5], True, GateVerdict.INCONCLUSIVE),
    ],
)
def test_by_the_clock_only_a_coarse_slowdown_is_told(
    differences: list[float], final: bool, expected: GateVerdict
) -> None:
    assert verdict(differences, final) == expected


def test_a_row_is_held_to_more_where_many_are_tested_but_not_where_other_figures_are() -> None:
    """p = 1/256 rejects at 1 % for one row, but not for three rows with the same p."""
    both = sides([0.04, 0.05, 0.02, 0.06, 0.05, 0.04, 0.01, 0.05])
    tolerances = Tolerances(dict.fromkeys("abc", 0.03), first=0.03, coarse=0.15)

    def verdicts(*tested: Subject) -> set[GateVerdict]:
        found = decide(dict.fromkeys(tested, both), tolerances, 0.01, True, live=True)
        return {verdict for verdict, _ in found.values()}

    assert verdicts(Subject("a", DECODE)) == {GateVerdict.REGRESSED}
    assert verdicts(*(Subject(name, DECODE) for name in "abc")) == {GateVerdict.INCONCLUSIVE}
    assert verdicts(Subject("a", DECODE), Subject("a", FIRST)) == {GateVerdict.REGRESSED}


def _launch(tau: float = 2.0, **parts: float) -> Launch:
    shares = dict.fromkeys(PARTS, 0.0) | {"draft": 0.1, "verification": 1.0, "K/V": 0.05, "host": 0.1} | parts
    return Launch({}, {DECODE: shares}, tau)


@pytest.mark.parametrize(
    ("head", "place"),
    [
        (_launch(draft=0.2), "draft +7.7 %"),
        (_launch(verification=1.1), "verification +7.7 %"),
        (_launch(**{"K/V": 0.15}), "K/V +7.7 %"),
        (_launch(host=0.2), "host +7.7 %"),
        (_launch(tau=1.8), "acceptance +10.5 %"),
        (_launch(draft=0.11, tau=2.2), "acceptance -9.5 %"),
    ],
)
def test_where_names_the_part_that_moved_the_time_most(head: Launch, place: str) -> None:
    assert where([_launch()] * 3, [head] * 3) == place


def test_what_the_parts_account_for_adds_up_to_the_change() -> None:
    head = _launch(tau=1.9, draft=0.12, host=0.11)
    change = math.log(sum(head.parts[DECODE].values()) / 1.9) - math.log(1.25 / 2.0)
    assert sum(attribution([_launch()], [head]).values()) == pytest.approx(change, abs=1e-4)
    assert where([CALLED], [CALLED]) is None
