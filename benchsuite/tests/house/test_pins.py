"""Tests that restate the code: how many there are stands in docs/status.md, so that one more of them is seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "benchsuite" / "tests"
PINS = TESTS / "pins"
CODE = [ROOT / "specdec", ROOT / "kernels", ROOT / "plugins", ROOT / "benchsuite"]

PRIVATE = re.compile(r"(?:self|cls)\.(_[a-z]\w*)|^\s*(?:async )?def (_[a-z]\w*)", re.MULTILINE)
"""Attributes and functions of our code that are private."""


def functions_of(folder: Path) -> Iterator[tuple[Path, ast.FunctionDef]]:
    """The test functions below a folder, with their files."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield path, node


def private_names() -> set[str]:
    """What is private in the code that is tested."""
    files = (path for folder in CODE for path in folder.rglob("*.py") if TESTS not in path.parents)
    return {one or two for path in files for one, two in PRIVATE.findall(path.read_text(encoding="utf-8"))}


def reads_one(test: ast.FunctionDef, private: set[str]) -> bool:
    """Whether a test itself reads something private of an object or module."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in private
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        for node in ast.walk(test)
    )


@pytest.mark.slow
def test_the_numbers_of_pins_and_of_tests_that_read_what_is_private_are_those_that_status_says() -> None:
    text = (ROOT / "docs" / "status.md").read_text(encoding="utf-8")
    [said] = re.findall(r"has (\d+) tests that restate the code; elsewhere (\d+) tests read a private attribute", text)
    private = private_names()
    elsewhere = [one for path, one in functions_of(TESTS) if PINS not in path.parents and reads_one(one, private)]
    assert said == (str(len([*functions_of(PINS)])), str(len(elsewhere))), "fewer is better: mend docs/status.md"
