"""The advisor in a world whose costs and texts are known: what it runs, when it stops, and what it then says."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import exp, log
from statistics import fmean, variance
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.predict.advisor import Advice, Advisor, TriedArm
from benchsuite.predict.breakeven import MEASURED, checked_map, oracle_arms
from benchsuite.predict.commands import advice_json, map_of
from benchsuite.predict.costs import Costs, DraftCosts, strategy_of
from benchsuite.predict.prediction import PredictedUnit, PromptSizes, Replay, constant_speed, half_of_sum, predict
from benchsuite.predict.traces import Seen, StepTrace
from benchsuite.tests.rig import SETTING
from specdec import Request, SpecdecError
from specdec.calibration import Point
from specdec.devices import Stopwatch
from specdec.stats import Marks, RowStep, Stats, Step

TOKENS, LENGTH, WIDEST = 25, 64, 8
BEGAN = 4096.0
"""What the clock says when an advisor begins."""
ONE = SETTING.replaced(max_new_tokens=TOKENS)
TWO = ONE.replaced(batch=2)


def known_costs(strategies: Sequence[str]) -> Costs:
    """A window of W slots takes 1 + (W - 1) / 20 seconds, a proposal a hundredth; two rows take half as long again."""
    forward = {
        Point(rows, LENGTH, width): (1 + 0.05 * (width - 1)) * (1 if rows == 1 else 1.5)
        for rows in (1, 2)
        for width in (1, 2, 17)
    }
    drafts = DraftCosts({1: {LENGTH: {-1: 0.0, 0: 0.0, 16: 0.16}}}, {1: {0: 0.0, 1: 0.0}}, {LENGTH: 0.0})
    plain = {point: seconds for point, seconds in forward.items() if point.width == 1}
    return Costs({}, forward, {LENGTH: 9.0}, plain, dict.fromkeys(strategies, drafts), 0.0, made=0.0)


def drawn_text(dice: random.Random, rate: float) -> StepTrace:
    """A text whose proposals are right with one chance."""
    left, steps = TOKENS, list[Seen]()
    while left:
        most = min(WIDEST, left - 1)
        kept = next((depth for depth in range(most) if dice.random() >= rate), most)
        steps.append(Seen(WIDEST, most, kept))
        left -= kept + 1
    return StepTrace(tuple(steps))


def outcome_of(seconds: float, texts: Sequence[StepTrace] | None, rows: int, known: Costs, strategy: str) -> Outcome:
    """A run that took so long; its steps have the times that the costs say."""
    marks, steps = [0.0], list[Step]()
    lists = [[*text.steps] for text in texts] if texts else [[Seen(0, 0, 0)] * TOKENS] * rows
    for at in range(max(map(len, lists))):
        live = [one[at] for one in lists if at < len(one)]
        proposed = max(seen.proposed for seen in live)
        target = known.verify(proposed + 1, len(live), LENGTH) if texts else known.plain_step(len(live), LENGTH)
        draft = known.strategies[strategy].draft(1, LENGTH, proposed) if texts else 0.0
        places = Marks(*range(len(marks) - 1, len(marks) + 9))
        marks += [marks[-1] + part for part in accumulate([0.0, 0.0, draft, target, 0.0, 0.0, 0.0, 0.0, 0.0])]
        each = tuple(RowStep(seen.proposed, seen.proposed, seen.accepted, seen.accepted + 1) for seen in live)
        steps.append(replace(Step.of(each, proposed + 1, places), k=live[0].asked and proposed))
    stats = Stats(Stopwatch.recorded(marks), steps=steps, chosen=[lists[0][0].asked] * len(steps))
    tokens = [tuple(range(TOKENS))] * rows
    return Outcome(tokens, seconds, seconds, TOKENS * rows, [], None, LENGTH, stats)


class AdvisorsWorld:
    """Texts of drafts with a chance each, and a clock that runs take their seconds of, all at once.

    ``calls``: setting, first request and arms of each round, with the seconds since the start when it began.
    """

    def __init__(self, patch: Callable[[str, object], None], rates: Mapping[str, float], units: int = 4) -> None:
        dice = random.Random(5)
        self.texts = {draft: [drawn_text(dice, rate) for _ in range(2 * units)] for draft, rate in rates.items()}
        self.settings, self.units, self.now = [ONE.without_workload], units, BEGAN
        self.texts_of_units: list[tuple[int, ...]] = []
        self.calls: list[tuple[Setting, int, list[Arm], float]] = []
        self.better: dict[Arm, float] = {}
        names = [strategy_of(Arm(ONE, draft, controller=one)) for draft in rates for one in ("fixed", "goodput")]
        self.known = known_costs([*names, *(f"oracle({rate})/match/fixed" for rate, _ in MEASURED)])
        self.true: Costs | None = None
        for module in ("advisor", "breakeven"):
            patch(f"benchsuite.predict.{module}.run_in_turn", self.run)
            patch(f"benchsuite.predict.{module}.costs_of", self.costs_of)
        patch("benchsuite.predict.advisor.time.perf_counter", lambda: self.now)

    def costs_of(self, bench: object, given: str, arms: Sequence[Arm] | None = None) -> list[Any]:
        """What is known of the costs, which nobody measures anew for an advice."""
        assert given == "cached"
        return [(self.settings, self.known, "")]

    def stages(self) -> list[tuple[Setting, None]]:
        """The settings that could be built."""
        return [(one, None) for one in self.settings]

    def units_of(self, setting: Setting) -> list[Unit]:
        """Each text once, in batches, or ``texts_of_units``."""
        size = setting.batch
        texts = self.texts_of_units or [tuple(range(at * size, (at + 1) * size)) for at in range(self.units)]
        return [
            Unit(tuple(Request(n, (n,) * LENGTH, setting.params(())) for n in some), number)
            for number, some in enumerate(texts)
        ]

    @property
    def bench(self) -> Any:
        """A bench of it."""
        return SimpleNamespace(stages=self.stages, units=self.units_of)

    @property
    def costs(self) -> Costs:
        """What runs take: what is known of it, unless it is ``true`` otherwise."""
        return self.true or self.known

    def replayed(self, arm: Arm, requests: Sequence[Request]) -> tuple[float, list[StepTrace] | None]:
        """Seconds of a run, and its texts."""
        sizes = PromptSizes((LENGTH,) * len(requests), TOKENS)
        if arm.plain:
            return Replay(self.costs, next(iter(self.costs.strategies))).plain(sizes), None
        traces = [self.texts[str(arm.draft)][one.id].with_k(arm.k or 0) for one in requests]
        return Replay(self.costs, strategy_of(arm)).decoding(traces, sizes) / self.better.get(arm, 1.0), traces

    def run(self, stages: object, arms: Sequence[Arm], requests: Sequence[Request], dice: object) -> dict[Arm, Outcome]:
        """What stands in for engines."""
        self.calls.append((arms[0].setting, requests[0].id, [*arms], self.now - BEGAN))
        found = {}
        for arm in arms:
            seconds, traces = self.replayed(arm, requests)
            found[arm] = outcome_of(seconds, traces, len(requests), self.costs, strategy_of(arm))
            self.now += seconds
        return found


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Sets attributes by their paths for one test."""
    return monkeypatch.setattr


