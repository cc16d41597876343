"""Draft-length controllers: they follow the documented rule, and lose little to the best fixed K."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.conformance.models.tiny import requests, save_target
from benchsuite.tests.rig import Make, slow_after
from benchsuite.tests.steps_rig import KnownCosts, book_step, sized_env
from specdec import Controller, SpecdecError
from specdec.devices import Stopwatch
from specdec.interfaces import Env
from specdec.stats import RowStats, RowStep, Stats, Step
from specdec_plugins.controllers.adaptive import Adaptive
from specdec_plugins.controllers.fixed import Fixed
from specdec_plugins.controllers.goodput import CHEAP, Goodput
from specdec_plugins.forecast import (
    CALIBRATED,
    HOPE,
    KEEP_HOPE,
    TRUST,
    Chances,
    Forwards,
    StepChoice,
    Times,
    fastest_k,
    goodputs,
)

CPU = torch.device("cpu")
MOST = 12
Text = Callable[[int, random.Random], Iterator[bool]]


class _Env:
    """The fields of an environment that a controller's bounds need."""

    max_length = 100


def _timed(simulation: Simulation) -> Env:
    """What ``goodput`` is built with; its calibration finds a simulation's own times."""
    costs = KnownCosts(lambda width, rows, length: simulation.forward(width))
    return sized_env(costs, max_rows=ROWS, max_length=100)


class Simulation:
    """Steps of one row whose times follow v(W) = 1 + slope (W - 1) and a draft cost; no clock is read.

    The draft costs ``cost`` a proposal and, in every step, ``observe``. Where it was not asked in the step before, it
    does first what it has ``put_off``. Everything takes ``slower`` times as long.
    """

    def __init__(
        self,
        slope: float = 0.03,
        cost: float = 0.02,
        observe: float = 0.0,
        slower: float = 1.0,
        put_off: float = 0.0,
    ) -> None:
        self.slope, self.cost, self.observe, self.slower, self.put_off = slope, cost, observe, slower, put_off
        self.stats = Stats(Stopwatch(torch.device("cpu")), batch=1, lengths=(50,))
        self.now = 0.0

    def step(self, k: int, kept: int, offered: int) -> None:
        """Add a step that asked for ``k`` proposals, got ``offered`` and kept ``kept``."""
        self.batch(k, [(offered, kept)])

    def batch(self, k: int, rows: list[tuple[int, int]]) -> None:
        """Add a step that asked for ``k`` proposals; each row has the number of proposals that it got and kept."""
        width = 1 + max(offered for offered, _ in rows)
        last = self.stats.steps[-1] if self.stats.steps else None
        first = self.put_off if last and not last.k else 0.0
        propose, forward = 0.001 + first + self.cost * k if k else 0.0, self.forward(width)
        parts = (0.0, 0.0, 0.0, propose, forward, 0.01, 0.0, 0.0, self.observe, 0.01)
        each = [RowStep(offered, offered, kept, kept + 1) for offered, kept in rows]
        self.now = book_step(self.stats, self.now, [self.slower * part for part in parts], each, width)

    def forward(self, width: float) -> float:
        """Seconds of the target's forward over so many slots."""
        return 1 + self.slope * (width - 1)

    def run(self, next_k: Callable[[Stats], Any], steps: int, text: Text, seed: int = 0) -> float:
        """Return tokens per second; ``text(step, coins)`` yields for each proposal whether it is right."""
        coins, tokens = random.Random(seed), 0
        for number in range(steps):
            k, rights, kept = next_k(self.stats), text(number, coins), 0
            while kept < k and next(rights):
                kept += 1
            self.step(k, kept, k)
            tokens += kept + 1
        return tokens / self.now


