"""match: accepts a proposal if it is the token that the target itself draws."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory


class Match(Policy):
    """Draws the target's token at every node with the noise of its position; follows the tree while tokens agree.

    The noise depends on (seed, request, position) alone, so the output is plain decoding's for any proposals, greedy
    or sampled. Drafts draw with the same noise: two distributions then agree on a token far more often than with
    independent draws.

    Source: Daliri, Musco, Suresh 2408.07978; for argmax drafts, Stern et al. 1811.03115.
    """

    coupled = True
    trees = True
    chooses = True

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """Exact at any temperature."""
        return "exact"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Node w is accepted if its token is the target's draw at its parent."""
        position = context.length[:, None] + window.depth
        choices = context.choose(logits, position, Purpose.TARGET, width=window.width)
        return context.ops.verify_prefix(window, choices)


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``match``."""
    register("match", Match)
