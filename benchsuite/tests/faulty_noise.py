"""Policies and drafts that use noise twice, each right but for that."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchsuite.conformance.exact.table_target import TableDraft
from specdec import Context, Purpose, Verdict, Window, sampling
from specdec_plugins.drafts.draft_model import DraftModel
from specdec_plugins.policies.block import Block
from specdec_plugins.policies.rejection import Rejection
from specdec_plugins.policies.tree_rejection import TreeRejection


class SharedCoin(TreeRejection):
    """Judges all siblings by one coin."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        position = context.length[:, None] + window.depth
        keys = context.ops.noise_keys(context.params.stream, position, 0)
        return context.ops.tree_sample(
            logits.softmax(dim=-1),
            window,
            accept_key=context.ops.noise_keys(context.params.stream, position - 1, 0)[Purpose.ACCEPT],
            residual_key=keys[Purpose.RESIDUAL],
            bonus_key=keys[Purpose.TARGET],
        )


class Frozen(Context):
    """A context whose steps all have one number."""

    @property
    def step(self) -> Tensor:
        """int64 [B, 1]: zeros."""
        return torch.zeros_like(self.length)[:, None]


def frozen(context: Context) -> Context:
    """The same context with ``Frozen.step``."""
    return Frozen(**{name: getattr(context, name) for name in Context.__dataclass_fields__})


class StaleCoins(Block):
    """Judges the positions that it looked at before a rejection by the same coins again."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        return super().accept(logits, window, frozen(context))


class Echo(Rejection):
    """Draws the token after a rejection with the noise that drew the rejected one (vllm#47386)."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        position, stream = context.length[:, None] + window.depth, context.params.stream
        keys = context.ops.noise_keys(stream, position, 0)
        return context.ops.rejection_sample(
            logits.softmax(dim=-1),
            window,
            accept_key=keys[Purpose.ACCEPT],
            residual_key=context.ops.noise_keys(stream, position, context.step)[Purpose.DRAFT],
            bonus_key=keys[Purpose.TARGET],
        )


class Tossed(Rejection):
    """Draws the token after a rejection with the noise of the coin that rejected."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        keys = context.ops.noise_keys(context.params.stream, context.length[:, None] + window.depth, 0)
        return context.ops.rejection_sample(
            logits.softmax(dim=-1),
            window,
            accept_key=keys[Purpose.ACCEPT],
            residual_key=keys[Purpose.ACCEPT],
            bonus_key=keys[Purpose.TARGET],
        )


class SeedlessPolicy(Rejection):
    """Draws by the noise of the request alone, whatever its seed (vllm#6038)."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        stream = sampling.stream(torch.zeros_like(context.request), context.request)
        return super().accept(logits, window, replace(context, params=replace(context.params, stream=stream)))


class Unnumbered(Rejection):
    """Draws by noise that is the same for every request."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        params = replace(context.params, stream=torch.ones_like(context.request))
        return super().accept(logits, window, replace(context, params=params))


class StaleTable(TableDraft):
    """Draws at a position by the same noise in every step."""

    def propose(self, context: Context) -> Window:
        """See ``Draft``."""
        return super().propose(frozen(context))


class StaleModel(DraftModel):
    """Draws at a position by the same noise in every step."""

    def propose(self, context: Context) -> Window:
        """See ``Draft``."""
        return super().propose(frozen(context))


class StaleAtFirst(DraftModel):
    """Draws by the same noise in its first two steps, and by new noise in those after."""

    _calls = 0

    def propose(self, context: Context) -> Window:
        """See ``Draft``."""
        self._calls += 1
        return super().propose(frozen(context) if self._calls <= 2 else context)
