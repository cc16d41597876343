"""Draws just inside and just outside of a bound: a score that is the best by a hair, a coin beside a probability, a
filter beside a sum of probabilities. Keys are made so that a chosen token has the noise that a bound is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import run_op
from benchsuite.tests.rig import INTERPRETED, INTERPRETS, hashed_to, named_backend, slow_after
from specdec import Request, SamplingParams, Window, sampling
from specdec.ledger import stacked
from specdec.ops import Ops
from specdec_kernels import cpu
from specdec_kernels.reference import Reference

HAIR = 2e-5
"""By how much a score wins or loses: some ten units in the last place, in which the backends' logarithms differ."""

BITS = (0, 1, 2, 3, 100, 2**11, 2**16, 2**20, 2**31, 2**32 - 2, 2**32 - 1)
"""Bits of noise, from the largest value, which is the rarest, to the smallest."""

CPU = ["cpu", *(pytest.param(f"cpu(level={level})", marks=pytest.mark.slow) for level in cpu.levels()[1:])]
WITHOUT_TRITON = ["reference", "cuda on the host", *CPU]
EVERY_BACKEND = [*WITHOUT_TRITON, pytest.param("triton", marks=INTERPRETED)]


class Hairs(NamedTuple):
    """Rows that are decided by a hair: keys [R], logits [R, V], and the token that is drawn [R]."""

    keys: Tensor
    logits: Tensor
    drawn: Tensor


def decided_by_a_hair(size: int, places: list[int]) -> Hairs:
    """Rows in which a token of each place, with each noise, wins by a hair, or is second by a hair: among many that are
    as likely, and beside one alone, so that no neighbour is a reason to look at its vector."""
    generator = torch.Generator().manual_seed(size)
    rows = [(place, bits, sign, alone) for place in places for bits in BITS for sign in (1, -1) for alone in (0, 1)]
    keys = torch.tensor([hashed_to(bits, place) for place, bits, _, _ in rows])
    noise = sampling.gumbel(keys, size).double()
    at = torch.tensor([[place] for place, _, _, _ in rows])
    logits = torch.randn(len(rows), size, generator=generator)
    far = torch.tensor([[60.0 * alone] for _, _, _, alone in rows]).expand(-1, size)
    logits = logits - far.scatter(1, (at + size // 2) % size, 0.0)
    scores = (logits.double() + noise).scatter(1, at, float("-inf"))
    best, second = scores.max(dim=1, keepdim=True)
    wanted = best + HAIR * torch.tensor([[sign] for _, _, sign, _ in rows]) - noise.gather(1, at)
    logits = logits.scatter(1, at, wanted.float())
    wins = torch.tensor([[sign > 0] for _, _, sign, _ in rows])
    return Hairs(keys, logits, torch.where(wins, at, second)[:, 0])


def whole_vectors(size: int) -> list[int]:
    """The places at which vectors of four, eight and sixteen begin and end, and the last token."""
    return sorted(
        {place for place in (0, 3, 4, 7, 8, 15, 16, 31, 32, size - 17, size - 2, size - 1) if 0 <= place < size}
    )


@pytest.mark.parametrize("size", slow_after(1, [2, 33, 64, 131]))
@pytest.mark.parametrize("name", WITHOUT_TRITON)
def test_the_best_score_is_drawn_though_it_is_the_best_by_a_hair(name: str, size: int) -> None:
    drawn_by_a_hair(name, size)


@pytest.mark.slow
@INTERPRETS
@pytest.mark.parametrize("size", [33, 131])
def test_triton_draws_the_best_score_though_it_is_the_best_by_a_hair(size: int) -> None:
    drawn_by_a_hair("triton", size)


def drawn_by_a_hair(name: str, size: int) -> None:
    rows = decided_by_a_hair(size, whole_vectors(size))
    with named_backend(name) as ops:
        assert ops.sample(rows.logits[:, None], rows.keys[:, None])[:, 0].tolist() == rows.drawn.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "together"), [(1, 1), (2, 1), (3, 1), (3, 2), (5, 3)])
