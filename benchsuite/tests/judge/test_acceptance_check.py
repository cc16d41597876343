"""The check of a chosen acceptance: exact laws, servers with planted faults, and the steps that find them."""

from __future__ import annotations

from collections import Counter
from itertools import product, takewhile
from math import fsum, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.judge.acceptance_check import (
    AcceptanceCheck,
    PlaceCheck,
    acceptance_check,
    off_by,
    planted_schedules,
    steps_needed,
    whole_steps,
)
from benchsuite.judge.fidelity import FALSE_ALARM
from benchsuite.tests.rig import Make
from benchsuite.tests.synthetic_servers import (
    APositionEarly,
    APositionLate,
    IndependentDraws,
    LongerMean,
    ShorterMean,
    SyntheticServer,
)
from specdec import Request, SamplingParams, SpecdecError
from specdec.draft_counts import DraftCounts
from specdec_plugins.schedule import Schedule, schedule_of

ASKED = {
    "length": schedule_of(4, length=2.6),
    "rate": schedule_of(4, rate=0.66565),
    "rates": schedule_of(3, rates="0.7-0.5-0.3"),
}
FAULTS = (APositionLate, APositionEarly, LongerMean, ShorterMean, IndependentDraws)


def schedule_faults() -> list[tuple[str, type[SyntheticServer]]]:
    """Every fault of every schedule; one rate for all positions is no fault where that is asked for."""
    return [(name, fault) for name in ASKED for fault in FAULTS if (name, fault) != ("rate", IndependentDraws)]


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0]), min_size=1, max_size=2), st.integers(1, 3), st.data())
def test_p_values_are_those_of_every_outcome(rates: list[float], drafts: int, data: st.DataObject) -> None:
    schedule = Schedule(tuple(rates))
    outcomes = [*product(range(len(rates) + 1), repeat=drafts)]
    kept = data.draw(st.sampled_from(outcomes))
    check = acceptance_check(schedule, DraftCounts.of_steps((len(rates), one) for one in kept))
    chances = [prod(schedule.histogram[one] for one in outcome) for outcome in outcomes]
    more = fsum(p for p, outcome in zip(chances, outcomes, strict=True) if sum(outcome) >= sum(kept))
    fewer = fsum(p for p, outcome in zip(chances, outcomes, strict=True) if sum(outcome) <= sum(kept))
    assert check.total_p == pytest.approx(min(1, 2 * min(more, fewer)), abs=1e-9)
    reached = drafts
    for depth, place in enumerate(check.places, 1):
        deeper = sum(one >= depth for one in kept)
        assert (place.reached, place.accepted, place.rate) == (reached, deeper, rates[depth - 1])
        coins = [*product((True, False), repeat=reached)]
        shares = [prod(place.rate if right else 1 - place.rate for right in coin) for coin in coins]
        more = fsum(p for p, coin in zip(shares, coins, strict=True) if sum(coin) >= deeper)
        fewer = fsum(p for p, coin in zip(shares, coins, strict=True) if sum(coin) <= deeper)
        assert place.p_value == pytest.approx(min(1, 2 * min(more, fewer)), abs=1e-9)
        reached = deeper


@pytest.mark.parametrize("name", ASKED)
def test_a_server_that_accepts_as_asked_passes(name: str) -> None:
    for words in ("positions", "total"):
        check = acceptance_check(ASKED[name], SyntheticServer(ASKED[name], words=words).take(3_000))
        assert check.failure is None
        assert "may accept as asked" in "\n".join(check.lines)


