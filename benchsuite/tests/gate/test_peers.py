"""Other engines in a gated run: one that got slower, in which part, and what a level cannot compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchsuite.gate.record import DECODE, FIRST, MEANS, STARTS, WHOLE, GatedRow, Record
from benchsuite.gate.speed import cases
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.measure.runners import Outcome
from benchsuite.tests.launched_rig import (
    OWN,
    PASSES,
    PEER,
    engine_outcome,
    gated_rows,
    judged,
    launches_of,
    timed_outcome,
)

Made = Callable[[float], dict[str, GatedRow]]


def beside(plain: float = 1.0, transformers: float | None = 2.0, **own: float) -> Made:
    """Rows of plain, of a draft, of transformers if it runs, and of an engine of one's own that takes ``own``."""

    def made(noise: float) -> dict[str, GatedRow]:
        times = {"decode": 0.9, "prefill": 0.1, **own}
        engine: Any = {name: value if name == "forwards" else value * noise for name, value in times.items()}
        outside = [] if transformers is None else [engine_outcome(transformers)] * 3
        return gated_rows(
            [timed_outcome(0.5 * noise * plain)] * 3,
            [timed_outcome(noise * plain)] * 3,
            outside,
            [engine_outcome(**engine)] * 3,
        )

    return made


@cache
def launches_beside(plain: float = 1.0, transformers: float | None = 2.0, **own: float) -> Record:
    """Launches of these rows; those of another side have another noise."""
    return launches_of(beside(plain, transformers, **own), len(own) + (plain != 1.0) + (transformers == 6.0))


def regressed(base: Record, head: Record, level: int) -> dict[tuple[str, str | None], Finding]:
    """The findings on peers in launches of both that are REGRESSED."""
    found = judged(base, head, level)
    return {case: one for case, one in found.items() if one.verdict == GateVerdict.REGRESSED and case[0] in PEERS}


PEERS = ("own", "transformers")
LEVELS = pytest.mark.parametrize("level", [1, 2], ids=["file", "revision"])


@LEVELS
@pytest.mark.parametrize(
    ("before", "now", "transformers", "places"),
    [
        ({}, {"decode": 2.7, "prefill": 0.3}, 2.0, {DECODE: "engine", FIRST: "prefill"}),
        ({}, {"decode": 2.7, "prefill": 0.3}, None, {DECODE: "engine", FIRST: "prefill"}),
        ({"forwards": 2}, {"decode": 2.7, "forwards": 2}, None, {DECODE: "engine"}),
        ({"forwards": 2}, {"decode": 2.7, "forwards": 8}, None, {DECODE: "acceptance"}),
    ],
)
def test_an_engine_of_ones_own_that_is_three_times_slower_is_a_regression_in_its_place(
    before: dict[str, float], now: dict[str, float], transformers: float | None, places: dict[str, str], level: int
) -> None:
    """It was left out: "PASS: nothing got worse". Against a file without transformers it still was."""
    base, head = (launches_beside(transformers=transformers, **own) for own in (before, now))
    found = regressed(base, head, level)
    assert {row for row, _ in found} == {"own"}
    for figure, place in places.items():
        for named in (figure, *([f"{figure} by the clock"] if level == 2 else [])):
            one = found["own", named]
            assert (one.where or "").startswith(place)
            assert one.change == pytest.approx(2.0, abs=0.1)


def test_transformers_itself_is_held_against_a_file_by_plain_decoding() -> None:
    """At level 1 it was timed over nothing: three times slower, it made plain IMPROVED, and the run passed."""
    found = regressed(launches_beside(), launches_beside(transformers=6.0), level=1)
    assert ("transformers", DECODE) in found
    assert {row for row, _ in found} == {"transformers"}


@LEVELS
@pytest.mark.parametrize(("transformers", "row"), [(2.0, "transformers"), (None, "own")])
def test_where_plain_gets_faster_no_peer_is_to_blame(level: int, transformers: float | None, row: str) -> None:
    base, head = (launches_beside(plain, transformers) for plain in (1.0, 0.7))
    assert regressed(base, head, level) == {}
    found = judged(base, head, level)[row, DECODE]
    assert found.verdict == GateVerdict.COARSE
    assert "plain got faster, and this row not slower" in found.message
    assert (found.change or 0.0) > 0.15, "its time over plain's is beyond the tolerance"


