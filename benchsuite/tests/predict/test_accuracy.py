"""What predictions of things that were not run are worth, beside a measured speedup in their place: by brute force, and
by predictors that know nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, isnan, log
from statistics import fmean

import numpy as np
import pytest

from benchsuite.measure.arms import Arm, Setting
from benchsuite.predict.accuracy import Accuracy, Errors, PredictionTrial, batch_trials, k_trials, text_trials
from benchsuite.predict.checked import UnitTraces, check_cells
from benchsuite.predict.costs import Costs, DraftCosts
from benchsuite.predict.prediction import PromptSizes, Replay
from benchsuite.predict.traces import Seen, StepTrace
from benchsuite.tests.rig import SETTING
from specdec.calibration import Point

TOKENS, LENGTH = 12, 64
ONE = SETTING.replaced(max_new_tokens=TOKENS)
TWO = ONE.replaced(batch=2)


def sloped_costs(slope: float) -> Costs:
    """A window of W slots takes 1 + slope (W - 1) seconds, twice that with two rows; a proposal 0.01."""
    forward = {Point(rows, LENGTH, width): rows * (1 + slope * (width - 1)) for rows in (1, 2) for width in (1, 2, 17)}
    drafts = DraftCosts({1: {LENGTH: {-1: 0.0, 0: 0.0, 16: 0.16}}}, {1: {0: 0.0, 1: 0.0}}, {LENGTH: 0.0})
    plain = {point: seconds for point, seconds in forward.items() if point.width == 1}
    named = dict.fromkeys(
        (f"{draft}/match/{controller}" for draft in "ab" for controller in ("fixed", "goodput")), drafts
    )
    return Costs({}, forward, {LENGTH: 0.5}, plain, named, 0.0, made=0.0)


COSTS: Mapping[Setting, Costs] = {
    ONE.without_workload: sloped_costs(0.05),
    TWO.without_workload: sloped_costs(0.4),
}


def unit_of_texts(number: int, texts: Sequence[int], gain: float, k: int = 8, branched: bool = False) -> UnitTraces:
    """A unit whose n-th text accepts as many of K as its number says."""
    traces = tuple(StepTrace((Seen(k, k, min(k, text)), Seen(k, k, 0)), branched) for text in texts)
    names = tuple((text,) * LENGTH for text in texts)
    return UnitTraces(number, names, PromptSizes((LENGTH,) * len(texts), TOKENS), traces, gain, whole_gain=gain / 2)


def strategies(trials: int, names: int = 9, apart: float = 0.5) -> list[PredictionTrial]:
    """Trials of strategies whose speedups are far from each other, and whose texts differ by a third: what is said of a
    text is the mean of the strategy's other texts."""
    rng, found = np.random.default_rng(1), list[PredictionTrial]()
    for name in range(names):
        logs = rng.normal(apart * name, 0.3, trials).tolist()
        found += [
            PredictionTrial((ONE, str(name)), one, said, said)
            for at, one in enumerate(logs)
            for said in [fmean(logs[:at] + logs[at + 1 :])]
        ]
    return found


def test_a_mean_of_a_strategys_other_texts_explains_nothing_however_far_strategies_are_apart() -> None:
    """Over all strategies it would: 0.94 of the differences between 0.8x and 50x are those of strategies."""
    for apart in (0.0, 0.5, 5.0):
        found = Accuracy.of(strategies(6, apart=apart))
        assert found.predicted == found.known
        assert found.predicted.explained == pytest.approx(1 - (6 / 5) ** 2)
    logs = [trial.measured for trial in strategies(6)]
    left = fmean((trial.measured - trial.predicted) ** 2 for trial in strategies(6))
    assert 1 - left / float(np.var(logs)) > 0.9


def test_texts_that_predict_each_other_over_a_cell_are_no_prediction_of_a_text() -> None:
    """Each text of a cell is predicted from the others: over the cell that is the mean of all, which errs by nothing.
    Of the texts themselves it errs by much, and as much as the mean of what was measured."""
    known = {Arm(ONE, "a", k=8): [_measured(number, text) for number, text in enumerate((8, 5, 0))]}
    [cell] = check_cells(known, COSTS)
    assert cell.residual == pytest.approx(0.0)
    found = Accuracy.of(text_trials(check_cells(known, COSTS, alone=True)))
    assert found.trials == 3
    assert found.predicted.median == pytest.approx(found.known.median)
    assert found.predicted.median > 0.3
    assert found.predicted.explained == pytest.approx(1 - (3 / 2) ** 2)


def _measured(number: int, text: int) -> UnitTraces:
    """A unit of one text that took what the costs say."""
    unit = unit_of_texts(number, [text], 0.0)
    return replace(unit, gain=Replay(COSTS[ONE.without_workload], "a/match/fixed").gains(unit.traces, unit.prompts)[0])


def test_an_accuracy_is_worked_out_by_hand() -> None:
    """Two strategies: the squares around their means are 2 and 8, the residuals' 0.5 and, of what is known, 10."""
    first, second = (ONE, "a"), (ONE, "b")
    trials = [
        PredictionTrial(first, 1.0, 1.5, 2.0),
        PredictionTrial(first, 3.0, 3.5, 2.0),
        PredictionTrial(second, 5.0, 5.0, 7.0),
        PredictionTrial(second, 9.0, 9.0, 7.0),
    ]
    found = Accuracy.of(trials)
    assert found.trials == 4
    assert found.predicted == pytest.approx(Errors((1 - exp(-0.5)) / 2, 0.95))
    assert found.known == pytest.approx(Errors((1 - exp(-2) + exp(1) - 1) / 2, 0.0))


