"""What crosses a plugin boundary: Context in, Window out, Verdict back.

Letters used in every shape below: B rows, W slots of the window, V the target's vocabulary, S the
longest sequence, D the longest accepted path counted with its root (at most W).

**p** is the target's distribution and **q** the draft's (Leviathan et al., arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec import sampling
from specdec.errors import SpecdecError
from specdec.sampling import Purpose, StackedParams

if TYPE_CHECKING:
    from specdec.interfaces import Backend


@dataclass(frozen=True)
class Window:
    """The W tokens that one target forward sees: slot 0 the pending token, slots 1… the proposals.

    ``tokens`` int64 [B, W]; ``parents`` int64 [B, W] with -1 at slot 0 and ``parents[:, i] < i``,
    siblings in the order in which they were drawn; ``width`` int64 [B], the valid slots of each row
    (slots from ``width`` on are padding: any token id that exists, parents like any other). ``q`` is
    float32 [B, W - 1, V] over the target's vocabulary: row i - 1 is the distribution that node i was drawn
    from given its elder siblings. ``q=None`` says that every proposal was certain (one-hot rows).

    All on the engine's device. The engine owns a window from the moment ``propose`` returns it.
    """

    tokens: Tensor
    parents: Tensor
    width: Tensor
    q: Tensor | None = None

    @staticmethod
    def chain(pending: Tensor, proposals: Tensor, num_proposals: Tensor, q: Tensor | None = None) -> Window:
        """A window whose every slot continues the one before.

        ``pending`` [B]; ``proposals`` [B, K]; ``num_proposals`` [B], how many of each row's K are real.

        Example: ``Window.chain(torch.tensor([5]), torch.tensor([[6, 7]]), torch.tensor([2]))`` has
        tokens ``[[5, 6, 7]]``, parents ``[[-1, 0, 1]]`` and width ``[3]``.
        """
        tokens = torch.cat([pending[:, None], proposals], dim=1)
        parents = torch.arange(-1, tokens.shape[1] - 1, device=tokens.device).expand_as(tokens)
        return Window(tokens, parents, num_proposals + 1, q)

    @staticmethod
    def ragged(
        context: Context,
        proposals: Sequence[Sequence[int] | npt.NDArray[np.int64]],
        parents: Sequence[Sequence[int]] | None = None,
    ) -> Window:
        """A window from proposals made on the host, one list a row, of any lengths; all certain.

        Without ``parents`` each row is a chain; with them, ``parents[row][i]`` is the slot that proposal i
        (slot i + 1) continues. As wide as the longest list. The upload does not wait for the device.
        """
        counts = np.array([len(tokens) for tokens in proposals])
        padded = np.zeros((len(proposals), counts.max()), dtype=np.int64)
        above = np.tile(np.arange(-1, counts.max()), (len(proposals), 1))
        for row, tokens in enumerate(proposals):
            padded[row, : len(tokens)] = tokens
            if parents is not None:
                above[row, 1 : len(tokens) + 1] = parents[row]
        device = context.tokens.device
        proposed, slots, width = (
            torch.from_numpy(array).to(device, non_blocking=True) for array in (padded, above, counts + 1)
        )
        return Window(torch.cat([context.pending[:, None], proposed], dim=1), slots, width)

    @staticmethod
    def root(context: Context) -> Window:
        """The window of plain decoding: the pending token alone (W = 1)."""
        pending = context.pending
        return Window.chain(pending, pending[:, None][:, :0], torch.zeros_like(pending))

    @cached_property
    def ancestors(self) -> Tensor:
        """bool [B, W, W]: slot j is slot i's ancestor or i itself.

        The reflexive, transitive closure of ``parents`` by repeated squaring: log2(W) products.
        """
        size = self.tokens.shape[1]
        slots = torch.arange(size, device=self.tokens.device)
        reach = (self.parents[:, :, None] == slots) | (slots[:, None] == slots)
        hops = 1
        while hops < size - 1:
            reach = torch.bmm(reach.float(), reach.float()) > 0
            hops *= 2
        return reach

    @cached_property
    def depth(self) -> Tensor:
        """int64 [B, W]: how many edges lie between a slot and slot 0."""
        return self.ancestors.sum(dim=2) - 1

    @cached_property
    def deepest(self) -> Tensor:
        """int64 [B]: the depth of each row's deepest valid slot, 0 where nothing is proposed."""
        slots = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return torch.where(slots < self.width[:, None], self.depth, 0).amax(dim=1)

    def path_to(self, node: Tensor) -> Tensor:
        """int64 [B, W]: the slots from the root to ``node`` [B], -1 past the end."""
        size = self.tokens.shape[1]
        on_path = self.ancestors.gather(1, node[:, None, None].expand(-1, 1, size))[:, 0]
        slots = torch.arange(size, device=node.device)
        # Depths on a path are distinct, so it can be scattered into order; the rest falls past the end.
        place = torch.where(on_path, self.depth, size)
        path = torch.full((len(node), size + 1), -1, dtype=torch.int64, device=node.device)
        return path.scatter(1, place, torch.where(on_path, slots, -1))[:, :-1]

    def prefer(self, good: Tensor, choices: Tensor) -> Tensor:
        """``choices`` [B, W] with the token of a node's first good child in its place, where it has one.

        ``good`` bool [B, W]. ``ops.verify_prefix(window, window.prefer(good, choices))`` then walks from good
        child to good child and ends with the choice at the last: the walk of every policy that judges
        proposals one by one. Returns a new tensor.

        Example: a chain 5 6 7 with good ``[[True, True, False]]`` and choices ``[[1, 2, 3]]`` gives ``[[6, 2, 3]]``.
        """
        size = self.tokens.shape[1]
        slots = torch.arange(size, device=self.tokens.device)
        good = good & (slots < self.width[:, None]) & (slots > 0)
        child = torch.where(good, slots, size)
        first = torch.full_like(self.parents, size).scatter_reduce(1, self.parents.clamp(min=0), child, "amin")
        token = self.tokens.gather(1, first.clamp(max=size - 1))
        return torch.where(first < size, token, choices)

    def check(self, rows: int, max_window: int, vocabulary: int, owner: str) -> None:
        """Refuse a window whose shapes or types do not fit, before it reaches the model.

        Only what the host knows is checked; values live on the device and are the conformance kit's
        business. Raises SpecdecError naming the draft.
        """
        size = self.tokens.shape[1] if self.tokens.dim() == 2 else -1
        fits = (
            self.tokens.shape == (rows, size)
            and 1 <= size <= max_window
            and self.parents.shape == (rows, size)
            and self.width.shape == (rows,)
            and self.tokens.dtype == self.parents.dtype == self.width.dtype == torch.int64
            and (self.q is None or self.q.shape == (rows, size - 1, vocabulary))
        )
        if not fits:
            q = None if self.q is None else tuple(self.q.shape)
            raise SpecdecError(
                f"draft {owner!r} proposed a window that does not fit: got tokens {tuple(self.tokens.shape)} "
                f"{self.tokens.dtype}, parents {tuple(self.parents.shape)}, width {tuple(self.width.shape)}, q {q}; "
                f"expected int64 [{rows}, W], [{rows}, W], [{rows}] with W from 1 to {max_window}, and q None or "
                f"[{rows}, W - 1, {vocabulary}]"
            )


