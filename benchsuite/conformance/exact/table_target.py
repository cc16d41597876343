"""A target and a draft whose distributions are tables: whole runs of the engine are small enough to enumerate.

The target's only memory is the arena. It writes each slot's token and position in place of a key and a value, and
returns the distribution after the history that the mask shows to a slot. A rolled-back token that is still visible, a
position that is off by one, or a wrongly compacted path gives another history, and so another distribution.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import Shape
from specdec import Context, Draft, Window
from specdec.arena import Arena, LayerShape, Plan
from specdec.interfaces import Backend
from specdec.model import ArenaModel
from specdec.taps import NO_LAYERS, Taps

History = tuple[int, ...]
Table = Callable[[History], Sequence[float]]
"""Maps a history, prompt included, to the distribution of the next token."""


def random_table(seed: object, vocabulary: int, parts: int = 16, zeros: bool = False) -> Table:
    """Return a table of distributions that depend on ``seed`` and the history.

    The probabilities are distinct multiples of 1/``parts``, none of them 0 unless ``zeros``.
    """

    @cache  # the leaves of an enumeration ask for the same few histories
    def distribution(history: History) -> Sequence[float]:
        generator = random.Random(f"{seed} {history}")
        while True:
            cuts = sorted(generator.randint(0, parts) for _ in range(vocabulary - 1))
            shares = [b - a for a, b in zip([0, *cuts], [*cuts, parts], strict=True)]
            if len(set(shares)) == vocabulary and (zeros or all(shares)):
                return tuple(share / parts for share in shares)

    return distribution


def near_table(seed: object, vocabulary: int) -> Table:
    """Return a table of distributions whose probabilities are nearly equal, and distinct: 100, 101 … of their sum."""

    @cache
    def distribution(history: History) -> Sequence[float]:
        parts = [100 + token for token in range(vocabulary)]
        random.Random(f"{seed} {history}").shuffle(parts)
        return tuple(part / sum(parts) for part in parts)

    return distribution


def with_ids(table: Table, ids: Sequence[int]) -> Table:
    """Return the table whose token ``ids[i]`` has the probability of token i; those between are impossible."""
    places = {token: place for place, token in enumerate(ids)}

    @cache
    def distribution(history: History) -> Sequence[float]:
        wide = [0.0] * (max(ids) + 1)
        for token, share in zip(ids, table(tuple(places.get(token, -1) for token in history)), strict=True):
            wide[token] = share
        return tuple(wide)

    return distribution


class Tabular(ArenaModel):
    """Replaces a transformers model over the arena; float64, on the CPU.

    With ``span`` its layer is a ring that sees the last ``span`` tokens only, and its distribution depends on these
    alone.
    """

    def __init__(self, distribution: Table, vocabulary: int, ops: Backend, span: int | None = None) -> None:
        self.layers, self.limit, self.bits = [LayerShape(1, 1, span)], None, None
        self.distribution, self.vocabulary, self.ops, self.span = distribution, vocabulary, ops, span
        self.device, self.dtype = torch.device("cpu"), torch.float64
        self.forwards = 0

    def forward(
        self, arena: Arena, window: Window, rows: slice, longest: int, taps: Taps = NO_LAYERS
    ) -> tuple[Tensor, Tensor]:
        """Return logits [B, W, V] of the distribution after the history that a slot sees; its token is its state."""
        plan = arena.plan(window, self.ops, rows, longest)
        self._write(plan, window.tokens)
        self.forwards += 1
        distributions = [[self.distribution(history) for history in row] for row in self._seen(plan)]
        states = window.tokens[:, :, None].double()
        return torch.tensor(distributions, dtype=torch.float64).log(), taps.gathered(
            [states] * len(taps.layers), states
        )

    def extend(self, arena: Arena, tokens: Tensor, row: int, start: int, taps: Taps = NO_LAYERS) -> Tensor:
        """Write and commit prompt tokens [1, N]; return these as states [1, N, 1]."""
        window = Window.chain(tokens[:, 0], tokens[:, 1:], torch.tensor([tokens.shape[1] - 1]))
        self._write(arena.plan(window, self.ops, slice(row, row + 1), start), tokens)
        arena.committed[row] += tokens.shape[1]
        states = tokens[:, :, None].double()
        return taps.gathered([states] * len(taps.layers), states)

    def _write(self, plan: Plan, tokens: Tensor) -> None:
        at = plan.at(0)
        new = tokens[:, None, :, None].double(), plan.position[:, None, :, None].double()
        self.ops.kv_append(at.keys, at.values, *new, at.cells)

    def _seen(self, plan: Plan) -> Iterator[list[History]]:
        """For every slot, the visible tokens in the order of their positions; -1 first marks gaps or repeats."""
        at = plan.at(0)
        length = at.mask.shape[-1]
        for row, mask in enumerate((at.mask[:, 0] == 0).tolist()):
            cells = list(zip(at.values[row, 0, :length, 0].tolist(), at.keys[row, 0, :length, 0].tolist(), strict=True))
            histories = []
            for slot, sees in enumerate(mask):
                seen = sorted(cell for cell, visible in zip(cells, sees, strict=True) if visible)
                last = int(plan.position[row, slot])
                first = 0 if self.span is None else max(0, last + 1 - self.span)
                whole = [position for position, _ in seen] == list(range(first, last + 1))
                histories.append(tuple(int(token) for _, token in seen) if whole else (-1, *(int(t) for _, t in seen)))
            yield histories


class TableDraft(Draft):
    """Draws from a table along a shape: a chain as deep as K allows, or a tree of siblings without replacement.

    Siblings share their noise: the token that comes next by the same noise is a draw from those that are left.
    ``certain`` proposes the same tokens without q.
    """

    def __init__(self, distribution: Table, shape: Shape, certain: bool = False) -> None:
        self.distribution, self.shape, self._certain = distribution, shape, certain
        self.branches = list(shape.parents) != list(range(-1, len(shape.parents) - 1))

    def propose(self, context: Context) -> Window:
        """Return a window of the shape's first slots, as many as the row with the most room allows."""
        size = 1 + min(int(context.max_proposals_host.max()), len(self.shape.parents) - 1)
        rows = [context.history[row, : context.length_host[row]].tolist() for row in range(context.rows)]
        slots = [[text[-1]] for text in rows]
        drawn_from: list[list[list[float]]] = [[] for _ in rows]
        for slot in range(1, size):
            drawn, depth = [], len(self.shape.ancestry(slot))
            for row, text in enumerate(rows):
                path = self.shape.ancestry(self.shape.parents[slot])
                distribution = self.distribution((*text, *(slots[row][s] for s in path)))
                own = self.shape.without_elders(distribution, slots[row], slot)
                drawn.append(own)
                drawn_from[row].append(own)
            logits = torch.tensor(drawn, dtype=torch.float64).log()[:, None]
            position = context.length[:, None] + depth - 1
            tokens = context.propose_token(logits, position)
            for row, token in enumerate(tokens[:, 0].tolist()):
                slots[row].append(token)
        tokens = torch.tensor(slots)
        parents = torch.tensor(self.shape.parents[:size]).expand_as(tokens)
        q = None if self._certain else torch.tensor(drawn_from, dtype=torch.float64)
        return Window(tokens, parents, context.max_proposals.clamp(max=size - 1) + 1, q)
