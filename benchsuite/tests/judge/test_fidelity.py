"""Checks of outputs that may differ from plain's: right where the result can be computed, and able to fail."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, groupby

import pytest

from benchsuite.conformance.models.tiny import prompts
from benchsuite.judge.favour import Favour
from benchsuite.judge.fidelity import BINS, EXACT, FALSE_ALARM, LEAST, Fidelity, chi_square, evenness, examine, finding
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm
from benchsuite.measure.paired import Series, checked
from benchsuite.tests.rig import SETTING, Make
from specdec import Request, SamplingParams

SAMPLED = SamplingParams(temperature=1.0, seed=2, max_new_tokens=60)
LOSSY = Arm(SETTING, draft="ngram", policy="topk_agree", k=4)


def whole(assemble: Make, policy: str, drawn: SamplingParams, judged: SamplingParams) -> Fidelity:
    """Twelve outputs of 60 tokens, drawn with one set of parameters and judged by another."""
    build = assemble("llama", max_rows=12, max_length=140)
    judge, engine = Judge(build.target, range(40)), build.engine("draft_model", policy, k=3)
    work = [Request(i, prompt, drawn) for i, prompt in enumerate(prompts(6) + prompts(6, seed=1))]
    total, plain = Fidelity(), build.engine(None).run(work)
    for request, done, without in zip(work, engine.run(work), plain, strict=True):
        total += examine(judge, replace(request, params=judged), without.tokens, done.tokens)
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "filters"),
    [
        *(pytest.param(policy, {}, marks=pytest.mark.slow) for policy in ("match", "rejection", "block")),
        ("tree_rejection", {}),
        pytest.param("block", {"temperature": 0.7, "top_k": 30, "top_p": 0.9}, marks=pytest.mark.slow),
    ],
    ids=["match", "rejection", "block", "tree_rejection", "block-filtered"],
)
def test_outputs_of_lossless_policies_follow_the_distribution(
    policy: str, filters: dict[str, float], assemble: Make
) -> None:
    """720 tokens; a policy with the target's distribution fails for one seed in a million, and the seed is fixed."""
    params = replace(SAMPLED, **filters)  # type: ignore[arg-type]
    found = whole(assemble, policy, params, params)
    assert sum(found.bins) == 12 * 60
    assert found.p_value > FALSE_ALARM, found.bins


@pytest.mark.slow
def test_outputs_of_another_temperature_are_found(assemble: Make) -> None:
    """Tokens drawn at 1.6 and judged at 1: their transforms are too often in the unlikely bins.

    With n tokens a total variation d of the transforms increases the chi-square by at least 4 n d^2. With n = 720 and d
    = 0.15 this is 65; the threshold is 45 at 9 degrees and one in a million.
    """
    found = whole(assemble, "rejection", replace(SAMPLED, temperature=1.6), SAMPLED)
    assert found.p_value < FALSE_ALARM, found.bins


def test_perplexity_and_agreement_are_those_computed_by_hand(assemble: Make) -> None:
    build = assemble("llama")
    judge, request = Judge(build.target, range(40)), Request(0, prompts(1)[0], SAMPLED)
    plain, got = (3, 4, 5, 6), (3, 9, 5)
    found = examine(judge, request, plain, got)
    distributions = [judge.logits((*request.prompt, *got[:i])).double().log_softmax(dim=0) for i in range(3)]
    by_hand = -sum(float(distribution[token]) for distribution, token in zip(distributions, got, strict=True))
    assert found.surprise == pytest.approx(by_hand, rel=1e-5)
    assert found.perplexities[0] == pytest.approx(math.exp(by_hand / 3), rel=1e-5)
    assert (found.agreed, found.tokens, found.plain_tokens) == (2, 3, 4)
    two = found + found
    assert two.perplexities == found.perplexities
    assert sum(two.bins) == 6


