"""The key/value arena: allocated once, written in place, rolled back without any copy.

A row's committed cells hold positions 0 … committed - 1, position t in cell t mod capacity. Cells past them are
not visible and will be overwritten, so a rejected proposal costs nothing. `docs/arena.md` states the invariants
I1-I7 that this file keeps.

Letters: R rows of the arena, B rows of one forward, W slots, C the capacity of a layer, L the cells that one
forward reads (a length bucket, so that shapes repeat), D the longest accepted path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.decoder import Cells
from specdec.errors import SpecdecError
from specdec.interfaces import Backend
from specdec.messages import Verdict, Window

BUCKET = 64
"""A forward reads a multiple of this many cells of a full layer."""


@dataclass(frozen=True)
class LayerShape:
    """One attention layer: number of key/value heads, their size, and its span in tokens (None: no limit)."""

    heads: int
    head_dim: int
    span: int | None


@dataclass(frozen=True)
class Plan:
    """How one forward writes and reads the arena; the same for all layers of one span.

    ``position`` int64 [B, W]. For each span: ``cells`` int64 [B, W], the cells to which the slots are written, and
    ``mask`` [B, 1, W, L] in the arena's dtype, 0 if a slot sees a cell, else -inf.
    """

    arena: Arena
    ops: Backend
    rows: slice
    position: Tensor
    cells: dict[int | None, Tensor]
    mask: dict[int | None, Tensor]

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        """Write this layer's new keys and values in place, then attend: [B, heads, W, d] in, [B, W, heads, d] out."""
        at = self.at(layer)
        self.ops.kv_append(at.keys, at.values, keys, values, at.cells)
        length = at.mask.shape[-1]
        return self.ops.tree_attention(
            query, at.keys[:, :, :length], at.values[:, :, :length], at.mask, scaling, softcap
        )

    def at(self, layer: int) -> Cells:
        """The cells that one layer writes, and the mask of the cells that it sees."""
        arena, span = self.arena, self.arena.layers[layer].span
        keys, values = arena.keys[layer], arena.values[layer]
        if self.rows != slice(0, len(keys)):
            keys, values = keys[self.rows], values[self.rows]
        return Cells(keys, values, self.cells[span], self.mask[span])


@dataclass(frozen=True)
class KeptCells:
    """A copy of a row's first ``length`` committed cells: keys and values of each layer, [heads, cells, head_dim].

    ``wrapped``: some layer is a ring that has begun to overwrite itself, so that no shorter text can be restored.
    """

    length: int
    wrapped: bool
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return sum(cells.nbytes for cells in (*self.keys, *self.values))


