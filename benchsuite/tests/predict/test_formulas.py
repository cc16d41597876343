"""Formulas of predictions against second ones: variances, intervals, slopes, costs and the sentences made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, pvariance, variance
from typing import Any

import numpy as np
import pytest

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.interval import student
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.predict.advisor import CLOSE, Candidate
from benchsuite.predict.breakeven import (
    ACCEPTANCES,
    MEASURED,
    MapCheck,
    MapPoint,
    break_even_map,
    fastest_ks,
    map_json,
    map_of_windows,
)
from benchsuite.predict.checked import CheckedCell, UnitTraces, check_cells, known_units, units_of
from benchsuite.predict.contexts import ContextSlope, context_slope
from benchsuite.predict.costs import VERSION_OF_COSTS, Costs, DraftCosts, costs_path, strategy_of
from benchsuite.predict.forecasts import Forecasts
from benchsuite.predict.ks import KS
from benchsuite.predict.prediction import (
    DRAWS,
    PRIOR,
    WRONG,
    PredictedUnit,
    Prediction,
    PromptSizes,
    Replay,
    Text,
    constant_speed,
    drawn_batches,
    half_of_sum,
    needed_acceptance,
    pooled_variance,
    predict,
)
from benchsuite.predict.probe import WIDTHS_PROBED
from benchsuite.predict.recommendation import PLAIN, Recommendation, recommended_by_text
from benchsuite.predict.suggestions import suggestion
from benchsuite.predict.traces import Seen, StepTrace, kept_by_depth, reached, traces_of
from benchsuite.tests.rig import SETTING
from specdec import Request, SpecdecError
from specdec.calibration import Point
from specdec.devices import Stopwatch
from specdec.stats import Marks, RowStep, Stats, Step

LENGTH = 64
ARM = Arm(SETTING, "ngram", k=4)
NAME = strategy_of(ARM)


def linear_costs(slope: float = 0.1, draft: float = 0.02, noise: float = 0.0, **more: Any) -> Costs:
    """A forward of W slots takes 1 + slope (W - 1) seconds, a proposal ``draft`` seconds, plain's step a second."""
    forward = {Point(rows, LENGTH, width): 1 + slope * (width - 1) for rows in (1, 2) for width in (1, 2, 17)}
    steps = {rows: {LENGTH: {-1: 0.0, 0: 0.0, 16: 16 * draft}} for rows in (1, 2)}
    drafts = DraftCosts(steps, {1: {0: 0.0, 1: 0.0}}, {LENGTH: 0.0}, **more)
    return Costs({}, forward, {LENGTH: 0.5}, {Point(1, LENGTH, 1): 1.0}, {NAME: drafts}, noise, made=0.0)


def text_kept(*kept: int, asked: int = 4) -> StepTrace:
    """A text of whose steps so many of the proposals were accepted."""
    return StepTrace(tuple(Seen(asked, asked, one) for one in kept))


# Intervals.


def test_the_spread_of_texts_is_the_variance_around_the_mean_of_each_group() -> None:
    groups = [[0.1, 0.4, 0.2], [1.0, 1.5], [7.0]]
    squares = sum((x - fmean(group)) ** 2 for group in groups for x in group)
    assert pooled_variance(groups) == pytest.approx(squares / (2 + 1))
    assert pooled_variance(groups[1:]) == pytest.approx(2 * pvariance(groups[1]))
    assert pooled_variance([[1.0], []]) is pooled_variance([]) is None


@pytest.mark.parametrize(
    ("estimated", "degrees", "certain"), [(0.04, 3.0, 0.01), (0.04, 3.0, 0.0), (1e-4, 1.0, 0.02), (0.01, 7.0, 0.1)]
)
def test_half_of_a_sum_has_the_freedom_of_welch_and_satterthwaite(
    estimated: float, degrees: float, certain: float
) -> None:
    freedom = (estimated + certain) ** 2 / (estimated**2 / degrees)
    expected = student(0.9, min(freedom, 1e6)) * sqrt(estimated + certain)
    assert half_of_sum(estimated, degrees, certain) == pytest.approx(expected)


def test_a_variance_without_an_estimate_has_the_interval_of_a_normal_distribution() -> None:
    assert half_of_sum(0.0, 0.0, 0.01) == pytest.approx(0.16449, abs=1e-5)
    assert half_of_sum(0.0, 5.0, 0.04) == pytest.approx(2 * 0.16449, abs=1e-5)
    assert half_of_sum(1e-12, 1.0, 0.01) == pytest.approx(0.16449, abs=1e-5)


