"""Fidelity of outputs that may differ from plain's: a test of their distribution, and the error of a lossy policy."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from benchsuite.judge.favour import Favour, continuation, guessed
from benchsuite.judge.sources import Tokens
from benchsuite.judge.ties import Judge, surprise
from specdec import processors
from specdec.ledger import output_paths, stacked
from specdec.request import Request

BINS = 10
FALSE_ALARM = 1e-6
"""The probability that a policy with the target's distribution fails one test, of a row or of rows pooled."""

EXACT = 500
"""Up to this many tokens p-values are exact. Above, chi-square rejects at most 1.3 FALSE_ALARM (docs/proof.md)."""

LEAST = 1e-12
"""The smallest p-value that is given: the exact ones are rounded in their 15th decimal."""

SURE = 0.99
"""The probability with which a shift is found that counts as one that the test finds."""


@dataclass
class Fidelity:
    """Sums over outputs, compared with plain's outputs of the same requests; two objects can be added.

    ``bins`` counts probability integral transforms. A token's transform is the probability p of all likelier tokens
    plus a uniform share of its own probability; it is uniform if the token follows p, given the tokens before it.
    ``agreed`` of ``tokens`` equal plain's token at the same index. ``surprise`` and ``plain_surprise`` are sums of -log
    p, in nats. ``favour``: of their draft's proposals, where it was asked for them again.
    """

    bins: list[int] = field(default_factory=lambda: [0] * BINS)
    agreed: int = 0
    tokens: int = 0
    surprise: float = 0.0
    plain_tokens: int = 0
    plain_surprise: float = 0.0
    favour: Favour = field(default_factory=Favour)

    def __add__(self, other: Fidelity) -> Fidelity:
        return Fidelity(
            [a + b for a, b in zip(self.bins, other.bins, strict=True)],
            self.agreed + other.agreed,
            self.tokens + other.tokens,
            self.surprise + other.surprise,
            self.plain_tokens + other.plain_tokens,
            self.plain_surprise + other.plain_surprise,
            self.favour + other.favour,
        )

    @property
    def _tests(self) -> int:
        """How many tests were made, each of which may fail the tokens."""
        return 2 if self.favour.outputs else 1

    @property
    def p_value(self) -> float:
        """How often, at most, as many tokens of the target itself would look as unlike its own.

        They would fill the bins as unevenly (``evenness``) or favour the draft's proposals as much (``favour``): the
        smaller probability of the two, doubled where both were tested.
        """
        chance = min(evenness(self.bins), self.favour.p_value)
        return LEAST if chance <= LEAST else min(1.0, self._tests * chance)

    @property
    def smallest_shift(self) -> float | None:
        """The least mass, moved from one half of the bins to the other, found with probability ``SURE``; at most 0.5.

        It depends on the numbers of tokens and tests alone. None: moving all of a half's mass, 0.5, would not be found
        as often.
        """
        return _smallest_shift(sum(self.bins), FALSE_ALARM / self._tests)

    @property
    def smallest_favour(self) -> float | None:
        """The least share of tokens, drawn from the draft in place of the target, found with probability ``SURE``."""
        return self.favour.found(FALSE_ALARM / self._tests, SURE)

    @property
    def failure(self) -> str | None:
        """Why these tokens, of one row or of several pooled, are not the target's; None if they may be."""
        if self.p_value >= FALSE_ALARM:
            return None
        counted = f"its {sum(self.bins)} tokens do not follow the target's distribution"
        expected = f"with {self._chance}, and {FALSE_ALARM:.0e} or more is expected"
        if evenness(self.bins) <= self.favour.p_value:
            return (
                f"{counted}: the probability integral transforms, counted in {len(self.bins)} equal bins, are "
                f"{self.bins}; tokens of the target itself would be as uneven {expected}"
            )
        return (
            f"{counted} but favour the draft's proposals: asked again along {self.favour.outputs} outputs, it (or for "
            f"another engine a lookup) proposes {self.favour.kept:.1f} of {self.favour.tokens} tokens, and "
            f"{self.favour.due:.1f} is due; tokens of the target itself would favour it as much {expected}. Look for "
            "acceptance that is not by p/q, or for a draft that knows outputs after `forget`"
        )

    @property
    def summary(self) -> str:
        """The tests in a table's cell: "p=0.38, finds 8.2 %, drafted 4 %".

        The per cent are ``smallest_shift`` and, where the draft was asked again, ``smallest_favour``.
        """
        found = [self.smallest_shift, *[self.smallest_favour] * (self._tests - 1)]
        shift, *drafted = ("nothing" if share is None else f"{100 * share:.2g} %" for share in found)
        return ", ".join([self._chance, f"finds {shift}", *(f"drafted {share}" for share in drafted)])

    @property
    def _chance(self) -> str:
        return f"p<{LEAST:.0e}" if self.p_value <= LEAST else f"p={self.p_value:.2g}"

    @property
    def perplexities(self) -> tuple[float, float]:
        """Perplexities of these outputs and of plain's, under the unmodified target."""
        return (
            math.exp(self.surprise / max(self.tokens, 1)),
            math.exp(self.plain_surprise / max(self.plain_tokens, 1)),
        )


