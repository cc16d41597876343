"""Dependencies as a checkout pins them, installed into a folder ahead of what this environment has."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from benchsuite.gate.processes import run_group
from benchsuite.gate.record import GateError
from benchsuite.machine.provenance import environment, git
from specdec.cache import cache_root

Read = Callable[[str], str | None]
"""The text of a file of a checkout, by its path from the top; None if there is no such file."""


@dataclass(frozen=True)
class PinnedLayer:
    """The packages that a side's launches take from ``folder``, with their versions; no folder if there are none."""

    packages: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in sorted(self.packages.items())) or "as installed"


def layers(top: Path, base: str) -> tuple[PinnedLayer, PinnedLayer]:
    """The layers of ``base``, a commit, and of the checkout in ``top``. GateError if pip cannot install one.

    Example: ``layers(Path.cwd(), "HEAD~1")``
    """
    # Both sides' pins are read before the first is installed, which may take long.
    pinned = pins(top, base), pins(top)
    before, now = (_layer(_differing(found, complete)) for found, complete in pinned)
    return before, now


def pins(top: Path, commit: str | None = None) -> tuple[dict[str, str], bool]:
    """The exact versions that a checkout, or a commit of it, pins: those of the first file of ``FILES`` that it has.

    With them, whether the file says what to install; if not, it also names packages that this platform may not need.
    GateError without such a file, or without a pin in it. Example: ``pins(Path.cwd())[0]["torch"]``
    """

    def read(name: str) -> str | None:
        if commit:
            return git(top, "show", f"{commit}:{name}")
        file = top / name
        return file.read_text(encoding="utf-8") if file.is_file() else None

    which = f"the base ({commit[:12]})" if commit else f"this checkout ({top})"
    for name, (parse, complete) in FILES.items():
        found = defaultdict[str, set[str]](set)
        try:
            text = read(name)
            if text is None:
                continue
            for package, version in parse(text, name, read):
                found[canonicalize_name(package)].add(version)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, InvalidMarker, KeyError) as error:
            raise GateError(f"{name} of {which} cannot be read: {error!r}") from None
        several = sorted(package for package, versions in found.items() if len(versions) > 1)
        if several:
            raise GateError(f"{name} of {which} pins several versions of {', '.join(several)} for this platform")
        if not found:
            raise GateError(f"{name} of {which} pins no version; expected lines name==version, or packages of a lock")
        return {package: versions.pop() for package, versions in found.items()}, complete
    raise GateError(
        f"{which} pins no dependencies: --gate-environment=own looks for {', '.join(FILES)} at its top; add one, or "
        "gate with --gate-environment=shared"
    )


def _locked(text: str, name: str, read: Read) -> Iterator[tuple[str, str]]:
    """The packages of a lock: of ``pylock.toml``, ``uv.lock`` or ``poetry.lock``."""
    content = tomllib.loads(text)
    for package in content.get("packages", content.get("package", [])):
        if "version" in package and _from_index(package) and _applies(package):
            yield package["name"], package["version"]


def _from_index(package: Mapping[str, Any]) -> bool:
    """Whether a locked package comes from an index by its version; not from a folder, a repository or an address."""
    source = package.get("source", {})
    if "type" in source:
        return bool(source["type"] == "legacy")  # poetry's word for an index other than the default
    return source.keys() <= {"registry"} and not package.keys() & {"vcs", "directory", "archive"}


def _applies(package: Mapping[str, Any]) -> bool:
    """Whether the markers of a locked package, if it has any, hold in this environment."""
    markers = package.get("marker") or package.get("markers") or package.get("resolution-markers") or []
    if isinstance(markers, Mapping):  # poetry: a marker for each group
        markers = list(markers.values())
    given = [markers] if isinstance(markers, str) else markers
    # No extra and no group is chosen; poetry's markers say `extra`, those of pylock.toml `extras`.
    return not given or any(Marker(marker).evaluate({"extra": ""}, context="lock_file") for marker in given)


def _required(text: str, name: str, read: Read) -> Iterator[tuple[str, str]]:
    """The exact versions of a file of requirements, and of the files that it includes."""
    for line in text.replace("\\\n", " ").splitlines():
        words = re.split(r"(?:^|\s)#", line)[0].strip()
        included = re.match(r"(?:-r|--requirement|-c|--constraint)[\s=]*(\S+)", words)
        if included:
            file = os.path.normpath(Path(name).parent / included[1])
            more = read(file)
            if more is None:
                raise GateError(f"{name} includes {included[1]}, which is not in the checkout")
            yield from _required(more, file, read)
            continue
        try:
            wanted = Requirement(re.split(r"\s--", words)[0])
        except InvalidRequirement:
            continue  # an option, a path or an address: it pins no version
        exact = [one.version for one in wanted.specifier if one.operator == "==" and not one.version.endswith("*")]
        if exact and (wanted.marker is None or wanted.marker.evaluate()):
            yield wanted.name, exact[0]


FILES: Mapping[str, tuple[Callable[[str, str, Read], Iterator[tuple[str, str]]], bool]] = {
    "pylock.toml": (_locked, True),
    "uv.lock": (_locked, False),
    "poetry.lock": (_locked, False),
    "requirements.lock": (_required, True),
    "constraints.txt": (_required, False),
    "requirements.txt": (_required, True),
}
"""The files that pin versions, in the order in which they are looked for, and whether each says what to install."""


def _differing(pinned: Mapping[str, str], complete: bool) -> dict[str, str]:
    """The pins that this environment does not have; packages that it lacks only if the file says what to install."""
    differing = {}
    for name, version in pinned.items():
        if name == "specdec-bench":
            continue  # it measures both sides, so it is the same for both
        try:
            # `==2.13.0` admits 2.13.0+cpu.
            has = SpecifierSet(f"=={version}").contains(metadata.version(name), prereleases=True)
        except metadata.PackageNotFoundError:
            has = not complete
        except InvalidSpecifier:
            raise GateError(f"the pin {name}=={version} is not a version") from None
        if not has:
            differing[name] = version
    return differing


def _layer(packages: Mapping[str, str]) -> PinnedLayer:
    """A layer of these packages: the one of an earlier run, or made by pip under a temporary name and then renamed."""
    if not packages:
        return PinnedLayer()
    wanted = sorted(f"{name}=={version}" for name, version in packages.items())
    made_for = (*wanted, sys.implementation.cache_tag, sysconfig.get_platform())
    root = cache_root().resolve() / "gate-layers"
    ready = root / hashlib.sha256(repr(made_for).encode()).hexdigest()[:16]
    if not ready.is_dir():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root, prefix=".made-") as temporary:
                made = Path(temporary) / "layer"
                _install(wanted, made)
                if not ready.is_dir():  # otherwise another process was faster
                    made.rename(ready)
        except OSError as error:
            raise GateError(f"a layer of packages cannot be made in {root}: {error}; set SPECDEC_CACHE") from None
    return PinnedLayer(packages, ready)


def _install(wanted: Sequence[str], target: Path) -> None:
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--target", str(target)]
    done = run_group([sys.executable, "-m", "pip", "install", *options, *wanted], target.parent, environment())
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise GateError(f"pip could not install {', '.join(wanted)}; its last lines:\n{end}")
