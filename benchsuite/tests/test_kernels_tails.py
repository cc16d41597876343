"""C++ at sizes around whole vectors: the results are right, and nothing outside the tensors is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchsuite.kernelbench.agreement import disagreement, packed, run_op, to
from benchsuite.kernelbench.cases import TAILS
from benchsuite.prove.tiny import registry
from specdec_kernels import cpu

STRIP = 64
"""Numbers before and after a tensor that belong to nobody: a cache line or more, so that tensors stay aligned."""

OPS = sorted({case.op for case in TAILS})


class Guarded(TorchDispatchMode):
    """Every tensor made in it lies between two strips of NaN, or of the least number where there is none.

    A kernel that uses a number outside gives another result; one that writes there is told by ``written``.
    """

    MADE = ("aten::empty.memory_format", "aten::empty_like", "aten::new_empty", "aten::_to_copy", "aten::clone")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._whole: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        if func.name() not in self.MADE or not made.numel() or not made.is_contiguous():
            return made
        whole = made.new_full((made.numel() + 2 * STRIP,), _nobodys(made.dtype))
        self._whole.append(whole)
        return whole[STRIP:-STRIP].view(made.shape).copy_(made)

    def written(self) -> list[int]:
        """The sizes of the tensors beside which something was written."""
        return [
            len(whole) - 2 * STRIP
            for whole in self._whole
            for strip in (whole[:STRIP], whole[-STRIP:])
            if not torch.equal(_bits(strip), _bits(torch.full_like(strip, _nobodys(whole.dtype))))
        ]


def _nobodys(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return float("nan")
    return 1 if dtype == torch.bool else torch.iinfo(dtype).min


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


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
                assert torch.equal(_bits(mine), _bits(theirs)), f"{case.name}, {dtype}: read outside of a tensor"
            assert not guard.written(), f"{case.name}, {dtype}: written beside tensors of {guard.written()} numbers"
            assert ops.ran().keys() == ran.keys() == {(op, "cpu")}
