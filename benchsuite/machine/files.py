"""A results folder: ``<time>-<name>/`` with the files of a run, each written whole, and a manifest of their making."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchsuite.machine import provenance

MANIFEST = "MANIFEST.json"

PART = ".part"
"""Ends the name of a file that is being written; one that stays was left by a process that was killed."""


def write_folder(
    root: Path, name: str, files: Mapping[str, str], card: Sequence[str], seed: int, complete: bool
) -> Path:
    """Write ``files`` (name to text) and ``MANIFEST.json`` into a new folder of ``root``; return the folder.

    ``complete`` goes into the manifest: an interrupted run also writes its results. Raises OSError if it cannot be
    written.
    """
    folder = stamped(root, name)
    folder.mkdir(parents=True)
    written = write_files(folder, files)
    manifest = {
        **provenance.origin(provenance.own_commit()),
        "complete": complete,
        "seed": seed,
        "machine": {"platform": platform.platform(), "python": platform.python_version(), "card": list(card)},
        "sha256": written,
    }
    write_file(folder / MANIFEST, strict_json(manifest).encode())
    return folder


def stamped(root: Path, name: str) -> Path:
    """Return ``root/<time>-<name>``, with a number behind it if there is such a folder already."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    taken = sum(1 for _ in root.glob(f"{stem}*"))
    return root / (f"{stem}-{taken + 1}" if taken else stem)


def write_files(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Write texts into a folder and return the SHA-256 of each file's bytes. Raises OSError.

    A file whose name ends in ``.gz`` is compressed, the same text always to the same bytes.
    """
    hashes = {}
    for name, text in files.items():
        content = gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode()
        write_file(folder / name, content)
        hashes[name] = hashlib.sha256(content).hexdigest()
    return hashes


def write_file(file: Path, content: bytes) -> None:
    """Write a file whole or not at all, whenever the process is killed or the disk is full. Raises OSError."""
    part = file.with_name(f".{file.name}.{os.getpid()}{PART}")
    try:
        with part.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except BaseException:  # an interrupt too
        part.unlink(missing_ok=True)
        raise


def strict_json(value: Any) -> str:
    """Return JSON that every parser reads; raises ValueError for NaN or infinity."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
