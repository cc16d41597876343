"""Compiles kernels at first use and caches one shared library for each hash of source, flags and compiler.

A library is written under a temporary name and then renamed, so the cache never holds a part of a library, and
processes that compile at the same time do not conflict. No header of torch is used: the kernels take pointers.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from specdec.cache import cache_root

SOURCES = Path(__file__).parent / "csrc"


class BuildError(Exception):
    """Compiling failed; the message is one line and names the command's log."""


def forbidden() -> str | None:
    """The reason why nothing may be compiled, SPECDEC_FORCE_PY, or None."""
    value = os.environ.get("SPECDEC_FORCE_PY", "0")
    return None if value in ("", "0") else f"SPECDEC_FORCE_PY={value} forbids compiled kernels; unset it to have them"


@cache
def library(name: str, command: tuple[str, ...], suffix: str) -> ctypes.CDLL:
    """Compile ``csrc/*<suffix>`` with ``command`` unless the cache has it, and load it.

    ``command`` is the compiler with its flags, without inputs and output; each file is compiled separately,
    as many at once as there are processors. Raises BuildError.
    """
    files = sorted(SOURCES.glob(f"*{suffix}"))
    folder = cache_root() / "kernels"
    path = folder / f"{name}-{_digest(command, files)}.so"
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _compile(name, command, files, path)
        except OSError as error:
            raise BuildError(f"the kernels cannot be built in {folder}: {error}; set SPECDEC_CACHE") from error
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the compiled kernels cannot be loaded: {error}; delete {path}") from error


def _digest(command: Sequence[str], files: Sequence[Path]) -> str:
    version = _run([command[0], "--version"]).stdout
    digest = hashlib.sha256(repr((*command, version)).encode())
    for path in (*files, *sorted(SOURCES.glob("*.h"))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(name: str, command: Sequence[str], files: Sequence[Path], path: Path) -> None:
    print(f"specdec-bench: compiling the {name} kernels with {command[0]}, once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        objects = [str(Path(work) / f"{source.name}.o") for source in files]
        calls = [[*command, "-c", str(source), "-o", out] for source, out in zip(files, objects, strict=True)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(_run, calls))
        whole = str(Path(work) / path.name)
        if not any(result.returncode for result in results):
            results.append(_run([*command, "-shared", *objects, "-o", whole]))
        broken = [result for result in results if result.returncode]
        if broken:
            log = path.with_suffix(".log")
            log.write_text("\n".join(f"{' '.join(r.args)}\n{r.stderr}" for r in broken))
            lines = [line for line in broken[0].stderr.splitlines() if "error" in line or "fatal" in line] or [
                "no message"
            ]
            raise BuildError(f"compiling the {name} kernels failed: {lines[0]} (all of it: {log})")
        Path(whole).replace(path)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
