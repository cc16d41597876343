"""The lowest versions that ``make test-oldest`` installs: bounds become pins, and an unknown extra is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchsuite.workshop import lowest

PYPROJECT = Path(lowest.__file__).parents[2] / "pyproject.toml"

PROJECT = """
[project]
name = "mine"
dependencies = ["numpy>=2.1", "torch >= 2.11; sys_platform != 'win32'", "rich"]
[project.optional-dependencies]
far = ["httpx[http2]>=0.27"]
dev = ["mine[far]", "mypy==1.19.0"]
"""


@pytest.fixture
def pyproject(tmp_path: Path) -> Path:
    file = tmp_path / "pyproject.toml"
    file.write_text(PROJECT, encoding="utf-8")
    return file


def test_each_bound_is_a_pin(pyproject: Path) -> None:
    needed = ["numpy==2.1", "torch ==2.11; sys_platform != 'win32'", "rich"]
    assert list(lowest.lowest_versions(pyproject)) == needed
    assert list(lowest.lowest_versions(pyproject, ["far", "dev"])) == [*needed, "httpx[http2]==0.27", "mypy==1.19.0"]


def test_an_unknown_extra_is_refused_with_the_choices(pyproject: Path) -> None:
    with pytest.raises(ValueError, match=r"no extra 'near' in .*; choices: far, dev"):
        list(lowest.lowest_versions(pyproject, ["near"]))


def test_every_requirement_of_a_user_has_a_bound() -> None:
    """The file runs before anything is installed: with no package of this project, nor any other, at hand."""
    asked = [sys.executable, "-I", "-S", lowest.__file__, "triton", "endpoints", "slurm", "mutate"]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in printed if "==" not in line] == []
    assert any(line.startswith("torch==") for line in printed)
