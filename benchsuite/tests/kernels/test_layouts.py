"""Tensors that lie in memory as no other case has them, and numbers at the edge: every backend does as the formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import run_op
from benchsuite.conformance.ops.cases import CASES
from benchsuite.tests.rig import INTERPRETED, INTERPRETS, named_backend
from benchsuite.workshop.native.cuda_on_host import cuda_on_host
from specdec import Request, SamplingParams, SpecdecError, Window, sampling
from specdec.decoder import Cells
from specdec.ledger import stacked
from specdec.ops import Ops
from specdec_kernels import reference
from specdec_kernels.flex import Flex
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton

HALF = torch.bfloat16


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def cpu_kernels() -> Ops:
    """The cpu backend and the reference."""
    ops = registry().backend("cpu")
    if ops.chain[0].name != "cpu":
        pytest.skip("no C++ compiler")
    return ops


def _gates() -> dict[str, tuple[Tensor, Tensor]]:
    """Gates and ups with gaps between their rows, or between their batches."""
    one, two = _random(2, 75, 200), _random(2, 75, 200, seed=6)
    slim, thin = _random(2, 3, 12_300), _random(2, 3, 12_300, seed=6)
    return {
        "batches-with-gaps": (one[:, :70, :96], two[:, :70, 96:192]),
        "batches-of-one-row": (slim[:, :1, :6200], thin[:, :1, 6000:12_200]),
        "gaps-behind-an-axis-of-one": (
            _random(1, 2, 75, 200)[:, :, :70, :96],
            _random(1, 2, 75, 200, seed=6)[:, :, :70, 96:192],
        ),
        "one-axis": (_random(12_288), _random(12_288, seed=6)),
        "two-axes": (one[0, :70, :180], two[1, :70, 20:]),
        "four-axes": (_random(2, 3, 25, 100)[:, :, :22], _random(2, 3, 22, 100, seed=6)),
    }


@pytest.mark.parametrize("name", _gates())
def test_swiglu_of_rows_with_gaps_between_them_is_that_of_each_row(cpu_kernels: Ops, name: str) -> None:
    gate, up = _gates()[name]
    torch.testing.assert_close(cpu_kernels.silu_mul(gate, up), gate * torch.sigmoid(gate) * up)
    taken = gate.numel() >= 12_288
    assert cpu_kernels.ran() == {("silu_mul", "cpu" if taken else "reference"): 1}


def test_rows_that_share_a_mask_attend_as_with_one_of_their_own(cpu_kernels: Ops) -> None:
    query, keys, values = _random(3, 2, 4, 8), _random(3, 2, 9, 8, seed=6), _random(3, 2, 9, 8, seed=7)
    mask = torch.zeros(1, 1, 4, 9).masked_fill(_random(1, 1, 4, 9, seed=8) > 1, float("-inf"))
    shared = cpu_kernels.tree_attention(query, keys, values, mask.expand(3, -1, -1, -1), 0.5, None)
    own = cpu_kernels.tree_attention(query, keys, values, mask.repeat(3, 1, 1, 1), 0.5, None)
    assert shared.equal(own)
    assert cpu_kernels.ran() == {("tree_attention", "cpu"): 2}


def test_rows_that_share_angles_are_turned_as_with_some_of_their_own(cpu_kernels: Ops) -> None:
    case = next(case for case in CASES if (case.op, case.name) == ("decoder_layers", "three"))
    x, layers, turn, at = case.make(Generator().manual_seed(7), torch.float32)
    layers = [layer.packed(cpu_kernels) for layer in layers]
    angles = tuple(angle[:1] for angle in turn)

    def whole(turned: Any) -> Tensor:
        cells = [Cells(one.keys.clone(), one.values.clone(), one.cells, one.mask) for one in at]
        return cpu_kernels.decoder_layers(x, layers, turned, cells)

    assert len(x) > 1
    assert whole(angles).equal(whole(tuple(angle.expand(len(x), -1, -1).contiguous() for angle in angles)))


@pytest.mark.parametrize("other", ["cos", "sin", "keys", "values", "mask"])
def test_layers_refuse_cells_and_angles_of_another_dtype_which_they_would_misread(other: str, cpu_kernels: Ops) -> None:
    [case] = [case for case in CASES if case.op == "decoder_layers" and case.name == "1x1"]
    x, layers, (cos, sin), (at,) = case.make(Generator().manual_seed(1), HALF)
    packed, turn = [layer.packed(cpu_kernels) for layer in layers], {"cos": cos, "sin": sin}
    if other in turn:
        turn[other] = turn[other].float()
    else:
        at = replace(at, **{other: getattr(at, other).float()})
    with pytest.raises(
        SpecdecError, match=rf"x in torch.bfloat16 and {other} in torch.float32; expected the dtype of x"
    ):
        cpu_kernels.decoder_layers(x, packed, (turn["cos"], turn["sin"]), [at])


def test_biases_that_were_made_wide_stay_while_their_layer_does(cpu_kernels: Ops) -> None:
    """C++ has their addresses: whoever is given memory that was freed too early would write over them."""
    case = next(case for case in CASES if (case.op, case.name) == ("decoder_layers", "bias"))
    x, layers, turn, at = case.make(Generator().manual_seed(7), HALF)
    layers = [layer.packed(cpu_kernels) for layer in layers]

    def whole() -> Tensor:
        return cpu_kernels.decoder_layers(x, layers, turn, at)

    first = whole()
    sizes = {bias.numel() for layer in layers for bias in (layer.qkv_bias, layer.out_bias, layer.gate_up_bias)}
    others = [torch.full((size,), torch.nan) for size in sizes for _ in range(50)]
    assert whole().equal(first)
    assert len(others) == 50 * len(sizes)


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_logits_that_lie_slot_by_slot_are_processed_row_by_row(name: str) -> None:
    ops = registry().backend(name)
    asked = [Request(i, (1,), SamplingParams(temperature=0.7, top_k=3 + i)) for i in range(2)]
    given = stacked(asked, 40, torch.device("cpu"))
    across = _random(3, 2, 40).transpose(0, 1)
    got = ops.process(across, given, None)
    assert got.equal(ops.process(across.contiguous(), given, None))
    assert got.isfinite().sum(dim=2).tolist() == [[3] * 3, [4] * 3]


def test_logits_whose_tokens_do_not_lie_beside_each_other_are_drawn_from(cpu_kernels: Ops) -> None:
    keys = sampling.mix(torch.arange(6)).view(2, 3)
    for logits in (_random(2, 3, 80)[..., ::2], _random(2, 40, 3).transpose(1, 2)):
        for key in (None, keys):
            assert cpu_kernels.sample(logits, key).equal(Reference().sample(logits, key))


def test_a_gpus_kernels_read_tensors_whose_last_axis_is_not_the_closest() -> None:
    g = Generator().manual_seed(4)
    p = _random(4, 3, 37).softmax(dim=-1)
    q = (p[:, :2].log() + _random(4, 2, 37, seed=6)).softmax(dim=-1)
    across = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (p, q)]
    keys = [torch.randint(2**62, (4, 3), generator=g) for _ in range(3)]
    tokens = torch.randint(37, (4, 3), generator=g)
    window = Window(tokens, torch.tensor([-1, 0, 1]).expand(4, 3), torch.tensor([3, 2, 1, 3]), q)
    expected = run_op(Reference(), "rejection_sample", (p, window, *keys))
    with cuda_on_host() as backend:
        got = run_op(backend, "rejection_sample", (across[0], replace(window, q=across[1]), *keys))
        for one, other in zip(got, expected, strict=True):
            assert one.equal(other)
        x = _random(40, 6).t()
        torch.testing.assert_close(
            backend.rms_norm(x, torch.ones(40), 1e-5, 0.0), Reference().rms_norm(x, torch.ones(40), 1e-5, 0.0)
        )
        gate, up = _random(40, 6).t(), _random(40, 6, seed=6).t()
        torch.testing.assert_close(backend.silu_mul(gate, up), Reference().silu_mul(gate, up))
        query, cells = _random(2, 8, 3, 3).transpose(1, 3), _random(2, 8, 3, 2, seed=6).transpose(1, 3)
        cos, sin = _random(2, 3, 8, seed=7), _random(2, 3, 8, seed=8)
        for mine, theirs in zip(
            backend.rotary(query, cells, cos, sin), Reference().rotary(query, cells, cos, sin), strict=True
        ):
            torch.testing.assert_close(mine, theirs)


def test_a_gpus_draws_and_norms_take_keys_and_weights_of_another_shape_or_dtype() -> None:
    logits, keys = _random(1, 1, 37), sampling.mix(torch.arange(15)).view(3, 5)
    x = _random(4, 64, dtype=HALF)
    with cuda_on_host() as backend:
        assert backend.sample(logits, keys).equal(Reference().sample(logits, keys))
        assert backend.sample(_random(3, 1, 37), keys).equal(Reference().sample(_random(3, 1, 37), keys))
        for dtype in (torch.float32, torch.float16, HALF):
            weight = _random(64, dtype=dtype, seed=6)
            torch.testing.assert_close(
                backend.rms_norm(x, weight, 1e-5, 0.0), Reference().rms_norm(x, weight, 1e-5, 0.0)
            )


@pytest.mark.parametrize("op", ["rejection_sample", "block_sample", "tree_sample"])
@pytest.mark.parametrize("name", ["reference", "cpu", pytest.param("triton", marks=INTERPRETED), "cuda on the host"])
def test_a_proposal_that_q_rules_out_is_never_accepted(name: str, op: str) -> None:
    """A draft that proposes what its q gives nothing is wrong about q."""
    p = torch.tensor([0.0, 0.5, 0.5]).expand(4, 2, 3).contiguous()
    q = torch.tensor([0.5, 0.0, 0.5]).expand(4, 1, 3).contiguous()
    keys = sampling.mix(torch.arange(3 * 8)).view(3, 4, 2)
    one = torch.ones(4, dtype=torch.int64)
    window = Window.chain(0 * one, one[:, None], one, q)
    with named_backend(name) as ops:
        path, accepted, following = run_op(ops, op, (p, window, *keys))
    assert accepted.tolist() == [0] * 4
    assert path.tolist() == [[0, -1]] * 4
    assert following.tolist() == [1] * 4  # all that is left of p


def test_norms_are_computed_in_float32_or_wider_and_rounded_once() -> None:
    x, weight = _random(4, 64, dtype=HALF), _random(64, dtype=HALF, seed=6)
    wide = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * (0.5 + weight.double())
    torch.testing.assert_close(Reference().rms_norm(x.double(), weight, 1e-5, 0.5), wide, rtol=1e-14, atol=1e-14)
    single = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * (0.5 + weight.float())
    assert Reference().rms_norm(x, weight, 1e-5, 0.5).equal(single.to(HALF))


def test_attention_of_grouped_heads_has_no_need_that_other_sizes_differ() -> None:
    """As many slots as key heads, and as many cells as query heads: sizes that could be taken for each other."""
    for heads, heads_kv, width, length in ((4, 2, 2, 4), (4, 4, 4, 4), (4, 2, 3, 4), (4, 2, 2, 5)):
        query, (keys, values) = _random(1, heads, width, 8), _random(2, 1, heads_kv, length, 8, seed=6)
        mask = torch.zeros(1, 1, width, length)
        whole = [t.repeat_interleave(heads // heads_kv, dim=1) for t in (keys, values)]
        weights = (query @ whole[0].transpose(2, 3) * 0.3).softmax(dim=-1)
        got = Reference().tree_attention(query, keys, values, mask, 0.3, None)
        torch.testing.assert_close(got, (weights @ whole[1]).transpose(1, 2))


def test_a_wide_product_of_halves_is_made_of_parts_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = _random(2, 3, 16, dtype=HALF), _random(7, 16, dtype=HALF, seed=6), _random(7, dtype=HALF, seed=7)
    expected = x.float() @ weight.float().t() + bias.float()
    for numbers in (1, 16, 40, 1 << 20):
        monkeypatch.setattr(reference, "PART", numbers)
        got = Reference().linear(x, weight, bias, wide=True)
        assert (got.dtype, got.shape) == (torch.float32, (2, 3, 7))
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(Reference().linear(x, weight, None, wide=True), expected - bias.float())
    meta = Reference().linear(x.to("meta"), weight.to("meta"), bias.to("meta"), wide=True)
    assert (meta.dtype, meta.shape, meta.device.type) == (torch.float32, (2, 3, 7), "meta")


def test_a_gpus_wide_product_of_halves_is_one_call_that_gives_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(Tensor):
        is_cuda = True

    asked: list[dict[str, Any]] = []

    def product(rows: Tensor, weight: Tensor, **named: Any) -> Tensor:
        asked.append(named)
        return rows.as_subclass(Tensor).float() @ weight.as_subclass(Tensor).float()

    x, weight = _random(2, 3, 16, dtype=HALF), _random(7, 16, dtype=HALF, seed=6)
    monkeypatch.setattr(torch, "mm", product)
    got = Reference().linear(x.as_subclass(OnGpu), weight, None, wide=True)
    assert asked == [{"out_dtype": torch.float32}]
    torch.testing.assert_close(got.as_subclass(Tensor), x.float() @ weight.float().t())


@pytest.mark.slow
@INTERPRETS
def test_a_parent_that_does_not_lie_before_its_child_ends_the_walk() -> None:
    """A window's padding may hold anything: slot 1 is its own parent, slot 2 has a later one, slot 3 follows slot 2."""
    window = Window(torch.zeros(1, 4, dtype=torch.int64), torch.tensor([[-1, 1, 3, 2]]), torch.tensor([1]))
    depth, position, cells, mask = Triton().kv_plan(window, torch.tensor([2]), None, 12, 7, None, torch.float32)
    assert depth.tolist() == [[0, 0, 0, 1]]
    assert position.tolist() == [[2, 2, 2, 3]]
    assert cells.tolist() == [[2, 3, 4, 5]]
    sees = [[cell for cell in range(7) if mask[0, 0, slot, cell] == 0] for slot in range(4)]
    assert sees == [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 4, 5]]


