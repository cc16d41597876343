"""Pins of test_growth_rows.py: tests that read what is private."""

from __future__ import annotations

from math import log

import pytest

from specdec_plugins.forecast import Chances, Forwards


def test_a_forecast_without_observations_is_what_was_calibrated_and_hoped() -> None:
    forwards = Forwards(lambda width, rows: 0.5 * width + rows)
    assert (forwards.pace, forwards.at(2, 3), forwards.at(4, 1)) == (1.0, 4.0, 3.0)
    forwards.seen(2, 3, 0.5)
    assert forwards.pace == pytest.approx(1 / 8)
    assert forwards.at(2, 3) == 4.0, "the first forward tells of the machine, not of its width"
    forwards.seen(4, 1, 0.75)
    assert forwards.at(4, 1) == pytest.approx(3.0 * 2 ** (1 / 17)), "twice as slow as the pace, once in seventeen"
    assert forwards.pace == pytest.approx(2 ** ((-3 + (-2 - 1 / 17)) / 2))
    chances = Chances()
    chances.seen(3, 1.0, 1.0)
    assert chances._hits == [0.0, 0.0, 1.0]
    assert chances._tries == [0.0, 0.0, 1.0]
    chances.seen(1, 2.0, 4.0)
    chances.seen(1, 2.0, 4.0)
    assert chances._hits == pytest.approx([3.7, 0.0, 1.0])
    assert chances._tries == pytest.approx([7.4, 0.0, 1.0])
    assert log(chances._weight / 3) == pytest.approx(2 * log(0.95))
