"""``budget``: no K of the rows is faster than those it gives, and with one row, or equal rows, it is ``goodput``."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.tests.rig import Make
from benchsuite.tests.steps_rig import KnownCosts, book_step, sized_env
from specdec import Controller, SpecdecError
from specdec.devices import Stopwatch
from specdec.interfaces import Env
from specdec.lengths import each_k
from specdec.stats import RowStats, RowStep, Stats
from specdec_plugins.controllers.budget import Budget
from specdec_plugins.controllers.goodput import Goodput
from specdec_plugins.forecast import (
    KEEP,
    TRUST,
    Chances,
    ComeTrue,
    beyond_the_usual,
    fastest_k,
    fastest_of_rows,
    fastest_of_slots,
    goodputs,
    speeds_to_the_end,
    step_seconds,
    unpadded,
    worth_of_rows,
)


def products(chances: list[float]) -> list[float]:
    """The chance of reaching each depth, from the chance at each given the depth before."""
    return list(itertools.accumulate(chances, lambda a, b: a * b))


def of_batch(kept: list[list[float]], seconds: list[float], price: float, ks: tuple[int, ...]) -> float:
    """Tokens per second of a row, from the definition."""
    tokens = sum(1 + sum(chances[:k]) for chances, k in zip(kept, ks, strict=True))
    return tokens / len(kept) / (seconds[max(ks)] + price * sum(ks))


CHANCE = st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.9, 1.0])
ROWS = st.lists(st.lists(CHANCE, max_size=4).map(products), min_size=1, max_size=3)
SECONDS = st.lists(st.sampled_from([0.0, 0.01, 0.2, 1.5]), min_size=5, max_size=5).map(
    lambda steps: [1 + sum(steps[: k + 1]) for k in range(5)]
)
PRICE = st.sampled_from([0.0, 0.0, 0.02, 0.3, 3.0])


@given(ROWS, SECONDS, PRICE)
def test_no_other_ks_are_faster(kept: list[list[float]], seconds: list[float], price: float) -> None:
    """Beside every K of every row, up to four proposals in up to three rows; a row has as much room as chances."""
    found = fastest_of_rows(kept, seconds, price)
    every = [*itertools.product(*(range(len(chances) + 1) for chances in kept))]
    assert len(found) == len(seconds)
    for most, (speed, ks) in enumerate(found):
        assert all(0 <= k <= min(most, len(chances)) for k, chances in zip(ks, kept, strict=True))
        within = [ks for ks in every if max(ks) <= most and (any(ks) or most == 0 or not any(kept))]
        # A window as wide as allowed: what it costs if no row needs it is what the next narrower one says.
        best = max(of_batch(kept, [seconds[most]] * 5, price, ks) for ks in within)
        assert speed == pytest.approx(best)
        assert of_batch(kept, [seconds[most]] * 5, price, ks) == pytest.approx(best)
    assert max(speed for speed, _ in found) == pytest.approx(max(of_batch(kept, seconds, price, ks) for ks in every))


@given(ROWS, SECONDS, PRICE, st.sampled_from([0.5, 0.8, 1.0]))
def test_the_better_its_chances_the_more_a_row_gets_and_the_wider_the_window_if_all_get_better(
    kept: list[list[float]], seconds: list[float], price: float, worse: float
) -> None:
    """The first row's chances, then those of all rows, ``worse`` times as large."""

    def scaled(rows: int) -> list[list[float]]:
        return [[worse * chance for chance in chances] if row < rows else chances for row, chances in enumerate(kept)]

    before, after = fastest_of_rows(scaled(1), seconds, price), fastest_of_rows(kept, seconds, price)
    for most, ((slower, few), (faster, more)) in enumerate(zip(before, after, strict=True)):
        assert slower <= faster + 1e-12
        if few[0] > more[0]:  # by rounding, where one slot more changes nothing
            tied = (few[0], *more[1:])
            assert of_batch(kept, [seconds[most]] * 5, price, tied) == pytest.approx(faster)
    all_worse = dict(enumerate(speed for speed, _ in fastest_of_rows(scaled(len(kept)), seconds)))
    all_better = dict(enumerate(speed for speed, _ in fastest_of_rows(kept, seconds)))
    wide = fastest_k(all_worse)
    assert fastest_k(all_better) >= wide or all_better[wide] == pytest.approx(max(all_better.values()))


