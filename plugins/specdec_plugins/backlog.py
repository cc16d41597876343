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
    without a copy of any token but those of a row that is taken.

    Example::

        backlog = Backlog()
        backlog.add(0, prompt, states)  # int64 [1, W], [1, W, ...]: tokens of row 0
        backlog.add(0, tokens, states)  # int64 [2, 1], [2, 1, ...]: one more of row 0, one of row 1
        backlog.of([0])  # int64 [1, W + 1], [1, W + 1, ...], int64 [1]
    """

    def __init__(self) -> None:
        self._tokens: list[Tensor] = []
        self._states: list[Tensor] = []
        self._size = 0  # tokens in these parts
        self._places: dict[int, list[int]] = {}  # by row, of the parts behind one another

    def __bool__(self) -> bool:
        """Whether any row waits."""
        return bool(self._places)

    def waiting(self) -> dict[int, int]:
        """The rows that wait, and how many tokens of each."""
        return {row: len(places) for row, places in self._places.items()}

    def add(self, first: int, tokens: Tensor, states: Tensor) -> None:
        """Copy tokens int64 [B, W] of the rows from ``first`` on, and the states [B, W, ...] before them."""
        rows, width = tokens.shape
        for row in range(rows):
            start = self._size + row * width
            self._places.setdefault(first + row, []).extend(range(start, start + width))
        self._size += rows * width
        self._tokens.append(tokens.flatten().clone())
        self._states.append(states.flatten(0, 1).clone())

    def of(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Take the tokens of rows: int64 [B, N], states [B, N, ...], and how many of a row's N count, int64 [B].

        A row with fewer than the others has any of them behind its own.
        """
        places = [self._places.pop(row, []) for row in rows]
        most = max(map(len, places))
        padded = np.array([[*some, *[0] * (most - len(some))] for some in places], dtype=np.int64)
        tokens, states = self._joined()
        index, counts = uploaded(tokens.device, padded, np.array([*map(len, places)], dtype=np.int64))
        taken = tokens[index], states[index], counts
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

    def _joined(self) -> tuple[Tensor, Tensor]:
        if len(self._tokens) > 1:
            self._tokens, self._states = [torch.cat(self._tokens)], [torch.cat(self._states)]
        return self._tokens[0], self._states[0]

    def _tidied(self) -> None:
        """Leave out what nobody waits for, if it is much."""
        waiting = [place for places in self._places.values() for place in places]
        if not waiting:
            self._tokens, self._states, self._size = [], [], 0
        elif self._size > 2 * len(waiting) + SLACK:
            tokens, states = self._joined()
            [index] = uploaded(tokens.device, np.array(waiting, dtype=np.int64))
            self._tokens, self._states, self._size = [tokens[index]], [states[index]], len(waiting)
            start = 0
            for row, places in self._places.items():
                self._places[row] = [*range(start, start + len(places))]
                start += len(places)
