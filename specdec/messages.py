"""The messages between engine and plugins: Context in, Window out, Verdict back.

Letters used in every shape below: B rows, W slots of the window, V the target's vocabulary, S the
longest sequence, D the longest accepted path counted with its root (at most W).

**p** is the target's distribution and **q** the draft's (Leviathan et al., arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec.changes import gone, tells_change
from specdec.devices import uploaded
from specdec.errors import SpecdecError
from specdec.lengths import Price
from specdec.processors import Paths, StackedParams
from specdec.sampling import Purpose

if TYPE_CHECKING:
    from specdec.interfaces import Backend
else:

    def __getattr__(name: str) -> object:
        raise gone(__name__, name)


@dataclass(frozen=True)
class Window:
    """The W tokens of one target forward: slot 0 is the pending token, slots 1… are the proposals.

    ``tokens`` int64 [B, W]. ``parents`` int64 [B, W]: -1 at slot 0, else ``parents[:, i] < i``; siblings are in
    the order in which they were drawn. ``width`` int64 [B]: the number of valid slots of each row; slots from
    ``width`` on are padding, with any valid token id and parent. ``q`` float32 [B, W - 1, V] over the target's
    vocabulary: row i - 1 is the distribution from which node i was drawn, given its elder siblings. ``q=None``
    means that every proposal was certain (one-hot rows). A number of q that is NaN or infinite counts as 0.

    ``confidence`` float [B, W], or None, is for controllers (``RowStats``): by the draft's own estimate the chance,
    from 0 to 1, that slot i is kept if its parent is, or -1 where it has no estimate. It decides nothing about the step
    itself; slot 0 has none.

    All tensors are on the engine's device. The engine owns a window from the moment ``propose`` returns it.
    """

    tokens: Tensor
    parents: Tensor
    width: Tensor
    q: Tensor | None = None
    confidence: Tensor | None = None

    @staticmethod
    def chain(
        pending: Tensor,
        proposals: Tensor,
        num_proposals: Tensor,
        q: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> Window:
        """A window in which every slot continues the slot before it.

        ``pending`` int64 [B]; ``proposals`` int64 [B, K]; ``num_proposals`` int64 [B], the number of valid proposals.

        Example: ``Window.chain(torch.tensor([5]), torch.tensor([[6, 7]]), torch.tensor([2]))`` has
        tokens ``[[5, 6, 7]]``, parents ``[[-1, 0, 1]]`` and width ``[3]``.
        """
        tokens = torch.cat([pending[:, None], proposals], dim=1)
        parents = torch.arange(-1, tokens.shape[1] - 1, device=tokens.device).expand_as(tokens)
        return Window(tokens, parents, num_proposals + 1, q, confidence)

    @staticmethod
    def ragged(
        context: Context,
        proposals: Sequence[Sequence[int] | npt.NDArray[np.int64]],
        parents: Sequence[Sequence[int]] | None = None,
    ) -> Window:
        """A window from proposals made on the host: one list of any length for each row, all certain.

        Without ``parents`` each row is a chain; with them, ``parents[row][i]`` is the slot that proposal i
        (slot i + 1) continues. W is 1 + the length of the longest list. The upload does not wait for the device.
        """
        counts = np.array([len(tokens) for tokens in proposals])
        if not counts.any():
            return Window.root(context)
        padded = np.zeros((len(proposals), counts.max()), dtype=np.int64)
        above = np.tile(np.arange(-1, counts.max()), (len(proposals), 1))
        for row, tokens in enumerate(proposals):
            padded[row, : len(tokens)] = tokens
            if parents is not None:
                above[row, 1 : len(tokens) + 1] = parents[row]
        device = context.tokens.device
        proposed, slots, width = uploaded(device, padded, above, counts + 1)
        return Window(torch.cat([context.pending[:, None], proposed], dim=1), slots, width)

    @staticmethod
    def root(context: Context) -> Window:
        """The window of plain decoding: the pending token alone (W = 1)."""
        pending = context.pending
        return Window(pending[:, None], torch.full_like(pending, -1)[:, None], torch.ones_like(pending))

    def copied(self) -> Window:
        """A window of its own tensors, which ``copy_`` can overwrite."""
        q = None if self.q is None else self.q.clone()
        tokens, parents, width = (t.clone(memory_format=torch.contiguous_format) for t in self._integers)
        return Window(tokens, parents, width, q)

    def copy_(self, other: Window) -> None:
        """Overwrite the tensors by those of a window of the same shapes, in place.

        What this window has computed of its tensors (``ancestors``, ``depth``, …) is not computed again.
        """
        for mine, given in zip(self._integers, other._integers, strict=True):
            mine.copy_(given)
        if self.q is not None and other.q is not None:
            self.q.copy_(other.q)

    @property
    def _integers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.tokens, self.parents, self.width

    @cached_property
    def ancestors(self) -> Tensor:
        """bool [B, W, W]: whether slot j is an ancestor of slot i, or i itself.

        Computed as the reflexive, transitive closure of ``parents`` by repeated squaring: log2(W) products.
        """
        size = self.tokens.shape[1]
        slots = torch.arange(size, device=self.tokens.device)
        reach = (self.parents[:, :, None] == slots) | (slots[:, None] == slots)
        hops = 1
        while hops < size - 1:
            counts = reach.float()
            reach = torch.bmm(counts, counts) > 0
            hops *= 2
        return reach

    @cached_property
    def depth(self) -> Tensor:
        """int64 [B, W]: the number of edges between a slot and slot 0."""
        return self.ancestors.sum(dim=2) - 1

    def remember(self, depth: Tensor) -> None:
        """Take over ``depth`` from an op that has computed it beside other things."""
        self.__dict__["depth"] = depth

    @cached_property
    def deepest(self) -> Tensor:
        """int64 [B]: the depth of each row's deepest valid slot; 0 without proposals."""
        slots = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return torch.where(slots < self.width[:, None], self.depth, 0).amax(dim=1)

    @cached_property
    def paths(self) -> Tensor:
        """int64 [B, W, W - 1]: for each slot the proposals from the root's child to its own, -1 past the end.

        Example: the tree 5 → 6 → 7 and 5 → 8 has the paths ``[[], [6], [6, 7], [8]]``, padded with -1.
        """
        rows, size = self.tokens.shape
        on_path = self.ancestors & (torch.arange(size, device=self.tokens.device) > 0)
        # Depths on a path are distinct, so a scatter by depth orders its tokens; all others go past the end.
        place = torch.where(on_path, self.depth[:, None] - 1, size - 1)
        tokens = torch.where(on_path, self.tokens[:, None], -1)
        path = torch.full((rows, size, size), -1, dtype=torch.int64, device=tokens.device)
        return path.scatter(2, place, tokens)[:, :, : size - 1]

    def path_to(self, node: Tensor) -> Tensor:
        """int64 [B, W]: the slots from the root to ``node`` [B], -1 past the end."""
        size = self.tokens.shape[1]
        on_path = self.ancestors.gather(1, node[:, None, None].expand(-1, 1, size))[:, 0]
        slots = torch.arange(size, device=node.device)
        # Depths on a path are distinct, so a scatter by depth orders its slots; all other slots go past the end.
        place = torch.where(on_path, self.depth, size)
        path = torch.full((len(node), size + 1), -1, dtype=torch.int64, device=node.device)
        return path.scatter(1, place, torch.where(on_path, slots, -1))[:, :-1]

    def prefer(self, good: Tensor, choices: Tensor) -> Tensor:
        """``choices`` int64 [B, W], in which the token of a node's first good child replaces the node's own choice.

        ``good`` bool [B, W]. ``ops.verify_prefix(window, window.prefer(good, choices))`` then walks from good
        child to good child and ends with the choice at the last node: the walk of every policy that judges
        each proposal by itself. Returns a new tensor.

        Example: a chain 5 6 7 with good ``[[True, True, False]]`` and choices ``[[1, 2, 3]]`` gives ``[[6, 2, 3]]``.
        """
        size = self.tokens.shape[1]
        slots = torch.arange(size, device=self.tokens.device)
        good = good & (slots < self.width[:, None]) & (slots > 0)
        child = torch.where(good, slots, size)
        first = torch.full_like(self.parents, size).scatter_reduce(1, self.parents.clamp(min=0), child, "amin")
        token = self.tokens.gather(1, first.clamp(max=size - 1))
        return torch.where(first < size, token, choices)

    def check(self, rows: int, max_window: int, vocabulary: int, owner: str, priced: bool = False) -> None:
        """Refuse wrong shapes or dtypes before they reach the model, and a window that was ``priced`` and drawn.

        This checks only facts that the host knows; the conformance kit checks the values, which are on the device.
        Raises SpecdecError, which names the draft.
        """
        size, sure = self.tokens.shape[1] if self.tokens.dim() == 2 else -1, self.confidence
        fits = (
            self.tokens.shape == (rows, size)
            and 1 <= size <= max_window
            and self.parents.shape == (rows, size)
            and self.width.shape == (rows,)
            and self.tokens.dtype == self.parents.dtype == self.width.dtype == torch.int64
            and (self.q is None or self.q.shape == (rows, size - 1, vocabulary))
            and (sure is None or (sure.shape == (rows, size) and sure.is_floating_point()))
        )
        if not fits:
            q = None if self.q is None else tuple(self.q.shape)
            told = None if sure is None else f"{tuple(sure.shape)} {sure.dtype}"
            raise SpecdecError(
                f"draft {owner!r} proposed a window that does not fit: got tokens {tuple(self.tokens.shape)} "
                f"{self.tokens.dtype}, parents {tuple(self.parents.shape)} {self.parents.dtype}, "
                f"width {tuple(self.width.shape)} {self.width.dtype}, q {q}, confidence {told}; "
                f"expected int64 [{rows}, W], [{rows}, W], [{rows}] with W from 1 to {max_window}, q None or "
                f"[{rows}, W - 1, {vocabulary}], and confidence None or floats [{rows}, W]"
            )

        if priced and self.q is not None:
            raise SpecdecError(
                f"draft {owner!r} heeds prices and drew its proposals (its window has q); expected q=None: which drawn "
                "tokens are left out must not depend on the tokens, or the output has another distribution. Leave "
                "heeds_price False, or propose with certainty"
            )

    def check_ids(self, vocabulary: int, owner: str) -> None:
        """Refuse tokens that are none of the vocabulary; reads the device. SpecdecError names the draft."""
        wrong = self.tokens[(self.tokens < 0) | (self.tokens >= vocabulary)].tolist()
        if wrong:
            raise SpecdecError(
                f"draft {owner!r} proposed the token {wrong[0]}; expected ids from 0 to {vocabulary - 1}, the target's "
                "vocabulary"
            )


