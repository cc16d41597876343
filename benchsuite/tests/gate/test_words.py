"""The gate's options in help, and which of a run's arguments a launch is given."""

from __future__ import annotations

import argparse

import pytest

from benchsuite.gate import rules
from benchsuite.gate.rules import add_gate_options, without_own


def test_the_options_that_take_comma_lists_and_those_without_a_value_are_known() -> None:
    assert [option.name for option in rules.OPTIONS if option.many] == ["level", "export"]
    assert [option.name for option in rules.OPTIONS if option.flag] == ["update", "dedicated", "self-test"]


def test_help_names_the_gate_its_modes_and_the_comma_lists_and_hides_plants() -> None:
    parser = pytest.Parser(_ispytest=True)
    add_gate_options(parser)
    group = parser.getgroup("gate")
    made = {option.names()[0]: option.attrs() for option in group.options}
    assert made["--gate"]["metavar"] == "MODE"
    assert made["--gate-plant"]["help"] == argparse.SUPPRESS
    lists = [name for name, attributes in made.items() if "comma list" in str(attributes["help"]).split("; ")]
    assert lists == ["--gate-level", "--gate-export"]
    assert parser._inidict["gate"][-1] == "off"
    given = parser.parse_known_args(["--gate"])
    assert (given.gate, given.gate_plant) == ("fail", "")
    assert parser.parse_known_args([]).gate is None
    assert parser.parse_known_args(["--gate-plant=a"]).gate_plant == "a"


WRITERS = ("--benchmark-json", "--benchmark-save", "--specdec-results", "--junitxml", "--junit-xml", "--log-file")


@pytest.mark.parametrize("option", WRITERS)
def test_a_launch_is_given_no_option_that_writes_a_file(option: str) -> None:
    assert without_own(["a", option, "f", "b"]) == ["a", "b"]
    assert without_own(["a", f"{option}=f=g=h", "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([], []),
        (["--gate"], []),
        (["--gate", "off"], []),
        (["--gate", "test_a.py"], ["test_a.py"]),
        (["-k", "fail"], ["-k", "fail"]),
        (["-k", "report", "--gate", "report", "x"], ["-k", "report", "x"]),
        (["--gate-dedicated", "x", "--gate-update", "y", "--gate-self-test"], ["x", "y"]),
        (["--gate-level", "0", "--gate-export=bmf=a=b", "z"], ["z"]),
        (["--benchmark-autosave", "--benchmark-autosaves"], ["--benchmark-autosaves"]),
        (["-o", "a=b=c", "--gates"], ["-o", "a=b=c", "--gates"]),
    ],
)
def test_of_a_runs_arguments_a_launch_keeps_the_others_in_their_order(given: list[str], kept: list[str]) -> None:
    assert without_own(given) == kept
