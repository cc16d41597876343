"""The CUDA sources compiled by nvcc for GPUs that are not here, and launched over a runtime that launches nothing.

The library is compiled with the backend's own flags, but linked with no CUDA runtime: the host code of each launch then
calls the stub, and what a kernel is handed is compared with what the backend's method was given.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchsuite.conformance.guards.fake_cuda import PROCESSORS
from benchsuite.workshop.native.calls import KernelCall, KernelStep, kernel_calls, results_of
from benchsuite.workshop.native.cubin import CHIPS, Resources, resources
from benchsuite.workshop.native.stub_driver import StubDriver
from specdec_kernels.cuda import Cuda, load_cuda_library

SHARED = 48 << 10
"""Bytes of shared memory that a launch may ask for without an attribute of the kernel's, on every chip."""

Wanted = tuple[str, Sequence[bytes | None]]
"""The name of a kernel in the source, and the bytes of each of its parameters; None for an address of its own."""


def stubbed_library() -> ctypes.CDLL:
    """Return the CUDA kernels for all ``CHIPS``, compiled once. A ``StubDriver`` must exist, for their runtime.

    Raises BuildError without nvcc, or with one that cannot compile for these.
    """
    return load_cuda_library(tuple(CHIPS), ("-cudart", "none"))


def kernel_name(mangled: str) -> str:
    """Return the name in the source of a kernel of the library, from its mangled name in an unnamed namespace.

    Example: ``kernel_name("_ZN12_GLOBAL__N__10accept_allEPKfPKlPbl")`` is ``accept_all``
    """
    rest = mangled.removeprefix("_ZN")
    for _ in range(2):
        length = "".join(takewhile(str.isdigit, rest))
        name, rest = rest[len(length) :][: int(length)], rest[len(length) + int(length) :]
    return name


def library_resources(library: ctypes.CDLL) -> Sequence[Resources]:
    """Return what every kernel of a compiled library takes on every chip; BuildError if it cannot be read."""
    return resources(Path(library._name))


@contextmanager
def stubbed_cuda(library: Any, kind: Callable[[], Cuda] = Cuda) -> Iterator[Cuda]:
    """A cuda backend, made by ``kind``, over a library of ``stubbed_library``, whose methods take CPU tensors inside.

    Example: ``with stubbed_cuda(stubbed_library()) as backend: backend.accept(torch.rand(4), torch.zeros(4).long())``
    """
    backend = kind()
    backend.__dict__["_kernels"] = library
    stands = (
        ("device", nullcontext),
        ("current_stream", lambda device=None: SimpleNamespace(cuda_stream=0)),
        ("is_current_stream_capturing", lambda: False),
        ("get_device_properties", lambda device: SimpleNamespace(multi_processor_count=PROCESSORS)),
    )
    with ExitStack() as stack:
        for name, value in stands:
            stack.enter_context(patch.object(torch.cuda, name, value))
        yield backend


def cuda_calls(step: KernelStep) -> Iterator[KernelCall]:
    """Return the calls of a step that the cuda backend has kernels for."""
    return (call for call in kernel_calls(step) if call.op in WANTED)


def cuda_wrong(stub: StubDriver, backend: Cuda, call: KernelCall) -> list[str]:
    """Make a call twice; return in what the second launch was handed something else than what the method was given.

    The first call makes what the backend keeps, and says how many bytes each parameter has.
    """
    op, given = getattr(backend, call.op), SimpleNamespace(**{**call.told, **call.given})
    stub.expect([])
    kernel, wanted = WANTED[call.op](given, results_of(op(**call.given)))
    stub.expect([8 if part is None else len(part) for part in wanted])
    kernel, wanted = WANTED[call.op](given, results_of(op(**call.given)))
    handed = stub.handed()
    name, found = kernel_name(stub.name(handed.function)), list[str]()
    if name != kernel:
        found.append(f"{name} was launched where {kernel} was expected")
    if handed.shared > SHARED:
        found.append(f"{kernel} asks for {handed.shared} bytes of shared memory; without an attribute it gets {SHARED}")
    for place, (want, got) in enumerate(zip(wanted, handed.parameters, strict=True)):
        if want is not None and want != got:
            found.append(f"parameter {place} of {kernel} is {got.hex()}; the method was given {want.hex()}")
    return found


