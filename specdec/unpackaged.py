"""Plugins without a package: what the program around us has loaded itself, as pytest does a conftest.py. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

PREFIX = "specdec_register_"
"""Begins the names of all hooks: a function with such a name is a hook, marked by ``hookimpl`` or not."""

PluginSource = Callable[[], Iterable[tuple[str, object]]]
"""Returns modules and objects, of which some may have hooks, each with the owner that errors name: its file."""

_sources: list[PluginSource] = []


def add_plugin_source(source: PluginSource) -> Callable[[], None]:
    """Have every ``Registry()`` load what ``source`` then returns, beside the installed plugins; return what ends this.

    Of several sources the last is asked: a run inside another has plugins of its own.

    Example: ``end = add_plugin_source(lambda: [("mine.py", mine)])``, then ``end()``
    """
    _sources.append(source)
    return lambda: _sources.remove(source)


def unpackaged_plugins() -> tuple[tuple[str, object], ...]:
    """Return what has a hook, or a function named like one, of what the last source returns; each with its owner."""
    found = _sources[-1]() if _sources else ()
    return tuple((owner, plugin) for owner, plugin in found if any(name.startswith(PREFIX) for name in dir(plugin)))
