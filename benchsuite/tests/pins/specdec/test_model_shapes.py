"""Pins of test_model_shapes.py: tests that read what is private."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec.model import ArenaModel
from specdec.trial import ALLOWED, ALLOWED_HALF, LENGTH, ArenaTrial


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, ALLOWED), (torch.bfloat16, ALLOWED_HALF)])
def test_logits_may_differ_by_this_share_of_the_largest_and_no_more(dtype: torch.dtype, share: float) -> None:
    """One logit of each row of the trial's window is moved, the smallest, beyond what rounding moves it."""
    model = families.build_model("llama", 0, dtype)
    trial = ArenaTrial(model, None, False)
    target = ArenaModel(model, registry().backend("reference"))
    assert target.own_threads is False
    assert trial.differs(target) == ""
    own, largest = trial._expected.clone(), trial._expected.abs().max()
    rounding = float(0.02 * largest) if dtype == torch.bfloat16 else float(1e-6 * largest)
    for row in range(2):
        for beyond, reason in ((-rounding, ""), (rounding, "its logits over the arena are not its own")):
            moved = own.clone()
            moved[row, -1, own[row, -1].abs().argmin()] += share * largest + beyond
            assert moved.abs().max() == largest
            trial._expected = moved
            assert trial.differs(target) == reason
    assert trial._texts.shape == (2, LENGTH)
