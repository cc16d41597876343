"""What the registry says and reads: listings, options, aliases, K, backends in order, and whose plugins are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import pytest

from specdec import Backend, Controller, Draft, Peer, Registry, SpecdecError, hookimpl, installed
from specdec.lists import split_list
from specdec.registry import Entry

HOOKS_OF = {
    "draft": "specdec_register_drafts",
    "policy": "specdec_register_policies",
    "controller": "specdec_register_controllers",
    "backend": "specdec_register_backends",
    "peer": "specdec_register_engines",
}


def registers(**found: Mapping[str, Any]) -> Any:
    """A plugin that registers these names of each kind."""

    def registering(names: Mapping[str, Any]) -> Callable[[Any], None]:
        def implementation(register: Any) -> None:
            for name, factory in names.items():
                register(name, factory)

        return implementation

    return SimpleNamespace(**{HOOKS_OF[kind]: hookimpl(registering(names)) for kind, names in found.items()})


class ShownDraft(Draft):
    """Proposes what it is shown,
    and nothing else.

    More of it.

    Source: a paper
    by Source: somebody.
    """

    def __init__(
        self,
        env: object,
        rate: Annotated[float, 3, "share of right ones", "another note"] = 0.5,
        name: str = "a",
    ) -> None: ...

    def propose(self, context: Any) -> Any: ...


def silent(env: object, *more: object, level: Annotated[int, "how much"] = 2, **rest: object) -> Any: ...


def unnamed(env: object, thing: Nowhere = 3) -> Any:  # type: ignore[name-defined]  # noqa: F821
    """Has an annotation that cannot be found."""


def test_an_entry_knows_its_options_their_meanings_its_first_paragraph_and_its_source() -> None:
    shown = Entry(ShownDraft, "me", ("env",))
    assert shown.options == {"rate": 0.5, "name": "a"}
    assert shown.meanings == {"rate": "share of right ones", "name": ""}
    assert shown.summary == "Proposes what it is shown, and nothing else."
    assert shown.source == "a paper by Source: somebody."
    assert shown.described == "rate=0.5, name='a'"
    assert (shown.k_option, shown.alias, shown.preset) == ("", "", {})
    preset = Entry(ShownDraft, "me", ("env",), "shown(0.7)", {"rate": 0.7})
    assert preset.options == {"rate": 0.7, "name": "a"}
    quiet = Entry(silent, "me", ("env",))
    assert quiet.meanings == {"more": "", "level": "how much", "rest": ""}
    assert (quiet.summary, quiet.source) == ("", "")
    assert Entry(unnamed, "me", ("env",)).meanings == {"thing": ""}
    assert Entry(lambda: 0, "me", ()).described == "none"
    for option, found in (("n", "n"), (None, "")):
        factory: Any = SimpleNamespace(k_option=option)
        assert Entry(factory, "me", ()).k_option == found


def test_a_listing_has_every_kind_with_names_options_and_sources() -> None:
    found = Registry(
        {
            "mine": registers(
                draft={"shown": ShownDraft, "brief": "shown(rate=1)"}, policy={"unnamed": unnamed, "silent": silent}
            )
        }
    )
    whole = """draft:

  brief
    the same as shown(rate=1)

  shown
    Proposes what it is shown, and nothing else.
      rate=0.5: share of right ones
      name='a': (not described)
    source: a paper by Source: somebody.

policy:

  silent
    (no description)
      more=<class 'inspect._empty'>: (not described)
      level=2: how much
      rest=<class 'inspect._empty'>: (not described)
    source: mine

  unnamed
    Has an annotation that cannot be found.
      thing=3: (not described)
    source: mine

controller:

backend:

