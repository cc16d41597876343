"""What is judged of servers: verdicts at their edges, Student's t by its tables, places, and counts by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log, log1p

import numpy as np
import pytest

from benchsuite.benches.serving.forward_counts import (
    ForwardCount,
    ForwardCounts,
    forward_counts,
    forward_logs,
    vanished,
)
from benchsuite.benches.serving.load import Sent, ServedBlock
from benchsuite.benches.serving.self_reported import GroupCounts
from benchsuite.benches.serving.speed import PairedLog, mean_of_groups
from benchsuite.gate.record import DECODE, FIRST, STEPS, WHOLE
from benchsuite.gate.served import (
    ANSWERS,
    LOST,
    SERVED,
    ServedRow,
    ServedTolerances,
    decide_served,
    place_of,
    served_findings,
    shift_of_mean,
)
from benchsuite.gate.verdict import GateVerdict
from benchsuite.measure.interval import FEWEST, LogMean
from benchsuite.tests.made_up_servers import made_up_reply
from specdec_plugins.endpoints.server_metrics import Speculation

ALPHA, NEAR = 0.01, 1e-9
PASS, COARSE, IMPROVED, INCONCLUSIVE, REGRESSED = (
    *(GateVerdict.PASS, GateVerdict.COARSE, GateVerdict.IMPROVED),
    *(GateVerdict.INCONCLUSIVE, GateVerdict.REGRESSED),
)
LIMITS = ServedTolerances()


def exact_mean(value: float) -> LogMean:
    return LogMean(value, 0.0, 20, 21)


def served_case(**figures: LogMean) -> ServedRow:
    return ServedRow("head-c1", {SERVED_NAMES[name]: mean for name, mean in figures.items()})


SERVED_NAMES = {"forwards": STEPS, "seconds": DECODE, "first": FIRST, "whole": WHOLE, "lost": LOST}


@pytest.mark.parametrize(("degrees", "t"), [(1, 31.821), (5, 3.3649), (20, 2.5280), (1e6, 2.3264)])
def test_bounds_and_chances_are_students_t(degrees: float, t: float) -> None:
    """By the table: P(T > t) is 1 % of each."""
    shift = shift_of_mean(LogMean(0.1, 0.02, degrees, 7), ALPHA)
    assert [shift.low, shift.high] == pytest.approx([0.1 - 0.02 * t, 0.1 + 0.02 * t], rel=1e-4)
    at = shift_of_mean(LogMean(t, 1.0, degrees, 7), ALPHA)
    assert [at.p_more, at.p_less] == pytest.approx([0.01, 0.99], rel=1e-3)
    assert shift_of_mean(LogMean(-t, 1.0, degrees, 7), ALPHA).p_less == pytest.approx(0.01, rel=1e-3)
    nothing = shift_of_mean(LogMean(0.0, 1.0, degrees, 7), ALPHA)
    assert (nothing.p_more, nothing.p_less) == (0.5, 0.5)


def test_counts_that_repeat_are_exact() -> None:
    for value, chances in ((0.1, (0.0, 1.0)), (-0.1, (1.0, 0.0)), (0.0, (1.0, 1.0))):
        shift = shift_of_mean(exact_mean(value), ALPHA)
        assert (shift.p_more, shift.p_less) == chances
        assert (shift.low, shift.estimate, shift.high) == (value, value, value)


@pytest.mark.parametrize("figure", [DECODE, FIRST, WHOLE, STEPS, LOST])
def test_a_figure_is_judged_at_its_tolerance(figure: str) -> None:
    share = LIMITS.of(figure)
    assert share == {DECODE: 0.05, WHOLE: 0.05, FIRST: 0.1, STEPS: 0.025, LOST: 0.15}[figure]
    bar = share if figure == LOST else log1p(share)
    for value, verdict in ((bar + NEAR, REGRESSED), (bar, PASS), (-bar, PASS), (-bar - NEAR, IMPROVED)):
        case = ServedRow("head-c1", {figure: exact_mean(value)})
        assert decide_served([case], LIMITS, ALPHA)["head-c1", figure][0] == verdict
    wide = LogMean(0.0, bar / 1.263, 20, 21)  # t is 2.528: twice the tolerance is just not excluded
    assert decide_served([ServedRow("r", {figure: wide})], LIMITS, ALPHA)["r", figure][0] == INCONCLUSIVE
    narrow = replace(wide, error=bar / 1.265)
    assert decide_served([ServedRow("r", {figure: narrow})], LIMITS, ALPHA)["r", figure][0] == PASS
    noisy = LogMean(2 * bar, bar, 20, 21)
    assert decide_served([ServedRow("r", {figure: noisy})], LIMITS, ALPHA)["r", figure][0] == INCONCLUSIVE


def test_one_chance_of_a_false_alarm_is_shared_by_all_figures_and_loads() -> None:
    """Of one figure p = 0.008 is enough, of two it is not."""
    mean = LogMean(0.26, 0.1, 20, 21)
    assert 0.005 < shift_of_mean(mean, ALPHA).p_more < 0.01
    alone = ServedRow("a", {DECODE: mean})
    assert decide_served([alone], LIMITS, ALPHA)["a", DECODE][0] == REGRESSED
    beside = ServedRow("b", {DECODE: exact_mean(0.0)})
    assert decide_served([alone, beside], LIMITS, ALPHA)["a", DECODE][0] == INCONCLUSIVE


def test_times_of_whole_launches_are_coarse_and_counts_are_not() -> None:
    coarse = replace(LIMITS, coarse=0.15)
    wide = LogMean(0.0, 0.2, 20, 21)
    for figure, verdict in ((DECODE, COARSE), (FIRST, COARSE), (STEPS, INCONCLUSIVE)):
        assert decide_served([ServedRow("r", {figure: wide})], coarse, ALPHA)["r", figure][0] == verdict
    found = decide_served(
        [ServedRow("r", {DECODE: exact_mean(-1.0), WHOLE: exact_mean(0.13), STEPS: exact_mean(0.1)})], coarse, ALPHA
    )
    assert [verdict for verdict, _ in found.values()] == [PASS, PASS, REGRESSED]


def test_a_test_of_its_own_tolerance_has_it_for_seconds_per_token_and_to_the_end() -> None:
    case = replace(served_case(seconds=exact_mean(0.1), first=exact_mean(0.05), whole=exact_mean(0.1)), tolerance=0.2)
    assert {one.verdict for one in served_findings([case], LIMITS, ALPHA)} == {PASS}
    case = replace(case, tolerance=0.01)
    assert [one.verdict for one in served_findings([case], LIMITS, ALPHA)] == [REGRESSED, PASS, REGRESSED]


@pytest.mark.parametrize(
    ("case", "figure", "place"),
    [
        (served_case(seconds=exact_mean(0.1)), DECODE, "engine +10.5 %"),
        (served_case(seconds=exact_mean(0.1), forwards=exact_mean(0.08)), DECODE, "acceptance +8.3 %"),
        (served_case(seconds=exact_mean(0.1), forwards=exact_mean(-0.05)), DECODE, "engine +16.2 %"),
        (served_case(seconds=exact_mean(0.1), forwards=exact_mean(0.08)), STEPS, "acceptance"),
        (served_case(seconds=exact_mean(0.1)), FIRST, "prefill"),
        (replace(served_case(seconds=exact_mean(0.1)), from_first=0.6), WHOLE, "prefill"),
        (replace(served_case(seconds=exact_mean(0.1)), from_first=0.4), WHOLE, "engine +10.5 %"),
        (replace(served_case(seconds=exact_mean(0.1)), silent="none"), DECODE, "speculation"),
        (replace(served_case(seconds=exact_mean(0.1)), worse=2, better=1), LOST, "answers"),
        (served_case(whole=exact_mean(0.1)), WHOLE, None),
    ],
)
def test_a_change_has_the_place_that_moved_most(case: ServedRow, figure: str, place: str | None) -> None:
    assert place_of(case, figure) == place


def test_a_longer_acceptance_is_a_gain_only_where_a_token_takes_less_time() -> None:
    for seconds, verdict, said in (
        (0.0, PASS, "a token takes no less time (+0.0%): each forward got dearer"),
        (-0.2, IMPROVED, "-9.5% forwards a token"),
    ):
        case = replace(served_case(seconds=exact_mean(seconds), forwards=exact_mean(-0.1)), lengths=(2.0, 2.21))
        by = {one.figure: one for one in served_findings([case], LIMITS, ALPHA)}
        assert by[STEPS].verdict == verdict
        assert said in by[STEPS].message
        assert by[STEPS].message.startswith("acceptance length 2.00 to 2.21, ")
    case = served_case(seconds=exact_mean(-0.2), forwards=exact_mean(0.1))
    by = {one.figure: one for one in served_findings([case], LIMITS, ALPHA)}
    assert by[STEPS].verdict == REGRESSED
    assert "a token takes less time all the same (-18.1%)" in by[STEPS].message


def test_requests_that_this_server_alone_does_not_answer_are_never_a_pass() -> None:
    """One more is undecided; of seven and none, by the binomial, chance makes 1 in 128."""
    for worse, better, verdict in ((1, 0, INCONCLUSIVE), (6, 0, INCONCLUSIVE), (7, 0, REGRESSED), (8, 7, INCONCLUSIVE)):
        case = replace(served_case(seconds=exact_mean(0.0)), worse=worse, better=better, kinds={"reset": worse})
        [found] = [one for one in served_findings([case], LIMITS, ALPHA) if one.figure == ANSWERS]
        assert (found.verdict, found.where) == (verdict, "answers")
    for worse, better in ((0, 0), (3, 3), (2, 5)):
        case = replace(served_case(seconds=exact_mean(0.0)), worse=worse, better=better)
        assert ANSWERS not in {one.figure for one in served_findings([case], LIMITS, ALPHA)}


def ten_tokens_each(numbers: list[int], proposed: list[int] | None = None) -> ForwardCounts:
    """Ten tokens for each prompt, of which so many were accepted."""
    offered = numbers if proposed is None else proposed
    return ForwardCounts(
        tuple(ForwardCount((n,), n, 0, 10, a, p) for n, (a, p) in enumerate(zip(numbers, offered, strict=True))),
        "answers",
    )


def test_forwards_a_token_are_paired_by_prompt() -> None:
    base, head = ten_tokens_each([5, 8]), ten_tokens_each([0, 8])
    assert [one.length for one in base.counts] == [2.0, 5.0]
    assert [(one.prompt, one.log) for one in forward_logs(head, base, ["chat", "code"])] == [
        (0, pytest.approx(log(2))),
        (1, 0.0),
    ]
    assert base.length == pytest.approx(20 / 7)
    paged = ForwardCounts((ForwardCount((0, 1), 0, 0, 20, 13, 13),), "page")
    grouped = ForwardCounts(tuple(replace(one, group=0) for one in head.counts), "answers")
    [one] = forward_logs(grouped, paged, ["chat", "code"])
    assert one.log == pytest.approx(log(20 / 7) - log(20 / 12))


@pytest.mark.parametrize(
    ("proposed", "expected"),
    [
        ([4, 4, 4, 4], None),
        ([0, 0, 0, 0], None),
        ([4, 0, 4, 4], None),
        ([4, 4, 0, 0], (2, 1 / 6)),
        ([0, 4, 0, 0], (2, 3 / 6)),
        ([4, 4, 4, 0], (3, 1 / 4)),
    ],
)
def test_a_draft_that_ended_is_as_likely_as_so_long_an_end_of_silences_in_random_order(
    proposed: list[int], expected: tuple[int, float] | None
) -> None:
    found = vanished(ten_tokens_each([0] * 4, proposed), ten_tokens_each([4] * 4))
    assert (found is None) == (expected is None)
    assert [*(found or ())] == pytest.approx([*(expected or ())])
    beside = vanished(ten_tokens_each([0] * 6, [*proposed, 0, 0]), ten_tokens_each([4] * 4 + [0, 0]))
    assert beside == found, "where the base proposes nothing either, nothing is missed"


def two_answers(counts: tuple[GroupCounts, ...] = (), bodies: Sequence[Mapping[str, object]] = ({}, {})) -> ServedBlock:
    """Two answers of eight tokens."""
    replies = [made_up_reply("a b c d", (), 8, body=body) for body in bodies]
    return ServedBlock("head", 0, tuple(Sent(n, 0.0, 1.0, reply) for n, reply in enumerate(replies)), 3, counts)


def page_of_group(accepted: int | None, proposed: int | None = 20) -> GroupCounts:
    return GroupCounts((0, 1), Speculation("vllm page", "between", proposed=proposed, accepted=accepted))


def test_counts_are_those_of_answers_where_these_have_them_and_else_the_pages() -> None:
    timings = {"timings": {"draft_n": 6, "draft_n_accepted": 4}}
    both = forward_counts([two_answers((page_of_group(12),), (timings, {"timings": {"predicted_n": 8}}))])
    assert [(one.prompts, one.tokens, one.accepted, one.proposed) for one in both.counts] == [
        ((0,), 8, 4, 6),
        ((1,), 8, 0, 0),
    ]
    assert both.source == "answers"
    [one] = forward_counts([two_answers((page_of_group(12),))]).counts
    assert (one.prompts, one.group, one.tokens, one.accepted, one.proposed) == ((0, 1), 3, 16, 12, 20)
    silent = forward_counts([two_answers((page_of_group(None, None),))])
    assert (silent.source, silent.silent, silent.counts) == ("", True, ())
    none = forward_counts([two_answers()])
    assert (none.source, none.silent) == ("", False)
    foreign = forward_counts([two_answers((page_of_group(16),))])
    assert (foreign.counts, foreign.unread, foreign.source) == ((), 1, "page"), "a forward emits a token of its own"
    failed = replace(
        two_answers((page_of_group(12),)), sent=(Sent(0, 0.0, 1.0, None, "reset"), *two_answers().sent[1:])
    )
    assert (forward_counts([failed]).counts, forward_counts([failed]).unread) == ((), 1)
    wrong = forward_counts([two_answers((), ({"timings": {"draft_n": 1, "draft_n_accepted": 4}}, {}))])
    assert "4 of 1 proposals accepted" in wrong.wrong


def test_the_mean_of_too_few_groups_is_over_rounds_and_there_is_none_of_too_few_of_both() -> None:
    few = [PairedLog("chat", n, n % 5, 0, 0.1) for n in range(20)]
    assert mean_of_groups(few) is None
    rounds = [replace(one, round=turn, log=0.1 * turn + one.prompt) for turn in range(FEWEST) for one in few]
    found = mean_of_groups(rounds)
    assert found is not None
    assert (found.units, found.degrees) == (FEWEST, FEWEST - 1)
    assert found.mean == pytest.approx(0.1 * 2.5 + 9.5)
    assert found.error == pytest.approx(np.std([0.1 * turn for turn in range(FEWEST)], ddof=1) / FEWEST**0.5)
    groups = mean_of_groups([replace(one, group=one.prompt) for one in rounds])
    assert groups is not None
    assert [groups.units, groups.degrees, groups.mean] == pytest.approx([20, 19, 9.75])


def test_of_nothing_a_gate_of_heavy_tails_regresses_at_most_at_its_level() -> None:
    """Groups whose ratios are Student's t of three degrees, forty of them, in eight figures; and losses are found."""
    dice, alarms, missed = np.random.default_rng(3), 0, 0
    draws = 400
    for _ in range(draws):
        values = 0.06 * dice.standard_t(3, (8, 40))
        means = [LogMean(float(one.mean()), float(one.std(ddof=1)) / 40**0.5, 39, 40) for one in values]
        found = decide_served([ServedRow(str(n), {DECODE: mean}) for n, mean in enumerate(means)], LIMITS, ALPHA)
        alarms += any(verdict == REGRESSED for verdict, _ in found.values())
        slow = replace(means[0], mean=means[0].mean + log(1 / 0.9))
        missed += decide_served([ServedRow("0", {DECODE: slow})], LIMITS, ALPHA)["0", DECODE][0] != REGRESSED
    assert alarms <= ALPHA * draws
    assert missed <= draws / 10
    assert {*SERVED} == {STEPS, DECODE, FIRST, WHOLE, LOST}