@pytest.mark.parametrize("spread", [None, 0.0, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_interval_of_a_cell_adds_texts_noise_and_the_mistakes_of_costs(spread: float | None, noise: float) -> None:
    """Three units, of two texts that are predicted from three others: the weights of five texts and their squares."""
    known = linear_costs(noise=noise)
    sizes = PromptSizes((LENGTH,), 20)
    donors: dict[Text, StepTrace] = {(10 + n,): text_kept(*kept) for n, kept in enumerate(([4], [1], [2, 0]))}
    texts = [(1,), (2,), (1,)]
    found = predict(known, NAME, [PredictedUnit(sizes, (text,), donors) for text in texts], spread)
    gains = [Replay(known, NAME).gains([one], sizes)[0] for one in donors.values()]
    assert found.log_ratio == pytest.approx(fmean(gains))
    own = sum((gain - fmean(gains)) ** 2 for gain in gains) / 2
    prior = PRIOR if spread is not None else 0.0
    between = (own * 2 + (spread or 0.0) * prior) / (2 + prior)
    squares = (2 / 3) ** 2 + (1 / 3) ** 2 + 3 * (1 / 3) ** 2
    half = half_of_sum(between * squares, 2 + prior, 2 * noise**2 / 3 + WRONG**2)
    assert found.half == pytest.approx(half)
    assert found.low == pytest.approx(exp(fmean(gains) - half))
    assert found.texts == 3


@pytest.mark.parametrize("units", [1, 6])
def test_an_interval_has_the_noise_of_both_sides_and_not_of_one(units: int) -> None:
    """All texts are alike, and the machine's noise is large: of the measured speedups nine of ten lie inside, where the
    noise of the strategy's runs alone would hold some 76 %."""
    noise, rng = 0.5, np.random.default_rng(4)
    sizes, text = PromptSizes((LENGTH,), 20), text_kept(4, 1)
    targets = [PredictedUnit(sizes, ((n,),), {(90,): text, (91,): text}) for n in range(units)]
    found = predict(linear_costs(noise=noise), NAME, targets)
    sides = rng.normal(0, noise, (2, 8000, units)).mean(axis=2)
    errors = np.abs(rng.normal(0, WRONG, 8000) + sides[0] - sides[1])
    assert found.half is not None
    assert 0.885 < (errors <= found.half).mean() < 0.915
    assert (errors <= found.half / sqrt(2)).mean() < 0.8


def test_the_noise_of_two_runs_each_is_not_the_mean_of_their_deviations() -> None:
    """Of pairs with a standard deviation of a tenth, as the probe has them: that mean is a fifth too small."""
    pairs = np.random.default_rng(5).normal(3.0, 0.1, (4000, 2))
    pairs += np.random.default_rng(6).normal(0, 9.0, (4000, 1))
    assert sqrt(pooled_variance(pairs.tolist()) or 0) == pytest.approx(0.1, rel=0.03)
    assert float(pairs.std(axis=1, ddof=1).mean()) == pytest.approx(0.08, rel=0.03)


def test_texts_of_a_batch_differ_as_much_as_batches_of_one_text_each_do() -> None:
    """Two texts that are predicted from three others: by hand, with both rows of the same text."""
    known, sizes = linear_costs(), PromptSizes((LENGTH, LENGTH), 20)
    donors: dict[Text, StepTrace] = {(10 + n,): text_kept(*kept) for n, kept in enumerate(([4], [1], [2, 0]))}
    found = predict(known, NAME, [PredictedUnit(sizes, ((1,), (2,)), donors)])
    alone = [Replay(known, NAME).gains([one, one], sizes)[0] for one in donors.values()]
    squares = 2 * (1 / 2) ** 2 + 3 * (1 / 3) ** 2
    assert found.half == pytest.approx(half_of_sum(variance(alone) * squares, 2, WRONG**2))


def test_a_single_other_text_has_no_interval_but_for_the_spread_of_other_workloads() -> None:
    sizes = PromptSizes((LENGTH,), 20)
    target = PredictedUnit(sizes, ((1,),), {(2,): text_kept(4, 1)})
    alone = predict(linear_costs(), NAME, [target])
    assert (alone.low, alone.high, alone.half, alone.texts) == (None, None, None, 1)
    assert alone.widened(2.0) == alone
    spread = predict(linear_costs(), NAME, [target], spread=0.04)
    assert spread.half == pytest.approx(half_of_sum(0.04 * 2, PRIOR, WRONG**2))
    assert spread.widened(3.0).half == pytest.approx(3 * (spread.half or 0))
    assert spread.widened(3.0).low == pytest.approx(spread.ratio * exp(-3 * (spread.half or 0)))
    more = PredictedUnit(sizes, ((3,),), {(4,): text_kept(4), (5,): text_kept(0)})
    assert predict(linear_costs(), NAME, [target, more]).half is None, "nor where one unit has but one"
    both = predict(linear_costs(), NAME, [target, more], spread=0.04)
    weights = 2 * 0.5**2 + 0.5**2 + 2 * 0.25**2
    assert both.half == pytest.approx(half_of_sum(0.04 * weights, PRIOR, WRONG**2)), "one text says nothing of a spread"
    with pytest.raises(ValueError, match="no trace of another text"):
        predict(linear_costs(), NAME, [PredictedUnit(sizes, ((1,),), {})])


def test_batches_are_drawn_without_repeats_where_there_are_enough_texts() -> None:
    texts = [text_kept(n % 5) for n in range(5)]
    assert drawn_batches(texts, 1) == [[one] for one in texts]
    for size, whole in ((5, True), (3, True), (7, False)):
        found = drawn_batches(texts, size)
        assert len(found) == DRAWS
        assert {len(batch) for batch in found} == {size}
        assert all(len({*map(id, batch)}) == size for batch in found) is whole
        assert len({tuple(map(id, batch)) for batch in found}) > 1
        assert found == drawn_batches(texts, size)


def test_the_speedup_from_prompt_to_last_token_adds_what_begins_and_ends_a_request() -> None:
    known = linear_costs()
    admitted = replace(known.strategies[NAME], admit={LENGTH: 0.3}, release=0.2)
    known = replace(known, prefill={LENGTH: 5.0, 2 * LENGTH: 9.0}).with_strategies({NAME: admitted})
    assert known.begun(None, LENGTH) == 5.0
    assert known.begun(None, LENGTH + 32) == pytest.approx(7.0)
    assert known.begun(NAME, LENGTH) == pytest.approx(5.5)
    never = known.with_strategies({NAME: replace(admitted, admit={})})
    assert never.begun(NAME, LENGTH) == 5.0
    sizes = PromptSizes((LENGTH,), 10)
    decoding = Replay(known, NAME).decoding([text_kept(4)], sizes)
    assert decoding == pytest.approx(2 * (1.4 + 0.08))
    assert Replay(known, NAME).gains([text_kept(4)], sizes) == pytest.approx(
        (log(10 / decoding), log(15 / (decoding + 5.5)))
    )


# Break-even.


@pytest.mark.parametrize(("slope", "k", "drafting"), [(0.1, 1, 0.0), (0.1, 4, 0.3), (0.3, 2, 0.1), (0.02, 8, 0.0)])
def test_the_acceptance_that_breaks_even_is_a_root_of_the_sum_of_its_powers(
    slope: float, k: int, drafting: float
) -> None:
    found = needed_acceptance(linear_costs(slope), k, 1, LENGTH, drafting)
    seconds = 1 + slope * k + drafting
    roots = np.roots([*[1.0] * k, 1 - seconds])
    [expected] = [root.real for root in roots if abs(root.imag) < 1e-9 and 0 <= root.real <= 1]
    assert found == pytest.approx(expected, abs=1e-9)


def test_what_one_of_all_proposals_is_needed_for_breaks_even_at_one_and_not_beyond() -> None:
    assert needed_acceptance(linear_costs(1.0), 4, 1, LENGTH) == pytest.approx(1.0)
    assert needed_acceptance(linear_costs(1.0), 4, 1, LENGTH, 0.01) is None
    assert needed_acceptance(linear_costs(0.0), 4, 1, LENGTH) == pytest.approx(0.0, abs=1e-9)
    assert constant_speed(linear_costs(), 0.5, 0, 1, LENGTH, 3.0) == pytest.approx(1.0), "K = 0 drafts nothing"
    plain = replace(linear_costs(0.0), plain={Point(1, LENGTH, 1): 1.5})
    assert constant_speed(plain, 0.5, 2, 1, LENGTH, 0.25) == pytest.approx(1.5 * 1.75 / (1.5 + 0.25))


def test_a_map_has_every_row_length_and_k_once_and_its_speeds_in_the_file() -> None:
    known = linear_costs()
    known = replace(known, plain={Point(rows, at, 1): 1.0 for rows in (2, 1) for at in (128, LENGTH)})
    found = break_even_map(known, drafting=0.1, ks=(1, 4))
    assert [(one.rows, one.length, one.k) for one in found] == [
        (rows, at, k) for rows in (1, 2) for at in (LENGTH, 128) for k in (1, 4)
    ]
    for one in found:
        assert one.window == pytest.approx(1 + 0.1 * one.k)
        seconds = one.window + 0.1 * one.k
        assert one.speedups == pytest.approx([sum(a**n for n in range(one.k + 1)) / seconds for a in ACCEPTANCES])
    point = MapPoint(1, LENGTH, 2, 1.2, None, (1.0, 1.1, 1.2, 1.3, 1.4))
    said = map_json([point], [MapCheck(1, LENGTH, 2, 0.4, 0.5, 1.6, 1.7)])
    assert json.loads(json.dumps(said)) == {
        "map": [
            {
                **{"rows": 1, "length": LENGTH, "k": 2, "window": 1.2, "needed": None},
                "speedups": {"0.2": 1.0, "0.4": 1.1, "0.6": 1.2, "0.8": 1.3, "0.95": 1.4},
            }
        ],
        "measured": [
            {"rows": 1, "length": LENGTH, "k": 2, "acceptance": 0.4, "accepted": 0.5, "measured": 1.6, "mapped": 1.7}
        ],
    }
    assert fastest_ks([point, replace(point, k=3, speedups=(0.9, 1.1, 1.3, 1.2, 1.5))]) == {
        (1, LENGTH): [0, 2, 3, 2, 3]
    }


def test_a_map_is_of_a_lookup_and_every_k_unless_told_otherwise_and_the_same_at_any_pace_of_the_machine() -> None:
    known = linear_costs()
    found = break_even_map(known)
    assert [one.k for one in found] == [*KS[KS.index(0) + 1 :]]
    for one in found:
        assert one.speedups == tuple(constant_speed(known, rate, one.k, 1, LENGTH) for rate in ACCEPTANCES)
        assert one.needed == needed_acceptance(known, one.k, 1, LENGTH)
    slow = replace(
        known,
        forward={point: 4 * seconds for point, seconds in known.forward.items()},
        plain={point: 4 * seconds for point, seconds in known.plain.items()},
    )
    assert break_even_map(slow, 0.25) == break_even_map(known, 0.25)
    assert {(one.rows, one.length) for one in map_of_windows({1: 3.0, 5: 4.0})} == {(1, 1)}


def test_what_is_tried_and_checked_is_spread_from_little_to_much() -> None:
    """A speedup hardly bends between two K of which the larger is at most twice the smaller; the widest window has the
    16 slots for which weights are read once. The checked cells are cells of the map, with its most and its fewest
    accepted proposals but the very fewest, and beside each other in both few and many."""
    assert KS[:3] == (0, 1, 2)
    assert all(small < large <= 2 * small for small, large in pairwise(KS[1:]))
    assert KS[-1] + 1 == WIDTHS_PROBED[-1] == 16
    assert WIDTHS_PROBED[:2] == (1, 2)
    assert all(width - 1 in KS for width in WIDTHS_PROBED)
    assert all(small < large <= 2 * small - 1 for small, large in pairwise(WIDTHS_PROBED[1:]))
    assert {rate for rate, _ in MEASURED} == {*ACCEPTANCES[1:]}
    by_rate = {rate: [k for other, k in MEASURED if other == rate] for rate in ACCEPTANCES}
    assert by_rate[0.4] == by_rate[0.8]
    assert all(k in KS for _, k in MEASURED)
    assert all(0 < rate < 1 for rate in ACCEPTANCES)
    assert [*ACCEPTANCES] == sorted(ACCEPTANCES)


# Slopes over context.


def units_by_context(texts: Mapping[int, float]) -> list[UnitTraces]:
    """A unit for each text: the length of its prompt, and the tokens that each of ten steps accepted on average."""
    found = []
    for number, (length, mean) in enumerate(texts.items()):
        ones = round(10 * mean)
        steps = [Seen(8, 8, ones // 10 + (n < ones % 10)) for n in range(10)] + [Seen(0, 0, 0)]
        found.append(UnitTraces(number, ((length,),), PromptSizes((length,), 40), (StepTrace(tuple(steps)),), 0.0))
    return found


def test_a_slope_and_its_interval_are_those_of_least_squares_with_a_level_for_each_workload() -> None:
    worlds = [{50: 3.1, 80: 2.8, 100: 2.9, 140: 2.0}, {200: 5.0, 260: 4.1, 300: 4.4, 390: 3.0, 400: 3.3}]
    x = np.array([length + 20.0 for world in worlds for length in world])
    y = np.array([value for world in worlds for value in world.values()])
    levels = np.array([[float(group == at) for at in (0, 1)] for group, world in enumerate(worlds) for _ in world])
    design = np.column_stack([x, levels])
    solved, squares, *_ = np.linalg.lstsq(design, y, rcond=None)
    error = sqrt(float(squares[0]) / (9 - 3) * float(np.linalg.inv(design.T @ design)[0, 0]))
    found = context_slope([units_by_context(world) for world in worlds])
    assert found is not None
    assert found.texts == 9
    assert found.slope == pytest.approx(100 * float(solved[0]))
    assert found.high - found.slope == pytest.approx(100 * student(0.9, 6) * error)
    assert found.slope - found.low == pytest.approx(100 * student(0.9, 6) * error)
    assert found.seen
    fewer = {length: value for length, value in worlds[1].items() if length < 400}
    assert context_slope([units_by_context(worlds[0]), units_by_context(fewer)]) is None, "five degrees of freedom"


@pytest.mark.parametrize(("longest", "texts"), [(160, 17), (159, 8)])
def test_a_workload_is_taken_in_from_half_as_long_a_longest_text_again(longest: int, texts: int) -> None:
    """The shortest is 80 tokens and half of 40: 100, beside 180 or 179."""
    one = {80 + 10 * n: float(n % 3) for n in range(8)}
    other = {80: 1.0, **{100 + n: float(n % 2) for n in range(7)}, longest - 30: 2.0}
    found = context_slope([units_by_context(one), units_by_context(other), units_by_context({90: 1.0})])
    assert found is not None
    assert found.texts == (17 if longest == 160 else 8)


@pytest.mark.parametrize(
    ("low", "high", "seen"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False), (0.0, 0.1, False), (-1, 0, False)],
)
def test_a_slope_is_seen_where_its_interval_excludes_none(low: float, high: float, seen: bool) -> None:
    assert ContextSlope((low + high) / 2, low, high, 9).seen is seen


# Costs.


def test_a_draft_costs_what_lies_between_what_was_measured() -> None:
    """On lines: proposals within contexts within rows; steps that asked for nothing apart."""
    made = {
        1: {100: {-1: 0.5, 0: 1.0, 4: 3.0}, 200: {-1: 0.7, 4: 5.0}},
        3: {100: {-1: 1.5, 2: 2.0}},
    }
    known = DraftCosts(made, {1: {0: 0.1, 1: 0.3}, 3: {0: 0.5}}, {})
    assert known.draft(1, 100, 2) == pytest.approx(2.0)
    assert known.draft(1, 150, 4) == pytest.approx(4.0)
    assert known.draft(1, 149.6, 4) == pytest.approx(4.0), "a length is rounded"
    assert known.draft(1, 150, -1) == pytest.approx(0.6)
    assert known.draft(2, 100, -1) == pytest.approx(1.0)
    assert known.draft(2, 100, 2) == pytest.approx(2.0)
    assert DraftCosts({1: {100: {-1: 0.25}}}, {}, {}).draft(1, 100, 3) == 0.25
    assert DraftCosts({1: {100: {2: 0.25}}}, {}, {}).draft(1, 100, -1) == 0.0
    assert [known.other(1, asked) for asked in (False, True)] == [0.1, 0.3]
    assert [known.other(3, asked) for asked in (False, True)] == [0.5, 0.5]
    assert known.other(2, True) == pytest.approx(0.4)
    assert DraftCosts({}, {1: {1: 0.3}}, {}).other(1, False) == 0.0


def test_a_step_costs_its_window_its_draft_and_the_rest() -> None:
    known = linear_costs()
    known = known.with_strategies({NAME: replace(known.strategies[NAME], rest={1: {0: 0.01, 1: 0.05}})})
    assert known.step(NAME, 1, LENGTH, 4, 3, 4) == pytest.approx(1.3 + 0.06 + 0.05)
    assert known.step(NAME, 1, LENGTH, 1, 0, 1) == pytest.approx(1.0 + 0.0 + 0.05)
    assert known.step(NAME, 1, LENGTH, 0, 0, 1) == pytest.approx(1.0 + 0.01)
    half = known.cheaper(NAME, 0.5)
    assert half.strategies[NAME].draft(1, LENGTH, 16) == pytest.approx(0.16)
    idle = linear_costs().with_strategies(
        {NAME: DraftCosts({1: {LENGTH: {-1: 0.4, 0: 0.2, 1: 0.6}}}, {1: {0: 0.0}}, {})}
    )
    assert idle.step(NAME, 1, LENGTH, 0, 0, 1) == pytest.approx(1.0 + 0.4)
    assert idle.step(NAME, 1, LENGTH, 1, 0, 1) == pytest.approx(1.0 + 0.2)
    kinds = idle.cheaper(NAME, 0.25).strategies[NAME].steps[1][LENGTH]
    assert kinds == pytest.approx({-1: 0.4, 0: 0.2, 1: 0.15})


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "just now"),
        (59.9, "just now"),
        (60, "1 min ago"),
        (3599, "60 min ago"),
        (3600, "1 h ago"),
        (9000, "2 h ago"),
        (86399, "24 h ago"),
        (86400, "1 d ago"),
        (10 * 86400, "10 d ago"),
    ],
)
def test_an_age_is_told_in_the_largest_unit_that_it_fills(seconds: float, said: str) -> None:
    assert replace(linear_costs(), made=1000.0).age(1000.0 + seconds) == f"measured {said}"


