"""The machine's limits, measured by the suite itself: bytes read per second, operations per second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from benchsuite.machine import clock

PROBE_BYTES = {"cpu": 256 * 2**20, "mps": 2**30, "cuda": 2**31}
"""Bytes that the bandwidth probe reads: much larger than any cache, and enough to time."""

SIDE = {"cpu": 1024, "mps": 4096, "cuda": 8192}
"""Rows and columns of the matrices that the arithmetic probe multiplies."""


@dataclass(frozen=True)
class Peak:
    """Bytes per second of one read of a large tensor, and floating-point operations per second."""

    bandwidth: float
    arithmetic: float

    @staticmethod
    def of(device: torch.device, dtype: torch.dtype) -> Peak:
        """Measure both on ``device``; ``dtype`` is that of the matrix product."""
        side = SIDE[device.type]
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        return Peak(read_bandwidth(device), 2 * side**3 / _median(lambda: a @ b, device))

    def fraction(self, moved: int, operations: int, took: float) -> float:
        """Return the larger fraction of the two limits that was reached. Above 1: the bytes came from a cache, or
        the limits were measured while others ran."""
        return max(moved / took / self.bandwidth, operations / took / self.arithmetic)


def read_bandwidth(device: torch.device) -> float:
    """Return the bytes per second of reading a large tensor once: the median of seven sums."""
    size = PROBE_BYTES[device.type]
    data = torch.ones(size // 4, dtype=torch.float32, device=device)
    took = _median(data.sum, device)
    del data
    if device.type == "cuda":
        torch.cuda.empty_cache()  # or every run after it would seem to reserve it
    return size / took


def _median(call: Callable[[], object], device: torch.device) -> float:
    return median([clock.device_seconds(call, device) for _ in range(8)][1:])
