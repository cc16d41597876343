"""Drawing and verifying in Triton: one launch for all rows of a batch, any vocabulary.

A program draws for one row. Where rows are few, ``sample`` and ``rejection_sample`` cut a row's vocabulary into parts
with a program each, and a second launch, ``pick_best``, compares the parts.

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
def noise_keys(
    stream: T, position: T, draw: T, out: T, sizes: S, strides: S, GIVEN: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """``specdec.sampling.key``: a program per (BLOCK slots, purpose).

    stream int64 [rows], position int64 [rows, width], draw int64 [rows, width] (GIVEN) or a number, out int64
    [purposes, rows, width].
    """
    rows, width = sizes
    stream_strides, position_strides, draw_strides = strides
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < rows * width
    row, slot = index // width, index % width
    own = tl.load(stream + row * stream_strides[0], mask=inside, other=0).to(tl.uint64, bitcast=True)
    at = tl.load(position + row * position_strides[0] + slot * position_strides[1], mask=inside, other=0)
    if GIVEN:
        number = tl.load(draw + row * draw_strides[0] + slot * draw_strides[1], mask=inside, other=0)
    else:
        number = tl.zeros([BLOCK], tl.int64) + draw
    purpose = tl.program_id(1).to(tl.int64)
    use = ((purpose << 32) | number).to(tl.uint64, bitcast=True)
    key = _mix(_mix(own + at.to(tl.uint64, bitcast=True) * _GOLDEN) ^ use)
    tl.store(out + purpose * rows * width + index, key.to(tl.int64, bitcast=True), mask=inside)


@jit
def sample(
    logits: T,
    key: T,
    scores: T,
    winners: T,
    sizes: S,
    logits_strides: S,
    key_strides: S,
    NOISY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """argmax_x logits[x] + Gumbel(key, x), the lowest x of equals (Gumbel-max): a program per (slot, part).

    logits float32 [rows, width, vocabulary], key int64 [rows, width]; scores float32 and winners int64 [rows · width,
    parts], each part of ``share`` tokens, a multiple of BLOCK.
    """
    width, vocabulary, share = sizes
    row = tl.program_id(0).to(tl.int64)
    outer, inner = row // width, row % width
    logits += outer * logits_strides[0] + inner * logits_strides[1]
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    winner = tl.zeros([BLOCK], tl.int32)
    if NOISY:
        noise_key = _key(key + outer * key_strides[0] + inner * key_strides[1])
    first = tl.program_id(1) * share
    for start in range(first, tl.minimum(first + share, vocabulary), BLOCK):
        ids = start + lanes
        score = tl.load(logits + ids.to(tl.int64) * logits_strides[2], mask=ids < vocabulary, other=float("-inf"))
        if NOISY:
            score += _gumbel(noise_key, ids)
        best, winner = _better(best, winner, score, ids)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(scores + place, tl.max(best, axis=0))
    tl.store(winners + place, _lowest_winner(best, winner).to(tl.int64))


@jit
def pick_best(scores: T, winners: T, out: T, parts: T, DRAWS: tl.constexpr, PARTS: tl.constexpr) -> None:
    """The winner of the best part, the lowest of equals: a program per draw.

    scores float32 and winners int64 [draws, DRAWS, parts], out int64 [draws]. With DRAWS 2, the first is of a residual,
    and counts if any part has something left of it.
    """
    draw = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, PARTS)
    place = (draw * DRAWS + DRAWS - 1) * parts + lanes
    score = tl.load(scores + place, mask=lanes < parts, other=float("-inf"))
    winner = tl.load(winners + place, mask=lanes < parts, other=0x7FFFFFFF)
    best = _lowest_winner(score, winner)
    if DRAWS == 2:
        left = tl.load(scores + place - parts, mask=lanes < parts, other=float("-inf"))
        winner = tl.load(winners + place - parts, mask=lanes < parts, other=0x7FFFFFFF)
        best = tl.where(tl.max(left, axis=0) > float("-inf"), _lowest_winner(left, winner), best)
    tl.store(out + draw, best)


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
def _key_after(residual_key: T, residual_strides: S, bonus_key: T, bonus_strides: S, row: T, slot: T, rejected: T) -> T:
    # The key of the draw after a slot: a proposal there was rejected, or all were accepted.
    residual = residual_key + row * residual_strides[0] + slot * residual_strides[1]
    return _key(tl.where(rejected, residual, bonus_key + row * bonus_strides[0] + slot * bonus_strides[1]))


@jit
def _taken(q: T, ids: T, refused: T, stride: T, mask: T, CERTAIN: tl.constexpr) -> T:
    # q of some tokens, 0 outside the mask and where it is not finite; without q, the token ``refused`` has all of its
    # mass.
    if CERTAIN:
        mass = tl.where(ids == refused, 1.0, 0.0)
    else:
        mass = tl.load(q + ids.to(tl.int64) * stride, mask=mask, other=0.0).to(tl.float32)
        mass = tl.where(tl.abs(mass) < float("inf"), mass, 0.0)
    return mass


@jit
def _residual_draw(
    p: T,
    scale: T,
    q: T,
    refused: T,
    rejected: T,
    key: T,
    first: T,
    end: T,
    p_stride: T,
    q_stride: T,
    CERTAIN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[T, T, T, T]:
    # Best score and winner of tokens first … end - 1, of a draw from norm(max(scale p - q, 0)) and of one from p;
    # without q, the token ``refused`` has all of its mass. One pass draws from both with the same noise, because only
    # its end shows whether the residual is empty; that is so if p == q up to rounding, and then the draw is from p.
    # Without a rejection the residual's score is -inf.
    bound = tl.where(rejected, end, 0)
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    left, winner, left_winner = best, tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    for start in range(first, end, BLOCK):
        ids = start + lanes
        mass = tl.load(p + ids.to(tl.int64) * p_stride, mask=ids < end, other=0.0)
        taken = _taken(q, ids, refused, q_stride, ids < bound, CERTAIN)
        noise = _gumbel(key, ids)
        best, winner = _better(best, winner, _log(mass) + noise, ids)
        left, left_winner = _better(left, left_winner, _log(scale * mass - taken) + noise, ids)
    left_score = tl.where(rejected, tl.max(left, axis=0), float("-inf"))
    return left_score, _lowest_winner(left, left_winner), tl.max(best, axis=0), _lowest_winner(best, winner)


@jit
def _ratio(p: T, q: T, CERTAIN: tl.constexpr) -> T:
    # p / q of a proposal. One with q(x) = 0 shows that q is wrong; it is never accepted, nor is one with a q(x) that is
    # NaN or infinite.
    ratio = p
    if not CERTAIN:
        possible = q > 0
        ratio = tl.where(possible, tl.div_rn(p, tl.where(possible, q, 1.0)), 0.0)
    return ratio


@jit
def _mass_left(
    p: T,
    scale: T,
    q: T,
    vocabulary: T,
    p_stride: T,
    q_stride: T,
    refused: T,
    CERTAIN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> T:
    # sum_x max(scale p(x) - q(x), 0), added in float64, so that the order of addition decides nothing.
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, vocabulary, BLOCK):
        ids = start + lanes
        inside = ids < vocabulary
        mass = tl.load(p + ids.to(tl.int64) * p_stride, mask=inside, other=0.0)
        taken = _taken(q, ids, refused, q_stride, inside, CERTAIN)
        total += tl.maximum(scale * mass - taken, 0.0).to(tl.float64)
    return tl.sum(total, axis=0).to(tl.float32)


@jit
def rejection_sample(
    distribution: T,
    q: T,
    tokens: T,
    widths: T,
    accept_key: T,
    residual_key: T,
    bonus_key: T,
    scores: T,
    winners: T,
    path: T,
    num_accepted: T,
    sizes: S,
    strides: S,
    CERTAIN: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Accept x with probability min(1, p(x)/q(x)); at the first rejection draw from norm(max(p - q, 0)), else from p.

    Longer than 60 lines, of which 17 are arguments. Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318. A
    program per (row, part), each of which repeats its row's tests: distribution is p float32 [B, W, V], q [B, W - 1, V]
    (CERTAIN: one-hot proposals, q is not read), tokens and keys int64 [B, W]; scores and winners as in ``pick_best``.
    """
    size, vocabulary, share = sizes
    p_strides, q_strides, token_strides, width_strides, accept_strides, residual_strides, bonus_strides = strides
    row = tl.program_id(0).to(tl.int64)
    distribution += row * p_strides[0]
    q += row * q_strides[0]
    tokens += row * token_strides[0]
    width = tl.load(widths + row * width_strides[0])
    # Lane i judges proposal i, the token of slot i + 1, under the distribution after slot i.
    slots = tl.arange(0, SLOTS)
    proposed = slots + 1 < size
    token = tl.load(tokens + (slots + 1) * token_strides[1], mask=proposed, other=0)
    at = slots.to(tl.int64)
    p = tl.load(distribution + at * p_strides[1] + token * p_strides[2], mask=proposed, other=0.0)
    asked = p
    if not CERTAIN:
        asked = tl.load(q + at * q_strides[1] + token * q_strides[2], mask=proposed, other=0.0).to(tl.float32)
    keys = tl.load(accept_key + row * accept_strides[0] + slots * accept_strides[1], mask=proposed, other=0)
    falls = _uniform(keys.to(tl.uint64, bitcast=True)) < _ratio(p, asked, CERTAIN)
    count = tl.min(tl.where(proposed & (slots + 1 < width) & falls, SLOTS, slots), axis=0)
    rejected = count < width - 1
    refused = tl.load(tokens + (count + 1) * token_strides[1], mask=rejected, other=0)
    key = _key_after(residual_key, residual_strides, bonus_key, bonus_strides, row, count, rejected)
    distribution += count.to(tl.int64) * p_strides[1]
    q += count.to(tl.int64) * q_strides[1]
    first = tl.program_id(1) * share
    end = tl.minimum(first + share, vocabulary)
    left, left_winner, best, winner = _residual_draw(
        distribution, 1.0, q, refused, rejected, key, first, end, p_strides[2], q_strides[2], CERTAIN, BLOCK
    )
    parts = tl.num_programs(1)
    place = row * 2 * parts + tl.program_id(1)
    tl.store(scores + place, left)
    tl.store(winners + place, left_winner.to(tl.int64))
    tl.store(scores + place + parts, best)
    tl.store(winners + place + parts, winner.to(tl.int64))
    if tl.program_id(1) == 0:
        tl.store(path + row * size + slots, tl.where(slots <= count, slots, -1).to(tl.int64), mask=slots < size)
        tl.store(num_accepted + row, count.to(tl.int64))


