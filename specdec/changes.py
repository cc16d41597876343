"""What changed in the interfaces, so that a plugin of an earlier one is told in a sentence. No torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
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
        "Backend.tree_attention": InterfaceChange("0.1", "used says how many of a row's cells the mask leaves"),
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


class Interface:
    """Base of what plugins implement. A class with a method that does not take what the engine calls it with, or that
    the engine no longer calls, is refused with SpecdecError when it is made: the error says what changed."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for base in cls.__mro__:
            if Interface in base.__bases__ and base is not cls:
                _refuse_gone(cls, base)
                for name, method in vars(base).items():
                    if inspect.isfunction(method) and not name.startswith("_"):
                        _refuse_signature(cls, base, name, method)


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


def _named(cls: type, base: type) -> str:
    return f"{base.__name__.lower()} {cls.__module__}.{cls.__qualname__}"


def _shown(signature: inspect.Signature) -> str:
    return str(signature).replace("'", "")


def tells_change(method: F) -> F:
    """Have a method that plugins call say what changed when it is called as in an earlier interface: SpecdecError.

    It stands in ``CHANGES`` by its qualified name.
    """
    signature, name = inspect.signature(method), method.__qualname__

    @wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except TypeError:
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                wanted = ", ".join([*signature.parameters][1:])
                raise SpecdecError(
                    f"{name} was called otherwise than ({wanted}) ({error}){since(name)}. Write: {CHANGES[name].write}"
                ) from None
            raise

    return cast(F, call)


def gone(module: str, name: str) -> Exception:
    """Return the error for a name that a module lacks: ImportError with what changed, if it is in ``CHANGES``."""
    change = CHANGES.get(f"{module}.{name}")
    if change is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return ImportError(f"{module} has no {name}{since(f'{module}.{name}')}. Write: {change.write}")
