"""Packed weights: what a copy holds, and that a row's result does not depend on the rows beside it, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.cases import CASES, KINDS, Case, _layers
from benchsuite.tests.rig import INTERPRETED, slow_after
from specdec import SpecdecError
from specdec.decoder import Cells
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec.packed import Packed, Weight
from specdec.quantised import Quantised
from specdec_kernels.triton import SHARE, TILE, Triton


class _Numpy:
    """numpy, with products that add up every element in one order."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def matmul(self, a: Any, b: Any, dtype: Any = None) -> Any:
        return np.einsum("...ik,...kj->...ij", a, b, dtype=dtype)


@pytest.fixture(autouse=True)
def products_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Triton's interpreter multiply tiles without BLAS.

    OpenBLAS's kernels for Haswell and Zen add up a row of a tile in an order that depends on its place; those for
    AVX-512 do not. What is tested here is the kernels' order of tiles, not the order within one product of a tile.
    """
    if find_spec("triton") is not None:
        monkeypatch.setattr(import_module("triton.runtime.interpreter"), "np", _Numpy())


def _ops(name: str = "cpu") -> Ops:
    ops = registry().backend(name)
    if ops.chain[0].name != name:
        pytest.skip("no C++ compiler")
    return ops


def _weight(kind: str, outputs: int, inputs: int) -> Tensor | Quantised:
    whole = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs + inputs))
    if kind in ("int8", "int4"):
        return Quantised.of(whole, 8 if kind == "int8" else 4)
    return whole.bfloat16() if kind == "bfloat16" else whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(outputs=st.integers(1, 40), groups=st.integers(1, 3), odd=st.integers(0, 31))
def test_a_packed_matrix_holds_the_same_values(kind: str, outputs: int, groups: int, odd: int) -> None:
    weight = _weight(kind, outputs, 32 * groups + (0 if kind == "int4" else odd))
    packed = Packed.of(weight)
    assert packed.shape == tuple(weight.shape)
    assert torch.equal(packed.dequantise(), weight.float() if isinstance(weight, Tensor) else weight.dequantise())


def test_a_matrix_of_another_dtype_is_refused_by_name_and_left_alone_by_the_backend() -> None:
    weight = torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"float64.*expected float32, bfloat16 or Quantised"):
        Packed.of(weight)
    assert _ops().pack(weight) is weight


def test_copies_of_floats_are_left_out_when_asked_but_codes_are_packed() -> None:
    ops = registry().backend("cpu(pack=False)")
    weight: Weight = torch.randn(20, 64)
    assert ops.pack(weight) is weight
    assert isinstance(ops.pack(Quantised.of(torch.randn(20, 64), 8)), Packed)
    with pytest.raises(SpecdecError, match="'no'; expected True or False"):
        registry().backend("cpu(pack=no)")


@pytest.mark.parametrize("kind", slow_after(2, KINDS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(
    rows=st.integers(1, 70) | st.sampled_from((193, 400)),
    outputs=st.integers(1, 50),
    groups=st.integers(1, 10),
    data=st.data(),
)
def test_a_row_of_a_product_is_the_same_beside_any_rows(
    kind: str, dtype: torch.dtype, rows: int, outputs: int, groups: int, data: st.DataObject
) -> None:
    ops = _ops()
    weight = ops.pack(_weight(kind, outputs, 32 * groups))
    x = torch.randn(rows, 32 * groups, generator=torch.Generator().manual_seed(rows)).to(dtype)
    row = data.draw(st.integers(0, rows - 1))
    assert torch.equal(ops.linear(x, weight, None)[row], ops.linear(x[row], weight, None))


TRITON = pytest.param("triton", marks=INTERPRETED)
TILED = pytest.param("triton", (1, 5, 2), marks=INTERPRETED, id="triton-8")
"""Interpreted, a call takes as long for five tokens as for one: eight enter in three parts."""

ATTENDED = ("9x320", "batch", "ring", "queries-13", "head-256", "odd-heads", "garbage", "gaps")
"""Of the cases of attention those that Triton's interpreter runs, the others with --specdec-deep: several programs of
lines and of cells, several rows, each size of a tile."""


def _attended() -> Iterator[Any]:
    for case in (case for case in CASES if case.op == "tree_attention"):
        yield pytest.param("cpu", case, id=f"cpu-{case.name}")
        marks = [*INTERPRETED, *([] if case.name in ATTENDED else [pytest.mark.deep])]
        yield pytest.param("triton", case, id=f"triton-{case.name}", marks=marks)


@pytest.mark.parametrize(("name", "case"), [*_attended()])
def test_a_slot_attends_the_same_beside_any_slots_and_cells_that_it_does_not_see(
    name: str, case: Case, deep: bool
) -> None:
    """Interpreted, the first, the middle and the last slot are asked alone."""
    ops = _ops(name)
    query, keys, values, mask, *rest = case.make(torch.Generator().manual_seed(3), torch.float32)
    scaling, softcap, used, *sinks = rest
    query, mask = query[:, :, :TILE], mask[:, :, :TILE]  # in wider windows, triton's tiles have another shape
    whole = ops.tree_attention(query, keys, values, mask, scaling, softcap, used, *sinks)
    width = query.shape[2]
    for slot in range(width) if deep or name == "cpu" else sorted({0, width // 2, width - 1}):
        own = mask[:, :, slot : slot + 1]
        length = int((own > float("-inf")).any(dim=(0, 1, 2)).nonzero().max()) + 1
        given_to = query[:, :, slot : slot + 1], keys[:, :, :length], values[:, :, :length], own[..., :length]
        assert torch.equal(ops.tree_attention(*given_to, scaling, softcap, None, *sinks)[:, 0], whole[:, slot])


@pytest.mark.parametrize(
    ("name", "parts"), [*(pytest.param("cpu", (1,) * width, id=f"cpu-{width}") for width in (2, 5, 7, 13)), TILED]
)
def test_a_window_through_layers_is_its_tokens_one_by_one(name: str, parts: tuple[int, ...]) -> None:
    """The same keys, values and results, bit for bit, whether a chain enters the layers at once or in parts.

    Three layers and two rows; one layer and one row where Triton is interpreted.
    """
    ops, width = _ops(name), sum(parts)
    case = next(c for c in CASES if c.op == "decoder_layers" and c.name == ("three" if name == "cpu" else "1x9"))
    x, layers, (cos, sin), at = case.make(torch.Generator().manual_seed(5), torch.float32)
    generator = torch.Generator().manual_seed(width)
    layers = [layer.packed(ops) for layer in layers]
    x = torch.randn(len(x), width, x.shape[2], generator=generator)
    cos, sin = (torch.randn(len(x), width, cos.shape[2], generator=generator) for _ in range(2))
    cells = (torch.tensor([[21], [34]]) + torch.arange(width))[: len(x)]
    mask = torch.zeros(len(x), 1, width, 64).masked_fill(torch.arange(64) > cells[:, None, :, None], float("-inf"))

    def arena() -> list[tuple[Tensor, Tensor]]:
        return [(one.keys.clone(), one.values.clone()) for one in at]

    together, alone = arena(), arena()
    whole = ops.decoder_layers(x, layers, (cos, sin), [Cells(k, v, cells, mask) for k, v in together])
    for end, size in zip(itertools.accumulate(parts), parts, strict=True):
        part = slice(end - size, end)
        mine = [Cells(k, v, cells[:, part], mask[:, :, part]) for k, v in alone]
        one = ops.decoder_layers(x[:, part], layers, (cos[:, part], sin[:, part]), mine)
        assert torch.equal(one, whole[:, part])
    for (keys, values), (own_keys, own_values) in zip(together, alone, strict=True):
        assert torch.equal(keys, own_keys)
        assert torch.equal(values, own_values)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
@given(st.lists(st.integers(-1, 7), min_size=1, max_size=4), st.integers(0, 9))
def test_slots_that_count_are_the_same_beside_any_padding_which_writes_nothing(
    kind: str, counts: list[int], seed: int
) -> None:
    """Rows of five slots, of which each has its own number; one below 1 or above 5 is taken for the nearest.

    Keys, values, results, products and draws, bit for bit those of a window without padding; padding has no NaN.
    """
    ops, generator = _ops(), torch.Generator().manual_seed(seed)
    rows, dtype = len(counts), torch.bfloat16 if kind == "bfloat16" else torch.float32
    x, layers, turn, at = _layers(rows, 5, kind if kind.startswith("int") else "own", count=2)(generator, dtype)
    layers = [layer.packed(ops) for layer in layers]
    count = torch.arange(5) < torch.tensor(counts).clamp(1, 5)[:, None]
    found = []
    for width in (None, torch.tensor(counts)):
        cells = [Cells(one.keys.clone(), one.values.clone(), one.cells, one.mask, width=width) for one in at]
        found.append((ops.decoder_layers(x, layers, turn, cells), cells))
    (whole, written), (some, own) = found
    assert torch.equal(some[count], whole[count])
    assert some.isfinite().all()
    for one, other, before in zip(written, own, at, strict=True):
        for full, ours, old in ((one.keys, other.keys, before.keys), (one.values, other.values, before.values)):
            expected = full.clone()
            for row, slot in (~count).nonzero().tolist():
                cell = before.cells[row, slot]
                expected[row, :, cell] = old[row, :, cell]
            assert torch.equal(ours, expected)
    weight, bias = layers[0].gate_up, layers[0].gate_up_bias
    product = ops.linear_of_slots(x, weight, bias, torch.tensor(counts), wide=True)
    assert torch.equal(product[count], ops.linear(x, weight, bias, wide=True)[count])
    assert product.isfinite().all()
    assert ops.ran()["linear", "cpu"] == 2
    keys = torch.randint(2**62, (rows, 5), generator=generator)
    for key in (None, keys):
        drawn = ops.sample_of_slots(product, key, torch.tensor(counts))
        assert torch.equal(drawn[count], ops.sample(product, key)[count])
    assert ops.ran()["sample", "cpu"] == 4


def test_no_slots_have_no_draws() -> None:
    for key in (None, torch.empty(0, 3, dtype=torch.int64)):
        assert _ops().sample(torch.empty(0, 3, 17), key).shape == (0, 3)
        assert _ops().sample_of_slots(torch.empty(0, 3, 17), key, torch.empty(0, dtype=torch.int64)).shape == (0, 3)


@pytest.mark.parametrize("name", [TRITON])
def test_a_window_that_crosses_into_the_next_programs_cells_attends_as_its_tokens_do(name: str) -> None:
    """The first slots see the cells of one program, the last ones those of two, beside slots that see no cell."""
    ops, generator, start = _ops(name), torch.Generator().manual_seed(8), SHARE - 4
    keys, values = (torch.randn(1, 2, 3 * SHARE, 64, generator=generator) for _ in range(2))
    query = torch.randn(1, 6, 9, 64, generator=generator)
    hidden = torch.arange(3 * SHARE) > start + torch.arange(9)[:, None]
    mask = torch.zeros(1, 1, *hidden.shape).masked_fill(hidden, float("-inf"))
    whole = ops.tree_attention(query, keys, values, mask, 0.125, None, torch.tensor([start + 9]))
    for slot in range(9):
        part, used = slice(slot, slot + 1), torch.tensor([start + slot + 1])
        one = ops.tree_attention(query[:, :, part], keys, values, mask[:, :, part], 0.125, None, used)
        assert torch.equal(one, whole[:, part])


@pytest.mark.parametrize("name", [TRITON])
def test_programs_that_share_cells_leave_their_counters_at_zero_and_read_nothing_past_the_used_ones(name: str) -> None:
    ops = _ops(name)
    case = next(c for c in CASES if c.op == "tree_attention" and c.name == "used")
    query, keys, values, mask, scaling, softcap, used = case.make(torch.Generator().manual_seed(3), torch.float32)
    before = ops.tree_attention(query, keys, values, mask, scaling, softcap, used)
    for row, end in enumerate(used.tolist()):
        keys[row, :, end:], values[row, :, end:] = float("nan"), float("nan")
    assert torch.equal(ops.tree_attention(query, keys, values, mask, scaling, softcap, used), before)
    backend = ops.chain[0]
    assert isinstance(backend, Triton)
    assert backend._arrivals
    assert not any(counters.any() for counters in backend._arrivals.values())


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
@torch.inference_mode()
def test_the_logits_of_a_chains_window_are_those_of_single_tokens(family: str, bits: int | None) -> None:
    target = ArenaModel(families.build_model(family), _ops(), bits)
    tokens = torch.randint(target.vocabulary, (1, 60), generator=torch.Generator().manual_seed(1))
    wide, single = (target.arena(1, 80, 16) for _ in range(2))
    start = 20
    for arena in (wide, single):
        target.extend(arena, tokens[:, :start], 0, 0)
    for width in (9, 2, 16, 7):
        own = tokens[:, start : start + width]
        window = Window.chain(own[:, 0], own[:, 1:], torch.full((1,), width - 1))
        logits, hidden = target.forward(wide, window, slice(0, 1), start)
        wide.committed += width
        for slot in range(width):
            one = Window.chain(own[:, slot], own[:, :0], torch.zeros(1, dtype=torch.int64))
            alone, state = target.forward(single, one, slice(0, 1), start + slot)
            single.committed += 1
            assert torch.equal(alone[:, 0], logits[:, slot])
            assert torch.equal(state[:, 0], hidden[:, slot])
        start += width


def test_threads_of_a_forked_process_are_its_own() -> None:
    """A process that forks after its threads have started multiplies as before; its parent too."""
    import multiprocessing

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ops = _ops()
        weight, x = ops.pack(torch.randn(300, 600)), torch.randn(3, 600)
        expected = ops.linear(x, weight, None)
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=lambda: sender.send(torch.equal(ops.linear(x, weight, None), expected)))
        child.start()
        assert receiver.poll(60)
        assert receiver.recv()
        child.join(60)
        assert child.exitcode == 0
        assert torch.equal(ops.linear(x, weight, None), expected)
    finally:
        torch.set_num_threads(before)