@dataclass(frozen=True)
class Verdict:
    """The part of a window that a policy accepted, and the next token.

    ``path`` int64 [B, D]: the accepted slots from the root down, ``path[:, 0] == 0``, -1 past the end;
    ``num_accepted`` int64 [B], without the root; ``next`` int64 [B], the token drawn after them (recovered
    after a rejection, bonus after full acceptance). All tensors are on the engine's device.

    ``logits`` [B, W, V] are the target's, before any processor: row b, slot w follows node w. A draft with
    ``needs_logits`` gets them in ``observe``; elsewhere they are None.
    """

    path: Tensor
    num_accepted: Tensor
    next: Tensor
    logits: Tensor | None = None

    def emitted(self, window: Window) -> Tensor:
        """int64 [B, D]: the tokens that each row emits, accepted proposals, then ``next``; valid ids past the end."""
        accepted = window.tokens.gather(1, self.path[:, 1:].clamp(min=0))
        emitted = torch.cat([accepted, self.next[:, None]], dim=1)
        return emitted.scatter(1, self.num_accepted[:, None], self.next[:, None])

    def last(self, states: Tensor) -> Tensor:
        """[B, …]: the state of each row's last accepted slot, from ``states`` [B, W, …] of the window's slots."""
        slot = self.path.gather(1, self.num_accepted[:, None])
        wide = slot.view(-1, *[1] * (states.dim() - 1)).expand(-1, 1, *states.shape[2:])
        return states.gather(1, wide)[:, 0]