def evenness(bins: Sequence[int]) -> float:
    """Return the p-value of Pearson's test that ``bins`` count a uniform variable; 1.0 if they are empty.

    It is the probability that the statistic is at least as large: exact for ``BINS`` bins of at most ``EXACT`` counts,
    else by chi-square. A p-value below ``LEAST`` is given as ``LEAST``.

    Example: ``evenness([6, 1, 0, 0, 0, 0, 0, 0, 0, 0])`` is 6.4e-05
    """
    total = sum(bins)
    if not total:
        return 1.0
    if len(bins) == BINS and total <= EXACT:
        tails, excess = excess_tails(total), excess_of(bins)
        chance = float(tails[excess]) if excess < len(tails) else 0.0
    else:
        expected = total / len(bins)
        chance = chi_square(sum((count - expected) ** 2 / expected for count in bins), len(bins) - 1)
    return min(max(chance, LEAST), 1.0)


def chi_square(statistic: float, degrees: int = BINS - 1) -> float:
    """Return the probability that a chi-square variable is at least ``statistic``."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def finding(tokens: int, shift: float, alarm: float = FALSE_ALARM) -> float:
    """Return the probability that the test finds a mass ``shift`` moved from one half of the bins to the other.

    ``shift`` lies above 0 and up to 0.5; the test rejects where its p-value is below ``alarm``. Up to ``EXACT`` tokens
    the result is exact. Above, the statistic is taken for a noncentral chi-square of noncentrality 4 n shift², which
    finds a little too few: bins that were emptied vary less than it assumes (docs/proof.md).

    Example: ``finding(3000, 0.078)`` is 0.99
    """
    if not tokens:
        return 0.0
    if tokens <= EXACT:
        # The half that lost the mass holds a binomial number of tokens; given that number the bins are even within it.
        found = found_by_half(tokens, alarm)
        count = torch.arange(tokens + 1, dtype=torch.float64)
        ways = torch.lgamma(count.new_tensor(tokens + 1)) - torch.lgamma(count + 1) - torch.lgamma(tokens - count + 1)
        law = ways + torch.xlogy(count, count.new_tensor(0.5 - shift))
        law += torch.xlogy(tokens - count, count.new_tensor(0.5 + shift))
        return float((law.exp() * found).sum())
    mean = torch.tensor(2 * tokens * shift**2, dtype=torch.float64)  # half of the noncentrality
    if mean > 500:
        return 1.0  # ten times what is ever asked, and more terms than are summed below
    terms = torch.arange(2000, dtype=torch.float64)
    weights = (terms * mean.log() - mean - torch.lgamma(terms + 1)).exp()
    least = mean.new_tensor(_least_statistic(alarm) / 2)
    return float((weights * torch.special.gammaincc((BINS - 1) / 2 + terms, least)).sum())


@cache
def _smallest_shift(tokens: int, alarm: float) -> float | None:
    low, high = 0.0, 0.5
    if finding(tokens, high, alarm) < SURE:
        return None
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if finding(tokens, middle, alarm) < SURE else (low, middle)
    return high


@cache
def _least_statistic(alarm: float) -> float:
    """The smallest statistic that chi-square rejects."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chi_square(middle) > alarm else (low, middle)
    return low


