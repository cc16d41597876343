"""The cuda backend: CUDA kernels compiled at first use with nvcc, for the GPUs of this machine.

Every op is one launch on the current stream. Nothing is synchronised and no device is read, so an op may be
captured in a CUDA graph; memory comes from torch's allocator.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.devices import why_absent
from specdec.hookspecs import hookimpl
from specdec.interfaces import BackendFactory
from specdec.messages import Verdict, Window
from specdec.packed import Weight
from specdec_kernels import build
from specdec_kernels.reference import Reference

MOST_TOKENS = 2**31 - 1
"""The largest vocabulary: csrc/noise_cuda.h packs a token's id in 31 bits."""

MOST_MOVED = 3072
"""Most cells of a row that ``kv_compact`` fits into shared memory at 16 bytes each; above it the reference runs."""

_PART = 2048  # fewest tokens for which a further block is worthwhile
_KIND = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # enum Kind of decoder.cu
_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES = {  # without the stream, which comes last
    "sample": [*[_POINTER] * 4, *[_LONG] * 3, _INT],
    "accept": [*[_POINTER] * 3, _LONG],
    "verify_prefix": [*[_POINTER] * 7, *[_LONG] * 3],
    "rejection_sample": [*[_POINTER] * 12, _LONG, _INT, _LONG, _INT],
    "kv_append": [*[_POINTER] * 5, *[_LONG] * 5, _POINTER],
    "kv_compact": [*[_POINTER] * 4, *[_LONG] * 5, _POINTER],
    "rms_norm": [_INT, _INT, *[_POINTER] * 3, *[_LONG] * 3, _FLOAT, _FLOAT],
    "rotary": [_INT, *[_POINTER] * 6, *[_LONG] * 6, _POINTER],
    "silu_mul": [_INT, *[_POINTER] * 3, *[_LONG] * 4],
}


def architectures() -> tuple[int, ...]:
    """Compute capabilities to compile for, 90 for 9.0: those of the GPUs here, or 80 and 90 without a GPU."""
    if not torch.cuda.is_available():
        return 80, 90
    found = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    return tuple(sorted(major * 10 + minor for major, minor in found))


def cuda_compiler() -> str | None:
    """nvcc of CUDA_HOME, else the one on the path."""
    home = os.environ.get("CUDA_HOME")
    found = shutil.which("nvcc", path=Path(home, "bin")) if home else None
    return found or shutil.which("nvcc")


def load_cuda_library(numbers: Sequence[int] = (), more: Sequence[str] = ()) -> ctypes.CDLL:
    """The kernels, compiled if the cache lacks them. Needs nvcc and no GPU. Raises BuildError.

    ``numbers``: compute capabilities to compile for, by default ``architectures()``; ``more``: further flags of nvcc.
    """
    found = cuda_compiler()
    if found is None:
        raise build.BuildError("no CUDA compiler: looked for nvcc in CUDA_HOME and on the path; install it")
    targets = (f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers or architectures())
    library = _library((found, "-O3", "-std=c++17", "-Xcompiler", "-fPIC", *targets, *more))
    if isinstance(library, str):
        raise build.BuildError(library)
    return library


@cache
def _library(command: tuple[str, ...]) -> ctypes.CDLL | str:
    try:
        library = build.library("cuda", command, ".cu")
    except build.BuildError as error:
        return str(error)  # cached, so that a failed build is not repeated at every call
    for name, types in _SIGNATURES.items():
        function = getattr(library, f"specdec_{name}")
        function.argtypes, function.restype = [*types, _POINTER], _INT
    library.specdec_error.argtypes, library.specdec_error.restype = [_INT], ctypes.c_char_p
    return library


