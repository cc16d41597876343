"""How true outputs are that need not equal plain's: a test of their distribution, and what a lossy policy changes."""

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
"""The chance that a policy with the target's distribution fails the test of one row."""


@dataclass
class Fidelity:
    """Outputs beside plain's of the same requests, summed up; two of them can be added.

    ``bins`` counts probability integral transforms: for each token, how much of the target's distribution lies on
    likelier tokens, plus a uniform share of its own. If tokens follow the distribution, these are uniform, each given
    those before it. ``agreed`` of ``tokens`` stand where plain's output has the same; ``surprise`` and
    ``plain_surprise`` are sums of -log p under the target, in nats.
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
        """Of Pearson's chi-square over the bins: how often the target's own distribution would look as uneven."""
        return evenness(self.bins)

    @property
    def perplexities(self) -> tuple[float, float]:
        """Of these outputs and of plain's, under the unmodified target."""
        return (
            math.exp(self.surprise / max(self.tokens, 1)),
            math.exp(self.plain_surprise / max(self.plain_tokens, 1)),
        )


def evenness(bins: Sequence[int]) -> float:
    """The p-value of Pearson's chi-square that ``bins`` count a uniform variable."""
    total = sum(bins)
    if not total:
        return 1.0
    expected = total / len(bins)
    statistic = sum((count - expected) ** 2 / expected for count in bins)
    degrees = torch.tensor((len(bins) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


def examine(judge: Judge, request: Request, plain: Tokens, got: Tokens) -> Fidelity:
    """One output beside plain's. A forward of the unmodified model, and one more where plain's is new."""
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
    """Into which of ``BINS`` equal bins each token's transform under its row of ``distribution`` [N, V] falls."""
    own = distribution.gather(1, torch.tensor(tokens, device=distribution.device)[:, None])
    likelier = (distribution * (distribution > own)).sum(dim=1)
    level = (distribution * (distribution == own)).sum(dim=1)
    shares = [a + coin.random() * b for a, b in zip(likelier.tolist(), level.tolist(), strict=True)]
    return [min(int(share * BINS), BINS - 1) for share in shares]
