"""Forwards per emitted token: exact where tokens are equal, by a test over prompts where they are drawn anew."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, expm1
from statistics import median
from typing import Any

import pytest

from benchsuite.gate.acceptance import acceptance_findings, comparable_steps
from benchsuite.gate.record import DECODE, STEPS, FigureTimes, GatedRow, Launch, Record, StepCounts
from benchsuite.gate.speed import Subject, cases
from benchsuite.gate.trial import UNJUDGED
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.tests.launched_rig import trial

PASS, COARSE, IMPROVED = GateVerdict.PASS, GateVerdict.COARSE, GateVerdict.IMPROVED
INCONCLUSIVE, REGRESSED, ERROR = GateVerdict.INCONCLUSIVE, GateVerdict.REGRESSED, GateVerdict.ERROR


def judged_prompts(base: Sequence[float], head: Sequence[float], same: bool = True, **rules: float) -> Finding:
    """The finding on one row: forwards per token of each prompt before and now, of the same tokens or of others."""
    both = StepCounts(tuple(base), "t"), StepCounts(tuple(head), "t" if same else "u")
    given = {"tolerance": 0.025, "coarse": 0.15, "alpha": 0.01, **rules}
    [found] = acceptance_findings({"row": both}, **given)
    return found


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ([1.0] * 3, PASS),
        ([1.024] * 3, PASS),
        ([1.026] * 3, REGRESSED),
        ([0.976] * 3, PASS),
        ([0.974] * 3, IMPROVED),
        # One prompt moves the mean by its share.
        ([1.0, 1.0, 1.08], REGRESSED),
        ([1.0, 1.0, 1.07], PASS),
        # Beyond five tolerances it is a loss whatever the others are.
        ([1.0] * 19 + [1.126], REGRESSED),
        ([1.0] * 19 + [1.124], PASS),
        ([0.9] * 19 + [1.126], REGRESSED),
    ],
)
def test_of_equal_tokens_the_counts_are_exact_and_any_loss_beyond_the_tolerance_is_one(
    factors: Sequence[float], verdict: GateVerdict
) -> None:
    base = [0.3 + place / 100 for place in range(len(factors))]
    found = judged_prompts(base, [value * factor for value, factor in zip(base, factors, strict=True)])
    assert (found.verdict, found.figure, found.level) == (verdict, STEPS, 0)
    product = 1.0
    for factor in factors:
        product *= factor
    assert found.change == pytest.approx(product ** (1 / len(factors)) - 1)
    assert found.where == (None if verdict == PASS else "acceptance")
    assert (found.low, found.high) == (None, None)


def test_a_prompt_that_alone_got_worse_is_named() -> None:
    found = judged_prompts([0.5] * 40, [0.5] * 4 + [0.9] + [0.5] * 35)
    assert found.verdict == REGRESSED
    assert found.message.startswith("prompt 5 of 40 alone takes +80.0%; over all prompts +1.5%")


def chance_of_more(changes: Sequence[float]) -> float:
    """By counting: of all ways to sign these changes, the share with a signed rank sum as large as theirs."""
    order = sorted(changes, key=abs)
    ranks = range(1, len(order) + 1)
    own = sum(rank for rank, change in zip(ranks, order, strict=True) if change > 0)
    ways = itertools.product((0, 1), repeat=len(order))
    sums = [sum(rank for rank, sign in zip(ranks, way, strict=True) if sign) for way in ways]
    return sum(one >= own for one in sums) / len(sums)


def test_of_other_tokens_a_loss_is_one_that_a_signed_rank_test_over_prompts_shows() -> None:
    coin, seen = random.Random(4), set[GateVerdict]()
    for _ in range(40):
        loss = coin.choice([-0.1, 0.0, 0.05, 0.1, 0.3])
        changes = [coin.gauss(loss, 0.1) for _ in range(9)]
        found = judged_prompts([0.4] * 9, [0.4 * exp(change) for change in changes], same=False)
        middle = median((a + b) / 2 for a, b in itertools.combinations_with_replacement(changes, 2))
        beyond = expm1(middle) > 0.025
        if chance_of_more(changes) <= 0.01 and beyond:
            expected = REGRESSED
        elif chance_of_more([-change for change in changes]) <= 0.01 and middle < -0.025:
            expected = IMPROVED
        elif expm1(middle) > 0.15:
            expected = INCONCLUSIVE
        else:
            assert found.high is not None
            expected = COARSE if beyond or found.high > 0.0506 else PASS
        assert found.verdict == expected
        assert found.change == pytest.approx(expm1(middle))
        seen.add(found.verdict)
    assert seen >= {REGRESSED, COARSE}


def test_few_sampled_prompts_prove_nothing_and_a_large_loss_of_them_does_not_pass() -> None:
    """Three prompts that are drawn anew differ by a tenth each: as a fixed threshold has it, one run in two fails."""
    assert judged_prompts([0.4] * 3, [0.43] * 3, same=False).verdict == COARSE
    assert judged_prompts([0.4] * 3, [0.8] * 3, same=False).verdict == INCONCLUSIVE
    assert judged_prompts([0.4] * 7, [0.43] * 7, same=False).verdict == REGRESSED, "all seven of them: 1 / 128"


def sampled_rates(loss: float, prompts: int, draws: int) -> dict[GateVerdict, float]:
    """How often sampled rows get each verdict, whose prompts differ by a tenth from draw to draw."""
    coin, found = random.Random(prompts), list[GateVerdict]()
    for _ in range(draws):
        base, head = ([0.4 * exp(coin.gauss(more, 0.1)) for _ in range(prompts)] for more in (0.0, loss))
        found.append(judged_prompts(base, head, same=False).verdict)
    return {verdict: found.count(verdict) / draws for verdict in GateVerdict}


def test_sampling_alone_is_no_regression_and_a_loss_of_a_tenth_over_eighty_prompts_is_found() -> None:
    assert sampled_rates(0.0, 20, 100)[REGRESSED] <= 0.02
    assert sampled_rates(0.1, 80, 20)[REGRESSED] >= 0.9


@pytest.mark.slow
def test_sampling_alone_is_a_regression_in_no_more_than_alpha() -> None:
    for prompts in (8, 20, 80):
        found = sampled_rates(0.0, prompts, 300)
        assert found[REGRESSED] + found[INCONCLUSIVE] <= 0.01 + 0.02


def test_the_chance_of_a_false_alarm_is_shared_by_all_rows_whose_tokens_are_others() -> None:
    base, head = StepCounts((0.4,) * 7, "t"), StepCounts((0.43,) * 7, "u")
    alone = acceptance_findings({"a": (base, head)}, 0.025, 0.15, 0.01)
    beside = acceptance_findings({"a": (base, head), "b": (base, replace(base, text="u"))}, 0.025, 0.15, 0.01)
    assert [one.verdict for one in (*alone, *beside)] == [REGRESSED, COARSE, PASS]


TIMES = {DECODE: FigureTimes((1.0,) * 3, (0.0,) * 3)}
WORK: Mapping[str, Any] = {"work": {"prompts": 3}, "inputs": {"weights": "w"}}


def engine_row(*per_token: float, text: str = "t", deterministic: bool = True, launches: int = 1) -> GatedRow:
    """An engine's row; without counts if none are given."""
    steps = StepCounts(per_token, text) if per_token else None
    launch = Launch(TIMES, {}, None, steps)
    return GatedRow(**WORK, control="plain", launches=(launch,) * launches, peer=True, deterministic=deterministic)


