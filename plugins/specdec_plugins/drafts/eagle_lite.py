"""EAGLE without weights: it extrapolates the next hidden state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from specdec import Context, Draft, Request, Verdict, Window
from specdec.interfaces import Env
from specdec_plugins.chain import Chain


class EagleLite(Draft):
    """Extrapolates h' = h + alpha (h - h_before) step by step; the target's own head reads a token from each h'.

    ``max_draft`` above 0 limits the proposals of a step; ``reset`` forgets the difference after a rejection, so that
    the next step repeats the last hidden state. It is untrained and almost never accepted: a lower bound.
    """

    needs_hidden = small_ops = True

    def __init__(self, env: Env, alpha: float, max_draft: int, reset: bool) -> None:
        self._alpha, self._most, self._reset = alpha, max_draft, reset
        self._head = env.target.model.get_output_embeddings()
        self.weight_bytes = self._head.weight.nbytes
        self._forwards, self._runtime = 0, env.runtime
        size = self._head.weight.shape[1]
        self._last, self._before = (
            torch.zeros(env.max_rows, size, dtype=env.target.dtype, device=env.target.device) for _ in range(2)
        )

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Set both hidden states to 0."""
        self._last[row] = self._before[row] = 0

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """Nothing but that it can go on: the states of the last common tokens come again."""
        return ()

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move both hidden states with the request."""
        self._last[row], self._before[row] = self._last[source], self._before[source]

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Store the last two hidden states of a chunk of the prompt."""
        both = torch.cat([self._last[row : row + 1], hidden[0]])
        self._before[row], self._last[row] = both[-2], both[-1]

    def propose(self, context: Context) -> Window:
        """A chain of the tokens that the head reads from extrapolated states."""
        k = int(context.max_proposals_host.max())
        k = min(k, self._most) if self._most else k
        self._forwards += k
        return self._runtime.steps((self, context.kind, k)).part(self._drafted, context, k)

    def _drafted(self, context: Context, k: int) -> Window:
        rows = slice(0, context.rows)
        last, before = self._last[rows], self._before[rows]
        chain = Chain(context, len(self._head.weight))
        for _ in range(k):
            before, last = last, last + self._alpha * (last - before)
            chain.propose(self._head(last[:, None]).float())
        return chain.window()

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Store the hidden states of the last accepted slot and of the slot before it."""
        assert hidden is not None
        rows, accepted = slice(0, len(verdict.next)), verdict.num_accepted
        newest, one_less = verdict.last(hidden), replace(verdict, num_accepted=(accepted - 1).clamp(min=0))
        before = torch.where(accepted[:, None] > 0, one_less.last(hidden), self._last[rows])
        if self._reset:
            rejected = accepted < window.width - 1
            before = torch.where(rejected[:, None], newest, before)
        self._last[rows], self._before[rows] = newest, before

    def info(self) -> Mapping[str, int]:
        """Products of the target's head, one for each proposal."""
        return {"draft_forwards": self._forwards}
