"""Times of one answer, and whether it is an answer at all."""

from __future__ import annotations

from itertools import pairwise

from benchsuite.measure.guards import SHORTEST_LOOP, repeats_a_piece
from specdec_plugins.endpoints.replies import Reply


def empty(reply: Reply) -> bool:
    """Whether an answer has no text but blanks: a raw prompt to a model of chats may get such a one."""
    return not reply.text.strip()


def looping(reply: Reply) -> bool:
    """Whether an answer repeats one piece to its end, which any lookup guesses.

    Its text is looked at, since the tokens of a timed answer are not named; how many they are decides whether it is
    long enough, and four characters stand for one where that is not known.
    """
    tokens = len(reply.text) // 4 if reply.counted is None else reply.counted
    return tokens - tokens // 2 >= SHORTEST_LOOP and repeats_a_piece(reply.text)


def ttft_of(reply: Reply) -> float | None:
    """Seconds to the first piece of text; None for an empty answer."""
    return reply.chunks[0].seconds if reply.chunks else None


def tpot_of(reply: Reply, counted: int | None = None) -> float | None:
    """Seconds per token after the first piece; None where all came at once, or the number of tokens is not known.

    The tokens of the first piece are left out: nothing was waited for between them. ``counted``: tokens of the answer,
    where its own count is not believed.
    """
    tokens = reply.counted if counted is None else counted
    seconds = reply.chunks[-1].seconds - reply.chunks[0].seconds if reply.chunks else 0.0
    if not seconds or tokens is None:
        return None
    later = tokens - tokens_at_first(reply, tokens)
    return seconds / later if later > 0 else None


def tokens_at_first(reply: Reply, counted: int) -> float:
    """The tokens of the first piece of an answer of so many: its share of the text, but one at least, and no fewer than
    the server says, which may call half of its answer one token."""
    first = reply.chunks[0]
    return max(1.0, first.tokens or 0, counted * len(first.text) / max(len(reply.text), 1))


def gaps_of(reply: Reply) -> list[float]:
    """Seconds between one piece and the next: the latencies between tokens, per piece."""
    return [b.seconds - a.seconds for a, b in pairwise(reply.chunks)]


def token_gaps_of(reply: Reply) -> list[float]:
    """The same per token: a piece of n tokens is n gaps of a share each; empty unless every piece says its tokens."""
    if any(chunk.tokens is None for chunk in reply.chunks):
        return []
    found = []
    for before, chunk in pairwise(reply.chunks):
        if chunk.tokens:
            found += [(chunk.seconds - before.seconds) / chunk.tokens] * chunk.tokens
    return found
