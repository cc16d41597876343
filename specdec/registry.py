"""The registered factories by kind and name, and the parser of ``name(option=value)``."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_type_hints

import pluggy

from specdec import hookspecs
from specdec.changes import since
from specdec.errors import RAISED, SpecdecError, unknown
from specdec.installed import HOOKS, how_found, package_of, plugin_points
from specdec.interfaces import Backend, Controller, Draft, Env, Factory, Policy
from specdec.lists import split_list
from specdec.ops import Ops
from specdec.peer import Peer, PeerEnv
from specdec.unpackaged import PREFIX, unpackaged_plugins

T = TypeVar("T")

GIVEN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"draft": ("env",), "policy": ("env",), "controller": ("env",), "backend": (), "peer": ("env",)}
)
"""Of each kind, the arguments that the engine gives its factories."""


TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = MappingProxyType(
    {
        int: ((int,), "a whole number"),
        float: ((int, float), "a number"),
        float | None: ((int, float, type(None)), "a number"),
        bool: ((bool,), "True or False"),
    }
)
"""Of each type that an option is annotated with, the types of the values that it takes, and words for them."""


@dataclass(frozen=True)
class Entry:
    """One registered factory and the plugin that owns it.

    ``given`` are the parameters that the engine fills in. For an alias, ``alias`` is the text that it stands for and
    ``preset`` holds the options that this text sets; both are empty for any other name.
    """

    factory: Factory
    owner: str
    given: tuple[str, ...]
    alias: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, object]:
        """The options that the user may set, with their defaults: the factory's parameters except ``given``."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {p.name: self.preset.get(p.name, p.default) for p in parameters if p.name not in self.given}

    @property
    def k_option(self) -> str:
        """The name of the option that K sets, for a controller that takes K (``Controller.k_option``); else empty."""
        return getattr(self.factory, "k_option", None) or ""

    @property
    def meanings(self) -> dict[str, str]:
        """The meaning of each option: the text in its annotation, ``Annotated[int, "longest run …"]``."""
        hints = _hints(self.factory)
        notes = {name: getattr(hints.get(name), "__metadata__", ()) for name in self.options}
        return {name: next((note for note in found if isinstance(note, str)), "") for name, found in notes.items()}

    def expected(self, option: str, value: object) -> str:
        """What an option takes, if ``value`` is of another type than its annotation says; else empty.

        Annotations other than ``int``, ``float``, ``float | None`` and ``bool`` are not judged.
        """
        hint = _hints(self.factory).get(option)
        types, words = TYPES.get(getattr(hint, "__origin__", hint), ((type(value),), ""))
        return "" if type(value) in types else words

    @property
    def summary(self) -> str:
        """The first paragraph of the factory's docstring."""
        return " ".join((inspect.getdoc(self.factory) or "").split("\n\n")[0].split())

    @property
    def source(self) -> str:
        """The origin of the idea: the docstring's paragraph that begins with ``Source:``."""
        paragraphs = (inspect.getdoc(self.factory) or "").split("\n\n")
        found = next((text for text in paragraphs if text.startswith("Source:")), "")
        return " ".join(found.removeprefix("Source:").split())

    @property
    def described(self) -> str:
        """The options with their defaults, as text for messages."""
        return ", ".join(f"{name}={default!r}" for name, default in self.options.items()) or "none"


