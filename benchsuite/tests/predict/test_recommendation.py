"""One recommendation of K: suggestions, the advice from a run, the advisor and the break-even map name the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.measure.arms import Arm
from benchsuite.predict.advisor import OWN, Belief, Candidate
from benchsuite.predict.breakeven import ACCEPTANCES, break_even_map, fastest_ks, map_of_windows
from benchsuite.predict.checked import CheckedCell, UnitTraces
from benchsuite.predict.costs import Costs, DraftCosts, strategy_of
from benchsuite.predict.ks import KS
from benchsuite.predict.prediction import Prediction, PromptSizes
from benchsuite.predict.recommendation import WORTH, expected_speedup, recommended, speedups_by_k
from benchsuite.predict.suggestions import suggestion
from benchsuite.predict.traces import Seen, StepTrace
from benchsuite.tests.rig import SETTING
from specdec.calibration import Point
from specdec_plugins.forecast import fastest_k

WIDEST = KS[-1]

ARM = Arm(SETTING, "ngram", k=WIDEST)


def _window(width: int, slope: float) -> float:
    """Forwards of one slot that a window costs."""
    return 1 + slope * (width - 1)


def _costs(slope: float, draft: float) -> Costs:
    """A draft that takes ``draft`` seconds a proposal, and a forward that takes one; nothing else takes time."""
    forward = {Point(1, 64, width): _window(width, slope) for width in range(1, 18)}
    steps = {1: {64: {-1: 0.0} | {k: draft * k for k in range(17)}}}
    drafting = DraftCosts(steps, {1: {0: 0.0, 1: 0.0}}, {})
    return Costs({}, forward, {64: 0.0}, {Point(1, 64, 1): 1.0}, {strategy_of(ARM): drafting}, 0.0, made=0.0)


def _cell(trace: StepTrace, measured: float) -> CheckedCell:
    """The trace as a run with the largest K."""
    unit = UnitTraces(0, ((1,),), PromptSizes((64,), trace.tokens), (trace,), log(measured))
    return CheckedCell(ARM, measured, Prediction(measured, None, None, measured, 1), (unit,))


def _trace(acceptance: float, steps: int) -> StepTrace:
    """Proposals of which each is accepted with one probability, if all before it were."""
    dice = random.Random(2)
    kept = [next((n for n in range(WIDEST) if dice.random() >= acceptance), WIDEST) for _ in range(steps)]
    return StepTrace(tuple(Seen(WIDEST, WIDEST, accepted) for accepted in kept))


def speedup_by_hand(trace: StepTrace, slope: float, draft: float) -> float:
    """Tokens over the seconds of the steps, each with the window and the draft that its proposals need."""
    seconds = sum(_window(step.proposed + 1, slope) + draft * step.proposed for step in trace.steps)
    return trace.tokens / seconds


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(st.floats(0, 1), st.floats(0, 0.5), st.floats(0, 0.3), st.floats(0.8, 1.25))
def test_a_run_its_suggestion_and_the_advisor_name_the_k_that_is_the_fastest_by_hand(
    acceptance: float, slope: float, draft: float, luck: float
) -> None:
    """``luck``: what was measured over what the costs say; plain decoding needs none."""
    trace = _trace(acceptance, 40)
    now = luck * speedup_by_hand(trace, slope, draft)
    by_hand = {0: 1.0} | {k: luck * speedup_by_hand(trace.with_k(k), slope, draft) for k in KS if 0 < k < WIDEST}
    run, known = _cell(trace, now), _costs(slope, draft)
    assert speedups_by_k(run, known) == pytest.approx(by_hand)

    best = recommended([run], known)
    k = 0 if best.cell is None else WIDEST if best.k is None else best.k
    assert best.expected == pytest.approx((by_hand | {WIDEST: now})[k])
    assert best.expected * WORTH >= max(now, *by_hand.values()) * (1 - 1e-9)

    said = suggestion(run, known)
    if "would give" in said and "K = " in said:
        assert f"K = {best.k} would give {best.expected:.2f}x, not {now:.2f}x" in said
    if "plain decoding" in said:
        assert best.cell is None

    arms = {other: Arm(SETTING, "ngram", k=other) if other else Arm(SETTING) for other in by_hand}
    gains = {other: log(expected_speedup(run, known, other)) if other else 0.0 for other in arms}
    belief = Belief([Candidate(arms[other], [gains[other]], OWN) for other in arms], [], 0.04)
    assert [*arms][belief.order()[0]] == fastest_k({other: exp(gain) for other, gain in gains.items()})


def test_every_k_below_the_widest_is_as_much_faster_as_its_replay_and_plain_decoding_is_one() -> None:
    trace, slope, draft, luck = _trace(0.6, 40), 0.1, 0.05, 1.25
    run = _cell(trace, luck * speedup_by_hand(trace, slope, draft))
    by_hand = {k: luck * speedup_by_hand(trace.with_k(k), slope, draft) for k in KS if 0 < k < WIDEST}
    assert speedups_by_k(run, _costs(slope, draft)) == pytest.approx({0: 1.0} | by_hand)
    tree = _cell(replace(trace, branched=True), run.measured)
    assert speedups_by_k(tree, _costs(slope, draft)) == {0: 1.0}


def _cell_of_units(name: str, gains: Sequence[float]) -> CheckedCell:
    """A cell whose units have these logs of their speedups; a tree, which has no other K."""
    units = tuple(
        UnitTraces(n, ((n,),), PromptSizes((64,), 2), (StepTrace((Seen(2, 2, 1),), branched=True),), gain)
        for n, gain in enumerate(gains)
    )
    measured = exp(sum(gains) / len(gains))
    return CheckedCell(Arm(SETTING, name, k=2), measured, Prediction(measured, None, None, measured, 1), units)


WAVE = (0.02, -0.03, 0.01, -0.02, 0.03, -0.01)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"slower": [0.3 + x for x in WAVE]}, ""),
        ({"noisy": [0.38 + 9 * x for x in WAVE]}, "; not distinguishable from noisy"),
        (
            {"noisy": [0.38 + 9 * x for x in WAVE], "slower": [0.3 + x for x in WAVE], "too": [0.395] * 6},
            "; not distinguishable from noisy, too",
        ),
    ],
)
def test_the_fastest_row_of_a_text_names_those_that_may_be_as_fast(others: dict[str, list[float]], said: str) -> None:
    """The best of nine rows over three prompts was 5 to 8 % too fast. Rows of equal noise are compared unit by unit."""
    cells = [_cell_of_units("best", [0.4 + x for x in WAVE])]
    cells += [_cell_of_units(name, gains) for name, gains in others.items()]
    assert str(recommended(cells, _costs(0.1, 0.1))) == f"best as run, 1.49x{said}"


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_rows_of_one_name_each_is_compared(turned: bool) -> None:
    """A draft that was run with two K: one is slower in every prompt, the other may be as fast."""
    slower, noisy = (_cell_of_units("same", gains) for gains in ([0.3 + x for x in WAVE], [0.38 + 9 * x for x in WAVE]))
    noisy = replace(noisy, arm=replace(noisy.arm, k=4))
    cells = [_cell_of_units("best", [0.4 + x for x in WAVE]), *([noisy, slower] if turned else [slower, noisy])]
    assert str(recommended(cells, _costs(0.1, 0.1))).endswith("; not distinguishable from same")


def test_a_row_that_is_no_faster_than_plain_for_sure_says_so_and_few_prompts_tell_nothing() -> None:
    unsure = _cell_of_units("best", [0.04 + 9 * x for x in WAVE])
    assert str(recommended([unsure], _costs(0.1, 0.1))) == "best as run, 1.04x; not distinguishable from plain decoding"
    few = _cell_of_units("best", [0.5, 0.6, 0.7, 0.5, 0.6])
    assert str(recommended([few], _costs(0.1, 0.1))).endswith("; 5 units are too few to tell it from others")


@pytest.mark.slow
@given(st.floats(0, 0.5), st.floats(0, 0.3))
def test_the_fastest_k_of_a_map_is_that_of_leviathans_formula(slope: float, drafting: float) -> None:
    """And a run's own map, from its v(W), is the same map."""
    found = break_even_map(_costs(slope, 0.0), drafting)
    assert [point.speedups for point in map_of_windows({w: _window(w, slope) for w in range(1, 17)}, drafting)] == [
        pytest.approx(point.speedups) for point in found
    ]
    for acceptance, best in zip(ACCEPTANCES, fastest_ks(found)[1, 64], strict=True):
        seconds = {k: _window(k + 1, slope) + drafting * k for k in KS}
        speedups = {k: sum(acceptance**n for n in range(k + 1)) / seconds[k] for k in KS}
        assert speedups[best] == pytest.approx(max(speedups.values()))


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 10)
@given(st.sampled_from(ACCEPTANCES), st.floats(0, 0.5), st.floats(0, 0.3))
def test_the_map_and_a_long_run_with_one_acceptance_recommend_as_fast_a_k(
    acceptance: float, slope: float, draft: float
) -> None:
    """What the map names is within 4 % of the best by replays of 2,000 steps, whose own noise is about 2 %."""
    trace, known = _trace(acceptance, 2000), _costs(slope, draft)
    mapped = fastest_ks(break_even_map(known, draft))[1, 64][ACCEPTANCES.index(acceptance)]
    run = _cell(trace, speedup_by_hand(trace, slope, draft))
    speedups = speedups_by_k(run, known) | {WIDEST: run.measured}
    assert speedups[mapped] >= 0.96 * max(speedups.values())


def test_windows_that_cost_nothing_give_the_whole_of_what_is_accepted() -> None:
    """Leviathan et al. 2211.17192, theorem 3.8, with c = 0; K ends where no window was measured."""
    found = map_of_windows({1: 1.0, 5: 1.0})
    assert [point.k for point in found] == [1, 2, 3, 4]
    for point in found:
        assert point.speedups == pytest.approx([sum(rate**n for n in range(point.k + 1)) for rate in ACCEPTANCES])
    dear = map_of_windows({1: 1.0, 5: 2.0}, 0.25)[1]
    assert dear.speedups[2] == pytest.approx((1 + 0.6 + 0.36) / (1.5 + 0.5))
    assert map_of_windows({}) == map_of_windows({1: 1.0}) == []
