"""Made-up servers with a cache of prompts, honest and with planted faults: a token is a word, reading takes time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchsuite.tests.made_up_servers import MadeUpServer
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Chunk, EndpointFailure, Reply

HEAD = ("<system>", "You", "answer.")
"""Words that a chat template has before all messages."""

READ_S, WRITE_S = 1e-4, 2e-5
"""Seconds per word of a prompt that is read, and per word of an answer."""


class PrefixServer(MadeUpServer):
    """Knows the prompts and answers that it has met: what a new prompt begins with is not read again.

    An answer has the conversation's number of messages in it, as many words as asked for, and comes word by word.
    """

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.known: list[tuple[str, ...]] = []

    def words(self, ask: Ask) -> tuple[str, ...]:
        """The words of a prompt in the template."""
        said = [word for one in ask.messages for word in (f"<{one['role']}>", *one["content"].split())]
        return (*HEAD, *said, "<assistant>")

    def cached(self, words: Sequence[str]) -> int:
        """How many words are not read again: of those that a known text begins with, all but the last."""
        shared = [
            next((n for n, pair in enumerate(zip(words, one, strict=False)) if len(set(pair)) > 1), len(one))
            for one in self.known
        ]
        return min(max(shared, default=0), len(words) - 1)

    def said(self, cached: int, words: Sequence[str]) -> dict[str, Any]:
        """What the answer says of the cache."""
        return {"cached_tokens": cached}

    def _reply(self, ask: Ask) -> Reply:
        words = self.words(ask)
        cached = self.cached(words)
        told: dict[str, Any] = {"body": {}, **self.said(cached, words)}
        answer = [f"a{len(ask.messages)}w{n}" for n in range(ask.max_tokens)]
        self.known.append((*words, *answer))
        first = READ_S * (len(words) - cached)
        chunks = tuple(Chunk(first + WRITE_S * n, f"{word} ", 1) for n, word in enumerate(answer))
        return Reply(" ".join(answer), (), chunks, chunks[-1].seconds, len(words), len(answer), "length", 1, **told)


class KeepsNothing(PrefixServer):
    """Reads every prompt anew, and says so."""

    def cached(self, words: Sequence[str]) -> int:
        """None."""
        return 0


class SaysNoCache(PrefixServer):
    """Has a cache, and says nothing of it."""

    def said(self, cached: int, words: Sequence[str]) -> dict[str, Any]:
        """Nothing."""
        return {}


class DeniesItsCache(PrefixServer):
    """Has a cache, and says that it had nothing in it."""

    def said(self, cached: int, words: Sequence[str]) -> dict[str, Any]:
        """Nothing cached."""
        return {"cached_tokens": 0}


class BoastsOfACache(KeepsNothing):
    """Reads every prompt anew, and says what a cache would have had."""

    def said(self, cached: int, words: Sequence[str]) -> dict[str, Any]:
        """What a cache would have had."""
        return {"cached_tokens": PrefixServer.cached(self, words)}


class CachesAnyPart(PrefixServer):
    """Reads no word that it has met in its place of another prompt, whatever is before it: cold prompts are warm."""

    def cached(self, words: Sequence[str]) -> int:
        """How many words some known text has in their places."""
        return min(len(words) - 1, max((sum(map(str.__eq__, words, one)) for one in self.known), default=0))


class CountsTooMany(PrefixServer):
    """Says that more was cached than the prompt has."""

    def said(self, cached: int, words: Sequence[str]) -> dict[str, Any]:
        """One more than the prompt's words."""
        return {"cached_tokens": len(words) + 1}


class NamesTwoNumbers(PrefixServer):
    """Names one number in ``usage`` and another one in llama.cpp's timings."""

    def said(self, cached: int, words: Sequence[str]) -> dict[str, Any]:
        """Two numbers."""
        return {
            "cached_tokens": cached,
            "body": {"timings": {"cache_n": cached + 1, "prompt_n": len(words) - cached - 1}},
        }


class FailsAtTheSecondTurn(PrefixServer):
    """Fails at every prompt that has an answer in it."""

    def _reply(self, ask: Ask) -> Reply:
        if len(ask.messages) > 1:
            raise EndpointFailure("server_error", "out of memory")
        return super()._reply(ask)
