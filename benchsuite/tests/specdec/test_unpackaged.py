"""Plugins without a package: which a registry loads, whose they are, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchsuite.conformance.models.tiny import registry
from benchsuite.measure.peers import parse_peer
from specdec import Draft, Registry, SpecdecError, hookimpl
from specdec.installed import LOAD_PLUGINS, registered_names
from specdec.unpackaged import add_plugin_source
from specdec_plugins.drafts import ngram


class SilentDraft(Draft):
    """A minimal draft."""

    def __init__(self, env: Any) -> None: ...

    def propose(self, context: Any) -> Any: ...


def module_with(hook: Callable[[Any], None], name: str = "specdec_register_drafts") -> ModuleType:
    """A module with one hook."""
    made = ModuleType("theirs")
    setattr(made, name, hook)
    return made


def naming(name: str) -> ModuleType:
    """A module that registers a draft under a name."""
    return module_with(lambda register: register(name, SilentDraft))


@contextmanager
def loaded_beside(*plugins: tuple[str, object]) -> Iterator[None]:
    """The running program has these plugins."""
    end = add_plugin_source(lambda: plugins)
    try:
        yield
    finally:
        end()


def test_a_plugin_is_the_running_programs_for_as_long_as_it_says() -> None:
    assert "mine" not in Registry().names("draft")
    with loaded_beside(("/here/conftest.py", naming("mine"))):
        assert Registry().entry("draft", "mine").owner == "/here/conftest.py"
        assert "mine" in registry().names("draft"), "the kit's registry, which was there before"
        with loaded_beside(("/there/conftest.py", naming("theirs"))):
            inner = registry().names("draft")
            assert ("theirs" in inner, "mine" in inner) == (True, False), "a run inside another has plugins of its own"
        assert "mine" in registry().names("draft")
    assert "mine" not in registry().names("draft")


def test_a_peer_of_the_running_program_is_read_by_its_name() -> None:
    def register_alias(register: Any) -> None:
        register("mine", "transformers")

    with pytest.raises(SpecdecError, match="unknown peer 'mine'.*each conftest.py"):
        parse_peer("mine")
    with loaded_beside(("here", module_with(register_alias, "specdec_register_engines"))):
        assert parse_peer("mine").name == "mine"


@pytest.mark.parametrize("mark", [hookimpl, lambda hook: hook], ids=["marked", "bare"])
def test_a_function_with_a_hooks_name_is_the_hook_marked_or_not(mark: Any) -> None:
    def register_mine(register: Any) -> None:
        register("mine", SilentDraft)

    assert Registry({"theirs": module_with(mark(register_mine))}).names("draft") == ["mine"]


def test_what_is_no_function_is_no_hook_and_a_misspelled_hook_is_refused() -> None:
    other: Any = ModuleType("other")
    other.specdec_register_drafts, other.specdec_target = "text", lambda: None
    assert Registry({"other": other}).names("draft") == []
    misspelled = module_with(lambda register: None, "specdec_register_draft")
    with (
        loaded_beside(("here", misspelled)),
        pytest.raises(SpecdecError, match="unknown hook 'specdec_register_draft' .*hooks are specdec_register_drafts,"),
    ):
        Registry()


def test_two_files_with_one_name_are_refused_with_both() -> None:
    both = ("/a/conftest.py", naming("mine")), ("/a/b/conftest.py", naming("mine"))
    with (
        loaded_beside(*both),
        pytest.raises(SpecdecError, match="twice, by /a/conftest.py and by /a/b/conftest.py; rename"),
    ):
        Registry()
    with (
        loaded_beside(("/a/conftest.py", naming("ngram"))),
        pytest.raises(SpecdecError, match="by ngram and by /a/conftest"),
    ):
        Registry()


def test_an_installed_plugin_that_the_program_has_loaded_too_is_registered_once() -> None:
    with loaded_beside(("ngram.py", ngram)):
        assert Registry().entry("draft", "ngram").owner == "ngram"


@pytest.mark.parametrize("raised", [NameError("x"), SystemExit(2)], ids=["error", "exit"])
def test_a_hook_that_raises_is_refused_with_its_owner(raised: BaseException) -> None:
    def register_none(register: Any) -> None:
        raise raised

    with pytest.raises(SpecdecError, match=f"the hook specdec_register_drafts of mine raised {type(raised).__name__}"):
        Registry({"mine": module_with(register_none)})


def test_the_error_of_an_unknown_name_says_how_plugins_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed, said in (("", "packages that SPECDEC_LOAD_PLUGINS= allows (entry"), (None, "packages (entry points")):
        monkeypatch.delenv(LOAD_PLUGINS, raising=False)
        if allowed is not None:
            monkeypatch.setenv(LOAD_PLUGINS, allowed)
        with pytest.raises(SpecdecError) as refused:
            Registry().entry("draft", "zzz")
        assert f"Plugins are found in the installed {said}" in str(refused.value)
        assert "conftest.py" in str(refused.value)
    with pytest.raises(SpecdecError, match="choices: mine$"):
        Registry({"a": naming("mine")}).entry("draft", "zzz")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def specdec_register_drafts(register):\n    register('mine', Mine)", {"mine"}),
        ("from elsewhere import specdec_register_drafts", None),
    ],
)
def test_names_are_told_by_a_files_source_or_not_at_all(source: str, names: set[str] | None, tmp_path: Path) -> None:
    made = naming("mine")
    made.__file__ = str(tmp_path / "conftest.py")
    Path(made.__file__).write_text(source)
    before = registered_names()["draft"]
    assert before is not None
    with loaded_beside((made.__file__, made)):
        assert registered_names()["draft"] == (None if names is None else before | names)
        Path(made.__file__).unlink()
        assert registered_names()["draft"] is None