PLAIN = GatedRow(
    **WORK, digest="p", plain_digest="p", counters={"target_forwards": 3}, launches=(Launch(TIMES, {}, 1.0),)
)


def gated(base: GatedRow, head: GatedRow, machine: int = 1) -> list[Finding]:
    """The findings at level 0 on a row beside plain, against a file of one launch, of another machine if so."""
    before = Record({"machine": {"cores": 0}}, {"row": base, "plain": PLAIN})
    now = Record({"machine": {"cores": machine}}, {"row": head, "plain": PLAIN})
    made = trial(before, now)
    made.levels = (0,)
    return [one for one in made.findings() if one.row != "plain"]


@pytest.mark.parametrize("machine", [0, 1])
def test_a_peer_whose_draft_is_accepted_less_is_a_regression_at_level_0_on_any_machine(machine: int) -> None:
    [found] = gated(engine_row(0.4, 0.5, 0.5), engine_row(0.5, 0.5, 0.6), machine)
    assert (found.verdict, found.where, found.figure) == (REGRESSED, "acceptance", STEPS)
    assert [one.verdict for one in gated(engine_row(0.4, 0.5, 0.5), engine_row(0.4, 0.5, 0.5), machine)] == [PASS]


def test_a_draft_that_vanished_is_a_regression_and_one_that_appears_a_gain() -> None:
    drafting, plainly = engine_row(0.4, 0.5, 0.5), engine_row(1.0, 1.0, 1.0)
    assert [one.verdict for one in gated(drafting, plainly)] == [REGRESSED]
    assert [one.verdict for one in gated(plainly, drafting)] == [IMPROVED]


