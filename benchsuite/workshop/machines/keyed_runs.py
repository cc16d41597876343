"""Whole runs of the engine with its own noise, in numbers large enough for a stated power.

Enumeration takes the noise of different keys for independent; here it is what the keys make of it. The target has one
distribution after every text, and the draft another, so that a step of hundreds of requests is a few operations on
tensors. What a text does to a distribution is proved by enumeration.

Each token is counted with the two before it. Given these it must have the target's distribution, whatever was proposed,
accepted and drawn on the way: the counts are tested by chi-square with V² (V - 1) degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import Shape
from benchsuite.conformance.exact.table_target import Tabular
from benchsuite.judge.fidelity import chi_square
from benchsuite.judge.sources import Always
from specdec import Context, Draft, Engine, Policy, Request, SamplingParams, Window
from specdec.arena import Arena
from specdec.taps import NO_LAYERS, Taps
from specdec_kernels.reference import Reference
from specdec_plugins.chain import Chain


class OneTable(Tabular):
    """A target with the distribution ``shares`` [V] after every text; it never looks at the arena."""

    def __init__(self, shares: Tensor, ops: Reference) -> None:
        super().__init__(lambda history: shares.tolist(), len(shares), ops)
        self._logits = shares.log()

    def forward(
        self, arena: Arena, window: Window, rows: slice, longest: int, taps: Taps = NO_LAYERS
    ) -> tuple[Tensor, Tensor]:
        """Return logits [B, W, V], the same in every slot; hidden states are 0."""
        return self._logits.expand(*window.tokens.shape, -1), torch.zeros(*window.tokens.shape, 1)


class OneDraft(Draft):
    """Draws every proposal from ``shares`` [V] along a shape: a chain by ``Chain``, or siblings without replacement."""

    def __init__(self, shares: Tensor, shape: Shape) -> None:
        self._shares, self._parents = shares, shape.parents
        self._depths = [len(shape.ancestry(slot)) for slot in range(len(shape.parents))]
        self.branches = self._depths != list(range(len(self._depths)))

    def propose(self, context: Context) -> Window:
        """Return a window of the shape's first slots, as many as the row with the most room allows."""
        size = 1 + min(int(context.max_proposals_host.max()), len(self._parents) - 1)
        if self.branches:
            return self._tree(context, size)
        chain = Chain(context, len(self._shares))
        for _ in range(size - 1):
            chain.propose(self._shares.log().expand(context.rows, 1, -1))
        return chain.window()

    def _tree(self, context: Context, size: int) -> Window:
        left: dict[int, Tensor] = {}
        tokens, rows = [context.pending[:, None]], []
        for slot in range(1, size):
            above = self._parents[slot]
            q = left.get(above, self._shares.expand(context.rows, 1, -1))
            token = context.propose_token(q.log(), context.length[:, None] + self._depths[above])
            tokens.append(token)
            rows.append(q)
            rest = q.scatter(2, token[:, :, None], 0.0)
            left[above] = rest / rest.sum(dim=2, keepdim=True)
        parents = torch.tensor(self._parents[:size]).expand(context.rows, -1)
        width = context.max_proposals.clamp(max=size - 1) + 1
        return Window(torch.cat(tokens, dim=1), parents, width, torch.cat(rows, dim=1))


def keyed_tokens(
    policy: Policy, target: Sequence[float], draft: Sequence[float], shape: Shape, rows: int, length: int, seed: int = 0
) -> Tensor:
    """Return the tokens int64 [rows, length] of as many requests, all of one batch of the engine.

    ``target`` and ``draft`` are weights of the tokens, in any unit.

    Example: ``tokens_of(policy, (9, 9, 3), (1, 9, 3), chain(3), 256, 96)``
    """
    ops = Reference()
    p, q = (torch.tensor(weights, dtype=torch.float64) / sum(weights) for weights in (target, draft))
    engine = Engine(
        OneTable(p, ops),
        draft=OneDraft(q, shape),
        policy=policy,
        controller=Always(len(shape.parents) - 1),
        ops=ops,
        max_rows=rows,
        max_length=length + 1,
    )
    params = SamplingParams(temperature=1.0, seed=seed, max_new_tokens=length)
    return torch.tensor([done.tokens for done in engine.run([Request(i, (0,), params) for i in range(rows)])])


def chance_of_tokens(tokens: Tensor, target: Sequence[float]) -> float:
    """Return how often tokens [N, L] of the target would follow the two before them as unevenly as these."""
    size = len(target)
    after = tokens[:, :-2] * size + tokens[:, 1:-1]
    counts = torch.bincount((after * size + tokens[:, 2:]).flatten(), minlength=size**3).view(-1, size).double()
    due = counts.sum(dim=1, keepdim=True) * torch.tensor(target, dtype=torch.float64) / sum(target)
    return chi_square(float(((counts - due) ** 2 / due).sum()), degrees_of_freedom(size))


def chance_apart(one: Tensor, other: Tensor, target: Sequence[float]) -> float:
    """Return how often independent tokens of the target [N, L] would fall on pairs as unevenly as these."""
    size, shares = len(target), torch.tensor(target, dtype=torch.float64) / sum(target)
    counts = torch.bincount((one * size + other).flatten(), minlength=size**2).view(size, size).double()
    due = shares[:, None] * shares * counts.sum()
    return chi_square(float(((counts - due) ** 2 / due).sum()), size**2 - 1)


def degrees_of_freedom(vocabulary: int) -> int:
    """Return those of ``chance``."""
    return vocabulary**2 * (vocabulary - 1)


def keyed_power(tokens: int, far: float, degrees: int, alarm: float) -> float:
    """Return how often the test finds that tokens are ``far`` from the target, in total variation given those before.

    The statistic is then at least a noncentral chi-square of noncentrality 4 n far², a mixture of chi-squares.

    Example: ``power(24_000, 0.04, 18, 1e-8)`` is 0.99…
    """
    mean, low, high = 2 * tokens * far**2, 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chi_square(middle, degrees) > alarm else (low, middle)
    weights = torch.distributions.Poisson(mean).log_prob(torch.arange(2000.0)).exp()
    return sum(float(weight) * chi_square(high, degrees + 2 * place) for place, weight in enumerate(weights) if weight)
