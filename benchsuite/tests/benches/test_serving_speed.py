"""Intervals over groups of requests that were sent together: by hand, against laws that hold exactly, and by draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.benches.serving.speed import CLUSTERS, ROUNDS, PairedLog, half_interval_of_groups, speed_of
from benchsuite.measure.interval import FEWEST, NONE, estimate, student

LOG = st.floats(-1, 1)


def in_groups(values: Sequence[Sequence[float]], workload: str = "chat") -> list[PairedLog]:
    """Prompts of one workload by groups, one round."""
    numbered = [(group, value) for group, some in enumerate(values) for value in some]
    return [PairedLog(workload, prompt, group, 0, value) for prompt, (group, value) in enumerate(numbered)]


def test_of_nothing_there_is_no_speed() -> None:
    assert speed_of([]) is None


@given(st.lists(st.lists(LOG, min_size=1, max_size=5), min_size=1, max_size=4))
def test_prompts_that_were_sent_by_themselves_are_the_units(workloads: list[list[float]]) -> None:
    logs = list[PairedLog]()
    for name, values in enumerate(workloads):
        logs += [PairedLog(str(name), len(logs) + n, len(logs) + n, 0, value) for n, value in enumerate(values)]
    assert speed_of(logs) == estimate({str(name): values for name, values in enumerate(workloads)})


@given(st.integers(FEWEST, 9), st.integers(2, 4), st.data())
def test_of_one_workload_in_groups_of_one_size_it_is_students_t_over_the_groups_means(
    count: int, size: int, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.lists(LOG, min_size=size, max_size=size), min_size=count, max_size=count))
    means = [fmean(some) for some in values]
    half = student(0.95, count - 1) * sqrt(variance(means) / count)
    found = speed_of(in_groups(values))
    assert found is not None
    assert found.ratio == pytest.approx(exp(fmean(means)))
    assert found.low == pytest.approx(exp(fmean(means) - half))
    assert found.high == pytest.approx(exp(fmean(means) + half))
    assert (found.units, found.method) == (count, CLUSTERS)


def test_of_groups_with_a_prompt_of_each_workload_the_workloads_own_speeds_are_no_spread() -> None:
    """Workloads three times as fast as each other; groups differ by what is in both their prompts alone."""
    shared = [0.1, -0.2, 0.3, 0.0, 0.2, -0.1]
    logs = list[PairedLog]()
    for workload, own in (("chat", 0.0), ("code", log(3)), ("summary", log(9))):
        logs += [PairedLog(workload, len(logs) + n, n, 0, own + by) for n, by in enumerate(shared)]
    assert half_interval_of_groups(logs) == pytest.approx(student(0.95, 5) * sqrt(variance(shared) / 6))
    found = speed_of(logs)
    assert found is not None
    assert found.ratio == pytest.approx(3 * exp(fmean(shared)))


def dealt_out(dice: random.Random, groups: int, workloads: int, each: int) -> list[PairedLog]:
    """Prompts of workloads, dealt to groups at random, without a number of their own."""
    places = [n % groups for n in range(workloads * each)]
    dice.shuffle(places)
    return [PairedLog(str(n % workloads), n, group, 0, 0.0) for n, group in enumerate(places)]


def of_logs(logs: Sequence[PairedLog], values: Sequence[float]) -> list[PairedLog]:
    return [PairedLog(one.workload, one.prompt, one.group, 0, value) for one, value in zip(logs, values, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_the_square_of_an_interval_is_right_on_average_whatever_is_in_which_group(seed: int) -> None:
    """By linear algebra: of independent prompts of one spread it is the variance of the mean, times the square of
    Student's t for degrees that depend on the groups alone. Each prompt's part is found by moving it by itself."""
    dice = random.Random(seed)
    logs = dealt_out(dice, dice.randint(6, 8), dice.randint(1, 5), dice.randint(4, 6))
    units = [[float(n == m) for m in range(len(logs))] for n in range(len(logs))]
    summed = sum(half_interval_of_groups(of_logs(logs, one)) ** 2 for one in units)
    names = {one.workload for one in logs}
    each = len(logs) / len(names)
    t = sqrt(summed * each * len(names))
    groups = len({one.group for one in logs})
    assert student(0.95, groups - 1) <= t * (1 + 1e-9)
    assert t <= student(0.95, 3)


def test_a_workload_in_one_group_shows_its_spread_between_workloads() -> None:
    """As a workload of a single prompt does elsewhere: too wide rather than none."""
    values = [0.0, 0.3, 0.6, 0.9, 1.2, 1.5]
    logs = [PairedLog(str(group), 2 * group + n, group, 0, value) for group, value in enumerate(values) for n in (0, 1)]
    assert half_interval_of_groups(logs) == pytest.approx(student(0.95, 5) * sqrt(variance(values) / 6))


def rounds_of(each: Sequence[float], prompts: Sequence[float]) -> list[PairedLog]:
    """All prompts in one group, in rounds that are so fast."""
    return [PairedLog("chat", n, 0, turn, own + by) for turn, by in enumerate(each) for n, own in enumerate(prompts)]


@pytest.mark.parametrize(("by_round", "by_prompt"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.3, 2.0)])
def test_of_one_group_the_rounds_are_units_and_further_prompts_are_covered_too(
    by_round: float, by_prompt: float
) -> None:
    """By hand: rounds that differ, prompts that differ, and both; all squares of half intervals are of logs."""
    spread = [0.1, -0.2, 0.3, 0.0, 0.2, -0.1]
    each, prompts = ([by * one for one in spread] for by in (by_round, by_prompt))
    found = speed_of(rounds_of(each, prompts))
    assert found is not None
    assert found.high is not None
    assert found.ratio == pytest.approx(exp(fmean(each) + fmean(prompts)))
    requests = [a + b for a in each for b in prompts]
    over_rounds, over_prompts = (student(0.95, 5) ** 2 * variance(some) / 6 for some in (each, prompts))
    less = student(0.95, 5) ** 2 * variance(requests) / 36
    assert log(found.high / found.ratio) ** 2 == pytest.approx(over_rounds + max(0.0, over_prompts - less))
    assert (found.units, found.method) == (6, ROUNDS)


@pytest.mark.parametrize(("rounds", "prompts", "units"), [(5, 9, 5), (1, 9, 1), (9, 5, 9)])
def test_few_rounds_of_one_group_and_few_prompts_have_no_interval(rounds: int, prompts: int, units: int) -> None:
    found = speed_of(rounds_of([0.1] * rounds, [0.2] * prompts))
    assert found is not None
    assert found.ratio == pytest.approx(exp(0.3))
    assert (found.low, found.high, found.units, found.method) == (None, None, units, NONE)


def test_intervals_cover_further_prompts_of_workloads_that_differ_and_drift_together() -> None:
    """Workloads from 1 to 3 times as fast, prompts of a workload by 20 %, groups by 5 % in common: 600 draws."""
    dice, held = random.Random(0), 0
    for _ in range(600):
        logs = dealt_out(dice, 7, 6, 5)
        drift = [dice.gauss(0, 0.05) for _ in range(7)]
        values = [int(one.workload) * log(3) / 5 + dice.gauss(0, 0.2) + drift[one.group] for one in logs]
        held += abs(fmean(values) - log(3) / 2) <= half_interval_of_groups(of_logs(logs, values))
    assert 0.92 <= held / 600 <= 0.98
