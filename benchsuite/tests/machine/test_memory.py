"""The memory of a run on CUDA is that run's: what probes held before it, and checks between runs, is no part of it."""

from __future__ import annotations

import pytest
import torch

from benchsuite.machine import memory, roofline
from benchsuite.measure.arms import Arm
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.session import Bench
from benchsuite.tests.rig import SETTING
from specdec import devices


@pytest.mark.slow
def test_each_run_begins_its_own_peak_and_a_rows_peak_is_the_largest_of_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The allocator's own peak is a probe's, and grows by what the checks between the runs allocate."""
    calls: list[str] = []
    peaks = iter((5, 9, 7))

    def used(device: torch.device) -> dict[str, int]:
        calls.append("used")
        return {"rss": 1, "cuda_peak": next(peaks)}

    monkeypatch.setattr(memory, "begin", lambda device: calls.append("begin"))
    monkeypatch.setattr(memory, "used", used)
    monkeypatch.setattr(devices, "peak_memory", lambda device: 2**31)
    bench = Bench(MeasuringPlan(prompts=1))
    bench.prepare([Arm(SETTING), Arm(SETTING, draft="garbage", k=2)])
    row = bench.row(Arm(SETTING), lambda what: None)
    assert calls == ["begin", "used"] * 3
    assert row.info["peak_memory_bytes"] == 9


@pytest.mark.slow
def test_over_all_workloads_a_peak_is_the_largest_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter((5, 9, 7))  # of the first workload's runs; the second's are 1
    monkeypatch.setattr(memory, "used", lambda device: {"cuda_peak": next(peaks, 1)})
    bench = Bench(MeasuringPlan(prompts=1))
    settings = [SETTING.replaced(workload=name) for name in ("chat", "reasoning")]
    bench.prepare([arm for one in settings for arm in (Arm(one), Arm(one, draft="garbage", k=2))])
    each = [bench.row(Arm(one), lambda what: None).info["peak_memory_bytes"] for one in settings]
    assert each == [9, 1]
    assert {row.figures.peak_memory_bytes for row in bench.results().pooled} == {9}


def test_on_cuda_the_probe_of_the_bandwidth_leaves_nothing_in_torchs_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    ones = torch.ones
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cache"))
    monkeypatch.setattr(torch, "ones", lambda *size, dtype, device: ones(8, dtype=dtype))
    monkeypatch.setattr(roofline, "_median", lambda call, device: 1.0)
    assert roofline.read_bandwidth(torch.device("cuda")) == roofline.PROBE_BYTES["cuda"]
    assert emptied == ["cache"]


def test_memory_has_the_names_of_the_docs_and_a_peak_begins_anew_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = list[torch.device]()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forgotten.append)
    for bytes_, name in enumerate(("memory_allocated", "memory_reserved", "max_memory_allocated"), 1):
        monkeypatch.setattr(torch.cuda, name, lambda device, bytes_=bytes_: bytes_)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 4)
    cpu, cuda, mps = map(torch.device, ("cpu", "cuda:1", "mps"))
    found = {}
    for device in (cpu, cuda, mps):
        memory.begin(device)
        found[device] = memory.used(device)
        assert found[device].pop("rss") > 10**6
    assert forgotten == [cuda]
    assert found == {cpu: {}, cuda: {"cuda_allocated": 1, "cuda_reserved": 2, "cuda_peak": 3}, mps: {"mps_driver": 4}}
