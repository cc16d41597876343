"""A reduced vocabulary: the rows of the target's head that a head reads its tokens from."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec import Context, Window
from specdec.interfaces import Env
from specdec_plugins.growth import wanted


class Reduced:
    """D of the target's V tokens (FR-Spec, Zhao et al. 2502.14856): what a small head can afford to choose from.

    ``ids`` int64 [D]. A token outside is never proposed, which costs acceptance and nothing else: as a law over V
    it has probability 0.
    """

    def __init__(self, env: Env, ids: Tensor) -> None:
        self.ids, self._ops, self._vocabulary = ids, env.ops, env.target.vocabulary
        # Half the bytes: what is lost in precision is far below what a small head does not know.
        dtype = torch.bfloat16 if env.target.dtype == torch.float32 else env.target.dtype
        self._rows = env.target.model.get_output_embeddings().weight[ids].to(dtype)

    def read_with(self, rows: Tensor) -> None:
        """Read tokens with other rows [D, H] than the target's own."""
        self._rows = rows

    def logits(self, state: Tensor) -> Tensor:
        """float32 [..., D] of estimated hidden states [..., H]."""
        return self._ops.linear(state, self._rows, None).float()

    def law(self, context: Context, state: Tensor, depth: int | Tensor) -> Tensor:
        """``growth.wanted`` [B, W, D] of tokens after estimated states [B, W, H]."""
        return wanted(context, self.logits(state), depth, self.ids)

    def begin(self, context: Context) -> Chain:
        """A chain of proposals, to be made one after another."""
        return Chain(self, context)

    def widened(self, law: Tensor, fill: float) -> Tensor:
        """[B, W, D] as [B, W, V], ``fill`` where no token of the reduced vocabulary is."""
        whole = torch.full((*law.shape[:-1], self._vocabulary), fill, dtype=law.dtype, device=law.device)
        return whole.index_copy_(-1, self.ids, law)


class Chain:
    """Proposals drawn one after another from a reduced vocabulary, and the laws they were drawn from."""

    def __init__(self, reduced: Reduced, context: Context) -> None:
        self._reduced, self._context = reduced, context
        self._tokens: list[Tensor] = []
        self._laws: list[Tensor] = []

    def propose(self, logits: Tensor) -> Tensor:
        """The next proposal of every row, int64 [B, 1], from logits [B, 1, D]."""
        context, reduced = self._context, self._reduced
        if context.params.greedy:
            token = reduced.ids[logits.max(dim=-1).indices]
        else:
            nothing = context.pending[:, None]
            processed = context.process(logits, torch.full_like(nothing, -1), nothing)
            position = context.length[:, None] + len(self._tokens)
            token = context.propose_token(reduced.widened(processed, float("-inf")), position)
            if not context.coupled:
                self._laws.append(reduced.widened(processed.softmax(dim=-1), 0.0))
        self._tokens.append(token)
        return token

    def window(self) -> Window:
        """The chain's window."""
        laws = torch.cat(self._laws, dim=1) if self._laws else None
        proposed = self._context.max_proposals.clamp(max=len(self._tokens))
        return Window.chain(self._context.pending, torch.cat(self._tokens, dim=1), proposed, laws)
