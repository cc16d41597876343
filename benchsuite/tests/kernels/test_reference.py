"""The reference's ops against loops over single numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from specdec import Verdict, Window, sampling
from specdec_kernels import reference
from specdec_kernels.reference import Reference

OPS = Reference()


def _chosen(weights: Tensor, key: int) -> int:
    noise = sampling.gumbel(torch.tensor([key]), len(weights))[0]
    return int((weights.log() + noise).argmax())


def _walked(p: Tensor, q: Tensor | None, tokens: list[int], width: int, keys: list[list[int]]) -> tuple[int, int]:
    """Proposals kept of one row and the token after them, one proposal after the other."""
    accept, residual, bonus = keys
    for at in range(width - 1):
        token = tokens[at + 1]
        taken = torch.eye(p.shape[1])[token] if q is None else torch.where(q[at].isfinite(), q[at], 0.0)
        asked = float(taken[token])
        coin = float(sampling.uniform(torch.tensor([accept[at]])))
        if asked > 0 and coin < float(p[at][token] / taken[token]):
            continue
        left = (p[at] - taken).clamp(min=0)
        return at, _chosen(left if left.sum() > 0 else p[at], residual[at])
    return width - 1, _chosen(p[width - 1], bonus[width - 1])


@pytest.mark.parametrize("kind", ["near", "certain", "double", "broken"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_rejection_is_the_walk_it_describes(kind: str, size: int) -> None:
    rows, vocabulary, g = 40, 4, Generator().manual_seed(size)
    p = (3 * torch.rand(rows, size, vocabulary, generator=g)).softmax(dim=2)
    q: Tensor | None = (3 * torch.rand(rows, size - 1, vocabulary, generator=g)).softmax(dim=2)
    if kind == "double":
        q = 2 * p[:, :-1]
    elif kind == "certain":
        q = None
    elif q is not None and kind == "broken" and size > 1:
        q[::3, 0, 1], q[1::3, -1, 2], q[2::3, 0, 0] = math.nan, math.inf, 0.0
    tokens = torch.randint(vocabulary, (rows, size), generator=g)
    width = torch.arange(rows) % size + 1
    keys = [torch.randint(2**62, (rows, size), generator=g) for _ in range(3)]
    verdict = OPS.rejection_sample(p, Window(tokens, torch.arange(-1, size - 1).repeat(rows, 1), width, q), *keys)
    for row in range(rows):
        own = None if q is None else q[row]
        each = [key[row].tolist() for key in keys]
        accepted, following = _walked(p[row], own, tokens[row].tolist(), int(width[row]), each)
        assert (int(verdict.num_accepted[row]), int(verdict.next[row])) == (accepted, following)
        assert verdict.path[row].tolist() == [*range(accepted + 1), *[-1] * (size - accepted - 1)]


TREE = [-1, 0, 0, 1, 3, 2]
DEPTHS = [0, 1, 1, 2, 3, 2]


def _ancestors(slot: int, parents: list[int]) -> set[int]:
    return {slot} | (_ancestors(parents[slot], parents) if parents[slot] >= 0 else set())


@pytest.mark.parametrize(
    ("capacity", "look", "span", "limit"),
    [(30, 30, None, None), (30, 17, None, 11), (30, 30, 3, None), (9, 9, 3, 9), (9, 9, 1, None), (12, 12, 6, 7)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plan_is_the_arena_written_token_by_token(
    capacity: int, look: int, span: int | None, limit: int | None, dtype: torch.dtype
) -> None:
    """A ring's cell holds the last position that was written to it."""
    committed = [0, 1, 2, 6, 9, 10, 11]
    window = Window(torch.zeros(7, 6, dtype=torch.int64), torch.tensor([TREE] * 7), torch.full((7,), 6))
    depth, position, cells, mask = OPS.kv_plan(window, torch.tensor(committed), span, capacity, look, limit, dtype)
    assert (mask.shape, mask.dtype) == ((7, 1, 6, look), dtype)
    for row, start in enumerate(committed):
        stored = {position % capacity: position for position in range(start)}
        written = {(start + slot) % capacity: slot for slot in range(6)}
        wanted = [start + depth for depth in DEPTHS]
        assert depth[row].tolist() == DEPTHS
        assert position[row].tolist() == [place if limit is None else min(place, limit - 1) for place in wanted]
        assert cells[row].tolist() == [*written]
        for slot in range(6):
            for cell in range(look):
                if cell in written:
                    other = written[cell]
                    near = span is None or wanted[slot] - wanted[other] < span
                    sees = other in _ancestors(slot, TREE) and near
                else:
                    sees = cell in stored and (span is None or stored[cell] > wanted[slot] - span)
                assert mask[row, 0, slot, cell] == (0.0 if sees else -math.inf), (row, slot, cell)