def test_a_file_of_costs_has_every_figure_and_a_place_of_its_own(tmp_path: Path) -> None:
    known = linear_costs(noise=0.03, release=0.7, forward={Point(2, 9, 5): 1.5, Point(1, 8, 2): 2.5})
    known = replace(known, identity={"b": "2", "a": "1"}, made=77.0, skips_padding=True)
    file = tmp_path / "new" / "deeper" / "costs.json"
    known.save(file)
    assert Costs.load(file, {"a": "1", "b": "2"}) == known
    said = json.loads(file.read_text())
    seconds = {"forward_s", "prefill_s", "plain_s", "strategies"}
    assert {"version", "made", "identity", "noise", "skips_padding", *seconds} == said.keys()
    file.write_text(json.dumps({name: value for name, value in said.items() if name != "skips_padding"}))
    assert Costs.load(file, known.identity) == replace(known, skips_padding=False), "windows were padded before"
    file.write_text(json.dumps({**said, "version": VERSION_OF_COSTS + 1}))
    with pytest.raises(SpecdecError, match=rf"version {VERSION_OF_COSTS + 1}; measure again: leave the file out"):
        Costs.load(file, {})
    paths = [costs_path(identity) for identity in ({"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1", "b": "2"})]
    assert len({*paths}) == 4
    assert costs_path({"b": "2", "a": "1"}) == paths[3]
    assert {(path.parent.name, path.suffix) for path in paths} == {("calibrations", ".json")}


