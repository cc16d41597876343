"""Where a side of the gate has a plugin's code, and what it registers: of checkouts that are made up, and installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from benchsuite.gate.sources import folders_on_path, own_packages

Checkout = Callable[..., Path]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Make a checkout of these files, by their paths; those named ``ignored`` are known to git alone as such."""

    def made(name: str, files: Mapping[str, str], ignored: str = "") -> Path:
        top = tmp_path / name
        for path, text in {**files, ".gitignore": ignored}.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_text(text)
        subprocess.run(["git", "init", "-q"], cwd=top, check=True)
        return top

    return made


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install ``My.Draft``, which registers ``mine`` and ``other``, and a package of somebody else."""
    site = tmp_path / "site"
    for name, points in {"My.Draft": "mine = my_draft\nother = my_draft.other:plugin", "theirs": "it = theirs"}.items():
        info = site / f"{name.replace('.', '_')}-2.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
        (info / "entry_points.txt").write_text(f"[specdec]\n{points}\n")
    monkeypatch.syspath_prepend(str(site))
    return site


def project(points: str, name: str = "my_draft") -> str:
    return f'[project]\nname = "{name}"\nversion = "1"\n{points}'


BOTH = {"src/my_draft/__init__.py": "", "src/my_draft/other.py": ""}
MINE = project('[project.entry-points]\nspecdec.mine = "my_draft"\nx.a = "my_draft:b"\n')


WAS = MINE.replace('mine = "my_draft"', 'mine = "was"').replace("my_draft:b", "was:b")


@pytest.mark.parametrize(
    ("files", "folder", "points"),
    [
        # The base's own layout, and what it declares itself.
        ({"my_draft.py": "", "pyproject.toml": MINE}, ".", {"specdec": {"mine": "my_draft"}, "x": {"a": "my_draft:b"}}),
        ({"a/b/my_draft.py": "", "a/pyproject.toml": MINE, "pyproject.toml": project("", "all")}, "a/b", None),
        ({"src/my_draft/__init__.py": "", "x/y/my_draft.py": "", "pyproject.toml": MINE}, "src", None),
        ({"old/was.py": "", "pyproject.toml": WAS}, "old", None),
        ({"my_draft.py": "", "pyproject.toml": project("")}, None, {}),
        # It says nothing: what is installed, as far as it is there.
        ({"my_draft.py": ""}, ".", {"specdec": {"mine": "my_draft"}}),
        ({"my_draft.py": "", "pyproject.toml": "no TOML ["}, ".", {"specdec": {"mine": "my_draft"}}),
        ({**BOTH, "pyproject.toml": project('dynamic = ["entry-points"]')}, "src", None),
        ({"README": ""}, None, {}),
    ],
)
def test_a_side_has_its_own_layout_and_registers_what_it_declares(
    files: dict[str, str], folder: str | None, points: object, checkout: Checkout, installed: Path
) -> None:
    root, top = checkout("ours", {**BOTH, "pyproject.toml": MINE}), checkout("base", files)
    [found] = own_packages(root, top)
    assert (found.name, found.version) == ("My.Draft", "2.5")
    assert [*found.folders] == ([] if folder is None else [top / folder])
    if points is not None:
        assert found.points == points
    assert own_packages(top, top)[:1] == ([found] if any("my_draft" in name for name in files) else [])


def test_a_package_whose_code_lies_elsewhere_is_not_the_checkouts(
    checkout: Checkout, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are copies of it: what git ignores, and an environment in the checkout."""
    copies = {"build/lib/my_draft.py": "", "env/site/my_draft/__init__.py": "", "my_drafts.py": "", "amy_draft.py": ""}
    top = checkout("ours", {**copies, "pyproject.toml": MINE}, ignored="build/\n")
    monkeypatch.setattr(sys, "prefix", str(top / "env"))
    assert own_packages(top, top) == []
    (top / "src").mkdir()
    (top / "src" / "my_draft.py").touch()
    assert [one.folders for one in own_packages(top, top)] == [(top / "src",)]


def test_what_is_written_hides_what_is_installed_of_that_package_alone(
    checkout: Checkout, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def registered() -> dict[str, str]:
        return {point.name: point.value for point in entry_points(group="specdec")}

    before = registered()
    assert {"mine", "other", "it"} <= before.keys()
    root = checkout("ours", {**BOTH, "pyproject.toml": MINE})
    base = checkout("base", {"my_draft.py": "", "pyproject.toml": MINE.replace("mine", "earlier")})
    own_packages(root, base)[0].write(tmp_path / "first")
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    kept = {name: value for name, value in before.items() if name not in ("mine", "other")}
    assert registered() == {**kept, "earlier": "my_draft"}
    assert [point.value for point in entry_points(group="x")] == ["my_draft:b"]
    assert version("my-draft") == "2.5"


def test_the_folders_of_a_checkout_on_the_path_are_those_of_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = ["", "top/src", "top", "elsewhere", "top/env/site", "top/src/../src", "topmost"]
    monkeypatch.setattr(sys, "path", [str(tmp_path / one) if one else "" for one in inside])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "top" / "env"))
    assert folders_on_path(tmp_path / "top") == [Path("src"), Path()]
