"""A window before and after its verification in Triton: where it lies in the arena, and what it emits.

All tensors but the mask are int64. The host reads nothing, and the shape of every launch follows from B, W and L.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

jit: Callable[..., Any] = triton.jit
T: TypeAlias = tl.tensor
S: TypeAlias = tl.tuple


@jit
def kv_plan(
    parents: T,
    committed: T,
    depths: T,
    positions: T,
    cells: T,
    mask: T,
    sizes: S,
    strides: S,
    SPAN: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Depths, positions, cells and mask of a window: a program per (row and slot, BLOCK cells of the arena).

    parents [B, W], committed [B], depths, positions and cells [B, W], mask [B, W, L] in any float dtype. SPAN 0: no
    span, LIMIT 0: no limit. ``specdec_kernels.reference`` has the rules.
    """
    width, look, capacity = sizes
    parent_strides, committed_strides = strides
    place = tl.program_id(0).to(tl.int64)
    row, slot = place // width, (place % width).to(tl.int32)
    parents += row * parent_strides[0]
    start = tl.load(committed + row * committed_strides[0])
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # The slot that this forward writes to each cell; no number below is negative, so % is the modulus.
    writer = (cell + capacity - start % capacity) % capacity
    seen = writer == slot
    depth, node = 0, slot
    above = tl.load(parents + slot * parent_strides[1]).to(tl.int32)
    # A parent lies before its child; to require this bounds the walk for any content of the window.
    while (above >= 0) & (above < node):
        depth += 1
        seen = seen | ((writer == above) & ((SPAN == 0) | (depth < SPAN)))
        node = above
        above = tl.load(parents + node * parent_strides[1]).to(tl.int32)
    position = start + depth
    held = start - 1 - (start - 1 - cell + capacity) % capacity  # the position in each cell; negative: none yet
    before = held >= 0
    if SPAN > 0:
        before = before & (held > position - SPAN)
    value = tl.where(tl.where(writer < width, seen, before), 0.0, float("-inf"))
    tl.store(mask + place * look + cell, value.to(mask.dtype.element_ty), mask=cell < look)
    if tl.program_id(1) == 0:
        if LIMIT > 0:
            position = tl.minimum(position, LIMIT - 1)
        tl.store(depths + place, depth)
        tl.store(positions + place, position)
        tl.store(cells + place, (start + slot) % capacity)


@jit
def emit(
    proposed: T,
    depths: T,
    widths: T,
    path: T,
    num_accepted: T,
    following: T,
    tokens: T,
    length: T,
    packed: T,
    sizes: S,
    strides: S,
    SLOTS: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """In place: the emitted tokens of each row into tokens [B, S] from length [B] on; a program per row.

    proposed and depths [B, W], widths [B], path [B, D], num_accepted and following [B], packed [B, D + 4].
    """
    size, most = sizes
    (
        proposed_strides,
        depth_strides,
        width_strides,
        path_strides,
        count_strides,
        following_strides,
        token_strides,
        length_strides,
    ) = strides
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(num_accepted + row * count_strides[0])
    width = tl.load(widths + row * width_strides[0])
    start = tl.load(length + row * length_strides[0])
    step = tl.arange(0, STEPS)
    inside = step < most
    path += row * path_strides[0]
    slot = tl.load(path + (step + 1) * path_strides[1], mask=step + 1 < most, other=0)
    proposal = tl.load(proposed + row * proposed_strides[0] + tl.maximum(slot, 0) * proposed_strides[1], mask=inside)
    last = (step == count) | (step == most - 1)
    token = tl.where(last, tl.load(following + row * following_strides[0]), proposal)
    tl.store(tokens + row * token_strides[0] + (start + step) * token_strides[1], token, mask=inside)
    here = tl.load(path + step * path_strides[1], mask=inside, other=0)
    moved = tl.sum(((here != step) & (here > 0)).to(tl.int64), axis=0)
    slots = tl.arange(0, SLOTS)
    depth = tl.load(
        depths + row * depth_strides[0] + slots * depth_strides[1], mask=(slots < size) & (slots < width), other=0
    )
    packed += row * (most + 4)
    tl.store(packed + step, token, mask=inside)
    tl.store(packed + most, count)
    tl.store(packed + most + 1, width - 1)
    tl.store(packed + most + 2, tl.max(depth, axis=0))
    tl.store(packed + most + 3, moved)
