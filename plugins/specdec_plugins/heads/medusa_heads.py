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


class MedusaBlocks(nn.Module):
    """Heads of residual blocks over the hidden state alone, as Medusa has them: h + silu(W h + b), block after block.

    (Cai et al. 2401.10774, section 2.1.1.) ``blocks`` [N, L, H, H] and ``bias`` [N, L, H] (None: no bias) are the L
    blocks of N heads. ``rows`` [N, D, H], or [D, H] for all heads, read tokens from their results (None: the target's
    own rows), and ``ids`` int64 [D] are the target's ids of these (None: all of its tokens).

    Example: ``MedusaBlocks(torch.zeros(4, 1, 576, 576), None, None, None)`` gives the hidden state itself, four times
    """

    def __init__(self, blocks: Tensor, bias: Tensor | None, rows: Tensor | None, ids: Tensor | None) -> None:
        super().__init__()
        self.blocks = nn.Parameter(blocks, requires_grad=False)
        self.bias, self.rows = (
            None if weight is None else nn.Parameter(weight, requires_grad=False) for weight in (bias, rows)
        )
        self.ids: Tensor | None
        self.register_buffer("ids", ids)

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move it to a device and a dtype."""
        for name, weight in [*self.named_parameters()]:
            setattr(self, name, nn.Parameter(weight.detach().to(device, dtype), requires_grad=False))
        self.ids = None if self.ids is None else self.ids.to(device)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [B, N, H] of all heads from the target's [B, H]."""
        states = hidden[:, None].expand(-1, len(self.blocks), -1)
        for index in range(self.blocks.shape[1]):
            wide = torch.einsum("nij,bnj->bni", self.blocks[:, index], states)
            states = states + nn.functional.silu(wide if self.bias is None else wide + self.bias[:, index])
        return states
