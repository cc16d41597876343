"""Servers that look faster than they are, each by a way of its own: attacks on the figures of ``pytest -m serving``.

All answer a prompt with the same words at the same pace as ``PlainServer`` unless their attack says otherwise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx

from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Chunk, Reply

FIRST_S = 0.2
"""Seconds to the first token."""

EACH_S = 0.05
"""Seconds of every further one."""


class PlainServer:
    """Sends a word of four signs for each token, ``EACH_S`` seconds after the one before, and counts them."""

    pace = 1.0
    """How many times as fast it is."""

    def __call__(self, ask: Ask) -> Reply:
        """The answer to a request."""
        return self.sent([(word, 1) for word in self.words(ask)])

    def words(self, ask: Ask) -> list[str]:
        """The tokens of an answer, which depend on the prompt and never come twice in one."""
        found = random.Random(str(ask.prompt)).sample(range(100, 1000), ask.max_tokens)
        return [f"{number} " for number in found]

    def sent(self, pieces: Sequence[tuple[str, int]], **other: Any) -> Reply:
        """An answer in pieces of so many tokens, each sent when the last of its tokens is there."""
        done, chunks = 0, list[Chunk]()
        for text, tokens in pieces:
            done += tokens
            chunks.append(Chunk((FIRST_S + EACH_S * (done - 1)) / self.pace, text, tokens))
        text = "".join(piece for piece, _ in pieces)
        return replace(Reply(text, (), tuple(chunks), chunks[-1].seconds, 3, done, "length", 1, {}), **other)


class SuffixMemory(PlainServer):
    """Answers what it has answered before eight times as fast, as a cache of suffixes does."""

    def __init__(self) -> None:
        self.known = set[str]()

    def __call__(self, ask: Ask) -> Reply:
        """At its own pace, or eight times that."""
        self.pace = 8.0 if ask.prompt in self.known else 1.0
        if ask.max_tokens > 1:
            self.known.add(str(ask.prompt))
        return super().__call__(ask)


class HalfHeldBack(PlainServer):
    """Holds half of an answer back, sends it as its first piece and calls it one token."""

    def __call__(self, ask: Ask) -> Reply:
        """A single token is sent as it is."""
        words = self.words(ask)
        half = len(words) // 2
        if not half:
            return super().__call__(ask)
        found = self.sent([("".join(words[:half]), half), *((word, 1) for word in words[half:])])
        return replace(found, chunks=(replace(found.chunks[0], tokens=1), *found.chunks[1:]))


class HeldBackUntilTheEnd(PlainServer):
    """Sends its first token when the last one is there, and all others just behind it, as a proxy that gathers does."""

    def __call__(self, ask: Ask) -> Reply:
        """Two pieces, so to speak."""
        words, end = self.words(ask), FIRST_S + EACH_S * (ask.max_tokens - 1)
        chunks = (Chunk(end, words[0], 1), *(Chunk(end + 0.001, word, 1) for word in words[1:]))
        return replace(super().__call__(ask), chunks=chunks, seconds=chunks[-1].seconds)


class AllAtOnce(PlainServer):
    """Sends every token as a piece, and all of them when the last one is there."""

    def __call__(self, ask: Ask) -> Reply:
        """The same pieces, later."""
        found = super().__call__(ask)
        return replace(found, chunks=tuple(replace(chunk, seconds=found.seconds) for chunk in found.chunks))


class CountsTwiceInStreams(PlainServer):
    """Says twice as many tokens as it sends, where nobody asks for their log-probabilities."""

    share = 2.0

    def __call__(self, ask: Ask) -> Reply:
        """The same with more tokens."""
        found = super().__call__(ask)
        counted = round(ask.max_tokens * self.share)
        return replace(found, completion_tokens=counted) if ask.stream and ask.logprobs is None else found


class CountsAFifthMore(CountsTwiceInStreams):
    """Says a fifth more tokens than it sends, of texts that no other server sends."""

    share = 1.2

    def words(self, ask: Ask) -> list[str]:
        """Those of another prompt."""
        return super().words(replace(ask, prompt=f"{ask.prompt} otherwise"))


class RepeatsAPiece(PlainServer):
    """Says one word again and again, which any lookup guesses: eight times as fast."""

    pace = 8.0

    def words(self, ask: Ask) -> list[str]:
        """One word."""
        return super().words(replace(ask, max_tokens=1)) * ask.max_tokens


class SaysNothing(PlainServer):
    """Answers at once, with blanks."""

    pace = 100.0

    def words(self, ask: Ask) -> list[str]:
        """Blanks."""
        return ["    "] * ask.max_tokens


class EndsEarly(PlainServer):
    """Stops after half of an answer, whose first half is the one that it is fast at: twice as fast."""

    pace = 2.0

    def words(self, ask: Ask) -> list[str]:
        """Half of them."""
        return super().words(ask)[: -(-ask.max_tokens // 2)]


class StreamsNothing(PlainServer):
    """Sends every answer in one piece, so that nobody knows how it was decoded."""

    def __call__(self, ask: Ask) -> Reply:
        """One piece, at the end."""
        found = super().__call__(ask)
        return replace(found, chunks=(Chunk(found.seconds, found.text, found.completion_tokens),))


class StaysOpen(httpx.AsyncByteStream):
    """Sends a stream of ``pieces`` a second apart, and closes it ``held_s`` seconds behind the last one."""

    def __init__(self, pieces: Sequence[bytes], held_s: float) -> None:
        self.pieces, self.held_s = pieces, held_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces, when it is their time."""
        for piece in self.pieces:
            await asyncio.sleep(1.0)
            yield piece
        await asyncio.sleep(self.held_s)
