"""The decoder's arithmetic in Triton: arena cells, attention, norms, rotary positions and quantised products.

Operands are float32, bfloat16 or float16, sums are float32 and rounded once. Inputs have any strides, outputs
are contiguous, and the arena's cells are read and written in place.
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
def _row(row: T, sizes: S, strides: S) -> T:
    outer = row // sizes[2]
    return outer // sizes[1] * strides[0] + outer % sizes[1] * strides[1] + row % sizes[2] * strides[2]


@jit
def kv_append(
    keys: T, values: T, new_keys: T, new_values: T, cells: T, sizes: S, strides: S, BLOCK: tl.constexpr
) -> None:
    """In place: new keys and values [B, heads, W, d] into cells [B, W] of [B, heads, capacity, d].

    A program per (row and slot, head).
    """
    width, size = sizes
    key_strides, value_strides, new_key_strides, new_value_strides, cell_strides = strides
    place = tl.program_id(0).to(tl.int64)
    row, slot, head = place // width, place % width, tl.program_id(1).to(tl.int64)
    cell = tl.load(cells + row * cell_strides[0] + slot * cell_strides[1])
    lanes = tl.arange(0, BLOCK)
    inside = lanes < size
    new_keys += row * new_key_strides[0] + head * new_key_strides[1] + slot * new_key_strides[2]
    new_values += row * new_value_strides[0] + head * new_value_strides[1] + slot * new_value_strides[2]
    keys += row * key_strides[0] + head * key_strides[1] + cell * key_strides[2]
    values += row * value_strides[0] + head * value_strides[1] + cell * value_strides[2]
    tl.store(keys + lanes * key_strides[3], tl.load(new_keys + lanes * new_key_strides[3], mask=inside), mask=inside)
    fresh = tl.load(new_values + lanes * new_value_strides[3], mask=inside)
    tl.store(values + lanes * value_strides[3], fresh, mask=inside)


@jit
def kv_compact(
    keys: T, values: T, source: T, target: T, sizes: S, strides: S, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr
) -> None:
    """In place: cells source [B, D] become cells target [B, D], all read before any is written.

    A program per (row, head, BLOCK_N columns) holds the whole path of D cells in registers.
    """
    steps, size = sizes
    key_strides, value_strides, source_strides, target_strides = strides
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    step = tl.arange(0, BLOCK_D)
    lanes = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = step < steps
    here = tl.load(source + row * source_strides[0] + step * source_strides[1], mask=inside, other=0)
    there = tl.load(target + row * target_strides[0] + step * target_strides[1], mask=inside, other=0)
    mask = (inside & (here != there))[:, None] & (lanes < size)[None, :]
    keys += row * key_strides[0] + head * key_strides[1]
    values += row * value_strides[0] + head * value_strides[1]
    columns, value_columns = lanes[None, :] * key_strides[3], lanes[None, :] * value_strides[3]
    moved_keys = tl.load(keys + here[:, None] * key_strides[2] + columns, mask=mask)
    moved_values = tl.load(values + here[:, None] * value_strides[2] + value_columns, mask=mask)
    # No other program uses these columns of this head, so after this barrier all reads are done.
    tl.debug_barrier()
    tl.store(keys + there[:, None] * key_strides[2] + columns, moved_keys, mask=mask)
    tl.store(values + there[:, None] * value_strides[2] + value_columns, moved_values, mask=mask)


@jit
def _tanh(x: T) -> T:
    # 1 - exp(-2|x|) cancels where x is small; there the odd series to x⁹ is exact in float32.
    size = tl.abs(x)
    small = tl.where(size < 0.3, x, 0.0)
    square = small * small
    series = small * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    fall = tl.exp(-2 * size)
    large = (1 - fall) / (1 + fall)
    return tl.where(size < 0.3, series, tl.where(x < 0, -large, large))


@jit
def tree_attention(
    query: T,
    keys: T,
    values: T,
    mask: T,
    used: T,
    sinks: T,
    out: T,
    mixes: T,
    marks: T,
    arrivals: T,
    scaling: T,
    softcap: T,
    sizes: S,
    strides: S,
    BOUNDED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """softmax(scaling · q kᵀ + mask) v with grouped heads, by program: (BLOCK_M lines, share of cells), key head, row.

    query [B, heads, W, d], keys and values [B, heads_kv, L, d], mask [B, 1, W, L], out [B, W, heads, d]. The softmax
    is updated block by block of cells (Milakov & Gimelshein 1805.02867; Dao et al. 2205.14135), and the query
    heads of one key head are lines of one product (Ainslie et al. 2305.13245). CAPPED makes scores softcap ·
    tanh(scores / softcap). SINKS: each head has one more score, ``sinks`` [heads], of a cell without a value. A slot
    that sees nothing gives zeros. WIDE: products of float32 operands (the
    interpreter would multiply bfloat16 operands as integers).

    A program reads ``share`` cells, a multiple of BLOCK_L; the last one of a line to arrive adds up what all have left
    in ``mixes`` [places, parts, BLOCK_M, BLOCK_D] and ``marks`` [places, parts, 2, BLOCK_M], in the order of the cells
    (flash-decoding). ``arrivals`` int32 [places] counts them, and is 0 before and after. BOUNDED: no slot of a row sees
    a cell from ``used`` int64 [B] on, and programs of such cells end at once. Longer than 60 lines: the running softmax
    stays in registers from block to block.
    """
    group, width, length, size, share, parts = sizes
    query_strides, key_strides, value_strides, mask_strides = strides
    head_kv, row = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    block, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    limit = length
    if BOUNDED:
        limit = tl.minimum(length, tl.load(used + row)).to(tl.int32)
    first = part * share
    if first >= limit:
        return
    # The lines of a program are (query head of this key head, slot): keys and values are read once for all.
    line = block * BLOCK_M + tl.arange(0, BLOCK_M)
    head, slot = head_kv * group + line // width, line % width
    live = (line < group * width)[:, None]
    lanes = tl.arange(0, BLOCK_D)
    inside = lanes < size
    asks = query + row * query_strides[0] + head[:, None] * query_strides[1] + slot[:, None] * query_strides[2]
    q = tl.load(asks + lanes[None, :] * query_strides[3], mask=live & inside[None, :], other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    keys += row * key_strides[0] + head_kv * key_strides[1]
    values += row * value_strides[0] + head_kv * value_strides[1]
    mask += row * mask_strides[0] + slot[:, None] * mask_strides[2]
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if SINKS and part == 0:
        top = tl.load(sinks + head, mask=line < group * width, other=float("-inf")).to(tl.float32)
        total = tl.where(top > float("-inf"), 1.0, 0.0)
    for start in range(first, tl.minimum(first + share, limit), BLOCK_L):
        cell = start + tl.arange(0, BLOCK_L)
        seen = cell < limit
        valid = inside[:, None] & seen[None, :]
        k = tl.load(keys + cell[None, :] * key_strides[2] + lanes[:, None] * key_strides[3], mask=valid, other=0.0)
        bias = tl.load(mask + cell[None, :] * mask_strides[3], mask=live & seen[None, :], other=float("-inf"))
        bias = bias.to(tl.float32)
        scores = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scaling
        if CAPPED:
            scores = _tanh(scores / softcap) * softcap
        # Selected, not added: for any content of a hidden cell, its score is -inf and its weight 0.
        scores = tl.where(bias > float("-inf"), scores + bias, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        level = tl.where(higher > float("-inf"), higher, 0.0)  # -inf minus -inf is NaN
        weights = tl.exp(scores - level[:, None])
        fade = tl.exp(top - level)
        total = total * fade + tl.sum(weights, axis=1)
        valid = seen[:, None] & inside[None, :]
        v = tl.load(
            values + cell[:, None] * value_strides[2] + lanes[None, :] * value_strides[3], mask=valid, other=0.0
        )
        mixed = tl.dot(weights.to(q.dtype), v.to(q.dtype), mixed * fade[:, None], input_precision="ieee")
        top = higher
    heads = tl.num_programs(1) * group
    target = out + ((row * width + slot[:, None]) * heads + head[:, None]) * size + lanes[None, :]
    ready = tl.cdiv(limit, share)
    if ready == 1:
        result = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(target, result.to(out.dtype.element_ty), mask=live & inside[None, :])
    else:
        place = (row * tl.num_programs(1) + head_kv) * (tl.num_programs(0) // parts) + block
        lines = tl.arange(0, BLOCK_M)
        own = mixes + place * parts * BLOCK_M * BLOCK_D + lines[:, None] * BLOCK_D + lanes[None, :]
        mark = marks + place * parts * 2 * BLOCK_M + lines
        tl.store(own + part * BLOCK_M * BLOCK_D, mixed)
        tl.store(mark + part * 2 * BLOCK_M, top)
        tl.store(mark + part * 2 * BLOCK_M + BLOCK_M, total)
        tl.debug_barrier()  # every thread's part is stored before one of them counts the program
        if tl.atomic_add(arrivals + place, 1, sem="acq_rel") == ready - 1:
            sum_of_all = _gathered(own, mark, ready, BLOCK_M, BLOCK_D)
            tl.store(target, sum_of_all.to(out.dtype.element_ty), mask=live & inside[None, :])
            tl.store(arrivals + place, 0)


@jit
def _gathered(mixes: T, marks: T, ready: T, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr) -> T:
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for part in range(0, ready):
        # From L2: a multiprocessor's own cache does not see what others have stored.
        its_top = tl.load(marks + part * 2 * BLOCK_M, cache_modifier=".cg")
        its_total = tl.load(marks + part * 2 * BLOCK_M + BLOCK_M, cache_modifier=".cg")
        its_mixed = tl.load(mixes + part * BLOCK_M * BLOCK_D, cache_modifier=".cg")
        higher = tl.maximum(top, its_top)
        level = tl.where(higher > float("-inf"), higher, 0.0)
        fade, share = tl.exp(top - level), tl.exp(its_top - level)
        total = total * fade + its_total * share
        mixed = mixed * fade[:, None] + its_mixed * share[:, None]
        top = higher
    return mixed / tl.where(total > 0, total, 1.0)[:, None]


@jit
def rms_norm(
    x: T, weight: T, out: T, eps: T, offset: T, sizes: S, strides: S, weight_stride: T, BLOCK: tl.constexpr
) -> None:
    """x / sqrt(mean(x²) + eps) · (offset + weight) over the last axis of [A, B, C, N] (Zhang & Sennrich 1910.07467)."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    size = sizes[3]
    inside = lanes < size
    wide = tl.load(x + _row(row, sizes, strides) + lanes * strides[3], mask=inside, other=0.0).to(tl.float32)
    scale = offset + tl.load(weight + lanes * weight_stride, mask=inside, other=0.0).to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    tl.store(out + row * size + lanes, (wide * scale).to(out.dtype.element_ty), mask=inside)


