"""The kernel benchmark, ``pytest -m kernels [--specdec-target …] [--specdec-results …]``: no time is asserted."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from benchsuite.benches.kernels.caches import LENGTHS, CacheCost
from benchsuite.benches.kernels.depths import CONTEXTS, WINDOWS
from benchsuite.benches.kernels.shapes import WIDTHS
from benchsuite.benches.kernels.timing import KernelBench
from specdec.interfaces import OPS

pytestmark = [pytest.mark.kernels, pytest.mark.slow]


@pytest.mark.parametrize("op", OPS)
def test_kernel(op: str, specdec_kernels: KernelBench) -> None:
    timings = specdec_kernels.time(op)
    assert {timing.op for timing in timings} == {op}
    assert all(timing.seconds > 0 and timing.moved > 0 for timing in timings)
    shapes = {(timing.kind, timing.shape) for timing in timings}
    assert {(t.kind, t.shape) for t in timings if t.backend == "reference"} == shapes, "a shape has no reference"


def test_the_models_cost_by_width(specdec_kernels: KernelBench) -> None:
    curves = specdec_kernels.model_curves()
    assert {tuple(curve.seconds) for curve in curves} == {WIDTHS}
    assert {"model, transformers", f"model, {specdec_kernels.target.ops.name}"} <= {curve.what for curve in curves}


def test_appending_and_rolling_back_move_the_window_alone(specdec_kernels: KernelBench) -> None:
    """Bytes and allocations are compared exactly; times are only shown in the table."""
    costs = specdec_kernels.caches()
    ours = [cost for cost in costs if cost.cache == "arena"]
    theirs = [cost for cost in costs if cost.cache == "transformers dynamic"]
    assert [cost.length for cost in ours] == list(LENGTHS)
    assert len({(cost.moved, cost.allocations) for cost in ours}) == 1, "the arena's cost grows with the context"
    assert _grows(theirs), "the meter sees no growth where there is one"


@pytest.mark.parametrize("context", CONTEXTS)
def test_attention_at_depth(context: int, specdec_kernels: KernelBench) -> None:
    costs = specdec_kernels.depth(context)
    assert [(cost.width, cost.what) for cost in costs] == [*product(WINDOWS, ("attention", "step"))]
    assert all(cost.seconds > 0 and cost.gain.ratio > 0 for cost in costs)


def _grows(costs: list[CacheCost]) -> bool:
    return all(b.moved > a.moved for a, b in pairwise(costs))
