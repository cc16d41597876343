"""CUDA's kernels, run on the host, at single values where a comparison or a block decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from benchsuite.workshop.native.cuda_on_host import cuda_on_host
from specdec import Window
from specdec_kernels.cpu import cpu_compiler
from specdec_kernels.cuda import Cuda
from specdec_kernels.reference import Reference

pytestmark = pytest.mark.skipif(cpu_compiler() is None, reason="no C++ compiler to run CUDA's sources on the host")


@pytest.fixture
def edged_cuda() -> Iterator[Cuda]:
    """The cuda backend, over CPU tensors."""
    with cuda_on_host() as made:
        yield made


@pytest.mark.slow
def test_zeros_of_both_signs_tie_and_the_least_number_above_is_larger(edged_cuda: Cuda) -> None:
    least = 2.0**-149
    rows = [[0.0, -0.0], [-0.0, 0.0], [0.0, least], [-0.0, least], [-least, 0.0], [-least, -0.0], [0.0, -least]]
    assert edged_cuda.sample(torch.tensor(rows), None).tolist() == [0, 0, 1, 1, 1, 1, 0]


def _cuda_after_a_proposal(backend: Cuda, p: Tensor, q: Tensor, token: int, rows: int = 48) -> tuple[Tensor, Tensor]:
    """Which of many rows keep a proposal, and what is drawn next; asserts that the reference does the same."""
    keys = [torch.randint(2**62, (rows, 2), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    proposed = torch.full((rows,), token)
    window = Window.chain(proposed, proposed[:, None], torch.ones_like(proposed), q.expand(rows, 1, -1))
    got, expected = (of.rejection_sample(p.expand(rows, 2, -1), window, *keys) for of in (backend, Reference()))
    assert torch.equal(got.num_accepted, expected.num_accepted)
    assert torch.equal(got.next, expected.next)
    return got.num_accepted == 1, got.next


def test_a_small_remainder_wins_over_likely_tokens_without_one(edged_cuda: Cuda) -> None:
    """Tokens 5 and 517 are the same thread's, which has seen the likely one when it comes to the remainder."""
    p, q = torch.zeros(600), torch.zeros(600)
    p[5], p[517], q[5] = 1.0, 1e-12, 2.0
    kept, following = _cuda_after_a_proposal(edged_cuda, p, q, 5)
    assert {bool(one) for one in kept} == {True, False}
    assert set(following[~kept].tolist()) == {517}


@pytest.mark.parametrize("size", [3, 40])
def test_after_a_rejection_that_leaves_nothing_the_cuda_draw_is_from_p(edged_cuda: Cuda, size: int) -> None:
    """q is twice p, as no distribution is; tokens that neither has are never drawn."""
    p = torch.zeros(size)
    p[-1], p[-2] = 0.5, 0.5
    kept, following = _cuda_after_a_proposal(edged_cuda, p, p * 2, size - 1)
    assert {bool(one) for one in kept} == {True, False}
    assert set(following[~kept].tolist()) == {size - 1, size - 2}


@pytest.mark.parametrize(("depth", "size"), [(1000, 20), (1000, 18), (600, 25), (3072, 8), (2, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cells_that_several_blocks_move_end_where_one_would_put_them(
    edged_cuda: Cuda, depth: int, size: int, dtype: torch.dtype
) -> None:
    """Blocks take a few columns of all cells each; the last block has fewer. Some cells stay in place."""
    g = torch.Generator().manual_seed(depth + size)
    mine = [torch.randn(2, 1, depth + 9, size, generator=g).to(dtype) for _ in range(2)]
    theirs = [tensor.clone() for tensor in mine]
    source = torch.stack([torch.randperm(depth + 9, generator=g)[:depth].sort().values for _ in range(2)])
    target = torch.arange(depth).expand(2, depth).contiguous()
    edged_cuda.kv_compact(mine[0], mine[1], source, target)
    Reference().kv_compact(theirs[0], theirs[1], source, target)
    for got, expected in zip(mine, theirs, strict=True):
        assert torch.equal(got, expected)


def test_nothing_is_launched_for_no_cells_and_no_rows(edged_cuda: Cuda) -> None:
    """An empty grid would be refused."""
    arena, none = torch.ones(1, 1, 4, 8), torch.zeros(1, 0, dtype=torch.int64)
    edged_cuda.kv_compact(arena, arena.clone(), none, none)
    edged_cuda.kv_append(arena, arena.clone(), arena[:, :, :0], arena[:, :, :0], none)
    assert torch.equal(arena, torch.ones(1, 1, 4, 8))
    assert edged_cuda.rms_norm(torch.ones(0, 8), torch.ones(8), 1e-5, 0.0).shape == (0, 8)
    assert edged_cuda.silu_mul(torch.ones(0, 8), torch.ones(0, 8)).shape == (0, 8)
    turned = edged_cuda.rotary(*[torch.ones(1, 2, 0, 8)] * 2, *[torch.ones(1, 0, 8)] * 2)
    assert [tensor.shape for tensor in turned] == [(1, 2, 0, 8)] * 2
    assert edged_cuda.sample(torch.ones(0, 8), None).shape == (0,)
