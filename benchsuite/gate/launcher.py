"""Processes that measure this checkout and a worktree of the base, one process at a time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchsuite.gate.environment import PinnedLayer
from benchsuite.gate.figures import record_origin
from benchsuite.gate.processes import held_signals, run_group
from benchsuite.gate.record import GateError, Record
from benchsuite.gate.sources import folders_on_path, own_packages
from benchsuite.machine.provenance import environment, git

LONGEST = 3600
"""Timeout of a launch, in seconds."""

OTHER, OWN = "SPECDEC_GATE_OTHER", "SPECDEC_GATE_OWN"
"""Environment variables of a launch: the checkout that it must not import from, and the folders of its own code,
its layer included."""

USAGE_ERROR = 4
"""pytest's exit code if an argument is wrong: also if there is no such file, test or module."""

NO_BENCHMARKS = "this run has no benchmarks"
"""Part of the message of a launch that selects no benchmark."""

NOT_FOUND = re.compile(r"^ERROR: .*not found: (.+?)(?: \(missing __init__\.py\?\))?$", re.M)
"""pytest's messages about a file, test or module that is not there; of one that fails to import it says "found no
collectors"."""


@dataclass
class Launcher:
    """Runs ``pytest`` with ``arguments`` in ``folder``, each launch in a new process.

    ``pairs``: how many pairs a launch times at least. ``path``: folders, relative to the top of the measured checkout,
    that go to the front of Python's path; None: the top, those that hold the modules of installed plugins, and those
    that are on this process's path. ``names``: the files, tests and modules among the arguments; those that the
    base turns out to lack are left out of its launches, and listed in ``lacking``. ``layers``: packages of the base and
    of this checkout that go before those that are installed. GateError with the reason if a launch or one
    of its tests fails.

    Example: ``Launcher(["benchsuite/test_speculation.py"], Path.cwd(), pairs=10).measure()``
    """

    arguments: Sequence[str]
    folder: Path
    pairs: int
    path: Sequence[str] | None = None
    names: Sequence[str] = ()
    layers: tuple[PinnedLayer, PinnedLayer] = (PinnedLayer(), PinnedLayer())
    lacking: list[str] = field(default_factory=list)

    def measure(self, checkout: Path | None = None, plant: str = "") -> Record:
        """Launch this checkout, or ``checkout`` of the same repository; ``plant``: the text for ``plants.plant_in``.

        The record has no rows if the checkout has nothing of what the arguments select.
        """
        root = self.root()
        top = checkout or root
        folder = top / self.folder.resolve().relative_to(root)
        if not folder.is_dir():
            raise GateError(f"the base has no folder {folder.relative_to(top)}: start pytest where both sides have one")
        if checkout and self.names and not self._kept():
            return Record(record_origin(top, None), {})  # without names, pytest would collect everything
        with tempfile.TemporaryDirectory(prefix="specdec-gate-") as temporary:
            file = Path(temporary) / "launch.json"
            # `addopts=`: the arguments already have the run's addopts, except those that a launch must not repeat.
            given = ["-o", "addopts=", "--gate=off", f"--gate-save={file}", f"--gate-pairs={self.pairs}"]
            given += ["--gate-launches=1", f"--gate-plant={plant}", "--color=no"]
            arguments = self._arguments_of_base() if checkout else self.arguments
            command = [sys.executable, "-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider", *given]
            variables = self._variables(root, top, Path(temporary))
            try:
                done = run_group(command, folder, variables, LONGEST)
            except subprocess.TimeoutExpired:
                raise GateError(f"a launch took longer than {LONGEST} s: {' '.join(command)}") from None
            if checkout and done.returncode == USAGE_ERROR:
                printed = _unfolded(done.stdout + done.stderr)
                if NO_BENCHMARKS in printed:
                    return Record(record_origin(top, None), {})
                folders = [folder, *map(Path, variables[OWN].split(os.pathsep))]
                if self._found_lacking(printed, folders):
                    return self.measure(checkout, plant)
            if done.returncode or not file.exists():
                raise GateError(_failed_launch("the base" if checkout else "this checkout", done, arguments))
            try:
                return Record.load(file)
            except GateError as error:
                if checkout is None:
                    raise
                raise GateError(
                    f"the base's launch was written by another specdec-bench, and cannot be read ({error}); "
                    "gate against a revision that has this one's format"
                ) from None

    def _variables(self, root: Path, top: Path, metadata: Path) -> dict[str, str]:
        """The environment of a launch of ``top``; ``metadata``: a folder for what that side's packages register."""
        packages = own_packages(root, top)
        for package in packages:
            package.write(metadata)
        if self.path is None:
            holding = [folder for package in packages for folder in package.folders]
            parts = [top, *holding, *(top / part for part in folders_on_path(root))]
        else:
            parts = [top / part for part in self.path]
        ahead = list(dict.fromkeys(str(part.resolve()) for part in parts))
        layer = self.layers[0 if top != root else 1].folder
        installed = [str(layer)] if layer else []
        first, inherited = [str(metadata)] if packages else [], filter(None, [os.environ.get("PYTHONPATH")])
        return {
            **{name: text for name, text in environment().items() if name != "PYTEST_ADDOPTS"},
            "PYTHONPATH": os.pathsep.join([*first, *ahead, *installed, *inherited]),
            OTHER: str(root) if top != root else "",
            OWN: os.pathsep.join([*ahead, str(top), str(top / "src"), *installed]),
        }

    def _kept(self) -> list[str]:
        return list((Counter(self.names) - Counter(self.lacking)).elements())

    def _arguments_of_base(self) -> list[str]:
        """The arguments without those that the base lacks; from the end, where an option's value is not the last."""
        kept = [*reversed(self.arguments)]
        for name in self.lacking:
            kept.remove(name)
        return kept[::-1]

    def _found_lacking(self, output: str, folders: Sequence[Path]) -> bool:
        """Add the names that pytest did not find to ``lacking``; whether there are any. It ran in the first folder."""
        known = len(self.lacking)
        kept = [name for name in self._kept() if name in self.arguments]  # pytest takes names from @files too
        for said in dict.fromkeys(NOT_FOUND.findall(output)):
            meant = {name for name in kept if _means(said, name, folders[0])}
            # pytest does not find a module either whose package fails to import.
            if len(meant) == 1 and not (said in meant and _has_module(said, folders)):
                self.lacking += meant
        return len(self.lacking) > known

    def root(self) -> Path:
        """The top folder of the checkout that contains ``folder``."""
        return Path(git(self.folder, "rev-parse", "--show-toplevel") or self.folder).resolve()