@given(st.lists(CHANCE, min_size=4, max_size=4).map(products), st.integers(1, 3), SECONDS)
def test_rows_with_equal_chances_get_one_k_and_that_of_goodput(
    chances: list[float], rows: int, seconds: list[float]
) -> None:
    steps = [one - seconds[0] for one in seconds]
    costs: Any = ([1.0] * 4, lambda width: seconds[0] + steps[width - 1], lambda k: 0.0, lambda some: 0.0)
    assert step_seconds(*costs) == pytest.approx(seconds)
    found = fastest_of_rows([chances] * rows, step_seconds(*costs))
    assert [speed for speed, _ in found] == pytest.approx(goodputs(chances, *costs))
    for k, (_, ks) in enumerate(found):
        assert ks == (min(k, sum(chance > 0 for chance in chances)),) * rows or chances[0] == 0


@given(st.lists(st.tuples(*[st.tuples(st.integers(1, 9), st.integers(1, 9))] * 3), min_size=1, max_size=4))
def test_ks_beyond_the_usual_speed_are_the_fastest_of_steps_that_differ(
    steps: list[tuple[tuple[int, int], ...]],
) -> None:
    """Tokens and seconds of three K in each of up to four steps, beside every choice of a K for each."""

    def together(ks: Sequence[int]) -> float:
        pairs = [step[k] for step, k in zip(steps, ks, strict=True)]
        return sum(tokens for tokens, _ in pairs) / sum(seconds for _, seconds in pairs)

    usual = 0.0
    for _ in range(9):
        ks = [
            fastest_k(
                beyond_the_usual(
                    {k: tokens / seconds for k, (tokens, seconds) in enumerate(step)},
                    {k: seconds for k, (_, seconds) in enumerate(step)},
                    usual,
                )
            )
            for step in steps
        ]
        usual = together(ks)
    assert usual == pytest.approx(max(map(together, itertools.product(range(3), repeat=len(steps)))))


def test_slots_go_to_the_likeliest_until_the_next_costs_more_than_it_brings() -> None:
    """By hand: three rows that emit four tokens a second need a chance above 0.4 for what costs a tenth of one."""
    kept = [[0.9, 0.8, 0.29], [0.5, 0.31], [0.2]]
    found = fastest_of_rows(kept, [1.0, 1.0, 1.0, 1.0], price=0.0)
    assert [ks for _, ks in found] == [(0, 0, 0), (1, 1, 1), (2, 2, 1), (3, 2, 1)]
    found = fastest_of_rows(kept, [1.0, 1.0, 1.0, 1.0], price=0.1)
    assert found[3][1] == max(
        itertools.product(range(4), range(3), range(2)), key=lambda ks: of_batch(kept, [1.0] * 4, 0.1, ks)
    )
    assert found[3][1] == (2, 1, 0)
    assert found[3][0] == pytest.approx((3 + 0.9 + 0.8 + 0.5) / 3 / 1.3)


@given(ROWS, SECONDS, PRICE, st.sampled_from([0.0, 0.6, 1.2]))
def test_no_other_ks_are_faster_where_padding_costs_nothing(
    kept: list[list[float]], steps: list[float], price: float, usual: float
) -> None:
    """Beside every K of every row, of drafts that cost nothing and propose all that they are asked for, where a further
    slot costs no less than the one before. With a usual speed: no others bring more beyond it."""
    seconds = list(itertools.accumulate(sorted(after - before for before, after in itertools.pairwise(steps))))
    each, rows = [1.0, *(1 + one for one in seconds)], len(kept)

    def verify(width: float) -> float:
        return float(np.interp(width, range(1, 6), each))

    found = fastest_of_slots(kept, [1.0] * 4, verify, lambda k: 0.0, lambda k: 0.0, price, usual)

    def value(ks: Sequence[int]) -> tuple[float, float]:
        tokens = 1 + sum(sum(chances[:k]) for chances, k in zip(kept, ks, strict=True)) / rows
        took = verify(1 + sum(ks) / rows) + price * sum(ks)
        return tokens / took, (tokens - usual * took if usual else tokens / took)

    for speed, took, asked in found:
        ks = each_k(asked, rows)
        assert speed == pytest.approx(value(ks)[0])
        assert speed * took == pytest.approx(1 + sum(sum(c[:k]) for c, k in zip(kept, ks, strict=True)) / rows)
    every = [*itertools.product(*(range(len(chances) + 1) for chances in kept))]
    ours, best = (max(value(ks)[1] for ks in some) for some in ([each_k(ks, rows) for *_, ks in found], every))
    shown = rows > 1 and max(value(ks)[0] for ks in every) <= value((0,) * rows)[0] + 1e-12
    assert ours == pytest.approx(best) or shown, "or there is nothing faster than plain, and one of each is a probe"


