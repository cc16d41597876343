"""What a head accepts on texts: hits place by place, accepted lengths, and rates with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

CONTEXT = 4
"""Tokens by which a place is known: a place after the same tokens as an earlier one says nothing new."""


@dataclass(frozen=True)
class Hits:
    """Which proposals of a head are a text's tokens, for each place of the answer to one prompt.

    ``right`` bool [N, K]: whether proposal k from place n is the token of place n + k; False past the text's end.
    ``counted`` bool [N]: the places that count, from each of which K tokens follow.
    """

    right: Bools
    counted: Bools

    @property
    def lengths(self) -> Floats:
        """Accepted proposals from each place that counts: those before the first wrong one."""
        before_wrong = np.cumprod(self.right[self.counted], axis=1)
        return np.asarray(before_wrong.sum(axis=1), dtype=np.float64)

    def by_chance(self, tokens: npt.NDArray[np.int64], proposals: npt.NDArray[np.int64]) -> Hits:
        """The same proposals held against half the text further on: what a head accepts that knows tokens only.

        ``tokens`` int64 [N, K]: those that follow each place; ``proposals`` int64 [N, K].
        """
        right, places = np.zeros_like(self.right), np.flatnonzero(self.counted)
        if len(places):
            right[places] = proposals[places] == np.roll(tokens[places], len(places) // 2, axis=0)
        return Hits(right, self.counted)


def new_places(texts: Sequence[Sequence[int]], firsts: Sequence[int], most: int) -> list[Bools]:
    """Which places of each text's answer, from its index in ``firsts`` on, count.

    A place counts if ``most`` tokens follow and no earlier place, of any text, has the same ``CONTEXT`` tokens before
    it: an answer that repeats itself, or another one, would count one observation many times.

    Example: ``new_places([[1, 2, 3, 4, 5, 6]], [4], 1)``
    """
    seen, found = set[tuple[int, ...]](), list[Bools]()
    for text, first in zip(texts, firsts, strict=True):
        counted = np.zeros(len(text) - first, dtype=np.bool_)
        for place in range(first, len(text) - most + 1):
            before = tuple(text[max(0, place - CONTEXT) : place])
            counted[place - first] = before not in seen
            seen.add(before)
        found.append(counted)
    return found


@dataclass(frozen=True)
class Rate:
    """A share of tries with its standard error over prompts; ``tried`` is how many there were."""

    share: float
    error: float
    tried: int


def clustered_rate(kept: Sequence[float], tried: Sequence[float]) -> Rate:
    """The share of all tries that were kept, from both numbers of each prompt; its error is a ratio's over clusters.

    Example: ``clustered_rate([3, 5], [6, 10]).share`` is 0.5, with the error 0.
    """
    got, of = np.asarray(kept, dtype=np.float64), np.asarray(tried, dtype=np.float64)
    if not of.sum():
        return Rate(0.0, 0.0, 0)
    share, prompts = got.sum() / of.sum(), int((of > 0).sum())
    left = ((got - share * of) ** 2).sum()
    error = sqrt(left * prompts / (prompts - 1)) / of.sum() if prompts > 1 else float("inf")
    return Rate(float(share), float(error), int(of.sum()))


def by_position(texts: Sequence[Hits], position: int) -> tuple[Rate, Rate]:
    """Of the proposals at ``position`` (from 0) whose predecessors are all right, the share that is right.

    First as they were proposed, after the head's own states; second the first proposals for the same tokens, after the
    target's states. At position 0 both are the same.
    """
    pairs = [_pairs(text, position) for text in texts]
    tried = [len(own) for own, _ in pairs]
    own, fed = ([float(pair[which].sum()) for pair in pairs] for which in (0, 1))
    return clustered_rate(own, tried), clustered_rate(fed, tried)


def _pairs(text: Hits, position: int) -> tuple[Bools, Bools]:
    """bool: at the places of which all proposals before ``position`` are right, proposal ``position``, and the first
    proposal from where it stands."""
    places = np.flatnonzero(text.counted & text.right[:, :position].all(axis=1))
    return text.right[places, position], text.right[places + position, 0]


def scores_of_gain(one: Sequence[Hits], other: Sequence[Hits]) -> Floats:
    """For each prompt what ``one`` accepts more than ``other``, over all by which both differ: from -1 to 1."""
    return np.array([_score(mine.lengths - yours.lengths) for mine, yours in zip(one, other, strict=True)])


def scores_of_collapse(texts: Sequence[Hits]) -> Floats:
    """For each prompt from -1 to 1: above 0 where own states accept less than half of what the target's would."""
    found = list[float]()
    for text in texts:
        parts = [_pairs(text, position) for position in range(1, text.right.shape[1])]
        found.append(_score(np.concatenate([fed / 2 - own for own, fed in parts] or [np.zeros(0)])))
    return np.array(found)


def _score(differences: Floats) -> float:
    total = float(np.abs(differences).sum())
    return float(differences.sum()) / total if total else 0.0
