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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from benchsuite.judge.fidelity import BINS, evenness
from benchsuite.judge.logprob_ties import HALF_A_NAT, unclear_list
from benchsuite.judge.ville import ville_p
from specdec_plugins.endpoints.replies import Token

FALSE_ALARM_OF_RATIOS = 1e-6
"""How often tokens of the plain server itself fail the test of the alternatives; that of the bins has
``FALSE_ALARM``."""

HEATS = tuple(side for factor in (1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0) for side in (factor, 1 / factor))
"""Factors of the temperature that are alternatives."""

TOP_PS, MIN_PS = (0.8, 0.9, 0.95, 0.98), (0.02, 0.05, 0.1)
"""Filters that are alternatives: servers have such defaults."""

PASSING = 0.02
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
        lists = self._lists
        hot = lists.heated(factor)
        return self._needed(hot, torch.where(lists.chances > 0, hot / lists.chances, 1.0), probability)

    def tokens_for_nucleus(self, most: float, probability: float = 0.99) -> float:
        """Return how many tokens like these would find a ``top_p`` so surely, one of ``TOP_PS``.

        Example: ``sample.tokens_for_nucleus(0.95)``
        """
        lists = self._lists
        kept = lists.until(most)
        inside = torch.where(kept, lists.chances, 0.0)
        return self._needed(inside / inside.sum(dim=1, keepdim=True), lists.passed(kept), probability)

    def _needed(self, other: Tensor, rates: Tensor, probability: float) -> float:
        """How many tokens of ``other`` distributions [N, L] are found by their ``rates``."""
        ratios = rates.log()
        means = (other * ratios).sum(dim=1)
        gain = float(means.sum())
        if gain <= 0:
            return float("inf")
        wide = float((other * (ratios - means[:, None]) ** 2).sum())
        # The sum over n tokens is about normal: n gain/N - z sqrt(n wide/N) must reach the threshold.
        threshold = log(ALTERNATIVES / FALSE_ALARM_OF_RATIOS)
        reach = NormalDist().inv_cdf(probability) * sqrt(wide)
        return self.tokens * ((reach + sqrt(reach**2 + 4 * gain * threshold)) / (2 * gain)) ** 2

    @cached_property
    def _lists(self) -> _Lists:
        return _Lists.of(self.lists)

    def _finds(self, factor: float, probability: float) -> bool:
        return self.tokens_for(factor, probability) <= self.tokens


def read_tokens(outputs: Sequence[Sequence[Token]], seed: int = 0) -> ServedSample:
    """Return what plain's lists say of the tokens of outputs, sampled at temperature 1 without filters.

    ``outputs``: each token with plain's own log-probability and list at its place. Likelier tokens come first; a token
    takes a uniform share of its own probability, drawn by ``seed``. What a list lacks is one bin of all the rest.
    Tokens without a list are left out, and those whose list has a text that may be several tokens: the list alone
    decides, not what was drawn, so that the others keep their law. Outputs must be of different requests with different
    seeds: a copy is the same evidence again. A copy cannot be told here, because honest short outputs coincide, and to
    drop these would favour rare tokens. A list must not depend on what was drawn either: of a server that appends a
    drawn token which is not among the likeliest, the caller leaves it out.
    """
    dice = random.Random(seed)
    judged = [token for output in outputs for token in output if token.top and not unclear_list(token.top)]
    if not judged:
        return ServedSample((0,) * BINS, 0.0, (0.0,) * ALTERNATIVES, ())
    lists, places = [], []
    for token in judged:
        chances = [exp(chance) for _, chance in token.top]
        chances.append(max(LEAST_REST, 1 - sum(chances)))
        whole = sum(chances)
        lists.append(tuple(chance / whole for chance in chances))
        places.append(next((n for n, (text, _) in enumerate(token.top) if text == token.text), len(token.top)))
    read = _Lists.of(lists)
    place = torch.tensor(places)[:, None]
    mine = read.chances.gather(1, place)[:, 0]
    shares = torch.tensor([dice.random() for _ in judged], dtype=torch.float64)
    below = read.chances.cumsum(dim=1).gather(1, place)[:, 0] - mine
    bins = ((below + shares * mine).clamp(max=1 - 1e-12) * BINS).long().bincount(minlength=BINS)
    surplus = (mine.log() - torch.special.xlogy(read.chances, read.chances).sum(dim=1)).sum()
    own = torch.tensor(
        [
            exp(token.logprob) if at == len(token.top) and token.logprob is not None else float("nan")
            for token, at in zip(judged, places, strict=True)
        ],
        dtype=torch.float64,
    )
    ratios = [float(ratio.log().sum()) for ratio in read.alternatives(place, own)]
    return ServedSample(tuple(bins.tolist()), float(surplus), tuple(ratios), tuple(lists))


