"""How long a call takes on a device."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from specdec.devices import synchronize


def seconds(call: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Seconds of one call, the mean of ``times`` in a row; the device is waited for before and after."""
    synchronize(device)
    start = perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (perf_counter() - start) / times