@pytest.mark.parametrize("made", [[1.0, 1.0], [0.5, 0.5], [0.3, 0.1], [0.0, 0.0]])
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_forward_without_padding_costs_what_its_slots_cost(made: list[float], asked: int) -> None:
    """Beside the sum over all that the rows may propose, written out."""

    def verify(width: float) -> float:
        return 0.5 + 0.5 * width

    sizes = {0: 1 - made[0], 1: made[0] - made[1], 2: made[1]}
    expected = 0.0
    for of_rows in itertools.product(sizes, repeat=asked):
        chance = float(np.prod([sizes[size] for size in of_rows]))
        expected += chance * verify(1 + sum(of_rows) / asked)
    found = unpadded(verify, sum(made), made[0], asked)
    assert found == pytest.approx(expected)
    assert step_seconds(made, verify, lambda k: 0.0, lambda k: 0.0, asked)[2] == found


def test_a_row_that_seldom_proposes_much_costs_more_than_one_that_always_proposes_little() -> None:
    """By hand: two slots cost nothing more, three cost two seconds, in half of the forwards."""

    def verify(width: float) -> float:
        return max(1.0, 2 * width - 3)

    assert unpadded(verify, 1.0, 0.5, asked=1) == 2.0
    assert unpadded(verify, 1.0, 1.0, asked=1) == 1.0


def test_rows_that_gain_nothing_are_probed_together() -> None:
    found = fastest_of_slots([[0.1, 0.1], [0.2], []], [0.5, 0.5], lambda w: 1.0 * w, lambda k: 0.0, lambda k: 0.0)
    assert [ks for *_, ks in found] == [(0, 0, 0), (1, 1, 0)]


def test_without_room_there_is_nothing_to_give() -> None:
    assert fastest_of_rows([[], []], [1.0, 2.0]) == [(1.0, (0, 0)), (0.5, (0, 0))]
    [_, (narrow, few), (wide, more)] = fastest_of_rows([[0.5, 0.5], []], [1.0, 1.0, 1.5], 0.1)
    assert [narrow, wide] == pytest.approx([1.25 / 1.1, 1.5 / 1.7])
    assert (few, more) == ((1, 0), (2, 0))


def test_a_rows_own_share_counts_beside_everyones() -> None:
    """By hand: of ten tries six hit; of the row's own four tries all, or none."""
    everyone = Chances(hope=0.5)
    everyone.seen(1, 6.0, 10.0)
    good, bad, usual, new = Chances(), Chances(), Chances(), Chances()
    good.seen(1, 4.0, 4.0)
    bad.seen(1, 0.0, 4.0)
    usual.seen(1, 2.4, 4.0)
    prior = TRUST * 0.95

    def with_share(share: float) -> list[float]:
        return [(10 * share + prior * 0.5) / (10 + prior)]

    assert everyone.reached(1, good) == pytest.approx(with_share((4 + TRUST * 0.6) / (4 + TRUST)))
    assert everyone.reached(1, bad) == pytest.approx(with_share(TRUST * 0.6 / (4 + TRUST)))
    for same in (usual, new):
        assert everyone.reached(1, same) == pytest.approx(everyone.reached(1))
    assert Chances().reached(3, good) == Chances().reached(3), "nobody has tried"


MOST = 4


