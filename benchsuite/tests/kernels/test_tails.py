"""C++ at sizes around whole vectors: the results are right, and nothing outside the tensors is read or written."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import disagreement, packed, run_op, to
from benchsuite.conformance.ops.cases import TAILS
from benchsuite.workshop.native.guarded import Guarded, bits
from specdec_kernels import cpu

OPS = sorted({case.op for case in TAILS})


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "level", ["auto", *(pytest.param(level, marks=pytest.mark.slow) for level in cpu.levels()[1:])]
)
def test_sizes_around_whole_vectors_agree_with_the_reference_and_use_nothing_outside(level: str, op: str) -> None:
    ops = registry().backend("cpu" if level == "auto" else f"cpu(level={level})")
    if ops.chain[0].name != "cpu":
        pytest.skip("no C++ compiler")
    for case in (case for case in TAILS if case.op == op):
        for dtype in case.dtypes:
            assert (wrong := disagreement(ops, case, dtype)) is None, f"{case.name}, {dtype}: {wrong}"
            ran = dict(ops.ran())
            arguments = case.make(torch.Generator().manual_seed(7), dtype)
            expected = run_op(ops, op, packed(ops, op, arguments))
            with Guarded() as guard:
                got = run_op(ops, op, packed(ops, op, to(arguments, device="cpu")))
            for mine, theirs in zip(got, expected, strict=True):
                assert torch.equal(bits(mine), bits(theirs)), f"{case.name}, {dtype}: read outside of a tensor"
            assert not guard.written(), f"{case.name}, {dtype}: written beside tensors of {guard.written()} numbers"
            assert ops.ran().keys() == ran.keys() == {(op, "cpu")}
