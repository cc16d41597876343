"""Values of options: every way to write one gives that value, and nothing else is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite import values
from benchsuite.tests.rig import Run
from benchsuite.values import (
    above_zero,
    duration,
    flag,
    fraction,
    limits,
    number,
    one_of,
    part_of,
    sampled,
    share,
    unless_empty,
    whole_number,
    wholes,
)
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


def refused_text(read: Callable[[str, str], Any], text: str) -> str:
    """The sentence with which a reader of the option ``--x`` refuses a text."""
    with pytest.raises(SpecdecError) as refused:
        read(text, "--x")
    return str(refused.value)


@pytest.mark.parametrize(
    ("yes", "words"), [(True, "true 1 yes on TRUE Yes ON"), (False, "false 0 no off False NO Off")]
)
def test_a_flag_is_said_in_words_of_any_case(yes: bool, words: str) -> None:
    assert [flag(word, "--x") for word in words.split()] == [yes] * 7
    assert flag("", "--x") is False
    for word in ("2", "tru", "y", " true", "yes,no"):
        assert refused_text(flag, word) == f"--x is {word!r}; expected true or false"


def test_a_word_is_one_of_the_choices_and_a_refusal_lists_them() -> None:
    read = one_of("near", "far")
    assert [read(word, "--x") for word in ("near", "far")] == ["near", "far"]
    for word in ("", "Near", "near,far"):
        assert refused_text(read, word) == f"--x is {word!r}; expected one of near, far"


@pytest.mark.parametrize("least", [0, 1, 7])
def test_whole_numbers_of_a_list_begin_at_the_least(least: int) -> None:
    read = wholes(least)
    assert read(f"{least}, {least + 1},{10**30}", "--x") == (least, least + 1, 10**30)
    for part in (str(least - 1), f"{least}.0", "x", "1_0", "²"):
        expected = f"--x is {part!r}; expected whole numbers, {least} or more, separated by commas"
        assert refused_text(read, f"{least}, {part}, {least}") == expected
    assert refused_text(read, " , ") == "--x is empty; leave it out for its default"


def test_parameters_of_sampling_are_whole_where_requests_have_them_whole() -> None:
    assert sampled("temperature")("0, 0.5,2", "--x") == (0.0, 0.5, 2.0)
    found = sampled("top_k")("0,40", "--x")
    assert (found, [type(one) for one in found]) == ((0, 40), [int, int])
    assert refused_text(sampled("top_k"), "1,0.5").startswith("--x is '0.5'; expected numbers, each a whole number, 0 ")
    assert refused_text(sampled("top_p"), "1,1.01").startswith(
        "--x is '1.01'; expected numbers, each above 0 and at most 1"
    )


def test_a_list_of_rates_may_be_empty_and_has_finite_numbers_above_zero() -> None:
    assert above_zero("", "--x") == ()
    assert above_zero("1e-9, 0.5,2", "--x") == (1e-9, 0.5, 2.0)
    for part in ("0", "-1", "inf", "nan", "1_0", "x"):
        expected = f"--x is {part!r}; expected numbers above 0, separated by commas: 0.5,2"
        assert refused_text(above_zero, f"1, {part}") == expected


@pytest.mark.parametrize(
    ("text", "part"), [("", (1, 1)), ("1/1", (1, 1)), ("1/2", (1, 2)), (" 2 / 2", (2, 2)), ("11/30", (11, 30))]
)
def test_a_part_is_one_of_so_many(text: str, part: tuple[int, int]) -> None:
    assert part_of(text, "--x") == part


@pytest.mark.parametrize("text", ["0/2", "3/2", "0/0", "1", "1/", "/2", "1/2/3", "a/b", "-1/2", "1.0/2"])
def test_another_text_is_no_part(text: str) -> None:
    assert refused_text(part_of, text) == f"--x is {text!r}; expected i/n with i from 1 to n, as in 2/3"


def test_limits_have_their_names_and_finite_seconds_above_zero() -> None:
    read = limits(("first", "all"))
    assert read("", "--x") == {}
    assert read("all=2, first=1e-3", "--x") == {"first": 0.001, "all": 2.0}
    for part in ("last=1", "first", "first=0", "first=-1", "first=inf", "first=nan", "first=1=2", "=1", "1=first"):
        assert refused_text(read, f"all=0.5,{part}") == (
            f"--x is {part!r}; expected first, all in seconds above 0, as in first=0.5"
        )


def test_an_empty_text_is_none_where_it_may_be() -> None:
    read = unless_empty(wholes(1))
    assert (read("", "--x"), read("2", "--x")) == (None, (2,))
    assert refused_text(read, "0").startswith("--x is '0'; expected whole numbers, 1 or more")


def test_a_number_is_as_people_write_it_and_anything_else_is_none() -> None:
    assert [number(text) for text in ("1", " -2.5 ", "1e3", "inf")] == [1.0, -2.5, 1000.0, math.inf]
    assert all(math.isnan(number(text)) for text in ("1_0", "x", "", "1,5", "nan"))


def test_costs_come_from_a_word_or_from_a_file_that_is_there(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    expected = f"--x is {str(file)!r}; expected off, cached, fresh, or the file of an earlier calibration: "
    assert refused_text(values.costs_source, str(file)) == f"{expected}there is no such file"
    file.touch()
    for text in ("off", "cached", "fresh", str(file)):
        assert values.costs_source(text, "--x") == text
    assert refused_text(values.costs_source, str(tmp_path)).startswith("--x is ")


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
    (tmp_path / "link").symlink_to(tmp_path / "m")
    assert values.with_paths("./link/", "--o") == "link", "a link is not what it points to"
