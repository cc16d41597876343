"""The part of a closed block in which as many requests run as the load has, and the tail in which fewer do."""

from __future__ import annotations

from dataclasses import dataclass

from benchsuite.benches.load.served_queue import PREFILL
from benchsuite.benches.serving.load import ServedBlock


@dataclass(frozen=True)
class BusyPart:
    """What came in a block until a place stays empty (``busy``), and in the rest, the ``tail``.

    ``steps``: emissions of requests, one a request and step. ``read_s``: of the seconds, those in which prompts were
    read and nothing else ran.
    """

    busy_tokens: int
    busy_steps: int
    busy_s: float
    busy_read_s: float
    tail_tokens: int
    tail_steps: int
    tail_s: float
    tail_read_s: float

    @property
    def tokens(self) -> int:
        """All tokens of the block."""
        return self.busy_tokens + self.tail_tokens

    @property
    def full_s(self) -> float | None:
        """What the block would take if no place stayed empty: the reading of its prompts, and all steps of its requests
        at the pace of the busy ones; None where there is none.

        The tokens of the busy part over its seconds would be another speed: most prompts are read in it, and requests
        with fewer tokens a step have more of theirs in the tail.
        """
        if not self.busy_steps:
            return None
        each = (self.busy_s - self.busy_read_s) / self.busy_steps
        return self.busy_read_s + self.tail_read_s + each * (self.busy_steps + self.tail_steps)


def busy_part(block: ServedBlock, at_once: int) -> BusyPart:
    """Return the parts of a closed block of ``at_once`` requests at once.

    A request follows each that ends while there is one. Of m requests the end of number m - at_once + 1, in the order
    of their ends, is therefore the first after which a place stays empty: there the tail begins.
    """
    begun = min(one.sent_s for one in block.sent)
    ends = sorted(one.ended_s for one in block.sent)
    full = ends[max(len(ends) - at_once, 0)]
    answered = [(one.sent_s, one.reply) for one in block.sent if one.reply is not None]
    tokens = [(sent + chunk.seconds, chunk.tokens or 0) for sent, reply in answered for chunk in reply.chunks]
    reads = [(sent, float(reply.body[PREFILL])) for sent, reply in answered]
    busy, later = ([number for at, number in tokens if (at <= full) is early] for early in (True, False))
    read = sum(seconds for sent, seconds in reads if sent < full)
    rest = sum(seconds for _, seconds in reads) - read
    return BusyPart(sum(busy), len(busy), full - begun, read, sum(later), len(later), ends[-1] - full, rest)