@LEVELS
@pytest.mark.parametrize("decode", [0.9, 0.99])
def test_an_engine_that_is_as_fast_as_before_passes_and_a_tenth_is_in_the_noise_of_a_launch(
    level: int, decode: float
) -> None:
    found = judged(launches_beside(), launches_beside(decode=decode), level)
    theirs = [one for (row, _), one in found.items() if row in PEERS]
    assert {one.verdict for one in theirs} == {GateVerdict.PASS}
    assert {one.row for one in theirs} == {OWN.id, PEER.id}


def test_a_peers_times_are_held_to_transformers_else_to_plain_and_to_the_clock_and_have_no_counters() -> None:
    rows = beside()(1.0)
    assert [(rows[arm.id].control, rows[arm.id].digest, rows[arm.id].peer) for arm in (OWN, PEER)] == [
        ("transformers", None, True),
        ("plain", None, True),
    ]
    assert beside(transformers=None)(1.0)[OWN.id].control == "plain"
    assert {case.alone for case in cases("own", rows[OWN.id], 1)} == {False}
    both = cases("own", rows[OWN.id], 2)
    assert {case.figure_name for case in both} >= {DECODE, FIRST, MEANS[DECODE], f"{DECODE} by the clock"}
    assert all(case.coarse for case in both)


def test_an_engine_that_emits_everything_at_once_is_held_by_its_first_token() -> None:
    at_once = engine_outcome()
    at_once = replace(at_once, decode_s=0.0, decoded=0, emissions=[[(3.0, 10)]])
    rows = gated_rows([timed_outcome(0.5)] * 3, [timed_outcome()] * 3, [engine_outcome(2.0)] * 3, [at_once] * 3)
    times = rows[OWN.id].launches[0].times
    assert DECODE not in times
    assert times[FIRST].seconds == (3.0,) * 3


def test_of_a_server_that_may_keep_prompts_the_time_per_token_alone_is_held() -> None:
    """A gated run with such a row broke: the mean of no times to a first token."""
    warm = replace(engine_outcome(), warm=True)
    rows = gated_rows([timed_outcome(0.5)] * 3, [timed_outcome()] * 3, own=[warm] * 3)
    assert rows[OWN.id].launches[0].times.keys() == {DECODE, MEANS[DECODE], STARTS[DECODE]}
    slow = replace(engine_outcome(2.7), warm=True)

    def with_server(one: Outcome) -> Record:
        return launches_of(lambda _: gated_rows([timed_outcome(0.5)] * 3, [timed_outcome()] * 3, own=[one] * 3), 0)

    base, head = with_server(warm), with_server(slow)
    assert judged(base, head, level=1)["own", DECODE].verdict == GateVerdict.REGRESSED


def with_forwards(forwards: int | None, requests: int = 1) -> GatedRow:
    """The row of an engine that counts so many forwards after its first token, over three prompts in ``PASSES``."""
    one = replace(engine_outcome(forwards=forwards), tokens=[tuple(range(10))] * requests)
    return gated_rows([timed_outcome()] * 3, [timed_outcome()] * 3, own=[one] * 3)[OWN.id]


def test_forwards_per_token_count_the_one_of_the_first_token_and_those_of_each_row() -> None:
    for forwards, requests, per_token in ((9, 1, 1.0), (4, 1, 0.5), (8, 2, 0.5)):
        steps = with_forwards(forwards, requests).launches[0].steps
        assert steps is not None
        assert steps.per_token == (per_token,) * 3
        assert with_forwards(forwards, requests).launches[0].tau == pytest.approx(1 / per_token)
    assert with_forwards(None).launches[0].steps is None


def test_of_passes_that_repeat_the_tokens_are_told_once() -> None:
    def text(*outputs: int) -> str:
        outcomes = [replace(engine_outcome(forwards=4), tokens=[(output,) * 10]) for output in outputs]
        series = gated_rows([timed_outcome()] * len(outputs), [timed_outcome()] * len(outputs), own=outcomes, prompts=2)
        steps = series[OWN.id].launches[0].steps
        assert steps is not None
        return steps.text

    assert text(1, 2) == text(1, 2, 1, 2)
    assert len({text(1, 2), text(1, 2, 1, 3), text(1, 3)}) == 3
    assert PASSES > 1


def test_what_is_recorded_of_a_peer_is_read_again(tmp_path: Path) -> None:
    made = Record({}, beside(forwards=4)(1.0))
    made.save(tmp_path / "gate.json")
    assert Record.load(tmp_path / "gate.json") == made
    assert WHOLE in made.rows[OWN.id].launches[0].times
