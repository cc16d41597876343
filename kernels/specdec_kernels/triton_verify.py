"""Drawing and verifying in Triton: one launch for all rows of a batch, one program for each row, any vocabulary.

The host reads nothing, and the shape of every launch follows from B, W and V, so a step that uses these kernels can
be captured. Integer results equal the reference's; the random bits of the keyed noise are identical.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

jit: Callable[..., Any] = triton.jit
T: TypeAlias = tl.tensor
S: TypeAlias = tl.tuple

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_ATOM = tl.constexpr(2.0**-32)


@jit
def _mix(x: T) -> T:
    # SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) on uint64.
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@jit
def _gumbel(key: T, ids: T) -> T:
    # -log(E), E = -log(1 - v) to a unit in the last place: u is 1 - v rounded; the rounding error is exact in float32
    # and is added to first order. The maximum only avoids log(0), where v is 1.
    bits = (_mix(key + (ids + 1).to(tl.uint64) * _GOLDEN) >> 32).to(tl.uint32)
    v = (bits.to(tl.float32) + 0.5) * _ATOM
    u = tl.maximum(1.0 - v, 1e-12)
    exponential = (v - (1.0 - u)) / u - tl.log(u)
    return -tl.log(tl.minimum(exponential, 22.9))


@jit
def _uniform(key: T) -> T:
    return (_mix(key + _GOLDEN) >> 40).to(tl.uint32).to(tl.float32) * (2.0**-24)


@jit
def _key(pointer: T) -> T:
    return tl.load(pointer).to(tl.uint64, bitcast=True)


@jit
def _log(x: T) -> T:
    some = x > 0
    return tl.where(some, tl.log(tl.where(some, x, 1.0)), float("-inf"))


@jit
def _better(best: T, winner: T, score: T, ids: T) -> tuple[T, T]:
    # Every lane keeps its own first best; the lanes are compared once, at the end.
    ahead = score > best
    return tl.where(ahead, score, best), tl.where(ahead, ids, winner)


@jit
def _lowest_winner(best: T, winner: T) -> T:
    top = tl.max(best, axis=0)
    return tl.min(tl.where(best == top, winner, 0x7FFFFFFF), axis=0)


@jit
def sample(
    logits: T,
    key: T,
    out: T,
    width: T,
    vocabulary: T,
    logits_strides: S,
    key_strides: S,
    NOISY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """argmax_x logits[x] + Gumbel(key, x), the lowest x of equals (Gumbel-max): a program per slot.

    logits float32 [rows, width, vocabulary], key int64 [rows, width], out int64 [rows · width].
    """
    row = tl.program_id(0).to(tl.int64)
    outer, inner = row // width, row % width
    logits += outer * logits_strides[0] + inner * logits_strides[1]
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    winner = tl.zeros([BLOCK], tl.int32)
    if NOISY:
        noise_key = _key(key + outer * key_strides[0] + inner * key_strides[1])
    for start in range(0, vocabulary, BLOCK):
        ids = start + lanes
        score = tl.load(logits + ids.to(tl.int64) * logits_strides[2], mask=ids < vocabulary, other=float("-inf"))
        if NOISY:
            score += _gumbel(noise_key, ids)
        best, winner = _better(best, winner, score, ids)
    tl.store(out + row, _lowest_winner(best, winner).to(tl.int64))


@jit
def accept(probability: T, key: T, out: T, count: T, BLOCK: tl.constexpr) -> None:
    """Uniform(key) < probability over ``count`` elements, with 24-bit uniforms in [0, 1)."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    drawn = _uniform(tl.load(key + index, mask=inside, other=0).to(tl.uint64, bitcast=True))
    tl.store(out + index, drawn < tl.load(probability + index, mask=inside, other=0.0), mask=inside)


@jit
def verify_prefix(
    tokens: T,
    parents: T,
    widths: T,
    choices: T,
    path: T,
    num_accepted: T,
    following: T,
    size: T,
    token_strides: S,
    parent_strides: S,
    width_strides: S,
    choice_strides: S,
    BLOCK: tl.constexpr,
) -> None:
    """Walk from the root to the child that is the choice at its parent, while there is one: a program per row.

    tokens, parents, choices int64 [B, W]; widths [B]; path int64 [B, W]; num_accepted and following int64
    [B]. Each turn of the loop compares all W slots and extends the path by one slot.
    """
    row = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, BLOCK)
    inside = slots < size
    valid = inside & (slots < tl.load(widths + row * width_strides[0]))
    token = tl.load(tokens + row * token_strides[0] + slots * token_strides[1], mask=inside, other=0)
    parent = tl.load(parents + row * parent_strides[0] + slots * parent_strides[1], mask=inside, other=-1)
    choices += row * choice_strides[0]
    # The first child with the chosen token is the next node, so a younger sibling with this token is never visited.
    # A child lies after its parent; to require this bounds the walk for any content of the window.
    choice = tl.load(choices)
    trail = tl.where(slots == 0, 0, -1)
    depth = 0
    child = tl.min(tl.where(valid & (slots > 0) & (parent == 0) & (token == choice), slots, BLOCK), axis=0)
    while child < BLOCK:
        depth += 1
        trail = tl.where(slots == depth, child, trail)
        choice = tl.load(choices + child * choice_strides[1])
        follows = valid & (slots > child) & (parent == child) & (token == choice)
        child = tl.min(tl.where(follows, slots, BLOCK), axis=0)
    tl.store(path + row * size + slots, trail.to(tl.int64), mask=inside)
    tl.store(num_accepted + row, depth)
    tl.store(following + row, choice)


