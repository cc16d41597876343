"""rejection: speculative sampling as Leviathan et al. and Chen et al. define it, for chains."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, hookimpl
from specdec.interfaces import Contract, Env, PolicyFactory


class Rejection(Policy):
    """Accepts x ~ q with probability min(1, p(x)/q(x)), else draws from the residual norm(max(p - q, 0)).

    The output has the target's distribution. Greedy rows have one-hot distributions, for which this accepts exactly
    the target's own tokens. Draws for draft, acceptance, residual and bonus use noise of separate purposes.

    Source: Leviathan et al. 2211.17192, theorem 1; Chen et al. 2302.01318.
    """

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """The same tokens when greedy, the same distribution when sampled."""
        return "exact" if params.temperature == 0 else "distribution"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Token-wise rejection over the chain."""
        position = context.length[:, None] + window.depth
        keys = context.ops.noise_keys(context.params.stream, position, 0)
        return context.ops.rejection_sample(
            logits.softmax(dim=-1),
            window,
            accept_key=keys[Purpose.ACCEPT],
            residual_key=keys[Purpose.RESIDUAL],
            bonus_key=keys[Purpose.TARGET],
        )


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``rejection``."""
    register("rejection", Rejection)
