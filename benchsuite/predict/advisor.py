"""The advisor: the draft, controller and K that are fastest on a text, found in a budget of seconds."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

from benchsuite.measure.matrix import Arm, Setting
from benchsuite.measure.session import Bench, Stage
from benchsuite.measure.units import Unit
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.forecasts import costs_of
from benchsuite.predict.prediction import WRONG, PredictedUnit, PromptSizes, Text, predict
from benchsuite.predict.traces import StepTrace, traces_of
from benchsuite.predict.turns import engine_runner, run_in_turn
from specdec.errors import SpecdecError

TRACING = 0.4
"""Largest share of the budget that goes into traces, of which every K is predicted."""

FIELD = 8
"""Most strategies of a batch that are measured beside each other."""

CLOSE = 0.97
"""A choice of at least this share of the best one's speed is taken for right."""

LEAST_NOISE = 0.02
"""Least standard deviation that one paired run's logarithm is taken to have."""


@dataclass
class Candidate:
    """One strategy at one batch: the logs of its predicted speedup and of those measured, unit by unit.

    ``wrong``: the standard deviation of what is predicted beside the others; ``noise``: that of one measured run.
    """

    arm: Arm
    predicted: float
    wrong: float
    noise: float
    measured: list[float]

    @property
    def mean(self) -> float:
        """The log of the expected speedup: prediction and measurements, weighted by their precisions."""
        weights = [1 / self.wrong**2, *[1 / self.noise**2] * len(self.measured)]
        values = [self.predicted, *self.measured]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    @property
    def deviation(self) -> float:
        """The standard deviation of ``mean``."""
        return 1 / sqrt(1 / self.wrong**2 + len(self.measured) / self.noise**2)


@dataclass(frozen=True)
class Advice:
    """What is fastest for one batch.

    ``speedup`` over plain is expected, between ``low`` and ``high`` with 90 %; ``sure``: the probability that it is at
    least ``CLOSE`` times as fast as the best of those ``tried``; ``seconds``: spent so far, probes included.
    """

    best: Arm
    speedup: float
    low: float
    high: float
    sure: float
    tried: Sequence[Candidate]
    seconds: float

    @property
    def command(self) -> str:
        """The command that measures the advice."""
        setting = self.best.setting
        arm = self.best.strategy
        return (
            f"pytest --pyargs benchsuite.test_speculation --specdec-target {setting.target} --specdec-workload "
            f"{setting.workload} --specdec-batch {setting.batch} --specdec-dtype {setting.dtype} "
            f"--specdec-max-new-tokens {setting.max_new_tokens} --specdec-temperature {setting.temperature:g} "
            f"--specdec-arm '{arm}'"
        )