@pytest.mark.parametrize(("name", "fault"), schedule_faults())
def test_a_fault_is_found_with_the_steps_that_are_said(name: str, fault: type[SyntheticServer]) -> None:
    """Nine of ten servers at least: 99 in 100 are expected, and 100 of each are asked in the deep test."""
    asked = ASKED[name]
    needed = steps_needed(asked, fault(asked).schedule)
    assert needed is not None
    found = [acceptance_check(asked, fault(asked, seed).take(needed)).failure for seed in range(10)]
    assert sum(one is not None for one in found) >= 9


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), schedule_faults())
def test_a_fault_is_found_as_often_as_is_said(
    name: str, fault: type[SyntheticServer], pytestconfig: pytest.Config
) -> None:
    """At the steps that are said nearly always, and at a third of them less often, unless one step is enough."""
    seeds = 200 if pytestconfig.getoption("specdec_deep") else 25
    asked = ASKED[name]
    needed = steps_needed(asked, fault(asked).schedule)
    assert needed is not None

    def found(steps: int) -> float:
        checks = (acceptance_check(asked, fault(asked, seed).take(steps)) for seed in range(seeds))
        return sum(check.failure is not None for check in checks) / seeds

    assert found(needed) >= 0.96
    assert needed < 20 or found(needed // 3) < 0.9


def test_independent_draws_of_the_right_mean_are_found_by_their_positions_alone() -> None:
    asked = ASKED["length"]
    server = IndependentDraws(asked, words="total")
    assert server.schedule.length == pytest.approx(asked.length)
    assert steps_needed(asked, server.schedule, by_position=False) is None
    check = acceptance_check(asked, server.take(200))
    assert check.places == ()
    assert check.failure is None
    assert "the mean alone is tested" in check.lines[0]
    assert "independent draws of this mean never" in check.lines[-1]
    odd = acceptance_check(asked, IndependentDraws(asked).take(200)).failure
    assert odd is not None
    assert "position 3 accepted" in odd or "position 1 accepted" in odd


def test_the_verdict_names_the_position_and_the_mean() -> None:
    said = acceptance_check(ASKED["rates"], APositionLate(ASKED["rates"]).take(500)).failure
    assert said is not None
    assert said.startswith("500 steps do not accept as asked: position 1 accepted 500 of 500, asked for is 0.7; ")
    assert "asked for is 2.155; " in said
    assert f"{FALSE_ALARM:.0e} or more is expected" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_our_own_replays_accept_as_they_are_told_to(name: str, assemble: Make) -> None:
    """Steps at the end of a text have fewer than K proposals and are left out; the counts are of no schedule that is
    off by a position."""
    asked, k = ASKED[name], len(ASKED[name].rates)
    option = {"length": "length=2.6", "rate": "0.66565", "rates": "rates=0.7-0.5-0.3"}[name]
    engine = assemble(max_length=256).engine(f"oracle({option})", k=k)
    engine.run([Request(n, (1, 2, 3, n), SamplingParams(max_new_tokens=128)) for n in range(8)])
    steps = [row for step in engine.stats.steps for row in step.each]
    counts = whole_steps(k, [row.proposed for row in steps], [row.accepted for row in steps])
    assert 300 < (counts.drafts or 0) < len(steps)
    assert acceptance_check(asked, counts).failure is None
    for other in ("a position too late", "a position too early"):
        assert acceptance_check(planted_schedules(asked)[other], counts).failure is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_p_values_of_a_right_server_are_no_smaller_than_chance_makes_them(name: str) -> None:
    """Answers end after so many tokens, so that how many steps they have follows from what was accepted."""
    asked, small = ASKED[name], Counter[float]()
    for seed in range(300):
        server = SyntheticServer(asked, seed, cut=bool(seed % 2))
        for _ in range(5):
            server.answer(128)
        proposed, accepted = zip(*server.steps, strict=True)
        p = acceptance_check(asked, whole_steps(len(asked.rates), proposed, accepted)).p_value
        small.update(level for level in (0.01, 0.05, 0.2) if p <= level)
    for level, count in small.items():
        assert count <= 300 * level + 4 * (300 * level) ** 0.5


@given(st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=1, max_size=5), st.sampled_from([-0.04, 0.04, 0.3]))
def test_a_schedule_that_is_off_is_off_by_so_much(rates: list[float], share: float) -> None:
    schedule = Schedule(tuple(rates))
    other = off_by(schedule, share)
    if other is None:
        possible = len([*takewhile(bool, rates)])
        assert not 1 < schedule.length * (1 + share) < 1 + possible
    else:
        assert other.length == pytest.approx(schedule.length * (1 + share))
        assert all(0 <= rate <= 1 for rate in other.rates)


def test_what_is_no_other_schedule_is_no_fault() -> None:
    assert "independent draws of this mean" not in planted_schedules(ASKED["rate"])
    assert set(planted_schedules(schedule_of(1, rate=1.0))) == {"a position too early", "a mean 4% lower"}
    assert steps_needed(ASKED["rate"], ASKED["rate"]) is None


def test_shorter_steps_are_left_out_where_each_is_known_and_refused_where_not() -> None:
    asked = ASKED["rate"]
    server = SyntheticServer(asked, cut=True)
    for _ in range(40):
        server.answer(64)
    proposed, accepted = zip(*server.steps, strict=True)
    assert min(proposed) < 4
    counts = whole_steps(4, proposed, accepted)
    assert counts.drafts == proposed.count(4)
    assert acceptance_check(asked, counts).failure is None
    with pytest.raises(SpecdecError, match="K = 4 in each: shorter steps"):
        acceptance_check(asked, DraftCounts.of_steps(server.steps))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (DraftCounts(), "does not count steps, proposals and accepted"),
        (DraftCounts(0, 0, 0), "0 steps were counted; expected 1 to"),
        (DraftCounts(3_000_000, 12_000_000, 0), "3000000 steps were counted"),
        (DraftCounts(10, 30, 7), "10 steps had 30 proposals; expected 40"),
    ],
)
def test_counts_that_cannot_be_tested_are_refused(counts: DraftCounts, said: str) -> None:
    with pytest.raises(SpecdecError, match=said):
        acceptance_check(ASKED["rate"], counts)


def test_no_accepted_proposal_is_counted_at_every_position() -> None:
    check = acceptance_check(schedule_of(2, rate=0.5), DraftCounts(40, 80, 0))
    assert check.places == (PlaceCheck(40, 0, 0.5), PlaceCheck(0, 0, 0.5))
    assert check.places[1].p_value == 1
    assert isinstance(check, AcceptanceCheck)
    assert check.failure is not None
    assert check.lines[1] == "position 2: no step reached it; asked for is 0.5000"
