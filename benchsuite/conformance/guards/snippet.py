"""C++ of a few lines, which stands in for parts of CUDA: compiled at first use, kept in the cache."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specdec.cache import cache_root
from specdec_kernels.build import BuildError
from specdec_kernels.cpu import cpu_compiler


def compiled_snippet(what: str, text: str, place: str, flags: Sequence[str], made_for: str = "") -> Path:
    """Return the shared library of a C++ text, compiled if the cache lacks it.

    ``what`` names it in errors. ``place`` is its path in the cache, with {} for a hash of the text and of ``made_for``.
    Raises BuildError without a C++ compiler, or with one that fails.

    Example: ``compiled_snippet("a stub", "int one() { return 1; }", "stub-{}.so", ["-std=c++17"])``
    """
    compiler = cpu_compiler()
    if compiler is None:
        raise BuildError(f"no C++ compiler for {what}; install one or set CXX")
    built = cache_root() / "kernels" / place.format(hashlib.sha256(f"{text}{made_for}".encode()).hexdigest()[:16])
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as work:
            source, made = Path(work) / "snippet.cpp", Path(work) / built.name
            source.write_text(text)
            command = [compiler, "-shared", "-fPIC", str(source), *flags, "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError(f"compiling {what} failed: {done.stderr.strip()}")
            made.replace(built)
    return built
