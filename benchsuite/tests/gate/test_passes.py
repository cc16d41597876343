"""What strikes some passes over the prompts and not the median: every fourth request, the first, or a later counter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import exp

import pytest

from benchsuite.gate import counters
from benchsuite.gate.record import DECODE, FIRST, MEANS, STARTS, WHOLE, GatedRow, PassCounts, Record
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.tests.launched_rig import DRAFTED, PASSES, PLAIN, gated_rows, judged, launches_of, timed_outcome

PROMPTS = 3
RUNS = PROMPTS * PASSES
BAD = (GateVerdict.REGRESSED, GateVerdict.ERROR)


def passed(
    ours: Callable[[int], float], plain: Callable[[int], float] = lambda run: 1.0
) -> Callable[[float], dict[str, GatedRow]]:
    """Rows whose runs, in order, are slower by these factors, times the launch's noise."""
    return lambda noise: gated_rows(
        [timed_outcome(0.5 * noise * ours(run)) for run in range(RUNS)],
        [timed_outcome(plain(run)) for run in range(RUNS)],
        prompts=PROMPTS,
    )


def fourth(times: float, phase: int = 3) -> Callable[[int], float]:
    """Every fourth request takes so many times as long."""
    return lambda run: times if run % 4 == phase else 1.0


def steady(run: int) -> float:
    """Every request takes as long as the others."""
    return 1.0


def worse(found: dict[tuple[str, str | None], Finding]) -> set[tuple[str, str | None]]:
    """The rows and figures that did not pass."""
    return {case for case, finding in found.items() if finding.verdict in BAD}


@pytest.mark.parametrize(
    ("level", "times", "mean", "phase"), [(2, 10.0, 3.25, 3), (2, 2.0, 1.25, 1), (2, 2.0, 1.25, 2), (1, 2.0, 1.25, 3)]
)
def test_every_fourth_request_slower_is_a_regression_of_the_mean(
    level: int, times: float, mean: float, phase: int
) -> None:
    """With 3.25 times the seconds the gate said PASS: a slowdown of 6.0 % is excluded."""
    slow = fourth(times, phase)
    assert sum(map(slow, range(RUNS))) / RUNS == mean
    found = judged(launches_of(passed(steady), 0), launches_of(passed(slow), 1), level)
    assert worse(found) >= {("ngram", MEANS[DECODE])}
    assert found["ngram", DECODE].verdict == GateVerdict.PASS
    message = found["ngram", MEANS[DECODE]].message
    assert "seconds per token, as a mean over the passes after the first, over plain's" in message
    assert ", beyond the tolerance of 15.0%" in message


def test_every_fourth_request_slower_of_every_row_is_a_regression_of_plain_by_the_clock() -> None:
    """The control's mean grows with every other row's."""
    slow = fourth(2.0)
    found = judged(launches_of(passed(steady), 0), launches_of(passed(slow, slow), 1))
    plain = {case for case in worse(found) if case[0] == "plain"}
    assert plain == {("plain", f"{MEANS[figure]} by the clock") for figure in (DECODE, FIRST)}
    assert ("ngram", MEANS[DECODE]) not in worse(found)


def test_a_first_pass_that_got_slower_is_named_and_hides_in_no_mean() -> None:
    """What a cache saves the others: nine runs of twelve are as fast as ever."""
    found = judged(launches_of(passed(steady), 0), launches_of(passed(lambda run: 4.0 if run < PROMPTS else 1.0), 1))
    assert worse(found) >= {("ngram", STARTS[figure]) for figure in (DECODE, FIRST)}
    assert all("first pass" in str(figure) for _, figure in worse(found))
    assert "seconds per token in the first pass, over plain's" in found["ngram", STARTS[DECODE]].message
    assert found["ngram", STARTS[DECODE]].change == pytest.approx(3.0, abs=0.02)
    assert found["ngram", MEANS[DECODE]].change == pytest.approx(0.0, abs=0.02)


def test_one_pass_has_no_mean_beside_it() -> None:
    rows = gated_rows([timed_outcome(0.5)] * 3, [timed_outcome()] * 3, prompts=3)
    assert {*rows[DRAFTED.id].launches[0].times} == {DECODE, FIRST, WHOLE}


def test_a_baseline_of_more_passes_is_told_with_what_to_do() -> None:
    base = launches_of(passed(steady), 0)
    few = gated_rows([timed_outcome(0.5)] * 3, [timed_outcome()] * 3, prompts=3)
    found = judged(base, launches_of(lambda noise: few, 1))
    assert worse(found) == {case for case in found if MEANS[DECODE] in str(case) or "first pass" in str(case[1])} | {
        case for case in found if "mean" in str(case[1])
    }
    assert "with the base's --gate-pairs" in found["ngram", MEANS[DECODE]].message


