"""The states of recurrent and convolutional layers, beside the arena's cells: rolled back without any copy.

A recurrent layer has no key and value for each token: it has one state, which every token changes. A ring of places
holds a row's states after its last counts of tokens, the state after n tokens in place n mod places. A forward reads
the state after what is committed and writes one for each slot, so what the commit moves is ``Arena.committed`` alone,
and a rejected slot's state is overwritten by a later window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.errors import SpecdecError


class StateKey(NamedTuple):
    """Which state: the layer's index, what it is of ("conv" or "recurrent"), and its number in that layer."""

    layer: int
    kind: str
    number: int


@dataclass(frozen=True)
class StateShape:
    """The size and dtype of a state of one row."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one state of one row."""
        return torch.Size(self.size).numel() * self.dtype.itemsize


class StateRings:
    """For each state of a model a tensor [R, places, *size], allocated once; ``places`` is the widest window + 1.

    A state after no token is all zeros, whatever its place holds.

    Example: ``StateRings({StateKey(0, "conv", 0): StateShape((64, 3), torch.float32)}, rows=1, window=5,
    device=torch.device("cpu"))``
    """

    def __init__(self, shapes: Mapping[StateKey, StateShape], *, rows: int, window: int, device: torch.device) -> None:
        self.window, self._places = window, window + 1
        self.rings = {
            key: torch.zeros(rows, self._places, *shape.size, dtype=shape.dtype, device=device)
            for key, shape in shapes.items()
        }

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: every place of every ring."""
        return sum(ring[0].nbytes for ring in self.rings.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of one row's states after one count of tokens."""
        return sum(ring[0, 0].nbytes for ring in self.rings.values())

    def refuse_wide(self, width: int) -> None:
        """Raise SpecdecError for a window whose slots would overwrite the state that they begin with."""
        if self.rings and width > self.window:
            raise SpecdecError(
                f"a window of {width} slots leaves more states than the arena holds of a row, {self.window}; build it "
                "with a larger max_window"
            )

    def read(self, key: StateKey, rows: slice, count: Tensor) -> Tensor:
        """A copy of the rows' states after ``count`` int64 [B] tokens: [B, *size]."""
        ring = self.rings[key][rows]
        state = ring[torch.arange(len(count), device=count.device), count % self._places]
        return state.masked_fill_((count == 0).view(-1, *[1] * (state.dim() - 1)), 0)

    def write(self, key: StateKey, rows: slice, count: Tensor, state: Tensor) -> None:
        """Write ``state`` [B, *size] as the rows' states after ``count`` int64 [B] tokens, in place."""
        ring = self.rings[key][rows]
        ring[torch.arange(len(count), device=count.device), count % self._places] = state.to(ring.dtype)

    def compact(self, rows: slice, source: Tensor, target: Tensor) -> None:
        """Copy the states after ``source`` int64 [B] tokens to where those after ``target`` lie, in place."""
        for key in self.rings:
            self.write(key, rows, target, self.read(key, rows, source))

    def wipe(self) -> None:
        """Set every state to zero."""
        for ring in self.rings.values():
            ring.zero_()

    def move(self, source: int, row: int) -> int:
        """Copy all places of row ``source`` onto ``row``, because a draft may still roll back; returns the bytes."""
        for ring in self.rings.values():
            ring[row].copy_(ring[source])
        return self.row_bytes

    def keep(self, row: int, count: int) -> tuple[Tensor, ...]:
        """A copy of a row's states after ``count`` tokens, of which the last window may have committed some more."""
        return tuple(ring[row, count % self._places].clone() for ring in self.rings.values())

    def restore(self, row: int, count: int, kept: tuple[Tensor, ...]) -> int:
        """Write what ``keep`` copied into a row; returns the bytes copied."""
        for ring, state in zip(self.rings.values(), kept, strict=True):
            ring[row, count % self._places].copy_(state)
        return sum(state.nbytes for state in kept)
