"""The measures' formulas at their limits: one token, equality with a threshold, the first and the last that counts."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from benchsuite.judge import fidelity, logprob_ties
from benchsuite.judge.fidelity import Fidelity, chi_square, evenness, finding
from benchsuite.judge.tie_gaps import UNLIKE_ROUNDING
from benchsuite.judge.ties import Difference
from benchsuite.machine import provenance
from benchsuite.measure import cells, guards, interval
from benchsuite.measure.arms import Arm
from benchsuite.measure.cells import Cell, from_json, made_here, snapshot, to_json
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.tests.rig import SETTING
from specdec import Request

LIMIT_RUN = Outcome([(1, 2)], 2.0, 1.0, 1, [[(0.5, 1), (1.0, 1)]], 1, 5.0)


def _outcome(*outputs: tuple[int, ...]) -> Outcome:
    return replace(LIMIT_RUN, tokens=list(outputs))


def _plain(*runs: Outcome) -> Series:
    units = [Unit((Request(0, (1, 2), SETTING.params(())),), n) for n in range(len(runs))]
    return Series(Arm(SETTING), "exact", units, list(runs), list(runs))


def _cell(series: Series, setting: Any = SETTING, **fields: Any) -> Cell:
    machine = Machine("tiny", "cpu", "cpu", "float32", 1, 2, 3.5, 4)
    return Cell(setting, "chat", machine, (7,), {series.arm: series}, {}, None, {"host": "here"}, {}, **fields)


def test_a_cells_name_is_readable_in_the_matrixs_order_and_of_its_setting_alone() -> None:
    setting = SETTING.replaced(target="org/model_a.b-c", workload="my text(x=1)", temperature=0.5)
    names = [_cell(_plain(), setting, place=place).id for place in (0, 12)]
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", setting.id)[:80]
    assert readable.startswith("org-model_a.b-c-my-text-x-1-")
    ends = {
        re.fullmatch(rf"{place}-{re.escape(readable)}-([0-9a-f]{{8}})", name)
        for place, name in zip(("00000", "00012"), names, strict=True)
    }
    assert None not in ends
    assert len({end[1] for end in ends if end}) == 1
    assert _cell(_plain(), setting).id == names[0], "a cell is the first of its matrix unless said otherwise"
    long = _cell(_plain(), SETTING.replaced(workload="w" * 200)).id
    assert len(long) == 5 + 1 + 80 + 1 + 8
    assert long != _cell(_plain(), SETTING.replaced(workload="w" * 201)).id


@pytest.mark.parametrize("ranks", [None, "two ranks"])
def test_a_cell_says_where_when_and_by_which_commit_it_was_measured(
    ranks: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "joined_ranks", lambda: ranks)
    monkeypatch.setattr(provenance, "cores_line", lambda: "3 cores")
    monkeypatch.setattr("benchsuite.measure.cells.platform.node", lambda: "this host")
    monkeypatch.setattr("benchsuite.measure.cells.time.strftime", lambda form: f"now as {form}")
    cpu = torch.device("cpu")
    assert made_here(cpu) == {
        "machine": f"{provenance.device_name(cpu)}, 3 cores" + (", two ranks" if ranks else ""),
        "host": "this host",
        "commit": provenance.own_commit(),
        "time": "now as %Y-%m-%dT%H:%M:%S%z",
    }


def test_a_snapshot_holds_what_was_there_and_does_not_grow() -> None:
    tie = Difference(0, 1, (2, 3), None, None, (0.0, 0.0), 0.1, True, "close")
    series = replace(_plain(LIMIT_RUN), differences=[tie], conditions={"compile": "no"})
    kept = snapshot(series, "a machine")
    expected = replace(series, units=list(series.units), outcomes=[LIMIT_RUN], plain=[LIMIT_RUN], differences=[tie])
    expected.conditions = {"compile": "no", "machine": "a machine"}
    assert kept == expected
    lists: list[list[Any]] = [series.units, series.outcomes, series.plain, series.differences]
    for grown in lists:
        grown.append(grown[0])
    assert kept == expected
    assert series.conditions == {"compile": "no"}


def test_a_cell_of_a_broken_arm_is_strict_json_and_is_read_as_it_was() -> None:
    """Infinite numbers at any depth; no text of the workload; tuples where there were tuples."""
    bug = Difference(1, 2, (3, 4), (math.inf, -math.inf), (1.0, 2.0), (0.5, 1.5), math.inf, False, "infinite")
    endless = Fidelity([1] * 10, 1, 2, math.inf, 3, -math.inf)
    series = replace(_plain(LIMIT_RUN), differences=[bug], fidelity=endless)
    written = json.loads(json.dumps(to_json(_cell(series)), allow_nan=False))
    assert written["text"] is None
    read = from_json(written)
    [found] = read.series.values()
    assert read.text is None
    assert (found.differences, found.fidelity) == ([bug], endless)
    assert asdict(found.differences[0]) == asdict(bug)


def test_lengths_are_compared_of_the_outputs_that_both_have() -> None:
    """An arm that failed ran fewer units, and a batch may lack a row."""
    one, two = tuple(range(20)), tuple(range(40, 60))
    ours, base = _plain(_outcome(one)), _plain(_outcome(one, two), _outcome(two))
    assert guards.why_not([ours], [base]) is guards.why_not([base], [ours]) is None


@pytest.mark.parametrize(("ours", "base", "apart"), [((5,), (), 100), ((), (5,), 100), ((5,), (5, 6), 50)])
def test_outputs_of_one_token_and_of_none_differ_by_all_of_their_tokens(
    ours: tuple[int, ...], base: tuple[int, ...], apart: int
) -> None:
    assert guards.why_not([_plain(_outcome(ours))], [_plain(_outcome(base))]) == (
        f"lengths: its outputs and the baseline's differ by {apart}% of their tokens"
    )
    assert guards.why_not([_plain(_outcome(()))], [_plain(_outcome(()))]) is None


def test_perplexities_of_one_token_are_its_own_and_of_none_are_one() -> None:
    one = Fidelity(tokens=1, surprise=math.log(3), plain_tokens=1, plain_surprise=math.log(5))
    assert one.perplexities == pytest.approx((3, 5))
    assert Fidelity().perplexities == (1.0, 1.0)
    assert Fidelity() + one == one
    assert Fidelity().bins == [0] * 10


def test_a_p_value_of_exactly_the_false_alarm_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    bins = [6, 1, *[0] * 8]
    monkeypatch.setattr(fidelity, "FALSE_ALARM", evenness(bins))
    assert Fidelity(bins).failure is None
    monkeypatch.setattr(fidelity, "FALSE_ALARM", math.nextafter(evenness(bins), 1))
    assert Fidelity(bins).failure


def test_the_most_even_bins_have_a_p_value_of_one_and_no_more() -> None:
    """Sums of rounded probabilities may be a little more."""
    for tokens in (8, 12, 13, 16, 17, 31, 33, 37):
        assert evenness([tokens // 10 + (n < tokens % 10) for n in range(10)]) == 1.0


def test_bins_more_uneven_than_any_that_have_a_probability_have_the_least_p_value() -> None:
    """These are the next after the last unevenness of 37 tokens whose probability is computed."""
    bins = [33, 3, 1, *[0] * 7]
    assert fidelity.excess_of(bins) == len(fidelity.excess_tails(37))
    assert evenness(bins) == fidelity.LEAST


@pytest.mark.parametrize("statistic", [0.5, 3.7, 21.666, 45.0])
def test_chi_square_has_the_closed_forms_of_two_and_four_degrees(statistic: float) -> None:
    half = statistic / 2
    assert chi_square(statistic, 2) == pytest.approx(math.exp(-half), rel=1e-12)
    assert chi_square(statistic, 4) == pytest.approx(math.exp(-half) * (1 + half), rel=1e-12)


@pytest.mark.parametrize(("tokens", "shift"), [(3000, 0.078), (501, 0.1), (20000, 0.02)])
def test_above_the_switch_a_shift_is_found_as_often_as_by_the_noncentral_chi_square(tokens: int, shift: float) -> None:
    """A Poisson mixture of chi-squares with two more degrees each, whose tails follow from one another."""
    alarm = fidelity.FALSE_ALARM
    low, high = 0.0, 200.0
    for _ in range(100):
        low, high = ((low + high) / 2, high) if chi_square((low + high) / 2) > alarm else (low, (low + high) / 2)
    least, mean = low / 2, 2 * tokens * shift**2
    tail, weight, found = chi_square(low), math.exp(-mean), 0.0
    for n in range(400):
        found += weight * tail
        tail += math.exp((4.5 + n) * math.log(least) - least - math.lgamma(5.5 + n))
        weight *= mean / (n + 1)
    assert 0.01 < found < 0.999
    assert finding(tokens, shift) == pytest.approx(found, rel=2e-9)


def test_a_p_value_of_exactly_the_alarm_is_not_below_it() -> None:
    tails = fidelity.excess_tails(13).tolist()
    alarm = next(tail for tail in tails if tail < 0.01)
    assert finding(13, 0.3, alarm) == finding(13, 0.3, math.nextafter(alarm, 0))
    assert finding(13, 0.3, alarm) < finding(13, 0.3, math.nextafter(alarm, 1))


def test_a_shift_beyond_all_that_is_asked_is_always_found() -> None:
    assert finding(2000, 0.5) == finding(10**6, 0.4) == 1.0
    assert finding(1000, 0.5) == pytest.approx(1.0, abs=1e-12)
    assert finding(0, 0.5) == 0.0


LIMIT_LOGS = {"a": [0.31, 0.12, 0.44, 0.27, 1.1, 0.6, 0.93]}


def test_an_interval_of_exactly_the_precision_is_enough() -> None:
    variance = interval.sample_variance(LIMIT_LOGS["a"])
    for count in (6, 9, 30):
        precision = math.expm1(interval.half_interval([count], [variance], 0.95))
        assert interval.units_needed(LIMIT_LOGS, precision) == count
        assert interval.units_needed(LIMIT_LOGS, precision * (1 - 1e-9)) == count + 1


def test_up_to_a_million_units_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interval.MOST == 1_000_000
    variance = interval.sample_variance(LIMIT_LOGS["a"])
    precision = math.expm1(interval.half_interval([9], [variance], 0.95))
    for most, found in ((10, 9), (9, 9), (8, None), (7, None)):
        monkeypatch.setattr(interval, "MOST", most)
        assert interval.units_needed(LIMIT_LOGS, precision) == found


def test_the_constants_of_certificates_are_the_documented_ones() -> None:
    assert logprob_ties.FLOORS == {"float32": 0.01, "bfloat16": 0.5, "float16": 0.1, "unknown": 0.01}
    assert logprob_ties.DOUBT == {"unknown": 0.5}
    assert (logprob_ties.MOST, UNLIKE_ROUNDING) == (1.0, 1e-6)


class _Share(random.Random):
    """Dice that always draw the same share."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self.share = share

    def random(self) -> float:
        return self.share


@pytest.mark.parametrize(("share", "bins"), [(0.25, [1, 7, 5, 9]), (0.6, [2, 8, 7, 9]), (1.0, [4, 9, 9, 9])])
def test_a_tokens_bin_is_that_of_all_likelier_tokens_and_a_share_of_the_equally_likely(
    share: float, bins: list[int]
) -> None:
    """Likelier tokens have 0, 0.7, 0.4 and 0.9; the share is of 0.41, 0.2, 0.6 (three alike) and 0.1."""
    rows = [[0.41, 0.29, 0.2, 0.1], [0.41, 0.29, 0.2, 0.1], [0.4, 0.2, 0.2, 0.2], [0.4, 0.3, 0.2, 0.1]]
    distribution = torch.tensor(rows, dtype=torch.float64)
    assert fidelity.binned(distribution, [0, 2, 1, 3], _Share(share)) == bins
