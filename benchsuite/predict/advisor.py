"""The advisor: the draft, controller and K that are fastest on a text, found in a budget of seconds."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from benchsuite.measure.matrix import Arm, Setting
from benchsuite.measure.runners import Outcome
from benchsuite.measure.session import Bench, Stage
from benchsuite.measure.units import Unit
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.forecasts import costs_of
from benchsuite.predict.prediction import PredictedUnit, PromptSizes, Text, predict
from benchsuite.predict.traces import StepTrace, traces_of
from benchsuite.predict.turns import run_in_turn
from specdec.errors import SpecdecError

TRACING = 0.4
"""Largest share of the budget that goes into traces, of which every K is predicted."""

FIELD = 8
"""Most strategies of a batch that are measured beside each other."""

CLOSE = 0.97
"""A choice of at least this share of the best one's speed is taken for right."""

SURE = 0.95
"""Probability of having a strategy that is close to the best, with which the advisor stops before its budget."""

SHARED, OWN = 0.07, 0.04
"""Standard deviations of what is wrong in the log of a prediction: for every K of a draft alike, and for one K alone.
Together they are ``WRONG``; that K of one draft differ less than drafts is assumed."""

LEAST_NOISE = 0.02
"""Least standard deviation that one paired run's logarithm is taken to have."""


@dataclass
class Candidate:
    """One strategy at one batch: the logs of its predicted speedup and of those measured, unit by unit.

    ``own``: the standard deviation of what is wrong in its prediction alone, beside what is wrong for every K of its
    draft (``SHARED``); ``noise``: that of one measured run.
    """

    arm: Arm
    predicted: float
    own: float
    noise: float
    measured: list[float]


class Belief:
    """What predictions and measurements together say of the candidates of one batch: a normal distribution of the logs
    of their speedups, in their order.

    The prediction is the prior. Its errors are independent between drafts and partly the same for every K of a draft,
    so that a run with one K also says something of the others. Source: the posterior of a Gaussian process with
    independent noise, Rasmussen and Williams 2006, equations 2.25 and 2.26.

    Example: ``Belief(candidates).best()``
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        drafts = [_draft(one.arm) for one in candidates]
        prior = np.array([[SHARED**2 * (a == b) for b in drafts] for a in drafts], dtype=float)
        prior += np.diag([one.own**2 for one in candidates])
        self.means = np.array([one.predicted for one in candidates], dtype=float)
        self.covariance = prior
        seen = [place for place, one in enumerate(candidates) if one.measured]
        if seen:
            noise = np.diag([candidates[place].noise ** 2 / len(candidates[place].measured) for place in seen])
            gain = np.linalg.solve(prior[np.ix_(seen, seen)] + noise, prior[seen]).T
            found = np.array([fmean(candidates[place].measured) for place in seen])
            self.means = self.means + gain @ (found - self.means[seen])
            self.covariance = prior - gain @ prior[seen]

    def best(self) -> int:
        """The place of the largest mean."""
        return int(self.means.argmax())

    def order(self) -> list[int]:
        """The places, from the largest mean to the smallest."""
        return [int(place) for place in (-self.means).argsort(kind="stable")]

    def deviation(self, place: int) -> float:
        """The standard deviation of one candidate's log."""
        return float(np.sqrt(max(0.0, self.covariance[place, place])))

    def chance(self, place: int, share: float, seed: int = 0) -> float:
        """The probability that a candidate has at least ``share`` of the best one's speed, from 2,000 draws."""
        drawn = np.random.default_rng(seed).multivariate_normal(self.means, self.covariance, size=2000)
        return float((drawn[:, place] >= drawn.max(axis=1) + log(share)).mean())


