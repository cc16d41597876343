"""Pins of test_model_shapes.py: tests that read what is private."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec import Window
from specdec.model import ArenaModel


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_logits_may_differ_by_this_share_of_the_largest_and_no_more(dtype: torch.dtype, share: float) -> None:
    """Of the last three of six tokens, after a forward of the first three; one logit is moved, the smallest."""
    target = ArenaModel(families.build_model("llama", 0, dtype), registry().backend("reference"))
    assert target.own_threads is False
    tokens = torch.tensor([[5, 80, 200, 17, 3, 99]])
    arena = target.arena(1, 6, 6)
    target.extend(arena, tokens[:, :3], 0, 0)
    window = Window.chain(tokens[:, 3], tokens[:, 4:], torch.tensor([2]))
    own = target.forward(arena, window, slice(0, 1), 3)[0].float()
    before = torch.cat([torch.full_like(own, 1e6), own], dim=1)
    assert target._differs(tokens, before) is None
    largest = own.abs().max()
    for place in (3, 5):
        for times, reason in ((0.9, None), (1.1, "its logits over the arena are not its own")):
            moved = before.clone()
            moved[0, place, own[0, place - 3].abs().argmin()] += times * share * largest
            assert moved[:, 3:].abs().max() == largest
            assert target._differs(tokens, moved) == reason
