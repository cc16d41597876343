"""Merging: the cells of several runs of one matrix, each a part of it, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from pathlib import Path

from benchsuite.measure.arms import Setting
from benchsuite.report.files import comparison_files
from benchsuite.store.journal import Journal, differences
from specdec.errors import SpecdecError

MACHINE = ("processor", "vectors", "cores", "threads", "gpus")
"""What parts may differ in: every row is of one machine, which its cell names."""


def merge(folders: Sequence[Path], into: Path) -> Journal:
    """Make the folder ``into`` with the cells of all ``folders``, and the tables of all of them together.

    Raises SpecdecError if there is ``into`` already, if one of ``folders`` was made of another commit, with other
    versions or other options, or if two have the same cell.
    """
    parts = [Journal.load(folder) for folder in folders]
    first = parts[0]
    for part in parts[1:]:
        different = differences(first.said, part.said, but=("--specdec-shard", *MACHINE))
        if different:
            listed = "\n".join(f"  {line}" for line in different)
            raise SpecdecError(f"{first.folder} and {part.folder} are not parts of one run:\n{listed}")
    cells, owner = [], dict[Setting, Path]()
    for part in parts:
        for cell in part.cells():
            if cell.setting in owner:
                raise SpecdecError(
                    f"{owner[cell.setting]} and {part.folder} have both measured {cell.setting.id}: leave out one of "
                    "them, or remove the cell from one"
                )
            owner[cell.setting] = part.folder
            cells.append(cell)
    manifest = {**first.said, "options": {**first.said["options"], "shard": ""}, "sha256": {}, "complete": False}
    weights = {str(one): one for part in parts for one in part.said["weights"]}
    manifest |= {"weights": list(weights.values()), "said": _lines(parts, "said"), "card": _lines(parts, "card")}
    manifest["card"] += [f"merged from {', '.join(str(part.folder) for part in parts)}", *_missing(parts)]
    journal = Journal.begin(into, manifest)
    for cell in cells:
        journal.keep(cell)
    measured = journal.measured()
    complete = not _missing(parts) and all(part.said["complete"] for part in parts)
    journal.finish(comparison_files(measured.results(), journal.said), measured, complete)
    return journal


def _lines(parts: Sequence[Journal], key: str) -> list[str]:
    return list(dict.fromkeys(line for part in parts for line in part.said[key]))


def _missing(parts: Sequence[Journal]) -> list[str]:
    """A line that names the shards that are not there; empty if all are. Part 1 of 2 is parts 1 and 3 of 4."""
    texts = [text for part in parts if (text := part.said["options"]["shard"])]
    shards = [(int(number), int(count)) for number, count in (text.split("/") for text in texts)]
    of = lcm(*(count for _, count in shards))
    there = {one for number, count in shards for one in range(number, of + 1, count)}
    missing = [f"{number}/{of}" for number in range(1, of + 1) if number not in there] if shards else []
    return [f"shards that are missing: {', '.join(missing)}"] if missing else []
