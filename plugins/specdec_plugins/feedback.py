"""Drafts that feed their own states back: the entries of accepted tokens are computed anew from the target's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window
from specdec.arena import Arena, KeptCells, LayerShape, Plan
from specdec.devices import uploaded
from specdec.interfaces import Env
from specdec.model import PREFILL_CHUNK
from specdec.runtime import Eager, addresses
from specdec_plugins.chain import Chain
from specdec_plugins.growth import Forest, Growth, wanted
from specdec_plugins.reading import caught_up, known_text

MOST_DEFERRED = 32
"""Steps without proposals after which their entries are computed in any case."""


def refuse_tree(draft: str, beam: int, depth: int, max_draft: int, least: float) -> None:
    """SpecdecError, which names the draft, for options of chains and trees that mean nothing."""
    if beam < 1 or depth < 1 or max_draft < 0 or not 0 <= least < 1:
        raise SpecdecError(
            f"{draft} was given beam={beam}, depth={depth}, max_draft={max_draft}, least={least}; "
            "expected beam and depth 1 or more, max_draft 0 or more, least from 0 to below 1"
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


class FeedbackDraft(Draft):
    """Drafts with a head that has keys and values of its own and feeds its states back, as EAGLE's does.

    Entry t of its arena is computed from token t + 1 and the target's states t. While drafting, the head uses its own
    estimates; after every step, the entries of accepted tokens are computed again from the target's true states, so
    committed entries never contain an estimate. The entries of steps without proposals are computed together, before
    the next proposal, so that plain decoding does not pay for the head in each step. ``beam`` 1 drafts a chain, a
    larger ``beam`` a tree of K nodes. A subclass or its instance says which of the target's states it reads.
    """

    small_ops = True

    def __init__(self, env: Env, head: FeedbackHead, max_draft: int, beam: int, depth: int, least: float) -> None:
        self._head, self._vocabulary, self._ops = head, env.target.vocabulary, env.ops
        self._beam, self._depth, self._most, self._least = beam, depth, max_draft, least
        self.branches = beam > 1
        device = env.target.device
        widest = max(env.max_window, min(PREFILL_CHUNK, env.max_length), beam * depth)
        self._arena = Arena(
            head.layers,
            rows=env.max_rows,
            max_length=env.max_length + widest,
            max_window=widest,
            dtype=env.target.dtype,
            device=device,
        )
        self._state = torch.zeros(env.max_rows, head.size, dtype=env.target.dtype, device=device)
        self._prompts: dict[int, Tensor] = {}
        self._longest, self._most_tokens = 0, env.max_length  # host's bound on committed entries, and its limit
        self._asked = 0  # largest depth of the window's proposals
        self._deferred: list[tuple[Tensor, Tensor]] = []  # tokens [B] and target's states [B, 1, …] without entries yet
        # A step that proposes has as many forwards as readings of the vocabulary's rows, the forward of `observe`
        # included. Steps that do not propose share one forward and have no reading.
        self.weight_bytes = head.weight_bytes
        self._forwards, self._runtime = 0, env.runtime

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Store the prompt, because an entry needs the token after its hidden state."""
        self._catch_up()
        self._arena.reset(row)
        self._state[row] = 0
        [self._prompts[row]] = uploaded(self._state.device, np.array([prompt], dtype=np.int64))
        self._longest = max(self._longest, len(prompt) - 1)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """Delete the stored prompt."""
        if self._deferred and len(self._deferred[0][0]) == 1:
            self._deferred.clear()  # nobody reads the entries of the only row any more
        self._catch_up()
        self._prompts.pop(row, None)

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """The entries of all tokens except the last."""
        self._catch_up()
        return self._arena.keep(row, len(tokens) - 1, self._arena.max_window)

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        """Restore the entries of the common tokens; the target's states of the others follow."""
        assert isinstance(kept, KeptCells)
        self.admit(row, request, prompt)
        self._arena.restore(row, kept, first)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the arena row, the last estimate and the stored prompt with the request."""
        self._arena.move(source, row)
        self._prompts[row] = self._prompts.pop(source)
        self._state[row] = self._state[source]

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Compute the entries of a chunk of the prompt."""
        size = hidden.shape[1]
        after = self._prompts[row][:, start + 1 : start + 1 + size]
        rows = slice(row, row + 1)
        state = self._entered(known_text(after), self._head.feature(hidden), rows, start)
        self._arena.committed[rows] += size
        self._state[row] = state[0, -1]

    def propose(self, context: Context) -> Window:
        """A chain or a tree from the last estimated hidden state."""
        self._longest = int(context.length_host.max()) - 1
        self._catch_up()
        k = int(context.max_proposals_host.max())
        k = min(k, self._most or k)
        self._asked = min(k, self._depth) if self.branches else k
        self._forwards += self.calls(self._asked)
        steps, grown = self._runtime.steps((self, context.kind, k)), self._tree if self.branches else self.chained
        return steps.part(grown, context, k, self._bound())

    def _bound(self) -> int:
        return self._runtime.longest(self._longest, self._most_tokens)

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
                window = Window(token, torch.full_like(token, -1), torch.ones_like(token[:, 0]))
                state = self._entered(window, state[:, None], rows, longest + index)[:, 0]
                self._arena.committed[rows] += 1
        self._arena.committed[rows] -= k - 1
        return chain.window()

    def _tree(self, context: Context, k: int, longest: int) -> Window:
        rows = slice(0, context.rows)
        state = self._state[rows]
        growth = Growth(self._distribution(context, state[:, None], 0)[:, 0], self._head.ids, self._beam)
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
        if window.tokens.shape[1] == 1:
            self._deferred.append((verdict.next.clone(), hidden.clone()))
            if len(self._deferred) == MOST_DEFERRED:
                self._catch_up()
            return
        self._catch_up()
        size = verdict.path.shape[1]
        if own:
            size = min(size, self._asked + 1)  # a tree has many slots and a short path
        self._forwards += 1
        read = window.tokens, verdict.path, verdict.num_accepted, verdict.next, hidden
        # A window of another draft lies elsewhere at every step.
        kind = self, "observe", size, addresses(*read)
        steps = self._runtime.steps(kind) if own else Eager()
        steps.part(self._learned, window, verdict, hidden, size, self._bound())
        # Without this limit, the bound would grow far too large while another draft's windows are verified.
        self._longest = min(self._longest + size, self._most_tokens)

    def _catch_up(self) -> None:
        """Compute the entries of the steps without proposals since the last call."""
        if not self._deferred:
            return
        tokens, hidden = zip(*self._deferred, strict=True)
        self._deferred.clear()
        self._forwards += 1
        rows = slice(0, len(tokens[0]))
        feature = self._head.feature(torch.cat(hidden, dim=1))
        state = self._entered(known_text(torch.stack(tokens, dim=1)), feature, rows, self._longest)
        self._state[rows] = state[:, -1]
        self._arena.committed[rows] += len(tokens)
        self._longest = min(self._longest + len(tokens), self._most_tokens)

    def _learned(self, window: Window, verdict: Verdict, hidden: Tensor, size: int, longest: int) -> None:
        rows = slice(0, len(verdict.next))
        path, last = verdict.path[:, :size].clamp(min=0), verdict.num_accepted
        following = torch.cat([window.tokens.gather(1, path[:, 1:]), verdict.next[:, None]], dim=1)
        following = following.scatter(1, last[:, None], verdict.next[:, None])
        kept = hidden.flatten(2).gather(1, path[:, :, None].expand(-1, -1, hidden[0, 0].numel()))
        feature = self._head.feature(kept.unflatten(2, hidden.shape[2:]))
        state = caught_up(lambda chain: self._entered(chain, feature, rows, longest), following, last)
        self._state[rows] = state[:, 0]
        self._arena.committed[rows] += last + 1

    def info(self) -> Mapping[str, int]:
        """Forwards of the head's layer, prefill excluded."""
        return {"draft_forwards": self._forwards}

    def _entered(self, window: Window, feature: Tensor, rows: slice, longest: int) -> Tensor:
        """Estimated states [B, W, F] after the entries (token, state) of a window."""
        return self._head.step(window.tokens, feature, self._arena.plan(window, self._ops, rows, longest))
