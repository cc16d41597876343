"""A reduced vocabulary: the rows of the target's head that a head reads its tokens from."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec import Context
from specdec.interfaces import Env
from specdec_plugins.growth import wanted


class Reduced:
    """D of the target's V tokens (FR-Spec, Zhao et al. 2502.14856): what a small head can afford to choose from.

    ``ids`` int64 [D]. A token outside is never proposed, which costs acceptance and nothing else: as a distribution
    over V it has probability 0.
    """

    def __init__(self, env: Env, ids: Tensor) -> None:
        self.ids, self.vocabulary, self._ops = ids, env.target.vocabulary, env.ops
        # Half the bytes: what is lost in precision is far below what a small head does not know.
        dtype = torch.bfloat16 if env.target.dtype == torch.float32 else env.target.dtype
        self._rows = env.target.model.get_output_embeddings().weight[ids].to(dtype)

    def read_with(self, rows: Tensor) -> None:
        """Read tokens with other rows [D, H] than the target's own."""
        self._rows = rows

    def logits(self, state: Tensor) -> Tensor:
        """float32 [..., D] of estimated hidden states [..., H]."""
        return self._ops.linear(state, self._rows, None).float()

    def distribution(self, context: Context, state: Tensor, depth: int | Tensor) -> Tensor:
        """``growth.wanted`` [B, W, D] of tokens after estimated states [B, W, H]."""
        return wanted(context, self.logits(state), depth, self.ids)
