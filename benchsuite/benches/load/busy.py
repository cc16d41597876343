"""The part of a closed block in which as many requests run as the load has, and the tail in which fewer do."""

from __future__ import annotations

from dataclasses import dataclass

from benchsuite.benches.serving.load import ServedBlock


@dataclass(frozen=True)
class BusyPart:
    """Tokens and seconds of a block until a place stays empty (``busy``), and of the rest, the ``tail``."""

    busy_tokens: int
    busy_s: float
    tail_tokens: int
    tail_s: float


def busy_part(block: ServedBlock, at_once: int) -> BusyPart:
    """Return the parts of a closed block of ``at_once`` requests at once.

    A request follows each that ends while there is one. Of m requests the end of number m - at_once + 1, in the order
    of their ends, is therefore the first after which a place stays empty: there the tail begins.
    """
    begun = min(one.sent_s for one in block.sent)
    ends = sorted(one.ended_s for one in block.sent)
    full = ends[max(len(ends) - at_once, 0)]
    tokens = [
        (one.sent_s + chunk.seconds, chunk.tokens or 0)
        for one in block.sent
        if one.reply is not None
        for chunk in one.reply.chunks
    ]
    busy = sum(number for at, number in tokens if at <= full)
    return BusyPart(busy, full - begun, sum(number for _, number in tokens) - busy, ends[-1] - full)