def fillings(tokens: int, bins: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every way to fill bins, up to their order: counts that do not increase."""
    if bins == 1:
        if most is None or tokens <= most:
            yield (tokens,)
        return
    for first in range(min(tokens, tokens if most is None else most), -1, -1):
        if first * bins >= tokens:
            yield from ((first, *rest) for rest in fillings(tokens - first, bins - 1, first))


def ways(filling: tuple[int, ...]) -> int:
    """How many sequences of tokens fill the bins so, in any order of the bins."""
    orders = math.factorial(len(filling)) // math.prod(math.factorial(filling.count(c)) for c in set(filling))
    return orders * math.factorial(sum(filling)) // math.prod(map(math.factorial, filling))


def squares(filling: tuple[int, ...]) -> int:
    """What Pearson's statistic grows with."""
    return sum(count * count for count in filling)


@pytest.mark.parametrize("tokens", [1, 2, 7, 10, 23])
def test_the_p_value_of_few_tokens_is_the_share_of_all_sequences_at_least_as_uneven(tokens: int) -> None:
    every = sorted(fillings(tokens, BINS), key=squares, reverse=True)
    as_uneven = rejected = 0
    for _, alike in groupby(every, key=squares):
        group = list(alike)
        as_uneven += sum(map(ways, group))
        expected = max(float(Fraction(as_uneven, BINS**tokens)), LEAST)
        assert evenness(group[0][::-1]) == pytest.approx(expected, rel=1e-9, abs=1e-14), group[0]
        rejected = as_uneven if expected < FALSE_ALARM else rejected
    assert as_uneven == BINS**tokens
    assert Fraction(rejected, BINS**tokens) <= FALSE_ALARM


def test_six_of_seven_tokens_in_a_bin_are_no_failure_as_chi_square_says() -> None:
    """Chi-square rejects at 1e-6 what comes by with probability 6.4e-5."""
    few = Fidelity([6, 1, *[0] * 8])
    assert chi_square((36 + 1) * 10 / 7 - 7) < FALSE_ALARM
    assert few.p_value == pytest.approx(6.4e-5, rel=1e-9)
    assert few.failure is None
    assert Fidelity([8, *[0] * 9]).failure


def test_above_the_switch_chi_square_rejects_1_3_times_too_many() -> None:
    """The most even bins that chi-square rejects: their exact p-value is how often it rejects the target's tokens."""
    bins, more = [83, 17, 54, 46, 54, 46, 50, 50, 50, 50], [84, 17, 54, 46, 54, 46, 50, 50, 50, 50]
    statistics = [sum((count - 50) ** 2 / 50 for count in bins), sum((count - 50.1) ** 2 / 50.1 for count in more)]
    assert sum(bins) == EXACT
    assert chi_square(statistics[0]) < FALSE_ALARM < chi_square(statistics[0] - 2 / 50)
    print(f"chi-square rejects {EXACT} tokens with probability {evenness(bins):.2e}")
    assert 1.25 < evenness(bins) / FALSE_ALARM < 1.31
    assert evenness(more) == pytest.approx(chi_square(statistics[1]), rel=1e-9), "from here on"


def test_even_bins_have_p_one_and_known_unevenness_its_tabled_value() -> None:
    assert Fidelity([50] * 10).p_value == pytest.approx(1.0)
    assert Fidelity([500] * 10).p_value == pytest.approx(1.0)
    assert Fidelity([0] * 10).p_value == 1.0
    # 21.666 is the 1 % point of chi-square with 9 degrees of freedom.
    lean = math.sqrt(21.666 * 100 / 2)
    assert Fidelity([100 + lean, 100 - lean, *[100] * 8]).p_value == pytest.approx(0.01, rel=1e-3)  # type: ignore[list-item]
    assert Fidelity([200, *[0] * 9]).p_value == Fidelity([2000, *[0] * 9]).p_value == LEAST


@pytest.mark.parametrize("shift", [0.1, 0.3, 0.5])
def test_the_chance_to_find_a_shift_is_the_sum_over_all_fillings(shift: float) -> None:
    tokens, alarm = 13, 0.01
    chance = defaultdict[int, Fraction](Fraction)  # of each sum of squares
    for left in range(tokens + 1):
        moved = Fraction(round(10 * shift), 10)
        half = Fraction(1, 2)
        law = math.comb(tokens, left) * (half - moved) ** left * (half + moved) ** (tokens - left)
        for a in fillings(left, BINS // 2):
            for b in fillings(tokens - left, BINS // 2):
                chance[squares(a + b)] += law * Fraction(ways(a) * ways(b), (BINS // 2) ** tokens)
    even = sorted(((squares(filling), ways(filling)) for filling in fillings(tokens, BINS)), reverse=True)
    reached = accumulate(own for _, own in even)
    accepted = next(total for (total, _), own in zip(even, reached, strict=True) if own >= alarm * BINS**tokens)
    assert sum(chance.values()) == 1
    expected = float(sum(own for total, own in chance.items() if total > accepted))
    assert 0.01 < expected < 0.999
    assert finding(tokens, shift, alarm) == pytest.approx(expected, rel=1e-8)


def test_the_smallest_shift_is_found_99_times_in_100_and_a_smaller_one_is_not() -> None:
    for tokens in (50, 144, EXACT, EXACT + 1, 3000):
        shift = Fidelity([tokens, *[0] * 9]).smallest_shift
        assert shift is not None
        assert finding(tokens, shift) >= 0.99 > finding(tokens, shift - 2e-4)
    shown = [Fidelity([tokens, *[0] * 9]).smallest_shift for tokens in (50, 144, 500, 3000, 20000)]
    assert shown == pytest.approx([0.499, 0.340, 0.188, 0.0775, 0.0300], abs=6e-4)


def test_where_no_shift_is_found_none_is_named() -> None:
    assert [Fidelity([tokens, *[0] * 9]).smallest_shift for tokens in (0, 7, 49)] == [None, None, None]
    assert Fidelity([5] * 9 + [4]).summary == "p=1, finds nothing"


def test_two_tests_share_the_false_alarm_and_the_rarer_result_is_told() -> None:
    """By hand: the ratio 17 of six has p = 6 e^-17 = 2.5e-7, doubled 5e-7; 16 has 1.4e-6."""
    lean, rare, even = [26] * 5 + [12] * 5, [17.0, *[-99.0] * 5], [19] * 10
    asked = Favour(12, 168, 20.25, 1.75, rare, [0.0, 30.0, *[99.0] * 4], [1.0] * 6)
    favoured = Fidelity(even, favour=asked)
    assert favoured.p_value == pytest.approx(12 * math.exp(-17), rel=1e-9)
    said = favoured.failure or ""
    assert "12 outputs, it (or for another engine a lookup) proposes 20.2 of 168 tokens, and 1.8 is due" in said
    assert favoured.summary == "p=5e-07, finds 30 %, drafted 2 %"
    assert Fidelity(even, favour=replace(asked, ratios=[16.0, *rare[1:]])).failure is None
    both = Fidelity(lean, favour=replace(asked, ratios=[0.0] * 6))
    assert both.p_value == pytest.approx(2 * evenness(lean), rel=1e-9)
    assert Fidelity([200, *[0] * 9], favour=asked).p_value == LEAST
    assert "10 equal bins, are [200, 0" in (Fidelity([200, *[0] * 9], favour=asked).failure or "")
    assert (Fidelity(even).smallest_favour, Fidelity(even, favour=Favour(1)).summary) == (
        None,
        "p=1, finds 30 %, drafted nothing",
    )
    for tests, one in ((1, Fidelity(even)), (2, favoured)):
        shift = one.smallest_shift
        assert shift is not None
        assert finding(190, shift, FALSE_ALARM / tests) >= 0.99 > finding(190, shift - 2e-4, FALSE_ALARM / tests)
    assert (favoured + favoured).favour == asked + asked


def test_rows_that_pass_can_fail_together() -> None:
    row = Fidelity([28, 24, 18, 14, 14, 14, 14, 8, 6, 4])
    assert row.failure is None
    assert "288 tokens do not follow the target's distribution" in ((row + row).failure or "")


def test_a_row_says_what_was_examined() -> None:
    even, steep = Fidelity([10] * 10, 60, 100, 100.0, 100, 50.0), Fidelity([91] + [1] * 9, 60, 100, 100.0, 100, 50.0)
    assert checked([Series(LOSSY, "lossy", fidelity=steep)]) == f"60% agree; ppl {math.e:.2f} for {math.exp(0.5):.2f}"
    assert Series(LOSSY, "lossy", fidelity=steep).failure is None
    assert checked([Series(LOSSY, "distribution", fidelity=even)]) == even.summary == "p=1, finds 40 %"
    broken = Series(LOSSY, "distribution", fidelity=steep)
    assert (checked([broken]) or "").startswith("FAILED: p<1e-12")
    assert "do not follow the target's distribution" in (broken.failure or "")