def _long(*values: int) -> bytes:
    return struct.pack(f"{len(values)}q", *values)


def _int(value: int) -> bytes:
    return struct.pack("i", value)


def _at(*tensors: Tensor | None) -> list[bytes]:
    return [_long(0 if tensor is None else tensor.data_ptr()) for tensor in tensors]


def _view(tensor: Tensor) -> bytes:
    """``View`` of csrc/decoder.cu: an address and the strides of three axes in bytes."""
    return _long(tensor.data_ptr(), *(stride * tensor.itemsize for stride in tensor.stride()[:3]))


def _row(tensor: Tensor) -> bytes | None:
    """Numbers from one row to the next; of a single row, whatever torch says."""
    return _long(tensor.stride(-2)) if tensor[..., 0].numel() > 1 else None


def _units(tensor: Tensor) -> int:
    return tensor.shape[-1] * tensor.itemsize // 16  # of 16 bytes: all that is handed over here is aligned


def _sample(g: Any, out: Sequence[Tensor]) -> Wanted:
    return "sample_rows", [*_at(g.logits, g.key, *out), None, _long(g.vocabulary), _row(g.logits)]


def _accept(g: Any, out: Sequence[Tensor]) -> Wanted:
    return "accept_all", [*_at(g.probability, g.key, *out), _long(g.count)]


def _verify(g: Any, out: Sequence[Tensor]) -> Wanted:
    rows, slots = g.choices.shape
    numbers = [_long(number) for number in (rows, slots, g.parents.stride(0))]
    return "verify_rows", [*_at(g.tokens, g.parents, g.widths, g.choices, *out), *numbers]


def _rejection(g: Any, out: Sequence[Tensor]) -> Wanted:
    p, q = g.distribution, g.window.q
    both = [_long(p.data_ptr(), *p.stride()[:2]), _long(*((0, 0, 0) if q is None else (q.data_ptr(), *q.stride()[:2])))]
    pointers = _at(g.tokens, g.widths, g.accept_key, g.residual_key, g.bonus_key, *out)
    return "rejection_rows", [*both, *pointers, None, _int(g.size), _long(g.vocabulary)]


def _append(g: Any, out: Sequence[Tensor]) -> Wanted:
    views = [_view(tensor) for tensor in (g.keys, g.values, g.new_keys, g.new_values)]
    return "append_cells", [*views, *_at(g.cells), _int(g.new_keys.shape[2]), _int(_units(g.keys))]


def _compact(g: Any, out: Sequence[Tensor]) -> Wanted:
    depth, units = g.source.shape[1], _units(g.keys)
    views = [_view(g.keys), _view(g.values)]
    columns = min(units, SHARED // (16 * depth))
    return "compact_cells", [*views, *_at(g.source, g.target), _int(depth), _int(units), _int(columns)]


def _norm(g: Any, out: Sequence[Tensor]) -> Wanted:
    floats = [struct.pack("f", number) for number in (g.eps, g.offset)]
    return "norm_rows", [*_at(g.x, g.weight, *out), _row(g.x), _int(g.x.shape[-1]), *floats]


def _rotary(g: Any, out: Sequence[Tensor]) -> Wanted:
    _, heads, width, size = g.query.shape
    numbers = [_int(heads), _int(width), _int(size // 2), _long(0)]  # one row of angles for all rows
    return "rotate_heads", [_view(g.query), _view(g.keys), *_at(g.cos, g.sin, *out), *numbers]


def _silu(g: Any, out: Sequence[Tensor]) -> Wanted:
    numbers = [_int(g.gate.shape[-1]), _row(g.gate), _row(g.up)]
    return "silu_rows", [*_at(g.gate, g.up, *out), *numbers]


WANTED: dict[str, Callable[[Any, Sequence[Tensor]], Wanted]] = {
    **{"sample": _sample, "accept": _accept, "verify_prefix": _verify, "rejection_sample": _rejection},
    **{"kv_append": _append, "kv_compact": _compact, "rms_norm": _norm, "rotary": _rotary, "silu_mul": _silu},
}
"""What each op's kernel is handed: from a call's arguments and its results."""
