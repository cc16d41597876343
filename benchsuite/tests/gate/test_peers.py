"""Other engines in a gated run: an engine of one's own that got slower, and what a level cannot compare."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchsuite.gate.record import DECODE, FIRST, MEANS, GatedRow
from benchsuite.gate.speed import cases
from benchsuite.gate.verdict import GateVerdict
from benchsuite.tests.launched_rig import OWN, PEER, gated_rows, judged, launches_of, timed_outcome


def beside(own: float, transformers: bool = True) -> Callable[[float], dict[str, GatedRow]]:
    """Rows of plain, of a draft, of transformers if it runs, and of an engine of one's own that takes these seconds."""
    outside = [timed_outcome(2.0)] * 3 if transformers else []
    return lambda noise: gated_rows(
        [timed_outcome(0.5 * noise)] * 3, [timed_outcome(noise)] * 3, outside, [timed_outcome(own * noise)] * 3
    )


@pytest.mark.parametrize(("level", "transformers"), [(2, True), (2, False), (1, True)])
def test_an_engine_of_ones_own_that_is_three_times_slower_is_a_regression(level: int, transformers: bool) -> None:
    """It was left out: "PASS: nothing got worse", with exit code 0."""
    base, head = (launches_of(beside(own, transformers), seed) for seed, own in enumerate((1.0, 3.0)))
    found = {case: one for case, one in judged(base, head, level).items() if one.verdict == GateVerdict.REGRESSED}
    assert {row for row, _ in found} == {"own"}
    wanted = {"own": DECODE if level == 1 else f"{DECODE} by the clock"}
    assert wanted.items() <= dict(found).keys()
    assert ("own", DECODE) in found or not transformers
    assert all(one.change == pytest.approx(2.0, abs=0.1) for (_, figure), one in found.items() if DECODE in str(figure))


def test_an_engine_that_is_as_fast_as_before_passes_and_a_tenth_is_in_the_noise_of_a_launch() -> None:
    for own in (1.0, 1.1):
        base, head = launches_of(beside(1.0), 0), launches_of(beside(own), 1)
        theirs = [one for (row, _), one in judged(base, head).items() if row in ("own", "transformers")]
        assert {one.verdict for one in theirs} == {GateVerdict.PASS}
        assert {one.row for one in theirs} == {OWN.id, PEER.id}


def test_a_peers_times_are_held_to_transformers_and_to_the_clock_and_have_no_counters() -> None:
    rows = beside(1.0)(1.0)
    assert [(rows[arm.id].control, rows[arm.id].digest, rows[arm.id].peer) for arm in (OWN, PEER)] == [
        ("transformers", None, True),
        (None, None, True),
    ]
    assert {case.alone for case in cases("own", rows[OWN.id], 1)} == {False}
    assert cases("transformers", rows[PEER.id], 1) == [], "against a file it is timed over nothing"
    both = cases("own", rows[OWN.id], 2)
    assert {case.figure_name for case in both} >= {DECODE, FIRST, MEANS[DECODE], f"{DECODE} by the clock"}
    assert all(case.coarse for case in both)


def test_an_engine_that_emits_everything_at_once_is_held_by_its_first_token() -> None:
    whole = timed_outcome(1.0)
    at_once = [type(whole)(whole.tokens, 3.0, 0.0, 0, [[(3.0, 10)]], None, 5.0)] * 3
    rows = gated_rows([timed_outcome(0.5)] * 3, [timed_outcome()] * 3, [timed_outcome(2.0)] * 3, at_once)
    times = rows[OWN.id].launches[0].times
    assert DECODE not in times
    assert times[FIRST].seconds == (3.0,) * 3
