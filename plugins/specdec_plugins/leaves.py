"""A chain of a model's likeliest tokens with others beside each, whose chances the host knows."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from specdec import Context, Window


class Node(NamedTuple):
    """A token, the chance that it is kept with all before it, and the node before it; -1 is the pending token."""

    chance: float
    token: int
    before: int


class LeafedChain:
    """For each row a chain and the ``leaves`` likeliest other tokens beside each of its tokens, depth by depth.

    ``ids`` int64 [D] are the target's ids of the tokens of a distribution; None: all. To read a distribution is to wait
    for the device.

    Example::

        chain = LeafedChain(ids, leaves=2)
        chain.grow(distribution)  # log-probabilities [B, 1, D] after the pending tokens
        chain.grow(after)  # and after ``chain.tokens``
        chain.window(context, [4])
    """

    def __init__(self, ids: Tensor | None, leaves: int) -> None:
        self._ids, self._children = ids, 1 + leaves
        self._nodes: list[list[Node]] = []
        self._drawn: list[Tensor] = []
        self.depth = 0

    @property
    def tokens(self) -> Tensor:
        """int64 [B, 1]: the chain's last token, from which it goes on."""
        return self._drawn[-1]

    @property
    def paths(self) -> Tensor:
        """int64 [B, 1, depth]: the chain."""
        return torch.cat(self._drawn, dim=1)[:, None]

    def grow(self, distribution: Tensor) -> None:
        """Add a depth, from log-probabilities [B, 1, D] after the chain's last token; NaN is no chance."""
        top = distribution[:, 0].topk(min(self._children, distribution.shape[2]), dim=1)
        found = top.indices if self._ids is None else self._ids[top.indices]
        kept = top.values.nan_to_num(-inf).exp()
        self._drawn.append(found[:, :1])
        self._nodes = self._nodes or [[] for _ in range(len(found))]
        for nodes, tokens, chances in zip(self._nodes, found.tolist(), kept.tolist(), strict=True):
            last = self._last
            alive = nodes[last].chance if last >= 0 else 1.0
            nodes += [Node(alive * chance, token, last) for token, chance in zip(tokens, chances, strict=True)]
        self._width = found.shape[1]
        self.depth += 1

    @property
    def _last(self) -> int:
        """The number of the chain's last node; its first child is the next one."""
        return (self.depth - 1) * self._width if self.depth else -1

    def alive(self) -> list[float]:
        """For each row the chance that the whole chain is kept."""
        return [nodes[self._last].chance for nodes in self._nodes]

    def chances(self) -> list[list[float]]:
        """For each row those of all nodes, the largest first."""
        return [sorted((node.chance for node in nodes), reverse=True) for nodes in self._nodes]

    def window(self, context: Context, counts: Sequence[int]) -> Window:
        """The window of each row's likeliest nodes, so many of them."""
        tokens, parents = [], []
        for nodes, count in zip(self._nodes, counts, strict=True):
            # Of equal chances the earlier node comes first, and a node comes after the one before it.
            chosen = sorted(sorted(range(len(nodes)), key=lambda i: (-nodes[i].chance, i))[:count])
            slots = {-1: 0, **{number: slot for slot, number in enumerate(chosen, start=1)}}
            tokens.append([nodes[number].token for number in chosen])
            parents.append([slots[nodes[number].before] for number in chosen])
        return Window.ragged(context, tokens, parents)
