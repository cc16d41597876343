"""Time that is made up: a loop that waits moves its clock, and so does what blocks it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any
from unittest.mock import patch


class MadeUpTime(selectors.DefaultSelector):
    """A clock, moved by whoever waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Wait at once, on this clock."""
        assert timeout is not None, "nobody will ever go on"
        self.now += max(0.0, timeout)
        return super().select(0)

    def block(self, seconds: float) -> None:
        """Stand for a computation, or a collection of garbage, that lets nobody else run."""
        self.now += seconds


class MadeUpLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is made up."""

    def __init__(self, clock: MadeUpTime) -> None:
        super().__init__(clock)
        self.clock = clock

    def time(self) -> float:
        """Seconds on its clock."""
        return self.clock.now


def in_made_up_time(clock: MadeUpTime, whole: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end; ``time.perf_counter`` is the clock."""
    with (
        patch("time.perf_counter", lambda: clock.now),
        asyncio.Runner(loop_factory=lambda: MadeUpLoop(clock)) as runner,
    ):
        runner.run(whole)
