"""Limits of the machine: bytes and operations over the seconds of a clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchsuite.machine import clock, roofline
from benchsuite.machine.roofline import Peak, read_bandwidth

CPU = torch.device("cpu")


def test_the_mean_of_calls_in_a_row_is_between_the_end_of_earlier_work_and_that_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10.0]
    for name in ("benchsuite.machine.clock.perf_counter", "specdec.devices.time.perf_counter"):
        monkeypatch.setattr(name, lambda: now[0])

    def call() -> None:
        now[0] += 3.0

    for measure in (clock.seconds, clock.device_seconds):
        began = now[0]
        assert measure(call, CPU, times=4) == 3.0
        assert now[0] - began == 12.0
        assert measure(call, CPU) == 3.0
        assert now[0] - began == 15.0


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What timed probes returned. The first takes 100 s, the others 8, 1, 2, 16, 4, 32 and 64 s: the median is 8."""
    found: list[Tensor] = []

    def device_seconds(call: Callable[[], Tensor], device: torch.device) -> float:
        found.append(call())
        return (100.0, 8.0, 1.0, 2.0, 16.0, 4.0, 32.0, 64.0)[(len(found) - 1) % 8]

    monkeypatch.setattr(clock, "device_seconds", device_seconds)
    monkeypatch.setitem(roofline.PROBE_BYTES, "cpu", 4096)
    monkeypatch.setitem(roofline.SIDE, "cpu", 6)
    return found


def test_the_bandwidth_is_the_bytes_that_are_read_over_the_median_of_the_runs_after_the_first(
    probes: list[Tensor],
) -> None:
    assert read_bandwidth(CPU) == 4096 / 8.0
    assert [float(one) for one in probes] == [4096 / 4] * 8, "every number is read once, of four bytes each"


def test_the_arithmetic_is_the_operations_of_a_product_over_its_seconds(probes: list[Tensor]) -> None:
    found = Peak.of(CPU, torch.bfloat16)
    assert found == Peak(bandwidth=4096 / 8.0, arithmetic=2 * 6**3 / 8.0)
    products = [one for one in probes if one.dim()]
    assert len(products) == 8
    assert {(tuple(one.shape), one.dtype) for one in products} == {((6, 6), torch.bfloat16)}


def test_probes_are_larger_where_the_device_is_faster_and_fill_no_memory() -> None:
    """Powers of two, for which kernels are tuned; a GPU reads 2 GiB, and a product of the host takes at least a
    millisecond at 2 TFLOP/s. The suite's own tests let the host read less than a run does."""
    sizes, sides = [*roofline.PROBE_BYTES.values()], [*roofline.SIDE.values()]
    assert [*roofline.PROBE_BYTES] == [*roofline.SIDE] == ["cpu", "mps", "cuda"]
    for values in (sizes, sides):
        assert values == sorted({*values})
        assert all(value & (value - 1) == 0 for value in values)
    assert 2 * sides[0] ** 3 > 2e12 * 1e-3
    assert sizes[-1] == 2 * 1024**3


def test_a_fraction_is_that_of_the_limit_which_is_nearer() -> None:
    peak = Peak(bandwidth=100.0, arithmetic=1000.0)
    assert peak.fraction(moved=50, operations=100, took=1.0) == 0.5
    assert peak.fraction(moved=50, operations=900, took=1.0) == 0.9
    assert peak.fraction(moved=50, operations=100, took=0.25) == 2.0


def test_calls_are_timed_from_the_end_of_earlier_work_to_that_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("waits"))
    clock.seconds(lambda: said.append("call"), torch.device("cuda"), times=2)
    assert said == ["waits", "call", "call", "waits"]
