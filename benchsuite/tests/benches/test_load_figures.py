"""Figures under load: recomputed by another formula, and intervals that hold what was planted, however time drifts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import exp, log
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.benches.load.bench import LEAST
from benchsuite.benches.load.busy import BusyPart
from benchsuite.benches.load.crossover import Crossover, crossover
from benchsuite.benches.load.load_figures import (
    GROUPS,
    REPEATS,
    LoadFigures,
    block_logs,
    load_figures,
    mean_of_blocks,
    ratio_of,
)
from benchsuite.benches.load.queue_block import QueueBlock, QueueStep
from benchsuite.benches.load.served_queue import TOKEN_IDS
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Sent, Traffic, due_times
from benchsuite.benches.serving.speed import PairedLog
from benchsuite.benches.serving.turns import BlockPlan, plan_blocks
from benchsuite.measure.interval import FEWEST, Estimate, LogMean
from benchsuite.report.load import latency_plot, load_curves_table
from specdec_plugins.endpoints.replies import Chunk, Reply

NAMES = ("plain", "plain again", "spec")


def even_reply(place: int, seconds: float, tokens: int) -> Reply:
    """So many tokens, evenly over the time."""
    chunks = tuple(Chunk(seconds * ((n + 1) / tokens), "", 1) for n in range(tokens))
    text = " ".join(f"{place}.{n}" for n in range(tokens))
    return Reply(text, (), chunks, seconds, 3, tokens, "length", 1, {TOKEN_IDS: [place] * tokens})


@dataclass
class MadeUpRow:
    """A request in an engine's row: the tokens that it emits a step, those that are left, the slots of its window, and
    the seconds that a step of rows like it would take."""

    place: int
    pace: int
    left: int
    slots: int
    seconds: float
    begun: float = 0.0
    chunks: list[Chunk] = field(default_factory=list)


def in_rows(
    arriving: Iterator[MadeUpRow], at_once: int, step_s: Callable[[Sequence[MadeUpRow]], float], reads_s: float = 0.0
) -> tuple[list[Sent], list[QueueStep]]:
    """Requests in so many rows, to the end of all, with each step: while a prompt is read nothing else runs."""
    clock, live, sent, steps = 0.0, list[MadeUpRow](), list[Sent](), list[QueueStep]()
    while True:
        for row in islice(arriving, at_once - len(live)):
            row.begun = clock
            clock += reads_s
            live.append(row)
        if not live:
            return sent, steps
        seconds, emitted = step_s(live), [min(row.pace, row.left) for row in live]
        steps.append(QueueStep(len(live), sum(row.slots for row in live), sum(emitted), clock, clock + seconds))
        clock += seconds
        for row, tokens in zip(live, emitted, strict=True):
            row.chunks.append(Chunk(clock - row.begun, "", tokens))
            row.left -= tokens
        for row in [row for row in live if not row.left]:
            place, count = row.place, sum(chunk.tokens or 0 for chunk in row.chunks)
            text, body = " ".join(f"{place}.{n}" for n in range(count)), {TOKEN_IDS: [place] * count}
            reply = Reply(text, (), tuple(row.chunks), clock - row.begun, 3, count, "length", 1, body)
            sent.append(Sent(place, row.begun, clock, reply))
        live = [row for row in live if row.left]


def made_up_block(plan: BlockPlan, load: Traffic, takes: Callable[[int], float]) -> QueueBlock:
    """A block whose requests take ``takes(place)`` seconds each: as they are due, or in rows of such requests alone."""
    if load.rate:
        sent = []
        for place, due in zip(plan.places, due_times(len(plan.places), load.rate, plan.seed), strict=True):
            seconds = takes(place)
            sent.append(Sent(place, due, due + seconds, even_reply(place, seconds, 4 + place % 5)))
        return QueueBlock(plan.endpoint, plan.round, tuple(sent), plan.group)
    arriving = (MadeUpRow(place, 1, 4 + place % 5, 1, takes(place) / (4 + place % 5)) for place in plan.places)
    assert load.concurrency
    sent, steps = in_rows(arriving, load.concurrency, lambda live: fmean(row.seconds for row in live))
    return QueueBlock(plan.endpoint, plan.round, tuple(sent), plan.group, steps=tuple(steps))


@given(
    st.lists(st.floats(0.1, 9.0), min_size=1, max_size=20),
    st.integers(1, 6),
)
def test_the_busy_part_ends_where_a_place_stays_empty(takes: list[float], at_once: int) -> None:
    """By a sweep over the moments at which something begins or ends, counting what runs between them."""
    at_once = min(at_once, len(takes))
    plan = BlockPlan("plain", 0, 0, tuple(range(len(takes))), 0)
    block = made_up_block(plan, Traffic(concurrency=at_once), takes.__getitem__)
    moments = sorted({0.0, *(one.sent_s for one in block.sent), *(one.ended_s for one in block.sent)})
    empty = next(at for at in moments if sum(one.sent_s <= at < one.ended_s for one in block.sent) < at_once)
    arrived = [one.sent_s + chunk.seconds for one in block.sent if one.reply for chunk in one.reply.chunks]
    part = BusyPart(block.steps, at_once)
    busy_s, busy_tokens = sum(step.seconds for step in part.busy), sum(step.emitted for step in part.busy)
    assert (busy_s, busy_s + part.tail_s) == pytest.approx((empty, moments[-1]))
    # A token that ends the busy part may be on either side by rounding.
    assert sum(at < empty - 1e-9 for at in arrived) <= busy_tokens <= sum(at <= empty + 1e-9 for at in arrived)
    assert part.tokens == len(arrived)


def copying(paces: Sequence[int], slot_s: float, reads_s: float, at_once: int, size: int) -> list[BusyPart]:
    """Blocks of so many requests of 24 tokens: one that emits several tokens a step has twice as many slots. A step
    takes a second and ``slot_s`` for each slot."""
    found = []
    for n in range(0, len(paces), size):
        arriving = (MadeUpRow(0, pace, 24, 2 * pace if pace > 1 else 1, 0.0) for pace in paces[n : n + size])
        _, steps = in_rows(arriving, at_once, lambda live: 1 + slot_s * sum(row.slots for row in live), reads_s)
        found.append(BusyPart(tuple(steps), at_once))
    return found


@pytest.mark.parametrize("slot_s", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("reads_s", [0.0, 2.0, 8.0])
@pytest.mark.parametrize("at_once", [4, 16])
def test_the_ratio_is_that_of_a_load_that_never_ends(at_once: int, reads_s: float, slot_s: float) -> None:
    """Of blocks of as many requests as run at once and three quarters more, to 2 %; rows that copy emit four tokens a
    step, others one.

    The mean step of the busy parts is off by up to 6 %, their tokens over their seconds by up to 11 %.
    """
    dice, size = random.Random(at_once), int(LEAST * at_once)
    paces = [dice.choice([1, 1, 4]) for _ in range(200 * size)]
    [endless] = copying(paces, slot_s, reads_s, at_once, len(paces))
    assert endless.full_s
    parts = copying(paces, slot_s, reads_s, at_once, size)
    seconds = sum(part.full_s or 0.0 for part in parts)
    assert sum(part.tokens for part in parts) / seconds == pytest.approx(endless.tokens / endless.full_s, rel=0.02)


@given(st.lists(st.tuples(st.integers(3, 60), st.floats(0.01, 9.0)), min_size=1, max_size=9), st.integers(1, 20))
def test_a_step_takes_no_less_than_its_slots_alone_would(busy: list[tuple[int, float]], left: int) -> None:
    """However few steps tell what a slot costs: between the mean of the busy steps and that in proportion to slots."""
    ends = accumulate(seconds for _, seconds in busy)
    steps = [
        QueueStep(3, slots, 3, 0.5 + end - seconds, 0.5 + end) for (slots, seconds), end in zip(busy, ends, strict=True)
    ]
    tail = QueueStep(1, left, 1, steps[-1].ended_s, 100.0)
    found = BusyPart((*steps, tail), 3).full_s
    assert found
    mean, slots = (fmean(column) for column in zip(*[(seconds, slots) for slots, seconds in busy], strict=True))
    rows = 3 * len(busy) + 1
    limits = [mean, mean * (sum(slots for slots, _ in busy) + left) * 3 / rows / slots]
    assert min(limits) - 1e-6 <= (found - 0.5) * 3 / rows <= max(limits) + 1e-6


@pytest.mark.parametrize("at_once", [1, 4])
def test_where_rows_end_together_a_block_takes_what_it_took(at_once: int) -> None:
    [part] = copying([1] * 3 * at_once, 0.1, 2.0, at_once, 3 * at_once)
    assert part.full_s == pytest.approx(part.reading_s + sum(step.seconds for step in part.busy))
    assert part.reading_s == pytest.approx(3 * at_once * 2.0)
    assert part.tail == []


def six_labels(prompts: int) -> list[str]:
    return [f"workload {place % 6}" for place in range(prompts)]


def drifting_blocks(
    load: Traffic,
    prompts: int,
    rounds: int,
    size: int | None,
    speed: float = 1.0,
    drift: float = 0.0,
    noise: float = 0.05,
    seed: int = 0,
    odd: float = 1.0,
) -> list[QueueBlock]:
    """Blocks of plain, of itself once more and of an arm ``speed`` times as fast, on a machine whose pace drifts from
    block to block as a random walk with steps of ``drift``; ``odd``: one request of the arm takes so many times as
    long."""
    dice, pace = random.Random(seed), 0.0
    plans = plan_blocks(NAMES, list(enumerate(six_labels(prompts))), load, rounds, seed, size)
    blocks, waits = [], True
    for plan in plans:
        pace += drift * dice.gauss(0, 1)
        factor = exp(pace + dice.gauss(0, noise)) / (speed if plan.endpoint == "spec" else 1.0)
        longest = plan.places[0] if waits and plan.endpoint == "spec" else None
        waits = waits and plan.endpoint != "spec"

        def takes(place: int, factor: float = factor, longest: int | None = longest) -> float:
            return (4 + place % 5) * factor * exp(dice.gauss(0, noise)) * (odd if place == longest else 1.0)

        blocks.append(made_up_block(plan, load, takes))
    return blocks


def served_under(load: Traffic, prompts: int, *rest: Any, **more: Any) -> list[LoadFigures]:
    """Their figures."""
    blocks = drifting_blocks(load, prompts, *rest, **more)
    return load_figures(blocks, NAMES, six_labels(prompts), load, Slo(ttft=1.0))


def log_of(blocks: Sequence[QueueBlock], load: Traffic, name: str = "spec") -> list[PairedLog]:
    """The logs of an arm's blocks over plain's."""
    mine, base = ([block for block in blocks if block.endpoint == one] for one in (name, "plain"))
    return block_logs(mine, base, load)


SETTINGS = [
    (Traffic(concurrency=1), 12, 1, 2),
    (Traffic(concurrency=4), 48, 1, 8),
    (Traffic(concurrency=8), 48, 2, 16),
    (Traffic(concurrency=16), 32, FEWEST, 32),
    (Traffic(rate=0.2), 36, 1, 6),
]
"""Loads, prompts, rounds and prompts of a block; two have rounds as their units."""


def holds(ratio: Estimate | None, truth: float) -> bool:
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    return ratio.low <= truth <= ratio.high


@pytest.mark.parametrize("drift", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one[0].id)
def test_plain_again_holds_1_and_an_arm_its_speed(setting: tuple[Traffic, int, int, int], drift: float) -> None:
    """In 90 to 99 of 100 runs, of which each made-up one has its own noise, drift and order."""
    held = []
    for seed in range(100, 200 if setting[2] == 2 else 140):
        blocks = drifting_blocks(*setting, speed=1.3, drift=drift, seed=seed)
        again, spec = (ratio_of(log_of(blocks, setting[0], name)) for name in NAMES[1:])
        assert again
        assert again.method == (REPEATS if setting[2] > 1 else GROUPS)
        held += [holds(again, 1.0), holds(spec, 1.3)]
    assert 0.90 <= fmean(held) <= 0.99


def test_figures_are_those_of_the_blocks() -> None:
    """By hand: one request at once, of which each token of plain takes a second and each of the arm half of one."""
    plain, again, spec = served_under(Traffic(concurrency=1), 12, 1, 2, speed=2.0, noise=0.0)
    tokens = sum(4 + place % 5 for place in range(12))
    assert (plain.busy_per_s, again.busy_per_s, spec.busy_per_s) == pytest.approx((1.0, 1.0, 2.0))
    assert (plain.tail_per_s, plain.tail) == (None, 0.0), "one request at once leaves no place empty"
    assert plain.served.tokens_per_s == pytest.approx(1.0)
    assert spec.served.tpot_ms[0] == pytest.approx(500)
    assert spec.ratio
    assert (spec.ratio.ratio, spec.ratio.units) == pytest.approx((2.0, 6))
    assert plain.served.goodput == pytest.approx((12 / tokens, 1.0)), "the first token of all comes in time"
    assert (spec.equal, spec.of) == (12, 12)


def test_an_arm_without_a_draft_has_not_learnt_where_its_first_round_was_slow() -> None:
    load = Traffic(concurrency=4)
    plans = plan_blocks(NAMES, list(enumerate(six_labels(8))), load, FEWEST, 0, 8)
    slow = {True: lambda place: 3.0, False: lambda place: 1.0}
    blocks = [made_up_block(plan, load, slow[plan.round == 0 and plan.endpoint != "plain"]) for plan in plans]
    found = load_figures(blocks, NAMES, six_labels(8), load, None, draftless=NAMES[:2])
    assert [bool(one.served.learns) for one in found] == [False, False, True]


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_is_students_over_blocks(seed: int) -> None:
    """Written again: the logs of the ratios of tokens per second while two run, of six blocks; t of 5 degrees."""
    load, rows = Traffic(concurrency=2), served_under(Traffic(concurrency=2), 24, 1, 4, speed=0.8, seed=seed)
    speeds: dict[str, dict[int, float]] = {name: {} for name in NAMES}
    for block in drifting_blocks(load, 24, 1, 4, speed=0.8, seed=seed):
        second = sorted(one.ended_s for one in block.sent)[-2]
        moments = {round(one.sent_s + at.seconds, 9) for one in block.sent if one.reply for at in one.reply.chunks}
        # A step of two requests emits two tokens.
        speeds[block.endpoint][block.group] = 2 * sum(at <= second + 1e-9 for at in moments) / second
    ours, base = ({group: log(speed) for group, speed in speeds[name].items()} for name in ("spec", "plain"))
    each = [ours[group] - base[group] for group in base]
    ratio = rows[2].ratio
    assert ratio is not None
    assert ratio.ratio == pytest.approx(exp(fmean(each)))
    half = 2.570582 * stdev(each) / 6**0.5
    assert (ratio.low, ratio.high) == pytest.approx((exp(fmean(each) - half), exp(fmean(each) + half)), rel=1e-6)


def test_too_few_blocks_have_a_ratio_and_no_interval() -> None:
    assert ratio_of([]) is None
    ratio = served_under(Traffic(concurrency=4), 16, 2, 8, speed=1.5, noise=0.0)[2].ratio
    assert ratio is not None
    assert ratio.ratio == pytest.approx(1.5)
    assert (ratio.low, ratio.high) == (None, None)


LOADS = (1, 2, 4, 8)


def crossover_of(speeds: Sequence[float], seed: int, drift: float = 0.02, odd: float = 1.0) -> Crossover:
    """The crossover of an arm with a speed of its own at each load at once, from the blocks of all loads."""
    logs = list[LogMean]()
    for number, (at_once, speed) in enumerate(zip(LOADS, speeds, strict=True)):
        prompts = 6 * 2 * at_once
        load, once = Traffic(concurrency=at_once), odd if number == 1 else 1.0
        blocks = drifting_blocks(load, prompts, 1, 2 * at_once, speed, drift, seed=31 * seed + number, odd=once)
        found = mean_of_blocks(log_of(blocks, load))
        assert found is not None
        logs.append(found)
    return crossover(LOADS, logs)


def true_crossing(speeds: Sequence[float]) -> float:
    """Where the straight lines between the logs of the speeds cross 0, by hand."""
    n = next(n for n, speed in enumerate(speeds) if speed < 1)
    share = log(speeds[n - 1]) / log(speeds[n - 1] / speeds[n])
    return exp((1 - share) * log(LOADS[n - 1]) + share * log(LOADS[n]))


def test_an_arm_that_is_slower_from_four_at_once_on_is_found_between_two_and_four() -> None:
    speeds = (1.6, 1.25, 0.8, 0.6)
    truth, found = true_crossing(speeds), [crossover_of(speeds, seed) for seed in range(40)]
    assert 2 < truth < 4
    assert {one.state for one in found} == {"falls"}
    for one in found:
        assert one.at is not None
        assert one.low is not None
        assert one.high is not None
        assert 1.5 < one.low <= one.at <= one.high < 4.5
    held = [one.low <= truth <= one.high for one in found if one.low and one.high]
    assert fmean(held) >= 0.88
    assert found[0].sentence("at once").startswith("slower than plain from ")


def test_a_lucky_maximum_makes_no_crossover() -> None:
    """An arm as fast as plain at every load: some load is the best by luck; certain claims are made by luck alone."""
    found = [crossover_of((1.0, 1.0, 1.0, 1.0), seed) for seed in range(30)]
    assert sum(one.state == "falls" for one in found) <= 2
    slower = [crossover_of((0.9, 0.9, 0.9, 0.9), seed) for seed in range(10)]
    assert all(one.state in ("slower", "unclear") for one in slower)
    assert all(one.low is None for one in slower), "at no load is it certainly faster"


def test_one_odd_request_moves_no_certain_end_past_the_truth() -> None:
    """One of 24 requests of the load 2 takes eight times as long: the interval becomes wider, and holds the truth."""
    speeds = (1.6, 1.25, 0.8, 0.6)
    truth = true_crossing(speeds)
    for seed in range(20):
        one = crossover_of(speeds, seed, odd=8.0)
        assert one.low is None or one.low <= truth
        assert one.high is None or one.high >= truth


def of_means(*means: float, error: float = 0.01) -> Crossover:
    return crossover(LOADS, [LogMean(mean, error, 5, 6) for mean in means])


def test_what_is_said_where_there_is_no_crossover() -> None:
    assert of_means(0.4, 0.3, 0.2, 0.1) == Crossover("faster", None, None, None)
    assert of_means(-0.4, -0.3, -0.2, -0.1) == Crossover("slower", None, None, None)
    wide = of_means(0.4, 0.1, -0.1, -0.3, error=1.0)
    assert (wide.state, wide.low, wide.high) == ("unclear", None, None)
    assert wide.at == pytest.approx(2 * 2**0.5, rel=0.02)
    up = of_means(-0.4, -0.2, 0.2, 0.4)
    assert (up.state, up.at) == ("unclear", None), "it rises: there is no load from which it is slower"
    late = of_means(0.4, 0.3, 0.2, 0.01)
    assert (late.state, late.at, late.high) == ("unclear", None, None)
    assert late.low is not None
    assert late.low > 4
    assert late.sentence("at once").startswith("certainly faster up to ")
    assert of_means(0.4, 0.2, -0.2, -0.4, error=1e-9).state == "falls"


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4), st.floats(0.001, 0.5))
def test_outside_of_the_interval_the_sign_is_certain_and_at_is_where_the_line_last_falls(
    means: list[float], error: float
) -> None:
    found = of_means(*means, error=error)
    half = 2.570582 * error
    for load, mean in zip(LOADS, means, strict=True):
        if abs(mean) <= half * (1 - 1e-6):
            assert found.low is None or found.low <= load * 1.01
            assert found.high is None or found.high >= load / 1.01
            assert found.state in ("unclear", "falls")
    if found.at is not None:
        assert means[-1] < 0
        assert any(mean >= 0 for mean in means)
    else:
        assert means[-1] >= 0 or all(mean < 0 for mean in means)


def test_the_plot_has_a_curve_for_each_arm_and_marks_its_crossover_on_it() -> None:
    """An arm whose line falls to plain's at 2.7 at once; a mark lies between the points of the loads 2 and 4."""
    speeds = (1.6, 1.25, 0.8, 0.6)
    points = {
        Traffic(concurrency=at): served_under(Traffic(concurrency=at), 12 * at, 1, 2 * at, speed, noise=0.01)
        for at, speed in zip(LOADS, speeds, strict=True)
    }
    found = {"spec": crossover_of(speeds, 0)}
    plot = latency_plot(points, "at once", found)
    plain, spec, mark = plot.traces
    assert (plain.name, spec.name, len(plain.points), len(spec.points)) == ("plain", "spec", 4, 4)
    assert [x for x, _ in plain.points] == [row[0].served.tokens_per_s for row in points.values()]
    assert [y for _, y in spec.points] == [row[2].served.tpot_ms[0] for row in points.values()]
    [(x, y)] = mark.points
    assert mark.name.startswith("spec slower than plain from 2.")
    for value, axis in ((x, 0), (y, 1)):
        ends = sorted(spec.points[n][axis] for n in (1, 2))
        assert ends[0] < value < ends[1]
    shown = load_curves_table(points, "at once", found).cells
    ratios = [float(cell.text.rstrip("x~?")) for cell in shown[2][1:5]]
    assert ratios == pytest.approx(speeds, rel=0.05)
    assert shown[2][-1].text == found["spec"].sentence("at once")


def test_of_few_groups_repeats_are_the_units_within_each() -> None:
    """By hand: two groups of three rounds whose logs differ by 0.1 each; between the groups lies ten times as much."""
    logs = [
        PairedLog("", group, group, turn, group + 0.1 * turn) for group, turn in itertools.product(range(2), range(3))
    ]
    found = mean_of_blocks(logs)
    assert found is not None
    assert found.units == 6
    assert found.mean == pytest.approx(0.6)
    assert found.error == pytest.approx((2 * 0.01 / 3) ** 0.5 / 2)
    assert found.degrees == pytest.approx(4.0)
    assert mean_of_blocks(logs[:5]) is None
    assert mean_of_blocks([one for one in logs if one.round == 0]) is None