class Cuda(Reference):
    """CUDA kernels for float32, bfloat16 and float16; the reference runs attention and products."""

    name = "cuda"
    priority = 100
    devices = ("cuda",)

    def __init__(self) -> None:
        self._zeros: dict[tuple[torch.device, int], Tensor] = {}

    def missing(self) -> str | None:
        """The reason why the kernels cannot run: compiling forbidden, no GPU, no nvcc, failed build or old driver."""
        reason = build.forbidden() or why_absent("cuda")
        if reason:
            return reason
        try:
            code = self._kernels.specdec_probe()
        except build.BuildError as error:
            return str(error)
        return f"the CUDA kernels cannot run: {self._words(code)}" if code else None

    def takes(self, op: str, *tensors: Weight) -> bool:
        """CUDA tensors of the dtypes above; drawing needs float32, cells may have any dtype of 2 or 4 bytes."""
        given = [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_cuda]
        if len(given) < len(tensors) or not super().takes(op, *tensors):
            return False
        first = given[0]
        if op in ("sample", "rejection_sample"):
            return first.dtype == torch.float32 and 0 < first.shape[-1] <= MOST_TOKENS
        if op == "accept":
            return first.dtype == torch.float32
        if op == "verify_prefix":
            return first.dtype == torch.int64
        if op in ("kv_append", "kv_compact"):
            return first.itemsize in (2, 4) and first.stride(3) == 1 and all(t.dtype == first.dtype for t in given)
        if op == "rotary":
            cos, size = given[1], first.shape[-1]
            return first.dtype in _KIND and cos.dtype == first.dtype and cos.shape[-1] == size and size % 2 == 0
        return first.dtype in _KIND

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """One maximum for each row, over several blocks if there are few rows."""
        shape = logits.shape[:-1] if key is None else torch.broadcast_shapes(logits.shape[:-1], key.shape)
        size = logits.shape[-1]
        rows = _dense(logits.expand(*shape, size).reshape(-1, size))
        keys = None if key is None else key.expand(shape).contiguous()
        chosen = rows.new_empty(shape, dtype=torch.int64)
        parts = _parts(len(rows), size, rows.device)
        self._launch(
            "sample",
            rows.device,
            rows,
            keys,
            chosen,
            self._meetings(len(rows), parts, rows.device),
            len(rows),
            size,
            rows.stride(0),
            parts,
        )
        return chosen

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """Element by element."""
        probability, key = (t.contiguous() for t in torch.broadcast_tensors(probability, key))
        accepted = torch.empty_like(probability, dtype=torch.bool)
        self._launch("accept", key.device, probability, key, accepted, key.numel())
        return accepted

    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """One thread walks each row."""
        rows, slots = choices.shape
        verdict = _verdict(rows, slots, choices.device)
        parents = _dense(window.parents)
        self._launch(
            "verify_prefix",
            choices.device,
            window.tokens.contiguous(),
            parents,
            window.width.contiguous(),
            choices.contiguous(),
            verdict.path,
            verdict.num_accepted,
            verdict.next,
            rows,
            slots,
            parents.stride(0),
        )
        return verdict

    def rejection_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """The tests, the residual and the draw in one launch; the reference handles a q that is not float32."""
        if window.q is not None and window.q.dtype != torch.float32:
            return super().rejection_sample(distribution, window, accept_key, residual_key, bonus_key)
        rows, slots, size = distribution.shape
        distribution, q = _dense(distribution), None if window.q is None else _dense(window.q)
        strides = (*distribution.stride()[:2], *((0, 0) if q is None else q.stride()[:2]))
        keys = (key.contiguous() for key in (accept_key, residual_key, bonus_key))
        verdict = _verdict(rows, slots, distribution.device)
        parts = _parts(rows, size, distribution.device)
        self._launch(
            "rejection_sample",
            distribution.device,
            distribution,
            q,
            (_LONG * 4)(*strides),
            window.tokens.contiguous(),
            window.width.contiguous(),
            *keys,
            verdict.path,
            verdict.num_accepted,
            verdict.next,
            self._meetings(rows, parts, distribution.device),
            rows,
            slots,
            size,
            parts,
        )
        return verdict

    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """Keys and values in one launch, in units of 16 bytes if all addresses allow it."""
        rows, heads, width, size = new_keys.shape
        new_keys, new_values = _dense(new_keys), _dense(new_values)
        self._launch(
            "kv_append",
            keys.device,
            keys,
            values,
            new_keys,
            new_values,
            cells.contiguous(),
            rows,
            heads,
            width,
            size * keys.itemsize,
            keys.itemsize,
            _byte_strides(keys, values, new_keys, new_values),
        )

    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """Copies the path's cells to shared memory before any is written; cells that stay in place are skipped."""
        rows, heads, _, size = keys.shape
        depth = source.shape[1]
        if depth > MOST_MOVED:
            return super().kv_compact(keys, values, source, target)
        return self._launch(
            "kv_compact",
            keys.device,
            keys,
            values,
            source.contiguous(),
            target.contiguous(),
            rows,
            heads,
            depth,
            size * keys.itemsize,
            keys.itemsize,
            _byte_strides(keys, values),
        )

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """One block for each row."""
        size = x.shape[-1]
        rows = _dense(x.reshape(-1, size))
        weight = (weight if weight.dtype == x.dtype else weight.float()).contiguous()
        wide = weight.dtype == torch.float32
        y = x.new_empty(x.shape)
        self._launch(
            "rms_norm", x.device, _KIND[x.dtype], wide, rows, weight, y, len(rows), size, rows.stride(0), eps, offset
        )
        return y

    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys in one launch, rounded once; read in the layout that the projections left."""
        rows, heads, width, size = query.shape
        query, keys, cos, sin = _dense(query), _dense(keys), cos.contiguous(), sin.contiguous()
        new_query, new_keys = query.new_empty(query.shape), keys.new_empty(keys.shape)
        self._launch(
            "rotary",
            query.device,
            _KIND[query.dtype],
            query,
            keys,
            cos,
            sin,
            new_query,
            new_keys,
            rows,
            heads,
            keys.shape[1],
            width,
            size,
            width * size if cos.shape[0] > 1 else 0,
            _byte_strides(query, keys),
        )
        return new_query, new_keys

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """One pass, rounded once."""
        size = gate.shape[-1]
        y = gate.new_empty(gate.shape)
        gate, up = (_dense(t.reshape(-1, size)) for t in (gate, up))
        self._launch("silu_mul", y.device, _KIND[y.dtype], gate, up, y, len(gate), size, gate.stride(0), up.stride(0))
        return y

    @cached_property
    def _kernels(self) -> ctypes.CDLL:
        return load_cuda_library()

    def _words(self, code: int) -> str:
        words: bytes = self._kernels.specdec_error(code)
        return words.decode()

    def _launch(self, op: str, device: torch.device, *given: Any) -> None:
        """Launch an op's kernel on the device's current stream; ``given`` are its arguments, tensors or numbers."""
        function = getattr(self._kernels, f"specdec_{op}")
        plain = (value.data_ptr() if isinstance(value, Tensor) else value for value in given)
        with torch.cuda.device(device):
            code = function(*plain, torch.cuda.current_stream(device).cuda_stream)
        if code:
            raise RuntimeError(f"the CUDA kernel of {op} on {device} failed: {self._words(code)}")

    def _meetings(self, rows: int, parts: int, device: torch.device) -> Tensor | None:
        """int64 [rows, 2] of zeros in which the blocks of a row combine results; every launch restores the zeros.

        There is one tensor for each stream, because launches on one stream run in order. A graph gets its own tensor
        from the pool it is captured with, zeroed at every replay: it may be replayed on another stream, and a tensor
        stored here could be replaced by a larger one while the graph still points to it. None if ``parts`` is 1.
        """
        if parts == 1:
            return None
        with torch.cuda.device(device):
            captured = torch.cuda.is_current_stream_capturing()
        if captured:
            return torch.zeros(rows, 2, dtype=torch.int64, device=device)
        place = device, torch.cuda.current_stream(device).cuda_stream
        zeros = self._zeros.get(place)
        if zeros is None or len(zeros) < rows:
            zeros = self._zeros[place] = torch.zeros(rows, 2, dtype=torch.int64, device=device)
        return zeros


def _parts(rows: int, size: int, device: torch.device) -> int:
    """Blocks for each row: enough to fill the device, each with at least ``_PART`` tokens."""
    fill = 4 * torch.cuda.get_device_properties(device).multi_processor_count // max(rows, 1)
    return max(1, min(fill, size // _PART))


def _dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if its last axis is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _byte_strides(*tensors: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """The strides, in bytes, of the first three axes of each tensor."""
    values = [stride * tensor.itemsize for tensor in tensors for stride in tensor.stride()[:3]]
    return (_LONG * len(values))(*values)


def _verdict(rows: int, slots: int, device: torch.device) -> Verdict:
    path, accepted, following = (
        torch.empty(shape, dtype=torch.int64, device=device) for shape in ((rows, slots), (rows,), (rows,))
    )
    return Verdict(path, accepted, following)


@hookimpl
def specdec_register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register ``cuda``."""
    register("cuda", Cuda)