def fixed(setting: Setting, drafts: str, ks: Sequence[int]) -> list[Arm]:
    """Every draft with every K."""
    return [Arm(setting, draft, k=k) for draft in drafts for k in ks]


Patch = Callable[[str, object], None]


@pytest.mark.slow
def test_texts_are_traced_with_the_largest_k_of_each_draft_and_the_rest_is_predicted(patch: Patch) -> None:
    """Draft a is right with a chance of 0.9, b with 0.3: it is a with the largest K, as every text's replay says."""
    world = AdvisorsWorld(patch, {"a": 0.9, "b": 0.3})
    arms = [Arm(ONE), *fixed(ONE, "ab", (2, WIDEST, 4)), Arm(ONE, "a", controller="goodput", k=WIDEST)]
    [advice] = Advisor(world.bench, arms, 1e6).advise()
    wide = [Arm(ONE, "a", k=WIDEST), Arm(ONE, "b", k=WIDEST)]
    assert [(unit, some) for _, unit, some, _ in world.calls] == [(unit, wide) for unit in range(4)], "and no more"
    gains = {
        arm: fmean(
            log(world.replayed(Arm(ONE), unit.requests)[0] / world.replayed(arm, unit.requests)[0])
            for unit in world.units_of(ONE)
        )
        for arm in arms[1:7]
    }
    told = {one.arm: one for one in advice.tried}
    assert {*told} == {*arms[1:]}
    for arm, gain in gains.items():
        assert told[arm].predicted == pytest.approx(gain, abs=0.02)
    adaptive = told[arms[-1]]
    assert adaptive.predicted == pytest.approx(max(gain for arm, gain in gains.items() if arm.draft == "a"), abs=0.02)
    best = max(gains, key=lambda arm: gains[arm])
    assert advice.best.draft == best.draft == "a"
    assert advice.best == advice.tried[0].arm
    assert [one.expected for one in advice.tried] == sorted((one.expected for one in advice.tried), reverse=True)
    assert advice.speedup == pytest.approx(exp(advice.tried[0].expected))
    assert advice.low < advice.speedup < advice.high
    assert advice.low * advice.high == pytest.approx(advice.speedup**2)
    assert log(advice.low) < gains[best] < log(advice.high)
    for one in advice.tried:
        assert one.runs == sum(one.arm in some for _, _, some, _ in world.calls)
    assert advice.seconds == world.now - BEGAN
    assert advice.context == LENGTH + TOKENS // 2
    assert 0.0 <= advice.sure <= 1.0


