"""block: block verification, which judges a whole chain before it rejects any part of it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory


class Block(Policy):
    """Accepts the longest prefix whose uniform draw is below its bound; then draws from the residual distribution.

    The rule is ``specdec.acceptance.block_verdict``. The output has the target's distribution, and the expected number
    of accepted tokens is at least that of token-wise rejection. A draw of one step also concerns positions of the next
    step, so every step uses new draws.

    Source: Sun et al. 2403.10444, algorithm 2 and theorem 2.
    """

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """The same tokens when greedy, the same distribution when sampled."""
        return "exact" if params.temperature == 0 else "distribution"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Block verification over the chain."""
        position, stream = context.length[:, None] + window.depth, context.params.stream
        keys = context.ops.noise_keys(stream, position, 0)
        return context.ops.block_sample(
            logits.softmax(dim=-1),
            window,
            accept_key=context.ops.noise_keys(stream, position, context.step)[Purpose.ACCEPT],
            residual_key=keys[Purpose.RESIDUAL],
            bonus_key=keys[Purpose.TARGET],
        )


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``block``."""
    register("block", Block)
