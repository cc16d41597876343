"""``goodput`` and ``budget`` on recorded texts (``recorded_acceptance``), at costs that are given: no clock is read, so
that their regret repeats exactly. ``make predictions`` and ``pytest -m load`` measure the same with one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import exp, log
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.tests.recorded_acceptance import ROWS, K, Positions, recorded_positions
from benchsuite.tests.recorded_costs import REST, draft_seconds, forward
from benchsuite.tests.rig import slow_after
from benchsuite.tests.steps_rig import book_step
from specdec.devices import Stopwatch
from specdec.lengths import each_k
from specdec.stats import RowStats, RowStep, Stats
from specdec_plugins.controllers.budget import Budget
from specdec_plugins.controllers.goodput import Goodput

TEXTS = recorded_positions()


def forward_of(each: Sequence[RowStep], free: bool) -> float:
    """Seconds of a forward of rows that proposed so much: as wide as the widest, or ``free`` of padding their mean."""
    if not free:
        return forward(1 + max(row.proposed for row in each), len(each))
    wide = 1 + sum(row.proposed for row in each) / len(each)
    low = int(wide)
    narrow = forward(low, len(each))
    return narrow + (wide - low) * (forward(low + 1, len(each)) - narrow)


def seconds_per_token(draft: str, prompts: Sequence[Positions], tokens: int, next_k: Callable[[Stats], Any]) -> float:
    """Decode the prompts together, ``tokens`` each, the first from the prefill."""
    stats, now = Stats(Stopwatch(torch.device("cpu"))), 0.0
    at = [1] * len(prompts)
    ends = [min(tokens, len(positions)) for positions in prompts]
    while live := [row for row, place in enumerate(at) if place < ends[row]]:
        stats.batch = len(live)
        k, each = next_k(stats), []
        for row in live:
            made, kept = (min(count, k, ends[row] - at[row] - 1) for count in prompts[row][at[row]])
            each.append(RowStep(made, made, min(made, kept), min(made, kept) + 1))
            at[row] += each[-1].emitted
        width = 1 + max(row.proposed for row in each)
        drafted = draft_seconds(draft, k, width - 1, len(live))
        now = book_step(stats, now, (0, 0, 0, drafted, forward(width, len(live)), REST, 0, 0, 0, 0), each, width)
    return now / (sum(ends) - len(ends))


def new_goodput(rows: int, kind: type[Goodput] = Goodput, free: bool = False) -> Callable[[Stats], Any]:
    """A controller that finds these costs when it is built."""
    calibration = SimpleNamespace(
        measure=lambda rows, lengths, widths: None, forward=lambda width, rows, length: forward(width, rows)
    )
    target = SimpleNamespace(skips_padding=free, slots_of_a_pass=1)
    env: Any = SimpleNamespace(max_length=100, max_rows=rows, calibration=calibration, target=target)
    return kind(env, maximum=K).next_k


def speed(draft: str, text: str, rows: int, tokens: int, controller: Callable[[], Callable[[Stats], Any]]) -> float:
    """Tokens per second over a text's batches, their geometric mean; every batch begins with a new controller."""
    prompts = TEXTS[text][draft]
    batches = [prompts[first : first + rows] for first in range(0, len(prompts), rows)]
    return exp(-fmean(log(seconds_per_token(draft, batch, tokens, controller())) for batch in batches))


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_after(1, [1, 4]))
@pytest.mark.parametrize("draft", slow_after(1, ["ngram", "suffix", "hybrid", "eagle", "hybrid+eagle"]))
def test_goodput_misses_little_of_the_best_fixed_k_of_each_text(draft: str, rows: int) -> None:
    """Over 32 and 64 tokens, beginning from its prior: at most 3.5 % in the median over texts, 5 % for lookups with a
    head behind them; and on no text more than 3.5 % and 2 % slower than plain decoding."""
    for tokens, floor in ((32, 0.965), (64, 0.98)):
        missed, speedups = [], []
        for text in TEXTS:
            fixed = [speed(draft, text, rows, tokens, lambda k=k: lambda stats: k) for k in range(K + 1)]  # type: ignore[misc]
            ours = speed(draft, text, rows, tokens, lambda: new_goodput(rows))
            missed.append(1 - ours / max(fixed))
            speedups.append(ours / fixed[0])
        assert median(missed) <= (0.05 if draft == "hybrid+eagle" else 0.035), (tokens, missed)
        assert min(speedups) >= floor, (tokens, speedups)