@dataclass(frozen=True)
class Context:
    """The read-only input of a step; its tensors are views of the engine's tensors and change after the step.

    On the device: ``request`` int64 [B], the request ids; ``tokens`` int64 [B, S], prompt and output, valid up to
    ``length`` int64 [B] (the pending token included); ``max_proposals`` int64 [B], the minimum of K, the token
    budget and the room. On the host: ``history``, ``length_host`` and ``max_proposals_host``, the same values,
    filled from the step's one read. To read these costs nothing; to read a device tensor breaks the step, because
    the host waits. ``coupled`` says that the policy compares proposals with the target's own draw.

    ``price``, on the host, or None: by the controller's account, what proposals cost and what tokens are worth. Only
    drafts with ``heeds_price`` get one, and under a policy that is not coupled only those of them that look up.
    """

    request: Tensor
    tokens: Tensor
    history: npt.NDArray[np.int64]
    length: Tensor
    length_host: npt.NDArray[np.int64]
    max_proposals: Tensor
    max_proposals_host: npt.NDArray[np.int64]
    params: StackedParams
    ops: Backend
    coupled: bool
    price: Price | None = None

    @property
    def rows(self) -> int:
        """B, the number of live rows."""
        return self.request.shape[0]

    @property
    def kind(self) -> Hashable:
        """What decides which ops a function of this context's tensors launches, and over which tensors."""
        params = self.params
        adjusted = None if params.adjustments is None else params.adjustments.places
        return self.rows, params.greedy, params.filtered, adjusted

    @property
    def pending(self) -> Tensor:
        """int64 [B]: each row's last committed token, whose key and value are not in the arena yet."""
        return self.tokens.gather(1, (self.length - 1)[:, None])[:, 0]

    @tells_change
    def process(self, logits: Tensor, after: Paths) -> Tensor:
        """Apply the target's processors to logits [B, N, V]: float32 (or float64) in and out, a new tensor.

        ``softmax`` of the result is the distribution p; a greedy row's distribution is one-hot. ``after`` is the
        window whose N slots the logits follow, or anything else with ``paths`` int64 [B, N, D]: for each slot its
        proposals, from the first to its own, -1 past the end. Penalties, bad words and least lengths then see the
        history that each slot would have.

        Example: ``context.process(logits, window)``
        """
        paths = None if self.params.adjustments is None else after.paths
        return self.ops.process(logits, self.params, paths)

    def choose(
        self,
        logits: Tensor,
        position: Tensor,
        purpose: Purpose,
        draw: int | Tensor = 0,
        width: Tensor | None = None,
    ) -> Tensor:
        """Draw one token for each slot from softmax(logits) with the noise of (row, position, purpose, draw).

        ``logits`` float32 [B, W, V], processed; ``position`` int64 [B, W], the index of the drawn token in
        the sequence; ``width`` int64 [B], of a window: of each row so many slots count, and the others get any token.
        Returns int64 [B, W]. The same key draws with the same noise on every device and in every batch layout.
        """
        key = None if self.params.greedy else self.ops.noise_keys(self.params.stream, position, draw)[purpose]
        return self.ops.sample(logits, key) if width is None else self.ops.sample_of_slots(logits, key, width)

    @tells_change
    def propose_token(self, logits: Tensor, position: Tensor) -> Tensor:
        """``choose`` for a draft: with the target's noise under a coupled policy, else with the draft's own noise.

        The draft's own noise is new in every step, because a policy that looks at a whole block before it rejects
        has used the draws at positions for which the next step proposes again.
        """
        if self.coupled:
            return self.choose(logits, position, Purpose.TARGET)
        return self.choose(logits, position, Purpose.DRAFT, self.step)

    @property
    def step(self) -> Tensor:
        """int64 [B, 1]: a number that no other step of the row has, for draws that must be new in each step."""
        return self.length[:, None]
