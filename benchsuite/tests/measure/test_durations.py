"""Times and shares of options: every way to write one value gives that value, and nothing else is taken."""

from __future__ import annotations

import pytest

from benchsuite.measure.durations import parse_duration, parse_share
from benchsuite.tests.rig import Run
from specdec import SpecdecError


@pytest.mark.parametrize("text", ["5400", "5400s", "5400 s", "90min", "1.5h", " 1.50 h "])
def test_every_way_to_write_a_time_gives_its_seconds(text: str) -> None:
    assert parse_duration(text, "--x") == 5400


@pytest.mark.parametrize("text", ["0", "", " ", "0s", "0.0min", "0h"])
def test_zero_and_nothing_are_no_time(text: str) -> None:
    assert parse_duration(text, "--x") is None


@pytest.mark.parametrize("text", ["-1", "1m", "1e3", "nan", "inf", "1 2", "h", "1h30min", "٣3", "9" * 400])
def test_another_text_is_no_time(text: str) -> None:
    with pytest.raises(SpecdecError, match=r"^--x is '.*'; expected a time, for example 90, 90s, 10min or 1.5h"):
        parse_duration(text, "--x")


@pytest.mark.parametrize("percent", [*range(1, 100), 0.3, 2.5, 99.9])
def test_a_percentage_is_the_number_written_out(percent: float) -> None:
    share = parse_share(f"{percent}%", "--x")
    assert share == parse_share(f"{share}", "--x") == float(f"{percent}e-2")


@pytest.mark.parametrize("text", ["", "0", "0%", "1", "100%", "2", "-2%", "%", "nan", "2%%", "2 in 100"])
def test_another_text_is_no_share(text: str) -> None:
    with pytest.raises(
        SpecdecError, match=r"^--x is '.*'; expected a share above 0 and below 1, for example 2% or 0.02"
    ):
        parse_share(text, "--x")


def test_reading_a_time_imports_no_torch(cold: Run) -> None:
    code = "import sys, benchsuite.measure.durations as d; d.parse_duration('1h', ''); sys.exit('torch' in sys.modules)"
    assert cold("-c", code).returncode == 0
