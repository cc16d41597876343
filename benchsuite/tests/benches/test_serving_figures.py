"""Figures of servers: over what they are taken, and what a server that lies, stalls or answers at once does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.benches.serving.figures import EndpointFigures, Slo, endpoint_figures, percentile
from benchsuite.benches.serving.load import Sent, ServedBlock, Traffic, loads_of, send
from benchsuite.benches.serving.timed_answers import token_gaps_of, tpot_of, ttft_of
from specdec import SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Chunk, EndpointFailure, Reply, Token


def reply(seconds: float, pieces: list[tuple[float, int | None]], counted: int | None, attempts: int = 1) -> Reply:
    """An answer whose pieces came at these seconds with these numbers of tokens, each of one sign."""
    chunks = tuple(Chunk(at, "x" * (1 if tokens is None else tokens), tokens) for at, tokens in pieces)
    text = "".join(chunk.text for chunk in chunks)
    return Reply(text, (), chunks, seconds, 3, counted, "length", attempts, {})


def sent_with(prompt: int, found: Reply, start: float = 0.0) -> Sent:
    return Sent(prompt, start, start + found.seconds, found)


def test_times_of_one_answer_by_hand() -> None:
    """Pieces of 2, 1 and 3 tokens at 0.5, 0.7 and 1.3 s: four tokens after the first piece in 0.8 s."""
    one = reply(1.4, [(0.5, 2), (0.7, 1), (1.3, 3)], 6)
    assert ttft_of(one) == 0.5
    assert tpot_of(one) == pytest.approx(0.2)
    assert token_gaps_of(one) == pytest.approx([0.2, 0.2, 0.2, 0.2])
    assert token_gaps_of(reply(1.4, [(0.5, 2), (0.6, 0), (0.7, 1)], 3)) == pytest.approx([0.1]), "a piece of no token"
    assert token_gaps_of(reply(1.4, [(0.5, None), (0.6, 1)], 2)) == []


@pytest.mark.parametrize(
    ("pieces", "counted", "each"),
    [
        ([None] * 9, 9, 0.1),  # a token a piece
        ([None] * 9, 6, 0.8 / 5),  # parts of characters: the first token is there with a later piece at the latest
        ([None] * 8, 16, 0.7 / 14),  # an eighth of the text is an eighth of the tokens
        ([8, *[None] * 8], 16, 0.1),
        ([8, *[None] * 8], 32, 0.8 / 16),  # half of the text is half of the tokens, whoever says eight
        ([None, None], None, None),
        ([3, 1], 4, 0.1),
        ([4, 0], 4, None),  # no token came later
    ],
)
def test_tokens_of_the_first_piece_are_not_divided_by(
    pieces: list[int | None], counted: int | None, each: float | None
) -> None:
    found = tpot_of(reply(2.0, [(1 + n / 10, tokens) for n, tokens in enumerate(pieces)], counted))
    assert found == (each and pytest.approx(each))


def test_a_server_that_sends_everything_in_one_piece_has_no_time_per_token() -> None:
    """Dividing its whole time by its tokens would make the lazy server look smooth; its first piece is its last."""
    lazy = reply(2.0, [(2.0, 8)], 8)
    assert (ttft_of(lazy), tpot_of(lazy), token_gaps_of(lazy)) == (2.0, None, [])
    [row] = endpoint_figures([ServedBlock("a", 0, (sent_with(0, lazy),))], ["a"], ["chat"], Slo(ttft=1.0, tpot=0.1))
    assert row.decoding is None
    assert row.goodput == (0.0, 0.0), "it breaks the limit of the first token"


def test_pieces_are_not_tokens() -> None:
    """A server that speculates sends three tokens in each of two pieces: six tokens, whoever counts the pieces."""
    found = endpoint_figures(
        [ServedBlock("a", 0, (sent_with(0, reply(2.0, [(1.0, 3), (2.0, 3)], 6)),))], ["a"], ["chat"], None
    )
    assert found[0].tokens_per_s == 3.0
    assert found[0].piece_ms[0] == pytest.approx(1000)
    assert found[0].token_ms[0] == pytest.approx(1000 / 3)


def test_a_server_whose_tokens_nobody_knows_has_no_figure_per_token() -> None:
    [row] = endpoint_figures(
        [ServedBlock("a", 0, (sent_with(0, reply(2.0, [(1.0, None), (2.0, None)], None)),))], ["a"], ["c"], None
    )
    assert (row.tokens_per_s, row.decoding, row.tpot_ms[0]) == (None, None, None)
    assert row.e2e_ms[0] == 2000
    assert row.speed is not None, "of two answers of one text"


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.floats(0.01, 9), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    if found is None:
        assert share > 0.5
        assert len(values) * (1 - share) < 1
        return
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


@pytest.mark.parametrize(
    ("count", "share", "known"), [(9, 0.9, False), (10, 0.9, True), (99, 0.99, False), (100, 0.99, True)]
)
def test_a_high_percentile_of_few_values_is_not_printed(count: int, share: float, known: bool) -> None:
    assert (percentile(range(count), share) is not None) == known


@pytest.mark.parametrize(("above", "below"), [(1, 2), (9, 10), (99, 100)])
def test_a_percentile_of_ranks_is_the_rank_by_whole_numbers(above: int, below: int) -> None:
    """The least k for which k of n are so large a share, without a rounded product; a high one needs a value above."""
    for count in range(1, 301):
        known = above == 1 or count * (below - above) >= below
        assert percentile(range(1, count + 1), above / below) == (-(-count * above // below) if known else None)


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile([], 0.5) is None


def one_by_one(endpoint: str, replies: Iterable[Reply], turn: int = 0) -> list[ServedBlock]:
    """A block for each prompt, which is a group by itself."""
    return [ServedBlock(endpoint, turn, (sent_with(n, one),), n) for n, one in enumerate(replies)]


def _pair(ratio: list[float]) -> list[EndpointFigures]:
    """Two endpoints over six prompts of two workloads; the second is faster by each prompt's ratio."""
    base = [reply(float(n + 1), [(0.5, 1), (float(n + 1), 4)], 5) for n in range(6)]
    other = [
        reply(one.seconds / by, [(0.5 / by, 1), (one.seconds / by, 4)], 5) for one, by in zip(base, ratio, strict=True)
    ]
    blocks = [*one_by_one("plain", base), *reversed(one_by_one("spec", other))]
    return endpoint_figures(blocks, ["plain", "spec"], ["chat"] * 3 + ["code"] * 3, None)