def test_a_strategy_is_named_also_where_plain_decoding_is_the_fastest(patch: Patch) -> None:
    world = AdvisorsWorld(patch, {"a": 0.1, "b": 0.1})
    [advice] = Advisor(world.bench, fixed(ONE, "ab", (1, 2)), 1e6).advise()
    assert advice.best.draft in ("a", "b")
    assert advice.speedup == pytest.approx(1.0, abs=0.1)
    assert all(not one.arm.plain for one in advice.tried)


def test_what_runs_say_corrects_a_prediction_that_was_wrong(patch: Patch) -> None:
    """Draft b decodes a fifth faster than its texts let one expect, which only runs can show."""
    world = AdvisorsWorld(patch, {"a": 0.72, "b": 0.7})
    world.texts["b"] = world.texts["a"]
    world.better = {Arm(ONE, "b", k=WIDEST): 1.2}
    [advice] = Advisor(world.bench, fixed(ONE, "ab", (WIDEST,)), 1e6).advise()
    told = {one.arm.draft: one for one in advice.tried}
    assert advice.best.draft == "b"
    assert told["b"].predicted == pytest.approx(told["a"].predicted, abs=1e-6)
    assert told["b"].expected - told["a"].expected > 0.05


def test_the_whole_budget_goes_into_texts_and_a_text_is_traced_once(patch: Patch) -> None:
    """Two drafts that are alike, of which no runs would say soon which is better: a tournament between their K took a
    half of the time of recorded grids, found nothing that the predictions had not, and left half of the texts out."""
    world = AdvisorsWorld(patch, {"a": 0.7, "b": 0.7})
    world.texts["b"], arms = world.texts["a"], fixed(ONE, "ab", (2, WIDEST))
    every = sum(world.replayed(arm, unit.requests)[0] for unit in world.units_of(ONE) for arm in arms[1::2])
    for budget in (every + 0.01, 1e6):
        world.calls.clear()
        world.now = BEGAN
        [advice] = Advisor(world.bench, arms, budget).advise()
        assert [(unit, some) for _, unit, some, _ in world.calls] == [(unit, arms[1::2]) for unit in range(4)]
        assert {one.arm: one.runs for one in advice.tried} == {arm: 4 * (arm.k == WIDEST) for arm in arms}


