"""Prices of slots: at that of the best K no other K is faster, and drafts that heed one never change an output."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from operator import mul
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.priced import AtAnyPrice
from benchsuite.tests.rig import Make
from benchsuite.tests.steps_rig import KnownCosts, book_step, sized_env
from specdec import Assembly, Context, Draft, Request, SamplingParams, SpecdecError, Window
from specdec.devices import Stopwatch
from specdec.interfaces import Env
from specdec.lengths import Numbers, Price, allowed_price
from specdec.stats import RowStats, RowStep, Stats
from specdec_plugins.controllers.budget import Budget
from specdec_plugins.drafts.hybrid import Hybrid
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.drafts.suffix import Suffix
from specdec_plugins.lookup import EVEN, KEEP_TRUE, PRIOR, CameTrue, Lookup, worth_their_slots
from specdec_plugins.prices import SLOW, Line, seconds_of_tokens

_ENV: Any = None
_CPU = SimpleNamespace(device=torch.device("cpu"))


WITH_MODEL = "sources='ngram(n_min=1), eagle'"
"""Sources of a hybrid, the last of which draws its proposals."""

CHAINS = st.lists(
    st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]), max_size=4).map(
        lambda each: [*itertools.accumulate(each, mul)]
    ),
    min_size=1,
    max_size=3,
)
"""Of each row the chances that its proposals are kept."""

COSTS = st.lists(st.sampled_from([0.0, 0.05, 0.4, 1.5]), min_size=12, max_size=12).map(
    lambda each: np.cumsum([0.0, *each])
)
"""Of 0, 1 … proposals of all rows: some begin a pass, and others fill one."""


@given(CHAINS, COSTS, st.lists(st.sampled_from([0.3, 1.0, 2.0]), min_size=3, max_size=3))
def test_no_other_counts_bring_more_beyond_what_they_cost(
    chains: list[list[float]], cost: Numbers, worth: list[float]
) -> None:
    """Beside every count of every row."""
    price = Price(cost, np.array(worth[: len(chains)]))

    def value(counts: Sequence[int]) -> float:
        brings = sum(one * sum(chain[:count]) for one, chain, count in zip(worth, chains, counts, strict=False))
        return round(float(brings - cost[sum(counts)]), 9)

    found, every = price.counts(chains), [*itertools.product(*(range(len(chain) + 1) for chain in chains))]
    assert value(found) == max(map(value, every))


def test_slots_that_share_a_pass_are_filled_or_none_is() -> None:
    """By hand: the first proposal costs a token and the next three nothing. One row of chance 0.6 is not worth it."""
    price = Price(np.array([0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]), np.ones(2))
    assert price.counts([[0.6], [0.0, 0.0]]) == [0, 0]
    assert price.counts([[0.6, 0.3], [0.5, 0.4, 0.1]]) == [2, 2]
    assert price.counts([[], []]) == [0, 0]


@given(st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.95]), min_size=1, max_size=3), COSTS)
def test_the_price_at_the_speed_of_the_best_ks_leads_to_them(chances: list[float], cost: Numbers) -> None:
    """Rows that keep each proposal with a chance of their own, beside every K of every row: prices at the speed that
    they lead to, again and again, end at the best of all (Dinkelbach)."""
    rows, most = len(chances), 4
    chains = [[chance**depth for depth in range(1, most + 1)] for chance in chances]

    def speed(ks: Sequence[int]) -> float:
        tokens = sum(1 + sum(chain[:k]) for chain, k in zip(chains, ks, strict=True))
        return float(tokens / (1 + cost[sum(ks)]))

    usual = 1.0
    for _ in range(12):
        usual = speed(Price(cost, np.full(rows, 1 / usual)).counts(chains))
    assert usual == pytest.approx(max(map(speed, itertools.product(range(most + 1), repeat=rows))))


@given(
    st.sampled_from([0.4, 1.0, 1.8]),
    st.lists(st.floats(0.5, 3.0), min_size=1, max_size=3),
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.6]), min_size=20, max_size=40),
)
def test_a_line_through_forwards_ends_at_what_slots_cost_whatever_the_pace(
    slope: float, paces: list[float], widths: list[float]
) -> None:
    """The machine's pace changes between the times in which windows of all these widths come."""
    line = Line()
    for pace in paces:
        for x in [*widths, 0.0, 0.6, 0.3, 0.6, 0.0] * 6:
            line.seen(x, pace * (1 + slope * x))
    assert line.at(0.5) / line.at(0.0) == pytest.approx(1 + slope * 0.5, rel=0.05)


