"""The baseline file's text, byte by byte, each check of its values at its limits, and how it is replaced."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from math import log, nextafter
from pathlib import Path
from typing import Any

import pytest

from benchsuite.gate.record import (
    CALL,
    FIGURES,
    PARTS,
    FigureTimes,
    GatedRow,
    GateError,
    Launch,
    PassCounts,
    Record,
    StepCounts,
)

SMALL = Record(
    {"machine": None, "commit": "ä"},
    {"r": GatedRow(launches=(Launch({CALL: FigureTimes((1.5,))}, {}, 2.0),))},
)
TEXT = """{
 "format": "specdec-gate",
 "made": {
  "commit": "\\u00e4",
  "machine": null
 },
 "rows": {
  "r": {
   "control": null,
   "counters": {},
   "deterministic": true,
   "digest": null,
   "inputs": {},
   "later": {},
   "launches": [
    {
     "parts": {},
     "steps": null,
     "tau": 2.0,
     "times": {
      "seconds": {
       "relative": null,
       "seconds": [
        1.5
       ]
      }
     }
    }
   ],
   "ops": {},
   "passes": 1,
   "peer": false,
   "plain_digest": null,
   "work": {}
  }
 },
 "version": 4
}
"""


def test_a_file_is_sorted_with_a_value_a_line_and_readable_by_all(tmp_path: Path) -> None:
    file = tmp_path / "gate.json"
    SMALL.save(file)
    assert file.read_bytes().decode() == TEXT
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [*tmp_path.iterdir()] == [file]
    assert Record.load(file) == SMALL


def test_a_value_that_is_no_number_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "gate.json"
    SMALL.save(file)
    with pytest.raises(ValueError, match="JSON compliant"):
        replace(SMALL, made={"a": float("nan")}).save(file)
    assert file.read_text(encoding="utf-8") == TEXT
    assert [*tmp_path.iterdir()] == [file]


def test_the_file_is_ascii_and_is_read_as_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "gate.json"
    named = Record(SMALL.made, {f"{name}-ü": row for name, row in SMALL.rows.items()})
    named.save(file)
    assert file.read_bytes().isascii()
    assert Record.load(file) == named
    file.write_bytes(json.dumps(json.loads(file.read_text()), ensure_ascii=False).encode("utf-8"))
    assert Record.load(file) == named


EDGE = 1e100
BELOW, LEAST = nextafter(EDGE, 0.0), nextafter(1 / EDGE, 1.0)
HUGE = 10**101
SHARES = dict.fromkeys(PARTS, 0.2)
LATER: dict[str, Any] = {"digest": "e", "counters": {"a": 2, "b": [1]}, "ops": {}}
NO_LATER: list[dict[str, Any]] = [{"digest": None}, {"counters": {"a": -1}}, {"ops": 1}, {"a": 1}]
NONE_SHARES = dict.fromkeys(PARTS, 0.0)
ROW, LAUNCH = ("rows", "r"), ("rows", "r", "launches", 0)
TIMES = (*LAUNCH, "times", CALL)
NO_COUNTS: list[Any] = [-1, "1", 2.0, True, None, HUGE, {}, [-1], [1, 2.0], [True], [[1]]]
POSITIVE: list[Any] = [[1], [0.5, 2], [LEAST], [1.5 / EDGE], [BELOW]]
NOT_POSITIVE: list[Any] = [[], [0], [1, -1], [1 / EDGE], [EDGE], [HUGE], [True], [1, None], {}, "a", 1, None]
OTHERS: list[Any] = [[], "", "a", 1, True, None]
"""What is no object."""

CHECKS: list[tuple[tuple[Any, ...], list[Any], list[Any]]] = [
    (("version",), [4], [-4, "4", 3, 5, None]),
    (
        ("made",),
        [{}, {"a": 1}, {"machine": None, "versions": None}, {"machine": {}, "versions": {"a": 1}}],
        [*OTHERS, {"machine": 1}, {"versions": "a"}, {"machine": {}, "versions": []}, {"machine": [], "versions": {}}],
    ),
    (("rows",), [{}], OTHERS),
    ((*ROW, "work"), [{}, {"a": 1}], OTHERS),
    ((*ROW, "inputs"), [{}, {"a": "b"}], [*OTHERS, {"a": 1}, {"a": "b", "c": None}]),
    ((*ROW, "control"), [None, "", "a"], [1, [], {}]),
    ((*ROW, "plain_digest"), [None, "", "a"], [1, [], {}]),
    ((*ROW, "digest"), ["", "a"], [1, [], {}, None]),  # None goes with no counters
    ((*ROW, "deterministic"), [True, False], [1, 0, None]),
    (
        (*ROW, "counters"),
        [{"a": 0, "b": [1]}, {"a": 1}, {"a": []}, {"a": 10**99}],
        [
            *OTHERS,
            {},
            *({"a": 1, "b": wrong} for wrong in NO_COUNTS),
        ],
    ),
    ((*ROW, "ops"), [{}, {"a": 0}], [*OTHERS, {"a": -1}, {"a": [1]}, {"a": 1.0}]),
    ((*ROW, "launches"), [[]], [{}, None, [1], [None]]),
    ((*ROW, "passes"), [1, 4], [0, -1, 1.0, "1", None, True]),
    ((*ROW, "peer"), [True, False], [1, 0, None]),
    (
        (*ROW, "later"),
        [{}, {"2": LATER, "13": {**LATER, "ops": {"a": 1}}}],
        [
            *(*OTHERS, {"a": LATER}, {"-2": LATER}),
            *({"2": {**LATER, **wrong}} for wrong in NO_LATER),
            *({"2": {"digest": "e"}}, {"2": None}, {"2": []}),
        ],
    ),
    (
        (*LAUNCH, "times"),
        [{figure: {"relative": None, "seconds": [1.0]} for figure in FIGURES}],
        [*OTHERS, {}, {"a": {"relative": None, "seconds": [1.0]}}, {CALL: {"seconds": [1.0]}}],
    ),
    (
        (*LAUNCH, "parts"),
        [
            *({}, {CALL: SHARES}, dict.fromkeys(FIGURES, SHARES), {CALL: {**NONE_SHARES, "host": LEAST}}),
            *({CALL: {**NONE_SHARES, "host": 1.5 / EDGE}}, {CALL: {**SHARES, "draft": -0.1}}),
        ],
        [
            *(*OTHERS, {"a": SHARES}),
            *({CALL: wrong} for wrong in (NONE_SHARES, {**NONE_SHARES, "host": 1 / EDGE}, {}, 1, [], None, [*PARTS])),
            *(
                {CALL: {**SHARES, **wrong}}
                for wrong in ({"draft": -1.0}, {"more": 0.1}, {"draft": True}, {"draft": EDGE})
            ),
            {CALL: {"draft": 1.0}},
        ],
    ),
    (
        (*LAUNCH, "steps"),
        [None, *({"per_token": good, "text": "t"} for good in POSITIVE)],
        [
            *(*OTHERS[:-1], {}, {"per_token": [1.0]}, {"per_token": [1.0], "text": 1}),
            *({"per_token": wrong, "text": "t"} for wrong in NOT_POSITIVE),
        ],
    ),
    ((*LAUNCH, "tau"), [None, 1, 2.5, LEAST, 1.5 / EDGE], [0, -1, 1 / EDGE, EDGE, True, "1"]),
    (
        (*TIMES, "seconds"),
        POSITIVE,
        NOT_POSITIVE,
    ),
    (
        (*TIMES, "relative"),
        [None, [0], [-1.5, 2], [nextafter(log(EDGE), 0.0)], [-nextafter(log(EDGE), 0.0)]],
        [[], [log(EDGE)], [-log(EDGE)], [True], [0, 300.0], [None], "", {}, 1],
    ),
]


def _written(folder: Path, path: tuple[Any, ...], value: Any) -> Path:
    """A file with counters and a digest in its row, and this value in this place."""
    content = json.loads(TEXT)
    content["rows"]["r"] |= {"digest": "d", "counters": {"a": 1}}
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    file = folder / "gate.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(("path", "accepted", "refused"), CHECKS, ids=lambda value: ".".join(map(str, value))[:40])
def test_a_value_is_accepted_up_to_its_limit_and_refused_from_it(
    tmp_path: Path, path: tuple[Any, ...], accepted: list[Any], refused: list[Any]
) -> None:
    for value in accepted:
        Record.load(_written(tmp_path, path, value))
    for value in refused:
        with pytest.raises(GateError, match="is corrupt"):
            Record.load(_written(tmp_path, path, value))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([], "it is not a baseline of this gate"),
        ("text", "it is not a baseline of this gate"),
        ({}, "it is not a baseline of this gate"),
        ({"format": "other", "version": 4}, "it is not a baseline of this gate"),
        ({"format": "specdec-gate"}, "its version is None, expected 4"),
        ({"format": "specdec-gate", "version": 2}, "its version is 2, expected 4"),
        (
            {"format": "specdec-gate", "version": 4, "b": 1, "a": 2},
            "the file has ['a', 'b', 'format', 'version'], expected exactly ['format', 'made', 'rows', 'version']",
        ),
        (
            {"format": "specdec-gate", "version": 4, "made": [], "rows": {}},
            "the file has a made that cannot be: []",
        ),
        (
            {"format": "specdec-gate", "version": 4, "made": {}, "rows": {"r": 5}},
            "row 'r' has int, expected exactly ['control', 'counters', 'deterministic', 'digest', 'inputs', "
            "'later', 'launches', 'ops', 'passes', 'peer', 'plain_digest', 'work']",
        ),
    ],
)
def test_a_file_of_another_shape_is_refused_in_a_sentence(tmp_path: Path, changed: Any, said: str) -> None:
    file = tmp_path / "gate.json"
    file.write_text(json.dumps(changed))
    with pytest.raises(GateError) as refused:
        Record.load(file)
    assert f"the baseline {file} is corrupt: {said};" in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*ROW, "digest"), None, "row 'r' has a digest without counters, or counters without a digest"),
        ((*ROW, "counters"), {}, "row 'r' has a digest without counters, or counters without a digest"),
        (
            (*ROW, "launches"),
            [None],
            "a launch of 'r' has NoneType, expected exactly ['parts', 'steps', 'tau', 'times']",
        ),
        ((*LAUNCH, "tau"), 0, "a launch of 'r' has a tau that cannot be: 0"),
        (
            TIMES,
            {"seconds": [1.0]},
            "seconds of a launch of 'r' has ['seconds'], expected exactly ['relative', 'seconds']",
        ),
        ((*ROW, "work"), ["x" * 100], f"row 'r' has a work that cannot be: ['{'x' * 78};"),
    ],
)
def test_a_row_of_another_shape_is_refused_in_a_sentence(
    tmp_path: Path, path: tuple[Any, ...], value: Any, said: str
) -> None:
    with pytest.raises(GateError) as refused:
        Record.load(_written(tmp_path, path, value))
    assert said in str(refused.value)


def test_a_row_with_everything_is_read_as_it_was_written(tmp_path: Path) -> None:
    times = {figure: FigureTimes((1.0, 2.0), (0.5, -0.5)) for figure in FIGURES}
    steps = StepCounts((0.5, 1.0), "t")
    launches = Launch(times, dict.fromkeys(FIGURES, SHARES), 1.5, steps), Launch({CALL: FigureTimes((3.0,))})
    later = {"2": PassCounts("e", {"n": 2}, {"op": 4})}
    row = GatedRow(
        {"a": [1]}, {"b": "c"}, "plain", "d", "p", False, {"n": 1, "m": [1, 2]}, {"op": 3}, launches, 2, later
    )
    whole = Record({"machine": {"a": 1}}, {"r": row, "s": GatedRow()})
    whole.save(tmp_path / "gate.json")
    assert Record.load(tmp_path / "gate.json") == whole


def test_a_file_that_cannot_be_read_is_told_with_the_systems_words(tmp_path: Path) -> None:
    for file, words in ((tmp_path / "no.json", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(GateError) as refused:
            Record.load(file)
        assert str(refused.value) == f"the baseline {file} cannot be read: {words}"


def _of(*seconds: float, **more: Any) -> GatedRow:
    return GatedRow(launches=tuple(Launch({CALL: FigureTimes((second,))}) for second in seconds), **more)


def test_a_record_has_as_many_launches_as_its_row_with_the_fewest() -> None:
    assert Record({}, {}).launches == 0
    assert Record({}, {"a": _of(1.0, 2.0), "b": _of(1.0)}).launches == 1
    assert Record({}, {"a": _of(1.0, 2.0), "b": _of()}).launches == 0


def test_the_last_launches_of_each_row_are_kept_in_order() -> None:
    whole = Record({"a": 1}, {"a": _of(1.0, 2.0, 3.0, digest="d"), "b": _of(4.0)})
    assert whole.last(2) == Record({"a": 1}, {"a": _of(2.0, 3.0, digest="d"), "b": _of(4.0)})
    assert whole.last(1) == Record({"a": 1}, {"a": _of(3.0, digest="d"), "b": _of(4.0)})
    assert whole.last(9) == whole


REPEATS = {"digest": "d", "counters": {"n": 1}}
READS_CLOCK = {"digest": "d", "counters": {"n": 2}, "deterministic": False}


def _pair(number: float, counters: dict[str, int]) -> Record:
    rows = {"a": _of(number, **REPEATS), "b": _of(-number, **{**READS_CLOCK, "counters": counters})}
    return Record({"number": number}, rows)


def test_launches_are_appended_in_order_and_the_first_record_says_the_rest() -> None:
    first, second, third = _pair(1.0, {"n": 1}), _pair(2.0, {"n": 2}), _pair(3.0, {})
    assert first.joined([]) == first
    assert first.joined([second, third]) == Record(
        {"number": 1.0},
        {"a": _of(1.0, 2.0, 3.0, **REPEATS), "b": _of(-1.0, -2.0, -3.0, **{**READS_CLOCK, "counters": {"n": 1}})},
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (REPEATS, {**REPEATS, "digest": "e"}),
        (REPEATS, {**REPEATS, "counters": {"n": 2}}),
        (REPEATS, {**REPEATS, "counters": {}}),
        (REPEATS, {**REPEATS, "later": {"2": PassCounts("d", {"n": 2}, {})}}),
        (READS_CLOCK, {**READS_CLOCK, "digest": None}),
        (REPEATS, {**REPEATS, "deterministic": False}),
    ],
)
def test_launches_that_do_not_repeat_are_refused_by_row(one: dict[str, Any], other: dict[str, Any]) -> None:
    for first, second in ((one, other), (other, one)):
        base, head = (Record({}, {"a": _of(1.0), "b": _of(1.0, **row)}) for row in (first, second))
        with pytest.raises(GateError) as refused:
            base.joined([head])
        assert str(refused.value) == (
            "two launches of the same code differ in 'b': its output or its counters do not repeat; give it a seed, or "
            "a controller that does not read the clock"
        )
