"""The journal of a run: its folder, with every cell from the moment when it was measured, and what the run was.

A process that is killed loses the cell in progress. Another one goes on with the journal, and refuses to do so where
its commit, machine or options are others: figures of one table are of one thing.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from benchsuite.machine import provenance
from benchsuite.machine.files import (
    CELLS,
    MANIFEST,
    PART,
    FolderLock,
    new_folder,
    runs,
    strict_json,
    write_file,
    write_files,
)
from benchsuite.measure import cells
from benchsuite.measure.cells import Cell
from benchsuite.measure.conditions import known_conditions
from benchsuite.measure.measured import Measured
from benchsuite.measure.weights import Weights
from specdec.errors import SpecdecError
from specdec.lists import split_list
from specdec.ranks import joined_ranks

FORMAT, VERSION = "specdec-results", 1
UNREADABLE = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, StopIteration)
"""What a file that is no cell, or a damaged one, raises."""


def manifest(options: Mapping[str, str]) -> dict[str, Any]:
    """Return what this run is: its origin, its machine, and the text of every option."""
    gpus, ranks = provenance.accelerators(), joined_ranks()
    return {
        "version": VERSION,
        **provenance.origin(provenance.own_commit()),
        "changes": provenance.own_changes(),
        "machine": {
            "processor": provenance.processor(),
            "vectors": provenance.vectors(),
            "cores": provenance.cores(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            **({"gpus": [gpu["name"] for gpu in gpus]} if gpus else {}),
            **({"ranks": str(ranks)} if ranks else {}),
        },
        **({"accelerators": gpus} if gpus else {}),
        "options": dict(options),
        "complete": False,
        "card": [],
        "said": [],
        "weights": [],
        "sha256": {},
    }


@dataclass
class RunFolder:
    """A run's folder, with a file for everything that was measured. Each kind of run has its ``format``, and the folder
    ``holds`` for those files.

    ``said``: the manifest as it is in the file. ``lock``: of the process that measures the run.
    """

    folder: Path
    said: dict[str, Any]
    lock: FolderLock | None = field(default=None, compare=False)

    format: ClassVar[str]
    holds: ClassVar[str]

    @classmethod
    def begin(cls, folder: Path, manifest: dict[str, Any]) -> Self:
        """Make the folder. SpecdecError if it is there already or cannot be written."""
        try:
            folder.mkdir(parents=True)
            return cls._begun(folder, manifest)
        except OSError as error:
            raise _unwritable(folder, error) from error

    @classmethod
    def begin_in(cls, root: Path, name: str, manifest: dict[str, Any]) -> Self:
        """Make a new folder in ``root``, named by the time and ``name``. SpecdecError if it cannot be written."""
        try:
            return cls._begun(new_folder(root, name), manifest)
        except OSError as error:
            raise _unwritable(root, error) from error

    @classmethod
    def _begun(cls, folder: Path, manifest: dict[str, Any]) -> Self:
        journal = cls(folder, {"format": cls.format, **manifest}, FolderLock(folder))
        journal.note({})
        (folder / cls.holds).mkdir()  # last: a folder that has it is a run
        return journal

    @classmethod
    def resume(cls, root: Path, name: str, manifest: dict[str, Any]) -> Self:
        """Go on with the run in ``root``, else with the newest run in a folder of it, else begin one.

        Raises SpecdecError, with every difference by its name, if that run was of another commit, machine or other
        options, and if another process is measuring it.
        """
        if not runs(root, cls.holds):
            return cls.begin_in(root, name, manifest)
        journal = cls.load(root)
        different = differences(journal.said, manifest)
        if different:
            listed = "\n".join(f"  {line}" for line in different)
            raise SpecdecError(
                f"--specdec-resume cannot go on with {journal.folder}: one table would mix two runs\n{listed}\n"
                "make them equal, or begin anew in another --specdec-results folder"
            )
        journal.lock = FolderLock(journal.folder)
        for part in journal.folder.rglob(f".*{PART}"):
            part.unlink()
        return journal

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the journal of the run in a folder, or of the newest one in a folder of it.

        SpecdecError if there is none, or it is of another format.
        """
        found = runs(folder, cls.holds)
        folder = found[-1] if found else folder
        try:
            said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SpecdecError(
                f"{folder} is no folder of results: {MANIFEST} cannot be read ({error}); name a folder that "
                "--specdec-results has made"
            ) from None
        if not isinstance(said, dict) or (said.get("format"), said.get("version")) != (cls.format, VERSION):
            raise SpecdecError(
                f"{folder / MANIFEST} is not of the format {cls.format}, version {VERSION}: its run was made by "
                "another specdec-bench, or measured something else"
            )
        return cls(folder, said)

    def values(self) -> Iterator[tuple[Path, Any]]:
        """Read every file of what was measured, in the order of their names: the file, and its JSON. SpecdecError if
        one is corrupt, with what to do about it."""
        for file in sorted((self.folder / self.holds).glob("*.json.gz")):
            try:
                yield file, json.loads(gzip.decompress(file.read_bytes()))
            except UNREADABLE as error:
                raise unreadable(file, error) from error

    def keep_value(self, name: str, value: Any) -> None:
        """Write JSON of what was measured into a file of this name, whole. Raises OSError."""
        text = json.dumps(value, allow_nan=False)
        (self.folder / self.holds).mkdir(exist_ok=True)
        write_file(self.folder / self.holds / f"{name}.json.gz", gzip.compress(text.encode(), mtime=0))

    def close(self, files: Mapping[str, str], lines: Lines, complete: bool) -> None:
        """Write the files made of all that was measured, and the lines that belong to them. Raises OSError."""
        hashes = write_files(self.folder, files)
        self.said |= {"sha256": hashes, "complete": complete}
        self.note(lines)
        if self.lock is not None:
            self.lock.release()

    def note(self, lines: Lines) -> None:
        """Write the lines that belong to the run: nothing is taken back that was noted before. Raises OSError."""
        for name, found in lines.items():
            self.said[name] += [line for line in found if line not in self.said[name]]
        write_file(self.folder / MANIFEST, strict_json(self.said).encode())

    def give_up(self) -> None:
        """Remove the folder of a run that has measured nothing."""
        if not any((self.folder / self.holds).glob("*")):
            shutil.rmtree(self.folder)


