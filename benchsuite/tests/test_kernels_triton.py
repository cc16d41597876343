"""The triton backend on small cases, interpreted; what it launches; what it takes."""

from __future__ import annotations

import pytest

from benchsuite.kernelbench.agreement import disagreement
from benchsuite.kernelbench.cases import CASES, SMALL, Case
from benchsuite.kernelbench.guarded import Guarded
from benchsuite.tests.rig import INTERPRETS
from specdec.ops import Ops
from specdec_kernels.reference import Reference
from specdec_kernels.triton import Triton

QUICK = {
    "linear": ("int8-odd",),
    "rms_norm": ("empty", "single"),
    "emit": ("1x1", "cut", "gaps"),
    "silu_mul": ("empty", "single", "flat"),
    "tree_sample": ("gaps", "large", "equal-noise-residual", "1x1x7", "equal-noise"),
    "block_sample": ("gaps", "large", "equal-noise-residual", "1x1x7", "equal-noise"),
    "rejection_sample": ("gaps", "large", "equal-noise-residual", "1x1x7", "equal-noise"),
    "tree_attention": ("gaps", "softcap", "garbage"),
    "verify_prefix": ("gaps", "tree-32x16", "1x1", "1x5", "tree-1x2"),
    "kv_plan": ("1", "gaps"),
    "kv_compact": ("nothing", "overlap", "ring", "swap", "gaps"),
    "kv_append": ("single", "gaps", "empty"),
    "sample": ("5001", "large", "7", "258-argmax", "tie", "tied-3x33", "gaps", "1-argmax", "equal-noise", "filtered"),
    "accept": ("many", "gaps"),
    "rotary": ("empty",),
    "noise_keys": ("number", "slots", "rows", "many"),
}
"""Of the cases of all backends those that the interpreter runs in a tenth of a second."""


def _cases() -> list[Case]:
    return [*SMALL, *(case for case in CASES if case.name in QUICK.get(case.op, ()))]


@pytest.mark.parametrize("case", _cases(), ids=lambda case: f"{case.op}-{case.name}")
@INTERPRETS
def test_an_op_agrees_with_the_reference_and_uses_nothing_outside(case: Case) -> None:
    ops = Ops([Triton(), Reference()])
    for dtype in case.dtypes:
        with Guarded() as guard:
            assert (wrong := disagreement(ops, case, dtype)) is None, f"{dtype}: {wrong}"
        assert not guard.written(), f"{dtype}: written beside tensors of {guard.written()} numbers"
    assert {name for (op, name), _ in ops.ran().items() if op == case.op} == {"triton"}
