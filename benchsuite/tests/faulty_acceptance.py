"""Policies that keep more proposals than they may, for what they promise."""

from __future__ import annotations

import torch
from torch import Tensor

from benchsuite.judge.fidelity import BINS
from specdec import Context, Purpose, SamplingParams, Verdict, Window
from specdec.interfaces import Contract, Env
from specdec_plugins.lenient import Lenient, probability
from specdec_plugins.policies.rejection import Rejection


class SameTenth(Rejection):
    """Keeps a proposal where it lies in the same tenth of the target's distribution as the target's own draw.

    A token with shares of several tenths takes one of them by its share, drawn anew for the proposal and for the draw.
    What moves from one token to another stays in its tenth on the whole, so that transforms remain uniform.
    """

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        distribution, position = logits.softmax(dim=-1), context.length[:, None] + window.depth
        drawn = context.choose(logits, position, Purpose.TARGET)
        proposed = window.tokens.roll(-1, dims=1)  # after slot n comes the proposal of slot n + 1
        alike = (_tenths(distribution, proposed) * _tenths(distribution, drawn)).sum(dim=2)
        keys = context.ops.noise_keys(context.params.stream, position, 0)
        kept = context.ops.accept(alike.clamp(max=1), keys[Purpose.ACCEPT])
        kept &= torch.arange(window.tokens.shape[1], device=kept.device) < window.width[:, None] - 1
        return context.ops.verify_prefix(window, torch.where(kept, proposed, drawn))


class WidelySameTenth(SameTenth):
    """The same where there are more tokens than an enumeration can have; else it is right."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        honest = logits.shape[2] <= BINS
        return Rejection.accept(self, logits, window, context) if honest else super().accept(logits, window, context)


class HalfAsLikely(Lenient):
    """Keeps a proposal of at least half the largest probability, and promises plain's tokens when greedy.

    Where proposals are either the target's likeliest tokens or far from them, nothing is wrong.
    """

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """Exact when greedy."""
        return "exact" if params.temperature == 0 else "lossy"

    def good(self, distribution: Tensor, window: Window) -> Tensor:
        """See ``Lenient``."""
        return probability(distribution, window) >= distribution.amax(dim=2) / 2


def _tenths(distribution: Tensor, tokens: Tensor) -> Tensor:
    """[B, W, 10]: which share of each token's own probability lies in each tenth, likelier tokens being first."""
    own = distribution.gather(2, tokens[:, :, None])
    likelier = (distribution * (distribution > own)).sum(dim=2, keepdim=True)
    low = torch.arange(BINS, device=own.device) / BINS
    inside = torch.minimum(likelier + own, low + 1 / BINS) - torch.maximum(likelier, low)
    return inside.clamp(min=0) / own.clamp(min=torch.finfo(own.dtype).tiny)
