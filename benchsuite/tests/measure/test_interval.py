"""The interval of a figure: its coverage on the spread of a real run, Student's quantiles, and the laws it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, exp, gamma, log, pi, sqrt, tan

import numpy as np
import pytest

from benchsuite.measure.interval import BETWEEN, FEWEST, NONE, WITHIN, estimate, student, units_needed

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Errors = Callable[[np.random.Generator, Sequence[int]], Floats]

SEEN = {
    "ngram": [(0.01, 0.19), (0.44, 0.33), (-0.01, 0.07), (1.50, 0.21), (1.15, 0.27), (0.17, 0.05)],
    "suffix": [(-0.01, 0.08), (0.51, 0.59), (-0.01, 0.18), (1.64, 0.10), (1.10, 0.32), (0.17, 0.11)],
    "hybrid": [(-0.05, 0.01), (0.51, 0.47), (0.09, 0.16), (1.51, 0.12), (1.08, 0.32), (0.24, 0.03)],
    "hybrid with eagle": [(0.51, 0.19), (0.54, 0.46), (0.16, 0.11), (1.38, 0.24), (0.84, 0.24), (0.38, 0.18)],
    "eagle": [(0.34, 0.06), (0.08, 0.03), (0.10, 0.11), (0.31, 0.21), (0.13, 0.10), (0.40, 0.17)],
    "eagle tree": [(0.04, 0.17), (-0.37, 0.08), (-0.26, 0.12), (-0.07, 0.13), (-0.41, 0.22), (0.08, 0.16)],
    "medusa": [(0.50, 0.20), (0.06, 0.09), (0.23, 0.06), (0.24, 0.05), (0.08, 0.07), (0.31, 0.10)],
    "oracle": [(0.68, 0.28), (0.82, 0.20), (0.61, 0.04), (0.89, 0.22), (0.97, 0.03), (0.78, 0.40)],
    "garbage": [(-0.64, 0.08), (-0.67, 0.02), (-0.75, 0.05), (-0.49, 0.17), (-0.55, 0.22), (-0.49, 0.05)],
    "transformers": [(-0.86, 0.05), (-0.96, 0.08), (-0.90, 0.05), (-0.81, 0.17), (-0.90, 0.12), (-0.82, 0.02)],
    "prompt lookup": [(-1.18, 0.10), (-0.55, 0.75), (-1.26, 0.08), (1.24, 0.14), (0.55, 0.47), (-1.01, 0.26)],
}
"""Mean and standard deviation of the log ratios of each arm's three prompts in each of six kinds of text: SmolLM2-135M,
AMD EPYC (AVX2), `make bench` at commit ee5082f on 2026-11-22."""

DRAWS = 300
"""Draws for each arm. 3300 draws of a coverage of 0.95 have a standard error of 0.004: a fifth of the band's half."""

ERRORS: dict[str, Errors] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    # All three have variance 1; the skewed ones skewness 1, in the same direction in every kind.
    "heavy tails": lambda rng, shape: rng.standard_t(4, shape) / sqrt(2),
    "skewed": lambda rng, shape: (rng.gamma(4, size=shape) - 4) / 2,
}


def named(samples: Sequence[Sequence[float]]) -> dict[str, Sequence[float]]:
    return {f"kind {number}": sample for number, sample in enumerate(samples)}


def coverage(counts: Sequence[int], errors: str, drawn: bool = False) -> float:
    """The share of intervals that hold the truth, over all arms; ``counts`` are the units of each kind.

    The kinds are chosen from the six anew for each draw, and the truth is about those. If ``drawn``, kinds come from a
    normal population with the mean and the spread of the arm's six, and the truth is the population's.
    """
    rng = np.random.default_rng(0)
    hits = 0
    for kinds in SEEN.values():
        means, deviations = np.array(kinds).T
        for _ in range(DRAWS):
            which = rng.permutation(6)[: len(counts)]
            centres = rng.normal(means.mean(), means.std(ddof=1), len(counts)) if drawn else means[which]
            truth = means.mean() if drawn else centres.mean()
            noise = [ERRORS[errors](rng, [count]) for count in counts]
            found = estimate(
                named([(c + d * x).tolist() for c, d, x in zip(centres, deviations[which], noise, strict=True)])
            )
            assert found.low is not None
            assert found.high is not None
            hits += found.low <= exp(truth) <= found.high
    return hits / DRAWS / len(SEEN)


@pytest.mark.slow
@pytest.mark.parametrize("errors", ["normal", "heavy tails"])
@pytest.mark.parametrize("each", [2, 3])
def test_twelve_and_eighteen_prompts_in_six_kinds_are_covered_as_promised(each: int, errors: str) -> None:
    assert 0.93 <= coverage([each] * 6, errors) <= 0.97


@pytest.mark.slow
def test_errors_skewed_in_the_same_direction_in_every_kind_cost_little_coverage() -> None:
    assert 0.92 <= coverage([3] * 6, "skewed") <= 0.97


