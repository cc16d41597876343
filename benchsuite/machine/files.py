"""A results folder: ``<time>-<name>/`` with the files of a run, each written whole, and a manifest of their making."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import platform
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchsuite.machine import provenance
from specdec.errors import SpecdecError

MANIFEST = "MANIFEST.json"

CELLS = "cells"
"""The folder of the cells in the folder of a comparison of strategies, which can be resumed."""

PART = ".part"
"""Ends the name of a file that is being written; one that stays was left by a process that was killed."""


def write_folder(
    root: Path, name: str, files: Mapping[str, str], card: Sequence[str], seed: int, complete: bool
) -> Path:
    """Write ``files`` (name to text) and ``MANIFEST.json`` into a new folder of ``root``; return the folder.

    ``complete`` goes into the manifest: an interrupted run also writes its results. Raises OSError if it cannot be
    written.
    """
    folder = new_folder(root, name)
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


def new_folder(root: Path, name: str) -> Path:
    """Make and return the folder ``root/<time>-<name>``, with a number behind it if there is one already, also if
    another process has just made it. Raises OSError."""
    stem, number = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}", 1
    while True:
        folder = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir():
                raise  # a file stands where the root is to be
            number += 1
        else:
            return folder


def runs(root: Path, holds: str = CELLS) -> list[Path]:
    """The folders of the runs in ``root`` with a folder ``holds``, the newest last; ``root`` alone if it is a run."""
    return [root] if (root / MANIFEST).exists() else sorted(one.parent for one in root.glob(f"*/{holds}"))


class FolderLock:
    """Keeps a folder for this process until ``release`` or its end, however it ends. SpecdecError if another has it.

    ``folder`` must exist; it gets a file ``.running``, which says which process has it and is removed by ``release``.

    Example: ``lock = FolderLock(folder)``
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".running"
        held = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        self._close = weakref.finalize(self, os.close, held)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.read(held, 200).decode() or "another process"
            self._close()
            raise SpecdecError(
                f"{who} is writing its results into {folder}: wait until it has ended, or name another folder"
            ) from None
        os.truncate(held, 0)
        os.write(held, f"process {os.getpid()} of {platform.node()}".encode())

    def release(self) -> None:
        """Let others have the folder."""
        if self._close.alive:
            self._file.unlink(missing_ok=True)
            self._close()


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
