"""The plugins that are found, and the names that they register, as far as their sources tell unimported. No torch."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from specdec.errors import SpecdecError
from specdec.lists import split_list
from specdec.unpackaged import unpackaged_plugins

HOOKS: Mapping[str, str] = MappingProxyType(
    {
        "draft": "specdec_register_drafts",
        "policy": "specdec_register_policies",
        "controller": "specdec_register_controllers",
        "backend": "specdec_register_backends",
        "peer": "specdec_register_engines",
    }
)
"""The hook that registers each kind."""

LOAD_PLUGINS, OWN = "SPECDEC_LOAD_PLUGINS", "specdec-bench"
"""The environment variable that lists the distributions whose plugins are loaded besides our own. Unset: all."""


def plugin_points() -> list[EntryPoint]:
    """Return the entry points of the plugins that are to be loaded, of which no two have one name.

    SpecdecError if ``LOAD_PLUGINS`` names a distribution that is not installed or has none, or if two have one name.
    """
    chosen = _chosen(entry_points(group="specdec"))
    first: dict[str, EntryPoint] = {}
    for point in chosen:
        if (other := first.setdefault(point.name, point)) is not point:
            raise SpecdecError(
                f"two plugins have the name {point.name!r} among the entry points of the group specdec: {other.value} "
                f"of {package_of(other)} and {point.value} of {package_of(point)}; rename one, uninstall one, or list "
                f"the distributions to load in {LOAD_PLUGINS}"
            )
    return chosen


def package_of(point: EntryPoint) -> str:
    """Return the name of the distribution that has an entry point, for messages."""
    return point.dist.name if point.dist else "an unknown package"


def how_found() -> str:
    """Return where plugins are looked for, a sentence for the error of a name that none of them registers."""
    allowed = os.environ.get(LOAD_PLUGINS)
    limit = "" if allowed is None else f" that {LOAD_PLUGINS}={allowed} allows"
    return (
        f"Plugins are found in the installed packages{limit} (entry points of the group specdec) and, under pytest, in "
        "each conftest.py that it reads at its start and in the modules of -p; pytest --specdec-list shows them all"
    )


def registered_names() -> dict[str, frozenset[str] | None]:
    """Return the names that plugins register of each kind; None if a source does not tell.

    A source tells if its hook calls ``register`` with a literal name and does nothing else with it.

    Example: ``"ngram" in (registered_names()["draft"] or ())``
    """
    told = [_told_by(_source_of(point)) for point in plugin_points()]
    told += [_told_by(_text_of(getattr(plugin, "__file__", None))) for _, plugin in unpackaged_plugins()]
    found: dict[str, frozenset[str] | None] = {}
    for kind, hook in HOOKS.items():
        names = [found_by for one in told if (found_by := one[hook]) is not None]
        found[kind] = frozenset[str]().union(*names) if len(names) == len(told) else None
    return found


def _source_of(point: EntryPoint) -> str | None:
    """The source of a plugin's module; None if it is no module, or has no source that can be read."""
    try:
        spec = None if point.attr else find_spec(point.module)
    except (ImportError, ValueError):
        return None
    return _text_of(spec.origin if spec else None)


def _text_of(file: str | None) -> str | None:
    """The text of a file; None if there is none that can be read."""
    try:
        return Path(file or "").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


@cache
def _told_by(source: str | None) -> Mapping[str, frozenset[str] | None]:
    """By each hook the names that it registers, none if a module has no such hook; None if its source does not tell."""
    try:
        module = ast.parse(source or "")
    except (ValueError, SyntaxError):
        source = None
    if source is None:
        return dict.fromkeys(HOOKS.values())
    hooks = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    hidden = set[str]()
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            hidden |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef) and node not in hooks:
            hidden.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            hidden.add(node.id)
    return {
        hook: None if hidden & {"*", hook} else _registered_by([node for node in hooks if node.name == hook])
        for hook in HOOKS.values()
    }


def _registered_by(hooks: Iterable[ast.FunctionDef]) -> frozenset[str] | None:
    """The literal names with which functions call ``register``; None if they do anything else with it."""
    found = set[str]()
    for hook in hooks:
        nodes = [*ast.walk(hook)]
        calls = [one for one in nodes if isinstance(one, ast.Call) and _is_register(one.func)]
        texts = [one.args[0].value for one in calls if one.args and isinstance(one.args[0], ast.Constant)]
        uses = sum(_is_register(one) for one in nodes)
        if uses != len(calls) or len(texts) != len(calls) or not all(isinstance(text, str) for text in texts):
            return None
        found |= {str(text) for text in texts}
    return frozenset(found)


def _is_register(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "register"


def _chosen(points: Iterable[EntryPoint]) -> list[EntryPoint]:
    """The entry points of the distributions that ``SPECDEC_LOAD_PLUGINS`` allows; SpecdecError for an unknown one."""
    allowed = os.environ.get(LOAD_PLUGINS)
    by_package: dict[str, list[EntryPoint]] = {}
    for package, group in groupby(points, key=lambda point: point.dist):  # each question for a name reads a file
        by_package.setdefault(_canonical(package.name if package else ""), []).extend(group)
    if allowed is None:
        return [point for group in by_package.values() for point in group]
    names = [_canonical(name) for name in split_list(allowed)]
    missing = [name for name in names if name not in by_package]
    if missing:
        raise SpecdecError(
            f"{LOAD_PLUGINS} names {missing[0]!r}, which is no installed distribution with plugins; expected a comma "
            f"list of {', '.join(sorted(by_package))}, or nothing for {OWN} alone"
        )
    return [point for name in dict.fromkeys((OWN, *names)) for point in by_package.get(name, [])]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