@pytest.mark.slow
def test_six_prompts_of_six_kinds_drawn_at_random_are_covered_as_promised() -> None:
    assert 0.93 <= coverage([1] * 6, "normal", drawn=True) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("counts", [[1] * 6, [3, 3, 3, 3, 3, 1]])
def test_a_single_unit_in_a_chosen_kind_makes_the_interval_too_wide_and_never_too_narrow(counts: list[int]) -> None:
    assert coverage(counts, "normal") >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("counts", [[6], [3, 3], [2, 20]])
def test_few_kinds_and_uneven_counts_are_covered_as_promised(counts: list[int]) -> None:
    assert 0.93 <= coverage(counts, "normal") <= 0.97


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (5, 2.570582), (12, 2.178813), (30, 2.042272), (1e6, 1.959966)],
)
def test_students_quantiles_are_the_tabled_ones(degrees: float, t: float) -> None:
    assert student(0.95, degrees) == pytest.approx(t, abs=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_students_quantiles_have_the_closed_forms_of_one_and_two_degrees(level: float) -> None:
    assert student(level, 1) == pytest.approx(tan(pi * level / 2), rel=1e-10)
    assert student(level, 2) == pytest.approx(level * sqrt(2 / (1 - level**2)), rel=1e-10)


@pytest.mark.parametrize("degrees", [1.01, 1.5, 2.7, 3.39, 5.3, 11.9, 140.2])
def test_students_density_integrates_to_the_level_for_fractions_of_degrees(degrees: float) -> None:
    t = student(0.95, degrees)
    width = 2 * t / 200_000
    middles = -t + width * (np.arange(200_000) + 0.5)
    density = (1 + middles**2 / degrees) ** (-(degrees + 1) / 2)
    whole = sqrt(degrees * pi) * gamma(degrees / 2) / gamma((degrees + 1) / 2)
    assert density.sum() * width / whole == pytest.approx(0.95, abs=1e-8)


def test_an_example_by_hand() -> None:
    found = estimate({"chat": [0.0, 0.2, 0.4], "code": [0.5, 0.6, 0.7]})
    # Variances 0.04 and 0.01, of the means 0.04/3 and 0.01/3, of the mean of means 0.05/12. Shares 0.8 and 0.2 as seen,
    # halves if equal: 1 / degrees is the mean of (0.64 + 0.04) / 2 and (0.25 + 0.25) / 2, which is 0.295.
    half = 2.9850955 * sqrt(0.05 / 12)
    assert found.ratio == pytest.approx(exp(0.4))
    assert found.low == pytest.approx(exp(0.4 - half))
    assert found.high == pytest.approx(exp(0.4 + half))
    assert found.half_width == pytest.approx(exp(half) - 1)
    assert (found.units, found.method) == (6, WITHIN)


def test_one_workload_gives_the_t_interval_of_its_units() -> None:
    values = [0.1, 0.4, 0.2, 0.5, 0.3, 0.9, 0.0]
    half = 2.4469119 * float(np.std(values, ddof=1)) / sqrt(7)
    found = estimate({"chat": values})
    assert found.low == pytest.approx(exp(np.mean(values) - half))
    assert found.high == pytest.approx(exp(np.mean(values) + half))


def test_with_a_single_unit_in_a_workload_the_interval_is_that_of_the_workloads_means() -> None:
    found = estimate({"a": [0.1], "b": [0.3, 0.5], "c": [0.2, 0.1, 0.3]})
    half = 4.3026527 * float(np.std([0.1, 0.4, 0.2], ddof=1)) / sqrt(3)
    assert found.method == BETWEEN
    assert found.high == pytest.approx(exp(0.7 / 3 + half))


def test_there_is_no_interval_below_six_units() -> None:
    values = [0.1, 0.4, 0.2, 0.5, 0.3, 0.9]
    five, six = estimate({"a": values[:2], "b": values[2:5]}), estimate({"a": values[:3], "b": values[3:]})
    assert (five.low, five.high, five.half_width, five.units, five.method) == (None, None, None, 5, NONE)
    assert five.ratio == pytest.approx(exp((0.25 + 1 / 3) / 2))
    assert six.units == FEWEST == 6
    assert six.low is not None
    assert units_needed({"a": values[:5]}, 0.1) is None


def test_workloads_without_units_are_left_out_and_nothing_at_all_is_refused() -> None:
    some = {"a": [0.1, 0.4, 0.2], "b": [0.5, 0.3, 0.9]}
    assert estimate({"none": [], **some}) == estimate(some)
    assert units_needed({"none": [], **some}, 0.1) == units_needed(some, 0.1)
    with pytest.raises(ValueError, match="no unit"):
        estimate({"none": []})


@pytest.mark.parametrize("odd", [0.1, 4.0, 40.0])
@pytest.mark.parametrize("counts", [[6], [48], [3] * 6, [8] * 6, [1] * 6, [2, 7], [1, 7]])
def test_one_odd_prompt_never_shows_a_difference_however_odd(counts: list[int], odd: float) -> None:
    # Its own spread grows with it: the figure is one standard error from 1 whatever the prompt's ratio.
    samples = [[0.0] * count for count in counts]
    samples[0][0] = odd
    found = estimate(named(samples))
    assert found.low is not None
    assert found.low < 1 < found.ratio


LOGS = {"a": [0.31, 0.12, 0.44, 0.27], "b": [1.1, 0.6, 0.93], "c": [-0.2, 0.05]}
SINGLE = {**LOGS, "d": [0.7]}


@pytest.mark.parametrize("logs", [LOGS, SINGLE])
def test_an_interval_follows_a_factor_on_every_ratio(logs: dict[str, list[float]]) -> None:
    found, doubled = estimate(logs), estimate({name: [x + log(2) for x in units] for name, units in logs.items()})
    assert found.high is not None
    assert doubled.ratio == pytest.approx(2 * found.ratio)
    assert doubled.high == pytest.approx(2 * found.high)
    assert doubled.half_width == pytest.approx(found.half_width)


@pytest.mark.parametrize("logs", [LOGS, SINGLE])
def test_exchanging_arm_and_baseline_inverts_the_interval(logs: dict[str, list[float]]) -> None:
    found, swapped = estimate(logs), estimate({name: [-x for x in units] for name, units in logs.items()})
    assert swapped.ratio == pytest.approx(1 / found.ratio)
    assert found.low is not None
    assert swapped.high == pytest.approx(1 / found.low)


def test_equal_ratios_have_an_interval_of_no_width() -> None:
    for logs in ({"a": [0.1] * 7}, {"a": [0.1, 0.1], "b": [0.3] * 5}, {"a": [0.25], "b": [0.25] * 5}):
        assert estimate(logs).half_width == pytest.approx(0, abs=1e-12)
    # The fewest units, and two in each workload.
    assert units_needed({"a": [0.1] * 7}, 0.01) == 6
    assert units_needed({kind: [0.1] * 3 for kind in "abcdef"}, 0.01) == 12


def test_workloads_weigh_the_same_whatever_their_number_of_units() -> None:
    assert estimate({"a": [0.0] * 10, "b": [1.0, 1.0]}).ratio == pytest.approx(exp(0.5))
    assert estimate({"a": [0.0, 0.2] * 5, "b": [1.0]}).ratio == pytest.approx(exp(0.55))


@pytest.mark.parametrize("fewest", [1, 2])
def test_the_order_of_units_and_of_workloads_changes_no_bit(fewest: int) -> None:
    rng = np.random.default_rng(0)
    logs = named([rng.normal(3, 1, fewest + number).tolist() for number in range(7)])
    found = estimate(logs)
    for _ in range(20):
        names = rng.permutation(list(logs)).tolist()
        assert estimate({name: rng.permutation(logs[name]).tolist() for name in names}) == found


def test_a_higher_level_is_wider() -> None:
    widths = [estimate(LOGS, level).half_width for level in (0.5, 0.9, 0.95, 0.99)]
    assert all(width is not None for width in widths)
    assert widths == sorted(set(widths), key=lambda width: width or 0)


def alike(values: Sequence[float], count: int) -> list[float]:
    """``count`` values with the mean and the standard deviation of ``values``."""
    grid = np.linspace(-1, 1, count)
    return (np.mean(values) + np.std(values, ddof=1) / np.std(grid, ddof=1) * grid).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", [0.5, 0.1, 0.05])
@pytest.mark.parametrize("logs", [LOGS, {"a": LOGS["a"] + LOGS["b"]}, dict.fromkeys("abcdef", LOGS["b"])])
def test_units_needed_are_the_fewest_that_are_precise_enough(logs: dict[str, list[float]], precision: float) -> None:
    smallest = min(map(len, logs.values()))
    for size in range(2, 2000):
        found = estimate({name: alike(units, ceil(len(units) * size / smallest)) for name, units in logs.items()})
        if found.half_width is not None and found.half_width <= precision:
            break
    assert units_needed(logs, precision) == found.units > 0


def test_workloads_needed_are_the_fewest_that_are_precise_enough() -> None:
    means = [0.1, 0.3, 0.2, 0.5, 0.4, 0.35]
    for count in range(6, 2000):
        found = estimate(named([[mean] for mean in alike(means, count)]))
        if found.half_width is not None and found.half_width <= 0.05:
            break
    assert units_needed(named([[mean] for mean in means]), 0.05) == found.units
    # Ten units in six workloads now: so many for each that is needed.
    mixed = named([[mean] * (1 if number < 2 else 2) for number, mean in enumerate(means)])
    assert units_needed(mixed, 0.05) == ceil(found.units * 10 / 6)


def test_a_precision_out_of_reach_has_no_number_of_units() -> None:
    assert units_needed(LOGS, 1e-9) is None
