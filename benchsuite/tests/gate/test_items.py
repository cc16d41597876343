"""A gate's item fails by the findings on its own row, in both forms of its name, and by no other's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.gate.trial import SUITE
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.run.gate import GateItem

FINDINGS = [
    Finding("fine", 0, GateVerdict.PASS, "the same"),
    Finding("slow", 2, GateVerdict.REGRESSED, "slower by a tenth"),
    Finding("fine again", 0, GateVerdict.PASS, "the same"),
    Finding("planted (delay)", 2, GateVerdict.REGRESSED, "slower by a fifth"),
    Finding(SUITE, 0, GateVerdict.PASS, "a note"),
]


def _outcome(name: str, findings: list[Finding]) -> str:
    """What the item of a row says; empty if it passes."""
    gate = SimpleNamespace(judge=lambda: findings, blocks=lambda finding: finding.verdict == GateVerdict.REGRESSED)
    item: Any = SimpleNamespace(name=name, gate=gate)
    try:
        GateItem.runtest(item)
    except pytest.fail.Exception as failed:
        return str(failed)
    return ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fine", ""),
        ("fine again", ""),
        (SUITE, ""),
        ("slow", "REGRESSED at level 2, slow: slower by a tenth"),
        ("planted", "REGRESSED at level 2, planted (delay): slower by a fifth"),
        ("unheard of", "it was not compared: see what is said of the others and of the suite"),
    ],
)
def test_an_item_fails_by_what_was_found_of_its_own_row(name: str, said: str) -> None:
    assert _outcome(name, FINDINGS) == said


def test_a_row_that_was_not_compared_passes_where_nothing_fails() -> None:
    assert _outcome("unheard of", [found for found in FINDINGS if found.verdict == GateVerdict.PASS]) == ""
