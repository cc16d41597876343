"""The layout of the code: one name for one thing, and a page that shows the folders. Who may import whom is in
pyproject.toml, and `make lint` compares it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DESIGN = ROOT / "docs" / "design.md"

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

OF_EVERY_FORM = ("FORM", "knows", "read", "alternatives")
"""Names that each form of published heads defines: its module is a ``specdec_plugins.published.Form``."""


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


@pytest.mark.slow
def test_no_room_imports_a_test_or_a_conftest() -> None:
    """But for the benchmarks that ship as tests, which are tested."""
    shipped = {path.stem for path in (ROOT / "benchsuite").glob("test_*.py")}
    for file in project_files():
        names = [part for name in file.imports for part in name.split(".")]
        tests = [name for name in names if name == "conftest" or name.startswith("test_")]
        if "tests" in file.path.parts:
            tests = [name for name in tests if name not in shipped]
        assert not tests, f"{file.path.relative_to(ROOT)} imports {tests}"


@pytest.mark.slow
def test_a_public_name_is_defined_once() -> None:
    defined = defaultdict[str, list[str]](list)
    for file in project_files():
        of_a_form = file.path.parent.name == "published"
        for name in file.defines:
            if not PRIVATE_OR_SHARED.fullmatch(name) and not (of_a_form and name in OF_EVERY_FORM):
                defined[name].append(str(file.path.relative_to(ROOT)))
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert not twice


@pytest.mark.slow
def test_a_function_is_short_or_says_why_not() -> None:
    for file in project_files():
        assert not file.long, f"{file.path.relative_to(ROOT)}: {', '.join(file.long)}"


@pytest.mark.slow
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
