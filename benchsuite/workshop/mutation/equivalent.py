"""Mutants that change nothing that a test could see: listed by hand, each with its reason, in ``equivalent.toml``.

An entry names the file, the function, the changed lines and what they become, white space collapsed, so that it holds
when lines move and is refused when they change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchsuite.workshop.mutation.mutants import Mutation

LIST = Path(__file__).parent / "equivalent.toml"


class StaleEntry(ValueError):
    """An entry that no mutant fits any more, or that says too little."""


@dataclass(frozen=True)
class Equivalent:
    """A mutant by its text, and why nothing can tell it from the code."""

    file: str
    function: str
    before: str
    after: str
    reason: str

    def fits(self, mutant: Mutation) -> bool:
        """Whether a mutant is this one."""
        mine = (self.file, self.function, " ".join(self.before.split()), " ".join(self.after.split()))
        return mine == (mutant.file, mutant.function, mutant.before, mutant.after)


def read_equivalents(path: Path = LIST) -> list[Equivalent]:
    """Return the entries of a list. Raises StaleEntry if one lacks a field or has no reason."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    names = {"file", "function", "before", "after", "reason"}
    for entry in entries:
        if entry.keys() != names or not entry["reason"].strip():
            raise StaleEntry(
                f"{path.name} has {entry}, expected {', '.join(sorted(names))}, none empty but the function"
            )
    return [Equivalent(**entry) for entry in entries]


def excused(mutants: Iterable[Mutation], entries: Iterable[Equivalent], files: Iterable[str]) -> dict[str, str]:
    """Return the reasons of the mutants that are listed, by their keys.

    ``mutants`` are all of ``files``. Raises StaleEntry for entries of these files that no mutant fits.
    """
    given, found, here = list(mutants), dict[str, str](), set(files)
    for entry in entries:
        if entry.file not in here:
            continue
        fitting = [mutant for mutant in given if entry.fits(mutant)]
        if not fitting:
            raise StaleEntry(
                f"equivalent.toml lists a mutant of {entry.file}, {entry.function or 'top'}, that is none any more: "
                f"{entry.before!r} becoming {entry.after!r}; take the entry out, or write down the line as it is now"
            )
        found.update({mutant.key: entry.reason for mutant in fitting})
    return found