def constant(rate: float) -> Text:
    def rights(step: int, coins: random.Random) -> Iterator[bool]:
        while True:
            yield coins.random() < rate

    return rights


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.4, 0.6, 1.0]),
    st.integers(1, 9),
)
def test_adaptive_follows_its_documented_rule(
    steps: list[tuple[int, int]], window: int, step: int, target: float, start: int
) -> None:
    env: Any = _Env()
    controller = Adaptive(env, start, window=window, step=step, target=target, minimum=2, maximum=7)
    simulation = Simulation()
    expected, seen = min(max(start, 2), 7), []
    assert controller.next_k(simulation.stats) == expected
    for offered, kept in steps:
        kept = min(kept, offered)
        simulation.step(offered, kept, offered)
        if offered:
            seen.append((offered, kept))
        if len(seen) == window:
            rate_is_enough = sum(k for _, k in seen) >= target * sum(o for o, _ in seen)
            expected = min(max(expected + (step if rate_is_enough else -step), 2), 7)
            seen = []
        assert controller.next_k(simulation.stats) == expected
    assert controller.next_k(Stats(Stopwatch(torch.device("cpu")))) == min(max(start, 2), 7), (
        "each run begins with start"
    )


@pytest.fixture
def goodput(assemble: Make) -> Goodput:
    """A controller built over a real target, with its measured times replaced by those of ``Simulation``."""
    built: Controller = assemble().engine("garbage", controller="goodput", k=MOST).controller
    assert isinstance(built, Goodput)
    built._verify = Forwards(lambda width, rows: 1 + 0.03 * (width - 1))
    return built


def _contents(value: Any) -> Any:
    """Everything that an object of ours holds, as plain values that can be compared."""
    return {name: _contents(held) for name, held in vars(value).items()} if hasattr(value, "__dict__") else value