class Journal(RunFolder):
    """The folder of a comparison of strategies, of cells."""

    format = FORMAT
    holds = CELLS

    def cells(self) -> Iterator[Cell]:
        """Read every cell, in the matrix's order. SpecdecError if one is corrupt, with what to do about it."""
        for file, value in self.values():
            try:
                yield cells.from_json(value)
            except UNREADABLE as error:
                raise unreadable(file, error) from error

    def keep(self, cell: Cell) -> None:
        """Write a cell, whole. Raises OSError."""
        self.keep_value(cell.id, cells.to_json(cell))

    def traces(self) -> Path:
        """The folder of the run's traces, made if it is missing. Raises OSError."""
        folder = self.folder / "traces"
        folder.mkdir(exist_ok=True)
        return folder

    def finish(self, files: Mapping[str, str], measured: Measured, complete: bool) -> None:
        """Write the files made of all cells, and the lines that belong to them. Raises OSError."""
        self.close(files, lines_of(measured), complete)

    def kept(self, stem: str) -> list[str]:
        """The names of the files beside the cells whose names begin with ``stem`` and a dot."""
        return sorted(file.name for file in self.folder.glob(f"{stem}.*"))

    def measured(self) -> Measured:
        """Return everything that the run has measured."""
        options = self.said["options"]
        found = Measured(
            options["baseline"],
            options.get("dry-run") == "true",
            known_conditions(split_list(options.get("across", ""))),
        )
        self.tell(found)
        for cell in self.cells():
            found.add(cell)
        return found

    def tell(self, measured: Measured) -> None:
        """Give the lines that were noted to what another process measures."""
        measured.card += self.said["card"]
        measured.said += self.said["said"]
        measured.weights += [Weights(**one) for one in self.said["weights"]]


def unreadable(file: Path, error: BaseException) -> SpecdecError:
    """Return the error that says what to do about a file of what was measured that cannot be read."""
    return SpecdecError(
        f"the cell {file} cannot be read ({type(error).__name__}: {error}); remove it, and --specdec-resume measures "
        "it again"
    )


def _unwritable(folder: Path, error: OSError) -> SpecdecError:
    return SpecdecError(f"no results can be written to {folder}: {error.strerror or error}; name another folder")


Lines = Mapping[str, list[Any]]
"""Of a run: its ``card``, what its plan ``said``, and its ``weights``, as JSON has them."""


def lines_of(measured: Measured) -> Lines:
    """Return the lines of what was measured."""
    weights = [asdict(one) for one in measured.weights]
    return {"card": list(measured.card), "said": list(measured.said), "weights": weights}


COMPARED = ("torch", "transformers", "specdec-bench")
"""Packages whose version must be the same for two processes to go on with one run."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any], but: Sequence[str] = ()) -> list[str]:
    """Return a line for everything that makes two runs two: commit, versions, machine and options; ``but`` these."""

    def flat(said: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "commit": said.get("commit"),
            "changes that are not committed": said.get("changes"),
            **{name: said.get("versions", {}).get(name) for name in COMPARED},
            **said.get("machine", {}),
            **{f"--specdec-{name}": text for name, text in said.get("options", {}).items()},
        }

    one, other = flat(before), flat(now)
    return [
        f"{name}: {_told(one.get(name))} there, {_told(other.get(name))} here"
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name) and name not in but
    ]


def _told(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value)) or "none"
    return "nothing" if value in (None, "") else str(value)
