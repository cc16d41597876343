"""The table of engines: each over the plain decoding of its own, whatever the run's baseline is."""

from __future__ import annotations

from benchsuite.judge.agreement import Agreement
from benchsuite.measure.arms import Arm
from benchsuite.report.engines import engines_table
from benchsuite.tests.report.made import AGAIN, NGRAM, PLAIN, made_cell, run_of_cells, texts_of_table
from benchsuite.tests.rig import SETTING

OWN, FAST = (Arm(SETTING, peer=f"endpoint(url=http://127.0.0.1:{n}, name={name})") for n, name in ((1, "a"), (2, "b")))
SECONDS = {PLAIN: 8.0, AGAIN: 8.0, NGRAM: 4.0, OWN: 2.0, FAST: 1.6}
"""Of each prompt: the other engine is four times as fast as ours without speculation, and gains 1.25x by it."""


def shown_engines(*arms: Arm) -> list[dict[str, str]]:
    cells = []
    for workload in ("chat", "reasoning"):
        setting = SETTING.replaced(workload=workload)
        cell = made_cell(setting, {arm: [SECONDS[arm] + n / 1000 for n in range(6)] for arm in arms})
        for arm, series in cell.series.items():
            if arm.peer == FAST.peer and OWN in arms:
                series.reference, series.referred = OWN.label, Agreement(6, 5, 60, 57)
        cells.append(cell)
    [one] = run_of_cells(*cells).results().settings
    return texts_of_table(engines_table(one))


def test_each_engine_is_set_over_its_own_plain_decoding() -> None:
    ours, theirs = shown_engines(PLAIN, AGAIN, NGRAM, OWN, FAST)
    assert (ours["strategy"], ours["over"], ours["decoding"]) == ("ngram, match 4", "plain", "2.00x")
    assert ours["by position, %"] == "75 50", "as the made-up steps accept"
    assert (theirs["strategy"], theirs["over"], theirs["decoding"]) == ("b", "a", "1.25x")
    assert theirs["outputs"] == "10/12, 95% before"
    assert theirs["acc len"] == theirs["by position, %"] == "-", "it does not say what it accepts"


def test_without_another_engines_plain_decoding_there_is_no_table() -> None:
    assert shown_engines(PLAIN, AGAIN, NGRAM, FAST) == shown_engines(PLAIN, AGAIN, NGRAM) == []