class UnlikeRows:
    """Steps of rows that keep each proposal with a chance of their own; no clock is read.

    A forward of one slot takes a second, each further slot ``slope``; with ``free`` the slots of a row count on
    average, and not those of the widest row. ``price`` is what a proposal costs beside that, and is in no time.
    ``chances`` are by request.
    """

    def __init__(
        self, chances: dict[int, float], slope: float = 0.1, price: float = 0.0, seed: int = 0, free: bool = False
    ) -> None:
        self.chances, self.slope, self.price, self.coins, self.free = chances, slope, price, random.Random(seed), free
        self.stats = Stats(Stopwatch(torch.device("cpu")), batch=len(chances))
        self.sit(list(chances))
        self.now = 0.0

    def sit(self, order: list[int]) -> None:
        """The requests are in rows in this order."""
        self.stats.batch, self.stats.rows = len(order), tuple(RowStats(one, room=99) for one in order)

    def env(self) -> Env:
        """What a controller is built with."""
        costs = KnownCosts(lambda width, rows, length: self.forward(width))
        return sized_env(costs, max_rows=len(self.chances), max_length=200, skips_padding=self.free)

    def forward(self, width: float) -> float:
        """Seconds of a forward."""
        return 1 + self.slope * (width - 1)

    def step(self, ks: tuple[int, ...], equal: bool = False) -> None:
        """A step with these K; ``equal``: all rows keep as many as the first."""
        each: list[RowStep] = []
        for row, k in zip(self.stats.rows, ks, strict=True):
            kept = 0
            while kept < k and self.coins.random() < self.chances[row.request]:
                kept += 1
            each.append(RowStep(k, k, kept, kept + 1) if not equal or not each else each[0])
        width = 1 + max(ks)
        slots = 1 + sum(ks) / len(ks) if self.free else width
        parts = (0.0, 0.0, 0.0, 0.001, self.forward(slots), 0.01, 0.0, 0.0, 0.0, 0.01)
        self.now = book_step(self.stats, self.now, parts, each, width)

    def speed(self, ks: tuple[int, ...]) -> float:
        """Tokens per second of a row, from the world itself."""
        kept = [[self.chances[row.request] ** depth for depth in range(1, MOST + 1)] for row in self.stats.rows]
        if self.free:
            return of_batch(kept, [self.forward(1 + sum(ks) / len(ks)) + 0.021] * (MOST + 1), self.price, ks)
        return of_batch(kept, [self.forward(k + 1) + 0.021 for k in range(MOST + 1)], self.price, ks)


@pytest.mark.parametrize(("rows", "free"), [(1, False), (1, True), (3, False)])
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("slope", [0.02, 0.2])
def test_one_row_or_equal_rows_are_asked_what_goodput_asks(rows: int, chance: float, slope: float, free: bool) -> None:
    worlds = [UnlikeRows(dict.fromkeys(range(rows), chance), slope, seed=7, free=free) for _ in range(2)]
    one, each = Goodput(worlds[0].env(), maximum=MOST), Budget(worlds[1].env(), maximum=MOST)
    for _ in range(60):
        k, ks = one.next_k(worlds[0].stats), each.next_k(worlds[1].stats)
        assert each_k(ks, rows) == each_k(k, rows)
        for world in worlds:
            world.step(each_k(k, rows), equal=True)


WORLDS: dict[str, tuple[dict[int, float], dict[str, Any]]] = {
    "padded windows": ({0: 0.9, 1: 0.5, 2: 0.05}, {"slope": 0.1}),
    "a price": ({0: 0.95, 1: 0.5, 2: 0.05}, {"slope": 0.02, "price": 0.12}),
    "a dear slot": ({0: 0.97, 1: 0.1, 2: 0.05}, {"slope": 0.05, "price": 0.3}),
    "no padding": ({0: 0.9, 1: 0.5, 2: 0.05}, {"slope": 0.5, "free": True}),
    "no padding, dear slots": ({0: 0.97, 1: 0.6, 2: 0.05}, {"slope": 0.9, "free": True}),
    "nothing is kept": ({0: 0.0, 1: 0.0, 2: 0.02}, {"slope": 0.1, "price": 0.1}),
    "all is kept": ({0: 1.0, 1: 1.0, 2: 1.0}, {"slope": 0.1, "price": 0.1}),
}


@pytest.mark.parametrize("name", WORLDS)
def test_it_comes_near_the_best_ks_of_worlds_whose_rows_differ(name: str) -> None:
    """The best K of each row, of all 125, is known from the world itself."""
    chances, costs = WORLDS[name]
    world = UnlikeRows(chances, **costs)
    price = costs.get("price", 0.0)
    controller, asked = Budget(world.env(), maximum=MOST, price=price), []
    for _ in range(160):
        asked.append(each_k(controller.next_k(world.stats), 3))
        world.step(asked[-1])
    best = max(map(world.speed, itertools.product(range(MOST + 1), repeat=3)))
    ours = sum(map(world.speed, asked[60:])) / 100
    assert ours > 0.95 * best, f"{ours:.3f} tokens a second, the best are {best:.3f}; {asked[-20:]}"