# Cells beside their predictions.


def ran_alone(unit: Unit, seconds: float, kept: StepTrace | None, replays: int = 0) -> Outcome:
    """A run of one row that took so long, with a quarter of a second before; of plain decoding without a trace."""
    tokens = kept.tokens if kept else 10
    steps = [
        Step.of(
            (RowStep(one.proposed, one.proposed, one.accepted, one.accepted + 1),), one.proposed + 1, Marks(*range(10))
        )
        for one in (kept.steps if kept else [Seen(0, 0, 0)] * tokens)
    ]
    stats = Stats(Stopwatch.recorded([0.0] * 10), steps=steps)
    every = [tuple(range(tokens))] * len(unit.requests)
    return Outcome(every, seconds + 0.25, seconds, tokens, [], None, LENGTH, stats, replays=replays)


def cell_at(setting: Setting, texts: Sequence[tuple[int, StepTrace]], first: int = 0, **fields: Any) -> Cell:
    """A cell of units with the numbers and traces that are given: the n-th took n + 1 seconds, and plain 10.

    ``first`` tells its texts apart from those of other cells.
    """
    asked = [
        Unit((Request(place, (first + place,) * LENGTH, setting.params(())),), number)
        for place, (number, _) in enumerate(texts)
    ]
    plain = [ran_alone(unit, 10.0, None) for unit in asked]
    ours = [
        ran_alone(unit, place + 1.0, kept) for place, (unit, (_, kept)) in enumerate(zip(asked, texts, strict=True))
    ]
    arm = replace(ARM, setting=setting)
    series = {
        Arm(setting): Series(Arm(setting), "exact", units=asked, outcomes=plain),
        arm: Series(arm, "exact", units=asked, outcomes=ours, plain=plain, **fields),
    }
    machine = Machine("tiny", "reference", "cpu", "float32", 1000, 10, 1e6, 77)
    return Cell(setting, setting.workload, machine, (), series, {}, None, {}, {}, 0)


