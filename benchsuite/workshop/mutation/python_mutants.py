"""Mutants of Python: mutmut's operators, less those that any test would notice, and two of our own.

Source: mutmut 3 (https://github.com/boxed/mutmut), ``mutmut.mutation.mutators``, over LibCST's trees. mutmut is in the
extra ``mutate``; this module is imported where mutants are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper
from mutmut.mutation import mutators

from benchsuite.workshop.mutation.mutants import Mutation, mutation

LEFT_OUT = ("operator_assignment", "operator_lambda")
"""They write None where a tensor, number or function stands: all that runs the line fails, and the rate flatters."""

SPOKEN = ("print", "warn", "debug", "info", "warning", "cast", "TypeVar", "refuse")
"""Calls whose arguments are words for people, or for a type checker."""

TYPES = ("Annotated", "Callable", "Literal")

SELF_DESCRIBING = ("__repr__", "__str__")

NEGATED_ALREADY = (cst.Is, cst.IsNot, cst.In, cst.NotIn, cst.Equal, cst.NotEqual)
"""Comparisons that mutmut turns into their opposite."""


@dataclass(frozen=True)
class _Place:
    """Where a node lies: the qualified name, the lines that reach it, those of the function, and whether it is one."""

    function: str
    lines: tuple[int, int]
    body: tuple[int, int]
    in_call: bool


TOLD = ("strict", "help", "device")
"""Names of arguments that are not left out: an assertion, a text for people, and a device, which without an accelerator
is the default. Tests on fake tensors of a GPU hold the devices of steps."""


def python_mutants(file: str, source: bytes) -> list[Mutation]:
    """Return all mutants of a Python file, in the order of the text.

    Left out are docstrings, annotations, decorators, imports, errors that are raised, assertions (``strict=True`` of
    ``zip`` is one, and ``strict=False`` is what it does without it), f-strings, strings with a space, what is printed,
    ``__repr__``, blocks for a type checker or under ``__main__``, and changes that put None in place of a value
    (``LEFT_OUT``). Default values and the tops of classes and files are reached by what reaches anything of the
    function, class or file.

    Example: ``python_mutants("a.py", b"def f(x):\\n    return x + 1\\n")`` has ``x - 1`` and ``x + 2``
    """
    module = cst.parse_module(source)
    spans = MetadataWrapper(module, unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    return _Finder(file, source, module, spans).found()


class _Finder:
    """One walk through a module."""

    def __init__(self, file: str, source: bytes, module: Any, spans: Any) -> None:
        self._file, self._source, self._module, self._spans = file, source, module, spans

    def found(self) -> list[Mutation]:
        """All mutants, each once."""
        whole = 1, self._source.count(b"\n") + 1
        place = _Place("", whole, whole, False)
        made = {mutant.key: mutant for mutant in self._walk(self._module, place)}
        return sorted(made.values(), key=lambda mutant: (mutant.start, mutant.end))

    def _walk(self, node: Any, place: _Place) -> Iterator[Mutation]:
        if _skipped(node):
            return
        place = self._placed(node, place)
        for name, target, new in _changes(node):
            start, length = self._spans[target].start, self._spans[target].length
            text = new if isinstance(new, str) else self._module.code_for_node(new)
            if target is not node or self._source[start : start + length] != text.encode():
                text = f"not ({self._module.code_for_node(target)})" if name == "negated" else text
                span = (start, start + length)
                yield mutation(self._file, self._source, place.function, name, span, text, place.lines, place.body)
        for child in node.children:
            yield from self._walk(child, place)

    def _placed(self, node: Any, place: _Place) -> _Place:
        """Where the node's children lie."""
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            name = f"{place.function}.{node.name.value}" if place.function else node.name.value
            lines = self._lines(node, node)
            return _Place(name, lines, lines, isinstance(node, cst.FunctionDef))
        if place.in_call and isinstance(node, cst.SimpleStatementLine):
            return replace(place, lines=self._lines(node, node))
        if place.in_call and isinstance(node, cst.If | cst.For | cst.While | cst.With | cst.Match):
            inner = node.cases[0] if isinstance(node, cst.Match) else node.body.body[0]
            return replace(place, lines=self._lines(node, inner, header=True))
        return place

    def _lines(self, first: Any, last: Any, header: bool = False) -> tuple[int, int]:
        start, span = self._spans[first].start, self._spans[last]
        end = span.start if header else span.start + span.length
        top, bottom = (self._source.count(b"\n", 0, at) + 1 for at in (start, end))
        return top, max(top, bottom - 1) if header else bottom


def _skipped(node: Any) -> bool:
    """Whether nothing below a node is mutated."""
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Raise | cst.Assert):
        return True
    if isinstance(node, cst.FormattedString | cst.ConcatenatedString) or _asserts(node):
        return True
    if isinstance(node, cst.Subscript):
        return isinstance(node.value, cst.Name) and node.value.value in TYPES
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.SimpleString)
    if isinstance(node, cst.FunctionDef):
        return node.name.value in SELF_DESCRIBING
    if isinstance(node, cst.Call):
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        return isinstance(name, cst.Name) and name.value in SPOKEN
    if isinstance(node, cst.If):
        test = node.test.left if isinstance(node.test, cst.Comparison) else node.test
        return isinstance(test, cst.Name) and test.value in ("TYPE_CHECKING", "__name__")
    return False


def _changes(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """The changes of one node: the operator's name, the node that is replaced, and a node or a text in its place."""
    for kind, operator in mutators.mutation_operators:
        if isinstance(node, kind) and operator.__name__ not in LEFT_OUT:
            for new in operator(node):
                if _worth(node, new):
                    yield operator.__name__.removeprefix("operator_"), node, new
                if isinstance(node, cst.BaseString):
                    break
    if isinstance(node, cst.If | cst.While) and not _has_opposite(node.test):
        yield "negated", node.test, ""
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and not _skipped(node.value):
        yield "dropped", node, "pass"


def _worth(node: Any, new: Any) -> bool:
    """Whether a change of mutmut's is not one that any test would notice, and changes no text for people.

    Of the arguments only those with a name are left out: without another one nearly every call fails.
    """
    if isinstance(node, cst.Call) and isinstance(new, cst.Call) and new.func is node.func:
        gone = [arg for arg in node.args if arg not in new.args]
        return len(new.args) < len(node.args) and all(arg.keyword and arg.keyword.value not in TOLD for arg in gone)
    return not (isinstance(node, cst.SimpleString) and (" " in node.value or not node.raw_value))


def _asserts(node: Any) -> bool:
    """Whether a node is the argument ``strict=True``, which says that lengths are equal and changes no result."""
    if not isinstance(node, cst.Arg) or node.keyword is None or node.keyword.value != "strict":
        return False
    return isinstance(node.value, cst.Name) and node.value.value == "True"


def _has_opposite(test: Any) -> bool:
    if isinstance(test, cst.Comparison):
        return len(test.comparisons) == 1 and isinstance(test.comparisons[0].operator, NEGATED_ALREADY)
    return isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
