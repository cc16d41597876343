"""The key/value arena: allocated once, written in place, rolled back without any copy.

A row's committed cells hold positions 0 … committed - 1, position t in cell t mod capacity. Cells past them are
not visible and will be overwritten, so a rejected proposal costs nothing. `docs/arena.md` states the invariants
I1-I7 that this file keeps.

Letters: R rows of the arena, B rows of one forward, W slots, C the capacity of a layer, L the cells that one
forward reads (a length bucket, so that shapes repeat), D the longest accepted path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from specdec.decoder import Cells
from specdec.errors import SpecdecError
from specdec.interfaces import Backend
from specdec.messages import Verdict, Window
from specdec.states import StateKey, StateRings, StateShape

BUCKET = 64
"""A forward reads a multiple of this many cells of a full layer."""


NO_STATES: Mapping[StateKey, StateShape] = MappingProxyType({})
"""What a model without recurrent layers keeps beside its cells."""


@dataclass(frozen=True)
class LayerShape:
    """One layer: number of key/value heads (0 without attention), their size, its span in tokens (None: no limit).

    ``chunked``: the text is cut into chunks of ``span`` tokens, and a token sees those of its own chunk alone.
    """

    heads: int
    head_dim: int
    span: int | None
    chunked: bool = False


@dataclass(frozen=True)
class Plan:
    """How one forward writes and reads the arena; the same for all layers of one span.

    ``position`` int64 [B, W]. For each span: ``cells`` int64 [B, W], the cells to which the slots are written, and
    ``mask`` [B, 1, W, L] in the arena's dtype, 0 if a slot sees a cell, else -inf. ``chunk_mask``: that of chunked
    layers. ``used`` int64 [B]: in a layer without a span, no slot of a row sees a cell from there on. ``width`` int64
    [B]: the window's, the slots of each row that count.
    """

    arena: Arena
    ops: Backend
    rows: slice
    position: Tensor
    cells: dict[int | None, Tensor]
    mask: dict[int | None, Tensor]
    used: Tensor
    width: Tensor
    chunk_mask: dict[int | None, Tensor] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Write this layer's new keys and values in place, then attend: [B, heads, W, d] in, [B, W, heads, d] out.

        Raises SpecdecError before anything is written if keys or values are not those of the layer's shape.
        """
        shape = self.arena.layers[layer]
        held = shape.heads, shape.head_dim
        if (keys.shape[1], keys.shape[3]) != held or values.shape != keys.shape:
            got = " and ".join(f"{len(x[0])} heads of {x.shape[3]} numbers" for x in (keys, values))
            raise SpecdecError(
                f"layer {layer} attends over keys and values of {got}; its cells have {shape.heads} heads of "
                f"{shape.head_dim} numbers, as the model's configuration says: choose another model"
            )
        at = self.at(layer)
        self.ops.kv_append(at.keys, at.values, keys, values, at.cells)
        return at.attend(self.ops, query, scaling, softcap, sinks)

    def at(self, layer: int) -> Cells:
        """The cells that one layer writes, and the mask of the cells that it sees."""
        arena, shape = self.arena, self.arena.layers[layer]
        span, masks = shape.span, self.chunk_mask if shape.chunked else self.mask
        keys, values = arena.of_rows(self.rows)[layer]
        return Cells(keys, values, self.cells[span], masks[span], self.used if span is None else None, self.width)


@dataclass(frozen=True)
class KeptCells:
    """A copy of a row's first ``length`` committed cells: keys and values of each stack, [n heads, cells, head_dim].

    ``states`` are those of recurrent layers after ``length`` tokens. ``wrapped``: there are such states, or some layer
    is a ring that has begun to overwrite itself, so that no shorter text can be restored.
    """

    length: int
    wrapped: bool
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    states: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return sum(cells.nbytes for cells in (*self.keys, *self.values, *self.states))


@dataclass(frozen=True)
class LayerStack:
    """The n layers of one shape: keys and values [R, n heads, capacity, head_dim], the heads of each layer together.

    What concerns a row's cells in every layer, as a move or a compaction does, is then one copy.
    """

    span: int | None
    keys: Tensor
    values: Tensor


