"""dflash: a whole block of proposals in one forward; dspark: a block whose proposals follow one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window, hookimpl
from specdec.arena import Arena, KeptCells
from specdec.interfaces import DraftFactory, Env
from specdec.model import PREFILL_CHUNK
from specdec.runtime import Eager, addresses
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
from specdec_plugins.reading import known_text
from specdec_plugins.reduced import Reduced


class BlockDraft(Draft):
    """Drafts a block at once: the pending token and masks, over keys and values of the target's true states.

    Entry t of its arena is computed from the target's state t alone, when that token is committed, so that nothing of a
    rejected proposal is ever in it. The whole block is computed for every K, as in training.
    """

    small_ops = True

    def __init__(
        self, env: Env, head: DFlashHead, layers: tuple[int, ...], max_draft: int, bits: int | None = None
    ) -> None:
        shape, target = head.shape, env.target
        self._most = min(shape.proposals, max_draft or env.max_window - 1)
        self.hidden_layers = tuple(sorted(set(layers)))
        places = [self.hidden_layers.index(layer) for layer in layers]
        self._places = None if places == [*range(len(places))] else torch.tensor(places, device=target.device)
        self._head, self._ops, self._runtime = placed(head, target.device, target.dtype), env.ops, env.runtime
        self._weights = self._head.weights(env.ops, bits)
        ids = torch.arange(target.vocabulary, device=target.device) if head.ids is None else head.ids
        self._reduced, self._whole = Reduced(env, ids, bits), head.ids is None
        if head.rows is not None:
            self._reduced.read_with(head.rows)
        self._target_embeds, self._dtype = target.model.get_input_embeddings(), target.dtype
        widest = max(env.max_window, min(PREFILL_CHUNK, env.max_length), shape.block)
        self._arena = Arena(
            shape.spans(),
            rows=env.max_rows,
            max_length=env.max_length + widest,
            max_window=widest,
            dtype=target.dtype,
            device=target.device,
        )
        self._longest, self._most_tokens = 0, env.max_length  # host's bound on committed entries, and its limit
        # A forward of the block, and the entries that the step commits; of embeddings only rows are read.
        vectors = [part for part in self._head.parameters() if part.dim() == 1 or len(part) == 1]
        read = [*self._weights.matrices, *vectors]
        self.weight_bytes = sum(part.nbytes for part in read) + self._reduced.weight_bytes
        self._forwards = 0

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Empty the row."""
        self._arena.reset(row)
        self._longest = max(self._longest, len(prompt) - 1)

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """The entries of all tokens except the last."""
        return self._arena.keep(row, len(tokens) - 1, self._arena.max_window)

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        """Restore the entries of the common tokens; the target's states of the others follow."""
        assert isinstance(kept, KeptCells)
        self.admit(row, request, prompt)
        self._arena.restore(row, kept, first)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the arena row with the request."""
        self._arena.move(source, row)

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Compute the entries of a chunk of the prompt."""
        rows = slice(row, row + 1)
        plan = self._arena.plan(known_text(tokens), self._ops, rows, start)
        self._head.enter_text(self._ops, self._fused(hidden), plan, self._weights)
        self._arena.committed[rows] += hidden.shape[1]

    def propose(self, context: Context) -> Window:
        """One forward of the block behind each row's text; as many of its proposals as the row with most room has."""
        self._longest = int(context.length_host.max()) - 1
        self._forwards += 1
        k = min(int(context.max_proposals_host.max()), self._most)
        return self._runtime.steps((self, context.kind, k)).part(self._drafted, context, k, self._bound())

    def _bound(self) -> int:
        return self._runtime.longest(self._longest, self._most_tokens)

    def _drafted(self, context: Context, k: int, longest: int) -> Window:
        head, pending = self._head, context.pending[:, None]
        block = torch.cat([pending, pending.new_full((context.rows, head.shape.block - 1), head.mask)], dim=1)
        plan = self._arena.plan(known_text(block), self._ops, slice(0, context.rows), longest)
        embeds = self._target_embeds(block) if head.embedding is None else F.embedding(block, head.embedding)
        states = head(self._ops, embeds.to(self._dtype), plan.position, head.cells(plan), self._weights)
        return self._read(context, states, k)

    def _read(self, context: Context, states: Tensor, k: int) -> Window:
        """A window of ``k`` proposals from the states [B, block, H] of a block."""
        first = 0 if self._head.shape.from_first else 1
        logits, chain = self._reduced.logits(states[:, first : first + k]), self._chain(context)
        for place in range(k):
            chain.propose(logits[:, place : place + 1])
        return chain.window()

    def _chain(self, context: Context) -> Chain:
        return Chain(context, self._reduced.vocabulary, None if self._whole else self._reduced.ids)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Compute the entries of the accepted slots from the target's states."""
        assert hidden is not None
        size = verdict.path.shape[1]
        if own:
            size = min(size, self._most + 1)
        # A window of another draft lies elsewhere at every step.
        kind = self, "observe", size, addresses(verdict.path, verdict.num_accepted, hidden)
        steps = self._runtime.steps(kind) if own else Eager()
        steps.part(self._learned, verdict, hidden, size, self._bound())
        # Without this limit, the bound would grow far too large while another draft's windows are verified.
        self._longest = min(self._longest + size, self._most_tokens)

    def _learned(self, verdict: Verdict, hidden: Tensor, size: int, longest: int) -> None:
        rows = slice(0, len(verdict.next))
        path, states = verdict.path[:, :size].clamp(min=0), self._fused(hidden)
        kept = states.gather(1, path[:, :, None].expand(-1, -1, states.shape[2]))
        # Rows that accepted fewer write on past their end, where nothing is committed.
        plan = self._arena.plan(known_text(path), self._ops, rows, longest)
        self._head.enter_text(self._ops, kept, plan, self._weights)
        self._arena.committed[rows] += verdict.num_accepted + 1

    def _fused(self, hidden: Tensor) -> Tensor:
        """The states [B, W, n H] of the head's layers, in its order."""
        return (hidden if self._places is None else hidden[:, :, self._places]).flatten(2)

    def info(self) -> Mapping[str, int]:
        """Forwards of the block, prefill excluded."""
        return {"draft_forwards": self._forwards}


class DFlash(BlockDraft):
    """One forward proposes a whole block: the pending token and masks, which see each other and the target's states.

    Source: DFlash, 2602.06036; the forms of heads, speculators 0.9 and z-lab/dflash.

    Example: ``dflash(head=path/to/head)`` with K = 7 for a block of 8.
    """

    form = dflash.FORM

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
        super().__init__(env, found.head, found.reading.layers, max_draft, bits)


class DSpark(DFlash):
    """A DFlash block whose proposals are biased by the proposal before, each with the head's own confidence in it.

    Source: DSpark, 2607.05147; the form of heads, speculators 0.9.

    Example: ``dspark(head=path/to/head)`` with K = 7 for a block of 7.
    """

    form = dspark.FORM

    def _read(self, context: Context, states: Tensor, k: int) -> Window:
        head, weights, first = self._head, self._weights, 0 if self._head.shape.from_first else 1
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


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``dflash`` and ``dspark``."""
    register("dflash", DFlash)
    register("dspark", DSpark)
