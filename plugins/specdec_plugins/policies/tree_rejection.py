"""tree_rejection: recursive rejection over siblings, for trees and chains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory
from specdec.sampling import key


class TreeRejection(Policy):
    """Try a node's children in order: accept x with min(1, p(x)/q(x)), else p becomes norm(max(p - q, 0)).

    q is the distribution that a child was drawn from given its elder siblings (drawn without replacement), or one-hot
    where it was certain. When no child is left the next token comes from what p has become. The distribution is the
    target's at every node, whatever the tree. Each sibling has a coin of its own.

    Source: SpecInfer, Miao et al. 2305.09781, algorithm 2; without replacement, EAGLE, Li et al. 2401.15077.
    """

    trees = True

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """The same tokens when greedy, the same distribution when sampled."""
        return "exact" if params.temperature == 0 else "distribution"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Walk over the slots once; a slot counts if the walk stands at its parent."""
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
            # A proposal that its own q calls impossible proves q wrong; nothing can be kept of it.
            ratio = torch.where(q.gather(1, token) > 0, ratio, 0.0)
            coin = context.ops.accept(ratio, key(stream, position[:, slot, None] - 1, Purpose.ACCEPT, slot))[:, 0]
            kept, refused = here & coin, here & ~coin
            rest = (left - q).clamp(min=0)
            mass = rest.sum(dim=1, keepdim=True)
            # p == q up to rounding leaves nothing; then p itself stays the distribution.
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
