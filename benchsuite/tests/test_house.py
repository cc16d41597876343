"""The layout of the code: who may import whom, one name for one thing, and a page that shows the folders."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design.md"

pytestmark = pytest.mark.skipif(not DESIGN.exists(), reason="an installed wheel has no checkout to look at")

ARROWS = {
    "capture": "",
    "options": "",
    "machine": "",
    "measure": "options machine",
    "report": "measure machine",
    "targets": "options machine",
    "kernelbench": "options machine report targets",
    "decodingbench": "options machine measure report targets",
    "serving": "options measure report",
    "predict": "machine measure",
    "prove": "measure",
    "conformance": "prove measure kernelbench",
    "museum": "conformance prove measure",
    "mutation": "measure",
    "gate": "options capture machine measure report",
    "keeping": "options measure report",
    "ranked": "options measure",
    "comparison": "options capture keeping measure predict ranked report",
    "selection": "comparison",
    "shards": "options",
    "configuration": "options report",
    "plugin": "options configuration keeping comparison selection shards gate decodingbench kernelbench measure report "
    "serving",
    "compare": "machine measure report gate",
    "foreign": "",
    "cluster": "report",
    "gpu_day": "machine",
    "predictions": "machine measure predict report",
    "__main__": "report compare cluster foreign predict",
    "test_speculation": "measure",
    "test_kernels": "kernelbench",
    "test_decoding": "decodingbench",
    "test_serving": "serving",
    "tests": "options configuration plugin compare __main__ machine measure report kernelbench decodingbench prove "
    "conformance museum mutation gate cluster gpu_day foreign predict predictions serving",
}
"""Every room and module of benchsuite, and the others that it imports."""

PACKAGES = {
    "specdec": "",
    "specdec_kernels": "specdec",
    "specdec_plugins": "specdec",
    "benchsuite": "specdec specdec_kernels specdec_plugins",
}
"""Our packages, and those of ours that each may import."""

FOLDERS = {
    "specdec": ROOT / "specdec",
    "specdec_kernels": ROOT / "kernels" / "specdec_kernels",
    "specdec_plugins": ROOT / "plugins" / "specdec_plugins",
    "benchsuite": ROOT / "benchsuite",
}

LONGEST = 60
"""Lines of a function; a longer one says in its docstring why it is."""

PRIVATE_OR_SHARED = re.compile(r"_\w+|specdec_register_\w+|pytest_\w+|test_\w+")
"""Names of one module's own, and those that modules must share: implementations of hooks, and tests."""


@dataclass(frozen=True)
class ReadFile:
    """What is asked of a file, which is parsed for it once.

    ``imports``: the dotted names that it imports, at its top, in its functions or for its types alone. ``defines``: the
    classes and functions at its top. ``long``: functions of more than ``LONGEST`` lines that do not say so.
    """

    path: Path
    text: str
    imports: tuple[str, ...]
    defines: tuple[str, ...]
    long: tuple[str, ...]


@cache
def project_files() -> list[ReadFile]:
    """Every Python file of the project. Their trees are not kept: the collector would walk them again and again."""
    folders = (*FOLDERS.values(), ROOT / "plugins" / "example_repeat", ROOT / "docs")
    return [read_project_file(path) for folder in folders for path in sorted(folder.rglob("*.py"))]


def read_project_file(path: Path) -> ReadFile:
    """What is asked of one file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    defines = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    imports, long = list[str](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > LONGEST and f"Longer than {LONGEST} lines" not in (ast.get_docstring(node) or ""):
                long.append(f"{node.name} has {lines} lines")
    return ReadFile(path, text, tuple(imports), tuple(defines), tuple(long))


def rooms(file: ReadFile) -> Iterator[tuple[str, str]]:
    """The arrows of one file of benchsuite: from its room to every other room that it imports."""
    room = file.path.relative_to(FOLDERS["benchsuite"]).parts[0].removesuffix(".py")
    for name in file.imports:
        first, *rest = name.split(".")
        if first == "benchsuite" and rest[0] != room:
            yield room, rest[0]


def test_arrows_between_rooms_are_those_of_the_table() -> None:
    drawn = defaultdict[str, set[str]](set)
    for file in project_files():
        if file.path.is_relative_to(FOLDERS["benchsuite"]):
            for room, other in rooms(file):
                drawn[room].add(other)
                assert other in ARROWS[room].split(), f"{file.path.relative_to(ROOT)} imports benchsuite.{other}"
    unused = {room: set(allowed.split()) - drawn[room] for room, allowed in ARROWS.items()}
    assert not any(unused.values()), f"the table allows what nothing needs: {unused}"


def test_arrows_between_rooms_point_one_way() -> None:
    left = {room: set(allowed.split()) for room, allowed in ARROWS.items()}
    while left:
        free = [room for room, others in left.items() if not others & left.keys()]
        assert free, f"these import each other in a circle: {sorted(left)}"
        for room in free:
            del left[room]


def test_no_room_imports_a_test_or_a_conftest() -> None:
    for file in project_files():
        names = [part for name in file.imports for part in name.split(".")]
        tests = [name for name in names if name == "conftest" or name.startswith("test_")]
        assert not tests, f"{file.path.relative_to(ROOT)} imports {tests}"


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    foreign = {*FOLDERS, "pytest", "hypothesis"} - {package, *PACKAGES[package].split()}
    if package == "benchsuite":
        foreign = set()
    for file in project_files():
        if file.path.is_relative_to(FOLDERS[package]):
            found = {name.split(".")[0] for name in file.imports} & foreign
            assert not found, f"{file.path.relative_to(ROOT)} imports {sorted(found)}"


def test_a_public_name_is_defined_once() -> None:
    defined = defaultdict[str, list[str]](list)
    for file in project_files():
        for name in file.defines:
            if not PRIVATE_OR_SHARED.fullmatch(name):
                defined[name].append(str(file.path.relative_to(ROOT)))
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert not twice


def test_a_function_is_short_or_says_why_not() -> None:
    for file in project_files():
        assert not file.long, f"{file.path.relative_to(ROOT)}: {', '.join(file.long)}"


def test_no_layout_is_forced_by_hand() -> None:
    mark = "fmt" + ": "
    for file in project_files():
        assert mark not in file.text, file.path


def drawn_tree() -> list[str]:
    """The files and folders of the tree in docs/design.md, as paths from the root."""
    page = DESIGN.read_text(encoding="utf-8")
    block = re.search(r"^## The house\n.*?^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert block, "docs/design.md has no tree under 'The house'"
    found: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in block.group(1).splitlines():
        indent = len(line) - len(line.lstrip())
        names = re.split(r"\s{2,}", line.strip())[0].split()
        while parents and parents[-1][0] >= indent:
            parents.pop()
        above = parents[-1][1] if parents else ""
        found += [above + name for name in names]
        if names[0].endswith("/"):
            parents.append((indent, above + names[0]))
    return found


def test_the_tree_in_the_design_is_the_tree_on_the_disk() -> None:
    shown = drawn_tree()
    gone = [name for name in shown if not (ROOT / name).exists()]
    assert not gone, "docs/design.md shows what is not there"
    folders = {name.rstrip("/") for name in shown if name.endswith("/")}
    parents = {name.rstrip("/").rpartition("/")[0] for name in shown}
    leaves = folders - parents  # shown without their files: they stand for all of them
    missing = []
    for folder in FOLDERS.values():
        for path in folder.rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            inside = any(name.startswith(f"{leaf}/") for leaf in leaves)
            if path.name != "__init__.py" and name not in shown and not inside:
                missing.append(name)
    assert not missing, "docs/design.md does not show these"
