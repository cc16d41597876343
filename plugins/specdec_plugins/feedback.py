"""Drafts that feed their own states back: the entries of accepted tokens are computed anew from the target's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec import Context, Request, SpecdecError, Verdict, Window
from specdec.arena import LayerShape, Plan
from specdec.devices import uploaded
from specdec.interfaces import Env
from specdec.lengths import Price
from specdec.runtime import Eager, addresses
from specdec_plugins.asking import OwnRecord, goes_on
from specdec_plugins.chain import Chain
from specdec_plugins.entries import EntryDraft
from specdec_plugins.growth import Forest, Growth, wanted
from specdec_plugins.leaves import LeafedChain
from specdec_plugins.reading import caught_up, of_path


def refuse_tree(draft: str, beam: int, depth: int, max_draft: int, least: float, leaves: int) -> None:
    """SpecdecError, which names the draft, for options of chains and trees that mean nothing."""
    if beam < 1 or depth < 1 or max_draft < 0 or not 0 <= least < 1 or leaves < 0:
        raise SpecdecError(
            f"{draft} was given beam={beam}, depth={depth}, max_draft={max_draft}, least={least}, leaves={leaves}; "
            "expected beam and depth 1 or more, max_draft and leaves 0 or more, least from 0 to below 1"
        )


class FeedbackHead(ABC):
    """A head that estimates states of size F, of which the next estimate is made.

    ``layers`` are its attention layers and ``size`` is F. ``ids`` int64 [D] are the target's ids of the tokens that it
    knows; None: all. ``weight_bytes`` are the bytes of weights that a step and its logits read.
    """

    layers: Sequence[LayerShape]
    size: int
    ids: Tensor | None
    weight_bytes: int

    def reach(self, positions: int) -> None:
        """Steps are at positions below this number: what depends on them alone is computed now. Default: nothing."""

    @abstractmethod
    def feature(self, hidden: Tensor) -> Tensor:
        """The states [B, W, F] from which a step begins, of the target's, [B, W, H] or [B, W, n, H]."""

    @abstractmethod
    def step(self, tokens: Tensor, feature: Tensor, plan: Plan) -> Tensor:
        """Estimated states [B, W, F], from the tokens int64 [B, W] that follow states [B, W, F], the target's or own.

        In place: the cells that ``plan`` names.
        """

    @abstractmethod
    def logits(self, feature: Tensor) -> Tensor:
        """Logits float32 [..., D] of estimated states [..., F], over ``ids``."""


