"""Packages whose code lies in a checkout: where a side of the gate has it, and the entry points that it declares."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from benchsuite.machine.provenance import git

Points = Mapping[str, Mapping[str, str]]
"""Entry points: by group, the value of each name."""


@dataclass(frozen=True)
class OwnPackage:
    """A package that registers plugins and lies in the measured checkout, as one side has it.

    ``points``: what it registers; ``metadata``: the text of that file of the installed package; ``folders``: those of
    the side's checkout that hold its modules, for Python's path.
    """

    name: str
    version: str
    metadata: str
    points: Points
    folders: tuple[Path, ...]

    def write(self, into: Path) -> None:
        """Write it to a folder as an installed package without files: where the folder comes first on Python's path,
        the other metadata of the same name are not read."""
        folder = into / f"{canonicalize_name(self.name).replace('-', '_')}-{self.version}.dist-info"
        folder.mkdir(parents=True)
        lines = [
            line
            for group, named in self.points.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in named.items()))
        ]
        (folder / "METADATA").write_text(self.metadata, encoding="utf-8")
        (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def own_packages(root: Path, top: Path) -> list[OwnPackage]:
    """The packages with plugins that lie in the checkout ``root``, as the checkout ``top`` of the same repository has
    them: by its ``pyproject.toml``, else as they are installed, as far as ``top`` has the modules.

    Example: ``own_packages(Path.cwd(), worktree)[0].folders``
    """
    ours, theirs = _files(root), _files(top)
    found = []
    for package, group in groupby(entry_points(group="specdec"), key=lambda point: point.dist):
        if package is None or not _folders(root, ours, [point.module for point in group]):
            continue
        points = _declared(top, theirs, package.name)
        if points is None:
            points = _there(package.entry_points, top, theirs)
        modules = [value.partition(":")[0].strip() for named in points.values() for value in named.values()]
        folders = tuple(dict.fromkeys(_folders(top, theirs, modules).values()))
        found.append(OwnPackage(package.name, package.version, _metadata(package), points, folders))
    return found


def folders_on_path(root: Path) -> list[Path]:
    """The folders of a checkout that are on this process's path, relative to it; those of its environment are none."""
    found = [Path(entry).resolve() for entry in sys.path if entry]
    inside = [entry.relative_to(root) for entry in found if entry.is_relative_to(root) and not _installed(entry)]
    return list(dict.fromkeys(inside))


def _installed(path: Path) -> bool:
    """Whether a path belongs to this environment, which may itself be inside a checkout."""
    return path.is_relative_to(Path(sys.prefix).resolve())


def _files(top: Path) -> list[str]:
    """The files of a checkout that git tracks, or would track, those nearest to the top first."""
    listed = git(top, "ls-files", "--cached", "--others", "--exclude-standard") or ""
    return sorted(dict.fromkeys(listed.splitlines()), key=lambda name: (name.count("/"), name))


def _folders(top: Path, files: Iterable[str], modules: Iterable[str]) -> dict[str, Path]:
    """For each module that is among ``files``, the folder that it is imported from: the one nearest to the top."""
    ends = dict[str, str]()
    for module in modules:
        stem = module.replace(".", "/")
        ends |= dict.fromkeys((f"/{stem}.py", f"/{stem}/__init__.py"), module)
    found = dict[str, Path]()
    for name in files:
        path = f"/{name}"
        for end, module in ends.items():
            folder = top / path.removesuffix(end).removeprefix("/")
            if path.endswith(end) and module not in found and (top / name).is_file() and not _installed(folder):
                found[module] = folder
    return found


def _declared(top: Path, files: Iterable[str], package: str) -> Points | None:
    """The entry points of a package by its ``pyproject.toml``; None where that does not say them."""
    for name in files:
        if Path(name).name != "pyproject.toml" or not (top / name).is_file():
            continue
        try:
            project: dict[str, Any] = tomllib.loads((top / name).read_text(encoding="utf-8")).get("project", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            continue
        if canonicalize_name(str(project.get("name", ""))) == canonicalize_name(package):
            return None if "entry-points" in project.get("dynamic", []) else project.get("entry-points", {})
    return None


def _there(points: Iterable[EntryPoint], top: Path, files: Iterable[str]) -> Points:
    """The installed entry points whose module a checkout has."""
    every = [*points]
    has, found = _folders(top, files, [point.module for point in every]), dict[str, dict[str, str]]()
    for point in every:
        if point.module in has:
            found.setdefault(point.group, {})[point.name] = point.value
    return found


def _metadata(package: Distribution) -> str:
    text = package.read_text("METADATA") or package.read_text("PKG-INFO")
    return text or f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