@jit
def block_sample(
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
    sizes: S,
    strides: S,
    CERTAIN: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Block verification, Sun et al. 2403.10444, algorithm 2, as ``specdec.acceptance.block_verdict`` has it.

    Longer than 60 lines, of which 15 are arguments. Operands as in ``rejection_sample``.
    """
    size, vocabulary = sizes
    p_strides, q_strides, token_strides, width_strides, accept_strides, residual_strides, bonus_strides = strides
    row = tl.program_id(0).to(tl.int64)
    distribution += row * p_strides[0]
    q += row * q_strides[0]
    tokens += row * token_strides[0]
    accept_key += row * accept_strides[0]
    count = tl.load(widths + row * width_strides[0]).to(tl.int32) - 1  # proposals
    slots = tl.arange(0, SLOTS)
    kept = tl.where(slots == 0, 1.0, 0.0)
    survived = 1.0
    for slot in range(1, count + 1):
        token = tl.load(tokens + slot * token_strides[1])
        p = tl.load(distribution + (slot - 1) * p_strides[1] + token * p_strides[2])
        asked = p
        if not CERTAIN:
            asked = tl.load(q + (slot - 1) * q_strides[1] + token * q_strides[2]).to(tl.float32)
        survived = tl.minimum(survived * _ratio(p, asked, CERTAIN), 1.0)
        kept = tl.where(slots == slot, survived, kept)
    # The longest prefix whose coin falls is wanted, so the slots are tried from the last one down.
    accepted = count
    searching = count > 0
    while searching:
        survived = tl.sum(tl.where(slots == accepted, kept, 0.0), axis=0)
        bound = survived
        if accepted < count:
            token = tl.load(tokens + (accepted + 1) * token_strides[1])
            here = accepted.to(tl.int64)
            if CERTAIN:
                # survived p(x) - 1 is never positive at the certain token itself.
                left = survived * (1.0 - tl.load(distribution + here * p_strides[1] + token * p_strides[2]))
            else:
                left = _mass_left(
                    distribution + here * p_strides[1],
                    survived,
                    q + here * q_strides[1],
                    vocabulary,
                    p_strides[2],
                    q_strides[2],
                    token,
                    CERTAIN,
                    BLOCK,
                )
            below = left + 1.0 - survived
            # 0 / 0: here q equals p, and the next slot decides.
            bound = tl.where(below > 0, tl.div_rn(left, tl.where(below > 0, below, 1.0)), 1.0)
        falls = _uniform(_key(accept_key + accepted * accept_strides[1])) < bound
        accepted = tl.where(falls, accepted, accepted - 1)
        searching = (accepted > 0) & (falls == 0)
    rejected = accepted < count
    survived = tl.sum(tl.where(slots == accepted, kept, 0.0), axis=0)
    refused = tl.load(tokens + (accepted + 1) * token_strides[1], mask=rejected, other=0)
    key = _key_after(residual_key, residual_strides, bonus_key, bonus_strides, row, accepted, rejected)
    distribution += accepted.to(tl.int64) * p_strides[1]
    q += accepted.to(tl.int64) * q_strides[1]
    left_best, left_winner, _, winner = _residual_draw(
        distribution, survived, q, refused, rejected, key, 0, vocabulary, p_strides[2], q_strides[2], CERTAIN, BLOCK
    )
    drawn = tl.where(left_best > float("-inf"), left_winner, winner)
    tl.store(path + row * size + slots, tl.where(slots <= accepted, slots, -1).to(tl.int64), mask=slots < size)
    tl.store(num_accepted + row, accepted.to(tl.int64))
    tl.store(following + row, drawn.to(tl.int64))


@jit
def _refuse(
    p: T, q: T, refused: T, left: T, vocabulary: T, p_stride: T, q_stride: T, CERTAIN: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    # left [V] becomes norm(max(p - q, 0)), or p if nothing is left; p may be left itself.
    mass = _mass_left(p, 1.0, q, vocabulary, p_stride, q_stride, refused, CERTAIN, BLOCK)
    some = mass > 0
    lanes = tl.arange(0, BLOCK)
    for start in range(0, vocabulary, BLOCK):
        ids = start + lanes
        inside = ids < vocabulary
        own = tl.load(p + ids.to(tl.int64) * p_stride, mask=inside, other=0.0)
        taken = _taken(q, ids, refused, q_stride, inside, CERTAIN)
        rest = tl.div_rn(tl.maximum(own - taken, 0.0), tl.where(some, mass, 1.0))
        tl.store(left + ids, tl.where(some, rest, own), mask=inside)


@jit
def tree_sample(
    distribution: T,
    q: T,
    tokens: T,
    parents: T,
    widths: T,
    accept_key: T,
    residual_key: T,
    bonus_key: T,
    left: T,
    path: T,
    num_accepted: T,
    following: T,
    sizes: S,
    strides: S,
    CERTAIN: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Recursive rejection, Miao et al. 2305.09781, algorithm 2, as ``specdec.acceptance.tree_verdict`` has it.

    Longer than 60 lines, of which 17 are arguments. Operands as in ``rejection_sample``, except that the last axis of
    distribution has stride 1; parents int64 [B, W]; left float32 [B, V] is scratch: what refusals left of p.
    """
    size, vocabulary = sizes
    p_strides, q_strides, token_strides, parent_strides, width_strides = strides[:5]
    accept_strides, residual_strides, bonus_strides = strides[5:]
    row = tl.program_id(0).to(tl.int64)
    distribution += row * p_strides[0]
    q += row * q_strides[0]
    tokens += row * token_strides[0]
    parents += row * parent_strides[0]
    accept_key += row * accept_strides[0]
    left += row * vocabulary
    width = tl.load(widths + row * width_strides[0]).to(tl.int32)
    slots = tl.arange(0, SLOTS)
    trail = tl.where(slots == 0, 0, -1)
    at, depth, tried = 0, 0, 0
    # The slots are visited once, in order; a slot is tried if its parent is the last accepted node.
    for slot in range(1, width):
        if tl.load(parents + slot * parent_strides[1]) == at:
            token = tl.load(tokens + slot * token_strides[1])
            here = tl.where(tried != 0, left, distribution + at * p_strides[1])
            drawn_from = q + (slot - 1) * q_strides[1]
            p = tl.load(here + token)
            asked = p
            if not CERTAIN:
                asked = tl.load(drawn_from + token * q_strides[2]).to(tl.float32)
            if _uniform(_key(accept_key + slot * accept_strides[1])) < _ratio(p, asked, CERTAIN):
                at, tried = slot, 0
                depth += 1
                trail = tl.where(slots == depth, slot, trail)
            else:
                # Every thread has read its p before any writes ``left``, and later reads see all of it.
                tl.debug_barrier()
                _refuse(here, drawn_from, token, left, vocabulary, 1, q_strides[2], CERTAIN, BLOCK)
                tl.debug_barrier()
                tried = 1
    key = _key_after(residual_key, residual_strides, bonus_key, bonus_strides, row, at, tried != 0)
    here = tl.where(tried != 0, left, distribution + at * p_strides[1])
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    winner = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        ids = start + lanes
        mass = tl.load(here + ids, mask=ids < vocabulary, other=0.0)
        best, winner = _better(best, winner, _log(mass) + _gumbel(key, ids), ids)
    tl.store(path + row * size + slots, trail.to(tl.int64), mask=slots < size)
    tl.store(num_accepted + row, depth)
    tl.store(following + row, _lowest_winner(best, winner).to(tl.int64))