def test_speeds_are_paired_by_prompt_and_weigh_workloads_alike() -> None:
    plain, spec = _pair([2.0] * 6)
    assert plain.speed is not None
    assert plain.speed.ratio == 1
    assert spec.speed is not None
    assert spec.speed.ratio == pytest.approx(2)
    assert spec.decoding is not None
    assert spec.decoding.ratio == pytest.approx(2)
    _, mixed = _pair([4.0, 4.0, 4.0, 1.0, 1.0, 1.0])
    assert mixed.speed is not None
    assert mixed.speed.ratio == pytest.approx(2)


def test_one_odd_prompt_among_many_widens_the_interval_and_does_not_carry_the_figure() -> None:
    _, odd = _pair([1.0, 1.0, 1.0, 1.0, 1.0, 30.0])
    assert odd.speed is not None
    assert odd.speed.ratio == pytest.approx(exp(log(30) / 6))
    assert odd.speed.low is not None
    assert odd.speed.low < 1, "the table shows ~"


def test_retried_answers_are_counted_and_not_timed() -> None:
    slow = [sent_with(n, reply(1.0, [(0.5, 1), (1.0, 4)], 5)) for n in range(4)]
    retried = sent_with(4, reply(99.0, [(98.0, 1), (99.0, 4)], 5, attempts=2))
    [row] = endpoint_figures([ServedBlock("a", 0, (*slow, retried))], ["a"], ["chat"] * 5, None)
    assert (row.asked, row.retried, row.e2e_ms[0]) == (5, 1, 1000)


Answers = dict[tuple[int, int], Reply | None]
"""By round and prompt; None: the request failed."""


