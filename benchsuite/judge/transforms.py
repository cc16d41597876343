"""Sampled outputs judged by a plain server's log-probabilities: do the tokens follow its distribution?

Two tests over the same tokens, each given the text before it. Probability integral transforms, whose counts in equal
bins are even if the tokens follow the distribution: they see any change of shape. And the likelihood of the tokens
under named alternatives (another temperature, a filter, tokens replaced by any) over that under plain's lists: it sees
these with fewer tokens. Given what came before, each transform is uniform and each ratio has the expectation 1, so that
tokens of one text may be taken together; the product of the ratios is a martingale, and by Ville's inequality exceeds
1/p with a probability of at most p, whatever the lists and however few the tokens. A central limit would not do: in
peaked lists three rare tokens are six standard deviations.

Sources: Rosenblatt 1952 (the transform); Ville 1939 (the inequality); Ramdas, Gruenwald, Vovk and Shafer,
arXiv 2210.01948 (mixtures of such ratios as tests).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from benchsuite.judge.fidelity import BINS, evenness
from benchsuite.judge.logprob_ties import HALF_A_NAT, unclear
from benchsuite.judge.ville import ville_p
from specdec_plugins.endpoints.replies import Token

FALSE_ALARM_OF_RATIOS = 1e-6
"""How often tokens of the plain server itself fail the test of the alternatives; that of the bins has
``FALSE_ALARM``."""

HEATS = tuple(side for factor in (1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0) for side in (factor, 1 / factor))
"""Factors of the temperature that are alternatives."""

TOP_PS, MIN_PS = (0.8, 0.9, 0.95, 0.98), (0.02, 0.05, 0.1)
"""Filters that are alternatives: servers have such defaults."""

PASSING = 0.001
"""The share of tokens that a filter lets through: a single one that plain's rounded list has outside proves nothing."""

REPLACED, NAMES_AT_MOST = (0.01, 0.03, 0.1), 2**18
"""Shares of tokens that any token replaces, as alternatives; and no fewer tokens than a vocabulary has, of which each
is then as likely."""

LED = (0.05, 0.1, 0.2)
"""Shares of tokens that are the likeliest in place of drawn ones, as alternatives: acceptance as if decoding were
greedy."""

SECOND = (0.1, 0.2, 0.4)
"""Shares of the places whose two likeliest tokens are within ``HALF_A_NAT`` at which the second comes in place of a
drawn one, as alternatives: relaxed acceptance."""

ALTERNATIVES = len(HEATS) + len(TOP_PS) + len(MIN_PS) + len(REPLACED) + len(LED) + len(SECOND)
"""How many likelihoods are mixed, each with the same weight."""

LEAST_REST = 1e-6
"""What lies outside of a list is taken to be no less likely: the lists' own rounding hides anything smaller."""

HOTTEST = 4.0
"""The largest factor of the temperature that is looked at."""


@dataclass(frozen=True)
class ServedSample:
    """Tokens read under plain's lists.

    ``bins`` counts transforms; ``surplus`` is the sum of log p less its expectation; ``ratios`` has, for each
    alternative, the log of the tokens' likelihood under it over that under plain's lists: ``HEATS``, ``TOP_PS``,
    ``MIN_PS``, ``REPLACED``, ``LED``, ``SECOND``. ``lists`` has the probabilities of each token's list and that of
    everything else.
    """

    bins: tuple[int, ...]
    surplus: float
    ratios: tuple[float, ...]
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
    def ratio_p(self) -> float:
        """The p-value of the alternatives, at most: one over the mean of the likelihood ratios."""
        return ville_p(self.ratios)

    def p_values(self, ways: int) -> tuple[float, float]:
        """Those of the transforms and of the alternatives, each times the ``ways`` in which as many outputs could have
        been left out (Boole's inequality)."""
        return min(1.0, self.evenness * ways), min(1.0, self.ratio_p * ways)

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
        chances = self._chances
        hot = chances ** (1 / factor)
        hot /= hot.sum(dim=1, keepdim=True)
        ratios = torch.where(chances > 0, (hot / chances).log(), 0.0)
        means = (hot * ratios).sum(dim=1)
        gain = float(means.sum())
        if gain <= 0:
            return float("inf")
        wide = float((hot * (ratios - means[:, None]) ** 2).sum())
        # The sum over n tokens is about normal: n gain/N - z sqrt(n wide/N) must reach the threshold.
        threshold = log(ALTERNATIVES / FALSE_ALARM_OF_RATIOS)
        reach = NormalDist().inv_cdf(probability) * sqrt(wide)
        return self.tokens * ((reach + sqrt(reach**2 + 4 * gain * threshold)) / (2 * gain)) ** 2

    @cached_property
    def _chances(self) -> Tensor:
        """The lists' probabilities, float64 [tokens, longest], with zeros behind the ends of shorter ones."""
        rows = [torch.tensor(one, dtype=torch.float64) for one in self.lists]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 1)

    def _finds(self, factor: float, probability: float) -> bool:
        return self.tokens_for(factor, probability) <= self.tokens


