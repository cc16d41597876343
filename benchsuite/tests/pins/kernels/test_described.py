"""Pins of test_described.py: tests that read what is private."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdec.decoder import DecoderWeights
from specdec.packed import Packed
from specdec.quantised import Quantised
from specdec_kernels.cpu import Described, Matrix

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


@pytest.mark.parametrize("biased", [False, True])
def test_all_that_a_description_points_to_is_kept_in_order(biased: bool) -> None:
    """A float32 copy of a bias has no other owner: without it C++ would read freed memory."""
    weights = _weights(8, torch.bfloat16, biased)
    told = Described(weights, torch.bfloat16)
    wanted = [weights.norm_before.data_ptr(), weights.norm_after.data_ptr()]
    for name in SHAPES:
        matrix: Matrix = getattr(told.layer, name)
        wanted += [matrix.weight, *([matrix.bias] if biased else [])]
    assert [tensor.data_ptr() for tensor in told._kept] == wanted
