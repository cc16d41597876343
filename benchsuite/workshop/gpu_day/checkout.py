"""A checkout that looks installed: nothing of it needs pip, a network or git."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from benchsuite.machine.provenance import commit

ROOT = Path(__file__).resolve().parents[3]
"""The folder of pyproject.toml, or the site-packages of an installed wheel."""

COMMIT_FILE = Path(".gpu") / "commit"
"""Below the root: the commit of a checkout that was copied without its git folder."""


def look_installed(folder: Path, root: Path = ROOT) -> str:
    """Write the metadata from which entry points are read into ``folder``; return a PYTHONPATH that finds the project.

    Only the standard library is used. An installed wheel has metadata of its own: nothing is written, and the path is
    that of the environment.

    Example: ``env={**os.environ, "PYTHONPATH": look_installed(folder)}`` of ``subprocess.run``
    """
    before = os.environ.get("PYTHONPATH", "")
    if not (root / "pyproject.toml").exists():
        return before
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    place = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (place / "METADATA").write_text(head, encoding="utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (place / "entry_points.txt").write_text("\n\n".join(groups) + "\n", encoding="utf-8")
    roots = (folder, root, root / "kernels", root / "plugins")
    return os.pathsep.join([*map(str, roots), *([before] if before else [])])


def commit_of(root: Path = ROOT) -> str | None:
    """Return the commit of a checkout: git's, else that of the file ``.gpu/commit``; None without both.

    A ``+`` at its end says that tracked files differ.
    """
    if (root / ".git").exists() and (found := commit(root)):
        return found
    file = root / COMMIT_FILE
    return file.read_text(encoding="utf-8").strip() if file.exists() else None


def keep_commit(root: Path = ROOT) -> Path:
    """Write the checkout's commit to ``.gpu/commit``, for a copy without git; return the file.

    ValueError without a commit.
    """
    found = commit_of(root)
    if found is None:
        raise ValueError(f"{root} is no checkout of git and has no {COMMIT_FILE}; write the commit into that file")
    file = root / COMMIT_FILE
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{found}\n", encoding="utf-8")
    return file
