"""Where steps are recorded, plain decoding op by op has a row beside plain's, and is compared if that is asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from benchsuite.conformance.guards.tape import Tape
from benchsuite.conformance.models import tiny
from benchsuite.measure.arms import Arm
from benchsuite.measure.cells import Cell, from_json, to_json
from benchsuite.measure.conditions import known_conditions
from benchsuite.measure.measured import Measured
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.runners import EngineRunner
from benchsuite.measure.session import Bench
from benchsuite.run.matrix import build_matrix
from benchsuite.tests.rig import SETTING, requested
from specdec import Request, SpecdecError
from specdec.lists import split_list

REPLAYED = SETTING.replaced(backend="reference", max_new_tokens=12)
PLAIN, EAGER, GARBAGE = Arm(REPLAYED), Arm(REPLAYED, eager=True), Arm(REPLAYED, draft="garbage", k=2)


@pytest.fixture(scope="module")
def cell() -> Cell:
    """Three arms on a CPU whose steps are recorded by a tape, as a GPU's are by graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec.devices.RECORDED", ("cuda", "cpu"))
        patch.setattr("specdec.assembly.CudaGraphs", Tape)
        bench = Bench(MeasuringPlan(prompts=1))
        bench.prepare([PLAIN, EAGER, GARBAGE])
        bench.row(PLAIN, lambda what: None)
        return bench.cells[REPLAYED]


@pytest.mark.parametrize(
    ("device", "graphs", "rows"), [("cuda:1", "auto", ["plain eager"]), ("cuda", "off", []), ("cpu", "auto", [])]
)
def test_the_row_is_there_where_steps_are_recorded_alone(device: str, graphs: str, rows: list[str]) -> None:
    arms = build_matrix(requested(target="tiny", workload="chat", device=device, graphs=graphs))
    found = [arm for arm in arms if arm.eager]
    assert [arm.label for arm in found] == rows
    assert all(arm.control and not arm.plain and arm.id.startswith("tiny-chat-plain-eager") for arm in found)


@pytest.mark.slow
def test_it_decodes_plains_tokens_op_by_op(cell: Cell) -> None:
    rows = Measured()
    rows.add(cell)
    (row,) = [row for row in rows.rows if row.arm.eager]
    assert (row.failure, row.info["draft"], row.info["contract_checked"]) == (None, "plain eager", "1/1")
    ran = {arm.label: series.conditions["runtime"] for arm, series in cell.series.items()}
    assert ran == {"plain": "replayed", "plain again": "replayed", "plain eager": "eager", "garbage": "replayed"}


@pytest.mark.slow
def test_arms_of_two_runtimes_are_compared_only_if_that_is_asked_for(cell: Cell) -> None:
    reasons = {}
    for across in ("", "compile", "runtime"):
        rows = Measured(across=known_conditions(split_list(across)))
        rows.add(cell)
        reasons[across] = [row.info["not_comparable"] for row in rows.rows if row.arm in (EAGER, GARBAGE)]
        assert all(row.info["speedup"] for row in rows.rows)
    apart = "runtime: eager, the baseline's is replayed"
    assert reasons == {"": [apart, None], "compile": [apart, None], "runtime": [None, None]}


def test_a_condition_that_does_not_exist_is_refused_with_the_choices() -> None:
    with pytest.raises(SpecdecError, match="unknown condition of --specdec-across 'runtme'; did you mean 'runtime'"):
        known_conditions(["compile", "runtme"])


@pytest.mark.slow
def test_a_cell_keeps_the_row_and_one_made_before_there_was_any_is_read(cell: Cell) -> None:
    written = json.loads(json.dumps(to_json(cell)))
    assert list(from_json(written).series) == list(cell.series)
    for arm in written["arms"]:
        del arm["eager"]
    assert not any(arm.eager for arm in from_json(written).series)


@pytest.mark.slow
def test_a_run_in_which_something_was_recorded_is_set_up_and_not_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny.assembly(max_rows=2, backend="reference").engine("draft_model", k=3, recorder=Tape())
    runner, ran = EngineRunner(GARBAGE, engine), list[int]()
    usual = engine.run

    def counted(requests: Sequence[Request]) -> Any:
        done = usual(requests)
        ran.append(engine.runtime.recorded)
        return done

    monkeypatch.setattr(engine, "run", counted)
    work = tiny.requests(count=3)
    first = runner.run(work)
    assert ran[0] > 0
    assert ran[-1] == ran[-2], "the run that counts recorded something"
    assert runner.set_up_seconds["graphs"] > 0
    spent = dict(runner.set_up_seconds)
    again = runner.run(work)
    assert len(ran) == 3
    assert runner.set_up_seconds == spent
    assert again.tokens == first.tokens
    assert again.stats is not None
    assert first.stats is not None
    assert again.stats.counts["draft_forwards"] == first.stats.counts["draft_forwards"]
