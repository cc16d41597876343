"""Runs of which nothing can be judged: each ends with another exit code than 0, whatever lets other things pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchsuite.gate.record import CALL, DECODE, FigureTimes, GatedRow, Launch, Record, StepCounts
from benchsuite.gate.trial import UNJUDGED, Limit
from benchsuite.gate.verdict import GateVerdict
from benchsuite.tests.gate_rig import NO_PLUGINS, USAGE, refused
from benchsuite.tests.launched_rig import trial
from benchsuite.tests.rig import Run

TIMES = {DECODE: FigureTimes((1.0,), (0.0,))}
OURS = GatedRow(
    control="plain",
    digest="d",
    plain_digest="p",
    counters={"num_drafts": 3},
    launches=(Launch(TIMES, {}, 2.0, StepCounts((0.5,), "d")),) * 5,
)
PLAIN = replace(OURS, control=None, digest="p", counters={"num_drafts": 0})
ALONE = replace(PLAIN, launches=(Launch({DECODE: FigureTimes((1.0,))}),) * 5)
PEER = GatedRow(control="plain", launches=(Launch(TIMES),) * 5, peer=True)
CLOCKED = replace(OURS, deterministic=False)
BENCHMARK = GatedRow(launches=(Launch({CALL: FigureTimes((1.0,))}),) * 5)
NEW: dict[str, Any] = {"on_missing": "new"}
LET: dict[str, Any] = {"inconclusive": "report"}


def blocking(
    base: GatedRow | None,
    head: GatedRow,
    level: int | None = None,
    marked: int | None = None,
    rules: dict[str, Any] | None = None,
) -> set[GateVerdict]:
    """The verdicts, on one row, that fail a run which is gated at a level, by default at 0, and marked with another."""
    before = Record({}, {} if base is None else {"row": base})
    made = trial(before, Record({}, {"row": head}), **(rules or {}))
    made.levels, made.limits = (level or 0,), {"row": Limit(level=marked)} if marked is not None else {}
    passing = {GateVerdict.IMPROVED, GateVerdict.PASS, GateVerdict.COARSE}
    passing |= {GateVerdict.INCONCLUSIVE} if rules == LET else set()
    return {one.verdict for one in made.findings()} - passing


@pytest.mark.parametrize(
    ("base", "head", "given"),
    [
        pytest.param(PEER, PEER, {}, id="only a peer at level 0"),
        pytest.param(PEER, PEER, {"level": 1, "marked": 0}, id="only a peer that its marker leaves out"),
        pytest.param(OURS, OURS, {"marked": 2}, id="only a row that its marker leaves out"),
        pytest.param(OURS, OURS, {"level": 1, "marked": 0}, id="the same at level 1"),
        pytest.param(None, OURS, {"rules": NEW}, id="only new rows, which pass"),
        pytest.param(None, PEER, {"rules": NEW}, id="only new peers, which pass"),
        pytest.param(ALONE, ALONE, {"level": 1}, id="only plain, over nothing"),
        pytest.param(BENCHMARK, BENCHMARK, {}, id="only a benchmark's seconds at level 0"),
        pytest.param(OURS, replace(OURS, digest="e", launches=()), {"rules": LET}, id="only other tokens, let through"),
    ],
)
def test_a_row_of_which_nothing_can_be_judged_fails_a_run_of_it_alone(
    base: GatedRow | None, head: GatedRow, given: dict[str, Any]
) -> None:
    assert blocking(base, head, **given) == {GateVerdict.ERROR}


@pytest.mark.parametrize(("row", "level"), [(OURS, 0), (OURS, 1), (PLAIN, 0), (CLOCKED, 0), (CLOCKED, 1), (PEER, 1)])
def test_a_row_of_which_something_is_judged_passes_alone(row: GatedRow, level: int) -> None:
    assert blocking(row, row, level) == set()


def test_beside_a_row_that_is_judged_one_that_is_not_passes_and_is_named() -> None:
    rows = {"ours": CLOCKED, "peer": PEER}
    made = trial(Record({}, {"ours": CLOCKED}), Record({}, rows), **NEW)
    made.levels = (0,)
    assert {one.verdict for one in made.findings()} == {GateVerdict.PASS}
    assert made.new == ["peer"]
    assert made.clocked == ["ours"], "its tokens are compared, and not what it accepts"
    made = trial(Record({}, rows), Record({}, rows))
    made.levels = (0, 1)
    made.findings()
    assert made.clocked == []


def test_other_tokens_alone_may_be_accepted() -> None:
    made = trial(Record({}, {"row": OURS}), Record({}, {"row": replace(OURS, digest="e")}), **LET, update=True)
    made.levels = (0,)
    assert GateVerdict.ERROR not in {one.verdict for one in made.findings()}


def test_what_is_let_through_as_undecided_is_judged_if_it_was_timed() -> None:
    other = replace(OURS, digest="e", launches=OURS.launches)
    made = trial(Record({}, {"row": OURS}), Record({}, {"row": other}), **LET)
    found = made.findings()
    assert {one.verdict for one in found} == {GateVerdict.PASS, GateVerdict.INCONCLUSIVE}
    assert UNJUDGED not in {one.message for one in found}


@pytest.mark.slow
@pytest.mark.parametrize("job", ["kernels", "decoding"])
@pytest.mark.parametrize("mode", ["fail", "report"])
def test_a_run_of_another_job_alone_is_a_usage_error_that_names_it(
    job: str, mode: str, run: Run, tmp_path: Any
) -> None:
    (tmp_path / "gate.json").write_text('{"format": "specdec-gate", "version": 4, "made": {}, "rows": {}}')
    given = ("--pyargs", f"benchsuite.test_{job}", "-m", job, "--specdec-target=tiny", *NO_PLUGINS[:2])
    done = run("-m", "pytest", *given, f"--gate={mode}", "--gate-against=gate.json")
    refused(done, USAGE, "no benchmarks", f"pytest -m {job} has figures that no level compares")