def test_a_forward_that_something_else_slowed_down_hardly_moves_the_line() -> None:
    """By hand: of fifty forwards one took thirty times as long, and counts as a quarter too long."""
    line = Line()
    for turn in range(50):
        x = turn % 5 / 10
        line.seen(x, (1 + x) * (30 if turn == 44 else 1))
    for at in (0.0, 0.4):
        assert abs(line.at(at) / (1 + at) - 1) < (SLOW - 1) / 10


def test_a_forward_takes_time_however_much_dearer_wide_ones_are_than_expected() -> None:
    """Behind a width a backend may take another way; the line through wide forwards is then below 0 for narrow ones."""
    line = Line()
    for turn in range(90):
        x = 0.8 + turn % 3 / 10
        line.seen(x, 10 * x**4)
        assert line.at(0.0) > 0


def test_a_token_of_the_last_row_saves_whole_steps_and_of_others_what_they_add() -> None:
    """Beside the time to the end of all, step by step, of rows whose ends are far apart."""

    def seconds(left: Sequence[float], rates: Sequence[float]) -> float:
        ends = [tokens / rate for tokens, rate in zip(left, rates, strict=True)]
        return 0.8 * max(ends) + sum(more * end for more, end in zip(added, ends, strict=True))

    left, rates, added = [6, 90, 20], [1.0, 1.5, 2.0], [0.1, 0.2, 0.3]
    whole, found = seconds(left, rates), seconds_of_tokens(left, rates, added, 0.8)
    for row, saved in enumerate(found):
        less = [tokens - (one == row) for one, tokens in enumerate(left)]
        assert saved == pytest.approx(whole - seconds(less, rates), rel=0.15)
    assert seconds_of_tokens([8] * 4, [1.0] * 4, [0.1] * 4, 0.8) == pytest.approx([0.3] * 4), "nobody knows which"


def test_what_comes_true_is_known_of_matches_of_like_length() -> None:
    """By hand: after matches of 4 to 7 tokens, of two tokens one came; nothing is known of other lengths."""
    known = CameTrue()
    known.seen(4, 1.0, True)
    known.seen(6, 0.5, False)
    told = KEEP_TRUE * 4 / (4 + EVEN) + 0.5 * 6 / (6 + EVEN)
    assert known.chance(5, 1.0) == pytest.approx(5 / (5 + EVEN) * (PRIOR + KEEP_TRUE) / (PRIOR + told))
    for length in (3, 8):
        assert known.chance(length, 1.0) == CameTrue().chance(length, 1.0) == length / (length + EVEN)
    for _ in range(9):
        known.seen(64, 1.0, True)
    assert known.chance(100, 1.0) <= 1.0


def test_a_text_that_begins_to_repeat_is_noticed_however_long_it_did_not() -> None:
    def needed(wrong: int) -> int:
        known = CameTrue()
        for _ in range(wrong):
            known.seen(3, 1.0, False)
        for right in itertools.count():
            if known.chance(3, 1.0) >= 0.4:
                return right
            known.seen(3, 1.0, True)
        raise AssertionError

    assert needed(20) < needed(5000) < 50


class _OtherPaths(Suffix):
    """Continues otherwise, and says nothing of how likely that is."""

    def continuations(self, row: int, history: Any, limit: int) -> list[list[int]]:
        return [[1, 2, 3][:limit]]


