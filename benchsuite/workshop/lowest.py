"""The lowest versions that pyproject.toml admits: ``python benchsuite/workshop/lowest.py [EXTRA …]`` prints them.

``make test-oldest`` installs what this prints. It needs the standard library alone, because nothing is installed yet.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path


def lowest_versions(pyproject: Path, extras: Sequence[str] = ()) -> Iterator[str]:
    """Return each dependency, and those of ``extras``, pinned to its lower bound, as pip reads it.

    A requirement without a bound stays as it is. ValueError for an extra that does not exist.

    Example: ``torch>=2.11`` becomes ``torch==2.11``
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise ValueError(f"no extra {unknown[0]!r} in {pyproject}; choices: {', '.join(optional)}")
    for requirement in [*project["dependencies"], *(one for extra in extras for one in optional[extra])]:
        if not requirement.startswith(project["name"]):  # an extra that names others of its own
            yield re.sub(r">=\s*", "==", requirement)


if __name__ == "__main__":
    print("\n".join(lowest_versions(Path(__file__).parents[2] / "pyproject.toml", sys.argv[1:])))
