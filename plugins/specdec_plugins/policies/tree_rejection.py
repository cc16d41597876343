"""tree_rejection: recursive rejection over siblings, for trees and chains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory
from specdec.sampling import key


class TreeRejection(Policy):
    """Tries a node's children in order: accepts x with probability min(1, p(x)/q(x)), else p = norm(max(p - q, 0)).

    q is the distribution from which a child was drawn, given its elder siblings (without replacement), or one-hot if
    the child was certain. When no child is left, the next token is drawn from the p that remains. The output has the
    target's distribution at every node, for any tree. Each sibling has its own uniform draw.

    Source: SpecInfer, Miao et al. 2305.09781, algorithm 2; without replacement, EAGLE, Li et al. 2401.15077.
    """

    trees = True

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """The same tokens when greedy, the same distribution when sampled."""
        return "exact" if params.temperature == 0 else "distribution"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Visit the slots once, in order; a slot is tried if its parent is the last accepted node."""
        distribution, stream = logits.softmax(dim=-1), context.params.stream
        position = context.length[:, None] + window.depth
        at = torch.zeros_like(window.width)
        tried = torch.zeros_like(at, dtype=torch.bool)
        left = distribution[:, 0]
        for slot in range(1, window.tokens.shape[1]):
            here = (window.parents[:, slot] == at) & (slot < window.width)
            token = window.tokens[:, slot, None]
            p, q = left.gather(1, token), self._drawn_from(window, slot, left)
            ratio = torch.where(here[:, None], p / q.gather(1, token), 0.0)
            # A proposal with q(x) = 0 shows that q is wrong; it is never accepted.
            ratio = torch.where(q.gather(1, token) > 0, ratio, 0.0)
            coin = context.ops.accept(ratio, key(stream, position[:, slot, None] - 1, Purpose.ACCEPT, slot))[:, 0]
            kept, refused = here & coin, here & ~coin
            rest = (left - q).clamp(min=0)
            mass = rest.sum(dim=1, keepdim=True)
            # If p == q up to rounding, nothing is left; then p stays unchanged.
            rest = torch.where(mass > 0, rest / mass, left)
            left = torch.where(kept[:, None], distribution[:, slot], torch.where(refused[:, None], rest, left))
            at = torch.where(kept, slot, at)
            tried = (tried | refused) & ~kept
        where = position.gather(1, at[:, None])
        keys = torch.where(tried[:, None], key(stream, where, Purpose.RESIDUAL), key(stream, where, Purpose.TARGET))
        drawn = context.ops.sample(left.log()[:, None], keys)[:, 0]
        return Verdict(window.path_to(at), window.depth.gather(1, at[:, None])[:, 0], drawn)

    @staticmethod
    def _drawn_from(window: Window, slot: int, like: Tensor) -> Tensor:
        if window.q is not None:
            return window.q[:, slot - 1].to(like.dtype)
        return torch.zeros_like(like).scatter_(1, window.tokens[:, slot, None], 1.0)


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``tree_rejection``."""
    register("tree_rejection", TreeRejection)