def excess_of(bins: Sequence[int]) -> int:
    """Sum of d (d - 1) / 2, d being a bin's distance from a tenth of the counts, rounded down.

    An integer from 0 that grows with Pearson's statistic: the sum of squares moved to 0 and halved, since squares of
    integers of a fixed sum are all even in sum or all odd.
    """
    middle = sum(bins) // BINS
    return sum((count - middle) * (count - middle - 1) // 2 for count in bins)


def _half(tokens: int) -> tuple[Tensor, int]:
    """Return the transform of count and excess of five bins, complex [frequencies of excess, of count], and a period.

    Each count is Poisson with mean tokens / BINS: ten independent ones, given their sum, are multinomial. The periods,
    of the count the second dimension and of the excess the number returned, leave less than 1e-13 to wrap around.
    """
    period = int(4.5 * tokens) + 314  # a statistic of 90 + 5000 / tokens, and more for few tokens
    width = int(8 * math.sqrt(tokens)) + 16  # eight standard deviations of all counts
    middle, mean = tokens // BINS, tokens / BINS
    most = min(tokens, middle + int(12 * math.sqrt(middle + 1)) + 40)
    count = torch.arange(most + 1)
    turns = torch.arange(period // 2 + 1)[:, None] * ((count - middle) * (count - middle - 1) // 2) % period
    angles = torch.arange(period, dtype=torch.float64) * (-2 * math.pi / period)
    weights = (count.double() * math.log(mean) - mean - torch.lgamma(count.double() + 1)).exp()
    one = torch.fft.fft(torch.polar(torch.ones_like(angles), angles)[turns] * weights, n=width, dim=1)
    two = one * one
    return two * two * one, period


@cache
def excess_tails(tokens: int) -> Tensor:
    """Return float64 [E]: the probability that ten equally likely bins have an excess of at least the index."""
    half, period = _half(tokens)
    width = half.shape[1]
    # One coefficient of the inverse transform over the count: that of ten counts which add up to ``tokens``.
    angles = torch.arange(width, dtype=torch.float64) * tokens % width * (2 * math.pi / width)
    chances: Tensor = torch.fft.irfft((half * half) @ torch.polar(torch.ones_like(angles), angles), n=period)
    tails = chances.flip(0).cumsum(0).flip(0)
    return tails / tails[0]  # every outcome has at least the excess 0: exactly 1, however the sums were rounded


def _most_even(count: int) -> list[int]:
    """Return ``count`` spread over the bins of one half, as evenly as whole numbers allow."""
    return [(count + bin_) // (BINS // 2) for bin_ in range(BINS // 2)]


@cache
def found_by_half(tokens: int, alarm: float) -> Tensor:
    """Return float64 [tokens + 1]: how often the test rejects, given how many tokens lie in one half of the bins."""
    least = int((excess_tails(tokens) < alarm).nonzero()[0])
    half, period = _half(tokens)
    width = half.shape[1]
    half = torch.fft.ifft(half, dim=1)
    found = torch.ones(tokens + 1, dtype=torch.float64)
    for count in range(tokens + 1):
        # Halves so uneven that even their most even filling is rejected are too rare for the transform.
        if excess_of([*_most_even(count), *_most_even(tokens - count)]) < least:
            chances = torch.fft.irfft(half[:, count % width] * half[:, (tokens - count) % width], n=period)
            found[count] = (chances[least:].sum() / chances.sum()).clamp(0, 1)
    return found


def examine(judge: Judge, request: Request, plain: Tokens, got: Tokens, looked_up: bool = False) -> Fidelity:
    """Compare one output with plain's: one forward of the unmodified model, two if plain's output is new.

    ``looked_up``: the favour is of what a lookup would propose, for an engine whose draft cannot be asked.
    """
    coin = random.Random(f"{request.params.seed} {request.id}")
    bins = [0] * BINS
    logits = judge.after(request.prompt, got)
    params = stacked([request], logits.shape[-1], logits.device)
    distribution = processors.process(logits[None], params, output_paths(got, logits.device))[0].softmax(dim=-1)
    for place in binned(distribution, got, coin):
        bins[place] += 1
    return Fidelity(
        bins,
        sum(a == b for a, b in zip(plain, got, strict=False)),
        len(got),
        surprise(logits, got),
        len(plain),
        judge.surprise(request.prompt, plain),
        _of_lookups(distribution, request.prompt, got) if looked_up else Favour(),
    )


def _of_lookups(distribution: Tensor, prompt: Tokens, got: Tokens) -> Favour:
    found = continuation((*prompt, *got), len(prompt))
    places = [(row, guess) for row, guess in enumerate(found) if guess is not None]
    chances = [float(distribution[place]) for place in places]
    return replace(guessed(chances, [got[row] == guess for row, guess in places]), outputs=1)


def binned(distribution: Tensor, tokens: Sequence[int], coin: random.Random) -> list[int]:
    """Return each token's bin, of ``BINS`` equal bins, by its transform under its row of ``distribution`` [N, V]."""
    own = distribution.gather(1, torch.tensor(tokens, device=distribution.device)[:, None])
    likelier = (distribution * (distribution > own)).sum(dim=1)
    level = (distribution * (distribution == own)).sum(dim=1)
    shares = [a + coin.random() * b for a, b in zip(likelier.tolist(), level.tolist(), strict=True)]
    return [min(int(share * BINS), BINS - 1) for share in shares]
