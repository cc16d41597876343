"""Recorded parts of steps without a GPU: the calls of aten, made again into the tensors that the first run made.

A tape has the interface of ``specdec.runtime.CudaGraphs`` and its meaning: a replay calls no Python of the part, reads
the tensors that the part was recorded over, and writes its results where they were. It sees aten's calls alone, so the
ops must be the reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specdec.runtime import Replay

T = TypeVar("T")


class Tape:
    """Records a part while it runs.

    Example: ``Graphed(Tape(), ops)``
    """

    name, runs = "replayed", True

    def __call__(self, function: Callable[..., T], given: Sequence[object]) -> tuple[T, Replay]:
        """See ``specdec.runtime.Recorder``."""
        calls = _Calls()
        with calls:
            result = function(*given)
        return result, calls.replay


class SharedPool(Tape):
    """A tape whose recordings share one pool of memory, as CUDA's graphs do, in the worst case.

    Each replay first overwrites the results of all recordings made after its own (``later_alone``), which may lie where
    its temporaries are; else those of earlier ones too, which is a fault. ``persistent`` tensors are no results; they
    are to be set once the engine exists. ``overwritten`` counts tensors.

    Example: ``pool = SharedPool(); engine = assembly.engine("garbage", recorder=pool)``
    """

    def __init__(self, later_alone: bool = True) -> None:
        self.later_alone, self.persistent, self.overwritten = later_alone, list[Tensor](), 0
        self._results: list[list[Tensor]] = []

    def __call__(self, function: Callable[..., T], given: Sequence[object]) -> tuple[T, Replay]:
        """See ``specdec.runtime.Recorder``."""
        result, replay = super().__call__(function, given)
        place, known = len(self._results), [*result_tensors(list(given)), *self.persistent]
        self._results.append(
            [one for one in result_tensors(result) if not any(shares_memory(one, old) for old in known)]
        )

        def overwriting() -> None:
            for results in self._results[place if self.later_alone else 0 :]:
                for tensor in results:
                    if 0 not in tensor.stride():  # an expanded row cannot be written to
                        tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
                        self.overwritten += 1
            replay()

        return result, overwriting


def result_tensors(value: object) -> Iterator[Tensor]:
    """The tensors of a part's result, or of its arguments: of tuples, lists and dataclasses, however deep."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from result_tensors(one)
    elif is_dataclass(value):
        for part in fields(value):
            yield from result_tensors(getattr(value, part.name))


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are views of one memory, which fake tensors say too."""
    return bool(torch._C._is_alias_of(one, other))  # type: ignore[attr-defined]


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fresh = [
            (place, leaf)
            for place, leaf in enumerate(tree_leaves(out))
            if isinstance(leaf, Tensor) and not any(shares_memory(leaf, one) for one in given)
        ]
        if not isinstance(out, Tensor | list | tuple | None):
            raise RuntimeError(f"{func} returned {out!r} to the host: a part that reads cannot be recorded")
        self._made.append((func, args, kwargs, fresh))
        return out

    def replay(self) -> None:
        """Make the calls again."""
        for func, args, kwargs, fresh in self._made:
            leaves = tree_leaves(func(*args, **kwargs))
            for place, kept in fresh:
                if leaves[place].shape != kept.shape:
                    raise RuntimeError(
                        f"{func} made {tuple(leaves[place].shape)} and was recorded with {tuple(kept.shape)}"
                    )
                kept.copy_(leaves[place])
