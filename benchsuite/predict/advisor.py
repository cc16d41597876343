"""The advisor: the draft, controller and K that are fastest on a text, found in a budget of seconds."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, hypot, log
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.runners import Outcome
from benchsuite.measure.session import Bench, Stage
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.forecasts import costs_of
from benchsuite.predict.interleave import run_in_turn
from benchsuite.predict.ks import KS
from benchsuite.predict.prediction import (
    PRIOR,
    PredictedUnit,
    PromptSizes,
    Replay,
    Text,
    half_of_sum,
    pooled_variance,
    predict,
)
from benchsuite.predict.refined import RefinedCosts
from benchsuite.predict.traces import StepTrace, traces_of
from specdec.errors import SpecdecError
from specdec_plugins.forecast import fastest_k

CLOSE = 0.97
"""A choice of at least this share of the best one's speed is taken for right."""

SHARED, OWN = 0.05, 0.04
"""Standard deviations of what is wrong in the log of a prediction: for every K of a draft alike, and for one K alone.
That K of one draft differ less than drafts is assumed."""

OF_UNIT = 0.05
"""Standard deviation of what is wrong in the log of a prediction for one unit alone: 0.05 to 0.06 over eight prompts,
each of them measured twice (docs/results/20261125-prediction-notes.md)."""

TEXTS = 0.21
"""Standard deviation of the log speedup between prompts of one kind: seven arms of ours over six kinds
(``tests/measure/test_interval.py``). Counts as ``PRIOR`` degrees of freedom beside the prompts that were run."""

PAIRED = 0.5
"""The part of the noise between two runs that is left where they run in turn, step by step: 0.040 of 0.101 with one
row, 0.074 of 0.141 with four (docs/log.md, 2026-11-24)."""

PLAIN = "plain"
"""Stands for the draft of plain decoding, whose speedup is known."""

OFFSET = 1.0
"""Variance of what all runs of a round have in common, which says nothing of one run against another."""


@dataclass(frozen=True)
class Candidate:
    """One strategy at one batch, or plain decoding: the logs of its predicted speedup, by unit.

    ``own``: the standard deviation of what is wrong in its prediction alone, beside what is wrong for every K of its
    draft (``SHARED``). ``texts``, ``degrees``: the variance of the mean of ``predicted`` for the texts without a trace,
    and its degrees of freedom.
    """

    arm: Arm
    predicted: Sequence[float]
    own: float
    texts: float = 0.0
    degrees: float = 0.0


class UnitRun(NamedTuple):
    """Strategies that ran in turn on one unit: the log of each one's tokens per second."""

    unit: int
    rates: Mapping[Arm, float]


class Belief:
    """What predictions and measurements together say of the candidates of one batch: a normal distribution of the logs
    of their speedups, the mean over the units, in their order.

    The prediction is the prior. Its errors are independent between drafts and partly the same for every K of a draft,
    so that a run with one K also says something of the others. A run is set beside the prediction for its own unit, so
    that an unusual prompt is not taken for a slow strategy, and beside the other runs of its round alone, so that a
    slow moment of the machine is not either. ``noise``: the standard deviation of one run's log. Source: the posterior
    of a Gaussian process with independent noise, Rasmussen and Williams 2006, equations 2.25 and 2.26.

    Example: ``Belief(candidates, rounds, noise=0.04).order()[0]`` is the place of the best
    """

    def __init__(self, candidates: Sequence[Candidate], rounds: Sequence[UnitRun], noise: float) -> None:
        drafts = [_draft(one.arm) for one in candidates]
        prior = np.array([[SHARED**2 * (a == b != PLAIN) for b in drafts] for a in drafts])
        prior += np.diag([one.own**2 for one in candidates])
        self.means = np.array([fmean(one.predicted) for one in candidates])
        self.covariance = prior
        places = {one.arm: place for place, one in enumerate(candidates)}
        seen = [
            (places[arm], number, rate - candidates[places[arm]].predicted[unit])
            for number, (unit, rates) in enumerate(rounds)
            for arm, rate in rates.items()
        ]
        if seen:
            at = [place for place, _, _ in seen]
            same = np.array([[a == b for _, b, _ in seen] for _, a, _ in seen])
            whole = prior[np.ix_(at, at)] + OFFSET * same + noise**2 * np.eye(len(seen))
            # What the rounds have in common has no known level: the machine's speed.
            level = fmean(value for _, _, value in seen)
            gain = np.linalg.solve(whole, prior[at]).T
            self.means = self.means + gain @ np.array([value - level for _, _, value in seen])
            self.covariance = prior - gain @ prior[at]

    def order(self) -> list[int]:
        """The places, from the largest mean to the smallest."""
        return [int(place) for place in (-self.means).argsort(kind="stable")]

    def deviation(self, place: int) -> float:
        """The standard deviation of one candidate's log."""
        return float(np.sqrt(max(0.0, self.covariance[place, place])))

    def chance(self, place: int, share: float) -> float:
        """The probability that a candidate has at least ``share`` of the best one's speed, from 2,000 draws."""
        return float((self._drawn[:, place] >= self._drawn.max(axis=1) + log(share)).mean())

    @cached_property
    def _drawn(self) -> npt.NDArray[np.float64]:
        return np.random.default_rng(0).multivariate_normal(self.means, self.covariance, size=2000)


