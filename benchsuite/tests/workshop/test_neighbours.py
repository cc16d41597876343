"""The benchmark of a run beside others: its figures are of runs that ran; no time is asserted."""

from __future__ import annotations

import sys

import pytest

from benchsuite.tests.rig import Run
from benchsuite.workshop.native import neighbours
from benchsuite.workshop.native.neighbours import Round

STAND_IN = "import sys; print('ready', flush=True); print(float(bool(sys.stdin.readline()))); sys.stdin.readline()"
"""A run that imports nothing: it says that it is warm, waits for a line, and its speed is 1."""


def stands_in(code: str, patch: pytest.MonkeyPatch) -> list[tuple[str, str, float]]:
    """Runs are this code from now on; returns the list of what they are asked for."""
    asked: list[tuple[str, str, float]] = []

    def command(target: str, backend: str, seconds: float) -> list[str]:
        asked.append((target, backend, seconds))
        return [sys.executable, "-c", code]

    patch.setattr(neighbours, "worker_command", command)
    return asked


def test_a_round_has_the_speed_of_each_situation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stands_in(STAND_IN, monkeypatch)
    assert neighbours.measure_neighbours("tiny", "auto", 0.2, 1) == [Round(1.0, 1.0, 1.0)]
    assert asked == [("tiny", "auto", 0.2)] * 3


def test_a_run_that_fails_is_an_error_and_not_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    stands_in("raise SystemExit(1)", monkeypatch)
    with pytest.raises(RuntimeError, match="status 1 before its figure"):
        neighbours.measure_neighbours("tiny", "auto", 0.2, 1)


@pytest.mark.slow
def test_a_run_of_its_own_says_when_it_is_warm_and_then_its_speed(run: Run) -> None:
    done = run(*neighbours.worker_command("tiny", "auto", 0.2)[1:])
    ready, speed = done.stdout.split()
    assert ready == "ready"
    assert float(speed) > 0
    assert run(*neighbours.worker_command("no-such-model", "auto", 0.2)[1:]).returncode == 1


def test_ratios_are_of_one_round_and_shown_with_their_range() -> None:
    slow, fast = Round(10.0, 4.0, 2.0), Round(100.0, 60.0, 50.0)
    _, equal, busy = neighbours.neighbours_table([slow, fast, Round(20.0, 10.0, 8.0)])
    assert "0.50 of that (0.40 to 0.60)" in equal
    assert "0.40 of that (0.20 to 0.50)" in busy


@pytest.mark.parametrize("wrong", ["--seconds=0", "--rounds=0", "--seconds=nan"])
def test_nothing_is_measured_for_no_time(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        neighbours.measure_command([wrong])
    assert "expected numbers above 0" in capsys.readouterr().err