peer:
"""
    assert found.listing() == whole
    narrow = found.listing(30)
    assert "    Proposes what it is shown,\n      and nothing else.\n" in narrow
    assert "      rate=0.5: share of right\n        ones\n" in narrow
    assert "    source: a paper by Source:\n      somebody.\n" in narrow
    assert "    the same as shown(rate=1)\n" in narrow

    def wide(env: object) -> Any: ...

    for size in (96, 97):  # and four spaces: 100 characters fit
        wide.__doc__ = "a" * (size - 2) + " b"
        lines = Registry({"mine": registers(draft={"wide": wide})}).listing().splitlines()
        assert (f"    {wide.__doc__}" in lines) == (size == 96)
    file = f"/{'some-where/' * 12}conftest.py"
    assert f"    source: {file}" in Registry({file: registers(draft={"wide": wide})}).listing().splitlines()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" , ,", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        (" a , b c ", ["a", "b c"]),
        ("a(1,2),b", ["a(1,2)", "b"]),
        ("a([1,2],3),b", ["a([1,2],3)", "b"]),
        ("a({1,2},(3,4)),b,c", ["a({1,2},(3,4))", "b", "c"]),
        ("[a,b],c", ["[a,b]", "c"]),
        ("{a,b},c", ["{a,b}", "c"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'a\"',b", ["'a\"'", "b"]),
        ("'(',b", ["'('", "b"]),
        ("')',b,(c,d)", ["')'", "b", "(c,d)"]),
        ("'a''b',c", ["'a''b'", "c"]),
        ("a)b,c", ["a)b,c"]),
        ("a(b,c", ["a(b,c"]),
    ],
)
def test_a_list_is_cut_at_commas_outside_brackets_and_quotes(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


def shown_registry() -> Registry:
    """A registry of one draft."""
    return Registry({"mine": registers(draft={"shown": ShownDraft})})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("shown", {}),
        ("\nshown\n(\n)\n", {}),
        ("shown()", {}),
        ("shown(1)", {"rate": 1}),
        ("shown(\n0.25,\n'x')", {"rate": 0.25, "name": "x"}),
        ("shown(name=a=b)", {"name": "a=b"}),
        ("shown(name=(1, 2), rate=True)", {"name": (1, 2), "rate": True}),
        ("shown(1, name = a b )", {"rate": 1, "name": "a b"}),
        ("shown(rate=1, 2)", {"rate": 1, "name": 2}),  # by its place in the text
    ],
)
def test_options_are_python_values_or_texts(text: str, options: dict[str, Any]) -> None:
    entry, found = shown_registry().parse("draft", text)
    assert (entry.factory, found) == (ShownDraft, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shown(1, 2, 3)", "does not take value number 3 (in 'shown(1, 2, 3)'); its options: rate=0.5, name='a'"),
        ("shown(1, rate=2)", "does not take rate (in 'shown(1, rate=2)'); its options: rate=0.5, name='a'"),
        ("shown(env=1)", "does not take env (in 'shown(env=1)'); its options: rate=0.5, name='a'"),
    ],
)
def test_an_option_that_is_not_there_or_is_set_twice_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        shown_registry().parse("draft", text)
    assert str(refused.value) == f"the draft 'shown' {message}"


@pytest.mark.parametrize("text", ["", "shown(", "sho wn", "shown)(", "(1)", "shown(1) x"])
def test_a_text_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        shown_registry().parse("draft", text)
    assert str(refused.value) == f"cannot read the draft {text!r}; expected name or name(option=value, …)"


def test_an_alias_has_its_own_owner_and_the_options_of_all_that_it_stands_for() -> None:
    first = registers(draft={"shorter": "short(name=b)"})
    found = Registry(
        {"first": registers(draft={"short": "shown(rate=0.7)"}), "second": registers(draft={"shown": ShownDraft})}
    )
    assert found.entry("draft", "short") == Entry(ShownDraft, "first", ("env",), "shown(rate=0.7)", {"rate": 0.7})
    assert found.entry("draft", "shown") == Entry(ShownDraft, "second", ("env",))
    found.add("draft", "shorter", "short(name=b)", "third")
    assert found.entry("draft", "shorter") == Entry(
        ShownDraft, "third", ("env",), "short(name=b)", {"rate": 0.7, "name": "b"}
    )
    assert found.names("draft") == ["short", "shorter", "shown"]
    with pytest.raises(SpecdecError, match="^unknown draft 'short'; choices: none$"):
        Registry({"first": first})


def test_what_may_not_be_registered_is_refused_with_its_owner() -> None:
    found = shown_registry()

    def refused(name: str, factory: Any, kind: str = "draft") -> str:
        with pytest.raises(SpecdecError) as error:
            found.add(kind, name, factory, "theirs")
        return str(error.value)

    for name in ("", "1a", "_a", "a-b", "é", " a", "a "):
        assert refused(name, ShownDraft) == (
            f"theirs registers the draft {name!r}; a name is a letter, then letters, digits and _"
        )
    assert refused("shown", ShownDraft) == (
        "the draft 'shown' is registered twice, by mine and by theirs; rename one or take one out (names in use: shown)"
    )
    assert refused("x", 3) == "theirs registers the draft 'x' as 3; expected a factory to call"
    expected = "expected x(env, **options) where every option has a default"
    cases: list[tuple[Any, str]] = [
        (lambda: 0, "()"),
        (lambda env, needed: 0, "(env, needed)"),
        (lambda env, *, needed: 0, "(env, *, needed)"),
        (lambda *env: 0, "(*env)"),
        (lambda *, env: 0, "(*, env)"),
        (lambda level=1, env=2: 0, "(level=1, env=2)"),
    ]
    for factory, signature in cases:
        assert refused("x", factory) == (f"theirs registers the draft 'x' with the signature x{signature}; {expected}")
    assert refused("x", lambda needed: 0, "backend") == (
        "theirs registers the backend 'x' with the signature x(needed); expected x(**options) where every option has a "
        "default"
    )

    def plain(env: object, level: int = 1) -> Any: ...

    plain.k_option = "levels"  # type: ignore[attr-defined]
    assert refused("x", plain, "controller") == (
        "theirs registers the controller 'x', whose k_option is 'levels', which its factory does not take; its "
        "options: level=1. Name the one that K sets, or None if it takes no K"
    )
    found.add("draft", "any", plain, "theirs")  # K is a controller's
    able: dict[str, Any] = {"A1_": silent, "b": lambda env, /: 0, "c": lambda env, level=1, *, rate=2: 0}
    for name, factory in able.items():
        found.add("policy", name, factory, "theirs")
    assert found.names("policy") == ["A1_", "b", "c"]

    def no_register(names: Any) -> None: ...

    with pytest.raises(SpecdecError) as error:
        Registry._registered("draft", SimpleNamespace(plugin_name="theirs", argnames=("names",), function=no_register))  # type: ignore[arg-type]
    assert str(error.value) == "the hook specdec_register_drafts of theirs must take the argument 'register'"


class StepsController(Controller):
    """Its K is the option ``most``."""

    k_option: str | None = "most"

    def __init__(self, env: object, speed: Any = 3, most: Any = 4) -> None:
        self.given = env, speed, most

    @property
    def max_k(self) -> int:
        return int(self.given[2])

    def next_k(self, stats: Any) -> int:
        return self.max_k


class FreeController(StepsController):
    """It takes no K."""

    k_option = None


def controllers() -> Registry:
    """A registry of two controllers, and of two names for them."""
    return Registry(
        {
            "mine": registers(
                controller={"steps": StepsController, "free": FreeController, "fast": "steps(speed=9, most=7)"}
            )
        }
    )


@pytest.mark.parametrize(
    ("text", "k", "bare", "chosen", "built"),
    [
        ("steps", None, "steps", 4, (3, 4)),
        ("steps", 0, "steps", 0, (3, 0)),
        ("steps(most=0)", None, "steps", 0, (3, 0)),
        ("steps(most=6)", 6, "steps", 6, (3, 6)),
        (" steps ( 5 , 6 ) ", None, "steps(speed=5)", 6, (5, 6)),
        ("steps(speed='(')", 2, "steps(speed='(')", 2, ("(", 2)),
        ("free", None, "free", None, (3, 4)),
        ("free(speed=2)", None, "free(speed=2)", None, (2, 4)),
        ("fast", None, "fast", 7, (9, 7)),
        ("fast(speed=1)", 2, "fast(speed=1)", 2, (1, 2)),
    ],
)
def test_k_is_given_apart_or_in_a_controllers_text(
    text: str, k: int | None, bare: str, chosen: int | None, built: tuple[int, ...]
) -> None:
    assert controllers().split_k(text, k) == (bare, chosen)
    made: Any = controllers().controller(text, "the env", k)  # type: ignore[arg-type]
    assert made.given == ("the env", *built)


@pytest.mark.parametrize(
    ("text", "k", "message"),
    [
        ("free(speed=1)", 0, "the controller 'free(speed=1)' takes no K, got 0; its options: speed=3, most=4"),
        ("steps(most=0)", 5, "the controller 'steps(most=0)' sets most=0 and K = 5 is given too; leave one out"),
        ("steps(most=5)", 0, "the controller 'steps(most=5)' sets most=5 and K = 0 is given too; leave one out"),
        ("steps(most=True)", None, "most of the controller 'steps(most=True)' is True; expected a whole number"),
        ("steps(most=2.0)", None, "most of the controller 'steps(most=2.0)' is 2.0; expected a whole number"),
    ],
)
def test_a_k_that_does_not_fit_is_refused(text: str, k: int | None, message: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        controllers().split_k(text, k)
    assert str(refused.value) == message


def backend_of(name: str, priority: int, why: str | None = None) -> Any:
    """The factory of a backend, which is missing for a reason."""
    hollow = dict.fromkeys(Backend.__abstractmethods__)
    taking = {"takes": lambda self, op, *tensors: True, "missing": lambda self: why}
    return type(name, (Backend,), {**hollow, **taking, "name": name, "priority": priority})


def several_backends() -> Registry:
    """A registry of five backends, one of which is slower than the reference and two of which cannot run."""
    factories = {
        "reference": backend_of("reference", 10),
        "slow": backend_of("slow", 5),
        "quick": backend_of("quick", 20),
        "quicker": backend_of("quicker", 30, "no such machine"),
        "quickest": backend_of("quickest", 40),
        "gone": backend_of("gone", 3, "gone"),
    }
    return Registry({"mine": registers(backend=factories)})


@pytest.mark.parametrize(
    ("given", "chain", "absent"),
    [
        ((), ["quickest", "quick", "reference"], ["quicker: no such machine"]),
        (("auto",), ["quickest", "quick", "reference"], ["quicker: no such machine"]),
        (("reference",), ["reference"], []),
        (("slow",), ["slow", "reference"], []),
        (("quick",), ["quick", "reference"], []),
    ],
)
def test_backends_are_asked_in_the_order_of_their_priority_and_a_named_one_first(
    given: tuple[str, ...], chain: list[str], absent: list[str]
) -> None:
    ops = several_backends().backend(*given)
    assert [backend.name for backend in ops.chain] == chain
    assert ops.absent("cpu") == absent
    assert (ops.name, ops.priority) == (ops.chain[0].name, ops.chain[0].priority)
    assert ops.takes("anything")
    with pytest.raises(SpecdecError) as refused:
        several_backends().backend("quicker")
    assert str(refused.value) == "the backend 'quicker' cannot run here: no such machine"


class AskedPeer(Peer):
    """A peer that notes with which options it was asked and made."""

    asked: ClassVar[list[Any]] = []
    why: str | None = None

    def __init__(self, env: object, speed: int = 3, name: str = "a") -> None:
        self.asked.append(("made", env, speed, name))

    @classmethod
    def check_options(cls, **options: object) -> None:
        cls.asked.append(options)

    @classmethod
    def missing(cls) -> str | None:
        return cls.why

    def generate(self, requests: Any) -> Any: ...

    def described(self) -> str:
        return "asked"


def test_a_peers_options_and_machine_are_checked_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Registry({"mine": registers(peer={"asked": AskedPeer, "made": lambda env, speed=1: AskedPeer(env, speed)})})
    asked = AskedPeer.asked
    asked.clear()
    entry, options = found.parse_peer("asked(speed=5)")
    assert (entry.factory, options) == (AskedPeer, {"speed": 5, "name": "a"})
    assert asked == [{"speed": 5, "name": "a"}]
    asked.clear()
    env: Any = "the env"
    assert isinstance(found.peer("asked(name=b)", env), AskedPeer)
    assert asked == [{"speed": 3, "name": "b"}, ("made", "the env", 3, "b")]
    asked.clear()
    assert found.parse_peer("made")[1] == {"speed": 1}
    assert isinstance(found.peer("made(7)", env), AskedPeer)
    assert asked == [("made", "the env", 7, "a")], "a function has nothing to ask"
    monkeypatch.setattr(AskedPeer, "why", "no such machine")
    for call in (lambda: found.parse_peer("asked"), lambda: found.peer("asked", env)):
        with pytest.raises(SpecdecError) as refused:
            call()
        assert str(refused.value) == "the peer 'asked' cannot run here: no such machine"


def test_what_cannot_be_built_is_refused_with_its_owner_and_options() -> None:
    def fails(env: object, level: int = 1) -> Any:
        raise ValueError("too little")

    def wrong(env: object) -> Any:
        return 7

    found = Registry({"mine": registers(draft={"fails": fails, "wrong": wrong}, policy={"wrong": wrong})})
    env: Any = None
    with pytest.raises(SpecdecError) as refused:
        found.draft("fails(2)", env)
    said = "the draft 'fails(2)' of mine could not be built: ValueError: too little; its options: level=1"
    assert str(refused.value) == said
    for build, kind in ((found.draft, "Draft"), (found.policy, "Policy")):
        with pytest.raises(SpecdecError) as refused:
            build("wrong", env)
        assert str(refused.value) == (
            f"the {kind.lower()} factory 'wrong' of mine returned a int; expected a subclass of specdec.{kind}"
        )


class PointOf:
    """An entry point of a distribution."""

    value = "module:thing"

    def __init__(self, package: str | None, name: str, loaded: Any = None) -> None:
        self.name, self._loaded = name, loaded
        self.dist = None if package is None else PACKAGES.setdefault(package, SimpleNamespace(name=package))

    def load(self) -> Any:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


PACKAGES: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("allowed", "chosen"),
    [
        (None, ["a", "d", "f", "b", "c", "e"]),
        ("", ["b"]),
        ("Their_Package", ["b", "a", "d", "f"]),
        ("their.package, other", ["b", "a", "d", "f", "c"]),
        ("other,their--package,other", ["b", "c", "a", "d", "f"]),
    ],
)
def test_plugins_are_those_of_all_distributions_or_of_ours_and_the_listed_ones(
    allowed: str | None, chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = "Their-Package"
    points: list[Any] = [
        *(PointOf(theirs, "a"), PointOf("specdec_bench", "b"), PointOf("other", "c")),
        *(PointOf(theirs, "d"), PointOf(None, "e"), PointOf(theirs, "f")),
    ]
    monkeypatch.delenv("SPECDEC_LOAD_PLUGINS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("SPECDEC_LOAD_PLUGINS", allowed)
    monkeypatch.setattr(installed, "entry_points", lambda group: points)
    assert [point.name for point in installed.plugin_points()] == chosen


def test_a_distribution_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[Any] = [PointOf("zeta", "a"), PointOf("specdec-bench", "b")]
    monkeypatch.setenv("SPECDEC_LOAD_PLUGINS", "zeta, gamma, delta")
    monkeypatch.setattr(installed, "entry_points", lambda group: points)
    with pytest.raises(SpecdecError) as refused:
        installed.plugin_points()
    assert str(refused.value) == (
        "SPECDEC_LOAD_PLUGINS names 'gamma', which is no installed distribution with plugins; expected a comma list of "
        "specdec-bench, zeta, or nothing for specdec-bench alone"
    )


@pytest.mark.parametrize(("allowed", "refused"), [(None, True), ("zeta, gamma", True), ("zeta", False), ("", False)])
def test_one_name_of_two_distributions_is_refused_by_both_while_both_are_loaded(
    allowed: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second had replaced the first without a word, and the first's drafts were unknown."""
    points: list[Any] = [PointOf("zeta", "a"), PointOf("specdec-bench", "b"), PointOf("gamma", "a")]
    monkeypatch.delenv("SPECDEC_LOAD_PLUGINS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("SPECDEC_LOAD_PLUGINS", allowed)
    monkeypatch.setattr(installed, "entry_points", lambda group: points)
    if not refused:
        assert len({point.name for point in installed.plugin_points()}) == len(installed.plugin_points())
        return
    for reader in (installed.plugin_points, installed.registered_names, Registry):
        with pytest.raises(SpecdecError) as said:
            reader()
        assert str(said.value) == (
            "two plugins have the name 'a' among the entry points of the group specdec: module:thing of zeta and "
            "module:thing of gamma; rename one, uninstall one, or list the distributions to load in "
            "SPECDEC_LOAD_PLUGINS"
        )


def test_a_plugin_that_cannot_be_imported_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_LOAD_PLUGINS", raising=False)
    groups: list[Any] = []

    def points(*given: Any) -> Callable[..., list[Any]]:
        return lambda group: groups.append(group) or list(given)  # type: ignore[func-returns-value]

    mine = registers(draft={"shown": ShownDraft})
    monkeypatch.setattr(
        installed, "entry_points", points(PointOf("zeta", "a", mine), PointOf(None, "b", SimpleNamespace()))
    )
    found = Registry()
    assert groups == ["specdec"]
    assert (found.names("draft"), found.entry("draft", "shown").owner) == (["shown"], "a")
    for package, said in (("zeta", "zeta"), (None, "an unknown package")):
        monkeypatch.setattr(installed, "entry_points", points(PointOf(package, "a", KeyError("x"))))
        with pytest.raises(SpecdecError) as refused:
            Registry()
        assert str(refused.value) == (
            f"the plugin 'a' (module:thing) of {said} cannot be imported: KeyError: 'x'; mend or uninstall it"
        )


class TypedController(Controller):
    """Has an option of each kind of annotation."""

    def __init__(
        self,
        env: object,
        count: Annotated[int, "so many"] = 1,
        share: float = 0.5,
        sure: bool = False,
        name: str = "a",
        most: int | None = None,
    ) -> None:
        self.given = count, share, sure, name, most

    @property
    def max_k(self) -> int:
        return 1

    def next_k(self, stats: object) -> int:
        return 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("count=many", "count of the controller 'typed(count=many)' is 'many'; expected a whole number; its options: "),
        ("count=2.0", "is 2.0; expected a whole number"),
        ("count=True", "is True; expected a whole number"),
        ("share=half", "is 'half'; expected a number"),
        ("share=None", "is None; expected a number"),
        ("sure=1", "is 1; expected True or False"),
        ("sure=yes", "is 'yes'; expected True or False"),
        ("count=2, share=1, sure=True, name=3, most=many", None),
        ("count=-2, share=1e9, name=None, most=1.5", None),
    ],
)
def test_a_value_of_another_type_than_its_option_is_refused_with_what_was_expected(text: str, said: str | None) -> None:
    """An option that may be a text or of several types is the factory's own to judge."""
    known = Registry({"mine": registers(controller={"typed": TypedController})})
    env: Any = None
    if said is None:
        known.controller(f"typed({text})", env)
        return
    with pytest.raises(SpecdecError) as refused:
        known.controller(f"typed({text})", env)
    assert said in str(refused.value)
