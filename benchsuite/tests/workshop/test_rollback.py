"""Runs the state machines over arena and engine, and shows that the ring's bound is tight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from benchsuite.workshop.machines.arena_machine import LAYERS, WIDEST, Rollback
from benchsuite.workshop.machines.engine_machine import EngineMachine
from specdec import Verdict
from specdec.arena import Arena
from specdec.ops import Ops
from specdec_kernels.reference import Reference

# 60 runs of 30 steps take a few seconds; each fault planted so far is found in the first few runs.
Rollback.TestCase.settings = settings(max_examples=settings().max_examples * 6 // 10, stateful_step_count=30)
TestRollback = pytest.mark.slow(Rollback.TestCase)

EngineMachine.TestCase.settings = Rollback.TestCase.settings
TestEngineMachine = pytest.mark.slow(EngineMachine.TestCase)


def test_a_path_is_compacted_once_for_all_layers_of_a_shape() -> None:
    """Keys that name their layer, and cells that name their slot: layers 1 and 3 share a shape."""
    ops = Ops([Reference()])
    arena = Arena(LAYERS, rows=1, max_length=8, max_window=4, dtype=torch.float32, device=torch.device("cpu"))
    for layer, keys in enumerate(arena.keys):
        keys.copy_((100 * layer + torch.arange(keys.shape[2])).view(1, 1, -1, 1).expand_as(keys))
    arena.commit(Verdict(torch.tensor([[0, 3]]), torch.tensor([1]), torch.tensor([0])), slice(0, 1), ops, compact=True)
    assert ops.ran()["kv_compact", "reference"] == len(set(LAYERS)) < len(LAYERS)
    for layer, keys in enumerate(arena.keys):
        assert keys[0, :, 1].eq(100 * layer + 3).all(), f"layer {layer}"


def test_the_ring_bound_is_tight() -> None:
    """With one cell less than span + W - 1 a window overwrites a cell that its first slot must see."""
    for span in (3, 5):
        needed = set(range(10 - span + 1, 10))  # past positions that a query at 10 sees
        for capacity, fits in ((span + WIDEST - 1, True), (span + WIDEST - 2, False)):
            writes = {(10 + slot) % capacity for slot in range(WIDEST)}
            assert ({p % capacity for p in needed}.isdisjoint(writes)) is fits
