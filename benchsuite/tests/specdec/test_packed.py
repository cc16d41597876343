"""Weights in 8 or 4 bits and in tiles: every code, scale and place, against loops over single numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specdec import SpecdecError
from specdec.choices import BITS
from specdec.packed import Packed
from specdec.quantised import GROUP, Quantised


def some_weight(rows: int, inputs: int) -> Tensor:
    """A matrix with a row of zeros, a row of tiny numbers and a row of one number beside random ones."""
    weight = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows * 1000 + inputs))
    weight[1] = 0.0
    weight[2] *= 1e-12
    weight[-1] = -3.5
    return weight


def test_eight_bits_are_the_nearest_of_127_steps_of_each_row() -> None:
    weight = some_weight(5, 7)
    found = Quantised.of(torch.nn.Parameter(weight), 8)
    numbers = weight.numpy()
    scale = [max(np.abs(row).max() / np.float32(127), np.float32(1e-30)) for row in numbers]
    codes = [[int(np.round(number / step)) for number in row] for row, step in zip(numbers, scale, strict=True)]
    assert found.codes.dtype == torch.int8
    assert found.codes.tolist() == codes
    assert np.array_equal(found.scale.numpy(), np.array(scale, dtype=np.float32)[:, None])
    assert codes[1] == [0] * 7
    assert max(abs(code) for code in codes[2]) == max(abs(code) for code in codes[-1]) == 127
    assert found.offset is None
    assert (found.bits, found.shape, found.nbytes, found.device.type) == (8, (5, 7), 5 * 7 + 4 * 5, "cpu")
    assert all(type(size) is int for size in found.shape)
    floats = found.dequantise()
    assert floats.dtype == torch.float32
    assert floats.tolist() == [
        [float(np.float32(code) * step) for code in row] for row, step in zip(codes, scale, strict=True)
    ]
    assert torch.equal(found.dequantise(torch.bfloat16), floats.to(torch.bfloat16))
    assert not floats.requires_grad


def test_four_bits_are_sixteen_steps_of_each_group_of_32_two_inputs_in_a_byte() -> None:
    weight = some_weight(4, 96)
    found = Quantised.of(weight.double(), 4)
    assert (found.codes.dtype, tuple(found.codes.shape)) == (torch.uint8, (4, 48))
    assert found.offset is not None
    assert found.scale.shape == found.offset.shape == (4, 3)
    assert found.scale.is_contiguous()
    assert found.offset.is_contiguous()
    floats = found.dequantise()
    for row in range(4):
        for group in range(3):
            numbers = weight[row, 32 * group : 32 * group + 32].numpy()
            low = float(np.float16(numbers.min()))
            step = float(np.float16((numbers.max() - numbers.min()) / np.float32(15)))
            codes = [int(np.clip(np.round((number - low) / max(step, 1e-30)), 0, 15)) for number in numbers]
            assert (float(found.offset[row, group]), float(found.scale[row, group])) == (low, step)
            held = found.codes[row, 16 * group : 16 * group + 16].tolist()
            assert held == [codes[place] + 16 * codes[place + 16] for place in range(16)]
            assert {0, 15} <= set(codes) or set(codes) == {0}
            expected = [code * step + low for code in codes]
            assert floats[row, 32 * group : 32 * group + 32].tolist() == pytest.approx(expected, rel=1e-6, abs=0)
    assert (found.bits, found.shape, found.nbytes) == (4, (4, 96), 4 * 48 + 2 * 4 * 4 * 3)
    assert all(type(size) is int for size in found.shape)
    assert torch.equal(found.dequantise(torch.float16), floats.half())


@pytest.mark.parametrize("inputs", [16, 33, 31])
def test_four_bits_need_whole_groups(inputs: int) -> None:
    with pytest.raises(SpecdecError) as refused:
        Quantised.of(torch.ones(2, inputs), 4)
    assert str(refused.value) == (f"a weight of {inputs} inputs cannot be put into groups of 32 for int4; use int8")
    assert (BITS, GROUP) == ({"int8": 8, "int4": 4}, 32)


def test_four_bits_refuse_what_their_scales_cannot_hold() -> None:
    weight = torch.ones(2, 32)
    weight[1, 3] = -65_504.0
    assert Quantised.of(weight, 4).dequantise()[1, 3] == -65_504.0
    for wrong in (70_000.0, float("inf"), float("nan")):
        weight[1, 3] = wrong
        with pytest.raises(SpecdecError, match=f"a weight of {wrong:g} cannot be put into int4.* up to 65504; use"):
            Quantised.of(weight, 4)


SHAPES = [(20, 6), (16, 5), (33, 1), (32, 64), (3, 2)]


def tiled(numbers: Any, rows: int, inputs: int) -> list[list[list[Any]]]:
    """Tiles of 16 outputs, input after input; outputs that are not there are 0."""
    return [
        [[numbers[16 * tile + lane][k] if 16 * tile + lane < rows else 0 for lane in range(16)] for k in range(inputs)]
        for tile in range(-(-rows // 16))
    ]


@pytest.mark.parametrize(("rows", "inputs"), SHAPES)
def test_floats_are_packed_in_tiles_of_16_outputs(rows: int, inputs: int) -> None:
    weight = some_weight(rows, inputs)
    found = Packed.of(torch.nn.Parameter(weight))
    assert found.data.dtype == torch.float32
    assert found.data.tolist() == tiled(weight.tolist(), rows, inputs)
    assert found.data.is_contiguous()
    assert (found.scale, found.shape, found.nbytes) == (None, (rows, inputs), 4 * found.data.numel())
    assert torch.equal(found.dequantise(), weight)
    assert torch.equal(found.dequantise(torch.float64), weight.double())


@pytest.mark.parametrize(("rows", "inputs"), SHAPES)
def test_bfloat16_has_two_inputs_of_an_output_side_by_side(rows: int, inputs: int) -> None:
    weight = some_weight(rows, inputs).bfloat16()
    found = Packed.of(weight)
    numbers = weight.tolist()
    for row in numbers:
        row.extend([0] * (inputs % 2))
    pairs = [[row[k : k + 2] for k in range(0, len(row), 2)] for row in numbers]
    expected = tiled(pairs, rows, len(pairs[0]))
    padded = [[[one or [0, 0] for one in lanes] for lanes in tile] for tile in expected]
    assert (found.data.dtype, found.data.is_contiguous()) == (torch.bfloat16, True)
    assert found.data.tolist() == padded
    assert (found.scale, found.shape, found.nbytes) == (None, (rows, inputs), 2 * found.data.numel())
    assert torch.equal(found.dequantise(torch.bfloat16), weight)
    assert torch.equal(found.dequantise(), weight.float())


@pytest.mark.parametrize(("rows", "inputs"), SHAPES)
def test_eight_bits_are_packed_like_floats_with_a_scale_for_each_output(rows: int, inputs: int) -> None:
    codes = Quantised.of(some_weight(rows, inputs), 8)
    found = Packed.of(codes)
    assert found.data.dtype == torch.int8
    assert found.data.tolist() == tiled(codes.codes.tolist(), rows, inputs)
    assert found.scale is not None
    assert found.scale.tolist() == codes.scale[:, 0].tolist() + [0.0] * (-rows % 16)
    assert (found.shape, found.nbytes) == ((rows, inputs), found.data.numel() + 4 * found.scale.numel())
    assert torch.equal(found.dequantise(), codes.dequantise())


@pytest.mark.parametrize(("rows", "inputs"), [(20, 64), (16, 32), (3, 96), (33, 32)])
def test_four_bits_are_packed_in_words_of_eight_inputs_with_scale_and_offset_of_each_group(
    rows: int, inputs: int
) -> None:
    codes = Quantised.of(some_weight(rows, inputs), 4)
    assert codes.offset is not None
    found = Packed.of(codes)
    single: list[list[int]] = []
    for row in codes.codes.tolist():
        groups = [row[start : start + 16] for start in range(0, len(row), 16)]
        single.append([code for group in groups for code in (*(b % 16 for b in group), *(b // 16 for b in group))])
    pairs = [[low + 16 * high for low, high in zip(row[::2], row[1::2], strict=True)] for row in single]
    words = [[row[place : place + 4] for place in range(0, len(row), 4)] for row in pairs]
    padded = [[[word or [0] * 4 for word in lanes] for lanes in tile] for tile in tiled(words, rows, inputs // 8)]
    assert found.data.dtype == torch.uint8
    assert found.data.tolist() == padded
    scales, offsets = (tiled(values.tolist(), rows, inputs // 32) for values in (codes.scale, codes.offset))
    assert found.scale is not None
    assert found.scale.dtype == torch.float16
    assert found.scale.tolist() == [
        [[scale, offset] for scale, offset in zip(*both, strict=True)] for both in zip(scales, offsets, strict=True)
    ]
    assert (found.shape, found.nbytes) == ((rows, inputs), found.data.numel() + 2 * found.scale.numel())
    assert torch.equal(found.dequantise(), codes.dequantise())
    assert torch.equal(found.dequantise(torch.bfloat16), codes.dequantise(torch.bfloat16))


def test_other_dtypes_cannot_be_packed() -> None:
    with pytest.raises(TypeError) as refused:
        Packed.of(torch.ones(2, 2, dtype=torch.float16))
    assert str(refused.value) == ("a matrix of torch.float16 cannot be packed; expected float32, bfloat16 or Quantised")
