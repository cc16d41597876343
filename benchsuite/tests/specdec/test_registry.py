"""Names, options and owners: public registration, and every error it raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import Make
from specdec import Draft, Registry, SpecdecError, hookimpl, hookspecs
from specdec.installed import HOOKS
from specdec.lists import split_list


def plugin(name: str, factory: Any) -> Any:
    """A plugin object that registers one draft."""

    class Plugin:
        @hookimpl
        def specdec_register_drafts(self, register: Any) -> None:
            register(name, factory)

    return Plugin()


class Silent(Draft):
    """A minimal draft."""

    def __init__(self, env: Any, level: int = 1) -> None: ...

    def propose(self, context: Any) -> Any: ...


def test_built_ins_enter_by_the_public_door() -> None:
    assert registry().names("backend") == ["cpu", "cuda", "flex", "reference", "triton"]
    assert registry().entry("draft", "ngram").owner == "ngram"


def test_every_kind_has_a_documented_hook() -> None:
    for hook in HOOKS.values():
        documented = getattr(hookspecs, hook).__doc__
        assert ":param register:" in documented
        assert "Called once" in documented


def test_a_name_registered_twice_names_both_owners() -> None:
    with pytest.raises(SpecdecError, match=r"'echo' is registered twice, by one and by two.*names in use: echo"):
        Registry({"one": plugin("echo", Silent), "two": plugin("echo", Silent)})


def test_something_that_is_no_factory_is_refused() -> None:
    with pytest.raises(SpecdecError, match="mine registers the draft 'echo' as 3; expected a factory"):
        Registry({"mine": plugin("echo", 3)})


@pytest.mark.parametrize("hook", [lambda: None, lambda add: None], ids=["no-argument", "other-argument"])
def test_a_hook_that_does_not_take_register_is_refused(hook: Any) -> None:
    module = SimpleNamespace()
    module.specdec_register_drafts = hookimpl(hook)
    with pytest.raises(SpecdecError, match="specdec_register_drafts"):
        Registry({"mine": module})


@pytest.mark.parametrize(
    "factory",
    [lambda: None, lambda environment: None, lambda env, needed: None, lambda env, *, needed: None],
    ids=["no-env", "other-name", "needs-a-value", "needs-a-keyword"],
)
def test_a_signature_that_does_not_fit_is_refused_at_registration(factory: Any) -> None:
    with pytest.raises(
        SpecdecError, match=r"mine registers the draft 'echo' with the signature echo\(.*expected echo\(env"
    ):
        Registry({"mine": plugin("echo", factory)})


def test_a_name_that_is_no_name_is_refused() -> None:
    with pytest.raises(SpecdecError, match="'my-draft'; a name is a letter, then letters"):
        Registry({"mine": plugin("my-draft", Silent)})


def test_a_hook_that_does_not_exist_is_refused_with_those_that_do() -> None:
    module = SimpleNamespace()
    module.specdec_register_draughts = hookimpl(lambda register: None)
    with pytest.raises(SpecdecError, match="specdec_register_draughts.*specdec_register_drafts"):
        Registry({"mine": module})


def test_a_factory_that_returns_something_else_is_refused(assemble: Make) -> None:
    build = assemble()
    build.registry = Registry({"mine": plugin("echo", lambda env: 7), **built_ins()})
    with pytest.raises(SpecdecError, match=r"'echo' of mine returned a int; expected a subclass of specdec\.Draft"):
        build.engine("echo")


def built_ins() -> dict[str, Any]:
    """The policy and controller that an engine needs."""
    from specdec_plugins.controllers import fixed
    from specdec_plugins.policies import match

    return {"match": match, "fixed": fixed}


def test_options_are_read_by_position_and_by_name() -> None:
    found = Registry({"mine": plugin("echo", Silent)})
    for text, options in (
        ("echo", {}),
        ("echo(2)", {"level": 2}),
        ("echo(level=2)", {"level": 2}),
        (" echo ( level = two ) ", {"level": "two"}),
        ("echo('a, b')", {"level": "a, b"}),
    ):
        assert found.parse("draft", text)[1] == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ech", r"unknown draft 'ech'; did you mean 'echo'\? choices: echo"),
        ("zzz", "unknown draft 'zzz'; choices: echo"),
        ("echo(depth=1)", r"does not take depth \(in 'echo\(depth=1\)'\); its options: level=1"),
        ("echo(1, 2)", "does not take value number 2"),
        ("echo(1, level=2)", "does not take level"),
        ("echo(1", "cannot read the draft"),
        ("", "cannot read the draft"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_with_the_choices(text: str, message: str) -> None:
    with pytest.raises(SpecdecError, match=message):
        Registry({"mine": plugin("echo", Silent)}).parse("draft", text)


def test_a_draft_that_branches_needs_a_policy_with_trees(assemble: Make) -> None:
    build = assemble()
    branching = type("Branching", (Silent,), {"branches": True})
    from specdec_plugins.policies import rejection

    build.registry = Registry({"mine": plugin("echo", branching), "rejection": rejection, **built_ins()})
    with pytest.raises(SpecdecError, match=r"Branching proposes trees and the policy Rejection reads chains only"):
        build.engine("echo", "rejection")


def test_split_list_cuts_outside_brackets_and_quotes_only() -> None:
    assert split_list("a, b(1, c=[2, 3]), 'd, e' ,,") == ["a", "b(1, c=[2, 3])", "'d, e'"]
