"""Arrivals of a rate are due when they are due, and latencies begin there, however long the event loop was blocked.

Time is made up: a loop that waits moves its clock, and what blocks it moves the clock too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, sqrt
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.benches.serving.figures import EndpointFigures, Slo, endpoint_figures
from benchsuite.benches.serving.load import Sent, ServedBlock, Traffic, send
from benchsuite.tests.made_up_time import MadeUpTime, in_made_up_time
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Chunk, EndpointFailure, Reply

RATE = Traffic(rate=4.0)


class Server:
    """Answers every request after a while of its own, and blocks whoever asks for some of them; some it fails."""

    def __init__(
        self, clock: MadeUpTime, takes: Sequence[float], blocks: Mapping[int, float], fails: Sequence[int] = ()
    ) -> None:
        self.clock, self.takes, self.blocks, self.fails = clock, takes, blocks, fails

    async def complete(self, ask: Ask) -> Reply:
        number, begun = int(str(ask.prompt)), self.clock.now
        await asyncio.sleep(self.takes[number] / 2)
        self.clock.block(self.blocks.get(number, 0.0))
        first = self.clock.now - begun
        await asyncio.sleep(self.takes[number] / 2)
        if number in self.fails:
            raise EndpointFailure("reset", "planted")
        seconds = self.clock.now - begun
        return Reply("ab", (), (Chunk(first, "a", 1), Chunk(seconds, "b", 1)), seconds, 1, 2, "stop", 1, {})


def sent_under(
    load: Traffic,
    takes: Sequence[float],
    blocks: Mapping[int, float] | None = None,
    pauses: Mapping[float, float] | None = None,
    fails: Sequence[int] = (),
    seed: int = 3,
) -> list[Sent]:
    """What becomes of requests, by their numbers. ``blocks``: seconds for which the loop stands while it handles some;
    ``pauses``: the same, by the second at which they begin."""
    clock, sent = MadeUpTime(), list[Sent]()
    server: Any = Server(clock, takes, blocks or {}, fails)

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        for at, seconds in (pauses or {}).items():
            loop.call_at(clock.now + at, clock.block, seconds)
        await send(server, [(number, Ask(str(number), 2)) for number in range(len(takes))], load, seed, sent)

    in_made_up_time(clock, whole())
    return sorted(sent, key=lambda one: one.prompt)


def arrivals(count: int, seed: int = 3) -> list[float]:
    """When requests are due: where nothing blocks and every answer is there at once, they are sent at that time."""
    return [one.sent_s for one in sent_under(RATE, [0.0] * count, seed=seed)]


def figures_of_sent(sent: Sequence[Sent], slo: Slo | None = None) -> EndpointFigures:
    [row] = endpoint_figures([ServedBlock("a", 0, tuple(sent))], ["a"], ["chat"] * len(sent), slo)
    return row


TIMES = st.floats(0.0, 3.0)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(TIMES, min_size=1, max_size=12),
    st.dictionaries(st.integers(0, 11), TIMES, max_size=4),
    st.dictionaries(st.floats(0.0, 4.0), TIMES, max_size=4),
    st.sets(st.integers(0, 11), max_size=3),
    st.integers(0, 9),
)
def test_an_arrival_is_due_when_it_was_however_slow_the_server_and_however_long_the_loop_is_blocked(
    takes: list[float], blocks: dict[int, float], pauses: dict[float, float], fails: set[int], seed: int
) -> None:
    due = arrivals(len(takes), seed)
    found = sent_under(RATE, takes, blocks, pauses, sorted(fails), seed)
    assert [one.prompt for one in found] == list(range(len(takes)))
    assert [one.sent_s - one.late_s for one in found] == pytest.approx(due, abs=1e-6)
    assert all(one.late_s >= 0 for one in found)
    if not blocks and not pauses:
        assert all(one.late_s < 1e-6 for one in found), "a slow server holds nobody up"


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0.01, 2.0), TIMES), min_size=1, max_size=5), st.integers(0, 9))
def test_a_request_that_is_due_while_the_loop_stands_is_sent_as_soon_as_it_goes_on(
    between: list[tuple[float, float]], seed: int
) -> None:
    """The loop stands from some moments on, each a while after it went on: who is due then is late by what is left."""
    pauses, now = dict[float, float](), 0.0
    for running, standing in between:
        pauses[now + running] = standing
        now += running + standing
    due = arrivals(12, seed)
    expected = [max(at, *(a + long for a, long in pauses.items() if a <= at), 0.0) for at in due]
    found = sent_under(RATE, [0.1] * 12, pauses=pauses, seed=seed)
    assert [one.sent_s for one in found] == pytest.approx(expected, abs=1e-6)


def test_latencies_and_limits_are_counted_from_when_a_request_was_due() -> None:
    """The loop stands for eight seconds as the first answer comes: its own is late, and so are those of all who were
    due meanwhile, whom it sent after it. A server that answers in half a second keeps a limit of one for the others."""
    takes = [0.5] * 40
    due, found = arrivals(40), sent_under(RATE, takes, blocks={0: 8.0})
    waited = [one.ended_s - at for one, at in zip(found, due, strict=True)]
    held = sum(seconds > 1.0 for seconds in waited)
    assert held > 20, "most of the requests were due meanwhile"
    assert held == sum(at < 8.25 - 0.5 for at in due)
    row = figures_of_sent(found, Slo(e2e=1.0))
    assert row.e2e_ms[0] == pytest.approx(1e3 * median(waited))
    assert row.e2e_ms[1] == pytest.approx(1e3 * sorted(waited)[35])
    assert row.ttft_ms[0] == pytest.approx(1e3 * (median(waited) - 0.25))
    assert row.goodput is not None
    assert row.goodput[1] == (40 - held) / 40
    first = figures_of_sent(found, Slo(ttft=0.75)).goodput
    assert first == row.goodput, "the first piece comes a quarter of a second before the end"
    assert row.tpot_ms[0] == pytest.approx(250), "what is between two pieces is no waiting for the first"


def test_an_answer_that_comes_at_once_to_a_request_that_was_sent_late_has_taken_as_long() -> None:
    """Two seconds in which nothing is sent, of a server that takes no time: who was due then has waited."""
    due, found = arrivals(20), sent_under(RATE, [0.0] * 20, pauses={0.0: 2.0})
    waited = [max(0.0, 2.0 - at) for at in due]
    row = figures_of_sent(found, Slo(ttft=0.5))
    assert row.ttft_ms[0] == row.e2e_ms[0] == pytest.approx(1e3 * median(waited))
    assert row.goodput is not None
    assert row.goodput[1] == sum(seconds <= 0.5 for seconds in waited) / 20 < 1


@pytest.mark.parametrize("count", [1, 3])
def test_under_a_concurrency_a_request_is_due_when_another_has_ended(count: int) -> None:
    """Whatever stood in between: there is nothing that it should have been sent at."""
    found = sent_under(Traffic(concurrency=count), [0.5] * 9, blocks={0: 8.0}, pauses={0.3: 4.0})
    assert [one.late_s for one in found] == [0.0] * 9
    assert figures_of_sent(found).e2e_ms[0] == pytest.approx(500)


@pytest.mark.parametrize("load", [RATE, Traffic(concurrency=2)], ids=lambda load: load.id)
def test_a_request_ends_when_its_answer_or_its_failure_is_there(load: Traffic) -> None:
    """Seconds since the block began, of a server that takes half a second to a second and a half."""
    takes = [0.5, 1.0, 1.5, 0.5, 1.0, 1.5]
    found = sent_under(load, takes, fails=[1, 4])
    assert [one.ended_s - one.sent_s for one in found] == pytest.approx(takes)
    assert [one.failure for one in found] == [None, "reset", None, None, "reset", None]
    assert [one.reply is None for one in found] == [False, True, False, False, True, False]
    assert ["planted" in one.said for one in found] == [False, True, False, False, True, False]
    assert min(one.sent_s for one in found) == 0


def test_under_a_concurrency_the_next_request_is_sent_when_one_ends() -> None:
    found = sent_under(Traffic(concurrency=2), [1.0, 3.0, 1.0, 1.0])
    assert [one.sent_s for one in found] == pytest.approx([0, 0, 1, 2])
    assert [one.late_s for one in found] == [0] * 4


@pytest.mark.slow
def test_gaps_between_arrivals_are_exponential_and_independent() -> None:
    """4,000 of them: Kolmogorov's distance, of which 2.7 / sqrt(n) is reached once in a million times, and the
    correlation of neighbours within five standard errors."""
    due = arrivals(4001)
    gaps = [b - a for a, b in pairwise(due)]
    shares = sorted(1 - exp(-4.0 * gap) for gap in gaps)
    distance = max(max(share - n / 4000, (n + 1) / 4000 - share) for n, share in enumerate(shares))
    assert distance < 2.7 / sqrt(4000)
    middle = [gap - 0.25 for gap in gaps]
    together = sum(a * b for a, b in pairwise(middle)) / sum(a * a for a in middle)
    assert abs(together) < 5 / sqrt(4000)
    assert due[0] == 0
    assert arrivals(9) == due[:9] != arrivals(9, seed=4)
