"""Whole windows judged by rejection, with so few tokens that a wrong row or column of the residual is drawn from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchsuite.tests.rig import INTERPRETED, named_backend, pairs_in_turn
from specdec import Window, sampling
from specdec_kernels.reference import Reference

ROWS, SLOTS = 120, 5


def chains_to_judge(certain: bool, vocabulary: int, rows: int = ROWS) -> tuple[Tensor, Window, Tensor]:
    """Distributions of the target, a window of chains of every width, and keys of coins and draws."""
    generator = torch.Generator().manual_seed(5)
    p = (2 * torch.randn(rows, SLOTS, vocabulary, generator=generator)).softmax(dim=2)
    q = None if certain else torch.rand(rows, SLOTS - 1, vocabulary, generator=generator).softmax(dim=2)
    tokens = torch.randint(vocabulary, (rows, SLOTS), generator=generator)
    tokens[::2, 1:] = p[::2, :-1].argmax(dim=2)  # so that some windows are kept for long
    width = torch.arange(rows) % SLOTS + 1
    parents = torch.arange(-1, SLOTS - 1).expand(rows, -1).contiguous()
    return p, Window(tokens, parents, width, q), sampling.mix(torch.arange(3 * rows * SLOTS)).view(3, rows, SLOTS)


@pytest.mark.slow
@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("name", [pytest.param("triton", marks=INTERPRETED), "cuda on the host"])
def test_a_block_ends_where_the_references_does_and_is_followed_by_what_it_draws(name: str, certain: bool) -> None:
    """Wherever it ends: the rows of p and q of each slot decide."""
    p, window, keys = chains_to_judge(certain, 3, rows=400)
    expected = Reference().block_sample(p, window, *keys)
    with named_backend(name) as ops:
        found = ops.block_sample(p, window, *keys)
    assert set(expected.num_accepted.tolist()) == {*range(SLOTS)}
    assert found.num_accepted.tolist() == expected.num_accepted.tolist()
    assert found.path.tolist() == expected.path.tolist()
    assert found.next.tolist() == expected.next.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("certain", "vocabulary"), pairs_in_turn([False, True], [2, 3]))
@pytest.mark.parametrize("name", ["cpu", pytest.param("triton", marks=INTERPRETED), "cuda on the host"])
def test_what_follows_a_rejection_is_drawn_from_the_residual_of_its_own_row_and_column(
    name: str, certain: bool, vocabulary: int
) -> None:
    """A proposal that was certain is never drawn again after its rejection."""
    p, window, keys = chains_to_judge(certain, vocabulary)
    tokens, width = window.tokens, window.width
    expected = Reference().rejection_sample(p, window, *keys)
    with named_backend(name) as ops:
        found = ops.rejection_sample(p, window, *keys)
    assert found.num_accepted.tolist() == expected.num_accepted.tolist()
    assert found.path.tolist() == expected.path.tolist()
    assert found.next.tolist() == expected.next.tolist()
    rejected = found.num_accepted < width - 1
    assert set(found.num_accepted[rejected].tolist()) == {0, 1, 2, 3}, "a rejection in every column"
    if certain:
        again = tokens.gather(1, (found.num_accepted + 1).clamp(max=SLOTS - 1)[:, None])[:, 0]
        assert bool((found.next != again)[rejected].all())
