"""Pins of test_mutation.py: tests that read what is private."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from benchsuite.workshop.mutation import forks
from benchsuite.workshop.mutation.workers import in_fork


def test_a_run_is_ended_when_no_test_ends_for_too_long_and_not_while_tests_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of whole seconds, on which a test ends every three seconds until the tenth."""
    progress, now, second = tmp_path / "progress", 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now, second
        second += 1
        now += 1.0
        if second % 3 == 0 and second <= 30:
            forks._Progress(progress).pytest_runtest_logfinish()

    monkeypatch.setattr(forks, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    for limits, ended in ((forks.ForkLimits(60, 600, still=4), 35), (forks.ForkLimits(60, 20, still=4), 21)):
        second, now = 0, 0.0
        progress.unlink(missing_ok=True)
        waiting = in_fork(lambda: Event().wait() and 0, failed=3)
        assert forks._wait(waiting, limits, progress) is None
        assert second == ended
