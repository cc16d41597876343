"""Medusa's heads: each predicts one token further, all from the same hidden state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specdec.interfaces import Backend
from specdec.packed import Weight


class MedusaHeads(nn.Module):
    """Head i estimates hidden state t + i + 1 from hidden state t and token t + 1.

    Medusa (Cai et al. 2401.10774) uses only the hidden state. The token after it is known when the heads draft, and
    its use costs one row of the embedding table (Hydra, Ankner et al. 2402.05109, uses tokens too). The rows of the
    target's own head read tokens from the results of all heads.

    Example: ``heads(ops, embedded, hidden)`` is [B, N, H] for embedded [B, H] and hidden [B, H].
    """

    def __init__(self, hidden: int, wide: int, count: int, eps: float) -> None:
        super().__init__()
        self.hidden, self.wide, self.count, self.eps = hidden, wide, count, eps
        self.token_norm, self.hidden_norm = (nn.Parameter(torch.ones(hidden)) for _ in range(2))
        self.up = nn.Parameter(torch.randn(count * wide, 2 * hidden) * 0.02)
        self.down = nn.Parameter(torch.zeros(count * hidden, wide))
        self.norm = nn.Parameter(torch.ones(hidden))

    def weights(self, ops: Backend) -> tuple[Weight, list[Weight]]:
        """The matrices as ``ops`` reads them fastest: ``up``, and each head's part of ``down``."""
        down = self.down.view(self.count, self.hidden, self.wide)
        return ops.pack(self.up), [ops.pack(part) for part in down]

    def forward(
        self, ops: Backend, embedded: Tensor, hidden: Tensor, weights: tuple[Weight, list[Weight]] | None = None
    ) -> Tensor:
        """Hidden states [B, N, H], head i's at index i; ``embedded`` and ``hidden`` [B, H].

        ``weights`` is the result of ``weights(ops)``, if the caller keeps it.
        """
        up, down = weights or self.weights(ops)
        wide = ops.rms_norm(hidden, self.hidden_norm, self.eps, 0.0)
        pair = torch.cat([ops.rms_norm(embedded, self.token_norm, self.eps, 0.0), wide], dim=-1)
        inner = nn.functional.silu(ops.linear(pair, up, None)).unflatten(-1, (self.count, self.wide))
        steps = [ops.linear(inner[:, i], down[i], None) for i in range(self.count)]
        return ops.rms_norm(wide[:, None] + torch.stack(steps, dim=1), self.norm, self.eps, 0.0)

    def describe(self) -> dict[str, float | int]:
        """The sizes as plain numbers, for a file's header."""
        return {"hidden": self.hidden, "wide": self.wide, "count": self.count, "eps": self.eps}
