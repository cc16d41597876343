"""eagle3: a published EAGLE-3 head, in the forms of all who publish it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from specdec import Draft, hookimpl
from specdec.arena import LayerShape, Plan
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead, refuse_tree
from specdec_plugins.heads.placed import placed
from specdec_plugins.heads.rounding import bits_named, stored_bytes
from specdec_plugins.published import read_for
from specdec_plugins.published.eagle3 import FORM, Eagle3Parts
from specdec_plugins.published.options import (
    EmbeddingText,
    HeadPath,
    IdsText,
    LayersText,
    MostProposals,
    PickleFlag,
    StatesText,
    WeightsText,
    WindowText,
)
from specdec_plugins.published.reading import Published, Reading


class PublishedEagle3(FeedbackHead):
    """An EAGLE-3 head as ``FeedbackDraft`` asks it: it fuses several of the target's states, and goes on with its own.

    ``weight_bytes`` count the fusion in each forward, though only one of a step's forwards fuses.
    """

    def __init__(self, env: Env, parts: Eagle3Parts, layers: tuple[int, ...], bits: int | None) -> None:
        device, dtype = env.target.device, env.target.dtype
        self._device, self._dtype = device, dtype
        parts = placed(parts, device, dtype)
        self._network, self._ops = parts.network, env.ops
        shape = self._network.shape
        self._weights = self._network.weights(env.ops, bits)
        self._embed = env.target.model.get_input_embeddings()
        if parts.embedding is not None:
            self._embed = torch.nn.Embedding.from_pretrained(parts.embedding.to(dtype))
        ascending = sorted(layers)
        self._order = None
        if list(layers) != ascending:
            self._order = torch.tensor([ascending.index(layer) for layer in layers], device=device)
        self.layers = [LayerShape(shape.heads_kv, shape.head_dim, span) for span in parts.spans]
        self.ids = parts.ids
        self.size, self.weight_bytes = shape.hidden, stored_bytes(self._network, bits)

    def reach(self, positions: int) -> None:
        """The rotary's numbers at every position: a step reads them."""
        self._turns = self._network.turn(torch.arange(positions, device=self._device), self._dtype)

    def feature(self, hidden: Tensor) -> Tensor:
        """The fusion of the target's states [B, W, n, H], which come in the order of its layers."""
        if self._order is not None:
            hidden = hidden.index_select(2, self._order)
        return self.fused(hidden)

    def fused(self, states: Tensor) -> Tensor:
        """The fusion of states [B, W, n, H] in the head's own order."""
        return self._network.fused(self._ops, states, self._weights)

    def step(self, tokens: Tensor, feature: Tensor, plan: Plan) -> Tensor:
        """See ``FeedbackHead``."""
        turn = self._turns[0][plan.position], self._turns[1][plan.position]
        cells = [plan.at(layer) for layer in range(len(self.layers))]
        after: Tensor = self._network(self._ops, self._embed(tokens), feature, turn, cells, self._weights)
        return after

    def logits(self, feature: Tensor) -> Tensor:
        """By the head's own rows, of the tokens that it knows."""
        return self._network.logits(self._ops, feature, self._weights)


class Eagle3(FeedbackDraft):
    """A head that fuses outputs of several of the target's layers and has a vocabulary of its own (EAGLE-3, Li et al.
    2503.01840)."""

    def __init__(
        self,
        env: Env,
        found: Published[Eagle3Parts],
        max_draft: int,
        beam: int,
        depth: int,
        least: float,
        leaves: int,
        bits: int | None = None,
    ) -> None:
        layers = found.reading.layers
        assert layers is not None
        self.hidden_layers = tuple(sorted(layers))
        super().__init__(env, PublishedEagle3(env, found.head, layers, bits), max_draft, beam, depth, least, leaves)


def eagle3(
    env: Env,
    head: HeadPath = "",
    layers: LayersText = "",
    states: StatesText = "",
    ids: IdsText = "",
    window: WindowText = "",
    embedding: EmbeddingText = "",
    pickle: PickleFlag = False,
    max_draft: MostProposals = 0,
    beam: Annotated[int, "nodes expanded at each depth; 1 drafts a chain, more a tree"] = 1,
    depth: Annotated[int, "deepest proposals of a tree"] = 5,
    least: Annotated[float, "smallest probability, by the head, of a tree's node"] = 0.0,
    leaves: Annotated[int, "other tokens beside each proposal, which cost no forward of the head"] = 0,
    weights: WeightsText = "float",
) -> Draft:
    """Drafts with a published EAGLE-3 head, which fuses states of several of the target's layers.

    Every setting and tensor of the head is used or refused by name, and where nothing decides a convention, the option
    that decides it is named: docs/heads.md.

    Source: EAGLE-3, Li et al. 2503.01840; trees, EAGLE-2, 2406.16858.

    Example: ``eagle3(head='path/to/head', beam=4)`` with K = 16 verifies trees of 16 nodes.
    """
    refuse_tree("eagle3", beam, depth, max_draft, least, leaves)
    reading = Reading.of(layers=layers, states=states, ids=ids, window=window, embedding=embedding)
    found = read_for(FORM, head, env.target, reading, pickle)
    return Eagle3(env, found, max_draft, beam, depth, least, leaves, bits_named(weights))


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``eagle3``."""
    register("eagle3", eagle3)
