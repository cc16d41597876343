"""What a launch records of our rows and of plain benchmarks, computed by hand from times that are all different."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from torch import nn

from benchsuite.gate import figures, inputs
from benchsuite.gate.record import (
    CALL,
    DECODE,
    FIRST,
    MEANS,
    STARTS,
    WHOLE,
    FigureTimes,
    GatedRow,
    Launch,
    PassCounts,
)
from benchsuite.machine import provenance
from benchsuite.measure.arms import Arm
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import digest, summed
from benchsuite.measure.runners import Outcome
from benchsuite.measure.workloads import Question, Workload
from benchsuite.tests.rig import SETTING
from specdec.catalog import byte_tokenizer, chat_ids
from specdec.stats import Call, Marks, RowStep, Stats, Step

# Seconds between the marks: control, context, propose, target, accept, commit, extend, observe, absorb.
ONE, TWO = (1, 2, 4, 8, 16, 32, 64, 128, 256), (3, 5, 7, 11, 13, 17, 19, 23, 29)
CALLS = {"admit": 1000, "resume": 2000, "prefilled": 4000, "release": 8000, "move": 16000, "keep": 32000, "other": 7}


def _stats(*steps: Sequence[int], calls: dict[str, int] | None = None) -> Stats:
    watch = SimpleNamespace(seconds=lambda start, end: end - start)
    marks = [Marks(*(sum(step[:place]) for place in range(10))) for step in steps]
    made = [Step.of((RowStep(4, 4, 2, 3),), 5, each) for each in marks]
    return Stats(cast(Any, watch), steps=made, calls=[Call(name, 0, took) for name, took in (calls or {}).items()])


def _outcome(
    wall: float, decode: float, decoded: int, first: float, stats: Stats | None = None, forgetting: float = 0.0
) -> Outcome:
    """A run of two requests, whose first tokens come around ``first``, with two more output tokens than decoded."""
    tokens = [tuple(range(decoded + 1)), (1,)]
    emissions = [[(first - 1, 1), (wall, decoded)], [(first + 1, 1)]]
    return Outcome(tokens, wall, decode, decoded, emissions, 1, 5.0, stats, forgetting_s=forgetting)


DRAFTED_ARM, PLAIN_ARM = Arm(SETTING, "ngram", k=4), Arm(SETTING)


def _launch(ours: Sequence[Outcome], plain: Sequence[Outcome], units: int) -> Launch:
    """The launch of a row beside plain, or of plain alone."""
    arm = DRAFTED_ARM if plain else PLAIN_ARM
    found = {DRAFTED_ARM: ours, PLAIN_ARM: plain} if plain else {PLAIN_ARM: ours}
    series = {one: Series(one, "exact", outcomes=list(runs)) for one, runs in found.items()}
    return figures.compared(series, units, {})[arm.id].launches[0]


def _parts(ours: Outcome, control: Outcome) -> Any:
    return _launch([ours], [control], 1).parts


def test_every_part_of_decoding_and_of_the_first_token_is_what_its_calls_took() -> None:
    ours = _outcome(90000.0, 70000.0, 6, 9000.0, _stats(ONE, TWO, calls=CALLS), 500.0)
    control = _outcome(60.0, 40.0, 10, 25.0)
    found = _parts(ours, control)
    # Both steps, in tokens of the control, of 4 seconds each; one more for each step.
    decoding = {
        "draft": (1 + 4 + 128) + (3 + 7 + 23) + 56000,
        "prefill": 0.0,
        "verification": (8 + 16) + (11 + 13),
        "K/V": 32 + 17,
        "host": 70000 - 56000 - 166 - 48 - 49,
        "engine": 0.0,
    }
    assert found[DECODE] == pytest.approx({part: seconds / 8 for part, seconds in decoding.items()})
    # The first step alone, in the control's 25 seconds to a first token.
    first = {
        "draft": 1 + 4 + 128 + 7000 + 500,
        "prefill": 90000 - 70000 - 7500,
        "verification": 8 + 16,
        "K/V": 32,
        "host": 9000 - 7633 - 12500 - 24 - 32,
        "engine": 0.0,
    }
    assert found[FIRST] == pytest.approx({part: seconds / 25 for part, seconds in first.items()})
    assert [list(parts) for parts in found.values()] == [
        ["draft", "prefill", "verification", "K/V", "host", "engine"]
    ] * 2


@pytest.mark.parametrize(("wall", "prefill"), [(100.25, 0.25), (99.0, 0.0)])
def test_prefill_is_what_is_left_before_decoding_and_never_less_than_nothing(wall: float, prefill: float) -> None:
    found = _parts(_outcome(wall, 95.0, 6, 9.0, _stats(ONE), 5.0), _outcome(60.0, 40.0, 10, 1.0))
    assert found[FIRST]["prefill"] == prefill
    assert found[DECODE]["prefill"] == 0.0


def test_a_launch_has_of_each_prompt_the_median_the_mean_and_the_first_of_its_passes() -> None:
    # Two prompts in three passes; the second prompt's last pass emitted all at once, as a control's first did.
    ours = [
        _outcome(wall, decode, decoded, first, _stats(*[ONE] * steps))
        for wall, decode, decoded, first, steps in (
            (80.0, 60.0, 6, 10.0, 1),
            (30.0, 20.0, 2, 5.0, 2),
            (88.0, 66.0, 6, 11.0, 3),
            (40.0, 24.0, 2, 7.0, 4),
            (96.0, 72.0, 6, 12.0, 5),
            (5.0, 0.0, 0, 5.0, 0),
        )
    ]
    plain = [
        _outcome(wall, decode, decoded, first)
        for wall, decode, decoded, first in (
            (8.0, 6.0, 6, 2.0),
            (9.0, 0.0, 0, 2.0),
            (8.0, 6.0, 3, 4.0),
            (20.0, 8.0, 2, 4.0),
            (8.0, 6.0, 6, 8.0),
            (20.0, 8.0, 2, 4.0),
        )
    ]
    found = _launch(ours, plain, 2)
    assert {figure: times.seconds for figure, times in found.times.items()} == {
        DECODE: (11.0, 11.0),
        FIRST: (11.0, 5.0),
        WHOLE: (11.0, 7.5),
        STARTS[DECODE]: (10.0, 10.0),
        STARTS[FIRST]: (10.0, 5.0),
        MEANS[DECODE]: (11.5, 12.0),
        MEANS[FIRST]: (11.5, 6.0),
    }
    relative = {
        DECODE: (log(10), log(3)),  # 10, 5.5 and 12 of the first prompt; 12/4 of the one pair of the second
        FIRST: (log(11 / 4), log(7 / 4)),
        WHOLE: (log(10), log(5 / 3)),
        STARTS[DECODE]: (log(10),),
        STARTS[FIRST]: (log(5), log(2.5)),
        MEANS[DECODE]: (log(23 / 3), log(3)),  # 11 and 12 over 2 and 1
        MEANS[FIRST]: (log(23 / 12), log(12 / 8)),
    }
    for figure, expected in relative.items():
        assert found.times[figure].relative == pytest.approx(expected), figure
    assert found.tau == (6 + 2 + 6 + 2 + 6) / (1 + 2 + 3 + 4 + 5)
    drafts = [_parts(ours[at], plain[at])[DECODE]["draft"] for at in (0, 2, 4, 3)]
    assert found.parts[DECODE]["draft"] == pytest.approx((sorted(drafts[:3])[1] + drafts[3]) / 2)
    assert sorted(found.parts) == sorted((DECODE, FIRST))


def test_without_a_control_or_a_common_pass_a_launch_has_seconds_alone() -> None:
    ours = [_outcome(80.0, 60.0, 6, 10.0, _stats(ONE)), _outcome(5.0, 0.0, 0, 5.0, _stats())]
    seconds = {DECODE: (10.0,), FIRST: (10.0, 5.0), WHOLE: (10.0, 2.5)}
    expected = Launch({figure: FigureTimes(values) for figure, values in seconds.items()})
    assert _launch(ours, [], 2) == expected
    # The control decodes in the other pass alone; its second emits something in both.
    found = _launch(ours, [_outcome(9.0, 0.0, 0, 2.0), _outcome(8.0, 6.0, 6, 2.0)], 2)
    assert {figure: times.relative for figure, times in found.times.items()} == {
        DECODE: None,
        FIRST: pytest.approx((log(5), log(2.5))),
        WHOLE: pytest.approx((log(10 / 4.5), log(2.5))),
    }
    assert (found.parts, found.tau) == ({}, None)


def test_one_step_of_three_tokens_is_three_tokens_a_forward() -> None:
    ours = [_outcome(80.0, 60.0, 3, 10.0, _stats(ONE))]
    assert _launch(ours, [_outcome(8.0, 6.0, 6, 2.0)], 1).tau == 3.0


def _counted(drafts: int, decoded: int) -> Outcome:
    stats = _stats(ONE)
    stats.counts.update(num_drafts=drafts)
    stats.ops = Counter({("mix", "triton"): drafts, ("cut", "cpu"): 2})
    return _outcome(80.0, 60.0, decoded, 10.0, stats)


SEEDED = SETTING.replaced(max_new_tokens=24, seed=3)
PLAINLY, LATE, CLOCKED = Arm(SEEDED), Arm(SEEDED, "late", k=4), Arm(SEEDED, "ngram", k=4)
OUTSIDE, OTHER = Arm(SEEDED, peer="transformers"), Arm(SEEDED, peer="vllm")
RUNS = {
    arm: [_counted(place, 6), _counted(9, 5), _counted(50, 4), _counted(60, 3)]
    for place, arm in enumerate((CLOCKED, LATE, PLAINLY))
}
"""Two passes over two prompts of each row of ours."""


def _every() -> dict[Arm, Series]:
    """Of each kind of arm, with two passes over two prompts."""
    failed, again = Arm(SEEDED, "suffix", k=4), Arm(SEEDED, again=True)
    outside = [_outcome(8.0, 6.0, 6, 2.0)] * 4
    return {
        OUTSIDE: Series(OUTSIDE, "exact", outcomes=outside),
        OTHER: Series(OTHER, "exact", outcomes=outside),
        CLOCKED: Series(CLOCKED, "exact", outcomes=RUNS[CLOCKED], repeats=False),
        failed: Series(failed, "exact", outcomes=RUNS[CLOCKED], error="no", ended="crashed"),
        again: Series(again, "exact", outcomes=RUNS[PLAINLY]),
        PLAINLY: Series(PLAINLY, "exact", outcomes=RUNS[PLAINLY]),
        LATE: Series(LATE, "exact", outcomes=RUNS[LATE]),
    }


READ = {"prompts": "p"}


def _timed(arm: Arm, control: Arm | None, said: str | None) -> GatedRow:
    """The row of an arm of which nothing is counted."""
    series = _every()
    launch = _launch(series[arm].outcomes, series[control].outcomes if control else [], 2)
    work = {"max_new_tokens": 24, "prompts": 2, "seed": 3}
    return GatedRow(work, READ, said, launches=(launch,), peer=arm.peer is not None)


def _whole(arm: Arm, control: Arm | None, said: str | None, drafts: int) -> GatedRow:
    """The row of an arm of ours, whose first pass counts so many drafts."""

    def counts(outcomes: Sequence[Outcome], drafts: int) -> PassCounts:
        return PassCounts(digest(outcomes), summed(outcomes), {"cut on cpu": 4, "mix on triton": drafts})

    first, later = counts(RUNS[arm][:2], drafts), counts(RUNS[arm][2:], 110)
    if arm is CLOCKED:  # its controller reads the clock: a later pass may count otherwise, but says the same
        later = replace(first, digest=later.digest)
    return replace(
        _timed(arm, control, said),
        digest=first.digest,
        plain_digest=digest(RUNS[PLAINLY][:2]),
        deterministic=arm is not CLOCKED,
        counters=first.counters,
        ops=first.ops,
        passes=2,
        later={"2": later},
    )


def test_rows_are_those_that_did_not_fail_with_all_that_each_pass_counts_and_of_a_peer_times() -> None:
    found = figures.compared(_every(), 2, READ)
    assert list(found) == [OUTSIDE.id, OTHER.id, CLOCKED.id, PLAINLY.id, LATE.id]
    assert found[OUTSIDE.id] == _timed(OUTSIDE, PLAINLY, "plain")
    assert found[OTHER.id] == _timed(OTHER, OUTSIDE, "transformers")
    assert found[CLOCKED.id] == _whole(CLOCKED, PLAINLY, "plain", 9)
    assert found[LATE.id] == _whole(LATE, PLAINLY, "plain", 10)
    assert found[PLAINLY.id] == _whole(PLAINLY, OUTSIDE, "transformers", 11)
    assert found[CLOCKED.id].counters["num_drafts"] == 9
    assert list(found[CLOCKED.id].ops) == ["cut on cpu", "mix on triton"]


def test_without_transformers_or_where_it_failed_plain_has_no_control_and_peers_have_plain() -> None:
    series = _every()
    series[OUTSIDE] = Series(OUTSIDE, "exact", outcomes=series[OUTSIDE].outcomes, error="no", ended="crashed")
    for _ in range(2):
        found = figures.compared(series, 2, READ)
        assert found[PLAINLY.id] == _whole(PLAINLY, None, None, 11)
        assert found[OTHER.id] == _timed(OTHER, PLAINLY, "plain")
        series.pop(OUTSIDE, None)


def test_a_pass_that_counts_as_the_first_is_not_written_and_half_a_pass_is_none() -> None:
    for outcomes, passes in ((RUNS[LATE][:2] * 2, 2), (RUNS[LATE][:3], 1)):
        series = _every()
        series[LATE] = replace(series[LATE], outcomes=outcomes)
        row = figures.compared(series, 2, READ)[LATE.id]
        assert (row.passes, row.later) == (passes, {})


def test_all_workloads_are_recorded_with_what_they_read_and_weights_are_digested_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models, tokenizer = (nn.Linear(3, 2), nn.Linear(4, 2)), byte_tokenizer()
    questions = {name: (Question((name,)),) for name in ("chat", "code", "sums")}
    digested: list[nn.Module] = []

    def weights(model: nn.Module) -> str:
        digested.append(model)
        return f"w{models.index(cast(Any, model))}"

    monkeypatch.setattr(inputs, "weights_digest", weights)
    compared = []
    for name, model in zip(questions, (models[0], models[0], models[1]), strict=True):
        arm = Arm(SETTING.replaced(workload=name))
        series = {arm: Series(arm, "exact", outcomes=[_counted(1, 6)])}
        workload = Workload(name, questions[name])
        compared.append(SimpleNamespace(model=model, workload=workload, tokenizer=tokenizer, series=series, units=1))
    found = figures.measured(cast(Any, SimpleNamespace(compared=lambda: compared)))
    assert [dict(row.inputs) for row in found.values()] == [
        {
            "prompts": inputs.prompts_digest(questions[name]),
            "rendered prompts": inputs.rendered_digest([chat_ids(tokenizer, name)]),
            "tokenizer": inputs.tokenizer_digest(tokenizer),
            "weights": weights,
        }
        for name, weights in (("chat", "w0"), ("code", "w0"), ("sums", "w1"))
    ]
    assert digested == [*models]


def test_a_plain_benchmark_has_a_row_if_it_was_timed_and_is_asked_for() -> None:
    def bench(name: str, median: float = 0.5, rounds: int = 3, has_error: bool = False) -> SimpleNamespace:
        stats = SimpleNamespace(rounds=rounds, median=median, mean=median + 1)
        return SimpleNamespace(fullname=name, has_error=has_error, stats=stats)

    found = [
        None,
        bench("failed", has_error=True),
        bench("never ran", rounds=0),
        bench("not asked for"),
        bench("no time", median=0.0),
        bench("good"),
        bench("longer", median=2.0),
    ]
    names = iter(["failed", "never ran", "no time", "good", "longer", "not there"])
    assert figures.benchmarks(found, names) == {
        name: GatedRow(launches=(Launch({CALL: FigureTimes((seconds,)), MEANS[CALL]: FigureTimes((seconds + 1,))}),))
        for name, seconds in (("good", 0.5), ("longer", 2.0))
    }


def test_a_machine_is_its_processor_cores_threads_device_and_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    expected = {
        "processor": provenance.processor(),
        "vectors": provenance.vectors(),
        "cores": 8,
        "threads": "3",
        "device": "a GPU",
        "system": platform.system(),
    }
    assert figures.machine("a GPU") == expected
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert figures.machine(None) == {**expected, "threads": None, "device": None}
    origin = figures.record_origin(Path.cwd(), None)
    assert origin["machine"] == figures.machine(None)
    assert origin["commit"] == provenance.commit(Path.cwd())