def test_what_is_known_of_a_request_moves_with_it() -> None:
    world = UnlikeRows({5: 1.0, 6: 0.0, 7: 0.0}, slope=0.02, price=0.05)
    controller = Budget(world.env(), maximum=MOST, price=0.05)
    for _ in range(30):
        world.step(each_k(controller.next_k(world.stats), 3))
    assert [k > 2 for k in each_k(controller.next_k(world.stats), 3)] == [True, False, False]
    world.step(each_k(controller.next_k(world.stats), 3))
    world.sit([7, 5])  # 6 has ended, and the rows have changed places
    assert [k > 2 for k in each_k(controller.next_k(world.stats), 2)] == [False, True]
    world.step(each_k(controller.next_k(world.stats), 2))
    assert [k > 2 for k in each_k(controller.next_k(world.stats), 2)] == [False, True]


def test_no_row_is_asked_for_more_than_it_has_room_for_and_free_slots_are_given() -> None:
    world = UnlikeRows({0: 0.9, 1: 0.3, 2: 0.0}, slope=0.01)
    world.stats.rows = tuple(RowStats(one, room=room) for one, room in enumerate((9, 2, 0)))
    controller = Budget(world.env(), maximum=MOST)
    for _ in range(20):
        world.step(each_k(controller.next_k(world.stats), 3))
    assert controller.next_k(world.stats) == (4, 2, 0), "windows are padded: below the widest row a slot costs nothing"


def test_what_a_row_was_not_asked_for_says_nothing_of_it() -> None:
    """The second row has no room for twenty steps, in which the first keeps all; then it is asked as a new one is."""
    world = UnlikeRows({0: 1.0, 1: 1.0}, slope=0.02)
    controller = Budget(world.env(), maximum=MOST, price=0.17)
    world.stats.rows = tuple(RowStats(one, room=room) for one, room in enumerate((9, 0)))
    for _ in range(20):
        world.step(each_k(controller.next_k(world.stats), 2))
    world.sit([0, 1])
    assert controller.next_k(world.stats) == (4, 4)


def test_trees_are_proposed_whole_or_not_at_all_in_all_rows() -> None:
    world = UnlikeRows({0: 0.9, 1: 0.9}, slope=0.01)
    controller = Budget(world.env(), maximum=MOST)
    controller.next_k(world.stats)
    world.step((4, 4))
    last = world.stats.steps.pop()
    each = (RowStep(4, 2, 2, 3), RowStep(4, 2, 1, 2))
    world.stats.steps.append(type(last).of(each, 5, last.marks))
    assert controller.next_k(world.stats) == MOST


def test_it_is_built_over_a_target_and_reads_its_times(assemble: Make) -> None:
    controller: Controller = assemble(max_rows=2).engine("garbage", controller="budget", k=8).controller
    assert isinstance(controller, Budget)
    assert (controller.max_k, controller.k_option, controller.deterministic) == (8, "maximum", False)
    assert len(controller.speeds()) == 9
    nothing = assemble(max_rows=2).engine("garbage", controller="budget", k=0).controller
    assert nothing.next_k(Stats(Stopwatch(torch.device("cpu")), batch=1, rows=(RowStats(0, room=5),))) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budget(price=-1)", "budget was given price=-1.*expected a number of forwards from 0 on"),
        ("budget(maximum=9999)", "budget was given maximum=9999"),
        ("budget(probe=0)", "budget was given .*probe=0"),
    ],
)
def test_options_without_a_meaning_are_refused(text: str, said: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=said):
        assemble().engine("ngram", controller=text)


def time_to_the_end(left: list[int], costs: list[float]) -> float:
    """Seconds of plain decoding, step by step: every live row emits one token."""
    return sum(costs[sum(tokens > step for tokens in left)] for step in range(max(left)))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6))