QUEUED = 32
"""Tokens of a request in a queue."""


def busy_speed_of(
    draft: str,
    prompts: Sequence[Positions],
    rows: int,
    next_k: Callable[[Stats], Any],
    closed: bool = False,
    free: bool = False,
) -> float:
    """Tokens per second of a queue through so many rows, until one of them stays empty; ``closed``: of prompts to which
    no others come, to the end of all. ``free``: padding costs nothing."""
    stats, now, emitted = Stats(Stopwatch(torch.device("cpu")), closed=closed), 0.0, 0
    waiting = deque(enumerate(prompts))
    at, live = dict[int, int](), list[tuple[RowStats, Positions]]()
    while waiting or (live if closed else len(live) == rows):
        while waiting and len(live) < rows:
            number, positions = waiting.popleft()
            live.append((RowStats(number), positions))
            at[number] = 1
        stats.rows, stats.batch, stats.waiting = tuple(row for row, _ in live), len(live), len(waiting)
        for row, positions in live:
            row.room = min(QUEUED, len(positions)) - at[row.request] - 1
        ks, each = each_k(next_k(stats), len(live)), []
        for (row, positions), k in zip(live, ks, strict=True):
            made, kept = (min(count, k, row.room) for count in positions[at[row.request]])
            each.append(RowStep(made, made, min(made, kept), min(made, kept) + 1))
            row.book(each[-1], k, ())
            at[row.request] += each[-1].emitted
            emitted += each[-1].emitted
        width = 1 + max(one.proposed for one in each)
        drafted = draft_seconds(draft, max(ks), width - 1, len(live))
        parts = (0, 0, 0, drafted, forward_of(each, free), REST, 0, 0, 0, 0)
        now = book_step(stats, now, parts, each, width)
        live = [(row, positions) for row, positions in live if at[row.request] < min(QUEUED, len(positions))]
    return emitted / now


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_after(1, [8, 4]))
@pytest.mark.parametrize("draft", slow_after(1, ["suffix", "ngram", "hybrid", "eagle", "hybrid+eagle"]))
@pytest.mark.parametrize("free", [False, True], ids=["padded", "free"])
def test_budget_over_a_queue_is_never_far_behind_plain_or_the_best_fixed_k(draft: str, rows: int, free: bool) -> None:
    """Three or four times as many requests as rows, one controller for all of them: as a server's it learns once.

    Of each text it is at least 0.98 of plain; of all texts mixed it is at most 1 % behind the best fixed K and
    ``goodput``, or ahead (2 % where padding costs nothing).
    """
    missed, slack = [], 0.02 if free else 0.01
    mixed = [prompts[draft][number] for number in range(8) for prompts in TEXTS.values()]

    def busy(queue: Sequence[Positions], next_k: Callable[[Stats], Any]) -> float:
        return busy_speed_of(draft, queue, rows, next_k, free=free)

    for queue in (*((1 + rows // 4) * TEXTS[text][draft] for text in TEXTS), mixed):
        fixed = [busy(queue, lambda stats, k=k: k) for k in range(K + 1)]  # type: ignore[misc]
        ours = busy(queue, new_goodput(rows, Budget, free))
        assert ours >= 0.98 * fixed[0]
        missed.append(1 - ours / max(fixed))
    assert median(missed) <= 0.03, missed
    assert max(missed) <= 0.05, missed
    assert missed[-1] <= slack, missed
    assert ours >= (1 - slack) * busy(mixed, new_goodput(rows, free=free)), missed


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Goodput, Budget])
def test_a_head_that_served_one_text_badly_is_tried_on_the_next(kind: type[Goodput]) -> None:
    """One row, a request after the other: of each text and of all mixed.

    Where as much was expected of a text as of the last, and probes waited until they were due, 6 % were missed in the
    median, and 6 and 8 % of all mixed.
    """
    missed = []
    mixed = [prompts["eagle"][number] for number in range(8) for prompts in TEXTS.values()]
    for queue in (*(3 * TEXTS[text]["eagle"] for text in TEXTS), mixed):
        fixed = [busy_speed_of("eagle", queue, 1, lambda stats, k=k: k, free=True) for k in range(K + 1)]  # type: ignore[misc]
        ours = busy_speed_of("eagle", queue, 1, new_goodput(1, kind, free=True), free=True)
        assert ours >= 0.98 * fixed[0]
        missed.append(1 - ours / max(fixed))
    assert median(missed) <= 0.02, missed
    assert missed[-1] <= 0.02, missed


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_after(1, [8, 4]))
@pytest.mark.parametrize("free", [False, True], ids=["padded", "free"])
def test_budget_over_closed_batches_is_never_far_behind_plain(rows: int, free: bool) -> None:
    """Of all drafts and texts, each batch with a controller that begins anew; half of the texts chose its constants.

    Where padding costs nothing lookups are given a price (``test_prices.py``), and chances are those of heads.
    """
    for draft in ("eagle", "hybrid+eagle") if free else next(iter(TEXTS.values())):
        for text in TEXTS:
            prompts = TEXTS[text][draft]
            batches = [prompts[first : first + rows] for first in range(0, len(prompts), rows)]
            logs = [
                log(busy_speed_of(draft, batch, rows, next_k, closed=True, free=free))
                for batch in batches
                for next_k in (new_goodput(rows, Budget, free), lambda stats: 0)
            ]
            assert fmean(logs[::2]) - fmean(logs[1::2]) >= log(0.979), (draft, text)


