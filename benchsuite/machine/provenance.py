"""Provenance of figures: commit, command, time, versions, processor."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = ("specdec-bench", "torch", "transformers", "tokenizers", "numpy", "pytest", "pytest-benchmark")

COMMIT = "SPECDEC_COMMIT"
"""The variable that names the commit of a checkout that was copied without its git folder."""

VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")
"""Instruction sets that change how products and random numbers are rounded."""


def origin(commit: str | None) -> dict[str, Any]:
    """Return the command, the time, the commit and the versions of this run."""
    return {
        "command": ["pytest", *sys.argv[1:]],
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit,
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }


def commit(root: Path) -> str | None:
    """Return the commit checked out in ``root``, plus ``+`` if tracked files differ; None outside a checkout."""
    head = git(root, "rev-parse", "HEAD")
    return head and head + ("+" if git(root, "status", "--porcelain", "--untracked-files=no") else "")


def git(folder: Path, *words: str) -> str | None:
    """Return the output of ``git <words>`` in ``folder``, stripped; None if it fails or git is missing.

    Example: ``git(Path.cwd(), "rev-parse", "HEAD")``
    """
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env=environment(), capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def environment() -> dict[str, str]:
    """Return this process's environment without ``GIT_*``, which inside a git hook names the hook's index."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def processor() -> str:
    """Return the processor's name."""
    return str(_cpu().get("brand_raw") or platform.processor() or platform.machine())


def vectors() -> list[str]:
    """Return the instruction sets among ``VECTORS`` that the processor has: two of one name may differ in them."""
    return [name for name in VECTORS if name in _cpu().get("flags", [])]


@cache
def _cpu() -> dict[str, Any]:
    """What cpuinfo says; to ask it starts processes."""
    from cpuinfo import get_cpu_info

    return dict(get_cpu_info())


def allowed_cores() -> int:
    """The processors that this process may use: those of its affinity, and no more than its control group's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affinity, _quota(Path("/sys/fs/cgroup")) or affinity)


def _quota(root: Path) -> int | None:
    """The quota of this process's control group in whole processors, rounded up; None without one."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").partition("0::/")[2].partition("\n")[0]
        most, period = (root / own / "cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if most == "max" else max(1, -(-int(most) // int(period)))


def cores() -> int | str:
    """The machine's cores as figures are filed under them; where this process may not use all, how many it may.

    Times of one allowed core are those of another machine than the times of all.

    Example: 8, or ``"2 of 16 processors"``
    """
    import psutil

    allowed, every = allowed_cores(), os.cpu_count() or 1
    return f"{allowed} of {every} processors" if allowed < every else int(psutil.cpu_count(logical=False) or every)


def cores_line() -> str:
    """The cores in a line of a card. Example: ``16 cores``, or ``2 of 16 cores``."""
    allowed, every = allowed_cores(), os.cpu_count() or 1
    return f"{allowed} of {every} cores" if allowed < every else f"{every} cores"


def device_name(device: torch.device) -> str:
    """Return the name of the hardware of ``device``: the GPU's on CUDA, else the processor's."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
"""What nvidia-smi is asked of a GPU; clocks are in MHz, the limit in watts."""


def accelerators() -> list[dict[str, Any]]:
    """Return ``accelerator`` of each GPU that torch sees; empty without one."""
    import torch

    return [accelerator(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def accelerator(index: int) -> dict[str, Any]:
    """Return what is known of a GPU, and of the CUDA around it.

    ``name``, ``capability``, ``bytes``, ``cuda`` (torch's), ``triton``, ``nvcc``, and what nvidia-smi says of
    ``ASKED``. What is not installed, or does not answer, is None: no figure needs it.
    """
    import torch

    made = torch.cuda.get_device_properties(index)
    # By its uuid, because CUDA_VISIBLE_DEVICES numbers GPUs anew.
    asked = (f"--id=GPU-{made.uuid}", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits")
    values: list[str | None] = [part.strip() for part in (_said("nvidia-smi", *asked) or "").split(",")]
    if len(values) != len(ASKED):
        values = [None] * len(ASKED)
    return {
        "name": made.name,
        "capability": f"{made.major}.{made.minor}",
        "bytes": made.total_memory,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "nvcc": _nvcc_release(),
        **dict(zip(ASKED, values, strict=True)),
    }


def accelerator_line(found: dict[str, Any]) -> str:
    """Return the card's line on what ``accelerator`` returned."""
    known = {name: "unknown" if value is None else value for name, value in found.items()}
    return (
        f"{found['name']}: {found['bytes'] / 2**30:.0f} GiB, compute capability {found['capability']}, driver "
        f"{known['driver_version']}, CUDA {known['cuda']}, triton {known['triton']}, nvcc {known['nvcc']}, clocks "
        f"{known['clocks.sm']} of {known['clocks.max.sm']} MHz, memory {known['clocks.mem']} MHz, "
        f"limit {known['power.limit']} W"
    )


@cache
def _nvcc_release() -> str | None:
    from specdec_kernels.cuda import cuda_compiler

    compiler = cuda_compiler()
    found = re.search(r"release ([\d.]+)", (_said(compiler, "--version") if compiler else None) or "")
    return found and found[1]


def _said(*command: str) -> str | None:
    """What a command prints; None if it is not here, fails or takes longer than ten seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def own_commit() -> str | None:
    """Return the commit of this project's checkout; without git, that of the variable ``SPECDEC_COMMIT``, else None."""
    root = Path(__file__).parents[2]
    return commit(root) if (root / ".git").exists() else os.environ.get(COMMIT) or None


def own_changes() -> str | None:
    """Return a digest of what differs from ``own_commit`` in tracked files; None if nothing does."""
    found = git(Path(__file__).parents[2], "diff", "HEAD") if own_commit() else None
    return hashlib.sha256(found.encode()).hexdigest()[:12] if found else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