@st.composite
def _answers(draw: st.DrawFn, rounds: int, prompts: int) -> Answers:
    """Answers tried once to three times, whose first pieces come when those of any other draw do; no prompt is decoded
    faster in a later round, which would be learning."""
    found: Answers = {}
    for prompt in range(prompts):
        each = draw(st.floats(0.01, 1))
        for turn in range(rounds):
            first, tokens = (prompt + turn) / 2, draw(st.integers(2, 9))
            attempts = draw(st.sampled_from([1, 1, 2, 3]))
            whole = first + each * (tokens - 1)
            one = reply(whole, [(first, 1), (whole, tokens - 1)], tokens, attempts)
            found[turn, prompt] = draw(st.sampled_from([one] * 9 + [None]))
            each *= draw(st.floats(1, 4))
    return found


def _geometric(values: Iterable[float]) -> float:
    some = list(values)
    return prod(some) ** (1 / len(some))


def _ratio_by_hand(plain: Answers, spec: Answers, cost: Callable[[Reply], float]) -> tuple[float, int] | None:
    """The geometric mean over workloads (prompts of one parity), prompts and rounds, and the number of prompts."""
    by_prompt = dict[int, list[float]]()
    for (turn, prompt), base in plain.items():
        mine = spec[turn, prompt]
        if base is not None and mine is not None and max(base.attempts, mine.attempts) == 1:
            by_prompt.setdefault(prompt, []).append(cost(base) / cost(mine))
    parities = {prompt % 2 for prompt in by_prompt}
    means = [_geometric(_geometric(by_prompt[one]) for one in by_prompt if one % 2 == parity) for parity in parities]
    return (_geometric(means), len(by_prompt)) if means else None


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(st.data(), st.integers(1, 2), st.integers(1, 7))
def test_a_pair_counts_in_the_speed_only_if_neither_request_was_tried_again(
    data: st.DataObject, rounds: int, prompts: int
) -> None:
    plain, spec = data.draw(_answers(rounds, prompts)), data.draw(_answers(rounds, prompts))
    blocks = []
    for name, answers in (("plain", plain), ("spec", spec)):
        for turn in range(rounds):
            sent = [
                Sent(prompt, 0.0, 99.0, None, "reset") if one is None else sent_with(prompt, one)
                for (round_, prompt), one in answers.items()
                if round_ == turn
            ]
            blocks += [ServedBlock(name, turn, (one,), one.prompt) for one in sent]
    _, row = endpoint_figures(blocks, ["plain", "spec"], ["even", "odd"] * 4, None)
    costs: tuple[Callable[[Reply], float], ...] = (
        lambda one: one.seconds / (one.counted or 0),
        lambda one: (one.seconds - one.chunks[0].seconds) / ((one.counted or 0) - 1),
    )
    for found, cost in zip((row.speed, row.decoding), costs, strict=True):
        expected = None if row.why else _ratio_by_hand(plain, spec, cost)
        assert (found and (found.ratio, found.units)) == (expected and pytest.approx(expected))


@st.composite
def _some_reply(draw: st.DrawFn) -> Reply:
    """Any answer: of no piece to five, whose tokens are known or not, tried once or twice."""
    gaps = draw(st.lists(st.floats(0.01, 2), max_size=5))
    tokens = draw(st.sampled_from([None, 1, 2]))
    pieces = [(sum(gaps[: n + 1]), tokens) for n in range(len(gaps))]
    counted = draw(st.sampled_from([None, 0, len(gaps) * (tokens or 1)]))
    return reply(sum(gaps) + draw(st.floats(0.01, 1)), pieces, counted, draw(st.sampled_from([1, 1, 1, 2])))


@st.composite
def _some_block(draw: st.DrawFn, turn: int) -> ServedBlock:
    """Some prompts, each sent once, answered or not; a block that was interrupted has few or none."""
    sent = []
    for prompt in draw(st.permutations(range(4)))[: draw(st.integers(0, 4))]:
        start, late, one = draw(st.floats(0, 3)), draw(st.sampled_from([0.0, 0.5])), draw(_some_reply())
        failed = draw(st.sampled_from([None, None, None, "reset", "timeout"]))
        end = start + one.seconds
        sent.append(Sent(prompt, start, end, None if failed else one, failed, late_s=late))
    return ServedBlock("a", turn, tuple(sent))


