"""Values of options: every way to write one gives that value, and nothing else is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchsuite import values
from benchsuite.tests.rig import Run
from benchsuite.values import duration, fraction, share, whole_number
from specdec import SpecdecError


@pytest.mark.parametrize("text", ["5400", "5400s", "5400 s", "90min", "1.5h", " 1.50 h "])
def test_every_way_to_write_a_time_gives_its_seconds(text: str) -> None:
    assert duration(text, "--x") == 5400


@pytest.mark.parametrize("text", ["0", "", " ", "0s", "0.0min", "0h"])
def test_zero_and_nothing_are_no_time(text: str) -> None:
    assert duration(text, "--x") is None


@pytest.mark.parametrize("text", ["-1", "1m", "1e3", "nan", "inf", "1 2", "h", "1h30min", "٣3", "9" * 400])
def test_another_text_is_no_time(text: str) -> None:
    with pytest.raises(SpecdecError, match=r"^--x is '.*'; expected a time, for example 90, 90s, 10min or 1.5h"):
        duration(text, "--x")


@pytest.mark.parametrize("percent", [*range(1, 100), 0.3, 2.5, 99.9])
def test_a_percentage_is_the_number_written_out(percent: float) -> None:
    found = share(f"{percent}%", "--x")
    assert found == share(f"{found}", "--x") == float(f"{percent}e-2")


@pytest.mark.parametrize("text", ["", "0", "0%", "1", "100%", "2", "-2%", "%", "nan", "2%%", "2 in 100"])
def test_another_text_is_no_share(text: str) -> None:
    with pytest.raises(
        SpecdecError, match=r"^--x is '.*'; expected a share above 0 and below 1, for example 2% or 0.02"
    ):
        share(text, "--x")


def test_whole_numbers_and_fractions_are_read_between_their_limits() -> None:
    assert [fraction(text, "--x") for text in ("1e-9", "0.5", " 0.999999 ")] == [1e-9, 0.5, 0.999999]
    assert [whole_number(text, "--x") for text in ("1", "2", "010")] == [1, 2, 10]
    for text in ("0", "00", "", " ", "+1", "1 2", "²", "1_0", "1.5", "-1", "x"):
        with pytest.raises(SpecdecError) as refused:
            whole_number(text, "--x")
        assert str(refused.value) == f"--x is {text!r}; expected a whole number, 1 or more"
    for text in ("0", "1", "0_1.5", "nan", "-0.1", "", "²"):
        with pytest.raises(SpecdecError, match="^--x is .*; expected a fraction between 0 and 1: 0.03 is 3 %$"):
            fraction(text, "--x")


def test_reading_a_time_imports_no_torch(cold: Run) -> None:
    code = "import sys, benchsuite.values as d; d.duration('1h', ''); sys.exit('torch' in sys.modules)"
    assert cold("-c", code).returncode == 0


WAYS = (
    "models/m",
    "./models/m",
    "models/m/",
    "models//m",
    "./models/./m/",
    "{cwd}/models/m",
    "{cwd}/models/m/",
    "models/../models/m",
)


@pytest.mark.parametrize("written", WAYS)
@pytest.mark.parametrize(
    "text", ["{}", "draft_model(model={})", "draft_model(model='{}', layers=2)", "a={}, tree({}, beam=2)"]
)
def test_a_path_is_one_text_however_it_is_written(
    text: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    path = written.format(cwd=tmp_path)
    assert values.with_paths(text.replace("{}", path), "--o") == text.replace("{}", "models/m")
    assert ", ".join(values.names(text.replace("{}", path), "--o")) == text.replace("{}", "models/m")


def test_a_text_that_is_no_path_here_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    for text in ("owner/name", "ngram/match/fixed/4", "http://localhost:8000/", "m", "./none/", "shape:owner/name"):
        assert values.with_paths(text, "--o") == text
    outside = tmp_path.parent / "elsewhere"
    outside.mkdir(exist_ok=True)
    assert values.with_paths(f"{outside}/", "--o") == str(outside)
