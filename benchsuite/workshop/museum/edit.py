"""Mutations of our own code: a few lines of one function are replaced while a test runs."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest


class NotApplicable(AssertionError):
    """The code that a mutant changes no longer exists: the mutant must be rewritten, not dropped."""


@dataclass(frozen=True)
class Edit:
    """In the function ``where`` ("module:Class.function"), ``new`` replaces ``old``, which must occur exactly once.

    Example: ``Edit("specdec.arena:Arena.commit", "verdict.num_accepted + 1", "1")``
    """

    where: str
    old: str
    new: str


def apply(edits: Sequence[Edit], patch: pytest.MonkeyPatch) -> None:
    """Replace functions until the patch is undone. Raises NotApplicable if ``old`` does not occur exactly once."""
    for where in dict.fromkeys(edit.where for edit in edits):
        module, _, path = where.partition(":")
        *parents, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for parent in parents:
            owner = getattr(owner, parent, None)
        found = inspect.getattr_static(owner, name, None)
        if found is None:
            raise NotApplicable(f"{where} is gone; the mutant that changes it must be rewritten")
        function = _inner(found)
        source = inspect.getsource(function)
        for edit in edits:
            if edit.where == where:
                times = source.count(edit.old)
                if times != 1:
                    raise NotApplicable(f"{where} holds {edit.old!r} {times} times, expected once; rewrite the mutant")
                source = source.replace(edit.old, edit.new)
        made: dict[str, Any] = {}
        exec(compile(_defining(source, name), f"<mutant of {where}>", "exec"), function.__globals__, made)
        patch.setattr(owner, name, made["define"](owner) if "define" in made else made[name])


def _defining(source: str, name: str) -> str:
    """A program that defines a function; of a method, one of ``define``, which is given the class of ``super()``."""
    start = "from __future__ import annotations\n"
    indent = source[: len(source) - len(source.lstrip())]
    return f"{start}def define(__class__):\n{source}\n{indent}return {name}\n" if indent else start + source


def _inner(found: Any) -> FunctionType:
    """The function inside a property, a static method or a decorator's wrapper."""
    for attribute in ("fget", "__func__", "func"):
        found = getattr(found, attribute, found)
    inner = inspect.unwrap(found)
    assert isinstance(inner, FunctionType), found
    return inner
