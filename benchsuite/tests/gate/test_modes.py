"""What a run that does not gate makes of the gate's options, how short texts are read, and how a command is ended."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.gate import rules
from benchsuite.gate.processes import run_group
from benchsuite.gate.record import GateError
from benchsuite.gate.rules import Rules
from benchsuite.tests.gate_rig import PLAIN_RULES, ruled


def test_a_gate_that_is_switched_off_keeps_only_what_a_saving_run_needs(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text("{}")
    saved = replace(Rules(file=None, **PLAIN_RULES), mode="off", save=tmp_path / "new.json")
    off = ("--gate=off", "--gate-save=new.json")
    assert ruled(tmp_path, *off) == saved
    assert ruled(tmp_path, *off, "--gate-against=base.json") == saved
    assert ruled(tmp_path, *off, "--gate-anchor=base.json") == ruled(tmp_path, *off, "--gate-anchor=no.json") == saved
    assert ruled(tmp_path, *off, "--gate-environment=own") == replace(saved, own_environment=True)
    assert ruled(tmp_path, *off, "--gate-self-test") == replace(saved, self_test=True)
    assert ruled(tmp_path, *off, "--gate-level=0,1") == replace(saved, levels=(0, 1))
    assert ruled(tmp_path, "--gate=off", "--gate-level=9", "--gate-anchor=no.json") is None
    assert not saved.gating
    assert [replace(saved, mode=mode).gating for mode in ("fail", "report")] == [True, True]


def test_a_gate_of_the_ini_file_is_switched_off_by_the_command_line(tmp_path: Path) -> None:
    ini = {"gate": "report", "gate_against": "base.json"}
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.json").write_text("{}")
    inipath = tmp_path / "more" / "pytest.ini"
    gated = ruled(tmp_path, ini=ini, inipath=inipath)
    assert gated == replace(Rules(file=tmp_path / "more" / "base.json", **PLAIN_RULES), mode="report")
    assert ruled(tmp_path, "--gate=off", ini=ini, inipath=inipath) is None
    assert ruled(tmp_path, ini={"gate_against": "base.json"}, inipath=inipath) is None, "an ini file may prepare a gate"


@pytest.mark.parametrize(
    ("text", "levels"),
    [("", None), ("0", (0,)), ("1", (1,)), ("2", (2,)), ("2,1,0", (0, 1, 2)), (" 1 , 1", (1,))],
)
def test_levels_are_read_once_each_and_in_order(text: str, levels: tuple[int, ...] | None) -> None:
    assert rules.read_levels(text, "--gate-level") == levels


@pytest.mark.parametrize(
    ("text", "launches"), [("1", (1, 0)), ("1+0", (1, 0)), ("2+3", (2, 3)), (" 10 + 20 ", (10, 20)), ("7+1", (7, 1))]
)
def test_launches_are_first_and_more(text: str, launches: tuple[int, int]) -> None:
    assert rules.read_launches(text, "--gate-launches") == launches


def test_a_place_that_cannot_be_written_is_refused_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "new"):
        rules.refuse_unwritable("-x", tmp_path / name)
    for place, said in (
        (tmp_path / "no" / "new", f"-x: there is no folder {tmp_path / 'no'}"),
        (tmp_path / "file" / "new", f"-x: there is no folder {tmp_path / 'file'}"),
        (tmp_path, f"-x: {tmp_path} is a folder; name a file"),
    ):
        with pytest.raises(GateError) as refused:
            rules.refuse_unwritable("-x", place)
        assert str(refused.value) == said


def test_the_fewest_launches_for_a_verdict_are_five_as_the_exact_test_needs() -> None:
    assert rules.NEEDED == 5
    assert 2.0**-rules.NEEDED == 1 / 32


def test_a_command_that_takes_too_long_is_killed_with_its_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = list[tuple[int, int, int]]()
    kill = os.killpg

    def noted(group: int, number: int) -> None:
        killed.append((group, os.getpgid(group), number))
        kill(group, number)

    monkeypatch.setattr(os, "killpg", noted)
    command = ["sleep", "20"]
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run_group(command, tmp_path, os.environ, 0.0)
    assert (late.value.cmd, late.value.timeout) == (command, 0.0)
    [(group, leader, number)] = killed
    assert (group, number) == (leader, signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        os.getpgid(group)


def test_a_group_that_has_ended_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.killpg

    def ended(group: int, number: int) -> None:
        kill(group, number)
        raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", ended)
    with pytest.raises(subprocess.TimeoutExpired):
        run_group(["sleep", "20"], tmp_path, os.environ, 0.0)
