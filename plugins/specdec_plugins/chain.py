"""A chain of proposals that a model draws one after another."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec import Context, Window


class Chain:
    """Draws the proposals of a chain; keeps the distributions from which they were drawn if a policy needs them.

    ``vocabulary`` is the target's V. Logits may cover fewer tokens: ``ids`` int64 [D] are their ids (None: all).
    """

    def __init__(self, context: Context, vocabulary: int, ids: Tensor | None = None) -> None:
        self._context, self._vocabulary, self._ids = context, vocabulary, ids
        self._tokens: list[Tensor] = []
        self._distributions: list[Tensor] = []

    def propose(self, logits: Tensor) -> Tensor:
        """Draw the next proposal of every row, int64 [B, 1], from float32 logits [B, 1, D]."""
        context = self._context
        if context.params.greedy:
            token = logits.max(dim=-1).indices
            token = token if self._ids is None else self._ids[token]
        else:
            nothing = torch.full_like(context.pending[:, None], -1)
            processed = context.process(logits, nothing, context.pending[:, None])
            position = context.length[:, None] + len(self._tokens)
            token = context.propose_token(self._widened(processed, float("-inf")), position)
            if not context.coupled:
                self._distributions.append(self._widened(processed.softmax(dim=-1), 0.0))
        self._tokens.append(token)
        return token

    def window(self) -> Window:
        """The chain's window; no row has more proposals than room."""
        distributions = torch.cat(self._distributions, dim=1) if self._distributions else None
        proposed = self._context.max_proposals.clamp(max=len(self._tokens))
        return Window.chain(self._context.pending, torch.cat(self._tokens, dim=1), proposed, distributions)

    def _widened(self, distribution: Tensor, fill: float) -> Tensor:
        """[B, 1, D] as a new [B, 1, V], with ``fill`` for tokens outside the smaller vocabulary."""
        if self._ids is None:
            return distribution
        whole = torch.full(
            (*distribution.shape[:-1], self._vocabulary), fill, dtype=distribution.dtype, device=distribution.device
        )
        return whole.index_copy_(-1, self._ids, distribution)
