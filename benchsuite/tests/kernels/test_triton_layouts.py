"""The triton backend, interpreted, on tensors that lie backwards in memory with gaps in every axis."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import CASES, ONE, SMALL, Case
from benchsuite.tests.rig import INTERPRETS
from specdec.ops import Ops
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton

pytestmark = INTERPRETS


def _scattered(value: Any) -> Any:
    """The same values in tensors whose axes lie in the opposite order, each with a step of its own."""
    if isinstance(value, tuple | list):
        return type(value)(map(_scattered, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{part.name: _scattered(getattr(value, part.name)) for part in fields(value) if part.init})
    if not isinstance(value, Tensor) or not value.dim():
        return value
    steps = [2 + axis for axis in range(value.dim())]
    around = torch.full([step * size + 1 for step, size in zip(steps, value.shape, strict=True)][::-1], 77)
    back = around.to(value.dtype).permute(*range(value.dim())[::-1])
    inside = back[tuple(slice(1, None, step) for step in steps)]
    inside = inside[tuple(slice(0, size) for size in value.shape)]
    return inside.copy_(value)


def test_a_scattered_tensor_has_the_same_values_and_other_strides() -> None:
    value = torch.randn(3, 4, 5, generator=Generator().manual_seed(1))
    moved = _scattered(value)
    assert moved.equal(value)
    assert moved.stride() == (2, 3 * 7, 4 * 7 * 13)


OTHERS = {
    ("sample", "gaps"),
    ("sample", "tied-3x33"),
    ("accept", "gaps"),
    ("verify_prefix", "gaps"),
    ("noise_keys", "slots"),
    ("noise_keys", "rows"),
    ("kv_compact", "overlap"),
    ("kv_compact", "ring"),
}
"""Of the other cases one or two for each op that has no small one."""

MOVED = [*SMALL, *(case for case in CASES if (case.op, case.name) in OTHERS)]


def _moved(case: Case) -> Case:
    def made(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        given = case.make(g, dtype)
        if case.op == "tree_attention":  # the number of used cells is never a view
            return (*map(_scattered, given[:6]), *given[6:])
        return tuple(map(_scattered, given))

    return Case(case.op, case.name, made, ONE)


DEAR = ("rotary", "decoder_layers", "tree_attention", "rejection_sample", "block_sample", "tree_sample")
QUICK = ("small-5", "small-near-1")
"""Of the ops that an interpreter is slow at, the cases of a quick run; of others all are."""


def _marked(case: Case) -> Any:
    marks = [pytest.mark.slow] if case.op in DEAR and case.name not in QUICK else []
    return pytest.param(case, id=f"{case.op}-{case.name}", marks=marks)


@pytest.mark.parametrize("case", [*map(_marked, MOVED)])
def test_an_op_reads_every_operand_by_its_own_strides(case: Case) -> None:
    ops = Ops([Triton(), Reference()])
    assert disagreement(ops, _moved(case), torch.float32) is None
    assert {name for (op, name), _ in ops.ran().items() if op == case.op} == {"triton"}


def test_every_op_of_the_backend_is_among_them() -> None:
    own = {name for name in vars(Triton) if not name.startswith("_") and callable(getattr(Reference, name, None))}
    assert {case.op for case in MOVED} == own - {"takes", "missing"}
    assert {(case.op, case.name) for case in CASES} >= OTHERS
