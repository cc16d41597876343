"""What a run has measured: its cells' rows, those of all workloads together, and each strategy beside each other."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from benchsuite.judge.ties import Difference
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.measured import Measured
from benchsuite.measure.paired import Series
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
    assert found.pooled() == []
    assert (found.rows_of(CHAT), found.contrasts(CHAT), found.pools(CHAT)) == ([], {}, {})
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
    for workload in ("chat", "code", "never measured"):
        rows = found.rows_of(SETTING.replaced(workload=workload))
        assert [row.arm.setting for row in rows] == [CHAT] * 3 + [CODE] * 3
        assert {row.arm.setting for row in found.rows_of(replace(OTHER, workload=workload))} == {OTHER}
    assert found.rows_of(SETTING.replaced(batch=9)) == []


def test_all_workloads_together_have_one_row_a_strategy_on_the_last_cells_machine_with_the_highest_peak() -> None:
    speeds = ({"plain": 1.0, "ngram": ngram} for ngram in (2.0, 3.0, 4.0))
    cells = [
        _cell(setting, peak, one, target)
        for setting, peak, one, target in zip(
            (CHAT, CODE, LONG), (5, 9, 7), speeds, ("first", "second", "third"), strict=True
        )
    ]
    found = _measured(cells[0], _cell(OTHER, 99, target="other"), *cells[1:])
    together, apart = found.pooled()
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
    found = _measured(chat, _cell(CODE), _cell(OTHER)).contrasts(CODE)
    names = {draft: _arm(SETTING.without_workload, draft) for draft in SPEEDS}
    assert set(found) == {(names[one], names[other]) for one in names for other in names if one != other}
    for one, arm in names.items():
        for other, base in names.items():
            if one != other:
                speed = found[arm, base]
                assert speed.ratio == pytest.approx(SPEEDS[one] / SPEEDS[other])
                assert speed.units == 6


def test_strategies_without_a_workload_in_common_are_not_compared() -> None:
    found = _measured(
        _cell(CHAT, speeds={"plain": 1.0, "ngram": 2.0}), _cell(CODE, speeds={"plain": 1.0, "suffix": 2.0})
    ).contrasts(CHAT)
    plain, ngram, suffix = (_arm(SETTING.without_workload, draft) for draft in ("plain", "ngram", "suffix"))
    assert list(found) == [(plain, ngram), (plain, suffix), (ngram, plain), (suffix, plain)]
    assert [one.units for one in found.values()] == [3] * 4
