"""Sampled outputs judged by a plain server's log-probabilities: do the tokens follow its distribution?

Two tests over the same tokens, each given the text before it. Probability integral transforms, whose counts in equal
bins are even if the tokens follow the distribution: they see any change of shape. And the sum of the tokens'
log-probabilities less what is expected of each: it sees a temperature with far fewer tokens. Both are sums of
martingale differences, so that tokens of one text may be taken together: given what came before, each has the law that
is tested.

Source: Rosenblatt 1952 (the transform); Rao's score test for the exponent of p.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

from benchsuite.measure.fidelity import BINS, evenness
from specdec_plugins.endpoints.replies import Token

FALSE_ALARM_OF_HEAT = 1e-6
"""How often tokens of the plain server itself fail the test of the temperature; that of the bins has
``FALSE_ALARM``."""

HOTTEST = 4.0
"""The largest factor of the temperature that is looked at."""


@dataclass(frozen=True)
class ServedSample:
    """Tokens read under plain's lists.

    ``bins`` counts transforms; ``surplus`` is the sum of log p less its expectation, ``spread`` the variance of that
    sum. ``lists`` has, for each token, the probabilities of its list and that of everything else.
    """

    bins: tuple[int, ...]
    surplus: float
    spread: float
    lists: tuple[tuple[float, ...], ...]

    @property
    def tokens(self) -> int:
        """How many tokens were judged."""
        return len(self.lists)

    @property
    def evenness(self) -> float:
        """The p-value of the transforms."""
        return evenness(self.bins)

    @property
    def heat_p(self) -> float:
        """The two-sided p-value of the sum of log-probabilities, by the central limit; 1 without any spread."""
        return 2 * NormalDist().cdf(-abs(self.surplus) / sqrt(self.spread)) if self.spread > 0 else 1.0

    def heat_found(self, probability: float = 0.99) -> float | None:
        """Return the smallest factor of the temperature above 1 that would be found so surely; None up to
        ``HOTTEST``."""
        if not self._finds(HOTTEST, probability):
            return None
        low, high = 1.0, HOTTEST
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if self._finds(middle, probability) else (middle, high)
        return high

    def tokens_for(self, factor: float, probability: float = 0.99) -> float:
        """Return how many tokens like these would find a factor of the temperature so surely.

        Example: ``sample.tokens_for(1.2)`` for 1.2 times the temperature.
        """
        shift = self._shift(factor)
        if not shift:
            return float("inf")
        normal = NormalDist()
        wide = sum(_variance_log(_heated(chances, factor), chances) for chances in self.lists)
        crossed = -normal.inv_cdf(FALSE_ALARM_OF_HEAT / 2) * sqrt(self.spread) + normal.inv_cdf(probability) * sqrt(
            wide
        )
        return self.tokens * (crossed / abs(shift)) ** 2

    @property
    def hotter(self) -> bool:
        """Whether the sum lies on the side to which a higher temperature moves it, which the rest of a list may
        turn."""
        return self.surplus * self._shift(1.2) > 0

    def _shift(self, factor: float) -> float:
        """How far a factor of the temperature moves the sum."""
        return sum(_mean_log(_heated(chances, factor), chances) - _mean_log(chances, chances) for chances in self.lists)

    def _finds(self, factor: float, probability: float) -> bool:
        return self.tokens_for(factor, probability) <= self.tokens


def read_tokens(outputs: Sequence[Sequence[Token]], seed: int = 0) -> ServedSample:
    """Return what plain's lists say of the tokens of outputs, sampled at temperature 1 without filters.

    ``outputs``: each token with plain's own log-probability and list at its place. Likelier tokens come first; a token
    takes a uniform share of its own probability, drawn by ``seed``. What a list lacks is one bin of all the rest.
    Tokens without a list are left out; so are later copies of the same output, which would be the same evidence again.
    """
    dice = random.Random(seed)
    bins, surplus, spread = [0] * BINS, 0.0, 0.0
    lists: list[tuple[float, ...]] = []
    seen = set[tuple[str, ...]]()
    for output in outputs:
        texts = tuple(token.text for token in output)
        if texts in seen:
            continue
        seen.add(texts)
        for token in output:
            if not token.top:
                continue
            chances = [exp(chance) for _, chance in token.top]
            rest = max(0.0, 1 - sum(chances))
            chances.append(rest)
            place = next((n for n, (text, _) in enumerate(token.top) if text == token.text), len(chances) - 1)
            before = sum(chances[:place])
            share = min(before + dice.random() * chances[place], 1 - 1e-12)
            bins[int(share * BINS)] += 1
            surplus += _log(chances[place]) - _mean_log(chances, chances)
            spread += _variance_log(chances, chances)
            lists.append(tuple(chances))
    return ServedSample(tuple(bins), surplus, spread, tuple(lists))


def _log(chance: float) -> float:
    """The logarithm; of nothing that of a very small chance, so that an impossible token counts a lot and not
    infinitely."""
    return log(max(chance, 1e-9))


def _mean_log(weights: Sequence[float], chances: Sequence[float]) -> float:
    return sum(weight * _log(chance) for weight, chance in zip(weights, chances, strict=True) if weight > 0)


def _variance_log(weights: Sequence[float], chances: Sequence[float]) -> float:
    middle = _mean_log(weights, chances)
    return sum(w * (_log(chance) - middle) ** 2 for w, chance in zip(weights, chances, strict=True) if w > 0)


def _heated(chances: Sequence[float], factor: float) -> list[float]:
    """The probabilities at ``factor`` times the temperature; everything outside of a list is taken for one token."""
    powers = [chance ** (1 / factor) if chance > 0 else 0.0 for chance in chances]
    whole = sum(powers)
    return [power / whole for power in powers]
