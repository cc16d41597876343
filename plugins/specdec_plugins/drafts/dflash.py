"""dflash: a whole block of proposals in one forward; dspark: a block whose proposals follow one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec import Context, SpecdecError, Window, hookimpl
from specdec.arena import Plan
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.chain import Chain
from specdec_plugins.heads.dflash_head import DFlashHead
from specdec_plugins.heads.dspark_head import DSparkHead, SparkWeights
from specdec_plugins.heads.placed import placed
from specdec_plugins.heads.rounding import bits_named
from specdec_plugins.published import dflash, dspark, read_for
from specdec_plugins.published.options import (
    EmbeddingText,
    FirstText,
    HeadPath,
    IdsText,
    InsideText,
    LayersText,
    WeightsText,
    WindowText,
)
from specdec_plugins.published.reading import Reading
from specdec_plugins.reduced import Reduced
from specdec_plugins.whole_blocks import BlockDraft, BlockHead


class PublishedBlock(BlockHead):
    """A DFlash head as ``BlockDraft`` asks it, on a target's device, in codes of ``bits`` if that is not None."""

    def __init__(self, env: Env, head: DFlashHead, bits: int | None = None) -> None:
        shape, target = head.shape, env.target
        self.block, self.mask, self.proposals, self.layers = shape.block, head.mask, shape.proposals, shape.spans()
        self._first = 0 if shape.from_first else 1
        self._head, self._ops = placed(head, target.device, target.dtype), env.ops
        self._weights = self._head.weights(env.ops, bits)
        ids = torch.arange(target.vocabulary, device=target.device) if head.ids is None else head.ids
        self._reduced, self._whole = Reduced(env, ids, bits), head.ids is None
        if head.rows is not None:
            self._reduced.read_with(head.rows)
        self._target_embeds, self._dtype = target.model.get_input_embeddings(), target.dtype
        # Of embeddings only rows are read.
        vectors = [part for part in self._head.parameters() if part.dim() == 1 or len(part) == 1]
        read = [*self._weights.matrices, *vectors]
        self.weight_bytes = sum(part.nbytes for part in read) + self._reduced.weight_bytes

    def enter(self, states: Tensor, plan: Plan) -> None:
        """See ``BlockHead``; ``states`` are those of all layers side by side."""
        self._head.enter_text(self._ops, states, plan, self._weights)

    def window(self, context: Context, block: Tensor, plan: Plan, k: int) -> Window:
        """See ``BlockHead``."""
        head = self._head
        embeds = self._target_embeds(block) if head.embedding is None else F.embedding(block, head.embedding)
        states = head(self._ops, embeds.to(self._dtype), plan.position, head.cells(plan), self._weights)
        return self.read(context, states, k)

    def read(self, context: Context, states: Tensor, k: int) -> Window:
        """A window of ``k`` proposals from the states [B, block, H] of a block."""
        logits, chain = self._reduced.logits(states[:, self._first : self._first + k]), self._chain(context)
        for place in range(k):
            chain.propose(logits[:, place : place + 1])
        return chain.window()

    def _chain(self, context: Context) -> Chain:
        return Chain(context, self._reduced.vocabulary, None if self._whole else self._reduced.ids)


class PublishedSpark(PublishedBlock):
    """A DSpark head: each proposal's logits are biased by the proposal before it."""

    def read(self, context: Context, states: Tensor, k: int) -> Window:
        """See ``PublishedBlock``; the window has the head's confidence in each proposal, if the head has one."""
        head, weights, first = self._head, self._weights, self._first
        assert isinstance(head, DSparkHead)
        assert isinstance(weights, SparkWeights)
        logits, chain = self._reduced.logits(states[:, first : first + k]), self._chain(context)
        before, memory, token = context.pending, states.new_zeros(context.rows, head.parts.rank), None
        sure = []
        for slot in range(first + k):
            if head.markov is not None and weights.markov is not None:
                token = F.embedding(before, head.markov.before).to(states.dtype)
                bias, memory = head.markov(self._ops, token, states[:, slot], memory, weights.markov)
            if slot < first:
                continue  # the slot of the pending token proposes nothing, and the memory passes through it
            if head.parts.confident:
                sure.append(head.confidence(self._ops, states[:, slot], token))
            own = logits[:, slot - first]
            before = chain.propose((own if weights.markov is None else own + bias)[:, None])[:, 0]
        window = chain.window()
        if not sure:
            return window
        return replace(window, confidence=torch.stack([torch.ones_like(sure[0]), *sure], dim=1))


class DFlash(BlockDraft):
    """One forward proposes a whole block: the pending token and masks, which see each other and the target's states.

    Source: DFlash, 2602.06036; the forms of heads, speculators 0.9 and z-lab/dflash.

    Example: ``dflash(head=path/to/head)`` with K = 7 for a block of 8.
    """

    form = dflash.FORM
    network: type[PublishedBlock] = PublishedBlock

    def __init__(
        self,
        env: Env,
        head: HeadPath = "",
        layers: LayersText = "",
        ids: IdsText = "",
        window: WindowText = "",
        embedding: EmbeddingText = "",
        inside: InsideText = "",
        first: FirstText = "",
        max_draft: Annotated[int, "most proposals of a step, at most the block's; 0: K, which is then no larger"] = 0,
        weights: WeightsText = "float",
    ) -> None:
        bits = bits_named(weights)
        reading = Reading.of(layers=layers, ids=ids, window=window, embedding=embedding, inside=inside, first=first)
        found = read_for(self.form, head, env.target, reading)
        most, asked = found.head.shape.proposals, env.max_window - 1
        if not 0 <= max_draft <= most or (not max_draft and asked > most):
            raise SpecdecError(
                f"a block of {head} has {most} proposals, and K is {asked} and max_draft {max_draft}; expected a K of "
                f"at most {most}, or {self.form}(head=…, max_draft={most}), which proposes no more whatever K is"
            )
        assert found.reading.layers is not None
        super().__init__(env, self.network(env, found.head, bits), found.reading.layers, max_draft)


class DSpark(DFlash):
    """A DFlash block whose proposals are biased by the proposal before, each with the head's own confidence in it.

    Source: DSpark, 2607.05147; the form of heads, speculators 0.9.

    Example: ``dspark(head=path/to/head)`` with K = 7 for a block of 7.
    """

    form = dspark.FORM
    network = PublishedSpark


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``dflash`` and ``dspark``."""
    register("dflash", DFlash)
    register("dspark", DSpark)
