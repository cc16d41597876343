"""Names that plugins register, read from their sources without an import: what the registry finds, or nothing."""

from __future__ import annotations

import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from specdec import Registry, SpecdecError, installed
from specdec.installed import HOOKS, LOAD_PLUGINS, plugin_points, registered_names


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOOKS)
def test_the_sources_of_our_plugins_tell_the_names_that_the_registry_has(kind: str) -> None:
    assert registered_names()[kind] == frozenset(Registry().names(kind))


TOLD = """
    @hookimpl
    def specdec_register_drafts(register):
        register("one", One)
        register("two", "one(k=2)")
"""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (TOLD, {"one", "two"}),
        ("def specdec_register_policies(register):\n    register('match', Match)", set()),
        ("def specdec_register_drafts(register):\n    for name in NAMES:\n        register(name, One)", None),
        ("def specdec_register_drafts(register):\n    register(name='one', factory=One)", None),
        ("def specdec_register_drafts(register):\n    add_all(register)", None),
        ("def specdec_register_drafts(register):\n    register('one', One)\n    more = register", None),
        ("from elsewhere import specdec_register_drafts", None),
        ("from elsewhere import mine as specdec_register_drafts", None),
        ("from elsewhere import *", None),
        ("specdec_register_drafts = hookimpl(made())", None),
        ("if True:\n    def specdec_register_drafts(register):\n        register('one', One)", None),
        ("no python", None),
    ],
)
def test_a_source_tells_its_names_or_nothing_is_said(
    source: str, names: set[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs_of_a_test.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("theirs", "theirs_of_a_test", "specdec")]
    monkeypatch.setattr(installed, "entry_points", lambda group: points)
    monkeypatch.delenv(installed.LOAD_PLUGINS, raising=False)
    assert registered_names()["draft"] == (None if names is None else frozenset(names))
    assert "theirs_of_a_test" not in sys.modules


def test_an_object_in_a_module_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("theirs", "theirs:plugin", "specdec")]
    monkeypatch.setattr(installed, "entry_points", lambda group: points)
    monkeypatch.delenv(installed.LOAD_PLUGINS, raising=False)
    assert registered_names()["draft"] is None


DEF = "def specdec_register_drafts(register):\n    "


def installed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **plugins: tuple[str, ...]) -> None:
    """Install distributions, ``_`` for the dot in their names, with plugins of these names."""
    for name, points in plugins.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '.')}\nVersion: 1.0\n")
        lines = ["[specdec]", *(f"{point} = module_of_{point}" for point in points), "[other]", "no = module"]
        (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("allowed", "theirs"),
    [
        (None, {"one", "more", "two"}),
        ("", set()),
        ("Their.One", {"one", "more"}),
        ("their-one, THEIR__two,their_one", {"one", "more", "two"}),
        ("specdec.bench", set()),
    ],
)
def test_plugins_of_the_distributions_that_are_named_are_loaded_after_ours(
    allowed: str | None, theirs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_with(tmp_path, monkeypatch, Their_One=("one", "more"), their_two=("two",))
    monkeypatch.setenv(LOAD_PLUGINS, "")
    ours = [point.name for point in plugin_points()]
    if allowed is None:
        monkeypatch.delenv(LOAD_PLUGINS)
    else:
        monkeypatch.setenv(LOAD_PLUGINS, allowed)
    names = [point.name for point in plugin_points()]
    assert ours
    assert len(names) == len(set(names))
    assert {*names} - {*ours} >= theirs
    if allowed is not None:
        assert names[: len(ours)] == ours
        assert {*names} == {*ours, *theirs}


def test_a_distribution_without_plugins_is_refused_with_those_that_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_with(tmp_path, monkeypatch, their_one=("one",), Zebra=("two",))
    monkeypatch.setenv(LOAD_PLUGINS, "their.one,pytest,nothing")
    with pytest.raises(SpecdecError, match=r"names 'pytest', .* of .*specdec-bench.*, their-one.*, zebra, or nothing"):
        plugin_points()


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["register('one', A)", "register('two', B)"], {"one", "two"}),
        (["register('one', A)", "pass"], {"one"}),
        (["register('one', A)", "register(7, B)"], None),
        (["register(NAME, A)", "register('two', B)"], None),
        (["register('one', A)\n    print(register)"], None),
        (["register()"], None),
    ],
)
def test_the_names_of_all_plugins_are_told_or_none(
    sources: list[str], names: set[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint(f"x{number}", f"theirs{number}_of_a_test", "specdec") for number in range(len(sources))]
    for point, source in zip(points, sources, strict=True):
        text = f"def specdec_register_peers(register): ...\n{DEF}{source}\n"
        (tmp_path / f"{point.module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installed, "entry_points", lambda group: points)
    monkeypatch.delenv(LOAD_PLUGINS, raising=False)
    found = registered_names()
    assert found["draft"] == (None if names is None else frozenset(names))
    assert found["policy"] == frozenset()
