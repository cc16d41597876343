"""Devices: the choice of device and dtype, free memory, and time measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor

from specdec.amounts import memory_text
from specdec.choices import BITS, DEVICES, FLOATS, check_device, check_dtype
from specdec.errors import SpecdecError

RECORDED = ("cuda",)
"""The kinds of devices on which the parts of steps are recorded and replayed (``specdec.runtime``)."""

DTYPES = {name: getattr(torch, name) for name in FLOATS}


def why_absent(kind: str) -> str | None:
    """A sentence saying why a device kind cannot be used here, or None when it can."""
    if kind == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"torch {torch.__version__} sees no NVIDIA GPU" if built else f"torch {torch.__version__} has no CUDA"
        return f"no CUDA device: {reason}"
    if kind == "mps" and not torch.backends.mps.is_available():
        return f"no MPS device: torch {torch.__version__} sees no Apple GPU"
    return None


def kind_of(name: str) -> str:
    """The kind of device that a name stands for: ``auto`` is the first of CUDA, MPS, CPU that exists here.

    Any other name is not checked: ``pick_device`` does that. Example: ``kind_of("cuda:1")`` is ``cuda``.
    """
    return next(kind for kind in DEVICES if why_absent(kind) is None) if name == "auto" else name.partition(":")[0]


def records(kind: str) -> bool:
    """Whether the parts of steps are recorded on a kind of device. Example: ``records("cpu")`` is False."""
    return kind in RECORDED


def pick_device(name: str = "auto") -> torch.device:
    """``auto`` is the first of CUDA, MPS, CPU that exists; SpecdecError for a named device that cannot be used."""
    kind = kind_of(name)
    if name == "auto":
        return torch.device(kind)
    check_device(name)
    reason = why_absent(kind)
    if reason:
        able = ", ".join(k for k in DEVICES if why_absent(k) is None)
        raise SpecdecError(f"the device {name!r} is not here: {reason}. Devices here: {able}")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except RuntimeError as error:
        raise SpecdecError(
            f"the device {name!r} cannot be used: {error}; leave its number out, or name another"
        ) from error
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # events and allocations without a device use the current one
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is float32 on a CPU, bfloat16 on an accelerator that has it, else float16.

    A named dtype is tested with one small product on the device; if it fails, SpecdecError lists the dtypes that
    work. ``int8`` and ``int4`` are dtypes of the weights only; the activations then have the dtype of ``auto``.
    """
    check_dtype(name)
    if name == "auto" or name in BITS:
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if _multiplies(torch.bfloat16, device) else torch.float16
    dtype: torch.dtype = DTYPES[name]
    if not _multiplies(dtype, device):
        able = ", ".join(n for n, d in DTYPES.items() if _multiplies(d, device))
        raise SpecdecError(f"the device {device} cannot multiply in {name}; dtypes it can: {able}")
    return dtype


def _multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    try:
        one = torch.ones(2, 2, dtype=dtype, device=device)
        return bool((one @ one)[0, 0].item() == 2)
    except (RuntimeError, TypeError):
        return False