class _TooFewShares(Ngram):
    """Says less than it proposes."""

    def match(self, row: int, history: Any) -> tuple[int, Sequence[float]]:
        length, shares = super().match(row, history)
        return length, shares[:1]


def test_a_match_is_of_the_continuations_of_its_class_and_tells_of_each_token() -> None:
    assert not _OtherPaths(_ENV).heeds_price
    draft = _TooFewShares(_ENV)
    assert draft.heeds_price
    with pytest.raises(SpecdecError, match="match of the draft _TooFewShares has 1 shares for a continuation of 5 tok"):
        draft.look_up(_step([1, 2, 3, 4, 5, 1, 2], price=0.5), 0)


class _TooFewChances(Ngram):
    """Forgets its last token."""

    def chances(self, row: int) -> Sequence[float]:
        return super().chances(row)[:-1]


def test_chances_are_told_of_each_token_that_was_found() -> None:
    said = "chances of the draft _TooFewChances has 4 numbers for a continuation of 5 tok"
    with pytest.raises(SpecdecError, match=said):
        _proposed(_TooFewChances(_ENV), _step([1, 2, 3, 4, 5, 1, 2], price=0.5))


def _step(*texts: Sequence[int], price: float, room: int = 9) -> Any:
    """A step of rows of these texts, in which each proposal costs ``price`` tokens."""
    history = np.zeros((len(texts), 40), dtype=np.int64)
    for row, text in enumerate(texts):
        history[row, : len(text)] = text
    return SimpleNamespace(
        rows=len(texts),
        history=history,
        length_host=np.array([len(text) for text in texts]),
        max_proposals_host=np.full(len(texts), room),
        price=Price(np.arange(len(texts) * room + 1) * np.float64(price), np.ones(len(texts))),
    )


def _proposed(draft: Lookup, step: Any) -> list[int]:
    """How many tokens of each row are worth their slots."""
    found = [draft.look_up(step, row) for row in range(step.rows)]
    return [len(path) for paths in worth_their_slots(draft, step, found) for path in paths[:1] or [()]]


@pytest.mark.parametrize("make", [lambda: Suffix(_ENV), lambda: Ngram(_ENV)])
def test_a_lookup_learns_from_what_it_does_not_propose(make: Callable[[], Lookup]) -> None:
    """By hand: what followed 1 2 3 4 never comes again. What would have been proposed gets unlikely without a slot."""
    text, draft = [1, 2, 3, 4, 5, 6, 7], make()
    draft.admit(0, Request(0, (1,)), ())
    assert _proposed(draft, _step([*text, 1, 2, 3, 4], price=0.5)) > [0], "likelier than not, as of a new match of four"
    for turn in range(20):
        text += [1, 2, 3, 4, 50 + turn]
        assert _proposed(draft, _step(text[-36:-1], price=1.5)) == [0]
        _proposed(draft, _step(text[-36:], price=1.5))
    assert _proposed(draft, _step([*text[-32:], 1, 2, 3, 4], price=0.5)) == [0]
    draft.forget()
    draft.admit(0, Request(0, (1,)), ())
    assert _proposed(draft, _step([*text[:7], 1, 2, 3, 4], price=0.5)) > [0], "it has forgotten"


