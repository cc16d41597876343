"""Predictions from a run so far: how many tokens K proposals would give, and how many seconds they would take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

KEEP = 0.85
"""Factor by which a new observation reduces the weight of the older ones: about the last seven count."""

TRUST = 1.0
"""Weight of the prior at each depth, in observations; the prior is the chance at the depth before."""

HOPE = 0.8
"""Prior chance that the first proposal is accepted: high, because an attempt costs little and gives data."""


class Chances:
    """For each depth, the chance of reaching it from the depth before: a running share with the prior ``TRUST``."""

    def __init__(self) -> None:
        self._hits: list[float] = []
        self._tries: list[float] = []

    def seen(self, depth: int, hits: float, tries: float) -> None:
        """Add an observation: ``hits`` of ``tries`` went from depth - 1 to ``depth``, which counts from 1."""
        while len(self._hits) < depth:
            self._hits.append(0.0)
            self._tries.append(0.0)
        self._hits[depth - 1] = KEEP * self._hits[depth - 1] + hits
        self._tries[depth - 1] = KEEP * self._tries[depth - 1] + tries

    def faded(self, share: float) -> None:
        """Multiply the weight of all observations by ``share``, because the text has changed."""
        self._hits = [hits * share for hits in self._hits]
        self._tries = [tries * share for tries in self._tries]

    def reached(self, most: int) -> list[float]:
        """The chances of reaching depths 1 … ``most``."""
        chance, here, out = HOPE, 1.0, []
        for depth in range(most):
            if depth < len(self._hits):
                chance = (self._hits[depth] + TRUST * chance) / (self._tries[depth] + TRUST)
            here *= chance
            out.append(here)
        return out


class Times:
    """Seconds by integer key: the median of the last nine measurements; linear between and above measured keys."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}

    def seen(self, key: int, seconds: float) -> None:
        """Add one measurement."""
        self._seen.setdefault(key, deque(maxlen=9)).append(seconds)

    def at(self, key: int) -> float:
        """Seconds for ``key``; 0 before the first measurement."""
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
    """The index of the largest value; among equal values the smallest index."""
    return max(range(len(speeds)), key=lambda k: (speeds[k], -k))
