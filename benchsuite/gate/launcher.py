"""Processes that measure: this checkout, and a worktree of the base, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchsuite.gate.record import GateError, Record

LONGEST = 3600
"""Seconds that a launch may take."""


@dataclass
class Launcher:
    """Launches ``pytest`` with ``arguments`` from ``folder``, each time in a process of its own.

    ``path`` are the folders of a checkout that go to the front of Python's path in a worktree. GateError, with the
    end of what it printed, for a launch that fails; the tests of a launch must pass.

    Example: ``Launcher(["benchsuite/test_speculation.py"], Path.cwd(), pairs=10).measure()``
    """

    arguments: Sequence[str]
    folder: Path
    pairs: int
    path: Sequence[str] = (".",)

    def measure(self, checkout: Path | None = None, plant: str = "") -> Record:
        """One launch, of this checkout or of another one of the same repository."""
        root = self.root()
        folder = (checkout / self.folder.resolve().relative_to(root)) if checkout else self.folder
        with tempfile.TemporaryDirectory(prefix="specdec-gate-") as temporary:
            file = Path(temporary) / "launch.json"
            given = ["--gate=off", f"--gate-save={file}", f"--gate-pairs={self.pairs}", f"--gate-plant={plant}"]
            environment = dict(os.environ)
            if checkout:
                ahead = [str((checkout / part).resolve()) for part in self.path]
                environment["PYTHONPATH"] = os.pathsep.join([*ahead, *filter(None, [os.environ.get("PYTHONPATH")])])
                environment["SPECDEC_GATE_FOREIGN"] = str(root)
            command = [sys.executable, "-m", "pytest", *self.arguments, "-q", "-p", "no:cacheprovider", *given]
            try:
                done = subprocess.run(
                    command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
                )
            except subprocess.TimeoutExpired:
                raise GateError(f"a launch took longer than {LONGEST} s: {' '.join(command)}") from None
            if done.returncode or not file.exists():
                end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
                which = f"of the base ({checkout})" if checkout else "of this checkout"
                raise GateError(f"a launch {which} ended with {done.returncode}; its last lines:\n{end}")
            return Record.load(file)

    def root(self) -> Path:
        """The top of the checkout that ``folder`` lies in."""
        shown = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"], cwd=self.folder, capture_output=True, text=True, check=False
        )
        return Path(shown.stdout.strip() if shown.returncode == 0 else self.folder).resolve()


@contextmanager
def worktree(folder: Path, commit: str) -> Iterator[Path]:
    """A checkout of ``commit`` beside the user's, gone afterwards. GateError if git cannot make one."""
    with tempfile.TemporaryDirectory(prefix="specdec-gate-base-") as temporary:
        checkout = Path(temporary) / "base"
        _git(folder, "worktree", "add", "--detach", str(checkout), commit)
        try:
            yield checkout
        finally:
            _git(folder, "worktree", "remove", "--force", str(checkout))


def _git(folder: Path, *words: str) -> None:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GateError(f"git {' '.join(words)} failed: {done.stderr.strip()}")


def refuse_foreign_modules() -> None:
    """GateError if this launch of a base has imported code of the checkout that it is to be compared with."""
    foreign = os.environ.get("SPECDEC_GATE_FOREIGN")
    if not foreign:
        return
    root, own = Path(foreign), Path(sys.prefix)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(root) and not Path(file).is_relative_to(own):
            raise GateError(
                f"the base would be measured with code of the head: module {name!r} comes from {file}; list the "
                "folders that hold your packages in --gate-path (or the ini key gate_path)"
            )
