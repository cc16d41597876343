"""Muon in the parameters' own dtype: torch's rounds to bfloat16, which a processor with AVX2 alone must emulate."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

QUINTIC = (3.4445, -4.775, 2.0315)
"""x ↦ ax + bx³ + cx⁵ moves singular values towards 1, the small ones fast (kellerjordan.github.io/posts/muon)."""

ROUNDS = 5
"""How often it is applied."""


class OwnDtypeMuon(torch.optim.Optimizer):
    """Steps of ``torch.optim.Muon`` with ``adjust_lr_fn="match_rms_adamw"``, without its rounding.

    ``block``: where a matrix reads several states of this size side by side, the columns of each are made orthogonal
    apart, which is cheaper. Each step takes 0.2 · lr · √n times the orthogonal matrix of the gradients' Nesterov
    momentum from a parameter, in place; n is its larger side. Weights do not decay: heads begin with what others know.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, block: int) -> None:
        super().__init__(matrices, {"lr": lr})
        self._block = block

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all matrices along their gradients."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                mean = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 0.05)
                ahead = matrix.grad.lerp(mean, 0.95)
                parts = ahead.split(self._block, dim=1) if ahead.shape[1] % self._block == 0 else [ahead]
                moved = torch.cat([orthogonal(part) for part in parts], dim=1)
                matrix.sub_(moved, alpha=0.2 * math.sqrt(max(matrix.shape)) * group["lr"])


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix [m, n] with singular values of about 1 (0.5 to 1.5) where its own are not nearly 0.

    All rounds are of products of the smaller side's Gram matrix, so that only two are of the larger side.
    """
    if matrix.shape[0] < matrix.shape[1]:
        return orthogonal(matrix.T).T
    a, b, c = QUINTIC
    scaled = matrix / matrix.norm().clamp(min=1e-7)
    gram = torch.mm(scaled.T, scaled)
    whole = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(ROUNDS):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        whole = torch.mm(whole, factor)
        gram = torch.mm(torch.mm(factor, gram), factor)
    return torch.mm(scaled, whole)
