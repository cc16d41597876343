"""What a gate that broke says to its other items, and of which row an item speaks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchsuite.gate.record import GateError
from benchsuite.gate.trial import SUITE
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.run.gate import GatePlugin
from benchsuite.run.judged import GateItem, JudgedRun


def test_a_gate_that_broke_is_not_asked_again_and_says_so_to_its_other_items() -> None:
    calls: list[int] = []

    def judge() -> list[Finding]:
        calls.append(1)
        raise RuntimeError("broken")

    gate = cast(JudgedRun, SimpleNamespace(findings=None, find=judge))
    with pytest.raises(RuntimeError, match="broken"):
        JudgedRun.judge(gate)
    [told] = JudgedRun.judge(gate)
    assert (told.row, told.verdict, calls) == (SUITE, GateVerdict.ERROR, [1])


def test_a_run_is_gated_at_the_levels_of_the_device_that_it_ran_on() -> None:
    """The machine without its device is another one, and only counters would be compared."""

    def levels(of: str | None) -> tuple[int, ...]:
        raise GateError(f"levels of {of}")

    for machine, device in (({"device": "H200"}, "H200"), ({}, None), (None, None)):
        made = SimpleNamespace(made={"machine": machine})
        gate: Any = SimpleNamespace(_measured=lambda made=made: made, _unknown=lambda: "", _levels=levels)
        assert GatePlugin.find(gate) == [Finding(SUITE, 0, GateVerdict.ERROR, f"levels of {device}")]


FINDINGS = [
    Finding("fine", 0, GateVerdict.PASS, "the same"),
    Finding("slow", 2, GateVerdict.REGRESSED, "slower by a tenth"),
    Finding("planted (delay)", 2, GateVerdict.REGRESSED, "slower by a fifth"),
    Finding(SUITE, 0, GateVerdict.PASS, "a note"),
]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fine", None),
        (SUITE, None),
        ("slow", "slower by a tenth"),
        ("planted", "slower by a fifth"),
        ("unheard of", "it was not compared"),
    ],
)
def test_an_item_fails_by_what_was_found_of_its_own_row_in_both_forms_of_its_name(name: str, said: str | None) -> None:
    gate = SimpleNamespace(judge=lambda: FINDINGS, blocks=lambda finding: finding.verdict == GateVerdict.REGRESSED)
    item: Any = SimpleNamespace(name=name, gate=gate)
    if said is None:
        GateItem.runtest(item)
        return
    with pytest.raises(pytest.fail.Exception, match=said):
        GateItem.runtest(item)
