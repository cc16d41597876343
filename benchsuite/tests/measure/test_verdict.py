"""One rule for what may be said of a speedup: every table has its mark, and the heat map colours nothing else."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.benches.serving.bench import AGAIN
from benchsuite.benches.serving.figures import endpoint_figures
from benchsuite.measure.arms import Arm
from benchsuite.measure.interval import Estimate
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine, Row, make_rows
from benchsuite.measure.verdict import SpeedVerdict, noise_of
from benchsuite.report.serving import serving_tables
from benchsuite.report.tables import contrasts_table, heat_cell, overview
from benchsuite.tests.rig import SETTING

LOGS = st.floats(-1.0, 1.0).map(lambda value: round(value, 3))


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    """A ratio with an interval around it, or without one."""
    middle, half = draw(LOGS), abs(draw(LOGS)) / 2
    low, high = (exp(middle - half), exp(middle + half)) if draw(st.booleans()) else (None, None)
    return Estimate(exp(middle), low, high, 8, "t")


def row_with(verdict: SpeedVerdict, again: bool = False) -> Row:
    """A row of lookups, or of plain decoding once more, whose speedup is that of a verdict."""
    arm = Arm(SETTING, again=True) if again else Arm(SETTING, "ngram", k=4)
    machine = Machine("tiny", "cpu", "cpu", "float32", 1, 2, 3.5, 4)
    plain = Arm(SETTING)
    pools = {one: {"chat": Series(one, "exact")} for one in (plain, arm)}
    row = make_rows(pools, plain, machine, "chat", None, {})[arm]
    speedup = verdict.speed.ratio if verdict.speed else None
    return replace(row, figures=replace(row.figures, speedup=speedup), verdict=verdict)


@pytest.mark.slow
@given(estimates(), estimates())
def test_all_tables_have_the_same_mark(speed: Estimate, again: Estimate) -> None:
    verdict = SpeedVerdict(speed, noise_of(again))
    row, shown = row_with(verdict), verdict.cell_text
    drawn = overview([row], [row]).cells[0]
    assert [cell.text for cell in drawn[2:]] == [shown, shown]
    one, other = Arm(SETTING, "ngram", k=4), Arm(SETTING)
    contrasts = contrasts_table({(one, other): verdict})
    assert [cell.text for cell in contrasts.cells[0][1:]] == ["-", shown]
    assert len(contrasts.headers) == 3
    [nothing] = endpoint_figures([], ["first"], [], None)
    rows = [
        replace(nothing, speed=Estimate(1.0, 1.0, 1.0, 8, "t")),
        replace(nothing, endpoint=f"first{AGAIN}", speed=again),
        replace(nothing, endpoint="spec", speed=speed),
    ]
    assert serving_tables(rows)[0].cells[2][2].text == shown


@pytest.mark.slow
@given(estimates(), estimates(), st.booleans())
def test_the_heat_map_colours_what_can_be_distinguished_alone(speed: Estimate, noise: Estimate, again: bool) -> None:
    verdict = SpeedVerdict(speed, noise_of(noise))
    cell = heat_cell(row_with(verdict, again))
    apart = abs(log(speed.ratio)) > verdict.noise
    certain = speed.low is None or speed.high is None or not speed.low <= 1 <= speed.high
    assert (cell.tone != "") is (apart and certain and not again)
    assert cell.text == verdict.cell_text


def test_plain_decoding_once_more_is_never_faster_than_itself() -> None:
    for again in (Estimate(1.3, 1.2, 1.4, 8, "t"), Estimate(0.7, None, None, 3, "t")):
        verdict = SpeedVerdict(again, noise_of(again))
        assert verdict.within_noise
        assert verdict.label in ("~", None)
        assert heat_cell(row_with(verdict, again=True)).tone == ""


@pytest.mark.parametrize(
    ("verdict", "words", "shown", "sentence"),
    [
        (SpeedVerdict(None), None, "-", "not measured"),
        (SpeedVerdict(Estimate(1.25, 1.1, 1.4, 8, "t")), "faster", "1.25x", "1.25x (1.10 to 1.40), faster"),
        (SpeedVerdict(Estimate(0.8, 0.7, 0.9, 8, "t")), "slower", "0.80x", "0.80x (0.70 to 0.90), slower"),
        (SpeedVerdict(Estimate(1.25, 1.1, 1.4, 8, "t"), 0.3), "~", "1.25x~", "1.25x (1.10 to 1.40), ~"),
        (SpeedVerdict(Estimate(1.25, 0.9, 1.6, 8, "t")), "~", "1.25x~", "1.25x (0.90 to 1.60), ~"),
        (
            SpeedVerdict(Estimate(1.25, 1.1, 1.4, 8, "t"), reason="another runtime"),
            "not comparable",
            "1.25x!",
            "1.25x (1.10 to 1.40), another runtime",
        ),
        (
            SpeedVerdict(Estimate(1.25, None, None, 3, "t")),
            None,
            "1.25x?",
            "1.25x, too few prompts for an interval",
        ),
        (
            SpeedVerdict(Estimate(1.0, 1.0, 1.0, 8, "t"), baseline=True),
            "baseline",
            "1.00x",
            "1.00x (1.00 to 1.00), baseline",
        ),
    ],
)
def test_a_verdict_has_one_mark_and_one_sentence(
    verdict: SpeedVerdict, words: str | None, shown: str, sentence: str
) -> None:
    assert (verdict.label, verdict.cell_text, verdict.sentence) == (words, shown, sentence)