def _in_ms(seconds: Iterable[float]) -> tuple[object, object, object]:
    """The median of values by its definition; fewer than ten have no percentile."""
    some = sorted(seconds)
    assert len(some) < 100
    middle = (some[(len(some) - 1) // 2] + some[len(some) // 2]) / 2 if some else None
    ninth = some[-(len(some) // 10) - 1] if len(some) >= 10 else None
    return tuple(one and pytest.approx(one * 1e3) for one in (middle, ninth, None))  # type: ignore[return-value]


@settings(max_examples=settings().max_examples // 4)
@given(
    st.integers(0, 3).flatmap(lambda rounds: st.tuples(*map(_some_block, range(rounds)))), st.none() | st.floats(0.5, 4)
)
def test_every_figure_of_a_row_is_worked_out_again_from_its_requests(
    blocks: tuple[ServedBlock, ...], limit: float | None
) -> None:
    """As docs/serving.md and the legend of the table define them, by sums of another kind."""
    [row] = endpoint_figures(blocks, ["a"], ["chat"] * 4, None if limit is None else Slo(e2e=limit))
    sent = [one for block in blocks for one in block.sent]
    answered = [(one, one.reply) for one in sent if one.reply]
    once = [(one, found) for one, found in answered if found.attempts == 1]
    span = 0.0
    for block in blocks:
        if block.sent:
            span += max(one.ended_s for one in block.sent) - min(one.sent_s for one in block.sent)
    said = bool(once) and 2 * len(once) >= len(sent)
    kinds = [one.failure for one in sent if one.failure]
    assert row.asked == len(sent)
    assert row.failed == {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    assert row.retried == len(answered) - len(once)
    assert row.why == ("" if said else f"{len(once)} of {len(sent)} requests were answered at the first try")
    assert row.ttft_ms == _in_ms(found.chunks[0].seconds + one.late_s for one, found in once if found.chunks)
    assert row.tpot_ms == _in_ms(each for _, found in once if (each := tpot_of(found)) is not None)
    pieces = [[chunk.seconds for chunk in found.chunks] for _, found in once]
    assert row.piece_ms == _in_ms(b - a for times in pieces for a, b in pairwise(times))
    assert row.token_ms == _in_ms(gap for _, found in once for gap in token_gaps_of(found))
    assert row.e2e_ms == _in_ms(found.seconds + one.late_s for one, found in once)
    counts = [found.counted for _, found in answered]
    known = said and span > 0 and None not in counts
    assert row.tokens_per_s == (pytest.approx(sum(map(int, filter(None, counts))) / span) if known else None)
    assert row.rate == (pytest.approx(len(sent) / span) if span else 0)
    full = [(one, found) for one, found in answered if found.text]
    assert (row.empty, row.looping) == (len(answered) - len(full), 0)
    kept = [one for one, found in full if limit is not None and found.seconds + one.late_s <= limit]
    shares = pytest.approx((len(kept) / span, len(kept) / len(sent))) if span and limit is not None else None
    assert row.goodput == shares
    own = any(found.text for _, found in once)
    assert (row.speed is not None) == (said and own)
    assert row.speed is None or row.speed.ratio == pytest.approx(1), "over itself"
    assert row.learns is None


def test_a_block_lasts_from_its_first_request_to_its_last_answer() -> None:
    two = (sent_with(0, reply(2.0, [(1.0, 1)], 1), 0.5), sent_with(1, reply(0.5, [(0.5, 1)], 1), 1.5))
    assert ServedBlock("a", 0, two).seconds == 2.0
    assert ServedBlock("a", 0, ()).seconds == 0.0


def test_requests_of_which_half_were_answered_at_once_have_figures() -> None:
    def row(failed: int, answered: int) -> EndpointFigures:
        sent = [Sent(n, 0.0, 1.0, None, "reset") for n in range(failed)]
        sent += [sent_with(failed + n, reply(1.0, [(0.5, 1), (1.0, 4)], 5)) for n in range(answered)]
        [found] = endpoint_figures([ServedBlock("a", 0, tuple(sent))], ["a"], ["chat"] * len(sent), Slo(e2e=1.0))
        return found

    assert (row(2, 2).why, row(0, 1).why, row(1, 1).why) == ("", "", "")
    assert row(3, 2).why == "2 of 5 requests were answered at the first try"
    assert row(0, 0).why == "0 of 0 requests were answered at the first try"
    assert (row(3, 2).speed, row(3, 2).decoding, row(3, 2).tokens_per_s) == (None, None, None)
    assert row(2, 2).tokens_per_s == 10.0
    assert row(0, 0).goodput is None
    assert row(0, 0).rate == 0


def test_what_has_no_time_per_token_or_no_partner_is_in_no_pair() -> None:
    """Prompts 0 to 2 in both, of which the second has one piece in one and the third was tried twice; 3 in one."""
    two = [reply(4.0, [(2.0, 1), (4.0, 1)], 2) for _ in range(4)]
    one = [
        reply(2.0, [(1.0, 1), (2.0, 1)], 2),
        reply(2.0, [(2.0, 2)], 2),
        reply(1.0, [(0.5, 1), (1.0, 1)], 2, 2),
        reply(1.0, [(0.5, 1), (1.0, 1)], 2),
    ]
    blocks = [*one_by_one("plain", two[:3]), *one_by_one("spec", one)]
    _, row = endpoint_figures(blocks, ["plain", "spec"], ["chat"] * 4, None)
    assert row.speed is not None
    assert row.speed.ratio == pytest.approx(2)
    assert row.speed.units == 2
    assert row.decoding is not None
    assert row.decoding.ratio == pytest.approx(2)
    assert row.decoding.units == 1


def test_the_percentiles_of_a_table_are_of_ten_values_and_of_a_hundred() -> None:
    """The times are the numbers from 1 to 100 in seconds."""
    sent = tuple(sent_with(n, reply(float(n + 1), [(float(n + 1), 1)], 1)) for n in range(100))
    [row] = endpoint_figures([ServedBlock("a", 0, sent)], ["a"], ["chat"] * 100, None)
    assert row.e2e_ms == row.ttft_ms == (50_500.0, 90_000.0, 99_000.0)
    [few] = endpoint_figures([ServedBlock("a", 0, sent[:99])], ["a"], ["chat"] * 99, None)
    assert few.e2e_ms == (50_000.0, 90_000.0, None)


def test_few_prompts_that_were_faster_the_second_time_are_no_proof_of_learning() -> None:
    blocks = [
        ServedBlock(
            "a", turn, (sent_with(0, reply(1.0 / (turn + 1), [(0.5 / (turn + 1), 1), (1 / (turn + 1), 4)], 5)),)
        )
        for turn in (0, 1)
    ]
    [row] = endpoint_figures(blocks, ["a"], ["chat"], None)
    assert row.learns is None


def test_too_few_answers_are_inconclusive_and_failures_are_counted_by_kind() -> None:
    failed = [Sent(n, 0.0, 1.0, None, kind) for n, kind in enumerate(["timeout", "reset", "timeout"])]
    good = sent_with(3, reply(1.0, [(0.5, 1), (1.0, 4)], 5))
    [row] = endpoint_figures([ServedBlock("a", 0, (*failed, good))], ["a"], ["chat"] * 4, None)
    assert dict(row.failed) == {"reset": 1, "timeout": 2}
    assert (row.speed, row.tokens_per_s) == (None, None)
    assert row.why == "1 of 4 requests were answered at the first try"


def test_goodput_counts_requests_that_keep_every_limit_over_all_that_were_asked() -> None:
    """Two of four keep both limits in four seconds; one is too slow, one failed."""
    fine, late = reply(1.0, [(0.2, 1), (1.0, 8)], 9), reply(4.0, [(3.0, 1), (4.0, 8)], 9)
    block = ServedBlock(
        "a", 0, (sent_with(0, fine), sent_with(1, fine), sent_with(2, late), Sent(3, 0.0, 1.0, None, "reset"))
    )
    [row] = endpoint_figures([block], ["a"], ["chat"] * 4, Slo(ttft=0.5, tpot=0.15))
    assert row.goodput == (0.5, 0.5)


def test_a_limit_is_kept_by_what_lies_on_it_and_by_a_single_token_that_has_no_further_one() -> None:
    """TTFT 0.5 s, 0.25 s a token, 1.0 s to the end; sent late, the first and the last are later, and no token is."""
    one, single = reply(1.0, [(0.5, 1), (1.0, 2)], 3), reply(1.0, [(0.5, 1)], 1)
    for limits in (Slo(), Slo(ttft=0.5), Slo(tpot=0.25), Slo(e2e=1.0), Slo(0.5, 0.25, 1.0)):
        assert limits.keeps(one)
    for limits in (Slo(ttft=0.49), Slo(tpot=0.24), Slo(e2e=0.99), Slo(9.0, 9.0, 0.99), Slo(9.0, 0.24, 9.0)):
        assert not limits.keeps(one)
    assert Slo(0.5, 0.25, 1.0).keeps(single)
    assert Slo(0.75, 0.25, 1.25).keeps(one, 0.25)
    assert not Slo(ttft=0.74).keeps(one, 0.25)
    assert not Slo(e2e=1.24).keeps(one, 0.25)


def test_what_is_not_known_keeps_no_limit() -> None:
    """A server that streams nothing had a goodput of 100 % at a limit of a microsecond a token."""
    whole, unknown = reply(1.0, [(1.0, 8)], 8), reply(1.0, [(0.5, None), (1.0, None)], None)
    for one in (whole, unknown):
        assert not Slo(tpot=1e-6).keeps(one)
        assert not Slo(tpot=9.0).keeps(one)
        assert Slo(ttft=9.0, e2e=9.0).keeps(one)


LOOP = reply(0.5, [(0.25, 8), (0.5, 15)], 23)
POOR = {
    "no piece": reply(1.0, [], 0),
    "blanks": replace(reply(0.5, [(0.25, 1), (0.5, 1)], 2), text=" \n"),
    "a loop": replace(LOOP, text="so: " + "a-" * 32),
    "a loop of unknown length": replace(LOOP, text="so: " + "a-" * 48, completion_tokens=None),
}
RICH = {
    "a loop of too few tokens": replace(LOOP, text="so: " + "a-" * 32, completion_tokens=22),
    "a text that was a loop": replace(LOOP, text="a-" * 32 + "and so on"),
}


@pytest.mark.parametrize("one", POOR.values(), ids=POOR)
def test_an_answer_without_a_text_or_in_a_loop_keeps_no_limit_and_counts_for_no_speed(one: Reply) -> None:
    """ "14.89x", exit code 0, for a server that repeated one piece: the first prompt alone is compared, 2 to 1."""
    text = reply(2.0, [(1.0, 1), (2.0, 4)], 5)
    fast = reply(1.0, [(0.5, 1), (1.0, 4)], 5)
    for ours, base in (([fast, one], [text, text]), ([fast, fast], [text, one])):
        blocks = [
            ServedBlock(name, 0, tuple(sent_with(n, found) for n, found in enumerate(found)))
            for name, found in (("plain", base), ("spec", ours))
        ]
        rows = endpoint_figures(blocks, ["plain", "spec"], ["chat"] * 2, Slo())
        assert [row.speed and row.speed.ratio for row in rows] == [1, pytest.approx(2)]
        assert [row.decoding and row.decoding.ratio for row in rows] == [1, pytest.approx(2)]
        assert [row.empty + row.looping for row in rows] == [int(one in base), int(one in ours)]
        assert [row.goodput and row.goodput[1] for row in rows] == [0.5 if one in some else 1 for some in (base, ours)]


@pytest.mark.parametrize("one", RICH.values(), ids=RICH)
def test_a_short_repetition_or_one_that_ended_is_a_text(one: Reply) -> None:
    assert Slo().keeps(one)
    [row] = endpoint_figures([ServedBlock("a", 0, (sent_with(0, one),))], ["a"], ["chat"], None)
    assert (row.empty, row.looping) == (0, 0)


@pytest.mark.parametrize(("lengths", "compared"), [((8, 8), True), ((4, 8), True), ((3, 8), False), ((12, 5), False)])
def test_outputs_of_other_lengths_are_not_compared_and_longer_ones_do_not_make_up_for_shorter_ones(
    lengths: tuple[int, int], compared: bool
) -> None:
    """Eight tokens to each of two prompts; 12 and 5 are 17 of 16 in all, and differ by 7 of 20."""
    base = [reply(2.0, [(1.0, 1), (2.0, 7)], 8)] * 2
    ours = [replace(reply(1.0, [(0.5, 1), (1.0, count - 1)], count), text=f"{count} others") for count in lengths]
    blocks = [
        ServedBlock(name, 0, tuple(sent_with(n, one) for n, one in enumerate(found)))
        for name, found in (("plain", base), ("spec", ours))
    ]
    plain, spec = endpoint_figures(blocks, ["plain", "spec"], ["chat"] * 2, None)
    assert plain.reason is None
    apart = sum(abs(8 - count) for count in lengths) / sum(max(8, count) for count in lengths)
    said = f"lengths: its outputs and the baseline's differ by {apart:.0%} of their tokens"
    assert spec.reason == (None if compared else said)


@pytest.mark.parametrize(("counted", "compared"), [(8, True), (7, True), (9, True), (10, False), (16, False)])
def test_a_text_that_two_servers_count_otherwise_has_no_speed_to_compare(counted: int, compared: bool) -> None:
    """A usage that was doubled in streams alone gained 1.31x; the end token may be counted or not."""
    pieces = [(1.0, 1), (2.0, 7)]
    blocks = [
        ServedBlock(name, 0, tuple(sent_with(n, reply(2.0, [*pieces], count)) for n, count in enumerate(counts)))
        for name, counts in (("plain", (8,) * 9), ("spec", (8,) * 8 + (counted,)))
    ]
    plain, spec = endpoint_figures(blocks, ["plain", "spec"], ["chat"] * 9, None)
    said = f"counts: 'xxxxxxxx' is {counted} tokens by its usage, 8 by the baseline's"
    assert (plain.reason, spec.reason) == (None, None if compared else said)


def _after(firsts: Sequence[float]) -> EndpointFigures:
    """A server as fast as another after its first pieces, which come so many times as late as the other's half a
    second."""
    base = [reply(1.5, [(0.5, 1), (1.5, 4)], 5)] * len(firsts)
    ours = [reply(1.0 + by / 2, [(by / 2, 1), (1.0 + by / 2, 4)], 5) for by in firsts]
    blocks = [*one_by_one("plain", base), *one_by_one("spec", ours)]
    return endpoint_figures(blocks, ["plain", "spec"], ["chat"] * len(firsts), None)[1]


@pytest.mark.parametrize(
    ("firsts", "held"),
    [
        ([1.1, 1.2, 1.3, 1.1, 1.2, 1.3], True),
        ([0.8, 1.2, 0.7, 1.3, 0.9, 1.1], False),  # by chance, as under a load
        ([0.8, 0.9, 0.7, 0.8, 0.9, 0.7], False),  # earlier: a shorter prefill is no decoding
        ([1.5, 1.5], True),  # too few for chance to be told
    ],
)
def test_what_is_waited_for_longer_than_for_the_baselines_first_piece_is_decoding(
    firsts: list[float], held: bool
) -> None:
    """Of a second in all; where it is chance, nothing is charged, since the mean would be below 1 of equal servers."""
    found = _after(firsts).decoding
    charged = [by / 2 - 0.5 if held else 0.0 for by in firsts]
    assert found is not None
    assert found.ratio == pytest.approx(_geometric(1 / (1 + more) for more in charged))


def test_every_number_of_a_request_is_a_load_and_none_is_refused() -> None:
    loads = [Traffic(concurrency=1), Traffic(concurrency=4), Traffic(rate=0.5)]
    assert [load.label for load in loads] == ["1 at once", "4 at once", "0.5 a second"]
    assert [load.id for load in loads] == ["c1", "c4", "r0.5"]
    assert loads_of([1, 4, 1], [0.5]) == loads
    assert loads_of([], [2.0]) == [Traffic(rate=2.0)]
    with pytest.raises(SpecdecError, match="neither --specdec-concurrency nor --specdec-rate is given"):
        loads_of([], [])


class _Recorder:
    """Counts requests at once, without a server."""

    def __init__(self, fails: int = 0) -> None:
        self.now = self.most = 0
        self.fails = fails

    async def complete(self, ask: Ask) -> Reply:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1
        if str(ask.prompt) in map(str, range(self.fails)):
            raise EndpointFailure("reset", "planted")
        return reply(0.1, [(0.1, 1)], 1)


@pytest.mark.parametrize(
    "load", [Traffic(concurrency=1), Traffic(concurrency=3), Traffic(rate=1e6)], ids=lambda load: load.id
)
def test_a_load_sends_every_request_once_and_no_more_at_once_than_asked(load: Traffic) -> None:
    client, sent = _Recorder(fails=2), list[Sent]()
    asks = [(n, Ask(str(n), 1)) for n in range(9)]
    asyncio.run(send(client, asks, load, 0, sent))  # type: ignore[arg-type]
    assert sorted(one.prompt for one in sent) == list(range(9))
    assert sorted(one.prompt for one in sent if one.failure) == [0, 1], "a failure is a result, and stops nothing"
    if load.concurrency:
        assert client.most == load.concurrency


def test_tokens_of_logprobs_count_before_usage() -> None:
    with_tokens = Reply("ab", (Token("a"), Token("b")), (), 1.0, 1, 9, "stop", 1, {})
    assert with_tokens.counted == 2


def _rounds(second: float, machine: float = 1.0, groups: int = 6) -> list[EndpointFigures]:
    """Two endpoints of equal speed; in the second round the second one is ``second`` times as fast, and the machine
    ``machine`` times."""

    def blocks(name: str, turn: int, by: float) -> list[ServedBlock]:
        replies = [reply((n + 1) / by, [(0.5 / by, 1), ((n + 1) / by, 9)], 10) for n in range(6)]
        return [replace(one, group=one.group % groups) for one in one_by_one(name, replies, turn)]

    plain = [*blocks("plain", 0, 1.0), *blocks("plain", 1, machine)]
    spec = [*blocks("spec", 0, 1.0), *blocks("spec", 1, second * machine)]
    return endpoint_figures([*plain, *spec], ["plain", "spec"], ["chat"] * 3 + ["code"] * 3, None)


@pytest.mark.parametrize(("again", "learns"), [(1.05, False), (1.15, True), (2.0, True)])
def test_a_server_is_said_to_learn_from_a_tenth_on(again: float, learns: bool) -> None:
    _, spec = _rounds(again)
    assert spec.learns == (pytest.approx(again) if learns else None)


def test_a_server_that_knows_its_answers_the_second_time_is_not_called_faster() -> None:
    _, spec = _rounds(4.0)
    assert spec.learns == pytest.approx(4)
    assert spec.decoding is not None
    assert spec.decoding.ratio == pytest.approx(1)
    _, honest = _rounds(1.05)
    assert honest.learns is None
    assert honest.decoding is not None
    assert honest.decoding.ratio == pytest.approx(1.05**0.5)


@pytest.mark.parametrize("machine", [1.2, 2.0])
def test_a_machine_that_was_faster_in_a_second_round_has_taught_no_server_anything(machine: float) -> None:
    """Below half as fast again no more is said of the first server, beside which there is none."""
    plain, spec = _rounds(1.0, machine)
    assert (plain.learns, spec.learns) == (None if machine < 1.5 else machine, None)
    plain, spec = _rounds(1.2, machine)
    assert spec.learns == pytest.approx(1.2)


@pytest.mark.parametrize(("again", "learns"), [(1.4, False), (1.6, True)])
def test_over_too_few_groups_for_an_interval_a_server_learns_from_half_as_fast_again_on(
    again: float, learns: bool
) -> None:
    """The drift between two blocks is in all prompts of these."""
    _, spec = _rounds(again, groups=2)
    assert spec.learns == (pytest.approx(again) if learns else None)
