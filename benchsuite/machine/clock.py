"""Timing of calls on a device."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from specdec.devices import Stopwatch, synchronize


def seconds(call: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Return the seconds of one call, the mean of ``times`` calls in a row; synchronises before and after."""
    synchronize(device)
    start = perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (perf_counter() - start) / times


def device_seconds(call: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Return the seconds of one call by the device's clock, the mean of ``times`` calls in a row.

    On CUDA events before the first call and after the last are read: the host's clock would add its own wait for the
    end. A call that is shorter than its launch still takes as long as that. Elsewhere this is ``seconds``.
    """
    watch = Stopwatch(device)
    synchronize(device)
    start = watch.mark()
    for _ in range(times):
        call()
    return watch.seconds(start, watch.mark()) / times