def _failed_launch(side: str, done: subprocess.CompletedProcess[str], arguments: Sequence[str]) -> str:
    """Why a launch of a side made no record, in a line; of a usage error pytest says all there is."""
    said = reason_in(done.stdout + done.stderr)
    if done.returncode == USAGE_ERROR:
        return f"a launch of {side} was refused: {said}"
    return (
        f"a launch of {side} ended with {done.returncode}: {said}; to see all that it printed, run there: "
        f"pytest {' '.join(map(str, arguments))}"
    )


def reason_in(output: str) -> str:
    """Return why a run of pytest failed, in a line, by what it printed: its refusal and the first exception, else the
    first test that failed, else its last line.

    Example: ``reason_in("E   RuntimeError: no\\n1 failed in 0.1s")`` is ``RuntimeError: no``.
    """
    lines = [line.rstrip() for line in _unfolded(output).splitlines() if line.strip()]

    def first(begins: str) -> list[str]:
        found = [line.removeprefix(begins).strip() for line in lines if line.startswith(begins)]
        return [text for text in found if text][:1]

    said = [*first("ERROR: "), *first("E  ")] or first("FAILED ") or first("ERROR ") or [*lines[-1:], "no output"][:1]
    return "; ".join(dict.fromkeys(said))


def _unfolded(output: str) -> str:
    """What pytest printed, with each refusal on one line again (``specdec.errors.folded``)."""
    return re.sub(r"^ERROR: .*(\n  \S.*)+", lambda found: found[0].replace("\n  ", " "), output, flags=re.M)


def _means(said: str, name: str, folder: Path) -> bool:
    """Whether pytest's words for what it did not find mean the argument ``name``.

    pytest repeats the argument, or, for a test in a file that is there, says path::test, without a parametrisation.
    """
    path, _, test = name.partition("::")
    said_path, _, said_test = said.partition("::")
    module = ".".join(Path(said_path).with_suffix("").parts).removesuffix(".__init__")
    there = said_path == os.path.normpath(folder / path) or module.endswith(f".{path}")
    return said == name or (there and said_test in (test, test.partition("[")[0]))


def _has_module(name: str, folders: Sequence[Path]) -> bool:
    stem = name.partition("::")[0].replace(".", "/")
    return any((f / f"{stem}.py").exists() or (f / stem / "__init__.py").exists() for f in folders)


@contextmanager
def worktree(folder: Path, commit: str) -> Iterator[Path]:
    """A temporary git worktree of ``commit``, removed on exit and if SIGTERM ends pytest. GateError if git fails."""
    # A git that a signal kills leaves a locked entry, which no later prune removes: signals wait until it is done.
    with held_signals() as signals, tempfile.TemporaryDirectory(prefix="specdec-gate-base-") as temporary:
        checkout = Path(temporary).resolve() / "base"
        _git(folder, "worktree", "prune")  # removes entries of an interrupted run
        _git(folder, "worktree", "add", "--detach", str(checkout), commit)
        try:
            with signals.allowed():
                yield checkout
        finally:
            _git(folder, "worktree", "remove", "--force", str(checkout))


def _git(folder: Path, *words: str) -> None:
    # Its own session: a terminal's Ctrl-C would kill it.
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode:
        raise GateError(f"git {' '.join(words)} failed: {done.stderr.strip()}")


def measures_base() -> bool:
    """Whether this process is a launch of the base, which need not know every name that the run is given."""
    return bool(os.environ.get(OTHER))


def own_folders_first() -> None:
    """In a launch, put the folders of ``PYTHONPATH`` before all others again: for a test module of an installed package
    pytest puts the folder of all installed packages first. In any other run, do nothing."""
    if os.environ.get(OWN):
        ahead = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        sys.path[:] = [*ahead, *(folder for folder in sys.path if folder not in ahead)]


def refuse_foreign_modules() -> None:
    """GateError if this launch imported code of the other side, or an installed copy of a module in its checkout."""
    other, own = os.environ.get(OTHER), os.environ.get(OWN, "")
    folders = [Path(folder) for folder in own.split(os.pathsep) if folder]
    prefix = Path(sys.prefix).resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not folders:
            continue
        found = Path(file).resolve()
        outside = not found.is_relative_to(prefix)  # of the environment, which may itself be inside a checkout
        ours = any(found.is_relative_to(folder) for folder in folders)
        foreign = bool(other) and outside and found.is_relative_to(other or "") and not ours
        in_checkout = "." not in name and any(
            (f / name / "__init__.py").exists() or (f / f"{name}.py").exists() for f in folders
        )
        installed = in_checkout and not (outside and ours)
        if foreign or installed:
            raise GateError(
                f"a launch would measure other code than its checkout's: module {name!r} comes from {found}; list the "
                "folders that hold your packages in --gate-path (or the ini key gate_path), for example src; "
                "without it they are looked for"
            )