class Arena:
    """Keys and values of R rows: for each layer two tensors [R, heads, capacity, head_dim], views of its stack.

    ``max_length`` is the longest sequence, ``max_window`` the widest window ever written, prefill chunks
    and padding included. A layer with a span is a ring of span + max_window - 1 cells (never more than a
    full layer needs); a full layer never wraps. ``committed`` int64 [R] counts each row's committed cells.
    ``states`` are those of recurrent layers, of which ``kept_window`` is the widest window whose slots each leave one.

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
        states: Mapping[StateKey, StateShape] = NO_STATES,
        kept_window: int = 1,
    ) -> None:
        self.layers, self.dtype = tuple(layers), dtype
        self.max_window = max_window
        full = -(-(max_length + max_window - 1) // BUCKET) * BUCKET
        attending = [layer for layer in self.layers if layer.heads]
        spans = {layer.span for layer in attending} or {None}
        self.capacity = {span: full if span is None else min(full, span + max_window - 1) for span in spans}
        self.chunks = {layer.span for layer in attending if layer.chunked}
        made: dict[LayerShape, LayerStack] = {}
        for shape, count in Counter(attending).items():
            size = rows, count * shape.heads, self.capacity[shape.span], shape.head_dim
            # Zeros, because uninitialised memory can hold NaN, and a masked NaN (weight 0) still makes the sum NaN.
            made[shape] = LayerStack(shape.span, *(torch.zeros(size, dtype=dtype, device=device) for _ in range(2)))
        self.stacks = tuple(made.values())
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for place, shape in enumerate(self.layers):
            if not shape.heads:
                self.keys.append(torch.zeros(rows, 0, 0, 0, dtype=dtype, device=device))
                self.values.append(self.keys[-1])
                continue
            first = self.layers[:place].count(shape) * shape.heads
            self.keys.append(made[shape].keys[:, first : first + shape.heads])
            self.values.append(made[shape].values[:, first : first + shape.heads])
        self._viewed: tuple[slice, list[tuple[Tensor, Tensor]]] | None = None
        self.committed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.states = StateRings(states, rows=rows, window=kept_window, device=device)
        self.allocations = 2 * len(self.stacks) + 1 + len(states)

    @staticmethod
    def bytes_per_token(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
        """Bytes that one cell takes over all layers."""
        return sum(2 * layer.heads * layer.head_dim for layer in layers) * dtype.itemsize

    def of_rows(self, rows: slice) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, heads, capacity, head_dim] of some rows, by layer: views, made anew for other rows."""
        if self._viewed is None or self._viewed[0] != rows:
            pairs = zip(self.keys, self.values, strict=True)
            self._viewed = rows, [(keys[rows], values[rows]) for keys, values in pairs]
        return self._viewed[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all layers, states included."""
        return self.states.row_bytes + sum(stack.keys[0].nbytes + stack.values[0].nbytes for stack in self.stacks)

    def plan(
        self,
        window: Window,
        ops: Backend,
        rows: slice,
        longest: int,
        limit: int | None = None,
    ) -> Plan:
        """Positions, cells and masks for one forward of ``window`` over ``rows``; writes nothing.

        ``longest`` is an upper bound, known to the host, on ``committed`` of these rows; it selects the length bucket.
        ``limit`` is the model's number of positions; padding past it gets the last position.
        Raises SpecdecError if the window does not fit past ``longest``.
        """
        width = window.tokens.shape[1]
        committed, dtype = self.committed[rows], self.dtype
        cells, mask = {}, {}
        chunk_mask: dict[int | None, Tensor] = {}
        for span, capacity in self.capacity.items():
            if width > self.max_window or (span is None and longest + width > capacity):
                raise SpecdecError(
                    f"a window of {width} slots after {longest} committed tokens does not fit the arena "
                    f"(widest window {self.max_window}, {capacity} cells); build it with a larger max_length"
                )
            look = min(capacity, -(-(longest + width) // BUCKET) * BUCKET)
            planned = ops.kv_plan(window, committed, span, capacity, look, limit, dtype)
            depth, position, cells[span], mask[span] = planned
            if span is not None and span in self.chunks:
                chunk_mask[span] = _within_chunks(mask[span], committed, depth, span, capacity)
        window.remember(depth)
        return Plan(self, ops, rows, position, cells, mask, committed + width, window.width, chunk_mask)

    def commit(self, verdict: Verdict, rows: slice, ops: Backend, compact: bool) -> None:
        """Append the accepted path to each row: the root and ``num_accepted`` more cells.

        The path of a chain is in the right cells already (``compact=False`` moves nothing); ``compact=True`` moves
        the path of a tree together, and the states after it to their place; no other cell. In place: ``committed`` and,
        with ``compact``, the cells and states.
        """
        committed = self.committed[rows]
        if compact:
            step = torch.arange(verdict.path.shape[1], device=committed.device)
            inside = step <= verdict.num_accepted[:, None]
            source = committed[:, None] + torch.where(inside, verdict.path, step)
            target = committed[:, None] + step
            for stack in self.stacks:
                capacity = self.capacity[stack.span]
                ops.kv_compact(stack.keys[rows], stack.values[rows], source % capacity, target % capacity)
            if self.states.rings:
                last = verdict.num_accepted[:, None]
                self.states.compact(rows, (source.gather(1, last) + 1)[:, 0], (target.gather(1, last) + 1)[:, 0])
        committed += verdict.num_accepted + 1

    @torch.inference_mode()
    def wipe(self) -> None:
        """Set every cell and state to zero: a NaN in one that a mask hides would reach the rows that come after it."""
        for cells in (*self.keys, *self.values):
            cells.zero_()
        self.states.wipe()

    def reset(self, row: int) -> None:
        """Empty a row. Nothing is cleared, because cells that are not committed are not visible."""
        self.committed[row].fill_(0)

    def move(self, source: int, row: int, cells: int | None = None) -> int:
        """Copy row ``source`` onto ``row``; returns the bytes copied.

        ``cells``, when given, is the number of committed cells of ``source``, and no other cell is copied; a ring
        that is shorter is copied whole, as states are.
        """
        copied = self.states.move(source, row)
        for stack in self.stacks:
            for tensor in (stack.keys, stack.values):
                part = tensor[source, :, :cells]
                tensor[row, :, :cells].copy_(part)
                copied += part.nbytes
        self.committed[row] = self.committed[source]
        return copied

    def keep(self, row: int, length: int, window: int) -> KeptCells:
        """Copy a row's first ``length`` cells, all committed; ``window`` is the widest that was written there."""
        # A window writes past what is committed, so a ring may have lost its first cells before it is full.
        wrapped = any(span is not None and length + window > self.capacity[span] for span in self.capacity)
        cells = [self.capacity[stack.span] if wrapped and stack.span is not None else length for stack in self.stacks]
        keys = tuple(stack.keys[row, :, :end].clone() for stack, end in zip(self.stacks, cells, strict=True))
        values = tuple(stack.values[row, :, :end].clone() for stack, end in zip(self.stacks, cells, strict=True))
        states = self.states.keep(row, length)
        return KeptCells(length, wrapped or bool(states), keys, values, states)

    def restore(self, row: int, kept: KeptCells, length: int) -> int:
        """Write the first ``length`` kept cells into a row and commit them; returns the bytes copied.

        ``length`` is at most that of ``kept``, and equal to it if ``kept`` has wrapped.
        """
        copied = self.states.restore(row, length, kept.states)
        for stack, keys, values in zip(self.stacks, kept.keys, kept.values, strict=True):
            cells = self.capacity[stack.span] if kept.wrapped and stack.span is not None else length
            for tensor, stored in ((stack.keys, keys), (stack.values, values)):
                part = stored[:, :cells]
                tensor[row, :, : part.shape[1]].copy_(part)
                copied += part.nbytes
        self.committed[row].fill_(length)
        return copied


def _within_chunks(mask: Tensor, committed: Tensor, depth: Tensor, chunk: int, capacity: int) -> Tensor:
    """A mask [B, 1, W, L] without the cells of earlier chunks than a slot's: a new tensor.

    ``committed`` int64 [B] and ``depth`` int64 [B, W] of the window, which is written to cells behind the committed.
    """
    position = committed[:, None] + depth
    cell = torch.arange(mask.shape[-1], device=mask.device)
    slot = (cell - committed[:, None]) % capacity
    last = committed[:, None] - 1
    width = depth.shape[1]
    held = torch.where(slot < width, position.gather(1, slot.clamp(max=width - 1)), last - (last - cell) % capacity)
    earlier = held[:, None, :] < (position - position % chunk)[:, :, None]
    return mask.masked_fill(earlier[:, None], float("-inf"))
