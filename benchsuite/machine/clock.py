"""Timing of calls on a device."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from specdec.devices import synchronize


def seconds(call: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Return the seconds of one call, the mean of ``times`` calls in a row; synchronises before and after."""
    synchronize(device)
    start = perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (perf_counter() - start) / times