@jit
def _turn(x: T, out: T, cos: T, sin: T, half: T, strides: S, BLOCK: tl.constexpr) -> None:
    """``strides`` of the last axes of x, cos, sin and out."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < half
    for side in tl.static_range(2):
        here = lanes + side * half
        there = lanes + (1 - side) * half
        a = tl.load(x + here * strides[0], mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x + there * strides[0], mask=inside, other=0.0).to(tl.float32)
        c = tl.load(cos + here * strides[1], mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + here * strides[2], mask=inside, other=0.0).to(tl.float32)
        turned = a * c + b * s if side else a * c - b * s
        tl.store(out + here * strides[3], turned.to(out.dtype.element_ty), mask=inside)


@jit
def rotary(
    query: T, keys: T, cos: T, sin: T, query_out: T, keys_out: T, sizes: S, strides: S, BLOCK: tl.constexpr
) -> None:
    """x cos + half(x) sin, half maps (a, b) to (-b, a) (Su et al. 2104.09864): a program per (row, slot), head.

    query [B, heads, W, d], keys [B, heads_kv, W, d], cos and sin [B, W, d]; the outputs are contiguous.
    """
    heads, width, half = sizes
    query_strides, key_strides, cos_strides, sin_strides = strides
    place = tl.program_id(0).to(tl.int64)
    row, slot, head = place // width, place % width, tl.program_id(1).to(tl.int64)
    cos += row * cos_strides[0] + slot * cos_strides[1]
    sin += row * sin_strides[0] + slot * sin_strides[1]
    if head < heads:
        query += row * query_strides[0] + head * query_strides[1] + slot * query_strides[2]
        query_out += ((row * heads + head) * width + slot) * half * 2
        _turn(query, query_out, cos, sin, half, (query_strides[3], cos_strides[2], sin_strides[2], 1), BLOCK)
    else:
        head -= heads
        keys += row * key_strides[0] + head * key_strides[1] + slot * key_strides[2]
        keys_out += ((row * (tl.num_programs(1) - heads) + head) * width + slot) * half * 2
        _turn(keys, keys_out, cos, sin, half, (key_strides[3], cos_strides[2], sin_strides[2], 1), BLOCK)


@jit
def rotary_append(
    both: T, cos: T, sin: T, cells: T, keys: T, values: T, query: T, sizes: S, strides: S, BLOCK: tl.constexpr
) -> None:
    """``rotary`` and ``kv_append`` in one launch: a program per (row, slot), head of queries, keys and values.

    both [B, W, heads + 2 heads_kv, d]: queries, keys, values; cos and sin [B, W, d]; query [B, W, heads, d] contiguous.
    In place: cells [B, W] of keys and values [B, heads_kv, capacity, d].
    """
    heads, heads_kv, width, half = sizes
    both_strides, cos_strides, sin_strides, cell_strides, key_strides, value_strides = strides
    place = tl.program_id(0).to(tl.int64)
    row, slot, head = place // width, place % width, tl.program_id(1).to(tl.int64)
    both += row * both_strides[0] + slot * both_strides[1] + head * both_strides[2]
    cos += row * cos_strides[0] + slot * cos_strides[1]
    sin += row * sin_strides[0] + slot * sin_strides[1]
    cell = tl.load(cells + row * cell_strides[0] + slot * cell_strides[1])
    if head < heads:
        query += (place * heads + head) * half * 2
        _turn(both, query, cos, sin, half, (both_strides[3], cos_strides[2], sin_strides[2], 1), BLOCK)
    elif head < heads + heads_kv:
        keys += row * key_strides[0] + (head - heads) * key_strides[1] + cell * key_strides[2]
        _turn(both, keys, cos, sin, half, (both_strides[3], cos_strides[2], sin_strides[2], key_strides[3]), BLOCK)
    else:
        values += row * value_strides[0] + (head - heads - heads_kv) * value_strides[1] + cell * value_strides[2]
        for side in tl.static_range(2):
            lanes = tl.arange(0, BLOCK)
            inside = lanes < half
            lanes += side * half
            fresh = tl.load(both + lanes * both_strides[3], mask=inside)
            tl.store(values + lanes * value_strides[3], fresh, mask=inside)


@jit
def _silu(gate: T) -> T:
    fall = tl.exp(-tl.abs(gate))  # at most 1, so no gate overflows it
    return gate * tl.where(gate < 0, fall, 1.0) / (1 + fall)


@jit
def silu_mul(gate: T, up: T, out: T, sizes: S, gate_strides: S, up_strides: S, BLOCK: tl.constexpr) -> None:
    """gate / (1 + exp(-gate)) · up over [A, B, C, N] (SwiGLU's product, Shazeer 2002.05202)."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = sizes[3]
    inside = lanes < size
    g = tl.load(gate + _row(row, sizes, gate_strides) + lanes * gate_strides[3], mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + _row(row, sizes, up_strides) + lanes * up_strides[3], mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + lanes, (_silu(g) * u).to(out.dtype.element_ty), mask=inside)


@jit
def _scales(x: T, line: T, eps: T, sizes: S, strides: S, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr) -> T:
    """1 / sqrt(mean(x²) + eps) of each line."""
    rows, _, inputs = sizes
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        mask = (line < rows)[:, None] & (k < inputs)[None, :]
        wide = tl.load(x + line[:, None] * strides[0] + k[None, :] * strides[1], mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(wide * wide, axis=1)
    return tl.rsqrt(total / inputs + eps)


@jit
def _times(
    x: T, line: T, k: T, weight: T, total: T, normed: S, sizes: S, strides: S, NORMED: tl.constexpr, WIDE: tl.constexpr
) -> T:
    """``total`` plus the product of x's columns k, normalised or not, and ``weight`` [k, n]."""
    rows, _, inputs = sizes
    mask = (line < rows)[:, None] & (k < inputs)[None, :]
    part = tl.load(x + line[:, None] * strides[0] + k[None, :] * strides[1], mask=mask, other=0.0)
    dtype = part.dtype
    if NORMED:
        norm, shift, scales = normed
        gain = shift + tl.load(norm + k, mask=k < inputs, other=0.0).to(tl.float32)
        part = part.to(tl.float32) * scales[:, None] * gain[None, :]
    if WIDE:
        dtype = tl.float32
    return tl.dot(part.to(dtype), weight.to(dtype), total, input_precision="ieee")


@jit
def _product(
    x: T,
    line: T,
    n: T,
    weights: S,
    normed: S,
    sizes: S,
    strides: S,
    BITS: tl.constexpr,
    NORMED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> T:
    """float32 [BLOCK_M, BLOCK_N]: lines of x times the weights of the outputs n, unpacked in registers."""
    _, outputs, inputs = sizes
    codes, scale, offset = weights
    x_strides, code_strides, scale_strides = strides
    known = n < outputs
    codes += n[None, :].to(tl.int64) * code_strides[0]
    scale += n[None, :] * scale_strides[0]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if BITS == 4:
        offset += n[None, :] * scale_strides[0]
        second = total
        for start in range(0, inputs // 2, BLOCK_K):
            byte = start + tl.arange(0, BLOCK_K)
            mask = (byte < inputs // 2)[:, None] & known[None, :]
            pair = tl.load(codes + byte[:, None] * code_strides[1], mask=mask, other=0)
            group = byte // 16
            s = tl.load(scale + group[:, None] * scale_strides[1], mask=mask, other=0.0)
            o = tl.load(offset + group[:, None] * scale_strides[1], mask=mask, other=0.0)
            low = byte + group * 16
            first = (pair & 15).to(tl.float32) * s + o
            total = _times(x, line, low, first, total, normed, sizes, x_strides, NORMED, WIDE)
            other = (pair >> 4).to(tl.float32) * s + o
            second = _times(x, line, low + 16, other, second, normed, sizes, x_strides, NORMED, WIDE)
        total += second
    else:
        for start in range(0, inputs, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            mask = (k < inputs)[:, None] & known[None, :]
            weight = tl.load(codes + k[:, None] * code_strides[1], mask=mask, other=0)
            total = _times(x, line, k, weight, total, normed, sizes, x_strides, NORMED, WIDE)
        if BITS == 8:
            # One scale for each output, and codes are exact in all these dtypes, so nothing is rounded before the sum.
            total *= tl.load(scale, mask=known[None, :], other=0.0)
    return total


@jit
def linear(
    x: T,
    codes: T,
    scale: T,
    offset: T,
    bias: T,
    norm: T,
    beside: T,
    out: T,
    eps: T,
    shift: T,
    sizes: S,
    strides: S,
    BITS: tl.constexpr,
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """x Wᵀ + bias: a program per (BLOCK_N outputs, BLOCK_M rows), with what precedes and follows it in a layer.

    x [M, K], codes floats (BITS 16) or those of ``specdec.quantised``, out [M, N] contiguous. NORMED: x is first
    normalised as ``rms_norm`` does, and rounded. GATED: codes have 2 N rows, and silu of the first N outputs times the
    other N is returned. ADDED: the sum with ``beside`` [M, N], contiguous. All sums are float32; a row's result does
    not depend on the rows beside it.
    """
    rows, outputs, inputs = sizes
    line = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = n < outputs
    scales = tl.zeros([BLOCK_M], tl.float32)
    if NORMED:
        scales = _scales(x, line, eps, sizes, strides[0], BLOCK_M, BLOCK_K)
    weights, normed = (codes, scale, offset), (norm, shift, scales)
    total = _product(x, line, n, weights, normed, sizes, strides, BITS, NORMED, WIDE, BLOCK_M, BLOCK_N, BLOCK_K)
    if BIASED:
        total += tl.load(bias + n, mask=known, other=0.0).to(tl.float32)[None, :]
    if GATED:
        whole = rows, 2 * outputs, inputs
        up = _product(
            x, line, n + outputs, weights, normed, whole, strides, BITS, NORMED, WIDE, BLOCK_M, BLOCK_N, BLOCK_K
        )
        if BIASED:
            up += tl.load(bias + outputs + n, mask=known, other=0.0).to(tl.float32)[None, :]
        total = _silu(total) * up
    mask = (line < rows)[:, None] & known[None, :]
    place = line[:, None].to(tl.int64) * outputs + n[None, :]
    if ADDED:
        total += tl.load(beside + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)