class Arena:
    """Keys and values of R rows: for each layer two tensors [R, heads, capacity, head_dim].

    ``max_length`` is the longest sequence, ``max_window`` the widest window ever written, prefill chunks
    and padding included. A layer with a span is a ring of span + max_window - 1 cells (never more than a
    full layer needs); a full layer never wraps. ``committed`` int64 [R] counts each row's committed cells.

    Example: ``Arena([LayerShape(3, 64, None)], rows=1, max_length=512, max_window=9,
    dtype=torch.float32, device=torch.device("cpu"))``
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        rows: int,
        max_length: int,
        max_window: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = tuple(layers)
        self.max_window = max_window
        full = -(-(max_length + max_window - 1) // BUCKET) * BUCKET
        spans = {layer.span for layer in self.layers}
        self.capacity = {span: full if span is None else min(full, span + max_window - 1) for span in spans}
        # Zeros, because uninitialised memory can hold NaN, and a masked NaN (weight 0) still makes the sum NaN.
        self.keys, self.values = (
            [
                torch.zeros(rows, layer.heads, self.capacity[layer.span], layer.head_dim, dtype=dtype, device=device)
                for layer in self.layers
            ]
            for _ in range(2)
        )
        self.committed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.allocations = len(self.keys) + len(self.values) + 1

    @staticmethod
    def bytes_per_token(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
        """Bytes that one cell takes over all layers."""
        return sum(2 * layer.heads * layer.head_dim for layer in layers) * dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all layers."""
        return sum(t[0].numel() * t.element_size() for t in (*self.keys, *self.values))

    def plan(self, window: Window, ops: Backend, rows: slice, longest: int, limit: int | None = None) -> Plan:
        """Positions, cells and masks for one forward of ``window`` over ``rows``; writes nothing.

        ``longest`` is an upper bound, known to the host, on ``committed`` of these rows; it selects the length bucket.
        ``limit`` is the model's number of positions; padding past it gets the last position.
        Raises SpecdecError if the window does not fit past ``longest``.
        """
        width = window.tokens.shape[1]
        committed = self.committed[rows]
        depth = window.depth
        position = committed[:, None] + depth
        cells, mask = {}, {}
        for span, capacity in self.capacity.items():
            if width > self.max_window or (span is None and longest + width > capacity):
                raise SpecdecError(
                    f"a window of {width} slots after {longest} committed tokens does not fit the arena "
                    f"(widest window {self.max_window}, {capacity} cells); build it with a larger max_length"
                )
            look = min(capacity, -(-(longest + width) // BUCKET) * BUCKET)
            slots = torch.arange(width, device=committed.device)
            cells[span] = (committed[:, None] + slots) % capacity
            mask[span] = self._mask(window, committed, position, look, capacity, span)
        if limit is not None:
            position = position.clamp(max=limit - 1)
        return Plan(self, ops, rows, position, cells, mask)

    def _mask(
        self, window: Window, committed: Tensor, position: Tensor, look: int, capacity: int, span: int | None
    ) -> Tensor:
        width = window.tokens.shape[1]
        cell = torch.arange(look, device=committed.device)
        last = committed[:, None] - 1
        stored = last - (last - cell) % capacity  # the position in each cell; negative: none yet
        sees = (stored >= 0)[:, None, :].expand(-1, width, -1)
        slot = (cell - committed[:, None]) % capacity  # the slot that this forward writes to each cell
        written = (slot < width)[:, None, :]
        slot = slot.clamp(max=width - 1)[:, None, :].expand(-1, width, -1)
        if span is not None:
            sees = sees & (stored[:, None, :] > position[:, :, None] - span)
            near = position[:, :, None] - position[:, None, :] < span
            own = window.ancestors & near
        else:
            own = window.ancestors
        sees = torch.where(written, own.gather(2, slot), sees)
        dtype = self.keys[0].dtype
        mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
        return mask.masked_fill_(~sees, float("-inf"))[:, None]

    def commit(self, verdict: Verdict, rows: slice, ops: Backend, compact: bool) -> None:
        """Append the accepted path to each row: the root and ``num_accepted`` more cells.

        The path of a chain is in the right cells already (``compact=False`` moves nothing); ``compact=True`` moves
        the path of a tree together and no other cell. In place: ``committed`` and, with ``compact``, the cells.
        """
        committed = self.committed[rows]
        if compact:
            step = torch.arange(verdict.path.shape[1], device=committed.device)
            inside = step <= verdict.num_accepted[:, None]
            source = committed[:, None] + torch.where(inside, verdict.path, step)
            target = committed[:, None] + step
            for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
                capacity = self.capacity[layer.span]
                ops.kv_compact(keys[rows], values[rows], source % capacity, target % capacity)
        committed += verdict.num_accepted + 1

    def reset(self, row: int) -> None:
        """Empty a row. Nothing is cleared, because cells that are not committed are not visible."""
        self.committed[row].fill_(0)

    def move(self, source: int, row: int, cells: int | None = None) -> int:
        """Copy row ``source`` onto ``row``; returns the bytes copied.

        ``cells``, when given, is the number of committed cells of ``source``, and no other cell is copied; a ring
        that is shorter is copied whole.
        """
        copied = 0
        for tensor in (*self.keys, *self.values):
            part = tensor[source, :, :cells]
            tensor[row, :, :cells].copy_(part)
            copied += part.numel() * part.element_size()
        self.committed[row] = self.committed[source]
        return copied

    def keep(self, row: int, length: int, window: int) -> KeptCells:
        """Copy a row's first ``length`` cells, all committed; ``window`` is the widest that was written there."""
        # A window writes past what is committed, so a ring may have lost its first cells before it is full.
        wrapped = any(span is not None and length + window > self.capacity[span] for span in self.capacity)
        keys, values = (
            tuple(
                tensor[row, :, : self.capacity[layer.span] if wrapped and layer.span is not None else length].clone()
                for layer, tensor in zip(self.layers, tensors, strict=True)
            )
            for tensors in (self.keys, self.values)
        )
        return KeptCells(length, wrapped, keys, values)

    def restore(self, row: int, kept: KeptCells, length: int) -> int:
        """Write the first ``length`` kept cells into a row and commit them; returns the bytes copied.

        ``length`` is at most that of ``kept``, and equal to it if ``kept`` has wrapped.
        """
        copied = 0
        for layer, *pair in zip(self.layers, self.keys, kept.keys, self.values, kept.values, strict=True):
            cells = self.capacity[layer.span] if kept.wrapped and layer.span is not None else length
            for tensor, stored in (pair[:2], pair[2:]):
                part = stored[:, :cells]
                tensor[row, :, : part.shape[1]].copy_(part)
                copied += part.numel() * part.element_size()
        self.committed[row].fill_(length)
        return copied