def test_what_is_foretold_of_a_request_moves_with_it_and_says_nothing_of_the_next() -> None:
    draft, text = Ngram(_ENV), [1, 2, 3, 4, 5, 1, 2, 3, 4]
    after_four = 4 / (4 + EVEN)

    def chance(*texts: Sequence[int], row: int) -> float:
        draft.look_up(_step(*texts, price=0.5), row)
        return draft.chances(row)[0]

    assert chance([9], text, row=1) == pytest.approx(after_four)
    draft.move(1, 0, Request(1, (1,)), ())
    draft.look_up(_step([*text, 5], [9], price=0.5), 0)  # it came true
    came_true = chance([9], text, row=1)
    assert came_true > 1.05 * after_four
    draft.move(1, 0, Request(1, (1,)), ())
    draft.admit(0, Request(2, (1,)), ())
    draft.look_up(_step([*text, 8, 8], [9], price=0.5), 0)
    assert chance([9], text, row=1) == came_true, "another request's text"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_chances_of_a_hybrid_are_those_of_the_source_that_found_something(text: list[int]) -> None:
    def sources() -> list[Lookup]:
        return [Suffix(_ENV, min_match=3), Ngram(_ENV, n_min=1)]

    given_away, alone = sources(), sources()
    env: Any = SimpleNamespace(draft=lambda name: given_away[int(name)], max_rows=1, target=_CPU)
    hybrid, step = Hybrid(env, "0, 1"), _step(text, price=0.1)
    for draft in (hybrid, *alone):
        draft.admit(0, Request(0, (1,)), tuple(text))
    found = [(paths, lookup.chances(0)) for lookup in alone if (paths := lookup.look_up(step, 0))]
    assert hybrid.heeds_price
    assert hybrid.look_up(step, 0) == (found[0][0] if found else ())
    assert not found or hybrid.chances(0) == found[0][1]