COPIED: Positions = [(K, K)] * 64
REFUSED: Positions = [(K, 0)] * 64
NOTHING: Positions = [(0, 0)] * 64
RARE: Positions = [(K, int(at % 5 == 0)) for at in range(64)]
"""Prompts of which all proposals are kept, none is, or none is made; of which one is kept now and then."""

ATTACKS: dict[str, tuple[str, list[Positions], float]] = {
    "nothing is kept": ("ngram", 16 * [REFUSED], 0.98),
    "a dear draft of which one in five is kept": ("eagle", 16 * [RARE], 0.98),
    "one odd prompt that copies": ("suffix", [*5 * [NOTHING], COPIED, *10 * [NOTHING]], 0.99),
    "one odd prompt that is refused": ("suffix", [*5 * [COPIED], REFUSED, *10 * [COPIED]], 1.5),
    "kept at first and refused from the middle on": ("suffix", [*8 * [COPIED], *8 * [REFUSED]], 1.3),
    "refused at first and kept from the middle on": ("suffix", [*8 * [REFUSED], *8 * [COPIED]], 1.3),
    "rows that copy beside rows that are refused": ("suffix", 8 * [COPIED, REFUSED], 1.3),
}
"""Queues of 16 prompts over four rows, the draft of which they have the costs, and the least speed over plain's."""


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("free", [False, True], ids=["padded", "free"])
def test_queues_that_were_made_to_mislead_budget_cost_little(name: str, free: bool) -> None:
    """Beside plain, the best fixed K, of which it is at most 6 % behind, and ``goodput``, of which 4 %."""
    draft, queue, least = ATTACKS[name]

    def busy(next_k: Callable[[Stats], Any]) -> float:
        return busy_speed_of(draft, queue, ROWS, next_k, free=free)

    fixed = [busy(lambda stats, k=k: k) for k in range(K + 1)]  # type: ignore[misc]
    ours, other = (busy(new_goodput(ROWS, kind, free)) for kind in (Budget, Goodput))
    assert ours >= least * fixed[0]
    assert ours >= 0.94 * max(fixed)
    assert ours >= 0.96 * other


@pytest.mark.parametrize("closed", [False, True])
def test_answers_whose_first_words_are_all_refused_are_not_given_up(closed: bool) -> None:
    """Eight rows begin together, where a probe costs a third of a step; all but the first proposals are kept."""
    answer: Positions = [(K, 0), (K, 0), *COPIED]
    copied = (1 if closed else 3) * 8 * [answer]
    plain = busy_speed_of("ngram", copied, 8, lambda stats: 0, closed)
    assert busy_speed_of("ngram", copied, 8, new_goodput(8, Budget), closed) >= 1.8 * plain
