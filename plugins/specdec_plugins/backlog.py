"""What a draft has not read yet: tokens of each row's text, and the target's states before them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specdec.devices import uploaded

SLACK = 1024
"""Tokens of ended requests that may stay beside those that are waited for: to leave them out is a copy of all."""


class Backlog:
    """Tokens that wait to be read, of each row in the order of its text, with a state [...] of the target each.

    Where they lie is known to the host, so that nothing of them is read from the device: rows may come, go and move
    without a copy of any token but those of a row that is taken. Of a window's proposals only the device knows how many
    were accepted: the others are left out when the row is taken.

    Example::

        backlog = Backlog()
        backlog.add(0, prompt, states)  # int64 [1, W], [1, W, ...]: tokens of row 0
        backlog.add(0, tokens, states)  # int64 [2, 1], [2, 1, ...]: one more of row 0, one of row 1
        backlog.add(0, tokens, states, counts)  # int64 [2, 8], [2, 8, ...], [2]: of each up to eight more
        backlog.of([0])  # int64 [1, W + 9], [1, W + 9, ...], int64 [1]
    """

    def __init__(self) -> None:
        self._tokens: list[Tensor] = []
        self._states: list[Tensor] = []
        self._counted: list[Tensor] = []  # whether a token counts
        self._size = 0  # tokens in these parts
        self._places: dict[int, list[int]] = {}  # by row, of the parts behind one another

    def __bool__(self) -> bool:
        """Whether any row waits."""
        return bool(self._places)

    def waiting(self) -> dict[int, int]:
        """The rows that wait, and how many tokens of each at most."""
        return {row: len(places) for row, places in self._places.items()}

    def add(self, first: int, tokens: Tensor, states: Tensor, counts: Tensor | None = None) -> None:
        """Copy tokens int64 [B, W] of the rows from ``first`` on, and the states [B, W, ...] before them.

        ``counts`` int64 [B], on the device: how many of a row's tokens count, the first ones. None: all.
        """
        rows, width = tokens.shape
        whole = torch.full((rows,), width, device=tokens.device) if counts is None else counts
        for row in range(rows):
            start = self._size + row * width
            self._places.setdefault(first + row, []).extend(range(start, start + width))
        self._size += rows * width
        self._tokens.append(tokens.flatten().clone())
        self._states.append(states.flatten(0, 1).clone())
        self._counted.append((torch.arange(width, device=tokens.device) < whole[:, None]).flatten())

    def of(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Take the tokens of rows: int64 [B, N], states [B, N, ...], and how many of a row's N count, int64 [B].

        A row with fewer than the others has any of them behind its own.
        """
        places = [self._places.pop(row, []) for row in rows]
        most = max(map(len, places))
        padded = np.array([[*some, *[-1] * (most - len(some))] for some in places], dtype=np.int64)
        tokens, states, counted = self._joined()
        [index] = uploaded(tokens.device, padded)
        counts = counted[index] & (index >= 0)
        index = index.gather(1, (~counts).to(torch.int8).argsort(dim=1, stable=True))
        taken = tokens[index], states[index], counts.sum(dim=1)
        self._tidied()
        return taken

    def drop(self, row: int) -> None:
        """Nobody asks for this row's tokens any more."""
        if self._places.pop(row, None):
            self._tidied()

    def move(self, source: int, row: int) -> None:
        """What waited in row ``source`` waits in ``row``."""
        self._places.pop(row, None)
        if places := self._places.pop(source, None):
            self._places[row] = places

    def _joined(self) -> tuple[Tensor, Tensor, Tensor]:
        if len(self._tokens) > 1:
            self._tokens, self._states = [torch.cat(self._tokens)], [torch.cat(self._states)]
            self._counted = [torch.cat(self._counted)]
        return self._tokens[0], self._states[0], self._counted[0]

    def _tidied(self) -> None:
        """Leave out what nobody waits for, if it is much."""
        waiting = [place for places in self._places.values() for place in places]
        if not waiting:
            self._tokens, self._states, self._counted, self._size = [], [], [], 0
        elif self._size > 2 * len(waiting) + SLACK:
            tokens, states, counted = self._joined()
            [index] = uploaded(tokens.device, np.array(waiting, dtype=np.int64))
            self._tokens, self._states, self._counted = [tokens[index]], [states[index]], [counted[index]]
            self._size = len(waiting)
            start = 0
            for row, places in self._places.items():
                self._places[row] = [*range(start, start + len(places))]
                start += len(places)
