"""longest_prefix: accepts the longest prefix that agrees with the target's likeliest tokens."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory


class LongestPrefix(Policy):
    """Accepts while the proposal is the argmax of the target's processed distribution; then the target draws.

    It needs only the target's likeliest token at each slot. At temperature 0 the output is plain decoding's; above 0
    likely tokens occur too often, so the contract is lossy.

    Source: greedy verification, Blockwise Parallel Decoding, Stern et al. 1811.03115.
    """

    trees = True

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """Exact when greedy, lossy when sampled."""
        return "exact" if params.temperature == 0 else "lossy"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Node w is accepted if its token is the argmax at its parent."""
        best = logits.max(dim=-1).indices
        good = window.tokens == best.gather(1, window.parents.clamp(min=0))
        drawn = context.choose(logits, context.length[:, None] + window.depth, Purpose.TARGET)
        return context.ops.verify_prefix(window, window.prefer(good, drawn))


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``longest_prefix``."""
    register("longest_prefix", LongestPrefix)
