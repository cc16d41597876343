"""Load: requests sent to one endpoint, so many at once or so many a second, and what came of each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from benchsuite.benches.serving.self_reported import GroupCounts
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.replies import EndpointFailure, Reply


@dataclass(frozen=True)
class Traffic:
    """How requests are sent: ``concurrency`` at once, each as soon as one has ended; or ``rate`` a second.

    With a rate the gaps are exponential (Poisson arrivals), whatever the server does: a slow one gathers requests.
    Exactly one of the two is given.
    """

    concurrency: int | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        """In words: ``4 at once``, ``2 a second``."""
        return f"{self.concurrency} at once" if self.concurrency else f"{self.rate:g} a second"

    @property
    def id(self) -> str:
        """In a test's name: ``c4``, ``r2``."""
        return f"c{self.concurrency}" if self.concurrency else f"r{self.rate:g}"


def loads_of(concurrency: Sequence[int], rates: Sequence[float]) -> list[Traffic]:
    """Return the loads of ``--specdec-concurrency`` and ``--specdec-rate``, each once. SpecdecError if both are empty.

    Example: ``loads_of([1, 4], [2.0])`` has three loads.
    """
    found = [*(Traffic(concurrency=count) for count in concurrency), *(Traffic(rate=rate) for rate in rates)]
    if not found:
        raise SpecdecError("neither --specdec-concurrency nor --specdec-rate is given; expected one, as in 1,4")
    return list(dict.fromkeys(found))


def due_times(count: int, rate: float, seed: int) -> list[float]:
    """Return the seconds at which so many requests are due, ``rate`` a second: the first at 0, with exponential gaps.

    Example: ``due_times(3, 2.0, seed=0)`` are the same three times whoever is asked.
    """
    dice = random.Random(seed)
    return list(accumulate((dice.expovariate(rate) for _ in range(count - 1)), initial=0.0))[:count]


@dataclass(frozen=True)
class Sent:
    """One request of a block: the place of its prompt, seconds since the block began, and its reply or its failure.

    ``late_s``: how much later it was sent than the arrivals of a rate asked for.
    """

    prompt: int
    sent_s: float
    ended_s: float
    reply: Reply | None
    failure: str | None = None
    said: str = ""
    late_s: float = 0.0


@dataclass(frozen=True)
class ServedBlock:
    """One endpoint's answers to the prompts of one group in one round, under one load.

    ``counts``: what its page counted meanwhile, where that is read: of each prompt, if they were sent one at a time.
    """

    endpoint: str
    round: int
    sent: tuple[Sent, ...]
    group: int = 0
    counts: tuple[GroupCounts, ...] = ()

    @property
    def seconds(self) -> float:
        """From the first request to the last answer."""
        if not self.sent:
            return 0.0
        return max(one.ended_s for one in self.sent) - min(one.sent_s for one in self.sent)


async def send_one(client: Client, ask: Ask, prompt: int, due: float, start: float) -> Sent:
    """Send one request, of the prompt at this place, and return what came of it. ``due``: seconds since ``start``, a
    time of ``time.perf_counter``; infinity: it cannot be late."""
    begun = time.perf_counter() - start
    late = max(0.0, begun - due)
    try:
        reply = await client.complete(ask)
    except EndpointFailure as failure:
        return Sent(prompt, begun, time.perf_counter() - start, None, failure.kind, str(failure), late)
    # What a server does behind its answer is no part of it; earlier attempts are.
    ended = begun + reply.seconds if reply.attempts == 1 else time.perf_counter() - start
    return Sent(prompt, begun, ended, reply, late_s=late)


async def send(
    client: Client,
    asks: Sequence[tuple[int, Ask]],
    load: Traffic,
    seed: int,
    sent: list[Sent],
    behind: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send ``asks`` (each with the place of its prompt) under a load, and append what comes of each to ``sent``.

    In place: ``sent``, in the order of their ends, so that an interrupt leaves what has ended. ``behind``: awaited
    behind each request of a load of so many at once, before the next one.
    """
    start = time.perf_counter()

    async def one(prompt: int, ask: Ask, due: float) -> None:
        sent.append(await send_one(client, ask, prompt, due, start))

    if load.concurrency:
        waiting = iter(asks)

        async def worker() -> None:
            for prompt, ask in waiting:
                await one(prompt, ask, due=inf)  # never late: it is due when another has ended
                if behind:
                    await behind()

        await asyncio.gather(*(worker() for _ in range(min(load.concurrency, len(asks)))))
        return
    assert load.rate
    tasks = []
    for (prompt, ask), due in zip(asks, due_times(len(asks), load.rate, seed), strict=True):
        await asyncio.sleep(max(0.0, due - (time.perf_counter() - start)))
        tasks.append(asyncio.create_task(one(prompt, ask, due)))
    await asyncio.gather(*tasks)