@jit
def rejection_sample(
    distribution: T,
    q: T,
    tokens: T,
    widths: T,
    accept_key: T,
    residual_key: T,
    bonus_key: T,
    path: T,
    num_accepted: T,
    following: T,
    size: T,
    vocabulary: T,
    distribution_strides: S,
    q_strides: S,
    token_strides: S,
    width_strides: S,
    accept_strides: S,
    residual_strides: S,
    bonus_strides: S,
    CERTAIN: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Accept x with probability min(1, p(x)/q(x)); at the first rejection draw from norm(max(p - q, 0)), else from p.

    Longer than 60 lines, of which 23 are arguments, so that values shared by the passes over V stay in registers.

    Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318. A program per row: distribution is p float32
    [B, W, V], q [B, W - 1, V] (CERTAIN: one-hot proposals, q is not read), tokens and keys int64 [B, W].
    """
    row = tl.program_id(0).to(tl.int64)
    distribution += row * distribution_strides[0]
    q += row * q_strides[0]
    tokens += row * token_strides[0]
    width = tl.load(widths + row * width_strides[0])
    # Lane i judges proposal i, the token of slot i + 1, under the distribution after slot i.
    slots = tl.arange(0, SLOTS)
    proposed = slots + 1 < size
    token = tl.load(tokens + (slots + 1) * token_strides[1], mask=proposed, other=0)
    at = slots.to(tl.int64)
    ratio = tl.load(
        distribution + at * distribution_strides[1] + token * distribution_strides[2], mask=proposed, other=0.0
    )
    if not CERTAIN:
        asked = tl.load(q + at * q_strides[1] + token * q_strides[2], mask=proposed, other=0.0).to(tl.float32)
        possible = asked > 0
        ratio = tl.where(possible, tl.div_rn(ratio, tl.where(possible, asked, 1.0)), 0.0)
    keys = tl.load(accept_key + row * accept_strides[0] + slots * accept_strides[1], mask=proposed, other=0)
    kept = proposed & (slots + 1 < width) & (_uniform(keys.to(tl.uint64, bitcast=True)) < ratio)
    count = tl.min(tl.where(kept, SLOTS, slots), axis=0)
    rejected = count < width - 1
    refused = tl.load(tokens + (count + 1) * token_strides[1], mask=rejected, other=0)
    spare = row * bonus_strides[0] + count * bonus_strides[1]
    other = row * residual_strides[0] + count * residual_strides[1]
    key = _key(tl.where(rejected, residual_key + other, bonus_key + spare))
    distribution += count.to(tl.int64) * distribution_strides[1]
    q += count.to(tl.int64) * q_strides[1]
    # One pass draws from the residual and from p, with the same noise, because only its end shows whether the
    # residual is empty; that is so if p == q up to rounding, and then the draw is from p.
    bound = tl.where(rejected, vocabulary, 0)
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    left, winner, left_winner = best, tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        ids = start + lanes
        p = tl.load(distribution + ids.to(tl.int64) * distribution_strides[2], mask=ids < vocabulary, other=0.0)
        if CERTAIN:
            taken = tl.where(ids == refused, 1.0, 0.0)
        else:
            taken = tl.load(q + ids.to(tl.int64) * q_strides[2], mask=ids < bound, other=0.0).to(tl.float32)
        noise = _gumbel(key, ids)
        best, winner = _better(best, winner, _log(p) + noise, ids)
        left, left_winner = _better(left, left_winner, _log(p - taken) + noise, ids)
    some_left = rejected & (tl.max(left, axis=0) > float("-inf"))
    drawn = tl.where(some_left, _lowest_winner(left, left_winner), _lowest_winner(best, winner))
    tl.store(path + row * size + slots, tl.where(slots <= count, slots, -1).to(tl.int64), mask=slots < size)
    tl.store(num_accepted + row, count.to(tl.int64))
    tl.store(following + row, drawn.to(tl.int64))
