"""The benchmark of a run beside others: its figures are of runs that ran; no time is asserted."""

from __future__ import annotations

import pytest

from benchsuite.kernelbench import neighbours
from benchsuite.kernelbench.neighbours import Round


@pytest.mark.slow
def test_a_round_has_the_speed_of_each_situation() -> None:
    (found,) = neighbours.measure_neighbours("tiny", "auto", 0.2, 1)
    assert min(found.alone, found.equal, found.busy) > 0


@pytest.mark.slow
def test_a_run_that_fails_is_an_error_and_not_a_figure() -> None:
    with pytest.raises(RuntimeError, match="status 1 before its figure"):
        neighbours.measure_neighbours("no-such-model", "auto", 0.2, 1)


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