class FeedbackDraft(EntryDraft):
    """Drafts with a head that has keys and values of its own and feeds its states back, as EAGLE's does.

    Entry t of its arena is computed from token t + 1 and the target's states t. While drafting, the head uses its own
    estimates; after every step, the entries of accepted tokens are computed again from the target's true states, so
    committed entries never contain an estimate. ``beam`` 1 drafts a chain, a larger ``beam`` a tree of K nodes; with
    ``leaves`` a chain is a tree too, whose proposals have that many others beside them, which cost the head no forward.
    A subclass or its instance says which of the target's states it reads.

    With leaves and ``beam`` 1 it heeds a price: it goes as deep as its own chances are worth, and leaves out what is
    not worth a slot. Not on a GPU, where a step would have to wait for them.
    """

    def __init__(
        self, env: Env, head: FeedbackHead, max_draft: int, beam: int, depth: int, least: float, leaves: int = 0
    ) -> None:
        super().__init__(env, head.layers, beam * depth)
        self._head, self._vocabulary = head, env.target.vocabulary
        head.reach(self._most_tokens + 2 * self._arena.max_window)
        self._beam, self._depth, self._most, self._least, self._leaves = beam, depth, max_draft, least, leaves
        device, self._asking = env.target.device, OwnRecord()
        self.branches = beam > 1 or leaves > 0
        self.heeds_price = leaves > 0 and beam == 1 and device.type == "cpu"
        self._state = torch.zeros(env.max_rows, head.size, dtype=env.target.dtype, device=device)
        self._prompts: dict[int, Tensor] = {}
        self._asked = 0  # largest depth of the window's proposals
        # A step that proposes has as many forwards as readings of the vocabulary's rows, the forward of `observe`
        # included. Steps that do not propose share one forward and have no reading.
        self.weight_bytes, self._forwards = head.weight_bytes, 0

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Store the prompt, because an entry needs the token after its hidden state."""
        super().admit(row, request, prompt)
        self._asking.drop(row)
        self._state[row] = 0
        [self._prompts[row]] = uploaded(self._state.device, np.array([prompt], dtype=np.int64))

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """Delete the stored prompt, and what the row lacks."""
        super().release(row, tokens)
        self._asking.drop(row)
        self._prompts.pop(row, None)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the entries, the last estimate and the stored prompt with the request."""
        super().move(source, row, request, tokens)
        self._asking.move(source, row)
        self._prompts[row] = self._prompts.pop(source)
        self._state[row] = self._state[source]

    def forget(self) -> None:
        """Forget what came of earlier proposals."""
        self._asking = OwnRecord()

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """The entries of a chunk of the prompt, each with the token after its own; no forward of these is counted."""
        forwards = self._forwards
        super().prefilled(row, self._prompts[row][:, start + 1 : start + 1 + hidden.shape[1]], start, hidden)
        self._forwards = forwards

    def _enter(self, window: Window, hidden: Tensor, rows: slice, longest: int, last: Tensor) -> None:
        self._forwards += 1
        states = self._entered(window, self._head.feature(hidden), rows, longest)
        place = last.clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
        self._state[rows] = torch.where(last[:, None] >= 0, states.gather(1, place)[:, 0], self._state[rows])

    def propose(self, context: Context) -> Window:
        """A chain or a tree from the last estimated hidden state."""
        if self.heeds_price and context.price is not None:
            return self._worth_it(context, context.price)
        self._begin(context)
        k = int(context.max_proposals_host.max())
        k = min(k, self._most or k)
        self._asked = min(k, self._depth) if self.branches else k
        self._forwards += self.calls(self._asked)
        steps = self._runtime.steps((self, context.kind, k))
        grown = self._tree if self._beam > 1 else self._leafed if self._leaves else self.chained
        return steps.part(grown, context, k, self._bound())

    def chances(self, row: int) -> Sequence[float]:
        """Of each depth of what it would propose in the row, by what came of its proposals before."""
        return self._asking.chances(row, self._depth)

    def calls(self, depth: int) -> int:
        """How often the head runs for proposals of this depth; the first one's state is known from ``observe``."""
        return depth - 1

    def chained(self, context: Context, k: int, longest: int) -> Window:
        """A chain of ``k`` proposals, each from a state estimated behind the one before."""
        rows = slice(0, context.rows)
        state, chain = self._state[rows], Chain(context, self._vocabulary, self._head.ids)
        for index in range(k):
            token = chain.propose(self._head.logits(state)[:, None])
            if index + 1 < k:
                state = self._further(token, state, rows, longest + index)
        self._arena.committed[rows] -= k - 1
        return chain.window()

    def _worth_it(self, context: Context, price: Price) -> Window:
        """A tree of what is worth its slots, as deep as a forward is worth what it brings; it may be nothing."""
        given = [min(room, self._most or room) for room in context.max_proposals_host.tolist()]
        rooms = self._asking.rooms(price, given, min(self._depth, max(given)))
        if not any(rooms):
            return Window.root(context)
        self._begin(context)
        rows, longest, deepest = slice(0, context.rows), self._bound(), min(self._depth, max(rooms))
        state, chain = self._state[rows], LeafedChain(self._head.ids, self._leaves)
        chain.grow(self._distribution(context, state[:, None], 0))
        asked = [float(room > 0) for room in rooms]

        def alive() -> list[float]:
            return [one * chance for one, chance in zip(asked, self._asking.believed(chain.alive()), strict=True)]

        while chain.depth < deepest and goes_on(price, chain.depth, alive()):
            state = self._further(chain.tokens, state, rows, longest + chain.depth - 1)
            chain.grow(self._distribution(context, state[:, None], chain.depth, chain.paths))
        self._asked = chain.depth
        self._arena.committed[rows] -= chain.depth - 1
        self._forwards += chain.depth - 1
        told = [
            [chance for chance in nodes if chance >= self._least][:room]
            for nodes, room in zip(chain.chances(), rooms, strict=True)
        ]
        counts = price.counts([self._asking.believed(nodes) for nodes in told])
        for row, (room, count) in enumerate(zip(rooms, counts, strict=True)):
            if room:
                self._asking.told(row, min(room, self._depth), sum(told[row][:count]))
        return chain.window(context, counts)

    def _further(self, token: Tensor, state: Tensor, rows: slice, longest: int) -> Tensor:
        """The estimate [B, F] behind a chain's next token int64 [B, 1], from the state [B, F] before it.

        In place: the token's entry is committed.
        """
        window = Window(token, torch.full_like(token, -1), torch.ones_like(token[:, 0]))
        state = self._entered(window, state[:, None], rows, longest)[:, 0]
        self._arena.committed[rows] += 1
        return state

    def _leafed(self, context: Context, k: int, longest: int) -> Window:
        """A chain of the likeliest tokens with others beside each: its ``k`` likeliest nodes."""
        rows, depth = slice(0, context.rows), min(k, self._depth)
        state = self._state[rows]
        first = self._distribution(context, state[:, None], 0)[:, 0]
        growth = Growth(first, self._head.ids, 1, leaves=self._leaves)
        for made in range(1, depth):
            state = self._further(growth.paths[:, 0, -1:], state, rows, longest + made - 1)
            growth.expand(self._distribution(context, state[:, None], made, growth.paths))
        self._arena.committed[rows] -= depth - 1
        return growth.window(context, k, self._least)

    def _tree(self, context: Context, k: int, longest: int) -> Window:
        rows = slice(0, context.rows)
        state = self._state[rows]
        first = self._distribution(context, state[:, None], 0)[:, 0]
        growth = Growth(first, self._head.ids, self._beam, leaves=self._leaves)
        forest, states = Forest(), state[:, None].expand(-1, self._beam, -1)
        before = states
        for depth in range(1, min(k, self._depth)):
            window = forest.window(growth)
            after = self._entered(window, before, rows, longest)
            growth.expand(self._distribution(context, after[:, -self._beam :], depth, growth.paths))
            # The next frontier continues the hidden states of its parents.
            parents = growth.parents.gather(1, growth.frontier)
            assert forest.nodes is not None
            place = (parents[:, :, None] == forest.nodes[:, None, :]).to(torch.int64).argmax(dim=2)
            states = after.gather(1, place[:, :, None].expand(-1, -1, after.shape[2]))
            before = torch.cat([before, states], dim=1)
        return growth.window(context, k, self._least)

    def _distribution(self, context: Context, state: Tensor, depth: int, paths: Tensor | None = None) -> Tensor:
        return wanted(context, self._head.logits(state), depth, paths, self._head.ids, self._vocabulary)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Compute new entries from the target's hidden states of the accepted slots and the tokens after them."""
        assert hidden is not None
        if self.heeds_price:
            unread = [0] * len(verdict.next)
            self._asking.came(verdict.num_accepted.tolist() if self._asking.waits else unread)
        size, asked, self._asked_now = verdict.path.shape[1], self._asked_now, False
        if not asked:
            self._put_off(*_followed(window, verdict, hidden, size), verdict.num_accepted + 1)
            return
        self._catch_up()
        if own:
            size = min(size, self._asked + 1)  # a tree has many slots and a short path
        self._forwards += 1
        read = window.tokens, verdict.path, verdict.num_accepted, verdict.next, hidden
        # A window of another draft lies elsewhere at every step.
        kind = self, "observe", size, addresses(*read)
        steps = self._runtime.steps(kind) if own else Eager()
        steps.part(self._learned, window, verdict, hidden, size, self._bound())
        self._lengthen(size)

    def _learned(self, window: Window, verdict: Verdict, hidden: Tensor, size: int, longest: int) -> None:
        rows, last = slice(0, len(verdict.next)), verdict.num_accepted
        following, kept = _followed(window, verdict, hidden, size)
        feature = self._head.feature(kept)
        state = caught_up(lambda chain: self._entered(chain, feature, rows, longest), following, last)
        self._state[rows] = state[:, 0]
        self._arena.committed[rows] += last + 1

    def info(self) -> Mapping[str, int]:
        """Forwards of the head's layer; those of prompts that are read before the first step excluded."""
        return {"draft_forwards": self._forwards}

    def _entered(self, window: Window, feature: Tensor, rows: slice, longest: int) -> Tensor:
        """Estimated states [B, W, F] after the entries (token, state) of a window."""
        return self._head.step(window.tokens, feature, self._arena.plan(window, self._ops, rows, longest))


def _followed(window: Window, verdict: Verdict, hidden: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The tokens int64 [B, ``size``] behind the accepted slots, and the target's states [B, ``size``, …] of these.

    Of each row as many count as it emits.
    """
    if size == 1:
        return verdict.next[:, None], hidden[:, :1]
    path = verdict.path[:, :size].clamp(min=0)
    following = torch.cat([window.tokens.gather(1, path[:, 1:]), verdict.next[:, None]], dim=1)
    following = following.scatter(1, verdict.num_accepted[:, None], verdict.next[:, None])
    return following, of_path(hidden, path)