@dataclass(frozen=True)
class Verdict:
    """What a policy kept of a window.

    ``path`` int64 [B, D]: the accepted slots from the root down, ``path[:, 0] == 0``, -1 past the end;
    ``num_accepted`` int64 [B], the root not counted; ``next`` int64 [B], the token drawn after them
    (recovered after a rejection, bonus after full acceptance). All on the engine's device.
    """

    path: Tensor
    num_accepted: Tensor
    next: Tensor

    def last(self, states: Tensor) -> Tensor:
        """[B, H]: of states [B, W, H] of a window's slots, those of the last slot kept in each row."""
        slot = self.path.gather(1, self.num_accepted[:, None])
        return states.gather(1, slot[:, :, None].expand(-1, -1, states.shape[2]))[:, 0]


@dataclass(frozen=True)
class Context:
    """What a step knows, read-only; the tensors are views of the engine's and change after the step.

    ``request`` int64 [B], the ids; ``tokens`` int64 [B, S], prompt and output, valid up to ``length``
    [B] (the pending token included); ``max_proposals`` [B], the least of K, the token budget and the
    room; each on the device. ``history``, ``length_host`` and ``max_proposals_host`` are the same on
    the host, filled from the step's one read: reading them costs nothing, reading a device tensor
    breaks the step. ``coupled`` says that the policy compares proposals with the target's own draw.
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

    @property
    def rows(self) -> int:
        """B, the number of live rows."""
        return self.request.shape[0]

    @property
    def pending(self) -> Tensor:
        """int64 [B]: each row's last committed token, whose key and value are not in the arena yet."""
        return self.tokens.gather(1, (self.length - 1)[:, None])[:, 0]

    def process(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """The target's processors over logits [B, W, V]: float32 in, float32 out, not in place.

        ``softmax`` of the result is the distribution p; a greedy row's distribution is one-hot. ``parents`` and
        ``tokens`` [B, W] give every slot its own history, for processors that look back.
        """
        return sampling.process(logits, self.params)

    def choose(self, logits: Tensor, position: Tensor, purpose: Purpose, draw: int | Tensor = 0) -> Tensor:
        """Draw one token per slot from softmax(logits) with the noise of (row, position, purpose, draw).

        ``logits`` [B, W, V], processed; ``position`` [B, W], the index in the sequence that the drawn
        token will take. Returns int64 [B, W]. The same key draws with the same noise on every device
        and in every batch layout.
        """
        key = None if self.params.greedy else sampling.key(self.params.stream, position, purpose, draw)
        return self.ops.sample(logits, key)

    def propose_token(self, logits: Tensor, position: Tensor) -> Tensor:
        """``choose`` for a draft: with the target's own noise under a coupled policy, else with its own.

        Its own is fresh in every step: a policy that looks at a whole block before it rejects has seen draws at
        positions that the next step proposes for again.
        """
        if self.coupled:
            return self.choose(logits, position, Purpose.TARGET)
        return self.choose(logits, position, Purpose.DRAFT, self.step)

    @property
    def step(self) -> Tensor:
        """int64 [B, 1]: what tells this step of a row from its others, for draws that must be fresh in each."""
        return self.length[:, None]
