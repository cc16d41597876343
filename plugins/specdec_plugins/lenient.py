"""The base of lossy policies that judge each proposal by the target's distribution."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window
from specdec.interfaces import Contract


class Lenient(Policy):
    """Accepts every proposal that is good enough; if none is, the target's own draw follows.

    It uses the target's distribution before temperature and filters, so that the rule is the same when greedy. One
    method must be written: ``good``.
    """

    coupled = True
    trees = True
    raw = True

    def contract(self, params: SamplingParams) -> Contract:
        """Lossy at any temperature: neither the tokens nor the distribution of plain decoding."""
        return "lossy"

    @abstractmethod
    def good(self, distribution: Tensor, window: Window) -> Tensor:
        """bool [B, W]: whether node w may be accepted; row w of ``distribution`` [B, W, V] is the target's distribution
        at the parent of w."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Follow the first good child as long as there is one, then draw as plain decoding does."""
        distribution = logits.softmax(dim=-1)
        at_parent = distribution.gather(1, window.parents.clamp(min=0)[:, :, None].expand_as(distribution))
        processed = context.process(logits, window)
        drawn = context.choose(processed, context.length[:, None] + window.depth, Purpose.TARGET)
        return context.ops.verify_prefix(window, window.prefer(self.good(at_parent, window), drawn))


def probability(distribution: Tensor, window: Window) -> Tensor:
    """[B, W]: the probability of each node's token under the distribution at the node's parent."""
    return distribution.gather(2, window.tokens[:, :, None])[:, :, 0]


def rank_is_below(distribution: Tensor, window: Window, k: int) -> Tensor:
    """bool [B, W]: whether fewer than ``k`` tokens are likelier than the node's."""
    return (distribution > probability(distribution, window)[:, :, None]).sum(dim=2) < k
