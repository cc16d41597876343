"""Lossy policies: what those that judge each proposal by the target's own distribution share."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window
from specdec.interfaces import Contract


class Lenient(Policy):
    """Keeps every proposal that is good enough; where none is, the target's own draw comes.

    Looks at the target's distribution before temperature and filters, so that it means the same when greedy. One method
    must be written: ``good``.
    """

    coupled = True
    trees = True
    raw = True

    def contract(self, params: SamplingParams) -> Contract:
        """Lossy, whatever the temperature: the output is neither plain decoding's nor has its distribution."""
        return "lossy"

    @abstractmethod
    def good(self, distribution: Tensor, window: Window) -> Tensor:
        """bool [B, W]: whether node w may be kept; row w of ``distribution`` [B, W, V] is the target's distribution at
        its parent."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Follow the first good child as long as there is one, then draw as plain decoding would."""
        distribution = logits.softmax(dim=-1)
        at_parent = distribution.gather(1, window.parents.clamp(min=0)[:, :, None].expand_as(distribution))
        processed = context.process(logits, window.parents, window.tokens)
        drawn = context.choose(processed, context.length[:, None] + window.depth, Purpose.TARGET)
        return context.ops.verify_prefix(window, window.prefer(self.good(at_parent, window), drawn))


def probability(distribution: Tensor, window: Window) -> Tensor:
    """[B, W]: what the distribution at each node's parent gives the node's token."""
    return distribution.gather(2, window.tokens[:, :, None])[:, :, 0]


def rank_is_below(distribution: Tensor, window: Window, k: int) -> Tensor:
    """bool [B, W]: whether fewer than ``k`` tokens are likelier than the node's."""
    return (distribution > probability(distribution, window)[:, :, None]).sum(dim=2) < k
