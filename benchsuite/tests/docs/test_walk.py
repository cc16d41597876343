"""docs/walk-through.md is followed as it stands, from the first run to the merge that is blocked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchsuite.tests.pages import blocks, follow
from benchsuite.tests.rig import Python

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "walk-through.md"

pytestmark = pytest.mark.slow


def test_every_command_of_the_walk_through_prints_what_it_says(tmp_path: Path, python: Python) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, text in re.findall(
        r"`([\w.]+)`[^`\n]*(?:\([^)]*\)[^`\n]*)?:\n\n```\w+\n(.*?)^```$", page, re.DOTALL | re.MULTILINE
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {
        "run.yaml",
        "my_bigram.py",
        "pyproject.toml",
        "test_bigram.py",
    }
    follow(page, tmp_path, "my-bigram", python)


def test_it_installs_as_the_readme_does_and_its_pictures_are_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    [install] = blocks("sh", page)
    assert install in (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert pictures
    for picture in pictures:
        assert (PAGE.parent / picture).read_bytes().startswith(b"\x89PNG")
