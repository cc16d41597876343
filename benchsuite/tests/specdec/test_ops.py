"""The reference's ops on literal cases; these define the ops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import DEVICES, INTERPRETS
from specdec import Window
from specdec_kernels.reference import Reference

OPS = Reference()


def window(tokens: list[int], parents: list[int], width: int | None = None) -> Window:
    """A window of one row."""
    return Window(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([width or len(tokens)]))


CHAIN = [-1, 0, 1, 2]


@pytest.mark.parametrize(
    ("tokens", "parents", "width", "choices", "path", "following"),
    [
        ([9, 1, 2, 3], CHAIN, 4, [1, 2, 3, 4], [0, 1, 2, 3], 4),  # all are kept, then the bonus
        ([9, 1, 2, 3], CHAIN, 4, [5, 2, 3, 4], [0], 5),  # the first is wrong: the others do not count
        ([9, 1, 2, 3], CHAIN, 4, [1, 7, 3, 4], [0, 1], 7),  # 3 would be right after a wrong 2
        ([9, 1, 2, 3], CHAIN, 3, [1, 2, 3, 4], [0, 1, 2], 3),  # slot 3 is padding, though it would match
        ([9, 1, 2, 3], CHAIN, 1, [1, 2, 3, 4], [0], 1),  # nothing was proposed
        ([9], [-1], 1, [1], [0], 1),  # plain decoding
        ([9, 1, 2, 3], [-1, 0, 0, 2], 4, [2, 0, 3, 4], [0, 2, 3], 4),  # the second sibling, and its child
        ([9, 1, 1, 2, 2], [-1, 0, 0, 1, 2], 5, [1, 2, 2, 8, 9], [0, 1, 3], 8),  # equal siblings: the elder
        ([9, 1, 2, 5], [-1, 0, 0, 1], 4, [2, 5, 6, 4], [0, 2], 6),  # a child of the rejected one is not taken
    ],
)
def test_verify_prefix_follows_the_choices(
    tokens: list[int], parents: list[int], width: int, choices: list[int], path: list[int], following: int
) -> None:
    verdict = OPS.verify_prefix(window(tokens, parents, width), torch.tensor([choices]))
    assert verdict.path[0].tolist() == path + [-1] * (len(tokens) - len(path))
    assert verdict.num_accepted.tolist() == [len(path) - 1]
    assert verdict.next.tolist() == [following]


@pytest.mark.slow
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 4))
def test_verify_prefix_is_the_walk_it_describes(seed: int, size: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens, choices = (torch.randint(0, 3, (rows, size), generator=generator) for _ in range(2))
    parents = torch.tensor(
        [[-1, *(int(torch.randint(0, i, (), generator=generator)) for i in range(1, size))] for _ in range(rows)]
    )
    width = torch.randint(1, size + 1, (rows,), generator=generator)
    verdict = OPS.verify_prefix(Window(tokens, parents, width), choices)
    for row in range(rows):
        walk = [0]
        while True:
            here, wanted = walk[-1], choices[row, walk[-1]]
            children = (n for n in range(here + 1, int(width[row])) if parents[row, n] == here)
            found = next((n for n in children if tokens[row, n] == wanted), None)
            if found is None:
                break
            walk.append(found)
        assert verdict.path[row].tolist() == walk + [-1] * (size - len(walk))
        assert verdict.next[row] == choices[row, walk[-1]]


def test_rejection_never_keeps_padding() -> None:
    """A padded slot is never a proposal, also if the target is certain of its token."""
    sure = torch.zeros(1, 3, 4)
    sure[..., 2] = 1
    key = torch.zeros(1, 3, dtype=torch.int64)
    verdict = OPS.rejection_sample(sure, window([0, 2, 2], [-1, 0, 1], 2), key, key, key)
    assert verdict.num_accepted.tolist() == [1]
    assert verdict.path.tolist() == [[0, 1, -1]]
    assert verdict.next.tolist() == [2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("sinks", [None, (0.0, 2.0, -1.0, 30.0, 0.5, -40.0)])
def test_attention_is_the_sum_it_describes(
    heads: tuple[int, int], sinks: tuple[float, ...] | None, softcap: float | None, device: str
) -> None:
    """A sink has a weight and no value: one of 30 takes nearly all, one of -40 nothing."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, heads[0], 3, 8, generator=generator)
    keys, values = (torch.randn(2, heads[1], 11, 8, generator=generator) for _ in range(2))
    visible = torch.rand(2, 1, 3, 11, generator=generator) > 0.4
    visible[..., 0] = True
    mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
    there = [tensor.to(device) for tensor in (query, keys, values, mask)]
    empty = None if sinks is None else torch.tensor(sinks[: heads[0]], device=device)
    got = OPS.tree_attention(there[0], there[1], there[2], there[3], 0.3, softcap, None, empty).cpu()
    for row in range(2):
        for head in range(heads[0]):
            group = head // (heads[0] // heads[1])
            for slot in range(3):
                scores = (keys[row, group].double() @ query[row, head, slot].double()) * 0.3
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                scores = scores + mask[row, 0, slot]
                if sinks is not None:
                    scores = torch.cat([scores, torch.tensor([sinks[head]]).double()])
                weights = scores.softmax(dim=0)[:11]
                expected = (weights @ values[row, group].double()).float()
                torch.testing.assert_close(got[row, slot, head], expected)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("triton", marks=INTERPRETS)])
@pytest.mark.parametrize("cells", [3, 300])
def test_each_head_has_its_own_sink_once_on_the_backend(cells: int, backend: str) -> None:
    """Cells of ones with equal weights, 300 of them in two parts of what a kernel shares; each sink's is another."""
    ops = registry().backend(backend)
    query, keys, mask = torch.ones(1, 4, 2, 16), torch.ones(1, 2, cells, 16), torch.zeros(1, 1, 2, cells)
    weights = torch.tensor([0.5, 1.0, 2.0, 4.0]) * cells
    out = ops.tree_attention(query, keys, keys, mask, 0.0, None, None, weights.log())
    share = cells / (cells + weights)
    torch.testing.assert_close(out, share[None, None, :, None].expand(1, 2, 4, 16))
    assert ops.ran() == {("tree_attention", backend): 1}


def test_append_and_compact_touch_the_named_cells_only() -> None:
    keys = torch.zeros(2, 1, 6, 2)
    values = keys.clone()
    fresh = torch.arange(1, 9, dtype=torch.float32).view(2, 1, 2, 2)
    OPS.kv_append(keys, values, fresh, -fresh, torch.tensor([[5, 0], [2, 3]]))
    assert keys[0, 0, :, 0].tolist() == [3, 0, 0, 0, 0, 1]
    assert values[1, 0, :, 1].tolist() == [0, 0, -6, -8, 0, 0]
    # A swap: every source is read before any target is written.
    OPS.kv_compact(keys, values, torch.tensor([[5, 0], [2, 3]]), torch.tensor([[0, 5], [2, 3]]))
    assert keys[0, 0, :, 0].tolist() == [1, 0, 0, 0, 0, 3]
    assert values[1, 0, :, 1].tolist() == [0, 0, -6, -8, 0, 0]
