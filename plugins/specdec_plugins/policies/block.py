"""block: block verification, which judges a whole chain before it rejects any part of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory
from specdec.sampling import key


class Block(Policy):
    """Accepts the longest prefix i whose uniform draw is below h_i; then draws from the residual distribution.

    With r_0 = 1 and r_i = min(1, r_{i-1} p(x_i) / q(x_i)): h_i = s_i / (s_i + 1 - r_i) for s_i = sum_x max(r_i p(x)
    - q(x), 0) over the next token, and h = r at the last proposal. The next token is drawn from max(r_i p -
    q, 0), normalised, or after the whole chain from p. The output has the target's distribution, and the expected
    number of accepted tokens is at least that of token-wise rejection. A draw of one step also concerns positions of
    the next step, so every step uses new draws.

    Source: Sun et al. 2403.10444, algorithm 2 and theorem 2.
    """

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """The same tokens when greedy, the same distribution when sampled."""
        return "exact" if params.temperature == 0 else "distribution"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Block verification over the chain."""
        distribution, count = logits.softmax(dim=-1), window.width - 1
        slots = torch.arange(window.tokens.shape[1], device=distribution.device)
        kept = self.survival(distribution, window)
        position = context.length[:, None] + slots
        coins = context.ops.accept(
            self.stopping(distribution, window, kept),
            key(context.params.stream, position, Purpose.ACCEPT, context.step),
        )
        num_accepted = torch.where(coins & (slots <= count[:, None]), slots, 0).amax(dim=1)
        drawn = self._next(distribution, window, kept, num_accepted, context)
        return Verdict(torch.where(slots <= num_accepted[:, None], slots, -1), num_accepted, drawn)

    @staticmethod
    def survival(distribution: Tensor, window: Window) -> Tensor:
        """r [B, W]: r_0 = 1 at the root, r_i at slot i."""
        tokens = window.tokens[:, 1:, None]
        p = distribution[:, :-1].gather(2, tokens)[:, :, 0]
        q = torch.ones_like(p) if window.q is None else window.q.gather(2, tokens)[:, :, 0].to(p.dtype)
        ratio = torch.where(q > 0, p / q, 0.0)
        kept = [torch.ones_like(distribution[:, 0, 0])]
        for index in range(ratio.shape[1]):
            kept.append((kept[-1] * ratio[:, index]).clamp(max=1))
        return torch.stack(kept, dim=1)

    @staticmethod
    def stopping(distribution: Tensor, window: Window, kept: Tensor) -> Tensor:
        """h [B, W], the bound of the uniform draw at each slot; 1 at the root, undefined past a row's width."""
        if window.q is None:
            p = distribution[:, :-1].gather(2, window.tokens[:, 1:, None])[:, :, 0]
            left = kept[:, :-1] * (1 - p)  # r p(x) - 1 is never positive at the certain token itself
        else:
            left = (kept[:, :-1, None] * distribution[:, :-1] - window.q).clamp(min=0).sum(dim=2)
        below = left + 1 - kept[:, :-1]
        # 0 / 0: here q equals p, and the next slot decides.
        inner = torch.where(below > 0, left / below, 1.0)
        last = torch.arange(kept.shape[1], device=distribution.device) == window.width[:, None] - 1
        return torch.where(last, kept, torch.nn.functional.pad(inner, (0, 1)))

    @staticmethod
    def _next(distribution: Tensor, window: Window, kept: Tensor, num_accepted: Tensor, context: Context) -> Tensor:
        at = num_accepted[:, None]
        p = distribution.gather(1, at[:, :, None].expand(-1, 1, distribution.shape[2]))[:, 0]
        rejected = num_accepted < window.width - 1
        if window.tokens.shape[1] > 1:
            following = at.clamp(max=window.tokens.shape[1] - 2)
            if window.q is None:
                q = torch.zeros_like(p).scatter(1, window.tokens.gather(1, following + 1), 1.0)
            else:
                q = window.q.gather(1, following[:, :, None].expand(-1, 1, distribution.shape[2]))[:, 0].to(p.dtype)
            residual = (kept.gather(1, at) * p - q).clamp(min=0)
            usable = rejected & (residual.sum(dim=1) > 0)
            p = torch.where(usable[:, None], residual, p)
        stream, position = context.params.stream, (context.length + num_accepted)[:, None]
        keys = torch.where(
            rejected[:, None], key(stream, position, Purpose.RESIDUAL), key(stream, position, Purpose.TARGET)
        )
        return context.ops.sample(p.log()[:, None], keys)[:, 0]


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``block``."""
    register("block", Block)