class Advisor:
    """Chooses among arms that a ``Bench`` has prepared, of one workload and any batches.

    First each draft runs a few units with its largest K; what it would do with any other K follows from these traces,
    and what that would cost from the costs. Then the strategies whose predictions are close run beside plain, unit by
    unit; after each unit the slower half is left out (successive halving, Karnin et al. 2013, with the prediction as
    prior). Raises SpecdecError without a strategy, or if the bench could not build a batch.

    Example: ``Advisor(bench, arms, seconds=60).advise()``
    """

    def __init__(self, bench: Bench, arms: Sequence[Arm], seconds: float) -> None:
        self._arms = [arm for arm in arms if arm.draft is not None]
        self._bench, self._seconds, self._start = bench, seconds, time.perf_counter()
        self._stages: dict[Setting, Stage] = dict(bench.stages())
        missing = [arm for arm in self._arms if arm.setting.without_workload not in self._stages]
        if not self._arms or missing:
            what = f"{missing[0].id} could not be built" if missing else "no strategy was given"
            raise SpecdecError(f"{what}; name drafts that fit the target with --draft: ngram,suffix")
        self._settings = list(dict.fromkeys(arm.setting for arm in self._arms))
        self._units = {setting: bench.units(setting) for setting in self._settings}
        self._dice = random.Random(0)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def advise(self) -> list[Advice]:
        """Return the advice for each batch. The budget bounds what is begun: a run that has begun ends."""
        costs = {setting: found for settings, found, _ in costs_of(self._bench, "cached") for setting in settings}
        traces = self._traces()
        advices = []
        for place, setting in enumerate(self._settings):
            arms = [arm for arm in self._arms if arm.setting == setting]
            found = [self._predicted(arm, costs[setting.without_workload], traces) for arm in arms]
            share = (self._seconds - self.spent) / (len(self._settings) - place)
            advices.append(self._halved(found, self.spent + share))
        return advices

    def _traces(self) -> dict[str, dict[Text, StepTrace]]:
        """Traces of each draft, by text, with its largest K; of the largest batch, which gives most texts a second."""
        setting = max(self._settings, key=lambda one: one.batch)
        widest: dict[str, Arm] = {}
        for arm in self._arms:
            if arm.setting == setting and arm.controller == "fixed":
                name = _draft(arm)
                widest[name] = max(widest.get(name, arm), arm, key=lambda one: one.k or 0)
        found: dict[str, dict[Text, StepTrace]] = defaultdict(dict)
        for number, unit in enumerate(self._units[setting]):
            if number and self.spent > TRACING * self._seconds:
                break
            for name, arm in widest.items():
                runner = engine_runner(self._stages, arm)
                runner.forget()
                made = traces_of(runner.run(unit.requests))
                for request, trace in zip(unit.requests, made, strict=True):
                    if trace.steps:
                        found[name][request.prompt] = trace
        return found

    def _predicted(self, arm: Arm, costs: Costs, traces: Mapping[str, Mapping[Text, StepTrace]]) -> Candidate:
        known = traces.get(_draft(arm), {})
        if not known:
            raise SpecdecError(
                f"{arm.strategy} has no run with a fixed K to be predicted from; give --k a number besides goodput"
            )
        most = arm.k or 0
        choices = [most] if arm.controller == "fixed" else sorted({0, 1, 2, 4, 8, most})
        sizes = [
            PromptSizes(tuple(len(request.prompt) for request in unit.requests), arm.setting.max_new_tokens)
            for unit in self._units[arm.setting]
        ]
        found = []
        for k in choices:
            donors = {text: trace.cut(k) for text, trace in known.items()}
            found.append(predict(costs, strategy_of(arm), [PredictedUnit(one, (), donors) for one in sizes]).log_ratio)
        noise = max(LEAST_NOISE, sqrt(2) * costs.noise)
        # A controller that adapts does not have the best K from its first step on.
        return Candidate(arm, max(found), WRONG if len(found) == 1 else 1.5 * WRONG, noise, [])

    def _halved(self, every: list[Candidate], until: float) -> Advice:
        field = sorted(every, key=lambda one: -one.predicted)
        best = field[0]
        field = [one for one in field if one.predicted + 2 * one.wrong >= best.predicted - 2 * best.wrong][:FIELD]
        plain = Arm(best.arm.setting)
        for unit in self._rounds(best.arm.setting, until):
            self._measure(unit, plain, field)
            if len(field) == 1:
                break
            field = sorted(field, key=lambda one: -one.mean)[: max(1, (len(field) + 1) // 2)]
        chosen = max(every, key=lambda one: (one.mean, -len(one.measured)))
        half = 1.645 * chosen.deviation
        return Advice(
            chosen.arm,
            exp(chosen.mean),
            exp(chosen.mean - half),
            exp(chosen.mean + half),
            self._sure(chosen, every),
            sorted(every, key=lambda one: -one.mean),
            self.spent,
        )

    def _rounds(self, setting: Setting, until: float) -> Iterable[Unit]:
        """Units in turn, those without traces first, while there is time; one in any case."""
        units = [*reversed(self._units[setting])]
        turn = 0
        while not turn or (self.spent < until and turn < 2 * len(units)):
            yield units[turn % len(units)]
            turn += 1

    def _measure(self, unit: Unit, plain: Arm, field: Sequence[Candidate]) -> None:
        """Run plain and each candidate on a unit, in random order, and book their ratios."""
        ran = run_in_turn(self._stages, [plain, *[one.arm for one in field]], unit.requests, self._dice)
        seconds = {arm: outcome.seconds_per_token for arm, outcome in ran.items() if outcome.decoded}
        for one in field:
            if plain in seconds and one.arm in seconds:
                one.measured.append(log(seconds[plain] / seconds[one.arm]))

    def _sure(self, chosen: Candidate, every: Sequence[Candidate]) -> float:
        draws = []
        for _ in range(1000):
            logs = {one.arm: self._dice.gauss(one.mean, one.deviation) for one in every}
            draws.append(logs[chosen.arm] >= max(logs.values()) + log(CLOSE))
        return fmean(draws)


def _draft(arm: Arm) -> str:
    return f"{arm.draft}/{arm.policy}"