def test_a_token_is_worth_what_it_saves_of_the_time_to_the_end_of_all(left: list[int], more: list[float]) -> None:
    """The difference of that time, written out, if a row has one token less; of rows with as much left the mean."""
    left = [3 * tokens for tokens in left]
    costs = [0.0, *itertools.accumulate(more)]
    whole = time_to_the_end(left, costs)
    found = worth_of_rows(left, lambda rows: costs[rows])
    assert sum(found) == pytest.approx(len(left))
    saved = dict[int, float]()
    for tokens in set(left):
        less = [one - (one == tokens) for one in left]
        saved[tokens] = (whole - time_to_the_end(less, costs)) / left.count(tokens)
    scale = sum(saved[tokens] for tokens in left) / len(left)
    assert found == pytest.approx([saved[tokens] / scale for tokens in left], rel=1e-6)


def test_a_row_that_saves_nothing_still_gets_slots_that_cost_nothing() -> None:
    """Where all rows cost what one does, only the last row's tokens save time."""
    worth = worth_of_rows([4, 9, 5], lambda rows: 1.0)
    assert worth == pytest.approx([0.003, 2.994, 0.003], rel=0.01)
    found = fastest_of_rows([[one * 0.5] for one in worth], [1.0, 1.2])
    assert found[1][1] == (1, 1, 1)


class ClosedBatch(UnlikeRows):
    """A batch whose rows leave when they have emitted their tokens; a forward is cheaper with fewer rows.

    ``closed``: whether controllers are told that no request comes, as is the case.
    """

    def __init__(self, chances: dict[int, float], tokens: int, closed: bool, seed: int, slope: float = 0.5) -> None:
        super().__init__(chances, slope, seed=seed)
        self.left = dict.fromkeys(chances, tokens)
        self.stats.closed = closed

    def forward(self, width: float) -> float:
        return (1 + self.slope * (width - 1)) * (0.5 + 0.5 * self.stats.batch / len(self.chances))

    def env(self) -> Env:
        def cost(width: int, rows: int, length: int) -> float:
            return (1 + self.slope * (width - 1)) * (0.5 + 0.5 * rows / len(self.chances))

        return sized_env(KnownCosts(cost), max_rows=len(self.chances), max_length=200)

    def seconds(self, controller: Controller) -> float:
        """Seconds to the end of the last row."""
        while live := [request for request, left in self.left.items() if left > 0]:
            kept = {row.request: row for row in self.stats.rows}
            self.stats.batch = len(live)
            self.stats.rows = tuple(kept[request] for request in live)
            for row in self.stats.rows:
                row.room = self.left[row.request] - 1
            asked: Any = controller.next_k(self.stats)
            ks = each_k(asked, len(live))
            self.step(tuple(min(k, row.room) for k, row in zip(ks, self.stats.rows, strict=True)))
            for row, made in zip(self.stats.rows, self.stats.steps[-1].each, strict=True):
                self.left[row.request] -= made.emitted
                row.steps += 1
        return self.now


def test_a_batch_that_nobody_waits_for_ends_sooner_where_it_is_known_which_row_is_its_last() -> None:
    """Six rows copy and two do not, over 30 seeds: beside the same controller that takes all tokens to be worth the
    same, as they are while requests wait."""
    chances = {0: 0.05, 1: 0.05, **dict.fromkeys(range(2, 8), 0.75)}
    told, untold = (seconds_of_batches(chances, closed) for closed in (True, False))
    assert told < 0.97 * untold, (told, untold)


def seconds_of_batches(chances: dict[int, float], closed: bool, slope: float = 0.5, maximum: int = MOST) -> float:
    """The seconds of 30 closed batches of 32 tokens a row, each with a controller that begins anew."""
    batches = [ClosedBatch(chances, 32, closed, seed, slope) for seed in range(30)]
    return sum(batch.seconds(Budget(batch.env(), maximum=maximum)) for batch in batches)