class TriedArm(NamedTuple):
    """A strategy: the logs of its predicted and its expected speedup, and how many of its runs were measured."""

    arm: Arm
    predicted: float
    expected: float
    runs: int


@dataclass(frozen=True)
class Advice:
    """What is fastest for one batch.

    ``speedup`` over plain is expected, between ``low`` and ``high`` with 90 %, over all texts, those included for which
    the budget was too short; ``sure``: the probability that it is at least ``CLOSE`` times as fast as plain decoding
    and the best of those ``tried``, which are given with the fastest first; ``seconds``: spent so far, probes included;
    ``context``: mean tokens of context while decoding.
    """

    best: Arm
    speedup: float
    low: float
    high: float
    sure: float
    tried: Sequence[TriedArm]
    seconds: float
    context: int

    @property
    def command(self) -> str:
        """The command that measures the advice."""
        setting, arm = self.best.setting, self.best.strategy
        sampling = setting.sampling
        return (
            f"pytest --pyargs benchsuite.test_speculation --specdec-target {setting.target} --specdec-workload "
            f"{setting.workload} --specdec-batch {setting.batch} --specdec-dtype {setting.dtype} "
            f"--specdec-max-new-tokens {sampling.max_new_tokens} --specdec-temperature {sampling.temperature:g} "
            f"--specdec-arm '{arm}'"
        )


