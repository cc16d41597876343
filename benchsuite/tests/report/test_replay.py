"""Measured durations reach pytest-benchmark as they were, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchsuite.report.replay import replay, replayed_seconds


class TimedRounds:
    """A benchmark that times rounds with the timer of replayed ones, as pytest-benchmark does."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {"kept": 1}
        self.seconds: list[float] = []

    def pedantic(self, function: Callable[[], None], rounds: int, iterations: int) -> None:
        """Time ``rounds`` rounds of so many calls."""
        for _ in range(rounds):
            start = replayed_seconds()
            for _ in range(iterations):
                function()
            self.seconds.append(replayed_seconds() - start)


@pytest.mark.parametrize("seconds", [[], [0.5], [0.25, 2.0, 0.125, 0.125]])
def test_a_round_takes_as_long_as_it_was_measured_to_take(seconds: list[float]) -> None:
    """Whatever was replayed before; without a duration nothing is run, and the figures are kept all the same."""
    for _ in range(2):
        rounds, given = TimedRounds(), list(seconds)
        replay(rounds, given, {"speedup": 1.5})
        assert rounds.seconds == pytest.approx(seconds)
        assert given == seconds
        assert rounds.extra_info == {"kept": 1, "speedup": 1.5}
