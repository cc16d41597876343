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
from benchsuite.machine.provenance import environment, git

LONGEST = 3600
"""Seconds that a launch may take."""

OTHER, OWN = "SPECDEC_GATE_OTHER", "SPECDEC_GATE_OWN"
"""Where a launch finds the checkout that it must not import from, and the folders that its own code lies in."""


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
        top = checkout or root
        folder = top / self.folder.resolve().relative_to(root)
        if not folder.is_dir():
            raise GateError(f"the base has no folder {folder.relative_to(top)}: start pytest where both sides have one")
        with tempfile.TemporaryDirectory(prefix="specdec-gate-") as temporary:
            file = Path(temporary) / "launch.json"
            # -o addopts: those of the run are among the arguments, without what a launch must not repeat.
            given = ["-o", "addopts=", "--gate=off", f"--gate-save={file}", f"--gate-pairs={self.pairs}"]
            given += ["--gate-launches=1", f"--gate-plant={plant}"]
            command = [sys.executable, "-m", "pytest", *self.arguments, "-q", "-p", "no:cacheprovider", *given]
            variables = environment()
            variables.pop("PYTEST_ADDOPTS", None)
            ahead = [str((top / part).resolve()) for part in self.path]
            variables["PYTHONPATH"] = os.pathsep.join([*ahead, *filter(None, [os.environ.get("PYTHONPATH")])])
            variables[OTHER] = str(root) if checkout else ""
            variables[OWN] = os.pathsep.join([*ahead, str(top), str(top / "src")])
            try:
                done = subprocess.run(
                    command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LONGEST, check=False
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
        return Path(git(self.folder, "rev-parse", "--show-toplevel") or self.folder).resolve()


@contextmanager
def worktree(folder: Path, commit: str) -> Iterator[Path]:
    """A checkout of ``commit`` beside the user's, gone afterwards. GateError if git cannot make one."""
    with tempfile.TemporaryDirectory(prefix="specdec-gate-base-") as temporary:
        checkout = Path(temporary).resolve() / "base"
        _git(folder, "worktree", "prune")  # what an interrupted run has left
        _git(folder, "worktree", "add", "--detach", str(checkout), commit)
        try:
            yield checkout
        finally:
            _git(folder, "worktree", "remove", "--force", str(checkout))


def _git(folder: Path, *words: str) -> None:
    done = subprocess.run(["git", *words], cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise GateError(f"git {' '.join(words)} failed: {done.stderr.strip()}")


def refuse_foreign_modules() -> None:
    """GateError if this launch has imported code of the other side, or an installed copy of what its checkout holds."""
    other, own = os.environ.get(OTHER), os.environ.get(OWN, "")
    folders = [Path(folder) for folder in own.split(os.pathsep) if folder]
    prefix = Path(sys.prefix).resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not folders:
            continue
        found = Path(file).resolve()
        inside = not found.is_relative_to(prefix)  # an environment may lie inside a checkout
        strange = bool(other) and inside and found.is_relative_to(other or "")
        held = "." not in name and any(
            (f / name / "__init__.py").exists() or (f / f"{name}.py").exists() for f in folders
        )
        installed = held and not (inside and any(found.is_relative_to(folder) for folder in folders))
        if strange or installed:
            raise GateError(
                f"a launch would measure other code than its checkout's: module {name!r} comes from {found}; list the "
                "folders that hold your packages in --gate-path (or the ini key gate_path), for example src"
            )