def test_what_a_window_emits_is_written_behind_the_row_and_counted() -> None:
    tokens = torch.tensor([[9, 1, 2, 3, 4, 5]] * 3)
    window = Window(tokens, torch.tensor([TREE] * 3), torch.tensor([6, 4, 1]))
    path = torch.tensor([[0, 2, 5, -1], [0, 1, 3, -1], [0, -1, -1, -1]])
    written = torch.arange(100, 142).view(3, 14)
    before = written.clone()
    length = torch.tensor([4, 1, 9])
    packed = OPS.emit(window, Verdict(path, torch.tensor([2, 2, 0]), torch.tensor([70, 71, 72])), written, length)
    assert packed.shape == (3, 8)
    assert packed[:, 4:].tolist() == [[2, 5, 3, 2], [2, 3, 2, 1], [0, 0, 0, 0]]
    for row, emitted in enumerate(([2, 5, 70], [1, 3, 71], [72])):
        at = int(length[row])
        assert packed[row, : len(emitted)].tolist() == emitted
        assert written[row, :at].equal(before[row, :at])
        assert written[row, at : at + len(emitted)].tolist() == emitted
        assert written[row, at + 4 :].equal(before[row, at + 4 :])


def test_keys_are_those_of_every_purpose_with_a_draw_for_all_or_for_each_slot() -> None:
    stream, position = torch.tensor([3, -8]), torch.tensor([[0, 1, 2], [5, 9, 2**40]])
    for draw in (0, 7, torch.tensor([[1, 2, 3], [4, 5, 6]])):
        keys = OPS.noise_keys(stream, position, draw)
        assert keys.shape == (len(sampling.Purpose), 2, 3)
        for purpose in sampling.Purpose:
            assert keys[purpose].equal(sampling.key(stream, position, purpose, draw))
    assert len(OPS.noise_keys(stream, position, 0).unique()) == keys.numel()


def test_norms_angles_and_gates_are_the_sums_that_they_describe() -> None:
    g = Generator().manual_seed(2)
    x, weight = torch.randn(2, 3, 6, generator=g, dtype=torch.float64), torch.randn(6, generator=g).double()
    normed = OPS.rms_norm(x, weight, 0.25, 2.0)
    gated = OPS.silu_mul(x, x + 1)
    for row in range(2):
        for slot in range(3):
            one = x[row, slot].tolist()
            scale = 1 / math.sqrt(sum(value * value for value in one) / 6 + 0.25)
            assert normed[row, slot].tolist() == pytest.approx(
                [value * scale * (2 + float(w)) for value, w in zip(one, weight, strict=True)], rel=1e-12
            )
            assert gated[row, slot].tolist() == pytest.approx(
                [value / (1 + math.exp(-value)) * (value + 1) for value in one], rel=1e-12
            )
    query, keys = torch.randn(2, 4, 3, 6, generator=g).double(), torch.randn(2, 1, 3, 6, generator=g).double()
    cos, sin = torch.randn(2, 2, 3, 6, generator=g).double()
    for given, turned in zip((query, keys), OPS.rotary(query, keys, cos, sin), strict=True):
        for at in ((0, 0, 1), (1, -1, 2)):
            row, _, slot = at
            one, c, s = given[at].tolist(), cos[row, slot].tolist(), sin[row, slot].tolist()
            expected = [one[i] * c[i] + (-one[i + 3] if i < 3 else one[i - 3]) * s[i] for i in range(6)]
            assert turned[at].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("part", [1, 8, 16, 24, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_wide_product_of_halves_is_not_rounded_whatever_part_is_made_float32_at_once(
    part: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "PART", part)
    g = Generator().manual_seed(3)
    x, weight, bias = (torch.randn(*shape, generator=g).to(dtype) for shape in ((2, 3, 8), (5, 8), (5,)))
    for added in (None, bias):
        wide, narrow = OPS.linear(x, weight, added, True), OPS.linear(x, weight, added)
        assert (wide.shape, wide.dtype, narrow.dtype) == ((2, 3, 5), torch.float32, dtype)
        exact = x.double() @ weight.double().t() + (0 if added is None else added.double())
        torch.testing.assert_close(wide.double(), exact, rtol=1e-6, atol=1e-6)
        assert not wide.to(dtype).float().equal(wide)
        torch.testing.assert_close(narrow.double(), exact, rtol=0.02, atol=0.02)
    whole = x.float()
    assert OPS.linear(whole, weight, None, True).equal(torch.nn.functional.linear(whole, weight.float()))


def test_the_reference_takes_everything_and_a_subclass_its_own() -> None:
    class Own(Reference):
        def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
            return gate

    one = torch.ones(1)
    assert OPS.takes("silu_mul", one)
    assert OPS.takes("linear", one)
    assert Own().takes("silu_mul", one)
    assert not Own().takes("linear", one)
    assert not type("Same", (Reference,), {})().takes("silu_mul", one)
