"""Made-up rows, cells and runs for tests of what reports show: every figure is given, nothing is measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.cells import Cell
from benchsuite.measure.figures import RowFigures
from benchsuite.measure.interval import Estimate
from benchsuite.measure.measured import Measured
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine, Row, Text
from benchsuite.measure.runners import Outcome
from benchsuite.measure.units import Unit
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.report.document import Document, Lines, Plots, Section, Table
from benchsuite.report.plots import Plot
from benchsuite.tests.rig import SETTING
from specdec import Request
from specdec.devices import Stopwatch
from specdec.stats import Marks, RowStep, Stats, Step

PLAIN, AGAIN = Arm(SETTING), Arm(SETTING, again=True)
NGRAM = Arm(SETTING, "ngram", k=4)
PEER = Arm(SETTING, peer="transformers_prompt_lookup(k=3)")


def made_row(
    arm: Arm,
    speedup: float | None = None,
    half: float | None = None,
    *,
    noise: float = 0.0,
    reason: str | None = None,
    failure: str | None = None,
    **given: Any,
) -> Row:
    """The row of an arm over its workload, or over all of them if its setting has none.

    ``speedup`` lies in an interval from it / (1 + ``half``) to it * (1 + ``half``), or in none. ``given``: fields of a
    row and of its figures by their names; ``e2e_speedup`` is the same as the speedup unless it is given.
    """
    verdict, whole = (
        SpeedVerdict(_made_speed(ratio, half), noise, reason, baseline=arm.plain)
        for ratio in (speedup, given.get("e2e_speedup", speedup))
    )
    speed = verdict.speed
    workload = arm.setting.workload or "all"
    row: dict[str, Any] = {"ratios": {workload: [speedup] * 3} if speedup else {}, "rounds": (1.0,), "text": None}
    row |= {"target": "tiny", "failure": failure, "method": "by hand", "ties": (), "measured": [], "steps": []}
    row |= {name: given.pop(name) for name in [*given] if name in row}
    figures: dict[str, Any] = {
        **{"setting": arm.setting.id, "backend": "reference", "device": "cpu", "dtype": "float32"},
        **{"draft": arm.peer or arm.draft, "batch": arm.setting.batch, "workload": workload, "baseline": "plain"},
        **{"peak_memory_bytes": 0, "contract": "exact", "sampling": arm.setting.sampling, "not_comparable": reason},
        **{"speedup": speedup, "speedup_low": speed and speed.low, "speedup_high": speed and speed.high},
        **{"e2e_speedup": whole.speed and whole.speed.ratio},
        "verdict": "FAILED" if failure else verdict.label,
    }
    return Row(arm, RowFigures(**figures | given), verdict=verdict, whole=whole, **row)


def _made_speed(ratio: float | None, half: float | None) -> Estimate | None:
    if ratio is None:
        return None
    low, high = (None, None) if half is None else (ratio / (1 + half), ratio * (1 + half))
    return Estimate(ratio, low, high, 8, "by hand")


def everywhere(arm: Arm) -> Arm:
    """The arm over all workloads."""
    return Arm(**{**vars(arm), "setting": arm.setting.without_workload})


PARTS = (0.02, 0.03, 0.2, 0.4, 0.05, 0.1, 0.03, 0.1, 0.07)
"""Shares of a made-up step: the controller, the context, proposing, the target, the policy, the commit, extending,
observing, and the end."""

STEPS = (RowStep(2, 2, 2, 3), RowStep(2, 2, 1, 2), RowStep(2, 2, 0, 1), RowStep(0, 0, 0, 1), RowStep(2, 2, 2, 3))
"""What the steps of a made-up strategy proposed and accepted: ten tokens."""


def made_outcome(seconds: float, steps: Sequence[RowStep] | None = None) -> Outcome:
    """A run of one request that decodes for so many ``seconds``, as many in each step, after half a second of prefill.

    Its tokens are 0, 1, 2 …; ``steps`` None: of a peer, with ten tokens.
    """
    count = sum(step.emitted for step in steps) if steps else 10
    stats = None
    if steps:
        each = seconds / len(steps)
        times = [0.0, *itertools.accumulate([share * each for share in PARTS] * len(steps))]
        stats = Stats(Stopwatch.recorded(times))
        for place, step in enumerate(steps):
            marks = Marks(*range(9 * place, 9 * place + 10))
            stats.steps.append(Step.of((step,), step.proposed + 1, marks))
            stats.proposed(step.proposed, step.deepest)
            stats.accepted(step.accepted)
            stats.counts["num_emitted_tokens"] += step.emitted
    emissions = [[(0.5, 1), (0.5 + seconds, count - 1)]]
    tokens = [tuple(range(count))]
    return Outcome(tokens, seconds + 0.5, seconds, count, emissions, len(steps or tokens[0]), 20.0, stats)


def made_cell(
    setting: Setting,
    seconds: Mapping[Arm, Sequence[float]],
    text: Text | None = None,
    made: Mapping[str, Any] | None = None,
) -> Cell:
    """A cell in which an arm took so many seconds for each of its prompts, ten tokens each; ``PLAIN`` is among them."""
    arms = {Arm(**{**vars(arm), "setting": setting}): times for arm, times in seconds.items()}
    series = dict[Arm, Series]()
    plain = [made_outcome(one, [RowStep(0, 0, 0, 1)] * 10) for one in seconds[PLAIN]]
    every = [Unit((Request(n, (n, 2), setting.params(())),), n) for n in range(max(map(len, arms.values())))]
    for arm, times in arms.items():
        units = every[: len(times)]
        steps = STEPS if arm.draft else None if arm.peer else [RowStep(0, 0, 0, 1)] * 10
        outcomes = [made_outcome(one, steps) for one in times]
        series[arm] = Series(
            arm, "exact", units, outcomes, plain[: len(times)], compared=len(times), equal=len(times), tokens=10
        )
    machine = Machine("tiny", "reference", "cpu", "float32", 1000, 10, 1e6, 77)
    origin = {"machine": "m", "host": "h", "commit": "c0ffee", "time": "2026-11-28T09:30:15+0100"} | dict(made or {})
    pieces = {token: f"<{token}>" for token in range(10)}
    return Cell(setting, setting.workload, machine, (), series, {}, text, origin, pieces)


def run_of_cells(*cells: Cell) -> Measured:
    """A run that measured these cells."""
    found = Measured()
    for cell in cells:
        found.add(cell)
    return found


def tables_of(document: Document | Section) -> list[Table]:
    """The tables of a document or section that have rows, in order."""
    return [part for part in _parts(document) if isinstance(part, Table) and part.rows]


def lines_shown(document: Document | Section) -> list[str]:
    """The sentences of a document or section, in order."""
    return [line for part in _parts(document) if isinstance(part, Lines) for line in part.lines]


def plots_of(document: Document | Section) -> list[Plot]:
    """The plots of a document or section, in order."""
    return [plot for part in _parts(document) if isinstance(part, Plots) for plot in part.plots]


def _parts(document: Document | Section) -> list[Any]:
    sections = document.sections if isinstance(document, Document) else [document]
    return [part for section in sections for part in section.parts]


def texts_of_table(table: Table) -> list[dict[str, str]]:
    """A table's rows, each as the texts of its cells by their headers, which all differ."""
    assert len({*table.headers}) == len(table.headers)
    return [dict(zip(table.headers, (cell.text for cell in row), strict=True)) for row in table.cells]
