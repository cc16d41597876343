"""Runs the state machines over arena and engine, and shows that the ring's bound is tight."""

from __future__ import annotations

from hypothesis import settings

from benchsuite.prove.arena_machine import WIDEST, Rollback
from benchsuite.prove.engine_machine import EngineMachine

# 60 runs of 30 steps take a few seconds; each fault planted so far is found in the first few runs.
Rollback.TestCase.settings = settings(max_examples=settings().max_examples * 6 // 10, stateful_step_count=30)
TestRollback = Rollback.TestCase

EngineMachine.TestCase.settings = Rollback.TestCase.settings
TestEngineMachine = EngineMachine.TestCase


def test_the_ring_bound_is_tight() -> None:
    """With one cell less than span + W - 1 a window overwrites a cell that its first slot must see."""
    for span in (3, 5):
        needed = set(range(10 - span + 1, 10))  # past positions that a query at 10 sees
        for capacity, fits in ((span + WIDEST - 1, True), (span + WIDEST - 2, False)):
            writes = {(10 + slot) % capacity for slot in range(WIDEST)}
            assert ({p % capacity for p in needed}.isdisjoint(writes)) is fits
