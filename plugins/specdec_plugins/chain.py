"""A chain of proposals that a model draws one after another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec import Context, Window
from specdec.confidence import NO_ESTIMATE


class Chain:
    """Draws the proposals of a chain; keeps the distributions from which they were drawn if a policy needs them.

    ``vocabulary`` is the target's V. Logits may cover fewer tokens: ``ids`` int64 [D] are their ids (None: all).
    ``confident``: its window has a confidence, each token's probability by its logits before any processor.
    """

    def __init__(self, context: Context, vocabulary: int, ids: Tensor | None = None, confident: bool = False) -> None:
        self._context, self._vocabulary, self._ids, self._confident = context, vocabulary, ids, confident
        self._tokens: list[Tensor] = []
        self._chances: list[Tensor] = []
        self._distributions: list[Tensor] = []

    def propose(self, logits: Tensor) -> Tensor:
        """Draw the next proposal of every row, int64 [B, 1], from float32 logits [B, 1, D]."""
        context = self._context
        if context.params.greedy and context.params.adjustments is None:
            token = logits.max(dim=-1).indices
            token = token if self._ids is None else self._ids[token]
        else:
            processed = context.process(widened(logits, self._ids, self._vocabulary), self)
            position = context.length[:, None] + len(self._tokens)
            token = context.propose_token(processed, position)
            if not context.coupled:
                self._distributions.append(processed.softmax(dim=-1))
        self._tokens.append(token)
        if self._confident:
            own = widened(logits, self._ids, self._vocabulary).gather(2, token[:, :, None])[:, :, 0]
            self._chances.append((own - logits.logsumexp(dim=-1)).clamp(max=0).exp())
        return token

    def window(self) -> Window:
        """The chain's window; no row has more proposals than room."""
        distributions = torch.cat(self._distributions, dim=1) if self._distributions else None
        proposed = self._context.max_proposals.clamp(max=len(self._tokens))
        sure = F.pad(torch.cat(self._chances, dim=1), (1, 0), value=NO_ESTIMATE) if self._chances else None
        return Window.chain(self._context.pending, torch.cat(self._tokens, dim=1), proposed, distributions, sure)

    @property
    def paths(self) -> Tensor:
        """int64 [B, 1, D]: the D proposals so far, which the next one follows."""
        drawn = self._tokens or [self._context.pending[:, None][:, :0]]
        return torch.cat(drawn, dim=1)[:, None]


def widened(logits: Tensor, ids: Tensor | None, vocabulary: int) -> Tensor:
    """Logits [B, N, D] of the tokens ``ids`` int64 [D] (None: all) as [B, N, V]; other tokens are impossible."""
    if ids is None:
        return logits
    whole = logits.new_full((*logits.shape[:-1], vocabulary), float("-inf"))
    return whole.index_copy_(-1, ids, logits)
