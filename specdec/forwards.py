"""The forwards of transformers' classes: the names in their code, and the same code with other functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn


def own_forward(module: nn.Module) -> Any:
    """The forward of a module's class, without the decorators that transformers 5.24 puts around it."""
    return inspect.unwrap(type(module).forward)


def names_in_forward(module: nn.Module) -> frozenset[str]:
    """The attributes and globals that the code of a module's own forward names; none if it is no Python code."""
    code = getattr(own_forward(module), "__code__", None)
    return frozenset(code.co_names) if code else frozenset()


def forward_with(module: nn.Module, **functions: Callable[..., Any]) -> Callable[..., Any]:
    """A module's own forward, which finds ``functions`` under these global names; the class stays as it is."""
    native = own_forward(module)
    names = {**native.__globals__, **functions}
    forward = FunctionType(native.__code__, names, native.__name__, native.__defaults__, native.__closure__)
    forward.__kwdefaults__ = native.__kwdefaults__
    return MethodType(forward, module)
