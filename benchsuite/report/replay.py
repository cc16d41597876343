"""Measured durations, passed to pytest-benchmark through its own timer. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_now = 0.0


def replayed_seconds() -> float:
    """The timer of replayed benchmarks: it advances only in ``replay``."""
    return _now


def replay(benchmark: Any, seconds: Sequence[float], extra_info: dict[str, Any]) -> None:
    """Give pytest-benchmark one round for each duration, and the row's figures as ``extra_info``.

    All arms alternate, so their times are taken before any of them is reported. pytest-benchmark then records exactly
    these times, not those of a second run. The item needs ``benchmark(timer=replayed_seconds)``.
    """
    benchmark.extra_info.update(extra_info)
    left = list(seconds)

    def advance() -> None:
        global _now
        _now += left.pop(0)

    if left:
        benchmark.pedantic(advance, rounds=len(left), iterations=1)
