"""Draws of the triton backend, interpreted, where little or nothing is left of a distribution, and its noise."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from benchsuite.tests.rig import INTERPRETS
from specdec import Verdict, Window, sampling
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton

pytestmark = INTERPRETS

triton = pytest.importorskip("triton")
tl = import_module("triton.language")
verify = import_module("specdec_kernels.triton_verify")
jit: Callable[..., Any] = triton.jit
_gumbel, _uniform, _key, _log = verify._gumbel, verify._uniform, verify._key, verify._log


@jit
def _noise_of(keys: Any, gumbels: Any, uniforms: Any) -> None:
    lanes = tl.arange(0, 256)
    key = _key(keys + lanes)
    tl.store(uniforms + lanes, _uniform(key))
    for token in range(3):
        tl.store(gumbels + token * 256 + lanes, _gumbel(key, lanes * 0 + token * 1000))


@jit
def _logs_of(x: Any, out: Any) -> None:
    lanes = tl.arange(0, 8)
    tl.store(out + lanes, _log(tl.load(x + lanes)))


def _random_keys(count: int, seed: int = 0) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=Generator().manual_seed(seed))


def test_noise_is_that_of_the_reference_for_keys_of_both_signs() -> None:
    keys = _random_keys(256)
    assert {bool(one) for one in keys < 0} == {True, False}
    gumbels, uniforms = torch.zeros(3, 256), torch.zeros(256)
    _noise_of[(1,)](keys, gumbels, uniforms)
    assert uniforms.equal(sampling.uniform(keys))
    expected = sampling.gumbel(keys, torch.tensor([0, 1000, 2000])).t()
    torch.testing.assert_close(gumbels, expected, rtol=1e-6, atol=1e-6)


def test_the_logarithm_of_what_is_not_positive_is_minus_infinity() -> None:
    x = torch.tensor([0.0, -0.0, -1.0, 1.0, 2.0**-149, float("inf"), float("-inf"), 0.5])
    out = torch.zeros(8)
    _logs_of[(1,)](x, out)
    none = float("-inf")
    torch.testing.assert_close(
        out, torch.tensor([none, none, none, 0.0, -103.278929903, float("inf"), none, -0.69314718056])
    )


RULES = ("rejection_sample", "block_sample", "tree_sample")


def _judged(op: str, p: Tensor, q: Tensor | None, tokens: Tensor, width: Tensor) -> Verdict:
    """What the backend and the reference say of chains; they say the same."""
    rows, size = tokens.shape
    keys = [_random_keys(rows * size, seed).view(rows, size) for seed in (1, 2, 3)]
    window = Window(tokens, torch.arange(-1, size - 1).repeat(rows, 1), width, q)
    got, expected = (getattr(of, op)(p, window, *keys) for of in (Triton(), Reference()))
    for name in ("path", "num_accepted", "next"):
        assert getattr(got, name).equal(getattr(expected, name)), name
    verdict: Verdict = got
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("op", RULES)
@pytest.mark.parametrize("vocabulary", [5, 4100])
def test_after_a_rejection_that_leaves_nothing_the_draw_is_from_p_in_any_number_of_parts(
    op: str, vocabulary: int
) -> None:
    """q is twice p, as no distribution is; tokens that neither has are never drawn."""
    rows = 14
    p = torch.zeros(rows, 2, vocabulary)
    p[..., -1], p[..., 1] = 0.25, 0.75
    tokens = torch.tensor([[0, 1]]).repeat(rows, 1)
    verdict = _judged(op, p, p[:, :1] * 2, tokens, torch.full((rows,), 2))
    rejected = verdict.num_accepted == 0
    assert {bool(one) for one in rejected} == {True, False}
    assert set(verdict.next[rejected].tolist()) == {1, vocabulary - 1}


@pytest.mark.slow
@pytest.mark.parametrize("op", RULES)
def test_what_is_left_of_p_in_one_part_alone_is_drawn(op: str) -> None:
    vocabulary, only = 4100, 4098
    p = torch.zeros(4, 2, vocabulary)
    p[..., 0], p[..., only] = 1.0 - 2.0**-12, 2.0**-12
    q = torch.zeros(4, 1, vocabulary)
    q[..., 0], q[..., 3] = 1.0, 7.0
    tokens = torch.tensor([[0, 3]]).repeat(4, 1)
    verdict = _judged(op, p, q, tokens, torch.full((4,), 2))
    assert verdict.num_accepted.tolist() == [0] * 4
    assert verdict.next.tolist() == [only] * 4


@pytest.mark.slow
@pytest.mark.parametrize("op", RULES)
@pytest.mark.parametrize("certain", [False, True])
def test_windows_of_every_width_are_judged_as_the_reference_does(op: str, certain: bool) -> None:
    """Three tokens and many rows: proposals are often equal, likely and kept; a row has one to five slots."""
    rows, size = 15, 5
    g = Generator().manual_seed(11)
    p = (4 * torch.rand(rows, size, 3, generator=g)).softmax(dim=2)
    q = None if certain else torch.rand(rows, size - 1, 3, generator=g).softmax(dim=2)
    tokens = torch.randint(3, (rows, size), generator=g)
    tokens[::2, 1:] = p[::2, :-1].argmax(dim=2)
    width = torch.arange(rows) % size + 1
    verdict = _judged(op, p, q, tokens, width)
    accepted = verdict.num_accepted
    assert bool((accepted < width).all())
    assert {int(one) for one in accepted} >= {0, 1, 2}
    assert bool((accepted == width - 1)[width > 1].any())


@pytest.mark.slow
@pytest.mark.parametrize("op", RULES)
def test_a_window_of_one_or_two_slots_is_judged(op: str) -> None:
    p = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for size, expected in ((1, [0, 1]), (2, [1, 2])):
        tokens = torch.tensor([[0, 1]])[:, :size]
        for q in (None, p[None, :1]):
            verdict = _judged(op, p[None, :size], q if size == 2 else None, tokens, torch.tensor([size]))
            assert [int(verdict.num_accepted), int(verdict.next)] == expected