@dataclass(frozen=True)
class _Lists:
    """Probabilities of lists: ``chances`` float64 [N, L], likeliest first, then that of the rest at ``rest`` int64
    [N, 1], then zeros."""

    chances: Tensor
    rest: Tensor

    @staticmethod
    def of(lists: Sequence[Sequence[float]]) -> _Lists:
        rows = [torch.tensor(one, dtype=torch.float64) for one in lists]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 1)
        return _Lists(padded.double(), torch.tensor([len(one) - 1 for one in lists], dtype=torch.int64)[:, None])

    def heated(self, factor: float) -> Tensor:
        """The probabilities at ``factor`` times the temperature; everything outside of a list is one token."""
        powers: Tensor = self.chances ** (1 / factor)
        return powers / powers.sum(dim=1, keepdim=True)

    def until(self, most: float) -> Tensor:
        """bool [N, L]: the tokens that a ``top_p`` keeps; all where it may keep some that are not listed."""
        listed = self.chances.scatter(1, self.rest, 0.0)
        through = listed.cumsum(dim=1)
        return (through - listed < most) | (through[:, -1:] < most)

    def above(self, least: float) -> Tensor:
        """bool [N, L]: the tokens that a ``min_p`` keeps; all where it may keep some that are not listed."""
        kept = self.chances >= least * self.chances[:, :1]
        last = kept.gather(1, (self.rest - 1).clamp(min=0))
        return kept.scatter(1, self.rest, False) | last

    def passed(self, kept: Tensor) -> Tensor:
        """[N, L]: how much likelier tokens are where a filter keeps some of a list, and lets a share of all through."""
        mass = torch.where(kept, self.chances, 0.0).sum(dim=1, keepdim=True)
        filtered = PASSING + torch.where(kept, (1 - PASSING) / mass, 0.0)
        return torch.where(kept.all(dim=1, keepdim=True), 1.0, filtered)

    def alternatives(self, place: Tensor, own: Tensor) -> Iterator[Tensor]:
        """For each alternative the likelihood [N] of the tokens at ``place`` int64 [N, 1] over that under the lists.

        The expectation of each, for tokens of the lists, is 1, or less for ``REPLACED``. ``own`` float64 [N]: the
        probability of a token that is not listed, NaN where it is listed or unknown."""
        mine = self.chances.gather(1, place)[:, 0]
        for factor in HEATS:
            yield self.heated(factor).gather(1, place)[:, 0] / mine
        for kept in [*map(self.until, TOP_PS), *map(self.above, MIN_PS)]:
            yield self.passed(kept).gather(1, place)[:, 0]
        # Any token: a listed one has one name of so many; all that are not listed have the others.
        strange = 1 / NAMES_AT_MOST
        names = torch.where(place == self.rest, 1 - self.rest * strange, strange)[:, 0]
        rate = torch.where(own.isnan(), names / mine, strange / own.clamp(min=1e-18))
        for share in REPLACED:
            yield 1 - share + share * rate
        first, second = (torch.where(place[:, 0] == n, 1 / self.chances[:, n], 0.0) for n in (0, 1))
        for share in LED:
            yield 1 - share + share * first
        near = (self.rest[:, 0] > 1) & (self.chances[:, 1] >= self.chances[:, 0] * exp(-HALF_A_NAT))
        for share in SECOND:
            yield torch.where(near, 1 - share + share * second, 1.0)
