"""A reduced vocabulary: the rows of the target's head from which a draft head reads its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec import Context
from specdec.interfaces import Env
from specdec.quantised import Quantised
from specdec.sharding import whole_weight
from specdec_plugins.growth import wanted


class Reduced:
    """D of the target's V tokens (FR-Spec, Zhao et al. 2502.14856), few enough for the cost of a small head.

    ``ids`` int64 [D]. Other tokens are never proposed, which lowers acceptance and changes nothing else: their
    probability in q over V is 0. ``bits`` 8 or 4 rounds the rows. ``weight_bytes``: bytes of the rows, which each call
    of ``logits`` reads.
    """

    def __init__(self, env: Env, ids: Tensor, bits: int | None = None) -> None:
        self.ids, self.vocabulary, self._ops, self._bits = ids, env.target.vocabulary, env.ops, bits
        # bfloat16 halves the bytes; its rounding error is far smaller than the error of a small head.
        dtype = torch.bfloat16 if env.target.dtype == torch.float32 else env.target.dtype
        self.read_with(whole_weight(env.target.model.get_output_embeddings())[ids].to(dtype))

    def read_with(self, rows: Tensor) -> None:
        """Read tokens with ``rows`` [D, H] instead of the target's own rows."""
        kept = rows if self._bits is None else Quantised.of(rows, self._bits)
        self.weight_bytes: int = kept.nbytes
        self._rows = self._ops.pack(kept)

    def logits(self, state: Tensor) -> Tensor:
        """Logits float32 [..., D] of estimated hidden states [..., H]."""
        return self._ops.linear(state, self._rows, None).float()

    def distribution(self, context: Context, state: Tensor, depth: int | Tensor, paths: Tensor | None = None) -> Tensor:
        """``growth.wanted``, [B, W, D], of the tokens after estimated hidden states [B, W, H]."""
        return wanted(context, self.logits(state), depth, paths, self.ids, self.vocabulary)
