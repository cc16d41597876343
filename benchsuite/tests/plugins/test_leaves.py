"""Chains with other tokens beside each proposal, known on the host, beside the same trees grown on the device."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.exact.enumerator import context
from specdec_kernels.reference import Reference
from specdec_plugins.growth import STEP, Growth
from specdec_plugins.leaves import LeafedChain


@given(
    st.integers(0, 10_000), st.integers(0, 5), st.integers(1, 4), st.integers(0, 12), st.integers(0, 12), st.booleans()
)
def test_a_chain_with_leaves_is_the_tree_that_a_beam_of_one_grows(
    seed: int, leaves: int, depth: int, one: int, other: int, reduced: bool
) -> None:
    """Nodes, parents, chances, and the chain itself, of two rows that have so many of their nodes each."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.tensor([9, 3, 7, 1]) if reduced else None
    each = [torch.randn(2, 1, 4, generator=draw, dtype=torch.float64).log_softmax(-1) for _ in range(depth)]
    growth, chain = Growth(each[0][:, 0], ids, 1, leaves=leaves), LeafedChain(ids, leaves)
    chain.grow(each[0])
    for distribution in each[1:]:
        growth.expand(distribution)
        chain.grow(distribution)
    assert torch.equal(chain.paths, growth.paths)
    assert torch.equal(chain.tokens, growth.paths[:, 0, -1:])
    nodes = depth * min(1 + leaves, 4)
    counts = [min(one, nodes), min(other, nodes)]
    rows = replace(context(Reference(), torch.tensor([11, 12])), max_proposals=torch.tensor(counts))
    twin, found = growth.window(rows, max(counts), 0.0), chain.window(rows, counts)
    assert found.width.tolist() == twin.width.tolist()
    for row, width in enumerate(twin.width.tolist()):
        assert found.tokens[row, :width].tolist() == twin.tokens[row, :width].tolist()
        assert found.parents[row, :width].tolist() == twin.parents[row, :width].tolist()
    steps = torch.tensor([1 + place // min(1 + leaves, 4) for place in range(nodes)]) * STEP
    due = (growth.score + steps).exp().sort(dim=1, descending=True).values
    assert chain.chances() == [pytest.approx(row) for row in due.tolist()]
    alive = math.prod(float(distribution[0, 0].max().exp()) for distribution in each)
    assert chain.alive()[0] == pytest.approx(alive)


def test_what_a_head_cannot_compute_has_no_chance() -> None:
    """A row of NaN beside one of numbers: no node of it is worth anything, and its window has none."""
    chain = LeafedChain(None, 2)
    for _ in range(2):
        chain.grow(torch.stack([torch.full((1, 4), torch.nan), torch.zeros(1, 4)]).log_softmax(-1))
    ill, well = chain.chances()
    assert (set(ill), chain.alive()[0]) == ({0.0}, 0.0)
    assert well[0] == pytest.approx(0.25)
    rows = context(Reference(), torch.tensor([11, 12]))
    assert chain.window(rows, [0, 6]).width.tolist() == [1, 7]
