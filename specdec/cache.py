"""The folder where converted models and compiled kernels are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``SPECDEC_CACHE``, else ``specdec-bench`` in the user's cache folder."""
    named = os.environ.get("SPECDEC_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else base / "specdec-bench"
