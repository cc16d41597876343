"""What a run has measured: its cells' rows, those of all workloads together, and each strategy beside each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.judge.ties import Difference
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.measured import Measured
from benchsuite.measure.paired import Series
from benchsuite.measure.results import Results
from benchsuite.measure.rows import Machine, Text
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.tests.rig import SETTING

CHAT, CODE, LONG = (SETTING.replaced(workload=name) for name in ("chat", "code", "long"))
OTHER = SETTING.replaced(temperature=0.5)
RUN = Outcome([(1, 2, 3, 4)], 5.0, 4.0, 4, [[(1.0, 1), (5.0, 3)]], 4, 20.0)
SPEEDS = {"plain": 1.0, "ngram": 2.0, "suffix": 0.5}
BUG = Difference(0, 1, (2, 3), None, None, (0.0, 0.0), 0.1, False, "far")


def _arm(setting: Setting, draft: str) -> Arm:
    return Arm(setting) if draft == "plain" else Arm(setting, draft=draft, k=2)


def _series(arm: Arm, speed: float, units: int = 3) -> Series:
    runs = [replace(RUN, decode_s=4.0 / speed, wall_s=5.0 / speed)] * units
    return Series(arm, "exact", [Unit((), n) for n in range(units)], list(runs), list(runs))


def _cell(setting: Setting, peak: int = 1, speeds: dict[str, float] = SPEEDS, target: str = "tiny") -> Cell:
    """A cell whose machine has a target and a peak of its own; a set-up takes ten times its speed."""
    machine = Machine(target, "reference", "cpu", "float32", 1000, 10, 1e6, peak)
    series = {_arm(setting, draft): _series(_arm(setting, draft), speed) for draft, speed in speeds.items()}
    set_up = {arm: 10 * speeds[arm.draft] for arm in series if arm.draft}
    return Cell(setting, f"{setting.workload}!", machine, (7,), series, set_up, Text(0.25, 1.5), {}, {})


def _measured(*cells: Cell, baseline: str = "plain") -> Measured:
    found = Measured(baseline)
    for cell in cells:
        found.add(cell)
    return found


def test_a_run_starts_with_nothing_measured_relative_to_plain() -> None:
    found = Measured()
    assert (found.baseline, found.dry, found.across) == ("plain", False, ())
    assert (found.card, found.said, found.weights, found.cells, found.rows) == ([], [], [], {}, [])
    assert (found.results(), found.pools(CHAT.without_workload)) == (Results(), {})
    dry = Measured("ngram", True, ("dtype",))
    assert (dry.baseline, dry.dry, dry.across) == ("ngram", True, ("dtype",))


def test_a_cells_rows_are_named_and_timed_as_the_cell_says() -> None:
    found = _measured(_cell(CHAT, peak=77))
    assert [row.arm for row in found.rows] == [_arm(CHAT, draft) for draft in SPEEDS]
    assert [row.info["speedup"] for row in found.rows] == pytest.approx(list(SPEEDS.values()))
    assert [row.info["set_up_s"] for row in found.rows] == [None, 20.0, 5.0]
    for row in found.rows:
        assert (row.info["workload"], row.info["peak_memory_bytes"], row.text) == ("chat!", 77, Text(0.25, 1.5))
        assert row.info["baseline"] == "plain"


def test_speedups_are_relative_to_the_baseline_that_was_asked_for() -> None:
    found = _measured(_cell(CHAT), baseline="ngram")
    assert [row.info["speedup"] for row in found.rows] == pytest.approx([0.5, 1.0, 0.25])
    assert {row.info["baseline"] for row in found.rows} == {"ngram"}


def test_an_arm_that_has_not_run_yet_has_no_row_and_one_that_failed_has() -> None:
    cell = _cell(CHAT)
    waiting, failed = _arm(CHAT, "medusa"), _arm(CHAT, "eagle")
    series = {
        **cell.series,
        waiting: Series(waiting, "exact"),
        failed: Series(failed, "exact", error="no head", ended="refused"),
    }
    found = _measured(replace(cell, series=series))
    assert [row.arm.draft for row in found.rows] == [None, "ngram", "suffix", "eagle"]
    assert (found.rows[-1].failure, found.rows[-1].info["failed"]) == ("no head", "refused")


def test_rows_stay_in_the_order_of_measurement_and_a_later_cell_replaces_its_own() -> None:
    found = _measured(_cell(CHAT), _cell(OTHER), _cell(CODE))
    arms = [_arm(setting, draft) for setting in (CHAT, OTHER, CODE) for draft in SPEEDS]
    assert [row.arm for row in found.rows] == arms
    found.add(_cell(OTHER, speeds={"plain": 1.0, "ngram": 3.0, "suffix": 4.0}))
    assert [row.arm for row in found.rows] == arms
    assert [row.info["speedup"] for row in found.rows] == pytest.approx([1, 2, 0.5, 1, 3, 4, 1, 2, 0.5])
    assert list(found.cells) == [CHAT, OTHER, CODE]


def test_the_rows_of_a_setting_are_those_of_all_its_workloads() -> None:
    found = _measured(_cell(CHAT), _cell(OTHER), _cell(CODE))
    one, other = found.results().settings
    assert (one.setting, other.setting) == (SETTING.without_workload, OTHER.without_workload)
    assert [row.arm.setting for row in one.rows] == [CHAT] * 3 + [CODE] * 3
    assert [row.arm.setting for row in other.rows] == [OTHER] * 3


def test_all_workloads_together_have_one_row_a_strategy_on_the_last_cells_machine_with_the_highest_peak() -> None:
    speeds = ({"plain": 1.0, "ngram": ngram} for ngram in (2.0, 3.0, 4.0))
    cells = [
        _cell(setting, peak, one, target)
        for setting, peak, one, target in zip(
            (CHAT, CODE, LONG), (5, 9, 7), speeds, ("first", "second", "third"), strict=True
        )
    ]
    found = _measured(cells[0], _cell(OTHER, 99, target="other"), *cells[1:])
    together, apart = (one.pooled for one in found.results().settings)
    everywhere = SETTING.without_workload
    assert [row.arm for row in together] == [_arm(everywhere, "plain"), _arm(everywhere, "ngram")]
    for row in together:
        assert (row.target, row.info["peak_memory_bytes"], row.info["workload"], row.text) == ("third", 9, "all", None)
    ngram = together[1]
    assert ngram.info["speedup"] == pytest.approx(prod((2.0, 3.0, 4.0)) ** (1 / 3))
    assert {name: len(values) for name, values in ngram.ratios.items()} == {"chat": 3, "code": 3, "long": 3}
    assert ngram.info["set_up_s"] == 40.0, "that of the cell measured last"
    assert [row.arm for row in apart] == [_arm(OTHER.without_workload, draft) for draft in SPEEDS]
    assert {(row.target, row.info["peak_memory_bytes"]) for row in apart} == {("other", 99)}


def test_the_pools_of_a_setting_hold_its_series_by_workload() -> None:
    chat, code, other = _cell(CHAT), _cell(CODE, speeds={"plain": 1.0, "suffix": 2.0}), _cell(OTHER)
    found = _measured(chat, code, other).pools(SETTING.without_workload)
    everywhere = SETTING.without_workload
    assert found == {
        _arm(everywhere, "plain"): {
            "chat": chat.series[_arm(CHAT, "plain")],
            "code": code.series[_arm(CODE, "plain")],
        },
        _arm(everywhere, "ngram"): {"chat": chat.series[_arm(CHAT, "ngram")]},
        _arm(everywhere, "suffix"): {
            "chat": chat.series[_arm(CHAT, "suffix")],
            "code": code.series[_arm(CODE, "suffix")],
        },
    }


def test_every_strategy_is_compared_with_every_other_one_but_failed_ones() -> None:
    chat = _cell(CHAT, speeds={**SPEEDS, "garbage": 9.0})
    chat.series[_arm(CHAT, "garbage")].differences.append(BUG)
    found = _measured(chat, _cell(CODE), _cell(OTHER)).results().settings[0].contrasts
    names = {draft: _arm(SETTING.without_workload, draft) for draft in SPEEDS}
    assert set(found) == {(names[one], names[other]) for one in names for other in names if one != other}
    for one, arm in names.items():
        for other, base in names.items():
            if one != other:
                speed = found[arm, base].speed
                assert speed is not None
                assert speed.ratio == pytest.approx(SPEEDS[one] / SPEEDS[other])
                assert speed.units == 6


@pytest.mark.parametrize("across", [(), ("dtype",)])
def test_each_pair_has_the_mark_that_its_row_has_beside_that_baseline(across: tuple[str, ...]) -> None:
    """A peer in another dtype had "!" in its row and none in the matrix of all arms."""
    speeds = {"plain": 1.0, "slow": 0.5, "close": 1.04, "again": 1.05, "rounded": 3.0, "looping": 2.0}
    arms = {name: Arm(CHAT, peer=name) for name in speeds} | {"plain": Arm(CHAT), "again": Arm(CHAT, again=True)}
    series = {arm: _series(arm, speeds[name], units=7) for name, arm in arms.items()}
    for name, arm in arms.items():
        series[arm].conditions = {"dtype": "int8" if name == "rounded" else "float32"}
    loop = series[arms["looping"]]
    loop.outcomes = [replace(run, tokens=[(1,) * 30]) for run in loop.outcomes]
    cell, labels = replace(_cell(CHAT), series=series), set[str | None]()
    for baseline in ("plain", *speeds.keys() - {"plain", "again"}):
        found = Measured(baseline, across=across)
        found.add(cell)
        [results] = found.results().settings
        everywhere = {name: replace(arm, setting=CHAT.without_workload) for name, arm in arms.items()}
        base = everywhere[baseline]
        for row in results.pooled:
            if row.arm != base:
                assert results.contrasts[row.arm, base] == row.verdict
                assert results.whole_contrasts[row.arm, base] == row.whole
                labels.add(row.verdict.label)
    assert labels == {"faster", "slower", "~", "not comparable"}


def test_strategies_without_a_workload_in_common_are_not_compared() -> None:
    [both] = (
        _measured(_cell(CHAT, speeds={"plain": 1.0, "ngram": 2.0}), _cell(CODE, speeds={"plain": 1.0, "suffix": 2.0}))
        .results()
        .settings
    )
    found = both.contrasts
    plain, ngram, suffix = (_arm(SETTING.without_workload, draft) for draft in ("plain", "ngram", "suffix"))
    assert list(found) == [(plain, ngram), (plain, suffix), (ngram, plain), (suffix, plain)]
    assert [one.speed and one.speed.units for one in found.values()] == [3] * 4


def test_speeds_are_comparable_by_the_outputs_of_the_workloads_that_both_have() -> None:
    """Outputs of one text were held against those of another, whose lengths differ."""
    cells = []
    for setting, tokens, own in ((CHAT, 40, [Arm(CHAT)]), (CODE, 4, [Arm(CODE), Arm(CODE, peer="other")])):
        series = {arm: _series(arm, 2.0 if arm.peer else 1.0) for arm in own}
        for one in series.values():
            one.outcomes = [replace(run, tokens=[tuple(range(tokens))]) for run in one.outcomes]
        cells.append(replace(_cell(setting), series=series))
    [results] = _measured(*cells).results().settings
    plain, other = results.pooled
    assert (plain.verdict.reason, other.verdict.reason) == (None, None)
    assert other.figures.units == 3
    assert results.contrasts[other.arm, plain.arm] == other.verdict


DRAWN = st.dictionaries(st.sampled_from(["ngram", "suffix"]), st.sampled_from([0.25, 0.5, 2.0, 3.0]))
"""The speeds of the drafts of a cell."""

CHANGES = st.tuples(
    st.sampled_from([CHAT, CODE, LONG, OTHER]),
    st.none() | DRAWN,
    st.sets(st.sampled_from(["ngram", "suffix"]), max_size=1),
)
"""A setting, the cell that is added (None: its cell is dropped), and the drafts whose outputs broke their contract."""


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=6))
def test_results_follow_from_the_cells_that_are_there_whatever_came_and_went(
    changes: list[tuple[Setting, dict[str, float] | None, set[str]]],
) -> None:
    """Ratios by hand: a geometric mean over the workloads that two strategies share, of what was drawn for each."""
    found, left, bad = Measured(), dict[Setting, Cell](), dict[Setting, set[str]]()
    speeds: dict[Setting, dict[str, float]] = {}
    for setting, drawn, broken in changes:
        if drawn is None:
            found.drop(setting)
            left.pop(setting, None)
        else:
            speeds[setting], bad[setting] = {"plain": 1.0, **drawn}, broken & drawn.keys()
            cell = _cell(setting, speeds=speeds[setting])
            for draft in bad[setting]:
                cell.series[_arm(setting, draft)].differences.append(BUG)
            found.add(cell)
            left[setting] = cell
        results = found.results()
        assert results.cells == tuple(left.values())
        assert results.rows == tuple(row for cell in left.values() for row in _measured(cell).rows)
        assert [one.setting for one in results.settings] == list(dict.fromkeys(one.without_workload for one in left))
        for one in results.settings:
            mine = [own for own in left if own.without_workload == one.setting]
            assert one.cells == tuple(left[own] for own in mine)
            assert one.rows == tuple(row for row in results.rows if row.arm.setting in mine)
            drafts = {draft for own in mine for draft in speeds[own]}
            whole = drafts - {draft for own in mine for draft in bad[own]}
            ratios = {}
            for pair in permutations(whole, 2):
                each = [speeds[own][pair[0]] / speeds[own][pair[1]] for own in mine if {*pair} <= speeds[own].keys()]
                if each:
                    ratios[pair] = prod(each) ** (1 / len(each))
            named = {
                (a.draft or "plain", b.draft or "plain"): said.speed and said.speed.ratio
                for (a, b), said in one.contrasts.items()
            }
            assert named == pytest.approx(ratios)
            over_all = {row.arm.draft or "plain": row.figures.speedup for row in one.pooled}
            assert over_all == pytest.approx({name: ratios.get((name, "plain")) for name in drafts} | {"plain": 1.0})