class Advisor:
    """Chooses among arms that a ``Bench`` has prepared, of one workload and any batches.

    Each draft runs the units of the largest batch with its largest K, all drafts in turn, until every text has a trace
    or the budget is spent. What a draft would do with any other K on these texts follows from the traces, and what that
    would cost, in any batch, from the costs, which the runs correct. Nothing is run with a second K: in the recorded
    grids that found no better one than the predictions had, and texts without a trace cost more
    (docs/results/20261128-advisor-traces.md). Raises SpecdecError without a strategy, or if the bench could not build a
    batch.

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
        self._rounds: dict[Setting, list[UnitRun]] = defaultdict(list)
        self._costs: dict[Setting, RefinedCosts] = {}

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def advise(self) -> list[Advice]:
        """Return the advice for each batch. The budget bounds what is begun: a run that has begun ends."""
        found = costs_of(self._bench, "cached", self._arms)
        known = {setting: one for settings, one, _ in found for setting in settings}
        drafting: dict[str, list[float]] = defaultdict(list)
        self._costs = {
            setting: RefinedCosts(known[setting.without_workload], setting.batch, drafting)
            for setting in self._settings
        }
        traces = self._traces()
        return [self._advice(setting, traces) for setting in self._settings]

    def _traces(self) -> dict[str, dict[Text, StepTrace]]:
        """Traces of each draft, by text, with its largest K; of the largest batch, which gives most texts a second."""
        setting = max(self._settings, key=lambda one: one.batch)
        widest: dict[str, Arm] = {}
        for arm in self._arms:
            if arm.setting == setting and arm.controller == "fixed":
                name = _draft(arm)
                widest[name] = max(widest.get(name, arm), arm, key=lambda one: one.k or 0)
        found: dict[str, dict[Text, StepTrace]] = defaultdict(dict)
        if not widest:
            return found
        lasted = 0.0
        for number, unit in enumerate(self._units[setting]):
            if number and self.spent + lasted > self._seconds:
                break
            began = self.spent
            ran = self._run(setting, number, [*widest.values()])
            lasted = self.spent - began
            for name, arm in widest.items():
                for request, trace in zip(unit.requests, traces_of(ran[arm]), strict=True):
                    if trace.steps:
                        found[name][request.prompt] = trace
        return found

    def _candidates(self, setting: Setting, traces: Mapping[str, Mapping[Text, StepTrace]]) -> list[Candidate]:
        """Plain decoding and all arms of a batch, predicted at the costs as they are known so far."""
        costs, plain = self._costs[setting].costs, Candidate(Arm(setting), [0.0] * len(self._units[setting]), 0.0)
        return [plain, *[self._predicted(arm, costs, traces) for arm in self._arms if arm.setting == setting]]

    def _predicted(self, arm: Arm, costs: Costs, traces: Mapping[str, Mapping[Text, StepTrace]]) -> Candidate:
        """An arm, with each unit predicted from the traces of its own texts or, where one of them has none, of all."""
        known = traces.get(_draft(arm), {})
        if not known:
            raise SpecdecError(
                f"{arm.strategy} has no run with a fixed K to be predicted from; give --k a number besides goodput"
            )
        most, fixed = arm.k or 0, arm.controller == "fixed"
        replay = Replay(costs, strategy_of(arm))
        found = dict[int, list[float]]()
        for k in [most] if fixed else [*(k for k in KS if k < most), most]:
            donors = {text: trace.with_k(k) for text, trace in known.items()}
            by_unit = []
            for unit in self._units[arm.setting]:
                texts = [request.prompt for request in unit.requests]
                sizes = PromptSizes(tuple(map(len, texts)), arm.setting.sampling.max_new_tokens)
                if donors.keys() >= set(texts):
                    by_unit.append(replay.gains([donors[text] for text in texts], sizes)[0])
                else:
                    target = PredictedUnit(sizes, (), donors)
                    by_unit.append(predict(costs, strategy_of(arm), [target]).log_ratio)
            found[k] = by_unit
        best = fastest_k({k: fmean(gains) for k, gains in found.items()})
        # A controller that adapts does not have the best K from its first step on.
        own = OWN if fixed else 2 * OWN
        return Candidate(arm, found[best], own, *self._unseen(arm, replay, known, best))

    def _unseen(self, arm: Arm, replay: Replay, known: Mapping[Text, StepTrace], k: int) -> tuple[float, float]:
        """The variance of an arm's mean for the texts without a trace, in whose place all others stand, and its degrees
        of freedom."""
        units, batch = self._units[arm.setting], arm.setting.batch
        weights: dict[Text, float] = defaultdict(float)
        for unit in units:
            texts = [request.prompt for request in unit.requests]
            if not known.keys() >= set(texts):
                for text in texts:
                    weights[text] += 1 / len(texts) / len(units)
                for text in known:
                    weights[text] -= 1 / len(known) / len(units)
        tokens = arm.setting.sampling.max_new_tokens
        alone = [
            replay.gains([trace.with_k(k)] * batch, PromptSizes((len(text),) * batch, tokens))[0]
            for text, trace in known.items()
        ]
        seen, degrees = pooled_variance([alone]) or 0.0, len(alone) - 1
        between = (seen * degrees + TEXTS**2 * PRIOR) / (degrees + PRIOR)
        return between * sum(share**2 for share in weights.values()), degrees + PRIOR

    def _advice(self, setting: Setting, traces: Mapping[str, Mapping[Text, StepTrace]]) -> Advice:
        """The advice for a batch: a strategy, also where plain decoding is the fastest."""
        units, noise = self._units[setting], hypot(OF_UNIT, PAIRED * self._costs[setting].probed.noise)
        every = self._candidates(setting, traces)
        belief = Belief(every, self._rounds[setting], noise)
        order = [place for place in belief.order() if not every[place].arm.plain]
        mean, best = float(belief.means[order[0]]), every[order[0]]
        half = half_of_sum(best.texts, best.degrees, belief.deviation(order[0]) ** 2)
        return Advice(
            best.arm,
            exp(mean),
            exp(mean - half),
            exp(mean + half),
            belief.chance(order[0], CLOSE),
            [
                TriedArm(arm, fmean(every[place].predicted), float(belief.means[place]), self._runs(setting, arm))
                for place in order
                for arm in [every[place].arm]
            ],
            self.spent,
            round(fmean(len(request.prompt) for unit in units for request in unit.requests))
            + setting.sampling.max_new_tokens // 2,
        )

    def _runs(self, setting: Setting, arm: Arm) -> int:
        return sum(arm in one.rates for one in self._rounds[setting])

    def _run(self, setting: Setting, unit: int, arms: Sequence[Arm]) -> dict[Arm, Outcome]:
        """Run some arms on a unit in turn, and keep their rates."""
        ran = run_in_turn(self._stages, arms, self._units[setting][unit].requests, self._dice)
        self._costs[setting].seen(ran)
        rates = {arm: -log(outcome.seconds_per_token) for arm, outcome in ran.items() if outcome.decoded}
        self._rounds[setting].append(UnitRun(unit, rates))
        return ran


def _draft(arm: Arm) -> str:
    return PLAIN if arm.plain else f"{arm.draft}/{arm.policy}"
