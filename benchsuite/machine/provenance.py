"""Where figures come from: commit, command, time, versions, processor."""

from __future__ import annotations

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


def origin(commit: str | None) -> dict[str, Any]:
    """What was run, when, on which commit and on which versions."""
    return {
        "command": ["pytest", *sys.argv[1:]],
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit,
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }


def commit(root: Path) -> str | None:
    """The commit checked out there, with ``+`` behind it where tracked files differ; None outside of a checkout."""
    head = git(root, "rev-parse", "HEAD")
    return head and head + ("+" if git(root, "status", "--porcelain", "--untracked-files=no") else "")


def git(folder: Path, *words: str) -> str | None:
    """What ``git <words>`` prints there, without blanks around it; None where it fails, or there is no git.

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
    """This process's, without what names the index of a git hook that it may run in."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


@cache
def processor() -> str:
    """The processor's name."""
    from cpuinfo import get_cpu_info

    return str(get_cpu_info().get("brand_raw") or platform.processor() or platform.machine())


def device_name(device: torch.device) -> str:
    """The name of what computes on ``device``: the GPU's own on CUDA, else the processor's."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def own_commit() -> str | None:
    """The commit of this project's checkout; None for an installed wheel or where there is no git."""
    root = Path(__file__).parents[2]
    return commit(root) if (root / ".git").exists() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