def is_half(dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype have 16 bits, so that logits in it are coarse.

    Example: ``is_half(torch.bfloat16)``
    """
    return dtype in (torch.bfloat16, torch.float16)


def available_bytes(device: torch.device) -> int:
    """Bytes of memory that are free on a device; what torch's allocator holds and no tensor uses is free too."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return int(psutil.virtual_memory().available)


def require_memory(needed: int, device: torch.device, what: str) -> None:
    """Raise SpecdecError, with both numbers, if ``needed`` bytes do not fit; called before anything is loaded."""
    room = available_bytes(device)
    if needed > room:
        raise SpecdecError(
            f"{what} needs about {memory_text(needed)} and {device} has {memory_text(room)} free; "
            "choose a smaller model, a smaller batch, fewer tokens or another dtype"
        )


def peak_memory(device: torch.device) -> int:
    """Peak bytes: of the process on a CPU, of torch's allocator on CUDA, of the driver on MPS."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


WORKSPACES = (":4096:8", ":16:8")
"""The values of CUBLAS_WORKSPACE_CONFIG with which cuBLAS repeats itself."""


def be_deterministic(seed: int) -> str:
    """Seed torch, allow deterministic algorithms only and no TF32; nothing else switches this on.

    Returns a line that says so. SpecdecError if CUBLAS_WORKSPACE_CONFIG is set to a value with which cuBLAS does not
    repeat itself. It is read when cuBLAS first runs: to be called before anything runs on a GPU.
    """
    workspace = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES[0])
    if workspace not in WORKSPACES:
        raise SpecdecError(
            f"CUBLAS_WORKSPACE_CONFIG is {workspace!r}; --specdec-deterministic expects {' or '.join(WORKSPACES)}: "
            "unset it, or leave the option out"
        )
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    return f"deterministic: seed {seed}, deterministic algorithms only, no TF32, CUBLAS_WORKSPACE_CONFIG={workspace}"


def uploaded(device: torch.device, *arrays: npt.NDArray[np.int64] | npt.NDArray[np.float32]) -> tuple[Tensor, ...]:
    """Return int64 and float32 arrays of the host as tensors on a device, in one copy for which the host does not wait.

    On CUDA the copy is from pinned memory, which torch keeps until the copy has happened. On a CPU the tensors share
    the arrays' memory.

    Example: ``tokens, width = uploaded(device, np.array([[5, 6]]), np.array([2]))``
    """
    if device.type == "cpu":
        return tuple(torch.from_numpy(array) for array in arrays)
    whole = np.concatenate([(a.view(np.int32) if a.dtype == np.float32 else a).ravel() for a in arrays], dtype=np.int64)
    flat = torch.from_numpy(whole)
    flat = (flat.pin_memory() if device.type == "cuda" else flat).to(device, non_blocking=True)
    parts = zip(flat.split([array.size for array in arrays]), arrays, strict=True)
    return tuple(
        (part.to(torch.int32).view(torch.float32) if array.dtype == np.float32 else part).view(array.shape)
        for part, array in parts
    )


class HostCopy:
    """Copies int64 tensors of a device to the host, waiting for nothing that is queued after the copy.

    On CUDA they come into one pinned buffer, without a wait of the copy itself, and the host waits for an event behind
    it: ``Tensor.cpu`` would copy through pageable memory, and synchronise the stream. A copy that is started early lets
    the device go on with other work while the host waits for the numbers and uses them.

    Example: ``HostCopy(packed.device).of(packed).numpy()``
    """

    FEWEST = 4096
    """Numbers that the first buffer holds: pinned memory is slow to allocate."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        self._started: tuple[Tensor, Tensor] | None = None  # a tensor and the part of the buffer that it goes to

    def start(self, tensor: Tensor) -> None:
        """Queue the copy of ``tensor`` for the next call of ``of``; where no copy can be queued, do nothing."""
        if self._device.type != "cuda":
            return
        if self._copied is None:
            self._copied = torch.cuda.Event()
        if self._buffer is None or self._buffer.numel() < tensor.numel():
            self._buffer = torch.empty(max(2 * tensor.numel(), self.FEWEST), dtype=torch.int64).pin_memory()
        landed = self._buffer[: tensor.numel()].view(tensor.shape)
        landed.copy_(tensor, non_blocking=True)
        self._copied.record()
        self._started = tensor, landed

    def of(self, tensor: Tensor) -> Tensor:
        """Return the numbers of ``tensor`` as a tensor on the CPU; on CUDA the next copy overwrites it."""
        if self._device.type != "cuda":
            return tensor.cpu()
        if self._started is None or self._started[0] is not tensor:
            self.start(tensor)
        assert self._started
        assert self._copied
        landed, self._started = self._started[1], None
        self._copied.synchronize()
        return landed


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@dataclass
class Stopwatch:
    """Time marks of a device, converted to seconds when the run is over.

    On CUDA a mark is an event in the stream and the host does not wait; elsewhere it is a time of the host's clock
    (MPS is synchronised first, otherwise the marks would measure the queueing).
    """

    device: torch.device
    marks: list[float | torch.cuda.Event] = field(default_factory=list)

    def mark(self) -> int:
        """Record the current time; returns the mark's number."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            if self.device.type == "mps":
                torch.mps.synchronize()
            self.marks.append(time.perf_counter())
        return len(self.marks) - 1

    def seconds(self, start: int, end: int) -> float:
        """Seconds between two marks; waits for the device."""
        a, b = self.marks[start], self.marks[end]
        if isinstance(a, float) and isinstance(b, float):
            return b - a
        assert isinstance(a, torch.cuda.Event)
        assert isinstance(b, torch.cuda.Event)
        b.synchronize()
        return float(a.elapsed_time(b)) / 1e3

    def times(self) -> list[float]:
        """Seconds from the first mark to each; waits for the device."""
        return [self.seconds(0, mark) for mark in range(len(self.marks))]

    @staticmethod
    def recorded(times: Sequence[float]) -> Stopwatch:
        """Return a stopwatch whose marks were made elsewhere, at these times in seconds."""
        return Stopwatch(torch.device("cpu"), list(times))
