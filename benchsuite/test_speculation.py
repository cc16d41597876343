"""The main job: every arm of the matrix, measured beside plain decoding and checked against its contract."""

from __future__ import annotations

from benchsuite.rows import Row


def test_speculation(specdec_benchmark: Row) -> None:
    assert specdec_benchmark.failure is None, specdec_benchmark.failure