def shared_launches(seed: int, slow: Callable[[int], float]) -> Record:
    """Launches on a shared machine: each run has noise of 10 %, and one in twenty is hit by something else."""
    coin = random.Random(seed)

    def run(base: float) -> float:
        return base * exp(coin.gauss(0, 0.1)) * (2.0 if coin.random() < 0.05 else 1.0)

    return launches_of(passed(lambda at: run(slow(at)), lambda at: run(1.0)), seed, noise=0.02)


def alarms(gatings: int, slow: Callable[[int], float]) -> int:
    """Of so many drawn gatings at level 2, those in which a mean or a first pass is REGRESSED."""
    found = (judged(shared_launches(2 * i, steady), shared_launches(2 * i + 1, slow)) for i in range(gatings))
    beside = (*MEANS.values(), *STARTS.values())
    return sum(any(case[1] in beside for case in worse(one)) for one in found)


@pytest.mark.slow
def test_noise_raises_no_alarm_and_a_mean_of_one_and_a_quarter_one_in_nearly_every_gating() -> None:
    """More of both are drawn from launches of the real suite: docs/gate.md."""
    assert alarms(10, steady) == 0
    assert alarms(10, fourth(2.0)) >= 9


COUNTED = GatedRow(digest="d", plain_digest="p", counters={"target_forwards": 4}, ops={"mix on cpu": 4}, passes=4)
SAME = PassCounts("d", {"target_forwards": 4}, {"mix on cpu": 4})


def later(**passes: PassCounts) -> GatedRow:
    """A row of four passes, of which some count otherwise than the first: ``p2=…``."""
    return replace(COUNTED, later={name[1:]: counts for name, counts in passes.items()})


@pytest.mark.parametrize(
    ("base", "head", "verdict", "message"),
    [
        ({}, {}, GateVerdict.PASS, "1 counters and the emitted tokens repeat exactly"),
        (
            {},
            {"p3": replace(SAME, counters={"target_forwards": 5})},
            *(GateVerdict.REGRESSED, "in pass 3, target_forwards was 4 and is 5"),
        ),
        (
            {"p3": replace(SAME, counters={"target_forwards": 5})},
            {},
            *(GateVerdict.IMPROVED, "in pass 3, target_forwards was 5 and is 4"),
        ),
        (
            {},
            {"p4": replace(SAME, ops={"mix on reference": 4})},
            *(GateVerdict.REGRESSED, "in pass 4, mix on cpu ran 4 times and does not any more"),
        ),
        ({}, {"p2": replace(SAME, digest="e")}, GateVerdict.INCONCLUSIVE, "in pass 2, numerics: plain emits"),
        (
            {"p2": replace(SAME, counters={"target_forwards": 2})},
            {"p2": replace(SAME, counters={"target_forwards": 2})},
            *(GateVerdict.PASS, "1 counters and the emitted tokens repeat exactly"),
        ),
        (
            {"p2": replace(SAME, counters={"target_forwards": 5})},
            {"p3": replace(SAME, counters={"target_forwards": 6})},
            *(GateVerdict.REGRESSED, "in pass 3, target_forwards was 4 and is 6"),
        ),
    ],
)
def test_the_counters_of_every_pass_are_compared(
    base: dict[str, PassCounts], head: dict[str, PassCounts], verdict: GateVerdict, message: str
) -> None:
    """Work that began with the second pass over the prompts was in no counter."""
    found = counters.compare("row", later(**base), later(**head))
    assert (found.verdict, found.message[: len(message)]) == (verdict, message)


def test_a_pass_that_the_base_has_not_is_compared_with_nothing_where_it_counts_otherwise() -> None:
    base = replace(COUNTED, passes=2)
    assert counters.compare("row", base, COUNTED).verdict == GateVerdict.PASS
    more = counters.compare("row", base, later(p3=replace(SAME, counters={"target_forwards": 3})))
    assert more.verdict == GateVerdict.INCONCLUSIVE
    assert more.message.startswith("in pass 3 it counts otherwise than in its first, and the base has 2 passes")
    worse_first = later(p3=SAME)
    worse_first = replace(worse_first, counters={"target_forwards": 5}, later={"3": SAME})
    assert counters.compare("row", base, worse_first).verdict == GateVerdict.REGRESSED


def test_passes_are_counted_from_what_each_run_did() -> None:
    rows = gated_rows([timed_outcome(0.5)] * RUNS, [timed_outcome()] * RUNS, prompts=PROMPTS)
    assert [(row.passes, dict(row.later)) for row in rows.values()] == [(PASSES, {})] * 2
    assert {*rows} == {PLAIN.id, DRAFTED.id}
    assert rows[DRAFTED.id].counted(3) == rows[DRAFTED.id].counted(1)
