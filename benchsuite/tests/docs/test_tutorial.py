"""docs/write-a-plugin.md is run as it stands: its files are the example's, its commands print what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchsuite.tests.pages import blocks, files_written, follow
from benchsuite.tests.rig import Python

ROOT = Path(__file__).parents[3]
TUTORIAL, EXAMPLE = ROOT / "docs" / "write-a-plugin.md", ROOT / "plugins" / "example_repeat"

pytestmark = pytest.mark.slow


def sections() -> dict[str, str]:
    """The page's sections that let the reader run something, by heading."""
    page = TUTORIAL.read_text(encoding="utf-8") if TUTORIAL.exists() else ""
    found = (part.partition("\n") for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    return {heading: text for heading, _, text in found if blocks("console", text)}


def files(last: str) -> dict[str, str]:
    """The files that the tutorial lets the reader write, up to the end of a section."""
    found = sections()
    return files_written("".join(list(found.values())[: list(found).index(last) + 1]))


def test_its_files_are_the_examples() -> None:
    made = files("A draft")
    assert {"pyproject.toml", "example_repeat.py", "test_repeat.py"} <= made.keys()
    for name, text in made.items():
        if (EXAMPLE / name).exists():
            assert text.startswith((EXAMPLE / name).read_text(encoding="utf-8")), name  # the page adds to it later
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLE.glob("*.*"))
    assert lines <= 80


def test_it_has_a_section_for_each_kind() -> None:
    assert list(sections()) == ["A draft", "A policy", "A controller", "A backend"]


@pytest.mark.parametrize("section", sections())
def test_its_commands_print_what_it_says(section: str, tmp_path: Path, python: Python) -> None:
    """Outputs are compared line by line; … stands for whatever differs from run to run."""
    for name, text in files(section).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    follow(sections()[section], tmp_path, "example-repeat", python)
