"""Whether a server answers what it has answered before from a cache: nothing of its speed is then that of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchsuite.benches.serving.asked import ServedAnswers
from benchsuite.benches.serving.timed_texts import AskedFor

KEPT = 10.0
"""How many times as fast known prompts are answered by a server that keeps answers. A draft that has learnt an answer
has its whole window accepted, and the window costs more than a token: it stays below."""


@dataclass(frozen=True)
class KeptAnswers:
    """How many times as fast known prompts are answered as new ones: by the ``server``, and by ``plain``, which may
    have known prompts in its cache of prompts."""

    server: float = 1.0
    plain: float = 1.0

    @property
    def found(self) -> bool:
        """Whether the server keeps its answers."""
        return self.server >= KEPT * max(self.plain, 1.0)

    @property
    def text(self) -> str:
        """The numbers."""
        return (
            f"it answers known prompts {self.server:.0f} times as fast as new ones, and plain does {self.plain:.1f} "
            "times: it keeps its answers"
        )


def known_over_new(answers: ServedAnswers, asked_for: AskedFor) -> float:
    """Return how many times as fast a prompt is answered if the server knows it, per token; the median over prompts.

    1 where no prompt was answered in both ways.
    """
    pairs = zip(answers.replies[: asked_for.known], answers.replies[asked_for.known :], strict=False)
    ratios = [
        (new.seconds / new.counted) / (known.seconds / known.counted)
        for known, new in pairs
        if known and new and known.counted and new.counted and known.seconds > 0
    ]
    return median(ratios) if ratios else 1.0