@dataclass(frozen=True)
class Advice:
    """What is fastest for one batch.

    ``speedup`` over plain is expected, between ``low`` and ``high`` with 90 %; ``sure``: the probability that it is at
    least ``CLOSE`` times as fast as the best of those ``tried``, which are given with their expected speedups, the
    fastest first; ``seconds``: spent so far, probes included; ``context``: mean tokens of context while decoding.
    """

    best: Arm
    speedup: float
    low: float
    high: float
    sure: float
    tried: Sequence[tuple[Candidate, float]]
    seconds: float
    context: int

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
    and what that would cost from the costs. Then the strategies that may be the fastest run beside plain, unit by unit,
    and after each unit half as many (successive halving, Karnin et al. 2013, with the prediction as prior), until the
    first is close to the best with probability ``SURE``. Raises SpecdecError without a strategy, or if the bench could
    not build a batch.

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
        self._measured: dict[Arm, list[float]] = defaultdict(list)
        self._lasted: dict[int, list[float]] = defaultdict(list)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def advise(self) -> list[Advice]:
        """Return the advice for each batch. The budget bounds what is begun: a run that has begun ends."""
        found = costs_of(self._bench, "cached", self._arms)
        costs = {setting: one for settings, one, _ in found for setting in settings}
        traces = self._traces()
        advices = []
        for place, setting in enumerate(self._settings):
            arms = [arm for arm in self._arms if arm.setting == setting]
            candidates = [self._predicted(arm, costs[setting.without_workload], traces) for arm in arms]
            share = (self._seconds - self.spent) / (len(self._settings) - place)
            advices.append(self._halved(candidates, self.spent + share))
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
        lasted = 0.0
        for number, unit in enumerate(self._units[setting]):
            if number and self.spent + lasted > TRACING * self._seconds:
                break
            began = self.spent
            ran = self._run(unit, Arm(setting), [*widest.values()])
            lasted = self.spent - began
            for name, arm in widest.items():
                for request, trace in zip(unit.requests, traces_of(ran[arm]), strict=True):
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
        own = OWN if len(found) == 1 else 2 * OWN
        return Candidate(arm, max(found), own, noise, self._measured[arm])

    def _halved(self, every: list[Candidate], until: float) -> Advice:
        """Measure the candidates that may be the best, and fewer of them in each round, until it is clear which is, or
        the time is over."""
        belief, setting = Belief(every), every[0].arm.setting
        left = min(FIELD, len(every), max(2, self._affordable(setting, until)))
        for unit in self._rounds(setting, until):
            if belief.chance(belief.best(), CLOSE) >= SURE:
                break
            field = [every[place] for place in belief.order()[:left]]
            self._run(unit, Arm(setting), [one.arm for one in field])
            belief = Belief(every)
            left = max(2, (left + 1) // 2)
        best = belief.best()
        mean, half = float(belief.means[best]), 1.645 * belief.deviation(best)
        return Advice(
            every[best].arm,
            exp(mean),
            exp(mean - half),
            exp(mean + half),
            belief.chance(best, CLOSE),
            [(every[place], exp(belief.means[place])) for place in belief.order()],
            self.spent,
            round(fmean(len(request.prompt) for unit in self._units[setting] for request in unit.requests))
            + setting.max_new_tokens // 2,
        )

    def _affordable(self, setting: Setting, until: float) -> int:
        """How many candidates fit into the first of two rounds, the second of half as many, with plain in each."""
        lasted = self._lasted[setting.batch] or self._lasted[max(self._lasted)]
        return int(((until - self.spent) / fmean(lasted) - 2) / 1.5) if lasted else FIELD

    def _rounds(self, setting: Setting, until: float) -> Iterator[Unit]:
        """Units in turn, those without traces first, while there is time for another."""
        units = [*reversed(self._units[setting])]
        began = self.spent
        for turn in range(2 * len(units)):
            if turn and self.spent + (self.spent - began) / turn / 2 > until:
                break
            yield units[turn % len(units)]

    def _run(self, unit: Unit, plain: Arm, arms: Sequence[Arm]) -> dict[Arm, Outcome]:
        """Run plain and some arms on a unit, in random order, and keep their ratios and how long a run took."""
        began = self.spent
        ran = run_in_turn(self._stages, [plain, *arms], unit.requests, self._dice)
        self._lasted[plain.setting.batch].append((self.spent - began) / len(ran))
        seconds = {arm: outcome.seconds_per_token for arm, outcome in ran.items() if outcome.decoded}
        for arm in arms:
            if plain in seconds and arm in seconds:
                self._measured[arm].append(log(seconds[plain] / seconds[arm]))
        return ran


def _draft(arm: Arm) -> str:
    return f"{arm.draft}/{arm.policy}"
