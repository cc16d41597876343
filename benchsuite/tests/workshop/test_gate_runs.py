"""Gatings drawn from recorded runs: what is put into them is found in the figure that it strikes."""

from __future__ import annotations

import gzip
import json
import random
from math import exp
from pathlib import Path

import pytest

from benchsuite.gate.record import DECODE, FIRST, MEANS, STARTS, WHOLE
from benchsuite.measure.arms import Arm
from benchsuite.workshop.gate.runs import ATTACKS, LaunchedRuns, drawn_table, with_attack

ROOT = Path(__file__).parents[3]


def launch_of_runs(seed: int) -> LaunchedRuns:
    """Two passes and a half of a launch with noise of 1 %."""
    coin = random.Random(seed)
    arms = {"plain": 2.0, "ngram": 1.0, "transformers": 3.0}

    def run(seconds: float) -> tuple[float, float, float]:
        noise = exp(coin.gauss(0, 0.01))
        return seconds * noise, 4 * seconds * noise, 1.5 * seconds * noise

    return {"chat": {name: [run(seconds) for _ in range(12)] for name, seconds in arms.items()}}


def test_a_launch_is_recorded_as_the_gate_would_and_what_is_put_into_it_is_in_its_mean() -> None:
    exact = {
        "chat": {name: [(seconds, 4 * seconds, 2 * seconds)] * 12 for name, seconds in (("plain", 2.0), ("a", 1.0))}
    }
    seen = list[tuple[str, int]]()

    def slow(arm: Arm, run: int) -> float:
        seen.append((arm.label, run))
        return ATTACKS["every fourth request of drafts 2x"](0)(arm, run)

    plain, drafted = with_attack(exact, slow).rows.values()
    assert seen == [(name, run) for name in ("plain", "a") for run in range(12)]
    times = drafted.launches[0].times
    assert {figure: times[figure].seconds for figure in (DECODE, FIRST, WHOLE)} == {
        DECODE: (1.0,) * 3,
        FIRST: (4.0,) * 3,
        WHOLE: (2.0,) * 3,
    }
    assert times[MEANS[DECODE]].seconds == pytest.approx((4 / 3,) * 3)
    assert times[STARTS[DECODE]].seconds == (1.0,) * 3
    assert {*plain.launches[0].times[DECODE].seconds} == {2.0}
    assert [row.control for row in (plain, drafted)] == [None, "plain"]


@pytest.mark.slow
def test_each_attack_is_found_and_nothing_is_not() -> None:
    launches = {side: [launch_of_runs(100 * at + place) for place in range(14)] for at, side in enumerate("AB")}
    lines = {(level, what): rest for level, what, *rest in drawn_table(launches, 1).rows}
    assert lines.keys() == {(level, what) for level in (1, 2) for what in ATTACKS}
    for (level, what), (count, coarse, other) in lines.items():
        assert count == (3 if what == "nothing" else 1)
        assert (coarse, other) == (int(what != "nothing"), 0), (level, what)


def test_the_recorded_launches_have_as_many_runs_of_the_same_arms_on_both_sides() -> None:
    [file] = (ROOT / "docs" / "results").glob("*-gate-means-*.json.gz")
    launches = json.loads(gzip.decompress(file.read_bytes()))["launches"]
    shapes = {
        (side, len(found), *((workload, *arms, *map(len, arms.values())) for workload, arms in one.items()))
        for side, found in launches.items()
        for one in found
    }
    arms = ("plain", "ngram", "suffix", "oracle(0.8)", "transformers", *[12] * 5)
    assert shapes == {(side, 15, ("chat", *arms), ("reasoning", *arms)) for side in "AB"}
