"""What changed in the interfaces, so that a plugin of an earlier one is told in a sentence. No torch."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, TypeVar, cast

from specdec.errors import SpecdecError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class InterfaceChange:
    """A change that breaks plugins of earlier interfaces: the first version that has it, what is so since then, and
    what to write in place of the earlier form, where that is not the signature itself."""

    since: str
    says: str
    write: str = ""


CHANGES: Mapping[str, InterfaceChange] = MappingProxyType(
    {
        "Draft.observe": InterfaceChange("0.2", "own says whether the window is what this draft's propose returned"),
        "Draft.release": InterfaceChange("0.1", "tokens is the prompt and output of the request"),
        "Controller.__init__": InterfaceChange(
            "0.1", "K is one of the options, the one that the class attribute k_option names"
        ),
        "Backend.decoder_layer": InterfaceChange(
            "0.1", "all layers of a model are one call", "def decoder_layers(self, x, layers, turn, at)"
        ),
        "Backend.linear": InterfaceChange("0.1", "wide asks for the product in float32"),
        "Backend.tree_attention": InterfaceChange("0.2", "sinks are scores of a cell without a value"),
        "Context.process": InterfaceChange(
            "0.1",
            "after stands for parents and tokens: the window whose slots the logits follow, or anything with paths",
            "context.process(logits, window)",
        ),
        "Context.propose_token": InterfaceChange(
            "0.1", "every step has new noise without a draw", "context.propose_token(logits, position)"
        ),
        "specdec.messages.Request": InterfaceChange("0.1", "specdec has it", "from specdec import Request"),
        "specdec.messages.SamplingParams": InterfaceChange(
            "0.1", "specdec has it", "from specdec import SamplingParams"
        ),
        "specdec.sampling.StackedParams": InterfaceChange(
            "0.1", "specdec.processors has it", "from specdec.processors import StackedParams"
        ),
        "specdec.sampling.process": InterfaceChange("0.1", "Context has it", "context.process(logits, window)"),
    }
)
"""Every change of the interfaces that breaks a plugin: of methods that plugins write and call, and of names that they
import."""


def since(name: str) -> str:
    """Return what changed under a name of ``CHANGES``, a clause that follows an error; empty if nothing did.

    Example: ``since("Draft.observe")`` begins with ": since 0.2 own says".
    """
    change = CHANGES.get(name)
    return f": since {change.since} {change.says}" if change else ""


_called: dict[str, tuple[str, inspect.Signature]] = {}
"""The methods that plugins call and that have changed, by name: of each its key in ``CHANGES`` and its signature."""


class Interface:
    """Base of what plugins implement. A class is refused with SpecdecError, which says what changed, when it is made if
    one of its methods does not take what it is called with, is no longer called, or calls a method of a context as that
    was once called (as far as its source shows)."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for base in cls.__mro__:
            if Interface in base.__bases__ and base is not cls:
                _refuse_gone(cls, base)
                for name, method in vars(base).items():
                    if inspect.isfunction(method) and not name.startswith("_"):
                        _refuse_signature(cls, base, name, method)
                for written in vars(cls).values():
                    if inspect.isfunction(written) and _mentioned(written.__code__) & _called.keys():
                        _refuse_calls(cls, base, written)


def _refuse_gone(cls: type, base: type) -> None:
    for key, change in CHANGES.items():
        owner, _, name = key.rpartition(".")
        if owner == base.__name__ and name in vars(cls) and not hasattr(base, name):
            raise SpecdecError(f"{name} of the {_named(cls, base)} is never called{since(key)}. Write: {change.write}")


def _refuse_signature(cls: type, base: type, name: str, method: Callable[..., Any]) -> None:
    """Refuse a method that does not take the arguments of the interface's, which the engine gives by position."""
    written = inspect.getattr_static(cls, name)
    wanted = inspect.signature(method)
    varies = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in wanted.parameters.values())
    if written is method or varies or not inspect.isfunction(written):
        return
    taken = inspect.signature(written)
    try:
        taken.bind(*wanted.parameters)
    except TypeError:
        raise SpecdecError(
            f"{name} of the {_named(cls, base)} takes ({', '.join(taken.parameters)}); expected "
            f"({', '.join(wanted.parameters)}){since(f'{base.__name__}.{name}')}. Write: def {name}{_shown(wanted)}:"
        ) from None


def _refuse_calls(cls: type, base: type, written: FunctionType) -> None:
    """Refuse a method whose source calls a method of its context otherwise than that takes."""
    for call, method in _context_calls(written):
        key, signature = _called[method]
        try:
            signature.bind(None, *call.args, **{str(keyword.arg): keyword for keyword in call.keywords})
        except TypeError:
            raise SpecdecError(
                f"{written.__name__} of the {_named(cls, base)} calls {ast.unparse(call)}; expected "
                f"{_parameters(signature)}{since(key)}. Write: {CHANGES[key].write}"
            ) from None


def _context_calls(written: FunctionType) -> Iterator[tuple[ast.Call, str]]:
    """The calls of ``_called`` on a parameter that is a context, with their methods; none without a source."""
    try:
        [function] = ast.parse(textwrap.dedent(inspect.getsource(written))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    if not isinstance(function, ast.FunctionDef):
        return
    shown = {one.arg: ast.unparse(one.annotation) if one.annotation else one.arg for one in function.args.args}
    contexts = {name for name, text in shown.items() if text.strip("'\"").rpartition(".")[2] in ("context", "Context")}
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=method)):
                spread = any(isinstance(one, ast.Starred) for one in node.args)
                if owner in contexts and method in _called and not spread and all(one.arg for one in node.keywords):
                    yield node, method


def _mentioned(code: CodeType) -> set[str]:
    """The attributes that a function names, and those that the functions inside it do."""
    return {*code.co_names}.union(*(_mentioned(one) for one in code.co_consts if isinstance(one, CodeType)))


def _parameters(signature: inspect.Signature) -> str:
    return f"({', '.join([*signature.parameters][1:])})"


def _named(cls: type, base: type) -> str:
    return f"{base.__name__.lower()} {cls.__module__}.{cls.__qualname__}"


def _shown(signature: inspect.Signature) -> str:
    return str(signature).replace("'", "")


def tells_change(method: F) -> F:
    """Have a method that plugins call say what changed when it is called as in an earlier interface: SpecdecError.

    It stands in ``CHANGES`` by its qualified name. Classes whose source shows such a call are refused.
    """
    signature, name = inspect.signature(method), method.__qualname__
    _called[method.__name__] = name, signature

    @wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except TypeError:
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                raise SpecdecError(
                    f"{name} was called otherwise than {_parameters(signature)} ({error}){since(name)}. "
                    f"Write: {CHANGES[name].write}"
                ) from None
            raise

    return cast(F, call)


def gone(module: str, name: str) -> Exception:
    """Return the error for a name that a module lacks: ImportError with what changed, if it is in ``CHANGES``."""
    change = CHANGES.get(f"{module}.{name}")
    if change is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return ImportError(f"{module} has no {name}{since(f'{module}.{name}')}. Write: {change.write}")