def test_rows_that_threads_share_are_decided_by_the_same_hair(
    threads: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best token and the second stand in one part or in two; fewer rows than threads are cut into parts."""
    size = 5001
    monkeypatch.setattr(cpu, "kernel_threads", lambda: threads)
    rows = decided_by_a_hair(size, [0, 1663, 1664, 1680, 2499, 2512, 3344, size - 1])
    ops = registry().backend("cpu")
    for keys, logits, drawn in zip(*(part.split(together) for part in rows), strict=True):
        assert ops.sample(logits[:, None], keys[:, None])[:, 0].tolist() == drawn.tolist()


def _after(ops: Ops, rows: Hairs, ended: str) -> Tensor:
    """What is drawn from probabilities e ** logit: after all proposals, or after a rejection that leaves them."""
    left = rows.logits.double().softmax(dim=1).float()
    count = len(left)
    if ended == "all kept":
        window = Window.chain(
            torch.zeros(count, dtype=torch.int64),
            torch.zeros(count, 0, dtype=torch.int64),
            torch.zeros(count, dtype=torch.int64),
        )
        return ops.rejection_sample(
            left[:, None], window, rows.keys[:, None], rows.keys[:, None], rows.keys[:, None]
        ).next
    # The proposal is a token more, which the target never draws.
    p = torch.cat([left, torch.zeros(count, 1)], dim=1)
    proposed = torch.full((count,), left.shape[1])
    told = None
    if ended == "a drawn one rejected":
        p, told = 2 * p, torch.cat([left, torch.ones(count, 1)], dim=1)[:, None]
    window = Window.chain(proposed, proposed[:, None], torch.ones_like(proposed), told)
    keys = rows.keys[:, None].expand(-1, 2).contiguous()
    other = torch.zeros_like(keys)
    verdict = ops.rejection_sample(p[:, None].expand(-1, 2, -1).contiguous(), window, other, keys, other)
    assert not verdict.num_accepted.any()
    return verdict.next


@pytest.mark.parametrize("ended", ["all kept", "a certain one rejected", "a drawn one rejected"])
@pytest.mark.parametrize("name", slow_after(1, WITHOUT_TRITON))
def test_what_follows_a_window_is_decided_by_a_hair_too(name: str, ended: str) -> None:
    """Of a token's probability, not of its logit: of what a proposal left of it."""
    rows = decided_by_a_hair(67, whole_vectors(67))
    with named_backend(name) as ops:
        assert _after(ops, rows, ended).tolist() == rows.drawn.tolist()


COINS = (0, 1, 2, 3, 2**12 + 1, 2**23 - 1, 2**23, 2**24 - 2, 2**24 - 1)
"""Numerators of coins, over 2 ** 24: the least, the largest, and some between."""


@pytest.mark.parametrize("share", [1.0, 0.75, 0.1, 1e-30])
@pytest.mark.parametrize("name", EVERY_BACKEND)
def test_a_coin_accepts_what_is_above_it_and_nothing_at_or_below_it(name: str, share: float) -> None:
    """The least and the largest coin too, whatever the draft's probability: also ratios that are rounded."""
    coins = torch.tensor(COINS) * 2.0**-24
    keys = torch.tensor([hashed_to(coin << 8, 0) for coin in COINS])
    assert torch.equal(sampling.uniform(keys), coins)
    q = torch.tensor(share)
    for beside in (coins, coins.nextafter(torch.tensor(2.0)), coins.nextafter(torch.tensor(-1.0)).clamp(min=0)):
        target = beside * q
        count = len(COINS)
        p = torch.stack([target, torch.ones(count)], dim=1)[:, None].expand(-1, 2, -1).contiguous()
        told = torch.stack([q, 1 - q]).expand(count, 1, 2).contiguous()
        zeros = torch.zeros(count, dtype=torch.int64)
        window = Window.chain(zeros, zeros[:, None], zeros + 1, told)
        both = keys[:, None].expand(-1, 2).contiguous()
        with named_backend(name) as ops:
            verdict = ops.rejection_sample(p, window, both, both, both)
            taken = ops.accept(target / q, keys)
        kept = (target / q).numpy() > coins.numpy()
        assert taken.tolist() == kept.tolist()
        assert (verdict.num_accepted == 1).tolist() == kept.tolist()


def _block_bounds(p: Tensor, q: Tensor, tokens: list[int]) -> list[float]:
    """h of each prefix of a chain, from the definition: Sun et al. 2403.10444, algorithm 2."""
    kept, bounds = 1.0, [1.0]
    for slot, token in enumerate(tokens):
        kept = min(1.0, kept * float(p[slot, token] / q[slot, token]))
        left = float((kept * p[slot + 1] - q[slot + 1]).clamp(min=0).sum()) if slot + 1 < len(tokens) else 0.0
        bounds.append(left / (left + 1 - kept) if slot + 1 < len(tokens) else kept)
    return bounds


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("name", ["reference", pytest.param("triton", marks=INTERPRETS)])
def test_block_verification_keeps_the_longest_prefix_whose_coin_is_below_its_bound(name: str, certain: bool) -> None:
    """Of a longer prefix the coin is above the bound by a hair, of a shorter one it is 0."""
    g, (count, size), step = torch.Generator().manual_seed(5), (3, 4), 2**-20
    p = torch.rand(2, count + 1, size, generator=g).softmax(dim=2)
    q = torch.rand(2, count, size, generator=g).softmax(dim=2)
    tokens = (q / p[:, :-1]).topk(2, dim=2).indices[..., 1]  # so that no prefix survives for certain
    q = torch.zeros_like(q).scatter(2, tokens[:, :, None], 1.0) if certain else q
    rows, coins, expected = [], [], []
    for row in range(2):
        bounds = _block_bounds(p[row].double(), q[row].double(), tokens[row].tolist())
        assert all(step < bound < 1 - step for bound in bounds[1:])
        for slot in range(1, count + 1):
            for side in (-1, 1):
                rows.append(row)
                beside = bounds[slot] + side * step
                coins.append([0.0] * slot + [beside] + [bound + step for bound in bounds[slot + 1 :]])
                expected.append(slot if side < 0 else slot - 1)
    keys = torch.tensor([[hashed_to(int(coin * 2**24) << 8, 0) for coin in row] for row in coins])
    window = Window.chain(torch.zeros(len(rows), dtype=torch.int64), tokens[rows], torch.full((len(rows),), count))
    window = window if certain else replace(window, q=q[rows])
    with named_backend(name) as ops:
        verdict = ops.block_sample(p[rows], window, keys, keys, keys)
    assert verdict.num_accepted.tolist() == expected


def _tree_ratios(p: Tensor, q: Tensor) -> list[float]:
    """p(x) / q(x) of the siblings 0, 1, …, each of what the elder ones left: Miao et al. 2305.09781, algorithm 2."""
    ratios = []
    for token, drawn_from in enumerate(q):
        ratios.append(float(p[token] / drawn_from[token]))
        p = (p - drawn_from).clamp(min=0)
        p = p / p.sum()
    return ratios


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("name", ["reference", pytest.param("triton", marks=INTERPRETS)])
def test_a_sibling_is_kept_if_its_coin_is_below_what_the_elder_ones_left_of_it(name: str, certain: bool) -> None:
    """Of the elder one the coin is above its ratio by a hair, of the younger ones it is the largest."""
    p, step, largest = torch.tensor([0.3, 0.25, 0.2, 0.1, 0.1, 0.05]), 2**-20, 1 - 2**-24
    q = torch.tensor([[0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.05, 0.75, 0.05, 0.05, 0.05, 0.05]])
    q = torch.eye(2, 6) if certain else q
    ratios = _tree_ratios(p.double(), q.double())
    assert ratios == pytest.approx([0.3, 0.25 / 0.7] if certain else [0.6, 0.8])
    # The last pair has the coin 0 beside a ratio of 0.
    coins = [[ratios[0] - step, largest], [ratios[0] + step, ratios[1] - step], [ratios[0] + step, ratios[1] + step]]
    keys = torch.tensor([[hashed_to(int(c * 2**24) << 8, 0) for c in (0.0, *row)] for row in (*coins, [0.0, 0.0])])
    ruled_out = torch.tensor([0.0, 0.0, 0.5, 0.5, 0.0, 0.0])
    own = torch.stack([p, p, p, ruled_out])[:, None].expand(-1, 3, -1)
    zeros = torch.zeros(4, dtype=torch.int64)
    tokens, parents = torch.tensor([[9, 0, 1]]).expand(4, 3), torch.tensor([[-1, 0, 0]]).expand(4, 3)
    window = Window(tokens, parents, zeros + 3, None if certain else q.expand(4, 2, 6))
    with named_backend(name) as ops:
        verdict = ops.tree_sample(own.contiguous(), window, keys, keys, keys)
    assert verdict.path.tolist() == [[0, 1, -1], [0, 2, -1], [0, -1, -1], [0, -1, -1]]
    assert verdict.num_accepted.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("name", ["reference", pytest.param("triton", marks=INTERPRETS)])
def test_the_root_stays_though_every_coin_is_the_largest(name: str) -> None:
    """A certain proposal's rest is rounded on the way to the root's own bound, which is 1; of q = 2 p nothing is left,
    and the draw is from p."""
    rare, keys = 3 * 2.0**-24, torch.full((1, 2), hashed_to((2**24 - 1) << 8, 0))
    half = torch.tensor([0.0, 0.25, 0.75])
    zero = torch.zeros(1, dtype=torch.int64)
    for p, proposed, q, left in (
        (torch.tensor([1 - rare, rare]), 0, None, {1}),
        (half, 1, 2 * half.expand(1, 1, 3), {1, 2}),
    ):
        window = Window.chain(zero, zero[:, None] + proposed, zero + 1, q)
        with named_backend(name) as ops:
            for judge in (ops.rejection_sample, ops.block_sample, ops.tree_sample):
                verdict = judge(p.expand(1, 2, -1).contiguous(), window, keys, keys, keys)
                assert (verdict.path.tolist(), int(verdict.num_accepted)) == ([[0, -1]], 0)
                assert int(verdict.next) in left


@pytest.mark.parametrize("op", ["rejection_sample", "block_sample", "tree_sample"])
@pytest.mark.parametrize("name", ["reference", pytest.param("triton", marks=INTERPRETS)])
def test_the_draw_after_a_rejection_is_from_what_is_left_at_its_slot(name: str, op: str) -> None:
    """Slot k proposes token k, of which p has 0.9 and q all, so that token 4 + k is left; row k rejects that of slot k,
    and the last row none."""
    slots = torch.arange(4)
    p = (0.9 * torch.eye(8)[slots] + 0.1 * torch.eye(8)[slots + 4]).expand(4, 4, 8).contiguous()
    p[:, 3] = torch.eye(8)[7]
    window = Window.chain(slots * 0, slots[:3].expand(4, 3), slots * 0 + 3, torch.eye(8)[:3].expand(4, 3, 8))
    never, always = hashed_to((2**24 - 1) << 8, 0), hashed_to(0, 0)
    coins = torch.where(slots < slots[:, None], always, never)
    if op != "rejection_sample":  # of which a coin lies at its own proposal, not one before
        coins = coins.roll(1, dims=1)
    with named_backend(name) as ops:
        verdict = run_op(ops, op, (p, window, coins, coins, coins))
    assert [part.tolist() for part in verdict[1:]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


SIZE = 150


def _filtered(kind: str) -> tuple[Tensor, list[dict[str, Any]], list[int]]:
    """Logits, and parameters of a filter that is a hair below and above every bound at which a token more is kept, with
    the number of tokens that are kept: from sorted probabilities in double precision."""
    logits = 3 * torch.rand(SIZE, generator=torch.Generator().manual_seed(2))
    likely = np.sort(logits.double().softmax(dim=0).numpy())[::-1]
    params: list[dict[str, Any]] = []
    counts = []
    for count in range(1, SIZE):
        if kind == "top_k":
            params.append({"top_k": count})
            counts.append(count)
            continue
        bound = likely[:count].sum() if kind == "top_p" else likely[count] / likely[0]
        for share, kept in ((1 - HAIR, count + (kind == "min_p")), (1 + HAIR, count + (kind == "top_p"))):
            if bound * share <= 1:
                params.append({kind: float(bound * share)})
                counts.append(kept)
    return logits, params, counts


@pytest.mark.parametrize("kind", ["top_k", "top_p", "min_p"])
@pytest.mark.parametrize("name", ["reference", *CPU])
def test_the_last_token_that_a_filter_keeps_can_be_drawn_and_the_first_that_it_drops_cannot(
    name: str, kind: str
) -> None:
    """At every bound of every filter, with the noise with which nothing but the filter could keep a token away."""
    logits, params, counts = _filtered(kind)
    order = logits.argsort(descending=True).tolist()
    asked = [Request(n, (1,), SamplingParams(temperature=1.0, **one)) for n, one in enumerate(params)]
    with named_backend(name) as ops:
        rows = logits.expand(len(asked), 1, SIZE).contiguous()
        kept = ops.process(rows, stacked(asked, SIZE, torch.device("cpu")), None)
        assert (kept > float("-inf")).sum(dim=2)[:, 0].tolist() == counts
        for beyond in (0, 1):
            tokens = [order[min(count - 1 + beyond, SIZE - 1)] for count in counts]
            keys = torch.tensor([[hashed_to(0, token)] for token in tokens])
            drawn = ops.sample(kept, keys)[:, 0]
            assert torch.equal(drawn, Reference().sample(kept, keys)[:, 0])
            same = {
                one == token for one, token, count in zip(drawn.tolist(), tokens, counts, strict=True) if count < SIZE
            }
            assert same == {not beyond}


@pytest.mark.parametrize("name", ["reference", *CPU])
def test_top_p_at_an_exact_sum_of_equal_probabilities_ends_there_and_a_last_bit_above_it_one_later(name: str) -> None:
    """All 64 sums, at the number itself and at its two neighbours."""
    sums = torch.arange(1, 65) / 64
    shares = torch.cat([sums.nextafter(torch.tensor(0.0)), sums, sums[:-1].nextafter(torch.tensor(1.0))])
    given = stacked(
        [Request(n, (1,), SamplingParams(temperature=1.0, top_p=share)) for n, share in enumerate(shares.tolist())],
        64,
        torch.device("cpu"),
    )
    with named_backend(name) as ops:
        kept = ops.process(torch.zeros(len(shares), 1, 64), given, None)[:, 0] > float("-inf")
    counts = [*range(1, 65), *range(1, 65), *range(2, 65)]
    assert [row.nonzero()[:, 0].tolist() for row in kept] == [[*range(count)] for count in counts]