def test_counts_that_are_lost_do_not_pass_and_new_ones_fail_nothing() -> None:
    [lost] = gated(engine_row(0.4, 0.5, 0.5), engine_row())
    assert (lost.verdict, lost.where) == (INCONCLUSIVE, "acceptance")
    assert "the base counts forwards per emitted token, and this run not" in lost.message
    assert [one.figure for one in gated(engine_row(), engine_row(0.4, 0.5, 0.5))] == []


@pytest.mark.parametrize("row", [engine_row(1.0, 1.0, 1.0), engine_row()])
def test_one_forward_a_token_on_both_sides_judges_nothing(row: GatedRow) -> None:
    """A peer that drafts nothing has no other count, whatever was done to it."""
    assert comparable_steps(row) is None
    [note] = gated(row, row)
    assert "no level compares anything of peers: row" in note.message
    made = trial(Record({}, {"row": row}), Record({}, {"row": row}))
    made.levels = (0,)
    assert [one.message for one in made.findings() if one.verdict == ERROR] == [UNJUDGED]


def test_a_row_of_ours_with_other_tokens_has_its_acceptance_judged_as_well() -> None:
    def ours(text: str, per_token: float, **more: Any) -> GatedRow:
        steps = StepCounts((per_token,) * 3, text)
        one = replace(PLAIN, digest=text, counters={"num_drafts": 4}, launches=(Launch(TIMES, {}, 2.0, steps),))
        return replace(one, **more)

    base = ours("d", 0.4)
    found = gated(base, ours("e", 0.8))
    assert [(one.verdict, one.figure) for one in found] == [(INCONCLUSIVE, None), (INCONCLUSIVE, STEPS)]
    assert "3 prompts, whose tokens are others now" in found[1].message
    assert [one.figure for one in gated(base, base)] == [None], "equal tokens: its counters are compared exactly"
    other = ours("e", 0.8, inputs={"weights": "x"})
    assert [one.figure for one in gated(base, other)] == [None], "other weights accept otherwise"


def clocked(*values: float) -> GatedRow:
    """Launches of a row whose controller reads the clock, each with so many forwards a token."""
    launches = tuple(Launch(TIMES, {}, 2.0, StepCounts((value,) * 3, "t")) for value in values)
    return replace(PLAIN, digest="d", counters={"num_drafts": 4}, deterministic=False, launches=launches)


def test_forwards_of_a_controller_that_reads_the_clock_are_compared_by_launches() -> None:
    """Level 0 compares no counters of it, since they do not repeat: whatever it accepted, it passed."""
    values = [0.4 + place % 3 / 1000 for place in range(13)]
    base = clocked(*values)
    assert comparable_steps(base) is None
    assert Subject("row", STEPS, alone=True) in cases("row", base, 1)
    assert Subject("row", STEPS, alone=True) in cases("row", base, 2)
    assert STEPS not in {case.figure for case in cases("row", base, 3)}
    assert STEPS not in {case.figure for case in cases("row", replace(base, deterministic=True), 2)}
    assert STEPS not in {case.figure for case in cases("row", replace(base, launches=(Launch(TIMES),) * 5), 2)}
    for more, verdict in ((0.0, PASS), (0.02, REGRESSED), (-0.03, IMPROVED)):
        head = clocked(*(value + more for value in values))
        made = trial(Record({}, {"row": base}), Record({}, {"row": head}))
        [found] = [one for one in made.findings() if one.figure == STEPS]
        assert (found.verdict, found.level) == (verdict, 1)
        assert found.change == pytest.approx(more / 0.401, abs=0.002)
        if verdict == REGRESSED:
            assert (found.where or "").startswith("acceptance +5.0")
            assert "forwards per emitted token (" in found.message