@pytest.mark.parametrize("budget", [0.0, 1e-3])
def test_one_unit_is_traced_at_least(budget: float, patch: Patch) -> None:
    world = AdvisorsWorld(patch, {"a": 0.9, "b": 0.8})
    [advice] = Advisor(world.bench, fixed(ONE, "ab", (WIDEST,)), budget).advise()
    assert len(world.calls) == 1
    assert {one.runs for one in advice.tried} == {1}


def test_a_unit_is_traced_while_another_one_like_the_last_fits(patch: Patch) -> None:
    """Budgets around that of the second unit: with it, one more is traced, and its interval is narrower."""
    widths = {}
    for draw, more in ((0, -0.01), (1, 0.01)):
        world = AdvisorsWorld(patch, {"a": 0.9, "b": 0.8})
        arms = fixed(ONE, "ab", (WIDEST,))
        first = sum(world.replayed(arm, world.units_of(ONE)[0].requests)[0] for arm in arms)
        budget = 2 * first + more
        [advice] = Advisor(world.bench, arms, budget).advise()
        assert [unit for _, unit, some, _ in world.calls if some == arms][:2] == [0, 1][: 1 + draw]
        widths[draw] = log(advice.high / advice.low)
        assert all(began < budget for _, _, _, began in world.calls)
    assert widths[1] < widths[0]


@pytest.mark.parametrize("setting", [ONE, TWO], ids=["one-row", "two-rows"])
def test_texts_that_were_not_run_widen_the_interval_by_what_texts_of_one_kind_differ(
    setting: Setting, patch: Patch
) -> None:
    """By hand, after one of four units: each of the others' texts weighs its part of a fourth, and those that stand in
    for them as much together. The speedups of texts differ by 21 % with four degrees of freedom, beside the spread of
    those that were run. What is wrong in a prediction is 5 % for every K of a draft and 4 % for one; a round tells of
    it beside what all of a round have in common, 100 %, and a run's own noise: half of the machine's, and 5 %."""
    world = AdvisorsWorld(patch, {"a": 0.8})
    world.settings, world.known = [setting.without_workload], replace(world.known, noise=0.2)
    arm, rows = Arm(setting, "a", k=WIDEST), setting.batch
    [advice] = Advisor(world.bench, [arm], 0.0).advise()
    assert len(world.calls) == 1
    own = 0.05**2 + 0.04**2
    noise = 0.05**2 + (0.5 * 0.2) ** 2
    deviation = own - own**2 / (own + 1.0**2 + noise)
    replay, sizes = Replay(world.known, strategy_of(arm)), PromptSizes((LENGTH,) * rows, TOKENS)
    alone = [replay.gains([text] * rows, sizes)[0] for text in world.texts["a"][:rows]]
    between = ((rows - 1) * (variance(alone) if rows > 1 else 0.0) + 0.21**2 * 4) / (rows - 1 + 4)
    squares = 3 * rows * (1 / 4 / rows) ** 2 + rows * (3 / 4 / rows) ** 2
    half = half_of_sum(between * squares, rows - 1 + 4, deviation)
    # What the round has shown of the draft's cost is in the prediction, not in the texts' spread.
    assert log(advice.high / advice.low) / 2 == pytest.approx(half, rel=1e-3 if rows > 1 else 1e-9)
    assert log(advice.speedup) == pytest.approx(log(advice.high * advice.low) / 2)


def test_a_controller_that_adapts_is_believed_within_twice_the_error_of_a_fixed_k(patch: Patch) -> None:
    """Predicted as well as the best fixed K, its own error is 8 % and not 4."""
    world = AdvisorsWorld(patch, {"a": 0.8})
    adaptive = Arm(ONE, "a", controller="goodput", k=WIDEST)
    fixed_arm = Arm(ONE, "a", k=WIDEST)
    world.texts["a"] = [StepTrace((Seen(WIDEST, WIDEST, WIDEST),) * 3)] * 8
    world.better = {fixed_arm: 0.6}
    [advice] = Advisor(world.bench, [adaptive, fixed_arm], 0.0).advise()
    assert advice.best == adaptive, "the fixed K was measured slower than its replay, for which the draft is blamed"
    told = 0.05**4 / (0.05**2 + 0.04**2 + 1.0**2 + 0.05**2)  # what the run with a fixed K says of the draft
    half = half_of_sum(0.21**2 * 0.75, 4, 0.05**2 + 0.08**2 - told)
    assert log(advice.high / advice.low) / 2 == pytest.approx(half)


