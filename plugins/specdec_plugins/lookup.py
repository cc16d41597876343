"""The base of drafts that look proposals up on the host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specdec import Context, Draft, Window

History = npt.NDArray[np.int64]


class Lookup(Draft):
    """A draft that continues a row's history from text it has seen; a row without a match proposes nothing.

    ``most`` is the largest number of continuations; several are verified as a tree. One method must be written:
    ``continuations``.
    """

    looks_up = small_ops = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.branches = most > 1

    @abstractmethod
    def continuations(self, row: int, history: History, limit: int) -> Sequence[Sequence[int]]:
        """Up to ``most`` continuations of a row's tokens [length], likeliest first, none longer than ``limit`` >= 1."""

    def propose(self, context: Context) -> Window:
        """A chain or a tree of each row's continuations; the window is as wide as the largest row needs."""
        return self.window(context, [self.look_up(context, row) for row in range(context.rows)])

    def look_up(self, context: Context, row: int) -> Sequence[Sequence[int]]:
        """The continuations of one row, within its room."""
        limit = int(context.max_proposals_host[row])
        return self.continuations(row, context.history[row, : context.length_host[row]], limit) if limit > 0 else []

    def window(self, context: Context, found: Sequence[Sequence[Sequence[int]]]) -> Window:
        """The window of every row's continuations."""
        if not self.branches:
            return Window.ragged(context, [paths[0] if paths else [] for paths in found])
        limits = context.max_proposals_host
        trees = [merged(paths, int(limit)) for paths, limit in zip(found, limits, strict=True)]
        return Window.ragged(context, [tokens for tokens, _ in trees], [parents for _, parents in trees])


def merged(paths: Sequence[Sequence[int]], limit: int, first: int = 0) -> tuple[list[int], list[int]]:
    """Merge continuations into one tree of at most ``limit`` nodes, level by level; shared beginnings occur once.

    The first ``first`` nodes of the likeliest path come before all others.
    Returns the nodes' tokens and the slots of their parents (0 is the root, node i has slot i + 1).

    Example: ``merged([[5, 6], [5, 7]], 8)`` is ``([5, 6, 7], [0, 1, 1])``.
    """
    tokens: list[int] = []
    parents: list[int] = []
    slots: dict[tuple[int, ...], int] = {(): 0}
    deepest = max(map(len, paths), default=0)
    levels = [tuple(path[: depth + 1]) for depth in range(deepest) for path in paths if len(path) > depth]
    for node in [tuple(paths[0][: depth + 1]) for depth in range(first)] + levels:
        if node not in slots and len(tokens) < limit:
            tokens.append(int(node[-1]))
            parents.append(slots[node[:-1]])
            slots[node] = len(tokens)
    return tokens, parents
