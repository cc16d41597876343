"""The folder for converted models and compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``SPECDEC_CACHE`` if set, else ``specdec-bench`` in the user's cache folder."""
    named = os.environ.get("SPECDEC_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else base / "specdec-bench"
