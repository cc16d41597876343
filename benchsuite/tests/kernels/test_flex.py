"""FlexAttention computes what the op ``tree_attention`` means, so that a GPU's times of both can be compared."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import CASES, Case
from specdec.ops import Ops
from specdec_kernels.flex import Flex
from specdec_kernels.reference import Reference

ATTENTION = [case for case in CASES if case.op == "tree_attention" and not case.name.startswith("sinks")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (n > 0), id=case.name) for n, case in enumerate(ATTENTION)],
)
def test_flex_attention_agrees_with_the_reference(case: Case, deep: bool) -> None:
    """Op by op it is slow, and a case has one of its dtypes in turn."""
    ops = Ops([Flex(compiled=False), Reference()])
    dtypes = case.dtypes if deep else case.dtypes[ATTENTION.index(case) % len(case.dtypes) :][:1]
    for dtype in dtypes:
        assert disagreement(ops, case, dtype) is None
    assert ops.ran() == {("tree_attention", "flex"): len(dtypes)}


@pytest.mark.cuda
@pytest.mark.gpu
@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_compiled_flex_attention_agrees_with_the_reference(case: Case) -> None:
    ops = Ops([Flex(), Reference()])
    for dtype in case.dtypes:
        assert disagreement(ops, case, dtype, "cuda") is None


def test_flex_runs_only_where_it_is_named() -> None:
    assert "flex" not in [backend.name for backend in registry().backend().chain]
    if not torch.cuda.is_available():
        assert Flex().missing() == "there is no CUDA device"
