"""The rule by which a backend agrees with the reference on a case.

Integers must be equal. For floats, both results are compared with the reference in float64. The backend's error may be
at most twice the reference's error in the same dtype, plus a rounding step of each of both results, for cases in which
the reference is exact or lucky (the rule of flash-attention's tests; no tolerance is chosen by hand).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from benchsuite.conformance.ops.cases import Case
from specdec.interfaces import Backend
from specdec.messages import Verdict
from specdec_kernels.reference import Reference

EXACT = (
    *("sample", "noise_keys", "accept", "verify_prefix", "rejection_sample", "block_sample", "tree_sample"),
    *("sample_of_slots", "emit", "kv_plan", "kv_append", "kv_compact"),
)
"""Ops whose results are compared bit for bit."""


def disagreement(backend: Backend, case: Case, dtype: torch.dtype, device: str = "cpu") -> str | None:
    """Return what is wrong with a backend's result on a case, or None."""
    arguments = case.make(Generator().manual_seed(7), dtype)
    got = run_op(backend, case.op, packed(backend, case.op, to(arguments, device=device)))
    expected = run_op(Reference(), case.op, arguments)
    for index, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        mine = mine.cpu()
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"output {index} is {mine.dtype} {tuple(mine.shape)}; expected {theirs.dtype} {tuple(theirs.shape)}"
        if case.op in EXACT:
            if not torch.equal(mine, theirs):
                return f"output {index} differs in {int((mine != theirs).sum())} of {mine.numel()} places"
            continue
        if not mine.numel():
            continue
        truth = run_op(Reference(), case.op, to(arguments, dtype=torch.float64))[index]
        allowed = 2 * (_error(theirs, truth) + torch.finfo(theirs.dtype).eps * _largest(truth))
        if not _error(mine, truth) <= allowed:
            return f"output {index} errs by {_error(mine, truth):.2e}; the reference by {_error(theirs, truth):.2e}"
    return None


def _error(got: Tensor, truth: Tensor) -> float:
    apart = (got.double() - truth).abs()
    return float(torch.where(got == truth, 0.0, apart).max())  # equal infinities are not apart


def _largest(truth: Tensor) -> float:
    finite = truth[truth.isfinite()]  # a processed logit may be -inf
    return float(finite.abs().max()) if finite.numel() else 0.0


def packed(backend: Backend, op: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an op's arguments with their matrices in the backend's own form."""
    if op in ("linear", "linear_of_slots"):
        x, weight, *rest = arguments
        return x, backend.pack(weight), *rest
    if op == "decoder_layers":
        x, layers, *rest = arguments
        return x, [layer.packed(backend) for layer in layers], *rest
    return arguments


def run_op(backend: Backend, op: str, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Return the tensors that an op returns or, for an op that works in place, changed copies of its tensors."""
    if op in ("kv_append", "kv_compact"):
        copies = tuple(_same_layout(t) for t in arguments[:2])
        getattr(backend, op)(*copies, *arguments[2:])
        return copies
    if op == "emit":
        window, verdict, tokens, length = arguments
        tokens = _same_layout(tokens)
        return tokens, backend.emit(window, verdict, tokens, length)
    if op == "decoder_layers":
        x, layers, turn, at = arguments
        cells = to(at)
        out = getattr(backend, op)(x, layers, turn, cells)
        written = [t for one in cells for t in (one.keys, one.values)]
        if cells[0].width is not None:
            row, slot = (torch.arange(x.shape[1], device=x.device) >= cells[0].width[:, None]).nonzero(as_tuple=True)
            out[row, slot] *= 0  # any numbers, but no NaN; what padding writes means nothing
            for t in written:
                t[row, :, cells[0].cells[row, slot]] = 0
        return out, *written
    out = getattr(backend, op)(*arguments)
    if op.endswith("_of_slots"):
        x, width = arguments[0], arguments[3 if op == "linear_of_slots" else 2]
        out[torch.arange(x.shape[1], device=x.device) >= width[:, None]] *= 0  # any numbers, but no NaN
    if isinstance(out, Verdict):
        return out.path, out.num_accepted, out.next
    return out if isinstance(out, tuple) else (out,)


def to(value: Any, device: str | None = None, dtype: torch.dtype | None = None) -> Any:
    """Return copies of the arguments on ``device``, floats in ``dtype``; strides and integer dtypes are kept."""
    if isinstance(value, tuple):
        return tuple(to(item, device, dtype) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{part.name: to(getattr(value, part.name), device, dtype) for part in fields(value)})
    if not isinstance(value, Tensor):
        return value
    wanted = dtype if dtype is not None and value.is_floating_point() else value.dtype
    return _same_layout(value, torch.device(device or value.device), wanted)


def _same_layout(tensor: Tensor, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
    if not tensor.numel():
        return tensor.to(device=device, dtype=dtype)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((reach,), (1,)).to(device=device, dtype=dtype, copy=True)
    return flat.as_strided(tensor.shape, tensor.stride())
