"""The engine's runner: what a run bears of what was forgotten before it, and what it says of the engine."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchsuite.conformance.guards.tape import Tape
from benchsuite.conformance.models import tiny
from benchsuite.measure.arms import Arm
from benchsuite.measure.runners import EngineRunner, Guessed, Outcome
from benchsuite.tests.rig import SETTING
from specdec import Context, Controller, Draft, Request, SamplingParams, Window
from specdec.interfaces import Env
from specdec.stats import Stats

WORK = [
    Request(0, (1, 2, 3, 4), SamplingParams(max_new_tokens=6)),
    Request(1, (9, 8), SamplingParams(max_new_tokens=4)),
]


class HandMoved:
    """A clock that only ``spend`` moves."""

    now = 50.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Paced(Draft):
    """Proposes the pending token; to be admitted takes two seconds, to propose one, to forget three."""

    def __init__(self, clock: HandMoved, learns: bool) -> None:
        self.clock, self.learns, self.forgot, self.asked = clock, learns, 0, list[int]()

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Two seconds."""
        self.clock.spend(2.0)

    def propose(self, context: Context) -> Window:
        """A second."""
        self.clock.spend(1.0)
        self.asked.append(int(context.max_proposals_host.max()))
        proposals = context.pending[:, None].expand(-1, self.asked[-1])
        return Window.chain(context.pending, proposals, context.max_proposals)

    def forget(self) -> None:
        """Three seconds."""
        self.forgot += 1
        self.clock.spend(3.0)


class Narrow(Controller):
    """One proposal of four that would fit; to forget takes half a second."""

    def __init__(self, clock: HandMoved) -> None:
        self.clock = clock

    @property
    def max_k(self) -> int:
        """Four."""
        return 4

    def next_k(self, stats: Stats) -> int:
        """One."""
        return 1

    def forget(self) -> None:
        """Half a second."""
        self.clock.spend(0.5)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> HandMoved:
    """In place of the machine's clock."""
    made = HandMoved()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def paced_runner(clock: HandMoved, learns: bool = False, max_rows: int = 1) -> tuple[EngineRunner, Paced]:
    """A runner of a tiny target with the paced draft and the narrow controller."""
    draft = Paced(clock, learns)

    def drafts(env: Env) -> Draft:
        return draft

    def controllers(env: Env) -> Controller:
        return Narrow(clock)

    extra = (("draft", "paced", drafts), ("controller", "narrow", controllers))
    engine = tiny.assembly(max_rows=max_rows, backend="reference", extra=extra).engine("paced", controller="narrow")
    return EngineRunner(Arm(SETTING, draft="paced", controller="narrow", k=None), engine), draft


def test_a_run_bears_the_seconds_in_which_was_forgotten_before_it_and_the_next_does_not(hand: HandMoved) -> None:
    runner, draft = paced_runner(hand)
    runner.forget()
    runner.forget()
    first = runner.run(WORK[:1])
    steps = len(draft.asked)
    assert first.forgetting_s == 7.0
    assert (first.wall_s, first.decode_s) == (7.0 + 2.0 + steps, steps)
    assert first.emissions[0][0][0] == first.ttft_s[0] == 7.0 + 2.0 + 1.0
    assert first.draft_prefill_s == 2.0
    assert sum(count for _, count in first.emissions[0]) == first.decoded == first.emitted == 6
    assert first.seconds_per_token == steps / 6
    assert first.wall_per_token == (9.0 + steps) / 6
    assert first.stats is runner.engine.stats
    assert first.forwards == len(first.timed) == len(runner.engine.stats.steps) >= steps
    assert (first.draft_bytes, first.mean_length) == (0, 4 + 6 / 2)
    second = runner.run(WORK[:1])
    assert (second.forgetting_s, second.wall_s, second.tokens) == (0.0, 2.0 + len(draft.asked) - steps, first.tokens)
    assert runner.tokens(WORK[:1]) == first.tokens
    assert runner.logits_at(WORK[:1], 0, 2) is not None
    assert draft.forgot == 4, "a check repeats the run from its beginning"
    assert runner.run(WORK[:1]).forgetting_s == 0.0, "and no run bears the time of a check"


