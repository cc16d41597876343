"""Arms in turn over the same requests, step by step: what the advisor, the grid and the break-even map measure with."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.runners import EngineRunner, Outcome, mean_length
from benchsuite.measure.session import Stage
from specdec.devices import synchronize
from specdec.engine import Engine
from specdec.request import Request


def engine_runner(stages: Mapping[Setting, Stage], arm: Arm) -> EngineRunner:
    """Return the runner of one of our arms; ``stages`` are those of a prepared bench, by setting without workload."""
    without = arm.setting.without_workload
    runner = stages[without].runners[replace(arm, setting=without)]
    assert isinstance(runner, EngineRunner)
    return runner


@dataclass
class SteppedRun:
    """A run of an engine that others interrupt after every step: the seconds of its own prefills and steps so far."""

    engine: Engine
    requests: Sequence[Request]
    begun_s: float = 0.0
    decode_s: float = 0.0

    def begin(self) -> None:
        """Prefill the requests; there must be a row for each."""
        start = time.perf_counter()
        self.engine.run([])
        self.engine.submit(self.requests, closed=True)
        synchronize(self.engine.target.device)
        self.begun_s = time.perf_counter() - start

    def step(self) -> None:
        """Decode one step."""
        start = time.perf_counter()
        self.engine.step()
        synchronize(self.engine.target.device)
        self.decode_s += time.perf_counter() - start

    @property
    def progress(self) -> float:
        """The share of the tokens that may be emitted which is emitted."""
        budget = sum(request.params.max_new_tokens for request in self.requests)
        return self.engine.stats.counts["num_emitted_tokens"] / budget

    def outcome(self) -> Outcome:
        """The run, after its end."""
        tokens = [self.engine.finished[request.id].tokens for request in self.requests]
        return Outcome(
            tokens=tokens,
            wall_s=self.begun_s + self.decode_s,
            decode_s=self.decode_s,
            decoded=sum(map(len, tokens)),
            emissions=[],
            forwards=self.engine.stats.counts["target_forwards"],
            mean_length=mean_length(self.requests, tokens),
            stats=self.engine.stats,
        )


def step_in_turn(turns: Sequence[SteppedRun], dice: random.Random) -> None:
    """Run all turns to their ends: the next step is that of the turn which has emitted least, of several one that
    ``dice`` draws.

    So every engine's steps are spread over the whole time. A machine that is slower for a second is slower for all; run
    by run, it would be slower for one (docs/log.md, 2026-11-24, has both noises).
    """
    for turn in dice.sample(turns, len(turns)):
        turn.begin()
    live = [turn for turn in turns if turn.engine.rows.live]
    while live:
        progress = [turn.progress for turn in live]
        least = min(progress)
        turn = dice.choice([one for one, share in zip(live, progress, strict=True) if share == least])
        turn.step()
        if not turn.engine.rows.live:
            live.remove(turn)


def run_in_turn(
    stages: Mapping[Setting, Stage], arms: Sequence[Arm], requests: Sequence[Request], dice: random.Random
) -> dict[Arm, Outcome]:
    """Run the requests once with each arm, all at once, as ``step_in_turn`` has it. In place: every arm forgets before.

    Example: ``run_in_turn(dict(bench.stages()), arms, unit.requests, random.Random(0))``
    """
    turns = {}
    for arm in arms:
        runner = engine_runner(stages, arm)
        runner.forget()
        turns[arm] = SteppedRun(runner.engine, requests)
    step_in_turn([*turns.values()], dice)
    return {arm: turn.outcome() for arm, turn in turns.items()}
