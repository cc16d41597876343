"""What a run so far says of the next step: how many tokens K proposals would give, and what they would cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

KEEP = 0.85
"""What an observation weighs against the next one of its kind: the last seven or so count."""

TRUST = 1.0
"""Observations that the depth before is worth, for a depth of which little is known."""

HOPE = 0.8
"""The chance that a first proposal is kept, before anything is known: high, for trying is cheap and waiting is not."""


class Chances:
    """For each depth, the chance of going one deeper: a running share that leans on the depth before it."""

    def __init__(self) -> None:
        self._hits: list[float] = []
        self._tries: list[float] = []

    def seen(self, depth: int, hits: float, tries: float) -> None:
        """``hits`` of ``tries`` went on from depth - 1 to ``depth`` (from 1)."""
        while len(self._hits) < depth:
            self._hits.append(0.0)
            self._tries.append(0.0)
        self._hits[depth - 1] = KEEP * self._hits[depth - 1] + hits
        self._tries[depth - 1] = KEEP * self._tries[depth - 1] + tries

    def faded(self, share: float) -> None:
        """Weigh all that was seen by ``share``: the text has changed."""
        self._hits = [hits * share for hits in self._hits]
        self._tries = [tries * share for tries in self._tries]

    def reached(self, most: int) -> list[float]:
        """The chance of reaching depth 1 … ``most``."""
        chance, here, out = HOPE, 1.0, []
        for depth in range(most):
            if depth < len(self._hits):
                chance = (self._hits[depth] + TRUST * chance) / (self._tries[depth] + TRUST)
            here *= chance
            out.append(here)
        return out


class Times:
    """Seconds by an integer, medians of the last few; between and beyond known ones a straight line."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}

    def seen(self, key: int, seconds: float) -> None:
        """One measurement."""
        self._seen.setdefault(key, deque(maxlen=9)).append(seconds)

    def at(self, key: int) -> float:
        """Seconds for ``key``; 0 while nothing is known."""
        known = sorted(self._seen)
        if key in self._seen:
            return median(self._seen[key])
        below = [k for k in known if k < key]
        above = [k for k in known if k > key]
        if not known:
            return 0.0
        if not below:
            return median(self._seen[above[0]])
        low = below[-1]
        if above:
            high = above[0]
            share = (key - low) / (high - low)
            return (1 - share) * median(self._seen[low]) + share * median(self._seen[high])
        if low == 0 or len(below) == 1:
            return median(self._seen[low]) * (key / low if low else 1.0)
        first = below[0]
        slope = (median(self._seen[low]) - median(self._seen[first])) / (low - first)
        return median(self._seen[low]) + max(0.0, slope) * (key - low)


def best(speeds: Sequence[float]) -> int:
    """The index of the largest; the smallest index among equals."""
    return max(range(len(speeds)), key=lambda k: (speeds[k], -k))
