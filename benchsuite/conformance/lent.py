"""What the engine lends a plugin: tensors and arrays that it neither changes nor keeps past the step."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchsuite.conformance.claims import Failed

Lent = Tensor | npt.NDArray[Any]


def lent_parts(value: object, name: str = "") -> Iterator[tuple[str, Lent]]:
    """Each tensor and array of a value with its name: of tuples, lists and dataclasses, however deep.

    Also what a dataclass has computed of its own and keeps, as a window its depths.
    """
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, tuple | list):
        for place, part in enumerate(value):
            yield from lent_parts(part, f"{name}[{place}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for part, inner in vars(value).items():
            yield from lent_parts(inner, f"{type(value).__name__}.{part}")


def lent_copy(value: Any) -> Any:
    """The same value with tensors and arrays of its own, as ``lent_parts`` finds them."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if not any(True for _ in lent_parts(value)):
        return value
    if isinstance(value, tuple | list):
        parts = [lent_copy(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    copied = copy.copy(value)
    vars(copied).update({name: lent_copy(part) for name, part in vars(value).items()})
    return copied


def refuse_writes(text: str, plugin: object, names: Sequence[str]) -> None:
    """From now on a method of these names raises Failed where it changes what it is called with."""

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        names = [*inspect.signature(method).parameters]

        def call(*given: Any) -> Any:
            named = itertools.zip_longest(names, given)
            lent = [part for argument, one in named for part in lent_parts(one, argument or "an argument")]
            before = [one.clone() if isinstance(one, Tensor) else one.copy() for _, one in lent]
            out = method(*given)
            changed = sorted({part for (part, now), was in zip(lent, before, strict=True) if not _equal(now, was)})
            if changed:
                raise Failed(f"{text} writes to nothing that it was lent", f"{name} changed {changed}", "any step")
            return out

        return call

    _replace_methods(plugin, names, watched)


class Loans:
    """Lends a plugin's methods copies of what they are called with; ``call_back`` overwrites these.

    A window that the plugin itself returned is no loan.

    Example: ``loans = Loans(draft, ["propose", "observe"])``, then ``loans.call_back()`` at the start of each step
    """

    def __init__(self, plugin: object, names: Sequence[str]) -> None:
        self._lent: list[Lent] = []
        self._returned: object = None
        _replace_methods(plugin, names, self._lending)

    def _lending(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            copies = [one if one is self._returned else lent_copy(one) for one in given]
            self._lent += [part for one in copies if one is not self._returned for _, part in lent_parts(one)]
            out = method(*copies)
            self._returned = self._returned if out is None else out
            return out

        return call

    def call_back(self) -> None:
        """Fill all that was lent: numbers with NaN, whole numbers with 1, which is a token, a slot and a length."""
        for one in self._lent:
            if isinstance(one, Tensor):
                one.fill_(torch.nan if one.is_floating_point() else 1)
            else:
                one.fill(np.nan if one.dtype.kind == "f" else 1)
        self._lent.clear()


def _replace_methods(
    plugin: object, names: Sequence[str], made: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> None:
    for name in names:
        object.__setattr__(plugin, name, made(name, getattr(plugin, name)))


def _equal(now: Lent, was: Lent) -> bool:
    if isinstance(now, Tensor):
        assert isinstance(was, Tensor)
        return torch.equal(now, was)
    return bool(np.array_equal(now, was))
