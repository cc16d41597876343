"""Exact acceptance of drawn blocks and trees: the definitions of the ops ``block_sample`` and ``tree_sample``.

Coins and draws are the ops ``accept`` and ``sample``, so a backend that takes every outcome in turn enumerates exact
distributions. Sums over the vocabulary are formed in float64, so that a kernel's order of addition decides nothing; on
MPS, which has no float64 and where no other kernel runs them, in the dtype of p.

p is the target's ``distribution`` float32 (or float64) [B, W, V], q is ``window.q``; keys are int64 [B, W]. A number of
q that is not finite counts as 0 (``finite``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.messages import Verdict, Window

if TYPE_CHECKING:
    from specdec.interfaces import Backend


def block_verdict(
    ops: Backend, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
) -> Verdict:
    """Accept the longest prefix i of a chain whose coin falls below h_i; then draw from the residual distribution.

    With r_0 = 1 and r_i = min(1, r_{i-1} p(x_i) / q(x_i)): h_i = s_i / (s_i + 1 - r_i) for s_i = sum_x max(r_i p(x)
    - q(x), 0) over the next token, and h = r at the last proposal. The next token is drawn from max(r_i p - q, 0),
    normalised, or after the whole chain from p. Slot i has its own coin, ``accept_key[:, i]``. Sun et al. 2403.10444,
    algorithm 2.
    """
    slots = torch.arange(window.tokens.shape[1], device=distribution.device)
    kept = survival(distribution, window)
    coins = ops.accept(stopping(distribution, window, kept), accept_key)
    num_accepted = torch.where(coins & (slots < window.width[:, None]), slots, 0).amax(dim=1)
    at = num_accepted[:, None]
    p = distribution.gather(1, at[:, :, None].expand(-1, 1, distribution.shape[2]))[:, 0]
    rejected = num_accepted < window.width - 1
    if window.tokens.shape[1] > 1:
        following = at.clamp(max=window.tokens.shape[1] - 2)
        if window.q is None:
            q = torch.zeros_like(p).scatter(1, window.tokens.gather(1, following + 1), 1.0)
        else:
            q = window.q.gather(1, following[:, :, None].expand(-1, 1, distribution.shape[2]))[:, 0]
            q = finite(q).to(p.dtype)
        residual = (kept.gather(1, at) * p - q).clamp(min=0)
        usable = rejected & (residual > 0).any(dim=1)
        p = torch.where(usable[:, None], residual, p)
    key = torch.where(rejected[:, None], residual_key, bonus_key).gather(1, at)
    drawn = ops.sample(p.log()[:, None], key)[:, 0]
    return Verdict(torch.where(slots <= at, slots, -1), num_accepted, drawn)


def survival(distribution: Tensor, window: Window) -> Tensor:
    """r [B, W] of ``block_verdict``: 1 at the root, r_i at slot i."""
    tokens = window.tokens[:, 1:, None]
    p = distribution[:, :-1].gather(2, tokens)[:, :, 0]
    q = torch.ones_like(p) if window.q is None else window.q.gather(2, tokens)[:, :, 0].to(p.dtype)
    ratio = torch.where(q > 0, p / q, 0.0)
    kept = [torch.ones_like(distribution[:, 0, 0])]
    for index in range(ratio.shape[1]):
        kept.append((kept[-1] * ratio[:, index]).clamp(max=1))
    return torch.stack(kept, dim=1)


def stopping(distribution: Tensor, window: Window, kept: Tensor) -> Tensor:
    """h [B, W] of ``block_verdict``, the bound of each slot's coin, for r ``kept``; undefined past a row's width."""
    if window.q is None:
        p = distribution[:, :-1].gather(2, window.tokens[:, 1:, None])[:, :, 0]
        left = kept[:, :-1] * (1 - p)  # r p(x) - 1 is never positive at the certain token itself
    else:
        over = (kept[:, :-1, None] * distribution[:, :-1] - finite(window.q)).clamp(min=0)
        left = _mass(over)[:, :, 0]
    below = left + 1 - kept[:, :-1]
    # 0 / 0: here q equals p, and the next slot decides.
    inner = torch.where(below > 0, left / below, 1.0)
    last = torch.arange(kept.shape[1], device=distribution.device) == window.width[:, None] - 1
    return torch.where(last, kept, F.pad(inner, (0, 1)))


def tree_verdict(
    ops: Backend, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
) -> Verdict:
    """Try a node's children in order: accept x with probability min(1, p(x)/q(x)), else p = norm(max(p - q, 0)).

    q is the distribution from which a child was drawn, given its elder siblings. When no child is left, the next token
    is drawn from the p that remains. Slot i has its own coin, ``accept_key[:, i]``; the draw after node i has
    ``residual_key[:, i]`` if a child of i was tried, else ``bonus_key[:, i]``. SpecInfer, Miao et al. 2305.09781,
    algorithm 2.
    """
    at = torch.zeros_like(window.width)
    tried = torch.zeros_like(at, dtype=torch.bool)
    left = distribution[:, 0]
    # The slots are visited once, in order; a slot is tried if its parent is the last accepted node.
    for slot in range(1, window.tokens.shape[1]):
        here = (window.parents[:, slot] == at) & (slot < window.width)
        token = window.tokens[:, slot, None]
        p, q = left.gather(1, token), _drawn_from(window, slot, left)
        ratio = torch.where(here[:, None], p / q.gather(1, token), 0.0)
        # A proposal with q(x) = 0 shows that q is wrong; it is never accepted.
        ratio = torch.where(q.gather(1, token) > 0, ratio, 0.0)
        coin = ops.accept(ratio, accept_key[:, slot, None])[:, 0]
        kept, refused = here & coin, here & ~coin
        rest = (left - q).clamp(min=0)
        mass = _mass(rest)
        # If p == q up to rounding, nothing is left; then p stays unchanged.
        rest = torch.where(mass > 0, rest / mass, left)
        left = torch.where(kept[:, None], distribution[:, slot], torch.where(refused[:, None], rest, left))
        at = torch.where(kept, slot, at)
        tried = (tried | refused) & ~kept
    key = torch.where(tried[:, None], residual_key, bonus_key).gather(1, at[:, None])
    drawn = ops.sample(left.log()[:, None], key)[:, 0]
    return Verdict(window.path_to(at), window.depth.gather(1, at[:, None])[:, 0], drawn)


def finite(q: Tensor) -> Tensor:
    """q [..., V] with 0 for every number that is NaN or infinite; a new tensor.

    Such a token is never accepted, and the residual keeps all of its p. This leaves the output distribution intact:
    taken together, these tokens are one more proposal, which the target never gives (docs/proof.md). A row of q without
    a finite number is therefore a proposal that is rejected, after which the token is drawn from p itself. vllm#41834.

    Example: ``finite(torch.tensor([0.5, float("nan")]))`` is ``[0.5, 0.0]``
    """
    return q.nan_to_num(0.0, 0.0, 0.0)


def _mass(rest: Tensor) -> Tensor:
    """The sum over the last axis, which stays as one of size 1."""
    wide = rest.dtype if rest.device.type == "mps" else torch.float64
    return rest.sum(dim=-1, keepdim=True, dtype=wide).to(rest.dtype)


def _drawn_from(window: Window, slot: int, like: Tensor) -> Tensor:
    if window.q is not None:
        return finite(window.q[:, slot - 1]).to(like.dtype)
    return torch.zeros_like(like).scatter_(1, window.tokens[:, slot, None], 1.0)
