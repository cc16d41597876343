"""Whether a mean over prompts is above zero: a bet on each prompt, which holds for any number of them."""

from __future__ import annotations

from math import ceil, inf, log, sqrt

import numpy as np

from benchsuite.doctor.hits import Floats

STAKES = np.array([0.3, 0.6, 0.95])
"""Shares of the wealth that are bet on each prompt; the wealths are averaged."""

ERROR = 0.01
"""The chance that any reading is said to accept more than the right one, whenever one stops."""

NO_MATTER = 0.05
"""Accepted proposals at a place that a reading may gain and still be called no better."""

SURE = 3.1
"""Standard errors of the upper end of an interval, one-sided with 99.5 %: of t with 11 degrees of freedom."""

FEWEST = 12
"""Prompts below which no interval is believed."""


def wealth(scores: Floats) -> Floats:
    """The logarithm of the wealth after each prompt of one who bets that the mean of ``scores`` is above 0.

    Each score is from -1 to 1, that of one prompt. If its expectation given the earlier ones is at most 0, the wealth
    is a supermartingale that begins at 1, so that it ever reaches 1/a with a probability of at most a (Ville 1939;
    betting on bounded means, Waudby-Smith and Ramdas, 2010.09686). No prompt, odd or long as it may be, makes more
    than twice of it.

    Example: ``wealth(np.array([1.0, 1.0]))[-1]`` is below ``2 * log(2)``
    """
    each = np.log1p(STAKES[:, None] * scores[None]).cumsum(axis=1)
    return np.asarray(np.logaddexp.reduce(each, axis=0) - log(len(STAKES)))


def proved(scores: Floats, error: float) -> bool:
    """Whether the mean of scores is above 0, said wrongly with a probability of at most ``error``."""
    return bool(len(scores)) and float(wealth(scores).max()) >= -log(error)


def prompts_to_prove(scores: Floats, error: float) -> float:
    """How many prompts like these prove that the mean is above 0; infinite if they would not."""
    if not len(scores):
        return inf
    growth = float(np.log1p(STAKES[:, None] * scores[None]).mean(axis=1).max())
    return ceil((log(len(STAKES)) - log(error)) / growth) if growth > 1e-4 else inf


def most_gain(gains: Floats) -> float:
    """The upper end of the interval of the mean of ``gains``, one for each prompt; infinite below ``FEWEST``."""
    if len(gains) < FEWEST:
        return inf
    return float(gains.mean() + SURE * gains.std(ddof=1) / sqrt(len(gains)))


def prompts_to_clear(gains: Floats) -> float:
    """How many prompts like these bring ``most_gain`` below ``NO_MATTER``; infinite if they would not."""
    if len(gains) < 2 or gains.mean() >= NO_MATTER:
        return inf
    return max(FEWEST, ceil(float((SURE * gains.std(ddof=1) / (NO_MATTER - gains.mean())) ** 2)))