class Registry:
    """All registered factories, by kind and name.

    ``Registry()`` loads the entry-point group ``specdec``, which also contains the built-ins, and the plugins without a
    package that the running program has (``specdec.unpackaged``); ``Registry(plugins)`` uses only the given plugin
    modules or objects. The environment variable ``SPECDEC_LOAD_PLUGINS`` limits the group to our own plugins and the
    distributions that it lists.

    Raises SpecdecError for a name registered twice (naming both owners), an invalid name, or a factory whose
    signature does not begin as its hook says.
    """

    def __init__(self, plugins: Mapping[str, object] | None = None) -> None:
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in HOOKS}
        self._how_found = how_found() if plugins is None else ""
        manager = _HookManager("specdec")
        manager.add_hookspecs(hookspecs)
        try:
            for name, plugin in (_all_plugins() if plugins is None else plugins).items():
                manager.register(plugin, name)
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            hooks = ", ".join(HOOKS.values())
            raise SpecdecError(f"{error}; the hooks are {hooks}") from None
        for kind, hook in HOOKS.items():
            registered = [
                entry for made in getattr(manager.hook, hook).get_hookimpls() for entry in self._registered(kind, made)
            ]
            # Aliases last: an alias may name a factory of a plugin that is loaded after its own.
            for name, factory, owner in sorted(registered, key=lambda entry: isinstance(entry[1], str)):
                self.add(kind, name, factory, owner)

    @staticmethod
    def _registered(kind: str, implementation: pluggy.HookImpl) -> list[tuple[str, Factory | str, str]]:
        """Name, factory or alias, and owner of everything that one implementation of a hook registers."""
        owner = implementation.plugin_name
        if "register" not in implementation.argnames:
            raise SpecdecError(f"the hook {HOOKS[kind]} of {owner} must take the argument 'register'")
        found: list[tuple[str, Factory | str, str]] = []
        try:
            implementation.function(lambda name, factory: found.append((name, factory, owner)))
        except SpecdecError:
            raise
        except RAISED as error:
            raise SpecdecError(
                f"the hook {HOOKS[kind]} of {owner} raised {type(error).__name__}: {error}; mend it or take it out"
            ) from error
        return found

    def add(self, kind: str, name: str, factory: Factory | str, owner: str) -> None:
        """Register a factory, or the text that an alias stands for; raises SpecdecError, which names ``owner``, if a
        hook may not register it.
        """
        if not re.fullmatch(r"[A-Za-z]\w*", name):
            raise SpecdecError(f"{owner} registers the {kind} {name!r}; a name is a letter, then letters, digits and _")
        taken = self._entries[kind].get(name)
        if taken:
            raise SpecdecError(
                f"the {kind} {name!r} is registered twice, by {taken.owner} and by {owner}; "
                f"rename one or take one out (names in use: {', '.join(self.names(kind))})"
            )
        if isinstance(factory, str):
            entry, preset = self.parse(kind, factory)
            self._entries[kind][name] = replace(entry, owner=owner, alias=factory, preset={**entry.preset, **preset})
            return
        if not callable(factory):
            raise SpecdecError(f"{owner} registers the {kind} {name!r} as {factory!r}; expected a factory to call")
        given = GIVEN[kind]
        parameters = list(inspect.signature(factory).parameters.values())
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = [
            p.name
            for p in parameters[len(given) :]
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if tuple(named[: len(given)]) != given or needed:
            raise SpecdecError(
                f"{owner} registers the {kind} {name!r} with the signature {name}{inspect.signature(factory)}; "
                f"expected {name}({', '.join((*given, '**options'))}) where every option has a default"
                f"{since('Controller.__init__') if kind == 'controller' and 'k' in needed else ''}"
            )
        entry = Entry(factory, owner, given)
        if kind == "controller" and entry.k_option and entry.k_option not in entry.options:
            raise SpecdecError(
                f"{owner} registers the controller {name!r}, whose k_option is {entry.k_option!r}, which its factory "
                f"does not take; its options: {entry.described}. Name the one that K sets, or None if it takes no K"
            )
        self._entries[kind][name] = entry

    def names(self, kind: str) -> list[str]:
        """The registered names of a kind, sorted."""
        return sorted(self._entries[kind])

    def entry(self, kind: str, name: str) -> Entry:
        """The factory registered under a name; SpecdecError with the choices if there is none."""
        if name not in self._entries[kind]:
            raise unknown(kind, name, self._entries[kind], self._how_found)
        return self._entries[kind][name]

    def parse(self, kind: str, text: str) -> tuple[Entry, dict[str, Any]]:
        """Read ``name``, ``name(0.8)`` or ``name(rate=0.8)``; SpecdecError if it does not fit the factory.

        Values are Python literals; any other value is text (``draft_model(model=gpt2)``).
        Positional values fill the options in the order of the factory's signature.
        """
        match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text, flags=re.DOTALL)
        if not match:
            raise SpecdecError(f"cannot read the {kind} {text!r}; expected name or name(option=value, …)")
        name, arguments = match.group(1), match.group(2) or ""
        entry = self.entry(kind, name)
        free = list(entry.options)
        options: dict[str, Any] = {}
        for index, part in enumerate(split_list(arguments)):
            key, equals, value = part.partition("=")
            if not equals:
                key, value = (free[index] if index < len(free) else f"value number {index + 1}"), part
            key = key.strip()
            if key not in free or key in options:
                raise SpecdecError(
                    f"the {kind} {name!r} does not take {key} (in {text!r}); its options: {entry.described}"
                )
            options[key] = _literal(value.strip())
        return entry, options

    def listing(self, width: int = 100) -> str:
        """Everything that is registered: for each kind the names with summary, options, defaults and source."""
        lines: list[str] = []
        for kind in HOOKS:
            lines += [f"{kind}:", ""]
            for name in self.names(kind):
                lines += [*self._entry_lines(self.entry(kind, name), name, width), ""]
        return "\n".join(lines)

    @staticmethod
    def _entry_lines(entry: Entry, name: str, width: int) -> list[str]:
        def wrapped(text: str, indent: int) -> list[str]:
            return textwrap.wrap(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2))

        lines = [f"  {name}"]
        if entry.alias:
            return [*lines, *wrapped(f"the same as {entry.alias}", 4)]
        lines += wrapped(entry.summary or "(no description)", 4)
        for option, default in entry.options.items():
            lines += wrapped(f"{option}={default!r}: {entry.meanings[option] or '(not described)'}", 6)
        # An owner may be a file, whose path is not broken.
        return lines + (wrapped(f"source: {entry.source}", 4) if entry.source else [f"    source: {entry.owner}"])

    def draft(self, text: str, env: Env) -> Draft:
        """Build the draft that ``text`` names."""
        return self._build("draft", text, Draft, env)

    def policy(self, text: str, env: Env) -> Policy:
        """Build the policy that ``text`` names."""
        return self._build("policy", text, Policy, env)

    def controller(self, text: str, env: Env, k: int | None = None) -> Controller:
        """Build the controller that ``text`` names; ``k`` is its K if the user gave K separately."""
        bare, chosen = self.split_k(text, k)
        entry, _ = self.parse("controller", bare)
        own = {} if chosen is None else {entry.k_option: chosen}
        return self._build("controller", bare, Controller, env, **own)

    def split_k(self, text: str, k: int | None = None) -> tuple[str, int | None]:
        """A controller's text without its K, and its K: ``k`` if given, else the K in the text, else the default;
        None for a controller that takes no K.

        Raises SpecdecError if both are given and differ, or if ``k`` is given and the controller takes no K.

        Example: ``split_k("goodput(maximum=8, probe=4)")`` is ``("goodput(probe=4)", 8)``.
        """
        entry, options = self.parse("controller", text)
        option = entry.k_option
        if not option:
            if k is not None:
                raise SpecdecError(f"the controller {text!r} takes no K, got {k}; its options: {entry.described}")
            return text, None
        own = options.pop(option, None)
        if k is not None and own is not None and k != own:
            raise SpecdecError(f"the controller {text!r} sets {option}={own} and K = {k} is given too; leave one out")
        chosen = next((value for value in (k, own) if value is not None), entry.options[option])
        if type(chosen) is not int:
            raise SpecdecError(f"{option} of the controller {text!r} is {chosen!r}; expected a whole number")
        rest = ", ".join(f"{name}={value!r}" for name, value in options.items())
        name = text.partition("(")[0].strip()
        return f"{name}({rest})" if rest else name, chosen

    def backend(self, name: str = "auto") -> Ops:
        """The ops: each call goes to the backend of highest priority that can run here and takes it.

        A named backend comes first, and the reference takes all other calls; ``auto`` uses all backends that can
        run. Raises SpecdecError for a named backend that cannot run here, with its reason.
        """
        reference = self._build("backend", "reference", Backend)
        if name != "auto":
            chosen = self._build("backend", name, Backend)
            reason = chosen.missing()
            if reason:
                raise SpecdecError(f"the backend {name!r} cannot run here: {reason}")
            return Ops([chosen] if chosen.name == reference.name else [chosen, reference])
        every = [self._build("backend", n, Backend) for n in self.names("backend")]
        every.sort(key=lambda backend: -backend.priority)
        above = every[: [backend.name for backend in every].index(reference.name)]
        reasons = [(backend, backend.missing()) for backend in above]
        able = [backend for backend, reason in reasons if reason is None]
        return Ops([*able, reference], [(backend, reason) for backend, reason in reasons if reason])

    def parse_peer(self, text: str) -> tuple[Entry, dict[str, Any]]:
        """Read a peer as ``parse`` does; return its factory and the value of every option, defaults included.

        Also raises SpecdecError, before anything is loaded, for a value that the factory refuses (``check_options``)
        and for an engine that cannot run here (``missing``).
        """
        entry, given = self.parse("peer", text)
        options = {**entry.options, **given}
        if inspect.isclass(entry.factory) and issubclass(entry.factory, Peer):
            try:
                entry.factory.check_options(**options)
                reason = entry.factory.missing()
            except SpecdecError:
                raise
            except RAISED as error:
                raise SpecdecError(
                    f"the peer {text!r} of {entry.owner} could not be asked whether it can run here: "
                    f"{type(error).__name__}: {error}; leave it out, or mend it"
                ) from error
            if reason:
                raise SpecdecError(f"the peer {text!r} cannot run here: {reason}")
        return entry, options

    def peer(self, text: str, env: PeerEnv) -> Peer:
        """Build the peer that ``text`` names, after the checks of ``parse_peer``."""
        self.parse_peer(text)
        return self._build("peer", text, Peer, env)

    def _build(self, kind: str, text: str, base: type[T], *given: object, **own: object) -> T:
        entry, options = self.parse(kind, text)
        for name, value in options.items():
            if expected := entry.expected(name, value):
                raise SpecdecError(
                    f"{name} of the {kind} {text!r} is {value!r}; expected {expected}; its options: {entry.described}"
                )
        try:
            built = entry.factory(*given, **{**entry.preset, **own, **options})
        except (TypeError, ValueError, AttributeError) as error:
            raise SpecdecError(
                f"the {kind} {text!r} of {entry.owner} could not be built: {type(error).__name__}: {error}; "
                f"its options: {entry.described}"
            ) from error
        if not isinstance(built, base):
            raise SpecdecError(
                f"the {kind} factory {text!r} of {entry.owner} returned a {type(built).__name__}; "
                f"expected a subclass of specdec.{base.__name__}"
            )
        return built