@pytest.mark.parametrize(("more", "traced"), [(-0.01, 2), (0.01, 3)])
def test_a_third_unit_is_traced_if_it_fits_when_it_lasts_as_long_as_the_second(
    more: float, traced: int, patch: Patch
) -> None:
    world, arms = AdvisorsWorld(patch, {"a": 0.9, "b": 0.8}), fixed(ONE, "ab", (WIDEST,))
    one, two = (sum(world.replayed(arm, unit.requests)[0] for arm in arms) for unit in world.units_of(ONE)[:2])
    Advisor(world.bench, arms, one + two + two + more).advise()
    units = [unit for _, unit, _, _ in world.calls[:3]]
    assert units[:2] == [0, 1]
    assert (units[2:] == [2]) is (traced == 3)


def test_the_largest_batch_is_traced_and_each_batch_is_chosen_for(patch: Patch) -> None:
    world = AdvisorsWorld(patch, {"a": 0.8, "b": 0.75})
    world.settings = [ONE.without_workload, TWO.without_workload]
    arms = [*fixed(ONE, "ab", (2, WIDEST)), *fixed(TWO, "ab", (2, WIDEST))]
    found = Advisor(world.bench, arms, 1e6).advise()
    assert [one.best.setting for one in found] == [ONE, TWO]
    assert [one[0] for one in world.calls] == [TWO] * 4
    assert {one.arm.setting for one in found[0].tried} == {ONE}
    assert {len(one.tried) for one in found} == {4}
    assert len(world.calls) == 4, "the other batch follows from these texts"
    assert found[0].seconds <= found[1].seconds


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        (
            [Arm(ONE, "b", k=2), Arm(ONE, "a", controller="goodput", k=8)],
            "a/match/goodput/8 has no run with a fixed K to be predicted from; give --k a number besides goodput",
        ),
        ([], "no strategy was given; name drafts that fit the target with --draft"),
        ([Arm(ONE)], "no strategy was given"),
        ([Arm(TWO, "a", k=2)], f"{Arm(TWO, 'a', k=2).id} could not be built; name drafts"),
        (
            [Arm(ONE, "a", controller="goodput", k=8)],
            "a/match/goodput/8 has no run with a fixed K to be predicted from",
        ),
    ],
)
def test_nothing_to_choose_from_is_refused(arms: list[Arm], said: str, patch: Patch) -> None:
    world = AdvisorsWorld(patch, {"a": 0.8, "b": 0.8})
    with pytest.raises(SpecdecError) as refused:
        Advisor(world.bench, arms, 1e6).advise()
    assert said in str(refused.value)


def test_an_advice_in_json_has_speedups_and_the_command_that_measures_it() -> None:
    arm = Arm(ONE.replaced(batch=4, temperature=0.5), "ngram", k=2)
    advice = Advice(arm, 1.5, 1.4, 1.6, 0.9, [TriedArm(arm, log(1.25), log(1.5), 3)], 7.0, 99)
    [said] = advice_json([advice])
    words = shlex.split(said.pop("command"))
    assert words[:3] == ["pytest", "--pyargs", "benchsuite.test_speculation"]
    assert dict(zip(words[3::2], words[4::2], strict=True)) == {
        **{"--specdec-target": "tiny", "--specdec-workload": "chat", "--specdec-batch": "4"},
        **{"--specdec-dtype": "float32", "--specdec-max-new-tokens": str(TOKENS), "--specdec-temperature": "0.5"},
        "--specdec-arm": "ngram/match/fixed/2",
    }
    [tried] = said.pop("tried")
    assert tried == {
        **{"strategy": "ngram/match/fixed/2", "runs": 3},
        **{"predicted": pytest.approx(1.25), "expected": pytest.approx(1.5)},
    }
    assert said == {
        **{"target": "tiny", "workload": "chat", "batch": 4, "context": 99, "strategy": "ngram/match/fixed/2"},
        **{"speedup": 1.5, "low": 1.4, "high": 1.6, "sure": 0.9, "seconds": 7.0},
    }