@given(st.lists(st.integers(0, 2), min_size=3, max_size=30))
def test_a_match_of_ngram_is_as_long_as_the_texts_before_both_places_are_equal(text: list[int]) -> None:
    """Beside a comparison token by token."""
    draft, history = Ngram(_ENV), np.array(text)
    paths = draft.continuations(0, history, 5)
    if not paths:
        return
    length, shares = draft.match(0, history)
    places = [place for place in range(1, len(text)) if text[place : place + len(paths[0])] == paths[0]]

    def equal(place: int) -> int:
        pairs = zip(text[:place][::-1], text[::-1], strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    assert length in [equal(place) for place in places]
    assert length >= 2
    assert len(shares) >= len(paths[0])
    assert 0 < shares[0] <= 1


def test_a_match_of_suffix_is_the_longest_and_its_shares_are_those_of_the_counts() -> None:
    draft = Suffix(_ENV)
    draft.admit(0, Request(0, (1,)), (7, 1, 2, 3, 9, 7, 1, 2, 4, 9, 7, 1, 2, 3, 8))
    text = np.array([7, 1, 2, 3, 9, 7, 1, 2, 4, 9, 7, 1, 2, 3, 8, 7, 1, 2])
    [path] = draft.continuations(0, text, 3)
    length, shares = draft.match(0, text)
    assert (path[0], length) == (3, 3)
    assert shares[0] == pytest.approx(2 / 3)
    assert len(shares) == len(path)


@pytest.mark.parametrize("draft", ["suffix", "ngram(n_min=1)", "hybrid", f"hybrid({WITH_MODEL})"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_price_changes_an_output(draft: str, temperature: float, assemble: Make) -> None:
    build = assemble(max_rows=3)
    texts = [(5, 6, 7, 5, 6, 7, 5, 6), (1, 2, 3, 4, 1, 2, 3, 4, 1, 2), (9, 8), (3, 3, 3, 3, 3)]
    asked = [
        Request(n, text, SamplingParams(max_new_tokens=24, temperature=temperature)) for n, text in enumerate(texts)
    ]
    engine = build.engine(draft, k=4)
    engine.controller = AtAnyPrice(4)
    outputs = [done.tokens for done in engine.run(asked)]
    assert outputs == [done.tokens for done in build.engine(None).run(asked)]
    free = build.engine(draft, k=4)
    free.run(asked)
    proposed = [one.stats.counts["num_draft_tokens"] for one in (engine, free)]
    assert 0 < proposed[0] < proposed[1], "some were left out, and some not"


class _Drawing(Draft):
    """Heeds prices and proposes what it drew."""

    heeds_price = True

    def __init__(self, env: Env) -> None:
        self._vocabulary = env.target.vocabulary

    def propose(self, context: Context) -> Window:
        tokens = context.pending[:, None]
        return Window.chain(
            context.pending, tokens, context.max_proposals.clamp(max=1), torch.ones(len(tokens), 1, self._vocabulary)
        )


def test_a_draft_that_heeds_a_price_with_what_it_drew_is_refused(assemble: Make) -> None:
    build = assemble()
    named = registry(("draft", "drawing", _Drawing))
    engine = Assembly(named, build.target, build.tokenizer, max_rows=1, max_length=64).engine("drawing", "match", k=4)
    engine.controller = AtAnyPrice(4)
    with pytest.raises(SpecdecError, match="_Drawing.*heeds prices and drew its proposals.*propose with certainty"):
        engine.run([Request(0, (5, 6, 7), SamplingParams(max_new_tokens=8, temperature=1.0))])


@pytest.mark.parametrize(
    ("draft", "policy", "heeds"),
    [
        *(("suffix", "match", True), ("ngram", "match", True), ("hybrid", "match", True), ("garbage", "match", False)),
        *(("hybrid(extend=True)", "match", False), ("hybrid(merge=True)", "match", False), (None, "match", False)),
        *(("suffix(branches=2)", "match", False), ("suffix", "rejection", True)),
        *((f"hybrid({WITH_MODEL})", "match", True), (f"hybrid({WITH_MODEL})", "rejection", False)),
        ("hybrid(sources='ngram, tree(beam=2, depth=2)')", "match", False),
    ],
)
def test_a_draft_heeds_prices_if_it_knows_its_chances_and_draws_nothing(
    draft: str | None, policy: str, heeds: bool, assemble: Make
) -> None:
    assert assemble().engine(draft, policy).stats.heeds_price is heeds


def _priced(stats: Stats, slots: Callable[[float, int], float], rows: int, free: bool = True) -> Budget:
    costs = KnownCosts(lambda width, rows, length: slots(width, rows))
    stats.batch, stats.lengths = rows, (20,) * rows
    stats.rows = tuple(RowStats(row, length=20, room=9) for row in range(rows))
    return Budget(sized_env(costs, max_rows=4, max_length=200, skips_padding=free), maximum=4)


def _dear(controller: Budget) -> float:
    """What the first proposal costs, in tokens of the first row."""
    assert controller.slot_price is not None
    return float(controller.slot_price.cost[1] / controller.slot_price.worth[0])


def test_budget_asks_for_all_and_says_what_a_slot_costs() -> None:
    """By hand: a forward takes a second and each slot behind the first of a row 0.1, so that of two rows one that is
    kept for certain is worth 0.1 of the 0.5 seconds in which a token is made."""
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    controller = _priced(stats, lambda width, rows: 1 + 0.1 * rows * (width - 1), 2)
    assert controller.next_k(stats) == 4
    price = controller.slot_price
    assert price is not None
    assert price.cost == pytest.approx(0.1 * np.arange(9))
    assert price.worth == pytest.approx([0.5, 0.5])
    now = 0.0
    for _ in range(9):
        each = [RowStep(4, 4, 4, 5), RowStep(4, 4, 4, 5)]
        now = book_step(stats, now, (0.0, 0.0, 0.0, 0.0, 1.8, 0.0, 0.0, 0.0, 0.0, 0.0), each, 5)
    controller.next_k(stats)
    assert _dear(controller) == pytest.approx(0.1 / 0.18), "a token takes 0.18 seconds now"
    stats.closed = True
    stats.rows = (RowStats(0, length=20, room=2), RowStats(7, length=20, room=90))
    controller.next_k(stats)
    found: Price | None = controller.slot_price
    assert found is not None
    assert found.worth[0] < found.worth[1] / 5, "the row that ends first saves nothing but its own slots"


def _booked(stats: Stats, now: float, rows: int, target: float, host: float, proposed: int = 0) -> float:
    each = [RowStep(proposed, proposed, 0, 1)] * rows
    return book_step(stats, now, (0.0, 0.0, 0.0, 0.0, target, host, 0.0, 0.0, 0.0, 0.0), each, 1 + proposed)


def test_forwards_of_the_draft_cost_what_so_many_took_and_make_tokens_dearer() -> None:
    """By hand: steps of one second and of drafting by one forward or by three, after one in which what waited took a
    second more; two tokens each."""
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    controller, now = _priced(stats, lambda width, rows: 1.0, 1), 0.0
    for drafting, forwards in ((0.0, 0), (1.3, 4), (0.0, 0), (1.3, 4), *[(0.2, 1)] * 9, *[(0.3, 3)] * 60):
        controller.next_k(stats)
        parts = (0.0, 0.0, 0.0, drafting, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        now = book_step(stats, now, parts, [RowStep(3, 3, 1, 2)], 4, forwards)
    price = controller.slot_price
    assert price is not None
    assert [price.drafting(count) for count in (0, 1, 2, 3)] == pytest.approx([0.0, 0.2, 0.25, 0.3])
    assert price.worth == pytest.approx([1.3 / 2], rel=0.02)
    controller.forget()
    controller.next_k(stats := Stats(Stopwatch(torch.device("cpu")), 1, (20,), rows=stats.rows, heeds_price=True))
    assert controller.slot_price is not None
    assert controller.slot_price.drafting(3) == 0.0, "another text's"


@pytest.mark.parametrize(("free", "length"), [(True, 100), (False, 180)])
def test_a_forward_costs_the_cells_that_are_read_of_its_rows(free: bool, length: int) -> None:
    """By hand: a slot costs 0.1 seconds, and a forward as many hundredths of a second as cells are read of a row."""
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    rows = 2 if free else 1
    stats.batch, stats.lengths = rows, (20, 180)[-rows:]
    stats.rows = tuple(RowStats(row, length=one, room=9) for row, one in enumerate(stats.lengths))
    costs = KnownCosts(lambda width, rows, length: length / 100 + 0.1 * rows * (width - 1))
    controller = Budget(sized_env(costs, max_rows=4, max_length=200, skips_padding=free), maximum=4)
    controller.next_k(stats)
    assert _dear(controller) == pytest.approx(0.1 * rows / (length / 100))


def test_one_slow_step_of_the_host_does_not_end_all_proposals() -> None:
    """Nothing is proposed where that seems to cost thirty tokens, and so nothing shows that it does not."""
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    controller, now, prices = _priced(stats, lambda width, rows: 1.0, 1), 0.0, []
    for slow in (30.0, *[0.0] * 160):
        controller.next_k(stats)
        prices.append(_dear(controller))
        now = _booked(stats, now, 1, 1.0, slow, 2 if slow else 0)
    assert max(prices) > 3
    assert prices[-1] < 0.1


def test_the_price_is_that_of_as_many_rows_as_there_are() -> None:
    """A slot costs 0.1 seconds beside any number of rows; a token is made in 1 second of one row, in 0.25 of four."""
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    controller, now = _priced(stats, lambda width, rows: 1 + 0.1 * rows * (width - 1), 1), 0.0
    for rows, expected in ((1, 0.1), (4, 0.4), (1, 0.1)):
        stats.batch, stats.lengths = rows, (20,) * rows
        stats.rows = tuple(RowStats(row, length=20, room=9) for row in range(rows))
        controller.next_k(stats)
        assert _dear(controller) == pytest.approx(expected)
        for _ in range(20):
            now = _booked(stats, now, rows, 1.0, 0.0)
            controller.next_k(stats)


@pytest.mark.parametrize("real", [0.5, 1.0, 1.6])
@pytest.mark.parametrize("pace", [1.0, 3.0])
def test_the_price_of_a_slot_is_what_it_costs_in_the_run(real: float, pace: float) -> None:
    """Four rows, in which a slot was expected to cost 0.1 seconds and costs ``real`` times that; the machine's pace
    changes when nothing is proposed any more."""
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    controller, now = _priced(stats, lambda width, rows: 1 + 0.1 * rows * (width - 1), 4), 0.0
    for turn in range(140):
        controller.next_k(stats)
        if turn < 80:
            proposed = turn % 4
            now = _booked(stats, now, 4, 1 + 0.4 * real * proposed, 0.0, proposed)
        else:
            now = _booked(stats, now, 4, pace, 0.0)
    stats.rows = tuple(RowStats(row, length=20, room=9) for row in range(4, 8))
    controller.next_k(stats)
    assert _dear(controller) == pytest.approx(0.4 * real, rel=0.15)


def test_what_a_slot_costs_beside_one_row_says_nothing_of_many() -> None:
    """A wide window of one row is computed in another way than the slots of many rows."""
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    controller, now = _priced(stats, lambda width, rows: 1 + 0.1 * rows * (width - 1), 1), 0.0
    for turn in range(60):
        controller.next_k(stats)
        now = _booked(stats, now, 1, 1 + 0.3 * (turn % 4), 0.0, turn % 4)
    stats.batch, stats.lengths = 4, (20,) * 4
    stats.rows = tuple(RowStats(row, length=20, room=9) for row in range(4))
    for _ in range(60):
        controller.next_k(stats)
        now = _booked(stats, now, 4, 1.0, 0.0)
    stats.rows = tuple(RowStats(row, length=20, room=9) for row in range(4, 8))
    controller.next_k(stats)
    assert _dear(controller) == pytest.approx(0.4, rel=0.1)


def test_budget_gives_no_price_where_a_wide_row_costs_in_every_row_or_nobody_heeds_it() -> None:
    stats = Stats(Stopwatch(torch.device("cpu")), heeds_price=True)
    controller = _priced(stats, lambda width, rows: float(width), 2, free=False)
    now = 0.0
    for rows in (2, 1, 2, 2, 1, 1):
        stats.batch, stats.lengths = rows, (20,) * rows
        stats.rows = tuple(RowStats(row, length=20, room=9) for row in range(rows))
        asked: Any = controller.next_k(stats)
        assert (controller.slot_price is None) is (rows > 1)
        ks = [asked] * rows if isinstance(asked, int) else list(asked)
        each = [RowStep(k, k, 0, 1) for k in ks]
        now = book_step(stats, now, (0.0, 0.0, 0.0, 0.01, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0), each, 1 + max(ks))
        assert rows == 1 or max(ks) < 4, "it asks as if there were no price"
    stats.heeds_price = False
    controller.next_k(stats)
    assert controller.slot_price is None


@pytest.mark.parametrize(
    ("cost", "worth"),
    [
        (np.zeros(8), np.ones(2)),
        (np.zeros(9), np.ones(3)),
        (np.zeros((9, 1)), np.ones(2)),
        ([0.0] * 9, np.ones(2)),
        (np.zeros(9), np.array([1.0, np.nan])),
        (np.full(9, np.inf), np.ones(2)),
        (np.full(9, "1"), np.ones(2)),
    ],
)
def test_a_price_of_other_sizes_or_without_numbers_is_refused(cost: Any, worth: Any) -> None:
    said = r"controller Theirs has the slot_price .*numpy's finite numbers: cost \[9\], .*, and worth \[2\], of a token"
    for price in (Price(cost, worth), np.zeros((2, 4)), 3.0):
        with pytest.raises(SpecdecError, match=re.compile(said, re.DOTALL)):
            allowed_price(price, 2, 4, "Theirs")
    others: tuple[Any, ...] = (torch.zeros(2), [0.0], [[1], [2, 3]], None, 0.1, np.zeros(0), np.array([np.nan]))
    for forwards in others:
        with pytest.raises(SpecdecError, match=re.compile(said, re.DOTALL)):
            allowed_price(Price(np.zeros(9), np.ones(2), forwards), 2, 4, "Theirs")
    assert allowed_price(None, 2, 4, "Theirs") is None
    given = Price(np.zeros(9), np.ones(2))
    assert allowed_price(given, 2, 4, "Theirs") is given
