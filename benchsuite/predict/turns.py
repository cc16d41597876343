"""Arms in turn over the same requests, in random order: what the advisor and the break-even map measure with."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchsuite.measure.matrix import Arm, Setting
from benchsuite.measure.runners import EngineRunner, Outcome
from benchsuite.measure.session import Stage
from specdec.request import Request


def engine_runner(stages: Mapping[Setting, Stage], arm: Arm) -> EngineRunner:
    """Return the runner of one of our arms; ``stages`` are those of a prepared bench, by setting without workload."""
    without = arm.setting.without_workload
    runner = stages[without].runners[replace(arm, setting=without)]
    assert isinstance(runner, EngineRunner)
    return runner


def run_in_turn(
    stages: Mapping[Setting, Stage], arms: Sequence[Arm], requests: Sequence[Request], dice: random.Random
) -> dict[Arm, Outcome]:
    """Run the requests once with each arm, in an order that ``dice`` draws. In place: every arm forgets before its run.

    Example: ``run_in_turn(dict(bench.stages()), arms, unit.requests, random.Random(0))``
    """
    found = {}
    for arm in dice.sample(arms, len(arms)):
        runner = engine_runner(stages, arm)
        runner.forget()
        found[arm] = runner.run(requests)
    return found