def test_a_map_of_several_texts_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(SpecdecError, match="--workload names 2 kinds of text, chat, reasoning; expected one"):
        map_of([ONE, ONE.replaced(workload="reasoning"), TWO], None, 0.0)


def test_a_cell_of_the_map_is_checked_at_the_acceptance_that_occurred(patch: Patch) -> None:
    """The share is of proposals whose forerunners were all accepted; the measured speedup is over plain in the same
    round, and the mapped one at the mean context."""
    world = AdvisorsWorld(patch, {f"oracle({rate})": rate for rate, _ in MEASURED})
    arms = oracle_arms([ONE])
    assert [(arm.draft, arm.policy, arm.controller, arm.k) for arm in arms] == [
        (f"oracle({rate})", "match", "fixed", k) for rate, k in MEASURED
    ]
    known, found = checked_map(world.bench, arms)
    assert known == world.known
    assert [(one.rows, one.length, one.acceptance, one.k) for one in found] == [
        (1, LENGTH + TOKENS // 2, rate, k) for rate, k in MEASURED
    ]
    assert [some for _, _, some, _ in world.calls] == [[Arm(ONE), *arms]] * 4
    for arm, one in zip(arms, found, strict=True):
        steps = [
            step
            for unit in world.units_of(ONE)
            for text in world.replayed(arm, unit.requests)[1] or ()
            for step in text.steps
        ]
        tries = sum(min(step.accepted + 1, step.proposed) for step in steps)
        assert one.accepted == pytest.approx(sum(step.accepted for step in steps) / tries)
        gains = [
            log(world.replayed(Arm(ONE), unit.requests)[0] / world.replayed(arm, unit.requests)[0])
            for unit in world.units_of(ONE)
        ]
        assert one.measured == pytest.approx(exp(fmean(gains)))
        assert one.mapped == pytest.approx(constant_speed(world.known, one.accepted, one.k, 1, LENGTH + TOKENS / 2))


def gains_of(world: AdvisorsWorld, arm: Arm, units: Sequence[Unit]) -> list[float]:
    """The log of an arm's speedup on each unit."""
    return [
        log(world.replayed(Arm(arm.setting), unit.requests)[0] / world.replayed(arm, unit.requests)[0])
        for unit in units
    ]


def test_a_draft_is_traced_with_its_largest_k_also_beside_none_at_all(patch: Patch) -> None:
    """K = 0 decodes as plain does, but for what its windows cost."""
    world, arms = AdvisorsWorld(patch, {"a": 0.8}), fixed(ONE, "a", (0, 1))
    [advice] = Advisor(world.bench, arms, 0.0).advise()
    assert [some for _, _, some, _ in world.calls] == [[arms[1]]]
    told = {one.arm.k: one.predicted for one in advice.tried}
    for arm in arms:
        assert told[arm.k] == pytest.approx(gains_of(world, arm, world.units_of(ONE)[:1])[0])


def test_a_controller_that_adapts_is_predicted_at_the_k_that_is_the_fastest_on_average(patch: Patch) -> None:
    """Nothing is accepted after the second proposal, so that a larger K only costs more."""
    world = AdvisorsWorld(patch, {"a": 0.8})
    world.texts["a"] = [StepTrace((*[Seen(WIDEST, WIDEST, 2)] * 8, Seen(WIDEST, 0, 0)))] * 8
    adaptive = Arm(ONE, "a", controller="goodput", k=WIDEST)
    arms = [adaptive, *fixed(ONE, "a", (2, WIDEST))]
    [advice] = Advisor(world.bench, arms, 0.0).advise()
    told = {one.arm: one.predicted for one in advice.tried}
    assert told[adaptive] == pytest.approx(told[arms[1]])
    assert told[arms[1]] > told[arms[2]] + 0.2


def test_units_without_traces_are_predicted_from_all_texts_that_have_one(patch: Patch) -> None:
    """After two of four units of two rows: two as their own texts say, two as pairs of the four texts do."""
    world = AdvisorsWorld(patch, {"a": 0.7})
    world.settings, arm = [TWO.without_workload], Arm(TWO, "a", k=WIDEST)
    units = world.units_of(TWO)
    first = world.replayed(arm, units[0].requests)[0]
    [advice] = Advisor(world.bench, [arm], 2 * first + 0.01).advise()
    assert [some for _, _, some, _ in world.calls] == [[arm], [arm]]
    donors = {(n,) * LENGTH: world.texts["a"][n] for n in range(4)}
    sizes = PromptSizes((LENGTH, LENGTH), TOKENS)
    others = predict(world.known, strategy_of(arm), [PredictedUnit(sizes, (), donors)]).log_ratio
    own = gains_of(world, arm, units[:2])
    assert abs(others - fmean(own)) > 1e-3
    assert advice.tried[0].predicted == pytest.approx(fmean([*own, others, others]), abs=2e-4)


def test_a_text_of_several_units_weighs_in_all_of_them_whether_it_has_a_trace_or_not(patch: Patch) -> None:
    """By hand, after the first of three units. Texts 0 and 1 have traces, and stand for both rows of the other two:
    each weighs half a unit less, and 0, which is a row of the second itself, half a unit of two rows more. Text 2 is a
    row of both. All texts are alike, so that nothing is added to the 21 % by which others differ."""
    world = AdvisorsWorld(patch, {"a": 0.8})
    world.settings, world.texts_of_units = [TWO.without_workload], [(0, 1), (2, 0), (3, 2)]
    world.texts["a"] = world.texts["a"][:1] * 8
    [advice] = Advisor(world.bench, [Arm(TWO, "a", k=WIDEST)], 0.0).advise()
    assert len(world.calls) == 1
    weights = {0: 1 / 2 - 2 / 2, 1: -2 / 2, 2: 1 / 2 + 1 / 2, 3: 1 / 2}
    squares = sum((weight / 3) ** 2 for weight in weights.values())
    own = 0.05**2 + 0.04**2
    half = half_of_sum(0.21**2 * 4 / 5 * squares, 5, own - own**2 / (own + 1.0 + 0.05**2))
    assert log(advice.high / advice.low) / 2 == pytest.approx(half)


def test_what_a_draft_took_in_runs_is_believed_and_not_what_the_probe_said_of_it(patch: Patch) -> None:
    world, arms = AdvisorsWorld(patch, {"a": 0.8}), fixed(ONE, "a", (2, WIDEST))
    believed = {arm: fmean(gains_of(world, arm, world.units_of(ONE))) for arm in arms}
    world.true = world.known.cheaper(strategy_of(arms[0]), 20.0)
    [advice] = Advisor(world.bench, arms, 1e6).advise()
    told = {one.arm: one.predicted for one in advice.tried}
    for arm in arms:
        assert told[arm] == pytest.approx(fmean(gains_of(world, arm, world.units_of(ONE))), abs=1e-3)
        assert told[arm] < believed[arm] - 0.1


@pytest.mark.parametrize("proposed", [0, 1])
def test_a_cell_of_the_map_without_a_proposal_accepted_none_and_one_with_a_single_one_all_or_nothing(
    proposed: int, patch: Patch
) -> None:
    world = AdvisorsWorld(patch, {f"oracle({rate})": rate for rate, _ in MEASURED}, units=1)
    for name in world.texts:
        world.texts[name] = [StepTrace((Seen(WIDEST, proposed, proposed), *[Seen(WIDEST, 0, 0)] * TOKENS))]
    _, found = checked_map(world.bench, oracle_arms([ONE]))
    assert {one.accepted for one in found} == {float(proposed)}
