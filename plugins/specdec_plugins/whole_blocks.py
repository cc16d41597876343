"""Drafts that propose a whole block in one forward: entries of the text are computed from the target's states alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specdec import Context, Verdict, Window
from specdec.arena import LayerShape, Plan
from specdec.interfaces import Env
from specdec.runtime import Eager, addresses
from specdec_plugins.entries import EntryDraft
from specdec_plugins.reading import known_text, of_path


class BlockHead(ABC):
    """A head that proposes from a block: the pending token and masks, ``block`` slots, over entries of the text.

    ``layers`` are its attention layers, ``mask`` is the token of every slot but the first, and ``proposals`` are the
    most of one block. ``weight_bytes`` are the bytes of weights that a block and the entries of a step read.
    """

    layers: Sequence[LayerShape]
    block: int
    mask: int
    proposals: int
    weight_bytes: int

    @abstractmethod
    def enter(self, states: Tensor, plan: Plan) -> None:
        """Compute the entries of tokens from the target's states of these, [B, W, F].

        In place: the cells that ``plan`` names.
        """

    @abstractmethod
    def window(self, context: Context, block: Tensor, plan: Plan, k: int) -> Window:
        """A window of ``k`` proposals, from the tokens int64 [B, block] of a block.

        In place: the cells that ``plan`` names, which lie behind those of the text.
        """


class BlockDraft(EntryDraft):
    """Drafts a block at once: the pending token and masks, over keys and values of the target's true states.

    Entry t of its arena is computed from the target's state t alone, when that token is committed, so that nothing of a
    rejected proposal is ever in it. The whole block is computed for every K, as in training.
    """

    def __init__(self, env: Env, head: BlockHead, layers: tuple[int, ...], max_draft: int) -> None:
        super().__init__(env, head.layers, head.block)
        self._head = head
        self._most = min(head.proposals, max_draft or env.max_window - 1)
        self.hidden_layers = tuple(sorted(set(layers)))
        places = [self.hidden_layers.index(layer) for layer in layers]
        in_order = places == [*range(len(places))]
        self._places = None if in_order else torch.tensor(places, device=env.target.device)
        self.weight_bytes, self._forwards = head.weight_bytes, 0

    def _enter(self, window: Window, hidden: Tensor, rows: slice, longest: int, last: Tensor) -> None:
        self._head.enter(self._fused(hidden), self._arena.plan(window, self._ops, rows, longest))

    def propose(self, context: Context) -> Window:
        """One forward of the block behind each row's text; as many of its proposals as the row with most room has."""
        self._begin(context)
        self._forwards += 1
        k = min(int(context.max_proposals_host.max()), self._most)
        return self._runtime.steps((self, context.kind, k)).part(self._drafted, context, k, self._bound())

    def _drafted(self, context: Context, k: int, longest: int) -> Window:
        head, pending = self._head, context.pending[:, None]
        block = torch.cat([pending, pending.new_full((context.rows, head.block - 1), head.mask)], dim=1)
        plan = self._arena.plan(known_text(block), self._ops, slice(0, context.rows), longest)
        return head.window(context, block, plan, k)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Compute the entries of the accepted slots from the target's states."""
        assert hidden is not None
        size, asked, self._asked_now = verdict.path.shape[1], self._asked_now, False
        if not asked:
            path = verdict.path.clamp(min=0)
            self._put_off(window.tokens.gather(1, path), of_path(hidden, path), verdict.num_accepted + 1)
            return
        self._catch_up()
        if own:
            size = min(size, self._most + 1)
        # A window of another draft lies elsewhere at every step.
        kind = self, "observe", size, addresses(verdict.path, verdict.num_accepted, hidden)
        steps = self._runtime.steps(kind) if own else Eager()
        steps.part(self._learned, verdict, hidden, size, self._bound())
        self._lengthen(size)

    def _learned(self, verdict: Verdict, hidden: Tensor, size: int, longest: int) -> None:
        rows = slice(0, len(verdict.next))
        path = verdict.path[:, :size].clamp(min=0)
        # Rows that accepted fewer write on past their end, where nothing is committed.
        plan = self._arena.plan(known_text(path), self._ops, rows, longest)
        self._head.enter(of_path(self._fused(hidden), path), plan)
        self._arena.committed[rows] += verdict.num_accepted + 1

    def _fused(self, hidden: Tensor) -> Tensor:
        """The states [B, W, F] of the head's layers, in its order."""
        return (hidden if self._places is None else hidden[:, :, self._places]).flatten(2)

    def info(self) -> Mapping[str, int]:
        """Forwards of the block, prefill excluded."""
        return {"draft_forwards": self._forwards}