def read_tokens(outputs: Sequence[Sequence[Token]], seed: int = 0, most: int = 5) -> ServedSample:
    """Return what plain's lists say of the tokens of outputs, sampled at temperature 1 without filters.

    ``outputs``: each token with plain's own log-probability and list at its place. Likelier tokens come first; a token
    takes a uniform share of its own probability, drawn by ``seed``. What a list lacks is one bin of all the rest.
    Tokens without a list are left out, and those whose list has a text that may be several tokens: the list alone
    decides, not what was drawn, so that the others keep their law. Outputs must be of different requests with different
    seeds: a copy is the same evidence again. A copy cannot be told here, because honest short outputs coincide, and to
    drop these would favour rare tokens. ``most``
    entries of a list are used: a server may append a drawn token that is not among the likeliest (vLLM's
    ``SamplingParams.logprobs``: "up to logprobs+1 elements"), and a list must not depend on what was drawn.
    """
    dice = random.Random(seed)
    bins, surplus, ratios = [0] * BINS, 0.0, [0.0] * ALTERNATIVES
    lists: list[tuple[float, ...]] = []
    for token in (token for output in outputs for token in output if token.top):
        top = token.top[:most]
        if any(unclear(top, text) for text, _ in top):
            continue
        chances = [exp(chance) for _, chance in top]
        chances.append(max(LEAST_REST, 1 - sum(chances)))
        whole = sum(chances)
        chances = [chance / whole for chance in chances]
        place = next((n for n, (text, _) in enumerate(top) if text == token.text), len(top))
        share = min(sum(chances[:place]) + dice.random() * chances[place], 1 - 1e-12)
        bins[int(share * BINS)] += 1
        surplus += log(chances[place]) - sum(chance * log(chance) for chance in chances)
        own = exp(token.logprob) if place == len(top) and token.logprob is not None else None
        for n, ratio in enumerate(_alternatives(chances, place, own)):
            ratios[n] += log(ratio)
        lists.append(tuple(chances))
    return ServedSample(tuple(bins), surplus, tuple(ratios), tuple(lists))


def _heated(chances: Sequence[float], factor: float) -> list[float]:
    """The probabilities at ``factor`` times the temperature; everything outside of a list is taken for one token."""
    powers = [chance ** (1 / factor) for chance in chances]
    whole = sum(powers)
    return [power / whole for power in powers]


def _alternatives(chances: Sequence[float], place: int, own: float | None) -> list[float]:
    """The likelihood of the token at ``place`` under each alternative, over its own. The expectation of each, for
    tokens of these ``chances``, is 1, or less for ``REPLACED``. ``own``: the probability of a token that is not
    listed."""
    heated = [_heated(chances, factor)[place] / chances[place] for factor in HEATS]
    kept = [_until(chances, most) for most in TOP_PS] + [_above(chances, least) for least in MIN_PS]
    filtered = [1.0 if count is None else _passing(sum(chances[:count]), place < count) for count in kept]
    # Any token: a listed one has one name of so many; all that are not listed have the others.
    strange = 1 / NAMES_AT_MOST
    if place < len(chances) - 1:
        rate = strange / chances[place]
    elif own is not None:
        rate = strange / max(own, 1e-18)
    else:
        rate = (1 - (len(chances) - 1) * strange) / chances[place]
    replaced = [1 - share + share * rate for share in REPLACED]
    led = [1 - share + (share / chances[0] if place == 0 else 0.0) for share in LED]
    near = len(chances) > 2 and chances[1] >= chances[0] * exp(-HALF_A_NAT)
    led += [1 - share + (share / chances[1] if place == 1 else 0.0) if near else 1.0 for share in SECOND]
    return heated + filtered + replaced + led


def _until(chances: Sequence[float], most: float) -> int | None:
    """How many of the likeliest tokens a ``top_p`` keeps; None where it may keep some that are not listed."""
    total = 0.0
    for count, chance in enumerate(chances[:-1], 1):
        total += chance
        if total >= most:
            return count
    return None


def _above(chances: Sequence[float], least: float) -> int | None:
    """How many of the likeliest tokens a ``min_p`` keeps; None where it may keep some that are not listed."""
    count = sum(chance >= least * chances[0] for chance in chances[:-1])
    return count if count < len(chances) - 1 else None


def _passing(kept: float, inside: bool) -> float:
    """The likelihood of a token where a filter keeps a mass and lets a share of all through, over plain's."""
    return PASSING + (1 - PASSING) / kept if inside else PASSING
