"""Kernels are timed by the device's clock: on CUDA by events around their calls."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from benchsuite.benches.kernels import timing
from benchsuite.machine import clock


class FakeEvent:
    """An event of a device on which six milliseconds pass between any two."""

    said: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing, "an event that keeps no time"

    def record(self) -> None:
        """Note it."""
        self.said.append("event")

    def synchronize(self) -> None:
        """Note it."""
        self.said.append("wait")

    def elapsed_time(self, other: FakeEvent) -> float:
        """Milliseconds."""
        return 6.0


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a fake CUDA device was asked for."""
    said: list[str] = []
    monkeypatch.setattr(FakeEvent, "said", said)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("synchronised"))
    return said


def test_on_cuda_calls_are_timed_by_events_around_them(log: list[str]) -> None:
    took = clock.device_seconds(lambda: log.append("call"), torch.device("cuda"), times=3)
    assert log == ["synchronised", "event", "call", "call", "call", "event", "wait"]
    assert took == 0.002


def test_samples_of_kernels_are_taken_by_that_clock(log: list[str]) -> None:
    bench = object.__new__(timing.KernelBench)
    bench.target, bench._order = SimpleNamespace(device=torch.device("cuda")), Random(0)  # type: ignore[assignment]
    bench.rounds, bench.settle_s = 3, 0.0
    samples = bench._samples({"one": lambda: None, "other": lambda: None})
    assert samples == {name: [0.006] * 3 for name in ("one", "other")}
