"""Every op agrees with the reference in float16 too, where a backend takes it; elsewhere the reference runs it."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import FLOAT16_CASES, Case
from benchsuite.tests.rig import INTERPRETED

NAMES = ("whole", "odd", "ragged", "overlap", "softcap", "int8-4", "1x9", "tree")
FEW = [case for case in FLOAT16_CASES if case.name in NAMES]
"""A case or two of each op: the interpreter is a hundred times slower than a GPU."""

GPU = (pytest.mark.cuda, pytest.mark.gpu)


@pytest.mark.parametrize(
    ("name", "device", "case"),
    [
        *(pytest.param("cpu", "cpu", case, id=f"cpu-{case.op}-{case.name}") for case in FEW),
        *(pytest.param("triton", "cpu", c, marks=INTERPRETED, id=f"interpreted-{c.op}-{c.name}") for c in FEW),
        *(
            pytest.param(name, "cuda", case, marks=GPU, id=f"{name}-{case.op}-{case.name}")
            for name in ("triton", "cuda")
            for case in FLOAT16_CASES
        ),
    ],
)
def test_an_op_agrees_with_the_reference_in_float16(name: str, device: str, case: Case) -> None:
    ops = registry().backend(name)
    assert disagreement(ops, case, torch.float16, device) is None
    computed = {backend for op, backend in ops.ran() if not op.startswith("kv_")}
    assert name != "cpu" or computed <= {"reference"}, "the cpu backend moves float16, and computes nothing in it"


def test_every_op_on_floats_has_cases_in_float16() -> None:
    assert {case.op for case in FEW} == {case.op for case in FLOAT16_CASES}
    assert len(FLOAT16_CASES) > 100
