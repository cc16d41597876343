"""Pins of test_triton_functions.py: tests that read what is private."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.tests.rig import INTERPRETS

pytestmark = INTERPRETS


triton = pytest.importorskip("triton")


tl = import_module("triton.language")


decoder = import_module("specdec_kernels.triton_decoder")


jit: Callable[..., Any] = triton.jit


_tanh, _silu = decoder._tanh, decoder._silu


@jit
def _tanh_of(x: Any, out: Any) -> None:
    lanes = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + lanes, _tanh(tl.load(x + lanes)))


@jit
def _silu_of(x: Any, out: Any) -> None:
    lanes = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + lanes, _silu(tl.load(x + lanes)))


def _found(kernel: Any, x: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(x, (0, -len(x) % 1024)).contiguous()
    out = torch.full_like(padded, 9.0)
    kernel[(len(padded) // 1024,)](padded, out)
    return out[: len(x)]


def _places(found: Tensor, wanted: Tensor) -> float:
    """The largest error, in halves of the last place of a number of [0.5, 1) and relative to the wanted one."""
    return float(((found.double() - wanted).abs() / wanted.abs()).max()) * 2**24


POSITIVE = torch.cat(
    [
        torch.linspace(1e-4, 0.35, 8192),
        torch.linspace(0.35, 12, 8192),
        torch.logspace(-30, 2, 2048),
        torch.tensor([0.3]),
    ],
)


SIGNED = torch.cat([POSITIVE, -POSITIVE])


def test_tanh_errs_in_the_last_places_alone_and_least_where_it_is_a_series() -> None:
    found, wanted = _found(_tanh_of, SIGNED), SIGNED.double().tanh()
    series = SIGNED.abs() < 0.3
    assert _places(found[series], wanted[series]) < 2.5
    assert _places(found[~series], wanted[~series]) < 5
    assert torch.equal(found[: len(POSITIVE)], -found[len(POSITIVE) :])
    assert _found(_tanh_of, torch.tensor([0.0, 50.0, -50.0, 1e30, -1e30])).tolist() == [0.0, 1.0, -1.0, 1.0, -1.0]


def test_silu_errs_in_the_last_places_alone_and_never_overflows() -> None:
    x = SIGNED[SIGNED > -80]
    found, wanted = _found(_silu_of, x), x.double() * x.double().sigmoid()
    assert _places(found, wanted) < 5
    huge = torch.tensor([0.0, 3e38, -3e38, 200.0, -200.0])
    assert _found(_silu_of, huge).tolist() == [0.0, huge[1].item(), 0.0, 200.0, 0.0]