class _HookManager(pluggy.PluginManager):
    """Takes every function with a hook's name for the hook, marked or not, as pytest does with its own."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        marked = super().parse_hookimpl_opts(plugin, name)
        if marked is None and name.startswith(PREFIX) and inspect.isroutine(getattr(plugin, name)):
            return cast(pluggy.HookimplOpts, {})
        return marked


def _all_plugins() -> dict[str, object]:
    """The installed plugins and those without a package, by their owners; SpecdecError as ``_installed``."""
    found = _installed()
    more = [
        (owner, plugin) for owner, plugin in unpackaged_plugins() if all(plugin is not one for one in found.values())
    ]
    return {**found, **dict(more)}


def _installed() -> dict[str, object]:
    """The plugins of the entry-point group ``specdec``; SpecdecError names a plugin that cannot be imported."""
    found: dict[str, object] = {}
    for point in plugin_points():
        try:
            found[point.name] = point.load()
        except RAISED as error:
            raise SpecdecError(
                f"the plugin {point.name!r} ({point.value}) of {package_of(point)} cannot be imported: "
                f"{type(error).__name__}: {error}; mend or uninstall it"
            ) from error
    return found


@cache
def _hints(factory: Factory) -> Mapping[str, Any]:
    """The annotations of a factory's parameters; empty if they cannot be evaluated: a type checker's imports, say."""
    try:
        return get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    except RAISED:
        return {}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
