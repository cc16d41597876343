"""A copy of the checkout in which one file is changed at a time: the checkout itself is never touched."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOTS = ("", "kernels", "plugins")
"""Source roots of the checkout."""

OLDEST = 1_000_000_000
"""The first of the times that changed files are given, in seconds since 1970: bytecode is told apart by time and size,
so that two changes within a second would be one."""


def checkout_files(root: Path) -> list[str]:
    """Return the files of a checkout, tracked or new, without what git ignores. Raises ValueError without git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(
            f"got {done.stderr.strip()!r} from git in {root}, expected a checkout: mutants need its sources"
        )
    return sorted(name for name in done.stdout.split("\0") if name and (root / name).is_file())


def sources_digest(root: Path, files: list[str]) -> str:
    """Return what tells these sources from all others, in 16 characters."""
    made = hashlib.sha256()
    for name in files:
        content = (root / name).read_bytes()
        made.update(f"{name}\0{len(content)}\0".encode() + content)
    return made.hexdigest()[:16]


def sources(files: list[str]) -> list[str]:
    """Return the files that decide which lines a test reaches, other than the file of the test: no tests, no texts."""
    kinds = (".py", ".cpp", ".h", ".cu", ".toml")
    away = ("benchsuite/workshop/mutation/", "docs/")
    kept = [name for name in files if name.endswith(kinds) and not name.startswith(away)]
    return [name for name in kept if not (name.startswith("benchsuite/tests/") and Path(name).name.startswith("test_"))]


class Copied:
    """The files of a checkout in ``folder``, which is made.

    Example: ``with Copied(root, files, folder).changed("specdec/stops.py", text): ...``
    """

    def __init__(self, root: Path, files: list[str], folder: Path) -> None:
        self.folder = folder.resolve()
        self._times = iter(range(OLDEST, OLDEST + 10_000_000))
        for name in files:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)

    @property
    def roots(self) -> list[str]:
        """The source roots, as ``sys.path`` has them."""
        return [str(self.folder / name) if name else str(self.folder) for name in ROOTS]

    @contextmanager
    def changed(self, file: str, text: bytes) -> Iterator[None]:
        """Let ``file`` hold ``text`` until the end of the block."""
        path = self.folder / file
        kept = path.read_bytes()
        try:
            self._write(path, text)
            yield
        finally:
            self._write(path, kept)

    def _write(self, path: Path, text: bytes) -> None:
        path.write_bytes(text)
        time = next(self._times)
        os.utime(path, (time, time))