def test_a_text_is_set_beside_the_mean_of_the_others_while_decoding_and_from_prompt_to_last_token() -> None:
    arm = Arm(ONE, "a", k=8)
    units = [unit_of_texts(number, [text], 0.1 * 2**number) for number, text in enumerate((8, 5, 2, 0))]
    cells = check_cells({arm: units}, COSTS, alone=True)
    trials = text_trials(cells)
    assert [trial.measured for trial in trials] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert [trial.known for trial in trials] == pytest.approx([1.4 / 3, 1.3 / 3, 1.1 / 3, 0.7 / 3])
    assert [trial.predicted for trial in trials] == pytest.approx([cell.prediction.log_ratio for cell in cells])
    assert {trial.strategy for trial in trials} == {(ONE.without_workload, "a/match/fixed")}
    whole = text_trials(cells, whole=True)
    assert [trial.measured for trial in whole] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert [trial.known for trial in whole] == pytest.approx([0.7 / 3, 0.65 / 3, 0.55 / 3, 0.35 / 3])
    assert [trial.predicted for trial in whole] == pytest.approx([cell.prediction.log_end_to_end for cell in cells])
    replayed = check_cells({arm: [replace(unit, replays=True) for unit in units]}, COSTS, alone=True)
    assert text_trials(replayed, whole=True) == []
    assert len(text_trials(replayed)) == 4


def test_a_text_that_other_batches_alone_predict_has_no_mean_beside_it() -> None:
    known = {Arm(ONE, "a", k=8): [unit_of_texts(0, [8], 0.5)], Arm(TWO, "a", k=8): [unit_of_texts(0, [5, 2], 0.5)]}
    assert len(check_cells(known, COSTS, alone=True)) == 2
    assert text_trials(check_cells(known, COSTS, alone=True)) == []


def test_a_k_that_was_not_run_is_as_much_faster_than_a_larger_one_as_its_replay_is() -> None:
    """Of K = 2, 4 and 8 three pairs; 4 accepts what it can of the 5 that 8 did."""
    arms = {k: Arm(ONE, "a", k=k) for k in (2, 4, 8)}
    known = {arm: [unit_of_texts(n, [t], k / 10 + n, k) for n, t in enumerate((5, 1))] for k, arm in arms.items()}
    known |= {Arm(ONE, "b", k=4): known[arms[4]], Arm(ONE, "a", "match", "goodput", k=1): known[arms[2]]}
    trials = k_trials(known, COSTS)
    replay = Replay(COSTS[ONE.without_workload], "a/match/fixed")

    def gain(k: int, ran: int) -> float:
        units = known[arms[ran]]
        return fmean(replay.gains([unit.traces[0].with_k(k)], unit.prompts)[0] for unit in units)

    assert len(trials) == 3
    for trial, (k, larger) in zip(trials, ((2, 4), (2, 8), (4, 8)), strict=True):
        assert trial.measured == pytest.approx(k / 10 + 0.5)
        assert trial.known == pytest.approx(larger / 10 + 0.5)
        assert trial.predicted == pytest.approx(trial.known + gain(k, larger) - gain(larger, larger))
    tree = {
        arm: [replace(unit_of_texts(0, [5], 0.5, arm.k or 0, branched=True)) for _ in units]
        for arm, units in known.items()
    }
    assert k_trials(tree, COSTS) == []


def test_a_batch_that_was_not_run_is_as_much_slower_than_another_as_its_replay_is() -> None:
    """The same texts alone and in a pair, whose wide windows cost more; texts that were run in one alone are left
    out there."""
    alone, pair = Arm(ONE, "a", k=8), Arm(TWO, "a", k=8)
    known = {
        alone: [unit_of_texts(n, [t], 0.7 + n) for n, t in enumerate((5, 1))],
        pair: [unit_of_texts(0, [5, 1], 0.2), unit_of_texts(1, [3, 2], 9.0)],
    }
    narrow, wide = (Replay(COSTS[one.setting.without_workload], "a/match/fixed") for one in (alone, pair))
    ones = fmean(narrow.gains(unit.traces, unit.prompts)[0] for unit in known[alone])
    [first, second] = batch_trials({alone: known[alone], pair: known[pair][:1]}, COSTS)
    twos = wide.gains(known[pair][0].traces, known[pair][0].prompts)[0]
    assert first[1:] == pytest.approx((1.2, 0.2 + ones - twos, 0.2))
    assert second[1:] == pytest.approx((0.2, 1.2 + twos - ones, 1.2))
    assert [trial.strategy[0] for trial in (first, second)] == [ONE.without_workload, TWO.without_workload]
    [_, other] = batch_trials(known, COSTS)
    assert other.measured == pytest.approx(0.2), "the unit of other texts"
    elsewhere = {alone: known[alone], pair: known[pair][1:]}
    assert batch_trials(elsewhere, COSTS) == []
    adaptive = {replace(arm, controller="goodput"): units for arm, units in known.items()}
    assert batch_trials(adaptive, COSTS) == [], "what it chooses depends on the batch"


def test_one_trial_of_a_strategy_explains_nothing_and_none_is_refused() -> None:
    found = Accuracy.of([PredictionTrial((ONE, "a"), log(2.0), log(1.0), log(2.0))])
    assert found.predicted.median == pytest.approx(1.0)
    assert isnan(found.predicted.explained)
    with pytest.raises(ValueError, match=r"."):
        Accuracy.of([])