TEN = SETTING.replaced(max_new_tokens=10)
TEXTS = [text_kept(4, 4), text_kept(1, 2, 4), text_kept(4, 0, 0, 2), text_kept(0, 1, 4, 1)]
KNOWN = {TEN.without_workload: linear_costs()}


def cells_checked(cells: Sequence[Cell], costs: Mapping[Setting, Costs], alone: bool = False) -> list[CheckedCell]:
    """Cells, or their units, as they are predicted at known costs."""
    return check_cells(known_units(cells, costs), costs, alone)


def test_each_unit_is_predicted_from_the_texts_of_all_others() -> None:
    [found] = cells_checked([cell_at(TEN, [*enumerate(TEXTS)])], KNOWN)
    sizes, replay = PromptSizes((LENGTH,), 10), Replay(linear_costs(), NAME)
    gains = [replay.gains([one], sizes)[0] for one in TEXTS]
    assert found.arm == replace(ARM, setting=TEN)
    assert found.others == ()
    assert found.prediction.ratio == pytest.approx(exp(fmean(gains))), "of each from three others is the mean of all"
    assert found.prediction.texts == 3
    texts: dict[Text, StepTrace] = {(place,) * LENGTH: one for place, one in enumerate(TEXTS)}
    targets = [
        PredictedUnit(sizes, (text,), {other: kept for other, kept in texts.items() if other != text}) for text in texts
    ]
    assert found.prediction == predict(linear_costs(), NAME, targets, pooled_variance([gains]))
    assert found.measured == pytest.approx(exp(fmean(log(10 / (n + 1)) for n in range(4))))
    assert found.log_measured == pytest.approx(log(found.measured))
    assert found.residual == pytest.approx(log(found.measured) - fmean(gains))
    whole = exp(fmean(log((10.25 / 10) / ((n + 1.25) / 10)) for n in range(4)))
    assert found.measured_end_to_end == pytest.approx(whole)
    assert [one.number for one in found.units] == [0, 1, 2, 3]
    assert [one.traces for one in found.units] == [(one,) for one in TEXTS]
    assert [one.prompts for one in found.units] == [sizes] * 4
    steps = [step for one in TEXTS for step in one.steps]
    assert found.kept == pytest.approx([sum(step.accepted >= depth for step in steps) / 13 for depth in (1, 2, 3, 4)])
    others = [[step for two in TEXTS if two is not one for step in two.steps] for one in TEXTS]
    assert found.expected_kept == pytest.approx(
        [fmean(fmean(step.accepted >= depth for step in some) for some in others) for depth in (1, 2, 3, 4)]
    )


