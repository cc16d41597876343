"""tree_rejection: recursive rejection over siblings, for trees and chains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory


class TreeRejection(Policy):
    """Tries a node's children in order: accepts x with probability min(1, p(x)/q(x)), else p = norm(max(p - q, 0)).

    The rule is ``specdec.acceptance.tree_verdict``. q is the distribution from which a child was drawn, given its
    elder siblings (without replacement), or one-hot if the child was certain. When no child is left, the next token is
    drawn from the p that remains. The output has the target's distribution at every node, for any tree. Each sibling
    has its own uniform draw.

    Source: SpecInfer, Miao et al. 2305.09781, algorithm 2; without replacement, EAGLE, Li et al. 2401.15077.
    """

    trees = True

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """The same tokens when greedy, the same distribution when sampled."""
        return "exact" if params.temperature == 0 else "distribution"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Recursive rejection from the root on."""
        position, stream = context.length[:, None] + window.depth, context.params.stream
        slots = torch.arange(window.tokens.shape[1], device=logits.device)
        keys = context.ops.noise_keys(stream, position, 0)
        return context.ops.tree_sample(
            logits.softmax(dim=-1),
            window,
            # A proposal's token lies one position before the one that is drawn after it.
            accept_key=context.ops.noise_keys(stream, position - 1, slots)[Purpose.ACCEPT],
            residual_key=keys[Purpose.RESIDUAL],
            bonus_key=keys[Purpose.TARGET],
        )


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``tree_rejection``."""
    register("tree_rejection", TreeRejection)
