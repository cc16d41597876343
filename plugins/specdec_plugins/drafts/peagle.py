"""peagle: an EAGLE-3 network that proposes at all places in one forward, with masks for what is not there yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from specdec import Context, Draft, SpecdecError, Window, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.chain import Chain
from specdec_plugins.drafts.eagle3 import PublishedEagle3
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead
from specdec_plugins.heads.rounding import bits_named
from specdec_plugins.published import read_for
from specdec_plugins.published.options import (
    EmbeddingText,
    HeadPath,
    IdsText,
    LayersText,
    MostProposals,
    WeightsText,
    WindowText,
)
from specdec_plugins.published.peagle import FORM, PeagleParts
from specdec_plugins.published.reading import Reading
from specdec_plugins.reading import known_text


class Peagle(FeedbackDraft):
    """Proposes at the place of the last known state, and at K - 1 masks behind it in one forward (P-EAGLE, 2602.01469).

    Entries of accepted tokens are EAGLE-3's; those of masks are never committed. ``mask`` is the token of a place that
    is not known yet, ``masked`` [1, 1, F] what the head reads there of the target's states.
    """

    def __init__(
        self, env: Env, head: FeedbackHead, mask: int, masked: Tensor, layers: tuple[int, ...], max_draft: int
    ) -> None:
        self.hidden_layers = tuple(sorted(layers))
        super().__init__(env, head, max_draft, 1, 1, 0.0)
        self._mask, self._masked = mask, masked

    def calls(self, k: int) -> int:
        """One forward for all masks."""
        return min(k - 1, 1)

    def chained(self, context: Context, k: int, longest: int) -> Window:
        """A chain whose proposals do not follow from one another."""
        rows, head = slice(0, context.rows), self._head
        states = self._state[rows][:, None]
        if k > 1:
            masks = known_text(context.pending[:, None].new_full((context.rows, k - 1), self._mask))
            masked = self._masked.expand(context.rows, k - 1, -1)
            states = torch.cat([states, self._entered(masks, masked, rows, longest)], dim=1)
        logits, chain = head.logits(states), Chain(context, self._vocabulary, head.ids)
        for place in range(k):
            chain.propose(logits[:, place : place + 1])
        return chain.window()


def peagle(
    env: Env,
    head: HeadPath = "",
    layers: LayersText = "",
    ids: IdsText = "",
    window: WindowText = "",
    embedding: EmbeddingText = "",
    mask: Annotated[str, "the token that stands at every place past the first; empty: as the file says"] = "",
    max_draft: MostProposals = 0,
    weights: WeightsText = "float",
) -> Draft:
    """Drafts with a published P-EAGLE head: EAGLE-3's network, which proposes K tokens in one forward.

    Source: P-EAGLE, 2602.01469; its network, EAGLE-3, Li et al. 2503.01840.

    Example: ``peagle(head='path/to/head')`` with K = 7.
    """
    if max_draft < 0:
        raise SpecdecError(f"peagle was given max_draft={max_draft}; expected 0 or more")
    bits = bits_named(weights)
    reading = Reading.of(layers=layers, ids=ids, window=window, embedding=embedding, mask=mask)
    found = read_for(FORM, head, env.target, reading)
    parts: PeagleParts = found.head
    assert found.reading.layers is not None
    network = PublishedEagle3(env, parts.eagle, found.reading.layers, bits)
    masked = network.fused(parts.states.to(env.target.device, env.target.dtype))
    return Peagle(env, network, parts.mask, masked, found.reading.layers, max_draft)


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``peagle``."""
    register("peagle", peagle)
