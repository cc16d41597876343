"""Whether tokens change places as rounding makes them: the further apart two are, the seldomer.

A server that takes the second likeliest token on purpose, where it is near, does so however far apart the two are. How
far rounding moves two tokens against each other is seen in the plain server, which reads or writes one text twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import log, log1p

from benchsuite.judge.logprob_ties import parting, unclear
from benchsuite.judge.ville import ville_p
from specdec_plugins.endpoints.replies import Token

UNLIKE_ROUNDING = 1e-6
"""How often honest ties fail the test."""

RELAXED = (0.02, 0.05, 0.1, 0.2, 0.45)
"""Shares of near places at which a server takes the less likely token on purpose; their likelihoods are averaged."""

Near = tuple[float, bool]
"""How far apart two tokens are at a place, in nats, and whether they changed places there."""


def gap_changes(pairs: Sequence[tuple[Sequence[Token], Sequence[Token]]]) -> list[float]:
    """Return by how much the two likeliest tokens of a place are nearer or further apart in a second list, sorted.

    ``pairs``: for each prompt, the tokens of one text in two runs of the plain server; compared up to the first
    different one. In nats.

    Example: lists of ``a`` -0.1, ``b`` -0.5 and of ``a`` -0.2, ``b`` -0.4 give 0.2
    """
    found = []
    for one, other in pairs:
        for place in range(min(parting(one, other) + 1, len(one), len(other))):
            top, theirs = one[place].top[:2], dict(other[place].top)
            clear = len(top) == 2 and all(text in theirs and not unclear(other[place].top, text) for text, _ in top)
            if clear and not unclear(one[place].top, top[0][0]) and not unclear(one[place].top, top[1][0]):
                (first, mine), (second, less) = top
                found.append(abs((mine - less) - (theirs[first] - theirs[second])))
    return sorted(found)


def ties_p(near: Sequence[Near], changes: Sequence[float]) -> float:
    """Return the p-value, at most, of ties that rounding makes; 1.0 without any.

    ``near``: every place whose two tokens may change places. ``changes``: see ``gap_changes``. At a place the two
    change with at most the probability that a new one of the changes is as large as their gap, and never more than half
    of the time. The p-value is one over the mean of likelihood ratios, each of which has at most the expectation 1
    (Ville's inequality, as in ``transforms``).

    Example: ``ties_p([(0.3, True)] * 4 + [(0.3, False)] * 6, [0.001] * 1000)`` is below 1e-6
    """
    ratios = [0.0] * len(RELAXED)
    for gap, changed in near:
        as_large = len(changes) - bisect_left(changes, gap)
        most = min(0.5, (1 + as_large) / (1 + len(changes)))
        for n, share in enumerate(RELAXED):
            if share > most:
                ratios[n] += log(share / most) if changed else log1p(-share) - log1p(-most)
    return ville_p(ratios)