def test_each_text_is_predicted_from_the_others_alone_and_units_of_one_number_stay_together() -> None:
    numbered = [(place // 2, TEXTS[place % 4]) for place in range(8)]
    alone = cells_checked([cell_at(TEN, numbered)], KNOWN, alone=True)
    sizes, replay = PromptSizes((LENGTH,), 10), Replay(linear_costs(), NAME)
    gains = [replay.gains([one], sizes)[0] for _, one in numbered]
    assert [[unit.number for unit in one.units] for one in alone] == [[place // 2] for place in range(8)]
    assert [one.measured for one in alone] == pytest.approx([10 / (place + 1) for place in range(8)])
    texts = {(place,) * LENGTH: kept for place, (_, kept) in enumerate(numbered)}
    for place, one in enumerate(alone):
        other = [at for at in range(8) if at // 2 != place // 2]
        assert one.prediction.log_ratio == pytest.approx(fmean(gains[at] for at in other))
        assert [unit.number for unit in one.others] == [at // 2 for at in other]
        donors = {(at,) * LENGTH: numbered[at][1] for at in other}
        mine = (place,) * LENGTH
        twin = predict(linear_costs(), NAME, [PredictedUnit(sizes, (mine,), donors)], pooled_variance([gains]))
        assert texts.keys() - donors.keys() == {(place // 2 * 2,) * LENGTH, (place // 2 * 2 + 1,) * LENGTH}
        assert one.prediction.half == pytest.approx(twin.half, rel=1e-12)
        assert (twin.half or 0) > 1.1 * 1.645 * WRONG, "texts differ"
    [whole] = cells_checked([cell_at(TEN, numbered)], KNOWN)
    assert whole.prediction.texts == 6, "the other unit of its number is no other text"


def test_a_cell_without_other_texts_is_predicted_from_those_of_another_batch_or_not_at_all() -> None:
    alone, two = cell_at(TEN, [(0, TEXTS[0])]), TEN.replaced(batch=2)
    assert cells_checked([alone], KNOWN) == []
    assert cells_checked([cell_at(TEN, [(0, TEXTS[0]), (1, TEXTS[1])])], KNOWN)[0].prediction.texts == 1
    assert cells_checked([cell_at(TEN, [(0, TEXTS[0]), (0, TEXTS[1])])], KNOWN) == []
    other = cell_at(two, [(0, TEXTS[0]), (1, TEXTS[1]), (2, TEXTS[2])])
    both = KNOWN | {two.without_workload: linear_costs()}
    found = cells_checked([alone, other], both)
    assert [(one.arm.setting.batch, one.prediction.texts) for one in found] == [(1, 2), (2, 2)]
    elsewhere = cell_at(two.replaced(workload="reasoning"), [(0, TEXTS[0]), (1, TEXTS[1])])
    assert [one.arm.setting.batch for one in cells_checked([alone, elsewhere], both)] == [2], "texts of another kind"
    assert cells_checked([other], KNOWN) == [], "its costs are not known"
    assert cells_checked([cell_at(TEN, [*enumerate(TEXTS)], error="it crashed", ended="crashed")], KNOWN) == []
    unknown = {TEN.without_workload: replace(linear_costs(), strategies={})}
    assert cells_checked([cell_at(TEN, [*enumerate(TEXTS)])], unknown) == []


def test_units_without_a_token_or_a_step_on_either_side_are_left_out_alone() -> None:
    """Of six runs the second has no token of the strategy, the third none of plain decoding, the fourth no step, and
    plain decoding ran once more. The fifth replayed a proposal."""
    asked = [Unit((Request(place, (place,) * LENGTH, TEN.params(())),), 10 + place) for place in range(6)]
    ours = [ran_alone(unit, 2.0, text_kept(4, 4), replays=int(place == 4)) for place, unit in enumerate(asked)]
    plain = [ran_alone(unit, 10.0, None) for unit in [*asked, asked[0]]]
    ours[1], plain[2] = replace(ours[1], decoded=0), replace(plain[2], decoded=0)
    ours[3] = replace(ours[3], stats=Stats(Stopwatch.recorded([0.0])))
    found = units_of(Series(ARM, "exact", units=asked, outcomes=ours, plain=plain), 10)
    assert [one.number for one in found] == [10, 14, 15]
    assert [one.replays for one in found] == [False, True, False]
    for one in found:
        assert one.gain == pytest.approx(log(5))
        assert one.whole_gain == pytest.approx(log(10.25 / 2.25))
        assert one.plain_s == pytest.approx(1.0)


def cell_predicted(measured: float, ratio: float, half: float | None = None) -> CheckedCell:
    """A cell with a prediction."""
    low, high = (None, None) if half is None else (ratio * exp(-half), ratio * exp(half))
    return CheckedCell(ARM, measured, Prediction(ratio, low, high, ratio**2, 4))


def test_a_measured_speedup_is_inside_up_to_both_ends() -> None:
    said = Prediction(1.0, 0.5, 2.0, 1.0, 3)
    found = [CheckedCell(ARM, measured, said).inside for measured in (0.49, 0.5, 1.0, 2.0, 2.01)]
    assert found == [False, True, True, True, False]
    for low, high in ((None, None), (None, 2.0), (0.5, None)):
        assert CheckedCell(ARM, 1.0, replace(said, low=low, high=high)).inside is None


def test_an_arm_over_all_workloads_has_geometric_means_and_errors_of_costs_once() -> None:
    """Each workload's half has 8 % of costs, which all share, and its own texts', which add up as independent ones.
    Chat is also predicted from texts that it does not have, those of another batch."""
    shared, two = 1.645 * WRONG, TEN.replaced(batch=2)
    groups = [cell_at(TEN.replaced(workload=name), [*enumerate(TEXTS)]) for name in ("chat", "reasoning")]
    groups.append(cell_at(two, [*enumerate(TEXTS[:3], 10)], first=10))
    found = Forecasts.of(groups, KNOWN | {two.without_workload: linear_costs()}, ["said"])
    assert [*found.arms] == [replace(ARM, setting=one.without_workload) for one in (TEN, two)]
    arm = found.arms[replace(ARM, setting=TEN.without_workload)]
    every = [cell.prediction for cell in found.cells if cell.arm.setting.batch == 1]
    assert arm.prediction.log_ratio == pytest.approx(fmean(one.log_ratio for one in every))
    assert arm.prediction.log_end_to_end == pytest.approx(fmean(one.log_end_to_end for one in every))
    measured = [cell.measured for cell in found.cells if cell.arm.setting.batch == 1]
    assert arm.measured == pytest.approx(sqrt(measured[0] * measured[1]))
    texts = [max(0.0, (one.half or 0) ** 2 - shared**2) for one in every]
    assert max(texts) > 1e-4
    assert arm.prediction.half == pytest.approx(sqrt(sum(texts) / 4 + shared**2))
    assert arm.prediction.low == pytest.approx(arm.prediction.ratio * exp(-(arm.prediction.half or 0)))
    assert [one.texts for one in every] == [6, 3]
    assert arm.prediction.texts == 3
    assert len(arm.units) == 8
    assert found.said == ["said"]
    assert [len(one.units) for one in found.texts] == [1] * 11
    assert {what: one.trials for what, one in found.accuracies.items()} == {"a text": 11, "a text, end to end": 11}
    assert Forecasts.of([], KNOWN).accuracies == {}


# Sentences.


def suggested(steps: Sequence[Seen], known: Costs, measured: float) -> str:
    """The suggestion for a row of one text."""
    text = StepTrace(tuple(steps))
    unit = UnitTraces(0, ((1,),), PromptSizes((LENGTH,), text.tokens), (text,), 0.0)
    return suggestion(CheckedCell(ARM, measured, Prediction(measured, None, None, measured, 1), (unit,)), known)


def test_a_suggestion_has_the_costs_and_speedups_that_a_reader_can_work_out() -> None:
    """Each is of a row whose measured speedup is that of its replay, by hand."""
    assert suggested([Seen(4, 0, 0)] * 9, linear_costs(), 0.9) == "no token was proposed"
    # One of eight is kept. With K = 1 the same tokens take steps of 1.2 + 0.02 seconds, with 8 of 2.6 + 0.16.
    wide = suggested([Seen(8, 8, 1)] * 20, linear_costs(0.2), 2 / 2.76)
    assert wide == f"a window of 9 costs 2.60 forwards at batch 1: K = 1 would give {2 / 1.22:.2f}x, not 0.72x"
    none = suggested([Seen(4, 4, 0)] * 40, linear_costs(), 1 / 1.48)
    assert none == "a window of 5 costs 1.40 forwards at batch 1: plain decoding is faster, 1.00x, not 0.68x"
    dear = suggested([Seen(4, 4, 4)] * 8 + [Seen(0, 0, 0)], linear_costs(0.0, 0.5), 41 / 25)
    assert dear == f"drafting costs 2.00 of a forward: a draft half as expensive would give {41 / 17:.2f}x, not 1.64x"
    cheap = suggested([Seen(4, 4, 4), Seen(4, 4, 4), Seen(4, 4, 0)] * 5, linear_costs(0.01, 0.001), 11 / 3.132)
    needed = needed_acceptance(linear_costs(0.01, 0.001), 4, 1, LENGTH, drafting=0.004)
    assert cheap == f"0.67 of first proposals are accepted; K = 4 breaks even with {needed:.2f} at every position"
    steep = replace(linear_costs(draft=0.0), forward={Point(1, LENGTH, w): 6.0 if w > 1 else 1.0 for w in (1, 2, 17)})
    lucky = suggested([Seen(4, 4, 4)] * 8, steep, 3.0)
    assert lucky == "K = 4 cannot break even at batch 1; 1.00 of first proposals are accepted"


def test_a_suggestion_is_of_costs_in_the_middle_of_the_answer() -> None:
    """Of 40 tokens after 64: a slot more takes 0.2 forwards at the answer's beginning, and 0.4 at its end."""
    slopes = {LENGTH: 0.2, LENGTH + 40: 0.4}
    forward = {Point(1, at, width): 1 + slope * (width - 1) for at, slope in slopes.items() for width in (1, 17)}
    said = suggested([Seen(8, 8, 1)] * 20, replace(linear_costs(), forward=forward), 0.5)
    assert said.startswith("a window of 9 costs 3.40 forwards at batch 1: K = 1 would give ")


def test_a_suggestion_is_the_same_on_a_machine_of_any_pace() -> None:
    def paced(known: Costs, pace: float) -> Costs:
        [drafts] = known.strategies.values()
        steps = {
            rows: {LENGTH: {made: pace * seconds for made, seconds in lengths[LENGTH].items()}}
            for rows, lengths in drafts.steps.items()
        }
        forward = {point: pace * seconds for point, seconds in known.forward.items()}
        plain = {point: pace * seconds for point, seconds in known.plain.items()}
        return replace(known, forward=forward, plain=plain, strategies={NAME: replace(drafts, steps=steps)})

    for steps, known, measured in (
        ([Seen(8, 8, 1)] * 20, linear_costs(0.2), 2 / 2.76),
        ([Seen(4, 4, 0)] * 40, linear_costs(), 1 / 1.48),
        ([Seen(4, 4, 4)] * 8 + [Seen(0, 0, 0)], linear_costs(0.0, 0.5), 41 / 25),
    ):
        said = suggested(steps, known, measured)
        assert [suggested(steps, paced(known, pace), measured) for pace in (0.25, 8.0)] == [said, said]


def test_a_step_of_the_draft_takes_what_was_measured_for_its_proposals() -> None:
    """None asked for, none found, some in between: each has a time of its own."""
    drafts = DraftCosts({1: {LENGTH: {-1: 5.0, 0: 1.0, 4: 3.0}}}, {}, {})
    assert [drafts.draft(1, LENGTH, made) for made in (-1, 0, 1, 2, 4)] == [5.0, 1.0, 1.5, 2.0, 3.0]


def test_what_followed_one_accepted_proposal_is_taken_for_as_good_as_the_first_ones() -> None:
    """Twenty steps of one proposal, all accepted: with four, the forty tokens take eight steps of five."""
    assert StepTrace((Seen(1, 1, 1),) * 20).with_k(4).steps == (Seen(4, 4, 4),) * 8
    of_two = StepTrace((Seen(2, 2, 2), Seen(4, 4, 1)))
    assert of_two.with_k(4).steps == (Seen(4, 4, 4),), "one of two later proposals, though three more were made"
    one_later = StepTrace((Seen(2, 2, 2), Seen(1, 1, 1), Seen(1, 1, 1)))
    assert one_later.with_k(8).steps == (Seen(8, 6, 6),), "the only later proposal was accepted: all are"


def test_a_step_proposes_no_more_than_its_text_has_room_for_or_than_is_known_to_follow() -> None:
    """After two accepted proposals the text ends, or nothing was asked for: no more than these are told."""
    assert StepTrace((Seen(2, 2, 2),)).with_k(8).steps == (Seen(8, 2, 2),)
    silent = StepTrace((Seen(1, 1, 1), Seen(0, 0, 0), Seen(0, 0, 0)))
    assert silent.with_k(4).steps == (Seen(4, 2, 2), Seen(0, 0, 0))


def test_a_recommendation_is_told_as_it_was_run_or_with_another_k() -> None:
    cell = cell_predicted(1.394, 1.5)
    assert str(Recommendation(cell, 2, 1.4849)) == "ngram with K = 2, 1.48x expected (1.39x as run)"
    assert str(Recommendation(cell, None, 1.394)) == "ngram as run, 1.39x"
    assert (str(PLAIN), PLAIN.k, PLAIN.expected) == ("plain decoding", None, 1.0)


def test_rows_of_steps_are_those_of_live_requests_of_which_the_last_takes_the_place_of_one_that_ended() -> None:
    """Four requests of one, no, four and three tokens: the first ends at once, and the last has its row from then on.
    One step of the third was a tree, of four proposals three deep."""
    rows = [
        [RowStep(2, 2, 0, 1), RowStep(4, 3, 1, 2), RowStep(2, 2, 0, 1)],
        [RowStep(2, 2, 1, 2), RowStep(1, 1, 0, 1)],
        [RowStep(1, 1, 0, 1)],
    ]
    steps = [replace(Step.of(tuple(each), 5, Marks(*range(10))), k=k) for each, k in zip(rows, (4, 4, 2), strict=True)]
    tokens: list[tuple[int, ...]] = [(7,), (), (7,) * 4, (7,) * 3]
    stats = Stats(Stopwatch.recorded([0.0] * 10), steps=steps)
    outcome = Outcome(tokens, 1.0, 1.0, 8, [], None, LENGTH, stats)
    expected = [
        StepTrace((Seen(4, 2, 0),)),
        StepTrace(()),
        StepTrace((Seen(4, 4, 1), Seen(4, 1, 0), Seen(2, 1, 0)), branched=True),
        StepTrace((Seen(4, 2, 0), Seen(4, 2, 1))),
    ]
    assert traces_of(outcome) == expected
    asked = replace(stats, chosen=[3, 5, 0])
    assert [[seen.asked for seen in one.steps] for one in traces_of(replace(outcome, stats=asked))] == [
        [3],
        [],
        [3, 5, 0],
        [3, 5],
    ]
    each = replace(stats, chosen=[(3, 2, 1), (5, 4), 0])
    assert [[seen.asked for seen in one.steps] for one in traces_of(replace(outcome, stats=each))] == [
        [3],
        [],
        [2, 4, 0],
        [1, 5],
    ]
    assert traces_of(replace(outcome, stats=None)) == []


def test_shares_by_depth_count_the_steps_that_asked_for_proposals() -> None:
    texts = [StepTrace((Seen(4, 4, 2), Seen(0, 0, 0), Seen(4, 1, 1))), StepTrace((Seen(2, 0, 0), Seen(2, 2, 0)))]
    assert kept_by_depth(texts, 3) == [0.5, 0.25, 0.0]
    assert reached(texts, 3) == ([0.75, 0.5, 0.25], [0.5, 0.25, 0.0])
    idle = [StepTrace((Seen(0, 0, 0),))]
    assert kept_by_depth(idle, 2) == [0.0, 0.0]
    assert reached([], 1) == ([0.0], [0.0])
    assert reached([StepTrace((Seen(4, 3, 2),))], 4) == ([1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0])
    assert kept_by_depth(texts, 0) == []


def test_the_docs_have_the_limits_that_predictions_and_the_advisor_keep() -> None:
    text = " ".join((Path(__file__).parents[3] / "docs" / "predictions.md").read_text(encoding="utf-8").split())
    assert f"and {WRONG:.0%} for the costs (`prediction.WRONG`)".replace("%", " %") in text
    assert f"within {1 - CLOSE:.0%} of the best".replace("%", " %") in text


def test_what_was_not_measured_of_a_unit_a_draft_or_a_candidate_counts_as_nothing() -> None:
    unit = UnitTraces(0, ((1,),), PromptSizes((LENGTH,), 10), (text_kept(1),), 0.3)
    cell = replace(cell_predicted(1.2, 1.3), units=(unit,))
    assert cell.measured_end_to_end == 1.0
    assert Forecasts({SETTING.without_workload: linear_costs()}, [cell], [], {}, []).paces() == {}
    assert SETTING in recommended_by_text([cell], linear_costs()), "it does not replay plain's output"
    assert linear_costs().begun(NAME, LENGTH) == linear_costs().begun(None, LENGTH) == 0.5
    whole = Candidate(ARM, [0.1], 0.04)
    assert half_of_sum(whole.texts, whole.degrees, 0.01) == pytest.approx(0.16449, abs=1e-5)
    assert whole.degrees == 0.0
