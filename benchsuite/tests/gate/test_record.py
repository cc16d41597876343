"""The baseline file: it is read exactly, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchsuite.gate import counters
from benchsuite.gate.record import (
    CALL,
    DECODE,
    FIRST,
    PARTS,
    WHOLE,
    FigureTimes,
    GatedRow,
    GateError,
    Launch,
    Record,
    StepCounts,
)
from benchsuite.gate.speed import Tolerances, cases, staged
from benchsuite.tests.launched_rig import trial

GOOD = Record(
    {"machine": {"cores": 2, "device": None}, "versions": {"torch": "2"}, "commit": "a", "command": ["pytest"]},
    {
        "ours": GatedRow(
            {"seed": 0},
            {"prompts": "p1", "tokenizer": "t1", "weights": "w1"},
            "plain",
            "d1",
            "d2",
            True,
            {"target_forwards": 9, "num_accepted_tokens_per_pos": [3, 1]},
            {"linear on cpu": 4},
            tuple(
                Launch(
                    {figure: FigureTimes((0.01 * i, 0.02), (0.5, 0.4)) for figure in (DECODE, FIRST, WHOLE)},
                    {DECODE: dict.fromkeys(PARTS, 0.1)},
                    1.8,
                    StepCounts((0.5, 0.6), "t"),
                )
                for i in range(1, 6)
            ),
        ),
        "plain": GatedRow(launches=(Launch({CALL: FigureTimes((1.0,))}),) * 5),
    },
)

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every (object, key) and (list, index) in ``content``."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield content, key
        yield from places(value)


def test_launches_of_the_same_rows_are_joined_and_others_are_refused() -> None:
    both = GOOD.joined([GOOD])
    assert {name: len(row.launches) for name, row in both.rows.items()} == {
        name: 2 * len(row.launches) for name, row in GOOD.rows.items()
    }
    more = replace(GOOD, rows={**GOOD.rows, "another": GOOD.rows["ours"]})
    for one, other in ((GOOD, more), (more, GOOD)):
        with pytest.raises(GateError, match="one launch measured the row 'another' and another did not"):
            one.joined([other])
    changed = replace(GOOD, rows={**GOOD.rows, "ours": replace(GOOD.rows["ours"], digest="d9")})
    with pytest.raises(GateError, match="differ in 'ours'"):
        GOOD.joined([changed])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    GOOD.save(tmp_path / "gate.json")
    return tmp_path / "gate.json"


def test_what_is_saved_is_loaded(file: Path) -> None:
    assert Record.load(file) == GOOD


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_anything_in_any_place_is_refused_or_can_be_compared(file: Path, data: st.DataObject) -> None:
    GOOD.save(file)
    content = json.loads(file.read_text())
    holder, key = data.draw(st.sampled_from(list(places(content))))
    holder[key] = data.draw(ANYTHING)
    file.write_text(json.dumps(content))
    try:
        read = Record.load(file)
    except GateError:
        return
    for name in read.rows.keys() & GOOD.rows.keys():
        for sides in ((read, GOOD), (GOOD, read)):
            for level in (1, 2, 3):
                if cases(name, sides[0].rows[name], level):
                    staged(Both(*sides), level, Tolerances({name: 0.03}, 0.1, 0.15), 0.01, (5, 0))
            judge_rows(replace(sides[0], rows={name: sides[0].rows[name]}), sides[1])
            if all(side.rows[name].digest for side in sides):
                counters.compare(name, sides[0].rows[name], sides[1].rows[name])


def judge_rows(base: Record, head: Record) -> None:
    """Judge the rows of a base at level 0, as a run does."""
    made = trial(base, replace(head.last(1), rows={name: head.rows[name] for name in base.rows}))
    made.levels = (0,)
    made.findings()


class Both:
    """Two fixed records: a ``Sides``."""

    paired = False

    def __init__(self, base: Record, head: Record) -> None:
        self.both = base, head

    def at_least(self, count: int) -> tuple[Record, Record]:
        """Both records, for any count."""
        return self.both


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"cores": 2', '"cores": 2, "cores": 4', "'cores' stands twice"),
        ('"device": null', '"device": null, "device": 1', "'device' stands twice"),
        ("0.01,", "0,", "E2E of a launch of 'ours' has a seconds that cannot be: [0, 0.02]"),
        ("0.01,", "NaN,", "NaN is no number"),
        ("0.01,", "1e200,", "E2E of a launch of 'ours' has a seconds that cannot be: [1e+200, 0.02]"),
        ("0.01,", "1e100,", "E2E of a launch of 'ours' has a seconds that cannot be: [1e+100, 0.02]"),
        ("0.01,", "1e-100,", "E2E of a launch of 'ours' has a seconds that cannot be: [1e-100, 0.02]"),
        ("0.4", repr(log(1e100)), f"E2E of a launch of 'ours' has a relative that cannot be: [0.5, {log(1e100)!r}]"),
        ("0.4", "null", "E2E of a launch of 'ours' has a relative that cannot be: [0.5, None]"),
        ('"E2E"', '"E3E"', "a launch of 'ours' has a times that cannot be"),
        ('"draft": 0.1', '"draft": -0.5', "a launch of 'ours' has a parts that cannot be"),
        ('"digest": "d1"', '"digest": null', "counters without a digest"),
        ('"target_forwards": 9', '"target_forwards": "9"', "row 'ours' has a counters that cannot be"),
        ('"linear on cpu": 4', '"linear on cpu": -4', "row 'ours' has a ops that cannot be"),
        ('"prompts": "p1"', '"prompts": 1', "row 'ours' has a inputs that cannot be"),
        ('"version": 4', '"version": 3', "its version is 3, expected 4"),
        ('"target_forwards": 9', '"target_forwards": -9', "row 'ours' has a counters that cannot be"),
        ('"cores": 2', '"cores": ' + "[" * 100_000, "nested too deeply"),
        ('"tau"', '"tao"', "'tao'"),
    ],
)
def test_a_refusal_says_what_was_found(file: Path, old: str, new: str, message: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(GateError, match="is corrupt") as raised:
        Record.load(file)
    assert message in str(raised.value)
    assert "--gate-save" in str(raised.value)
