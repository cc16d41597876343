"""Whose code a launch measures: modules of its own side, of the other, and of the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchsuite.gate.launcher import OTHER, OWN, refuse_foreign_modules
from benchsuite.gate.record import GateError


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function that says what a launch says of one module from a file, with these folders of both sides."""

    def said(name: str, file: str | None, own: str, other: str | None = None) -> str:
        module = ModuleType(name)
        if file is not None:
            module.__file__ = str(tmp_path / file)
        monkeypatch.setattr(sys, "modules", {name: module})
        monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
        monkeypatch.setenv(OWN, os.pathsep.join(str(tmp_path / folder) for folder in own.split()))
        if other is None:
            monkeypatch.delenv(OTHER, raising=False)
        else:
            monkeypatch.setenv(OTHER, str(tmp_path / other) if other else "")
        try:
            refuse_foreign_modules()
        except GateError as error:
            return str(error)
        return ""

    for name in ("ours/pack/__init__.py", "ours/mod.py", "ours/src/deep.py", "theirs/mod.py", "env/site/mod.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return said


@pytest.mark.parametrize(
    ("name", "file", "own", "other", "refused"),
    [
        ("mod", "ours/mod.py", "ours", "theirs", False),
        ("mod", "theirs/mod.py", "ours", "theirs", True),
        ("mod", "theirs/mod.py", "ours", None, True),  # a checkout's module that came from elsewhere
        ("pack", "theirs/pack/__init__.py", "ours", "", True),
        ("deep", "theirs/deep.py", "ours", "theirs", True),
        ("deep", "theirs/deep.py", "ours", None, False),
        ("deep", "theirs/deep.py", "ours", "", False),
        ("deep", "theirs/deep.py", "ours ours/src", "", True),
        ("deep", "ours/src/deep.py", "ours", "theirs", False),
        ("pack.mod", "theirs/pack/mod.py", "ours", "", False),
        ("pack.mod", "theirs/pack/mod.py", "ours", "theirs", True),
        # One side's folder may be in the other's.
        ("deep", "theirs/own/deep.py", "ours theirs/own", "theirs", False),
        # What is installed is nobody's, unless a checkout has it too.
        ("mod", "env/site/mod.py", "ours", "theirs", True),
        ("other", "env/site/other.py", "ours", "theirs", False),
        ("other", "env/site/other.py", "ours", "env", False),
        ("mod", "env/site/mod.py", "env/site", "", True),
        ("mod", None, "ours", "theirs", False),
    ],
)
def test_a_launch_refuses_modules_of_the_other_side_and_installed_copies_of_its_own(
    loaded: Any, tmp_path: Path, name: str, file: str | None, own: str, other: str | None, refused: bool
) -> None:
    said = loaded(name, file, own, other)
    assert bool(said) == refused
    if refused:
        assert f"module {name!r} comes from {tmp_path / (file or '')};" in said
        assert "--gate-path" in said


def test_outside_a_launch_no_module_is_refused(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded("mod", "theirs/mod.py", "ours", "theirs")
    monkeypatch.delenv(OWN)
    refuse_foreign_modules()


def test_the_variables_that_a_launch_of_an_older_checkout_reads_keep_their_names() -> None:
    """The gate of the head sets them, and the code of the base reads them."""
    assert (OTHER, OWN) == ("SPECDEC_GATE_OTHER", "SPECDEC_GATE_OWN")
