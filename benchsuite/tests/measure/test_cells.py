"""A cell survives its file: every field of it, of its arms, series and runs, at a value that is not its default."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import MISSING, Field, fields, replace
from typing import Any

import pytest
import torch

from benchsuite.judge.agreement import Agreement
from benchsuite.judge.favour import Favour
from benchsuite.judge.fidelity import BINS, Fidelity
from benchsuite.judge.judgement import Judgement
from benchsuite.judge.ties import Difference
from benchsuite.measure.arms import Arm
from benchsuite.measure.cells import Cell, from_json, to_json
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine, Text
from benchsuite.measure.runners import Guessed, Outcome
from benchsuite.measure.units import Unit
from benchsuite.tests.rig import SETTING
from specdec import DraftCounts, Request
from specdec.devices import Stopwatch
from specdec.stats import Call, Marks, RowStep, Stats, Step

EOS = (7, 9)
ODD = SETTING.replaced(
    min_p=0.1, presence_penalty=0.2, frequency_penalty=-0.3, repetition_penalty=1.4, top_k=5, top_p=0.6, seed=8
)
UNITS = [Unit((Request(4, (1, 2), ODD.params(EOS)), Request(2, (3,), ODD.params(EOS))), 6), Unit((), 11)]
STATS = Stats(
    Stopwatch.recorded([0.5 * n for n in range(12)]),
    steps=[replace(Step.of((RowStep(3, 2, 1, 2), RowStep(4, 4, 0, 1)), 5, Marks(*range(10))), k=6)],
    calls=[Call("release", 10, 11)],
    accepted_per_pos=[1, 0, 2],
    proposed_per_pos=[2, 3, 4],
    chosen=[9, (3, 0)],
    counts=Counter(num_emitted_tokens=3),
    ops=Counter({("linear", "cpu"): 5, ("sample", "reference"): 2}),
)
RUN = Outcome(
    [(1, 2), (3,)],
    2.5,
    1.5,
    3,
    [[(0.5, 1), (1.0, 1)], [(0.75, 1)]],
    4,
    5.5,
    STATS,
    6,
    7,
    0.25,
    {"rss": 8},
    warm=True,
    counts=DraftCounts(4, 9, 5, (3, 2)),
)
DIFFERENCE = Difference(2, 3, (4, 5), (1.5, -math.inf), None, (math.nan, 2.5), 0.125, True, "inf is a word here")
SERIES = Series(
    Arm(ODD, "eagle", "block", "goodput", 7, None, False, False, "mine"),
    "distribution",
    units=[UNITS[1], UNITS[0]],
    outcomes=[replace(RUN, tokens=[], emissions=[], stats=None), RUN],
    differences=[DIFFERENCE],
    compared=2,
    equal=3,
    tokens=4,
    fidelity=Fidelity(
        list(range(BINS)), 1, 2, 3.5, 4, 5.5, Favour(1, 2, 3.5, 4.5, [0.5] * 6, [1.5] * 6, [2.5, *[3.5] * 5])
    ),
    error="it broke",
    ended="crashed",
    repeats=False,
    learns=True,
    learnt=True,
    twins={3: Guessed(1, 2, 3)},
    conditions={"compile": "no"},
    dtype=torch.bfloat16,
    checked=5,
    judged=Judgement(1.5, 6),
    engine="llama.cpp",
    agreed=Agreement(1, 2, 3, 4),
    referred=Agreement(5, 6, 7, 8),
    reference="llama cpp",
)
PLAIN = Series(Arm(ODD), "exact", units=list(UNITS), outcomes=[RUN, replace(RUN, wall_s=3.5)])
OTHERS = [
    Series(replace(Arm(ODD), again=True), "exact"),
    Series(replace(Arm(ODD), eager=True), "exact"),
    Series(replace(Arm(ODD), peer="vllm"), "own"),
]
EVERY = [PLAIN, SERIES, *OTHERS]
CELL = Cell(
    ODD,
    "chat, long",
    Machine("tiny", "cpu", "cpu", "float32", 1, 2, 3.5, 4),
    EOS,
    {one.arm: one for one in EVERY},
    {SERIES.arm: 0.5},
    Text(0.25, 1.75),
    {"host": "here", "commit": "abc"},
    {1: "a", 3: "\n"},
    12,
)


def _read() -> Cell:
    """The cell as its file holds it."""
    return from_json(json.loads(json.dumps(to_json(CELL))))


def _alike(one: Any, other: Any) -> bool:
    """Equal, a NaN to a NaN, in whatever sequence."""
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _plain_fields(kind: Any) -> list[Field[Any]]:
    return [part for part in fields(kind) if part.name not in ("plain", "units", "outcomes", "stats", "series")]


@pytest.mark.parametrize("part", _plain_fields(Series), ids=lambda part: part.name)
def test_a_field_of_a_series_survives(part: Field[Any]) -> None:
    default = part.default_factory() if part.default_factory is not MISSING else part.default
    value = getattr(SERIES, part.name)
    assert not _alike(value, default), "another value than the default is what shows that it is read"
    found = getattr(_read().series[SERIES.arm], part.name)
    if part.name == "differences":
        [found], [value] = found, value
        assert all(_alike(getattr(found, one.name), getattr(value, one.name)) for one in fields(Difference))
    else:
        assert _alike(found, value)


@pytest.mark.parametrize("part", _plain_fields(Cell), ids=lambda part: part.name)
def test_a_field_of_a_cell_survives(part: Field[Any]) -> None:
    assert getattr(_read(), part.name) == getattr(CELL, part.name)


@pytest.mark.parametrize("part", _plain_fields(Outcome), ids=lambda part: part.name)
def test_a_field_of_a_run_survives(part: Field[Any]) -> None:
    assert getattr(_read().series[SERIES.arm].outcomes[1], part.name) == getattr(RUN, part.name)


@pytest.mark.parametrize("part", fields(Stats), ids=lambda part: part.name)
def test_a_field_of_a_runs_records_survives(part: Field[Any]) -> None:
    stats = _read().series[SERIES.arm].outcomes[1].stats
    assert stats is not None
    found, value = getattr(stats, part.name), getattr(STATS, part.name)
    if isinstance(value, Stopwatch):
        found, value = found.times(), value.times()
    assert found == value


def test_arms_share_their_units_and_plains_runs_in_the_order_of_their_own() -> None:
    read = _read()
    assert [(unit.number, unit.requests) for unit in read.series[SERIES.arm].units] == [
        (unit.number, unit.requests) for unit in (UNITS[1], UNITS[0])
    ]
    assert [one.name for one in read.series] == [None, "mine", None, None, None]
    assert [one.wall_s for one in read.series[SERIES.arm].plain] == [2.5, 3.5]
    assert read.series[OTHERS[0].arm].plain == []


def test_cells_that_were_written_before_a_field_was_there_have_what_it_was() -> None:
    written = to_json(CELL)
    written["arms"] = [arm for arm in written["arms"] if not arm["eager"]]
    for arm in written["arms"]:
        for name in ("eager", "engine", "agreed", "referred", "reference"):
            del arm[name]
        for run in arm["runs"]:
            del run["warm"], run["counts"]
    read = {one.arm.label: one for one in from_json(written).series.values()}
    assert (read["vllm"].engine, read["mine"].engine) == ("transformers", "")
    assert read["mine"].agreed == read["mine"].referred == Agreement()
    assert not any(run.warm or run.counts for run in read["mine"].outcomes)


def test_a_file_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"version 2, and this specdec-bench reads version 1"):
        from_json({**to_json(CELL), "version": 2})
