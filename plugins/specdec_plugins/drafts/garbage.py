"""garbage: random tokens, the worst possible draft; the output must not change."""

from __future__ import annotations

from collections.abc import Callable

import torch

from specdec import Context, Draft, Window, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec.sampling import Purpose, mix


class Garbage(Draft):
    """Proposes K tokens drawn uniformly from the vocabulary, with keyed noise like every other draw.

    Source: this project; a lower bound and a control.
    """

    small_ops = True

    def __init__(self, env: Env) -> None:
        self._vocabulary, self._runtime = env.target.vocabulary, env.runtime

    def propose(self, context: Context) -> Window:
        """K uniform tokens a row."""
        k = int(context.max_proposals_host.max())
        return self._runtime.steps((self, context.kind, k)).part(self._drawn, context, k)

    def _drawn(self, context: Context, k: int) -> Window:
        position = context.length[:, None] + torch.arange(k, device=context.length.device)
        noise = mix(context.ops.noise_keys(context.params.stream, position, 0)[Purpose.DRAFT] + 1)
        return Window.chain(context.pending, noise % self._vocabulary, context.max_proposals)


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``garbage``."""
    register("garbage", Garbage)
