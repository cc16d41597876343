"""Names that plugins register, read from their sources without an import: what the registry finds, or nothing."""

from __future__ import annotations

import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from specdec import Registry, installed
from specdec.installed import HOOKS, registered_names


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
