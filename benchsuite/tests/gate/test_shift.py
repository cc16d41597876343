"""The gate's statistics, compared with brute force, published tables and their stated properties."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.gate.record import CALL, DECODE, FIRST, PARTS, FigureTimes, Launch
from benchsuite.gate.rules import without_own
from benchsuite.gate.shift import holm, paired, unpaired
from benchsuite.gate.speed import Side, Subject, Tolerances, decide
from benchsuite.gate.verdict import GateVerdict
from benchsuite.gate.where import attribution, where

DISTINCT = st.lists(st.integers(-1000, 1000).filter(bool), min_size=1, max_size=8, unique_by=abs)


def above(values: list[float]) -> int:
    return sum((a + b) / 2 > 0 for i, a in enumerate(values) for b in values[i:])


@given(DISTINCT)
def test_the_signed_rank_p_value_is_the_share_of_sign_patterns_at_least_as_extreme(values: list[int]) -> None:
    got = paired(values, 0.05)
    patterns = [
        above([s * v for s, v in zip(signs, values, strict=True)])
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert got.p_more == pytest.approx(sum(p >= above(list(values)) for p in patterns) / len(patterns))
    assert got.p_less == pytest.approx(sum(p <= above(list(values)) for p in patterns) / len(patterns))


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


def test_a_launch_repeats_the_runs_arguments_but_not_what_would_gate_or_write_again() -> None:
    given = ["tests", "--gate", "fail", "--gate-against", "HEAD", "-k", "chat", "--gate-tolerance=0.1", "--gate-update"]
    given += ["--benchmark-json", "out.json", "--junitxml=x.xml", "--gate", "--benchmark-autosave", "--benchmark-quiet"]
    assert without_own(given) == ["tests", "-k", "chat", "--benchmark-quiet"]


def test_holm_rejects_the_smallest_first_and_stops_at_the_first_that_holds() -> None:
    assert holm({"a": 0.004, "b": 0.03, "c": 0.02}, 0.05) == {"a", "c", "b"}
    assert holm({"a": 0.004, "b": 0.03, "c": 0.026}, 0.05) == {"a"}
    assert holm({"a": 0.02, "b": 0.9}, 0.05) == {"a"}
    assert holm({"a": 0.03, "b": 0.9}, 0.05) == set()


CALLED = Launch({CALL: FigureTimes((1.0,))})


def sides(differences: list[float]) -> tuple[Side, Side]:
    return Side([[0.0]] * len(differences), [CALLED]), Side([[value] for value in differences], [CALLED])


def verdict(differences: list[float], final: bool, coarse: bool = False) -> GateVerdict:
    case = Subject("row", DECODE, alone=coarse, coarse=coarse)
    tolerances = Tolerances({"row": 0.03}, first=0.1, coarse=0.15)
    return decide({case: sides(differences)}, tolerances, 0.01, final, live=True)[case][0]


@pytest.mark.parametrize(
    ("differences", "final", "expected"),
    [
        ([0.01, -0.01, 0.02, -0.02, 0.0], False, GateVerdict.PASS),
        ([0.01, -0.01, 0.07, -0.02, 0.0], False, GateVerdict.INCONCLUSIVE),  # twice the tolerance is not excluded
        ([0.04, 0.05, 0.04, 0.06, 0.05], False, GateVerdict.INCONCLUSIVE),  # the second stage decides
        ([-0.04, -0.05, -0.04, -0.06, -0.05], False, GateVerdict.INCONCLUSIVE),
        ([-0.04, -0.05, -0.04, -0.06, -0.05, -0.03, -0.04], True, GateVerdict.IMPROVED),
        ([0.04, 0.05, 0.02, 0.06, 0.05, 0.04, 0.01, 0.05], True, GateVerdict.REGRESSED),
        ([0.2, -0.1, 0.1, -0.2, 0.3, 0.1, -0.1, 0.2], True, GateVerdict.INCONCLUSIVE),
        ([0.02] * 7 + [0.021], True, GateVerdict.PASS),  # certainly slower, but within the tolerance
        ([-0.02] * 7 + [-0.021], True, GateVerdict.PASS),
    ],
)
def test_the_verdict_follows_the_rule(differences: list[float], final: bool, expected: GateVerdict) -> None:
    assert verdict(differences, final) == expected


@pytest.mark.parametrize(
    ("differences", "final", "expected"),
    [
        ([0.3, -0.2, 0.1, -0.3, 0.2], False, GateVerdict.PASS),  # excludes nothing, and says so
        ([-0.3, -0.2, -0.4, -0.3, -0.2, -0.3, -0.3, -0.2], True, GateVerdict.PASS),  # a gain by the clock is no news
        ([0.3, 0.2, 0.1, 0.3, 0.2], False, GateVerdict.INCONCLUSIVE),
        ([0.3, 0.2, 0.1, 0.3, 0.2, 0.3, 0.2, 0.3], True, GateVerdict.REGRESSED),
        ([0.3, 0.2, -0.1, 0.4, 0.2, -0.3, 0.3, 0.5], True, GateVerdict.INCONCLUSIVE),
    ],
)
def test_by_the_clock_only_a_coarse_slowdown_is_told(
    differences: list[float], final: bool, expected: GateVerdict
) -> None:
    assert verdict(differences, final, coarse=True) == expected


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
    first = dict.fromkeys(PARTS, 0.0) | {"prefill": 0.8, "draft": 0.2}
    return Launch({}, {DECODE: shares, FIRST: first}, tau)


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


def test_where_of_the_first_token_is_prefill_or_the_draft() -> None:
    slower = _launch()
    slower = Launch({}, {**slower.parts, FIRST: {**slower.parts[FIRST], "draft": 0.4}}, slower.tau)
    assert where([_launch()], [slower], FIRST) == "draft +18.2 %"


def test_what_the_parts_account_for_adds_up_to_the_change() -> None:
    head = _launch(tau=1.9, draft=0.12, host=0.11)
    change = math.log(sum(head.parts[DECODE].values()) / 1.9) - math.log(1.25 / 2.0)
    assert sum(attribution([_launch()], [head]).values()) == pytest.approx(change, abs=1e-4)
    assert where([CALLED], [CALLED]) is None
