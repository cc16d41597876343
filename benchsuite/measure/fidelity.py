"""Fidelity of outputs that may differ from plain's: a test of their distribution, and the error of a lossy policy."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchsuite.measure.sources import Tokens
from benchsuite.measure.ties import Judge, stacked_alone, surprise
from specdec import sampling
from specdec.request import Request

BINS = 10
FALSE_ALARM = 1e-6
"""The probability that a policy with the target's distribution fails the test of one row."""


@dataclass
class Fidelity:
    """Sums over outputs, compared with plain's outputs of the same requests; two objects can be added.

    ``bins`` counts probability integral transforms. A token's transform is the probability p of all likelier tokens
    plus a uniform share of its own probability; it is uniform if the token follows p, given the tokens before it.
    ``agreed`` of ``tokens`` equal plain's token at the same index. ``surprise`` and ``plain_surprise`` are sums of -log
    p, in nats.
    """

    bins: list[int] = field(default_factory=lambda: [0] * BINS)
    agreed: int = 0
    tokens: int = 0
    surprise: float = 0.0
    plain_tokens: int = 0
    plain_surprise: float = 0.0

    def __add__(self, other: Fidelity) -> Fidelity:
        return Fidelity(
            [a + b for a, b in zip(self.bins, other.bins, strict=True)],
            self.agreed + other.agreed,
            self.tokens + other.tokens,
            self.surprise + other.surprise,
            self.plain_tokens + other.plain_tokens,
            self.plain_surprise + other.plain_surprise,
        )

    @property
    def p_value(self) -> float:
        """P-value of Pearson's chi-square over the bins: how often tokens of the target itself would look as uneven."""
        return evenness(self.bins)

    @property
    def perplexities(self) -> tuple[float, float]:
        """Perplexities of these outputs and of plain's, under the unmodified target."""
        return (
            math.exp(self.surprise / max(self.tokens, 1)),
            math.exp(self.plain_surprise / max(self.plain_tokens, 1)),
        )


def evenness(bins: Sequence[int]) -> float:
    """Return the p-value of Pearson's chi-square test that ``bins`` count a uniform variable; 1.0 if they are empty."""
    total = sum(bins)
    if not total:
        return 1.0
    expected = total / len(bins)
    statistic = sum((count - expected) ** 2 / expected for count in bins)
    degrees = torch.tensor((len(bins) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


def examine(judge: Judge, request: Request, plain: Tokens, got: Tokens) -> Fidelity:
    """Compare one output with plain's: one forward of the unmodified model, two if plain's output is new."""
    coin = random.Random(f"{request.params.seed} {request.id}")
    bins = [0] * BINS
    logits = judge.after(request.prompt, got)
    distribution = sampling.process(logits[None], stacked_alone(request, logits.device))[0].softmax(dim=-1)
    for place in binned(distribution, got, coin):
        bins[place] += 1
    return Fidelity(
        bins,
        sum(a == b for a, b in zip(plain, got, strict=False)),
        len(got),
        surprise(logits, got),
        len(plain),
        judge.surprise(request.prompt, plain),
    )


def binned(distribution: Tensor, tokens: Sequence[int], coin: random.Random) -> list[int]:
    """Return each token's bin, of ``BINS`` equal bins, by its transform under its row of ``distribution`` [N, V]."""
    own = distribution.gather(1, torch.tensor(tokens, device=distribution.device)[:, None])
    likelier = (distribution * (distribution > own)).sum(dim=1)
    level = (distribution * (distribution == own)).sum(dim=1)
    shares = [a + coin.random() * b for a, b in zip(likelier.tolist(), level.tolist(), strict=True)]
    return [min(int(share * BINS), BINS - 1) for share in shares]
