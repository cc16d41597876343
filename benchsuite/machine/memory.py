"""Memory that this process holds: on the host, and on an accelerator."""

from __future__ import annotations

import psutil
import torch


def begin(device: torch.device) -> None:
    """Forget the peak of earlier work on the device."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def used(device: torch.device) -> dict[str, int]:
    """Return bytes: ``rss`` of the process; on CUDA ``cuda_allocated``, ``cuda_reserved`` and ``cuda_peak`` (allocated,
    since ``begin``); on MPS ``mps_driver``. What other arms of the process hold is part of it."""
    found = {"rss": int(psutil.Process().memory_info().rss)}
    if device.type == "cuda":
        found["cuda_allocated"] = torch.cuda.memory_allocated(device)
        found["cuda_reserved"] = torch.cuda.memory_reserved(device)
        found["cuda_peak"] = torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        found["mps_driver"] = torch.mps.driver_allocated_memory()
    return found
