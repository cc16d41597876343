"""Which lines differ from a revision, and which mutants lie on them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchsuite.workshop.mutation.mutants import Mutation

HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def changed_lines(root: Path, base: str) -> dict[str, set[int]]:
    """Return the lines of every file that differ from a revision, by their numbers now; a new file has all of its own.

    What is not committed counts too. Raises ValueError if git does not know the revision.
    """
    found: dict[str, set[int]] = {}
    file = ""
    for line in _git(root, "diff", "--unified=0", "--no-color", "--no-ext-diff", base, "--").splitlines():
        if line.startswith("+++ "):
            file = line[4:].removeprefix("b/")
        elif match := HUNK.match(line):
            first, count = int(match.group(1)), int(match.group(2) or 1)
            found.setdefault(file, set()).update(range(first, first + count))
    for file in _git(root, "ls-files", "--others", "--exclude-standard").splitlines():
        found[file] = set(range(1, (root / file).read_bytes().count(b"\n") + 2))
    return found


def touches(mutant: Mutation, lines: Mapping[str, set[int]], root: Path) -> bool:
    """Whether what a mutant changes lies on one of these lines."""
    source = (root / mutant.file).read_bytes()
    first, last = (source.count(b"\n", 0, at) + 1 for at in (mutant.start, mutant.end))
    return not lines.get(mutant.file, set()).isdisjoint(range(first, last + 1))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"git {' '.join(arguments)}: {done.stderr.strip()}; expected a revision of {root}")
    return done.stdout
