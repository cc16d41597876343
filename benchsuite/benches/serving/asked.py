"""Answers of one endpoint, asked for without timing, and who reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token

LIST = 5
"""Likeliest tokens asked for at each place: the most that the OpenAI API gives of completions."""

WIDE = 20
"""Those of a text that was sampled, from a server that gives as many: the most that the OpenAI API gives of a chat."""


@dataclass(frozen=True)
class ServedAnswers:
    """The answers of one endpoint, by the place of their prompts; None where one failed. ``failures`` by kind."""

    replies: tuple[Reply | None, ...]
    failures: tuple[str, ...] = ()


Read = Callable[[Ask, Reply], tuple[Token, ...] | None]
"""Reads an output: its tokens with the likeliest ones at their places, or None where that cannot be told."""

Connect = Callable[[Endpoint], Client]
"""Makes a client of an endpoint; what is started only when it is asked is started then."""


def ask_all(connect: Connect, endpoint: Endpoint, asks: Sequence[Ask], at_once: int = 1) -> ServedAnswers:
    """Ask for every answer, so many at once; nothing is timed."""
    return asyncio.run(_asked_all(connect(endpoint), asks, at_once))


async def _asked_all(opened: Client, asks: Sequence[Ask], at_once: int) -> ServedAnswers:
    gate, failed = asyncio.Semaphore(at_once), list[str]()
    async with opened as client:

        async def one(ask: Ask) -> Reply | None:
            async with gate:
                try:
                    reply = await client.complete(ask)
                    return replace(reply, tokens=tuple(_cut(token, ask.logprobs or 0) for token in reply.tokens))
                except EndpointFailure as failure:
                    failed.append(failure.kind)
                    return None

        return ServedAnswers(tuple(await asyncio.gather(*map(one, asks))), tuple(failed))


def _cut(token: Token, listed: int) -> Token:
    """The token with as many of the likeliest as were asked for: some servers add one that was drawn."""
    return replace(token, top=token.top[:listed])