@pytest.mark.parametrize("slope", [0.25, 0.35, 0.5])
@pytest.mark.parametrize(
    "chances", [[0.5] * 8, [0.3] * 8, [0.0] * 8, [0.9, *[0.0] * 7], [*[0.9] * 7, 0.0], [0.9, 0.0] * 4]
)
def test_a_closed_batch_is_never_far_behind_plain(chances: list[float], slope: float) -> None:
    """Eight rows that begin without knowledge, of which plain decoding takes 32 steps together."""
    of_requests = dict(enumerate(chances))
    plain, ours = (seconds_of_batches(of_requests, True, slope, maximum) for maximum in (0, MOST))
    assert ours <= plain / 0.97


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize("chance", [0.2, 0.5, 0.8])
def test_the_time_to_the_end_of_all_is_that_of_batches_drawn_step_by_step(rows: int, chance: float) -> None:
    """Of rows with 24 and 31 tokens left, at K = 0 and 1, of which one row alone is faster with 1: 2000 draws."""
    dice, left = np.random.default_rng(5), [24, *[31] * (rows - 1)]
    alone, together = [1.0, 1.02], [1.0 + 0.05 * rows, 1.02 + 0.1 * rows]
    found = speeds_to_the_end(left, [[chance]] * rows, [(0,) * rows, (1,) * rows], alone, together)
    ends = np.empty((2000, rows))
    for row, tokens in enumerate(left):
        emitted = np.cumsum(1 + (dice.random((2000, 31)) < chance), axis=1)
        ends[:, row] = 1 + (emitted < tokens).sum(1)
    more = (together[1] - alone[1]) / (rows - 1)
    seconds = ((alone[1] - more) * ends.max(1) + more * ends.sum(1)).mean()
    assert found[1] == pytest.approx(sum(left) / rows / seconds, rel=0.04)
    more = (together[0] - alone[0]) / (rows - 1)
    plain = (alone[0] - more) * max(left) + more * sum(left)
    assert found[0] >= sum(left) / rows / plain * 0.98, "and no slower than plain, whose last row may change to K = 1"


def test_rows_that_end_apart_take_longer_than_rows_of_the_same_speed_that_end_together() -> None:
    """A proposal kept by chance, and as many tokens a step for certain: a depth that is always kept, every second
    slot of which costs as much. What is uncertain ends later, the more rows there are."""
    seconds = [1.0, 1.0]
    certain, chancy = ([[chance]] * 8 for chance in (1.0, 0.5))
    ks = [(0,) * 8, (1,) * 8]
    sure = speeds_to_the_end([30] * 8, certain, ks, seconds, seconds)[1]
    doubtful = speeds_to_the_end([30] * 8, chancy, ks, seconds, seconds)[1]
    assert sure == pytest.approx(2.0, rel=0.03)
    assert 1.3 < doubtful < 1.45, "1.5 without the wait for the last row"
    few = speeds_to_the_end([30] * 2, [[0.5]] * 2, [(0, 0), (1, 1)], seconds, seconds)[1]
    assert doubtful < few < 1.5


def test_a_drafts_confidence_counts_as_far_as_it_has_come_true() -> None:
    """By hand: what was told 0.9 is kept once and refused once, then what was told 0.2 is refused."""
    found = ComeTrue()
    assert [found.chance(told) for told in (0.0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    found.seen(0.9, True)
    assert found.chance(1.0) == 1.0, "it promised less than came true"
    assert found.chance(0.5) == pytest.approx(0.5 * (TRUST * KEEP + 1) / (TRUST * KEEP + 0.9))
    found.seen(0.9, False)
    found.seen(0.2, False)
    kept, told = ((TRUST * KEEP + 1) * KEEP) * KEEP, ((TRUST * KEEP + 0.9) * KEEP + 0.9) * KEEP + 0.2
    assert found.chance(0.8) == pytest.approx(0.8 * kept / told)


@pytest.mark.parametrize("surer", [None, 0, 1])
def test_of_rows_that_kept_as_much_the_one_of_which_the_draft_is_surer_gets_more(surer: int | None) -> None:
    """Both rows keep one of two proposals in each of six steps, and a slot costs something beside its time."""
    world = UnlikeRows({0: 0.5, 1: 0.5}, slope=0.02)
    controller = Budget(world.env(), maximum=2, price=0.15)
    world.stats.waiting = 1
    for _ in range(6):
        controller.next_k(world.stats)
        each = [RowStep(2, 2, 1, 2)] * 2
        world.now = book_step(world.stats, world.now, (0, 0, 0, 0.001, world.forward(3), 0.01, 0, 0, 0, 0), each, 3)
        for row in world.stats.rows:
            sure = () if surer is None else (0.7, 0.7) if row.request == surer else (0.2, 0.2)
            row.book(each[0], 2, sure)
    asked: Any = controller.next_k(world.stats)
    ks = each_k(asked, 2)
    assert controller.reads_confidence
    assert ks[0] == ks[1] if surer is None else ks[surer] > ks[1 - surer]