def test_what_learns_is_not_made_to_forget_for_a_check(hand: HandMoved) -> None:
    runner, draft = paced_runner(hand, learns=True)
    assert runner.learns
    assert runner.tokens(WORK[:1]) == runner.run(WORK[:1]).tokens
    assert draft.forgot == 0
    assert not EngineRunner(Arm(SETTING), tiny.assembly(backend="reference").engine(None)).learns


def test_acceptance_is_counted_with_all_proposals_that_fit_whatever_the_controller_chooses(hand: HandMoved) -> None:
    runner, draft = paced_runner(hand)
    runner.run(WORK[:1])
    assert set(draft.asked) <= {0, 1}
    own, asked = runner.engine.controller, len(draft.asked)
    guessed = runner.guessed(WORK)
    assert guessed == Guessed(runner.engine.stats.counts["num_accepted_tokens"], 10, 4)
    assert max(draft.asked[asked:]) == runner.engine.max_window - 1 == 4
    assert (draft.forgot, runner.engine.controller) == (1, own)
    assert runner.run(WORK[:1]).forgetting_s == 0.0


def test_conditions_name_the_weights_the_runtime_and_whether_widths_agree() -> None:
    engine = tiny.assembly(backend="reference").engine(None)
    expected = {"dtype": "float32", "compile": "no", "runtime": "eager", "exact": "no"}
    assert EngineRunner(Arm(SETTING), engine).conditions() == expected
    rounded = Arm(SETTING.replaced(dtype="int8"))
    assert EngineRunner(rounded, engine).conditions() == {**expected, "dtype": "int8"}
    assert EngineRunner(Arm(SETTING.replaced(dtype="auto")), engine).conditions() == expected
    engine.exact = True
    assert EngineRunner(Arm(SETTING), engine).conditions() == {**expected, "exact": "yes"}


def test_a_draft_models_bytes_are_those_of_each_of_its_forwards() -> None:
    engine = tiny.assembly(backend="reference").engine("draft_model", k=2)
    outcome = EngineRunner(Arm(SETTING, draft="draft_model", k=2), engine).run(WORK[:1])
    assert engine.draft
    assert outcome.draft_bytes == engine.stats.counts["draft_forwards"] * engine.draft.weight_bytes > 0


def test_a_run_that_records_is_made_again_and_its_time_is_set_up(
    hand: HandMoved, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny.assembly(backend="reference").engine("garbage", k=1, recorder=Tape())
    runner, runs, usual = EngineRunner(Arm(SETTING, draft="garbage", k=1), engine), list[int](), engine.run
    forgot = list[int]()

    def run(requests: Any) -> Any:
        hand.spend(4.0)
        done = usual(requests)
        runs.append(engine.runtime.recorded)
        return done

    monkeypatch.setattr(engine, "run", run)
    monkeypatch.setattr(engine.controller, "forget", lambda: forgot.append(1))
    before = dict(engine.set_up_seconds)
    outcome = runner.run(WORK[:1])
    again = len(runs) - 1
    assert again >= 1
    assert runs[-1] == runs[-2] > 0
    assert outcome.wall_s == 4.0
    assert runner.set_up_seconds == {**before, "graphs": before.get("graphs", 0.0) + 4.0 * again}
    assert len(forgot) == again


def test_times_of_a_run_are_read_from_the_emissions_of_its_requests() -> None:
    run = Outcome([(1, 2, 3), (4,), ()], 8.0, 6.0, 3, [[(1.0, 2), (4.0, 1)], [(2.5, 1)], []], None, 5.0)
    assert (run.emitted, run.ttft_s, run.tpot_s, run.gaps_s) == (4, [1.0, 2.5], [3.0], [3.0])
    assert (run.seconds_per_token, run.wall_per_token, run.draft_prefill_s, run.timed) == (2.0, 2.0, 0.0, [])
    three = Outcome([(1,) * 6], 8.0, 6.0, 6, [[(1.0, 1), (2.0, 2), (6.0, 3)]], None, 5.0)
    assert (three.tpot_s, three.gaps_s) == ([5.0 / 5], [1.0, 4.0])
    assert (three.replays, three.forgetting_s, three.draft_bytes, three.memory, three.stats) == (0, 0.0, 0, {}, None)
