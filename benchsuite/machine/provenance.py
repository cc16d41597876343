"""Provenance of figures: commit, command, time, versions, processor."""

from __future__ import annotations

import hashlib
import os
import platform
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


def device_name(device: torch.device) -> str:
    """Return the name of the hardware of ``device``: the GPU's on CUDA, else the processor's."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def own_commit() -> str | None:
    """Return the commit of this project's checkout; None for an installed wheel or without git."""
    root = Path(__file__).parents[2]
    return commit(root) if (root / ".git").exists() else None


def own_changes() -> str | None:
    """Return a digest of what differs from ``own_commit`` in tracked files; None if nothing does."""
    found = git(Path(__file__).parents[2], "diff", "HEAD") if own_commit() else None
    return hashlib.sha256(found.encode()).hexdigest()[:12] if found else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
