"""What C++ is told of a layer's weights: addresses of tensors that live as long, sizes and numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec.decoder import DecoderWeights
from specdec.packed import Packed
from specdec.quantised import Quantised
from specdec_kernels.cpu import CODE, Described, Layer, Matrix

SHAPES = {"qkv": (32, 64), "out": (64, 32), "gate_up": (96, 64), "down": (64, 96)}


def _weights(bits: int | None, dtype: torch.dtype, biased: bool) -> DecoderWeights:
    g = torch.Generator().manual_seed(1)
    given: list[Any] = []
    for outputs, inputs in SHAPES.values():
        weight = torch.randn(outputs, inputs, generator=g)
        matrix = Packed.of(weight.to(dtype) if bits is None else Quantised.of(weight, bits))
        given += [matrix, torch.randn(outputs, generator=g).to(dtype) if biased else None]
    norms = [torch.randn(64, generator=g).to(dtype) for _ in range(2)]
    numbers: list[Any] = [1.5, 2, 1, 8, 0.125]
    fields: list[Any] = [norms[0], 0.25, *given[:4], norms[1], 0.5, *given[4:], *numbers]
    return DecoderWeights(*fields)


def _floats(address: int, count: int) -> list[float]:
    return list((ctypes.c_float * count).from_address(address))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("bits", "dtype", "kind"),
    [(None, torch.float32, 0), (None, torch.bfloat16, 1), (8, torch.float32, 2), (4, torch.bfloat16, 3)],
)
def test_a_layer_is_described_by_its_addresses_sizes_and_numbers(
    bits: int | None, dtype: torch.dtype, kind: int, biased: bool
) -> None:
    weights = _weights(bits, dtype, biased)
    told = Described(weights)
    layer = Layer.from_address(told.address)
    for name, (outputs, inputs) in SHAPES.items():
        matrix: Matrix = getattr(layer, name)
        packed, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
        assert matrix.weight == packed.data.data_ptr()
        assert matrix.scale == (None if packed.scale is None else packed.scale.data_ptr())
        assert (matrix.kind, matrix.inputs, matrix.outputs) == (kind, inputs, outputs)
        assert (matrix.bias is not None) is biased
        if isinstance(bias, Tensor):
            assert _floats(matrix.bias, outputs) == bias.float().tolist()
    assert (layer.norm_before, layer.norm_after) == (weights.norm_before.data_ptr(), weights.norm_after.data_ptr())
    assert (layer.heads, layer.heads_kv, layer.size) == (2, 1, 8)
    assert (layer.eps_before, layer.eps_after, layer.norm_offset, layer.scaling) == (0.25, 0.5, 1.5, 0.125)


@pytest.mark.parametrize("biased", [False, True])
def test_all_that_a_description_points_to_is_kept_in_order(biased: bool) -> None:
    """A float32 copy of a bias has no other owner: without it C++ would read freed memory."""
    weights = _weights(8, torch.bfloat16, biased)
    told = Described(weights)
    wanted: list[int] = []
    for name in SHAPES:
        matrix: Matrix = getattr(told.layer, name)
        wanted += [matrix.weight, *([matrix.bias] if biased else [])]
    assert [tensor.data_ptr() for tensor in told._kept] == wanted


def test_kinds_have_the_numbers_of_the_sources() -> None:
    assert {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3} == CODE