@pytest.mark.parametrize("length", [20, 300])
@INTERPRETS
def test_a_slot_that_sees_no_cell_gives_zeros_and_a_hidden_key_may_be_anything(length: int) -> None:
    """Whether one program reads all cells or two share them; slot 0 sees nothing, slot 1 the last cell alone."""
    query, (keys, values) = _random(1, 2, 3, 8), _random(2, 1, 1, length, 8, seed=6)
    mask = torch.full((1, 1, 3, length), -torch.inf)
    mask[0, 0, 1, -1] = 0.0
    mask[0, 0, 2, 1:] = 0.0
    keys[0, 0, 0, :4], keys[0, 0, 0, 4:] = torch.nan, torch.inf
    got = Triton().tree_attention(query, keys, values, mask, 0.5, None)
    assert got[:, 0].equal(torch.zeros(1, 2, 8))
    torch.testing.assert_close(got[0, 1], values[0, :, -1].expand(2, -1))
    weights = (query[0, :, 2] @ keys[0, 0, 1:].t() * 0.5).softmax(dim=-1)
    torch.testing.assert_close(got[0, 2], weights @ values[0, 0, 1:])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("name", "width", "length"),
    [
        *(pytest.param("triton", 3, length, marks=INTERPRETS) for length in (5, 300)),
        *(pytest.param("flex", width, 5, marks=pytest.mark.slow) for width in (1, 3)),
    ],
)
def test_a_gpus_attention_adds_a_finite_mask_to_the_capped_scores(name: str, width: int, length: int) -> None:
    """One mask for two rows, whether one program reads all cells or two share them; a slot does not see every third."""
    ops = Flex(compiled=False) if name == "flex" else Triton()
    query, (keys, values) = _random(2, 2, width, 8), _random(2, 2, 1, length, 8, seed=6)
    mask = 2 * _random(1, 1, width, length, seed=7)
    mask[..., (torch.arange(width)[:, None] + torch.arange(length)) % 3 == 0] = -torch.inf
    for softcap in (None, 1.5):
        scores = query @ keys.transpose(2, 3) * 0.7
        scores = scores if softcap is None else softcap * (scores / softcap).tanh()
        got = ops.tree_attention(query, keys, values, mask, 0.7, softcap)
        torch.testing.assert_close(got, ((scores + mask).softmax(dim=-1) @ values).transpose(1, 2))
