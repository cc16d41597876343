"""eagle: one small layer that predicts the target's next hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from specdec import Draft, hookimpl
from specdec.arena import LayerShape, Plan
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.drafts.eagle_lite import EagleLite
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead, refuse_tree
from specdec_plugins.heads import files
from specdec_plugins.heads.rounding import bits_named, stored_bytes
from specdec_plugins.reduced import Reduced


class TrainedEagle(FeedbackHead):
    """EAGLE's head as ``FeedbackDraft`` asks it: its states are estimates of the target's last hidden states."""

    def __init__(self, env: Env, name: str, bits: int | None) -> None:
        head, self.ids = files.load_eagle(name, env.target)
        self._net, self._ops, self._embed = head, env.ops, env.target.model.get_input_embeddings()
        self._device, self._dtype = env.target.device, env.target.dtype
        self._reduced = Reduced(env, self.ids, bits)
        self._weights = head.weights(env.ops, bits)
        shape = head.shape
        self.layers, self.size = [LayerShape(shape.heads_kv, shape.head_dim, None)], shape.hidden
        self.weight_bytes = stored_bytes(head, bits) + self._reduced.weight_bytes

    def reach(self, positions: int) -> None:
        """The rotary's numbers at every position: a step reads them."""
        self._turns = self._net.turn(torch.arange(positions, device=self._device), self._dtype)

    def feature(self, hidden: Tensor) -> Tensor:
        """The target's states themselves."""
        return hidden

    def step(self, tokens: Tensor, feature: Tensor, plan: Plan) -> Tensor:
        """See ``FeedbackHead``."""
        turn = self._turns[0][plan.position], self._turns[1][plan.position]
        after: Tensor = self._net(self._ops, self._embed(tokens), feature, turn, plan.at(0), self._weights)
        return after

    def logits(self, feature: Tensor) -> Tensor:
        """By the rows of the target's own head, of which the estimate is an input."""
        return self._reduced.logits(feature)


class Eagle(FeedbackDraft):
    """A trained one-layer head with keys and values of its own (EAGLE, Li et al. 2401.15077)."""

    needs_hidden = True

    def __init__(
        self,
        env: Env,
        head: str,
        max_draft: int,
        beam: int,
        depth: int,
        least: float,
        leaves: int,
        bits: int | None = None,
    ) -> None:
        super().__init__(env, TrainedEagle(env, head, bits), max_draft, beam, depth, least, leaves)


def eagle(
    env: Env,
    head: Annotated[str, "lite: no weights; trained: the shipped head; or a head's file"] = "lite",
    alpha: Annotated[float, "lite: factor of the last difference of hidden states"] = 0.5,
    max_draft: Annotated[int, "most proposals of a step, for any K; 0 is no limit"] = 0,
    reset: Annotated[bool, "lite: forget the difference after a rejection"] = True,
    beam: Annotated[int, "trained: nodes expanded at each depth; 1 drafts a chain, more a tree"] = 1,
    depth: Annotated[int, "trained: deepest proposals of a tree"] = 5,
    least: Annotated[float, "trained: smallest probability, by the head, of a tree's node"] = 0.0,
    leaves: Annotated[int, "trained: other tokens beside each proposal, which cost no forward of the head"] = 0,
    weights: Annotated[str, "trained: float as stored, or matrices and vocabulary rounded to int8 or int4"] = "float",
) -> Draft:
    """Predicts the target's next hidden states; the target's own head reads tokens from them.

    ``head=lite`` extrapolates, h' = h + alpha (h - h_before), without any weights; it is almost never accepted and
    serves as a lower bound. ``head=trained`` is the one-layer head shipped for the embedded target.

    Source: EAGLE, Li et al. 2401.15077; trees, EAGLE-2, 2406.16858; training, EAGLE-3, 2503.01840.

    Example: ``eagle(head=trained, beam=4)`` with K = 16 verifies trees of 16 nodes.
    """
    refuse_tree("eagle", beam, depth, max_draft, least, leaves)
    if head == "lite":
        return EagleLite(env, alpha, max_draft, reset)
    return Eagle(env, head, max_draft, beam, depth, least, leaves, bits_named(weights))


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``eagle``, and ``eagle_lite`` for ``eagle(head=lite)``."""
    register("eagle", eagle)
    register("eagle_lite", "eagle(head=lite)")