@pytest.mark.slow
def test_goodput_forgets_all_but_the_times_measured_when_it_was_built(
    assemble: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft is the target, as a tree, and the last steps have K = 0: a run changes all that can change, without the
    usual speed, which is part of the choice that is replaced here; a run begins without one."""
    monkeypatch.setattr(Goodput, "_choose", lambda self: 4 if len(self._stats.steps) < 4 else 0)
    draft = f"tree(model={save_target('llama', tmp_path)}, beam=2, depth=2)"
    engine = assemble(max_rows=2).engine(draft, controller="goodput", k=4)
    controller = engine.controller
    assert isinstance(controller, Goodput)
    new, speeds = deepcopy(_contents(controller)), controller.speeds()
    for _ in range(2):
        engine.run(requests(count=1))
        learned = _contents(controller)
        assert {name for name in new if learned[name] == new[name]} == {
            "_most",
            "_most_rows",
            "_put_off",  # of a draft that puts nothing off
            "_padding_is_free",
            "_probe",
            "_usual",
            "_due",
            "_k",
        }
        controller.forget()
        assert _contents(controller) == new
        assert controller.speeds() == speeds


def test_goodput_knows_that_a_draft_also_costs_time_in_steps_without_proposals(goodput: Goodput) -> None:
    """A draft whose ``observe`` takes as long as a forward slows plain decoding too: K = 0 must not look twice as fast.

    Known exactly: in a step without proposals the target takes 1 second, ``observe`` 1 and the rest 0.02.
    """
    simulation = Simulation(observe=1.0)
    simulation.run(goodput.next_k, 200, constant(0.0))
    assert goodput.speeds()[0] == pytest.approx(1 / 2.02)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_adaptive_has_nothing_to_forget(steps: list[tuple[int, int]]) -> None:
    """K follows from the run alone: a controller that saw each step as it came asks for what a new one asks."""
    env: Any = _Env()
    used, simulation = Adaptive(env, window=2), Simulation()
    for offered, kept in steps:
        used.next_k(simulation.stats)
        simulation.step(offered, min(offered, kept), offered)
    assert used.next_k(simulation.stats) == Adaptive(env, window=2).next_k(simulation.stats)


ROWS = 20
"""Rows of a batch in a world: the chance of each depth is met exactly, as so many twentieths of them."""


class World(Simulation):
    """A simulation whose rows keep at each depth exactly a share of what they kept before: ``chances``, by depth.

    ``wall``: a forward of more than eight slots takes so many seconds more.
    """

    def __init__(self, chances: list[float], cost: float = 0.02, slope: float = 0.03, wall: float = 0.0) -> None:
        super().__init__(slope, cost)
        self.wall = wall
        self.told(chances)

    def told(self, chances: list[float]) -> None:
        """From now on these chances; those past the end are the last one."""
        self.left = [ROWS]
        for depth in range(MOST):
            self.left.append(round(self.left[-1] * chances[min(depth, len(chances) - 1)]))

    def forward(self, width: float) -> float:
        """As the base, and the wall."""
        return super().forward(width) + (self.wall if width > 8 else 0.0)

    def asked(self, k: int) -> None:
        """A step with K proposals in every row."""
        self.batch(k, [(k, sum(left > row for left in self.left[1 : k + 1])) for row in range(ROWS)])

    def goodput(self, k: int) -> float:
        """Tokens per second of a row with K proposals, from the world itself."""
        draft = 0.001 + self.cost * k if k else 0.0
        return sum(self.left[: k + 1]) / ROWS / (self.forward(k + 1) + draft + 0.02)


WORLDS = {
    "always the same": ([0.8], {}),
    "nothing is kept": ([0.0], {}),
    "everything is kept": ([1.0], {}),
    "a hard beginning, then all is easy": ([0.5, 1.0], {}),
    "an easy beginning, then all is hard": ([1.0, 0.9, 0.2], {}),
    "hard in the middle": ([0.95, 0.95, 0.4, 1.0], {"cost": 0.005, "slope": 0.01}),
    "a draft as dear as it is good": ([0.9], {"cost": 0.3}),
    "a dear draft": ([0.5], {"cost": 0.5}),
    "wide windows are dear": ([0.9], {"slope": 0.3}),
    "nine slots are dear": ([1.0], {"wall": 1.5}),
}
"""Chances by depth, and what is not as usual."""


@pytest.mark.parametrize("name", WORLDS)
def test_goodput_ends_within_a_twentieth_of_the_best_k_of_worlds_whose_chances_vary_with_depth(name: str) -> None:
    """What K proposals yield is known exactly, for every K. It first sees 30 steps in which everything is kept."""
    chances, unusual = WORLDS[name]
    world = World([1.0], **unusual)
    controller = Goodput(_timed(world), maximum=MOST)
    ks: list[Any] = []
    for number in range(230):
        if number == 30:
            world.told(chances)
        ks.append(controller.next_k(world.stats))
        world.asked(ks[-1])
    best = max(map(world.goodput, range(MOST + 1)))
    ours = sum(map(world.goodput, ks[-100:])) / 100
    assert ours > 0.95 * best, f"{ours:.3f} tokens a second, the best K {best:.3f}; K {ks[-20:]}"


def test_the_worlds_have_different_best_ks() -> None:
    """So that no rule which overlooks depth, draft or width is right in all of them."""
    best = {}
    for name, (chances, unusual) in WORLDS.items():
        world = World(chances, **unusual)
        best[name] = max(range(MOST + 1), key=world.goodput)
    assert best == {
        "always the same": 8,
        "nothing is kept": 0,
        "everything is kept": 12,
        "a hard beginning, then all is easy": 12,
        "an easy beginning, then all is hard": 3,
        "hard in the middle": 12,
        "a draft as dear as it is good": 5,
        "a dear draft": 0,
        "wide windows are dear": 5,
        "nine slots are dear": 7,
    }


@pytest.mark.parametrize("k", [0, 3])
def test_fixed_asks_for_k_whatever_happens(k: int) -> None:
    env: Any = _Env()
    simulation, controller = Simulation(), Fixed(env, k)
    for offered, kept in ((0, 0), (k, 0), (k, k), (1, 1)):
        assert controller.next_k(simulation.stats) == controller.max_k == k
        simulation.step(k, kept, offered)


@pytest.mark.slow
@pytest.mark.parametrize("rate", slow_after(1, [0.5, 0.0, 0.1, 0.3, 0.7, 0.9, 0.98]))
def test_goodput_loses_little_to_the_best_fixed_k(rate: float, goodput: Goodput) -> None:
    """1,000 simulated steps, seeded: within 5 % of the best fixed K of 0 … 12, found afterwards."""
    ours = Simulation().run(goodput.next_k, 1000, constant(rate))
    best = max(Simulation().run(lambda _, k=k: k, 1000, constant(rate)) for k in range(MOST + 1))  # type: ignore[misc]
    assert ours > 0.95 * best, f"{ours:.3f} tokens a second, the best fixed K gives {best:.3f}"


@pytest.mark.parametrize(("put_off", "rest"), [(0.0, 300), (0.05, 300), (0.5, 900), (3.0, 2500)])
def test_goodput_notices_text_that_becomes_predictable_again(put_off: float, rest: int, goodput: Goodput) -> None:
    """After steps without acceptance, 95 % of proposals are right: within 40 steps K is near the best fixed K. So it is
    where a draft does first what it has put off, and within a share of the rest that pays for that."""
    simulation = Simulation(put_off=put_off)
    simulation.run(goodput.next_k, rest, constant(0.0))
    assert goodput.next_k(simulation.stats) in (0, 1, 2)
    simulation.run(goodput.next_k, math.ceil(put_off / CHEAP), constant(0.95))
    ks: list[Any] = []

    def watched(stats: Stats) -> Any:
        ks.append(goodput.next_k(stats))
        return ks[-1]

    simulation.run(watched, 60, constant(0.95))
    assert min(ks[40:]) >= 6, ks


def test_while_nothing_is_proposed_the_same_request_is_told_what_a_new_forecast_would_say() -> None:
    """Requests wait for the twin in every other step, so that it makes a new forecast in each. Proposals are refused,
    kept, then refused."""

    def text(step: int, coins: random.Random) -> Iterator[bool]:
        return constant(0.95 if 200 <= step < 300 else 0.05)(step, coins)

    asked = []
    for new in (False, True):
        simulation, ks = Simulation(slope=0.2, cost=0.1), list[Any]()
        controller = Goodput(_timed(simulation), maximum=MOST)

        def watched(stats: Stats, new: bool = new, of: Controller = controller, ks: list[Any] = ks) -> Any:
            stats.rows, stats.waiting = (RowStats(0, room=99),), len(stats.steps) % 2 if new else 0
            ks.append(of.next_k(stats))
            return ks[-1]

        simulation.run(watched, 500, text)
        asked.append(ks)
    assert asked[0] == asked[1]
    assert asked[0].count(0) > 250, "the longest rests are seen"
    assert max(asked[0][250:300]) > 2, asked[0]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "put_off"), [(2000, 0.0), (100, 0.0), (10, 0.0), (2000, 1.0), (2000, 4.0)])
def test_probes_cost_less_than_one_percent(length: int, put_off: float, goodput: Goodput) -> None:
    """No proposal is ever right: once this is known, the loss against plain decoding is the cost of the probes, also of
    short requests, of which each may be another text, and of drafts that do first what they have put off."""
    simulation = Simulation(slope=0.1, cost=0.1, put_off=put_off)
    goodput._verify = Forwards(lambda width, rows: simulation.forward(width))

    def next_k(stats: Stats) -> Any:
        request, at = divmod(len(stats.steps), length)
        stats.rows = (RowStats(request, room=length - at - 1),)
        return goodput.next_k(stats)

    simulation.run(next_k, 200, constant(0.0))
    before = simulation.now
    simulation.run(next_k, 2000, constant(0.0))
    plain = Simulation().run(lambda _: 0, 2000, constant(0.0))
    lost = 1 - (2000 / plain) / (simulation.now - before)
    assert 0 < lost < 0.01, f"{lost:.2%}"


def test_goodput_knows_times_before_the_first_step(assemble: Make) -> None:
    controller = assemble(max_rows=2).engine("garbage", controller="goodput", k=8).controller
    assert isinstance(controller, Goodput)
    assert all(controller._verify.at(width, 1) > 0 for width in range(1, 10))
    assert not controller.deterministic


def test_times_between_known_ones_lie_on_a_line() -> None:
    times = Times()
    assert times.at(3) == 0.0
    for key, seconds in ((1, 1.0), (5, 3.0), (5, 100.0), (5, 3.0)):
        times.seen(key, seconds)
    assert times.at(5) == 3.0
    assert times.at(3) == 2.0
    assert times.at(7) == 4.0
    assert times.at(0) == 1.0


@pytest.mark.parametrize(
    "text", ["adaptive(window=0)", "adaptive(minimum=9)", "goodput(probe=0)", "adaptive(target=2)"]
)
def test_a_controller_refuses_what_its_rule_cannot_use(text: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=r"was given .*; expected "):
        assemble().engine("ngram", controller=text)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0.5, 2.0)), min_size=1, max_size=30),
    st.floats(0.1, 10.0),
)
def test_a_machine_that_is_slower_for_all_widths_changes_its_pace_and_no_width(
    seen: list[tuple[int, float]], slower: float
) -> None:
    """The same forwards, all of them ``slower`` times as long: every width keeps its seconds at the calibrated pace."""
    usual, slowed = (Forwards(lambda width, rows: 0.01 * width * rows) for _ in range(2))
    for width, odd in seen:
        usual.seen(width, 3, 0.01 * width * odd)
        slowed.seen(width, 3, 0.01 * width * odd * slower)
    assert slowed.pace == pytest.approx(slower * usual.pace)
    assert [slowed.at(width, 3) for width in range(1, 6)] == pytest.approx(
        [usual.at(width, 3) for width in range(1, 6)]
    )


def test_a_width_that_was_calibrated_wrong_is_corrected_as_often_as_it_is_seen() -> None:
    """Three slots take twice what was calibrated: after n of them, n of n + CALIBRATED parts are known."""
    forwards = Forwards(lambda width, rows: 1.0)
    for _ in range(9):
        forwards.seen(1, 1, 1.0)
    for count in range(1, 40):
        forwards.seen(3, 1, 2.0)
        forwards.seen(1, 1, 1.0)
        forwards.seen(1, 1, 1.0)
        assert forwards.at(3, 1) == pytest.approx(2 ** (count / (count + CALIBRATED)))
        assert forwards.at(1, 1) == forwards.at(2, 1) == 1.0


def test_the_pace_is_the_median_of_five_forwards_less_what_is_known_of_their_widths() -> None:
    """Written again from the sentences of ``Forwards``: the first forward sets the pace alone."""
    forwards, late, wrong, pace = Forwards(lambda width, rows: 1.0), list[float](), dict[int, list[float]](), 1.0
    for width, seconds in ((1, 1.0), (3, 4.0), (3, 4.4), (3, 3.6), (3, 4.0), (1, 1.1), (3, 4.2), (3, 4.2), (2, 1.5)):
        forwards.seen(width, 1, seconds)
        if late:
            wrong.setdefault(width, []).append(math.log(seconds / pace))
        known = wrong.get(width, [])
        late.append(math.log(seconds) - sum(known) / (len(known) + CALIBRATED))
        pace = math.exp(statistics.median(late[-5:]))
        assert forwards.pace == pytest.approx(pace)
    assert forwards.at(3, 1) == pytest.approx(math.exp(sum(wrong[3]) / (len(wrong[3]) + CALIBRATED)))


def test_a_clock_that_does_not_move_says_nothing_of_forwards() -> None:
    forwards = Forwards(lambda width, rows: 1.0)
    forwards.seen(1, 1, 0.0)
    assert (forwards.pace, forwards.at(1, 1)) == (1.0, 1.0)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_rows_of_a_batch_count_as_the_root_of_their_number_of_observations(rows: int) -> None:
    """Every row keeps its first proposal: the prior counts KEEP_HOPE TRUST."""
    simulation = Simulation()
    controller = Goodput(_timed(simulation), maximum=2)
    controller._choose = lambda: 1  # type: ignore[method-assign]
    simulation.stats.batch = rows
    controller.next_k(simulation.stats)
    simulation.batch(1, [(1, 1)] * rows)
    controller.next_k(simulation.stats)
    prior = KEEP_HOPE * TRUST
    expected = (rows**0.5 + prior * HOPE) / (rows**0.5 + prior)
    assert controller._kept.reached(1) == pytest.approx([expected])


@pytest.mark.parametrize(("rows", "measured"), [(1, {1}), (3, {1, 2, 3}), (8, {1, 2, 4, 8}), (12, {1, 2, 4, 8, 12})])
def test_goodput_calibrates_a_few_widths_and_numbers_of_rows_at_two_lengths(rows: int, measured: set[int]) -> None:
    by_most = {0: [1, 2], 3: [1, 2, 4], 4: [1, 2, 5], 5: [1, 2, 4, 6], 12: [1, 2, 4, 8, 13], 15: [1, 2, 4, 8, 12, 16]}
    for maximum, widths in by_most.items():
        costs = KnownCosts(lambda width, rows, length: width**2 * rows + length)
        controller = Goodput(sized_env(costs, max_rows=rows, max_length=101), maximum=maximum)
        assert costs.wanted == [(measured, [25, 101 - max(widths)], widths)]
        found = [controller._verify.at(width, 2) for width in widths]
        assert found == pytest.approx([width**2 * 2 + 50 for width in widths])


def test_a_forward_costs_what_it_costs_at_the_context_of_the_longest_row() -> None:
    """By a known cost that is a line in the context; below the quarter it is taken for the quarter's."""
    costs = KnownCosts(lambda width, rows, length: width * (1 + 0.01 * rows * length))
    controller, stats = Goodput(sized_env(costs, max_rows=4, max_length=100), maximum=3), Stats(Stopwatch(CPU), batch=2)
    for lengths, context in (((), 50), ((30, 60), 60), ((90, 7), 90), ((3, 4), 25)):
        stats.lengths = lengths
        controller.next_k(stats)
        assert controller.speeds()[0] == pytest.approx(1 / (1 + 0.02 * context))
    controller.forget()
    assert controller.speeds()[0] == pytest.approx(1 / (1 + 0.04 * 50)), "of all rows, before a run tells how many"


def test_what_is_wrong_of_a_width_with_some_rows_says_nothing_of_it_with_others() -> None:
    forwards = Forwards(lambda width, rows: 1.0 * rows)
    for _ in range(40):
        forwards.seen(1, 2, 2.0)
        forwards.seen(4, 2, 3.0)
    assert forwards.at(4, 2) > 1.1 * forwards.at(1, 2)
    assert (forwards.at(4, 1), forwards.at(1, 1), forwards.at(4, 3)) == (1.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("speeds", "tree", "since", "k"),
    [
        ([1.0, 2.0, 3.0, 2.0], False, 0, 2),
        ([1.0, 3.0, 3.0, 2.0], False, 0, 1),
        ([1.0, 9.0, 9.0, 2.0], True, 0, 3),
        ([3.0, 9.0, 9.0, 2.0], True, 0, 0),
        ([0.3, 0.9, 0.9, 0.2], True, 0, 0),
        ([3.0, 9.0, 9.0, 2.0], True, 111, 0),  # a third is lost: a probe for each 111.1 steps
        ([3.0, 9.0, 9.0, 2.0], True, 112, 3),
        ([3.0, 1.0, 2.0, 2.0], False, 111, 0),
        ([3.0, 1.0, 2.0, 2.0], False, 112, 2),
        ([3.0, 3.0, 3.0, 2.0], False, 4, 0),
        ([3.0, 3.0, 3.0, 2.0], False, 5, 1),
        ([3.0, 2.97, 2.0, 2.0], False, 4, 0),  # a hundredth: for each 3.3, but not before the option's 5
        ([3.0, 2.97, 2.0, 2.0], False, 5, 1),
    ],
)
def test_goodput_takes_the_fastest_k_and_probes_the_next_as_seldom_as_its_loss_asks(
    speeds: list[float], tree: bool, since: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Goodput(_timed(Simulation()), maximum=3, probe=5)
    monkeypatch.setattr(controller, "_choices", lambda: [StepChoice(speed, 1.0, k) for k, speed in enumerate(speeds)])
    controller._tree, controller._since = tree, since
    assert controller._choose() == k
    nothing = Goodput(_timed(Simulation()), maximum=0)
    monkeypatch.setattr(nothing, "speeds", list)
    assert nothing._choose() == 0


@pytest.mark.parametrize("slower", [0.25, 1.0, 8.0])
def test_on_a_machine_that_is_slower_for_everything_goodput_expects_the_same_of_every_k(slower: float) -> None:
    """Speeds are at the calibrated pace: the draft's time and the rest are brought to it as the forwards are."""
    asked, expected = [], []
    for simulation in (Simulation(observe=0.5), Simulation(observe=0.5, slower=slower)):
        controller = Goodput(_timed(Simulation()), maximum=4)
        for kept in (2, 0, 1, 4, 0, 3):
            k: Any = controller.next_k(simulation.stats)
            asked.append(k)
            simulation.step(k, min(k, kept), k)
        controller.next_k(simulation.stats)
        expected.append(controller.speeds())
    assert asked[:6] == asked[6:]
    assert expected[0] == pytest.approx(expected[1])


class Told:
    """What a prediction is told, in place of itself."""

    pace = 1.0

    def __init__(self) -> None:
        self.seen_by: list[tuple[Any, ...]] = []
        self.faded_by: list[float] = []

    def at(self, key: int) -> float:
        return 0.0

    def seen(self, *given: Any) -> None:
        self.seen_by.append(tuple(round(x, 9) for x in given))

    def faded(self, share: float) -> None:
        self.faded_by.append(share)


def test_goodput_learns_from_a_step_what_was_kept_made_and_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows; of the second step one has three proposals of which two are kept, the other one that is kept."""
    controller, simulation = Goodput(_timed(Simulation()), maximum=4), Simulation(observe=0.5)
    for name in ("_kept", "_made", "_verify", "_draft", "_rest"):
        monkeypatch.setattr(controller, name, Told())
    parts: Any = controller
    asked = iter([4, 0, 4, 2])
    monkeypatch.setattr(controller, "_choose", lambda: next(asked))
    assert controller.next_k(simulation.stats) == 4
    assert (parts._kept.faded_by, parts._made.faded_by) == ([0.5], [0.5])
    simulation.batch(4, [(3, 2), (1, 1)])
    assert controller.next_k(simulation.stats) == 0
    assert parts._verify.seen_by == [(4, 2, 1.09)]
    assert parts._draft.seen_by == [(4, 0.581)]
    assert parts._rest.seen_by == [(1, 0.02)]
    one, both = round(0.5**0.5, 9), round(2**0.5, 9)
    assert parts._kept.seen_by == [(1, both, both), (2, one, both), (3, 0.0, one), (4, 0.0, 0.0)]
    assert parts._made.seen_by == [(1, 1.0, 1.0), (2, 1.0, 1.0), (3, 1.0, 1.0), (4, 0.0, 1.0)]
    assert (controller._since, controller._tree) == (0, False)
    for part in (parts._kept, parts._made, parts._verify, parts._draft, parts._rest):
        part.seen_by.clear()
    simulation.batch(0, [(0, 0), (0, 0)])
    assert controller.next_k(simulation.stats) == 4
    assert parts._verify.seen_by == [(1, 2, 1.0)]
    assert parts._rest.seen_by == [(0, 0.52)], "what the draft costs without proposing is part of the rest"
    assert parts._kept.seen_by == parts._made.seen_by == parts._draft.seen_by == []
    assert controller._since == 1
    simulation.stats.proposed(5, 2)  # a tree: five nodes, of depths 1 and 2
    simulation.stats.steps.append(Step.of((RowStep(5, 2, 0, 1),), 6, simulation.stats.steps[-1].marks))
    assert controller.next_k(simulation.stats) == 2
    assert (controller._since, controller._tree) == (0, True)
    assert controller._seen == 3
    other = Simulation()
    asked = iter([1])
    assert controller.next_k(other.stats) == 1
    assert (controller._seen, parts._kept.faded_by, parts._made.faded_by) == (0, [0.5, 0.5], [0.5, 0.5])
    begun, controller._since = Simulation(), 0
    begun.batch(0, [(0, 0)])
    asked = iter([1])
    parts._draft.seen_by.clear()
    assert controller.next_k(begun.stats) == 1
    assert (controller._seen, controller._since, parts._draft.seen_by) == (1, 1, []), (
        "nobody had asked before that step"
    )


def test_chances_are_running_shares_with_the_depth_before_as_their_prior() -> None:
    chances = Chances(hope=0.5)
    # The mean of a beta distribution of weight 6, in which each depth that was reached is one more hit.
    assert chances.reached(3) == pytest.approx([3 / 6, 3 / 6 * 4 / 7, 3 / 6 * 4 / 7 * 5 / 8])
    chances.seen(2, 1.0, 1.0)
    # Depth 1 has no observation, and depth 2 one hit of one try beside the prior of three.
    second = (1 + 3 * 4 / 7) / (1 + 3)
    assert chances.reached(3) == pytest.approx([0.5, 0.5 * second, 0.5 * second * (7 * second + 1) / 8])
    chances.seen(2, 0.0, 1.0)
    second = (0.85 + 3 * 4 / 7) / (1.85 + 3)
    assert chances.reached(2) == pytest.approx([0.5, 0.5 * second])
    chances.faded(0.5)
    second = (0.425 + 3 * 4 / 7) / (0.925 + 3)
    assert chances.reached(2) == pytest.approx([0.5, 0.5 * second])
    chances.seen(1, 0.0, 1.0)
    prior = 3 * 0.95  # it fades with every observation of depth 1
    assert chances.reached(1) == pytest.approx([prior * 0.5 / (1 + prior)])
    assert chances.reached(0) == []
    assert Chances().reached(1) == [0.6]


def test_times_are_medians_of_nine_and_a_drafts_are_proportional_below_what_was_measured() -> None:
    times = Times()
    for second in range(12):
        times.seen(4, float(second))
    assert times.at(4) == 7.0, "the median of 3 … 11"
    assert [times.at(key) for key in (0, 1, 3)] == [7.0] * 3
    assert times.at(8) == 14.0, "one measured key: the cost of one proposal"
    draft = Times(proportional=True)
    assert draft.at(3) == 0.0
    draft.seen(4, 8.0)
    draft.seen(6, 9.0)
    assert [draft.at(key) for key in (0, 1, 2, 4, 5, 6, 8)] == [8.0, 2.0, 4.0, 8.0, 8.5, 9.0, 10.0]
    single = Times()
    single.seen(0, 3.0)
    assert single.at(5) == 3.0, "what was measured at 0 says nothing of more"


def test_the_forecast_is_tokens_over_seconds_with_a_slot_as_likely_as_its_proposal() -> None:
    found = goodputs(
        [0.5, 0.25], [1.0, 0.5], lambda width: 1.0 + 0.5 * width, lambda k: 0.25 * k, {0: 2.0, 1: 0.125}.__getitem__
    )
    assert found == pytest.approx(
        [1 / (1.5 + 0 + 2), 1.5 / (1.5 + 0.5 + 0.25 + 0.125), 1.75 / (1.5 + 0.5 + 0.25 + 0.5 + 0.125)]
    )
    falling = goodputs([1.0], [1.0], lambda width: 3.0 - width, lambda k: 0.0, lambda k: 0.0)
    assert falling == [0.5, 1.0], "a wider window is never faster"
    assert (fastest_k({0: 1.0, 4: 3.0, 2: 3.0}), fastest_k({0: 0.0})) == (2, 0)
