"""Faults that are put into the Triton backend's launches, one by one, in a process in which Triton compiles.

``python -m benchsuite.tests.ahead_rig`` prints in JSON what ``benchsuite.workshop.native.ahead`` says of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from benchsuite.workshop.native.ahead import AheadDriver, ahead_driver, compile_call
from benchsuite.workshop.native.calls import MODELS, KernelStep, kernel_calls
from specdec_kernels import triton, triton_decoder, triton_verify

STEP = KernelStep(MODELS[-1])
Arguments = tuple[Any, ...]
Options = dict[str, Any]


class ChangedLaunch:
    """A kernel whose launches are given other arguments and options."""

    def __init__(self, kernel: Any, change: Callable[[Arguments, Options], tuple[Arguments, Options]]) -> None:
        self._kernel, self._change = kernel, change

    def __getitem__(self, grid: object) -> Callable[..., object]:
        def launch(*given: Any, **options: Any) -> object:
            arguments, named = self._change(given, options)
            return self._kernel[grid](*arguments, **named)

        return launch


@contextmanager
def changed(
    name: str, change: Callable[[Arguments, Options], tuple[Arguments, Options]], module: ModuleType = triton_decoder
) -> Iterator[None]:
    """Change the launches of a kernel of a module."""
    with patch.object(module, name, ChangedLaunch(getattr(module, name), change)):
        yield


@contextmanager
def lost() -> Iterator[None]:
    """Keys and values are not appended: the launch is left out."""
    with patch.object(triton_decoder, "rotary_append", {(5, 48): lambda *given, **options: None}):
        yield


def attention_with(**places: Callable[[Arguments], object]) -> Any:
    """Change what attention is given to count and to add up in; each from all of the arguments."""
    at = {"mixes": 7, "marks": 8, "arrivals": 9}

    def change(given: Arguments, options: Options) -> tuple[Arguments, Options]:
        other = {at[name]: make(given) for name, make in places.items()}
        return tuple(other.get(place, one) for place, one in enumerate(given)), options

    return changed("tree_attention", change)


@contextmanager
def transposed() -> Iterator[None]:
    """Every launch gets the strides of a tensor's first two axes in the other order."""

    def strides(*tensors: torch.Tensor) -> tuple[tuple[int, ...], ...]:
        return tuple((b, a, *rest) for a, b, *rest in (tensor.stride() for tensor in tensors))

    with patch.object(triton, "_strides", strides):
        yield


@contextmanager
def misdirected() -> Iterator[None]:
    """Triton's launcher hands over a kernel's first two arguments in the other order."""
    launcher = import_module("triton.backends.nvidia.driver").CudaLauncher
    call, first = launcher.__call__, 9  # a kernel's arguments come after nine of the launch's own

    def swapped(self: object, *given: Any) -> None:
        call(self, *given[:first], given[first + 1], given[first], *given[first + 2 :])

    with patch.object(launcher, "__call__", swapped):
        yield


PLANTS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "a stride swapped": ("kv_append", transposed),
    "two tensors swapped": ("kv_append", lambda: changed("kv_append", lambda g, o: ((g[1], g[0], *g[2:]), o))),
    "two addresses swapped by the launcher": ("kv_append", misdirected),
    "two sizes swapped": (
        "kv_append",
        lambda: changed("kv_append", lambda g, o: ((*g[:5], g[5][::-1], *g[6:]), o)),
    ),
    "an argument dropped": ("kv_append", lambda: changed("kv_append", lambda g, o: ((*g[:6], g[6][:-1]), o))),
    "a result lost": (
        "silu_mul",
        lambda: changed("silu_mul", lambda g, o: ((*g[:2], torch.empty_like(g[2]), *g[3:]), o)),
    ),
    "a copy of an argument": ("silu_mul", lambda: changed("silu_mul", lambda g, o: ((g[0].clone(), *g[1:]), o))),
    "shared memory doubled": (
        "tree_attention",
        lambda: changed("tree_attention", lambda g, o: (g, {**o, "BLOCK_L": 2 * o["BLOCK_L"]})),
    ),
    "too much shared memory": (
        "tree_attention",
        lambda: changed("tree_attention", lambda g, o: (g, {**o, "num_stages": 9})),
    ),
    "registers spilled": (
        "tree_attention",
        lambda: changed("tree_attention", lambda g, o: (g, {**o, "maxnreg": 64})),
    ),
    "no counters": ("tree_attention", lambda: attention_with(arrivals=lambda given: given[8])),
    "counters that were left": ("tree_attention", lambda: attention_with(arrivals=lambda given: given[9] + 1)),
    "fewer counters than lines": ("tree_attention", lambda: attention_with(arrivals=lambda given: given[9][:1])),
    "scratch too small": ("tree_attention", lambda: attention_with(mixes=lambda given: given[7][:, :1])),
    "scratch shared": ("tree_attention", lambda: attention_with(marks=lambda given: given[7])),
    "scratch that is an argument": (
        "tree_sample",
        lambda: changed("tree_sample", lambda g, o: ((*g[:8], g[0][:, 0], *g[9:]), o), triton_verify),
    ),
    "a part too many": (
        "sample",
        lambda: changed("pick_best", lambda g, o: ((*g[:3], g[3] + 1), o), triton_verify),
    ),
    "a sum with another tensor": (
        "decoder_layers",
        lambda: changed("linear", lambda g, o: ((*g[:6], g[0], *g[7:]), o)),
    ),
    "the numbers of a norm swapped": (
        "decoder_layers",
        lambda: changed("linear", lambda g, o: ((*g[:8], g[9], g[8], *g[10:]), o)),
    ),
    "a launch left out": ("decoder_layers", lost),
}
"""By name the op that is called, and what is wrong with its launch meanwhile."""


def found_with(device: AheadDriver, name: str) -> dict[str, Any]:
    """Return what is found with a fault: what was compiled, or ``refused``, by Triton, and how."""
    op, plant = PLANTS[name]
    call = next(call for call in kernel_calls(STEP) if call.op == op)
    with plant():
        try:
            found = compile_call(device, call, STEP)
            return {**asdict(found[0]), "faults": [fault for one in found for fault in one.faults]}
        except Exception as error:  # whatever the compiler raises is what the test looks at
            return {"refused": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    with ahead_driver() as opened:
        print(json.dumps({name: found_with(opened, name) for name in PLANTS}))
