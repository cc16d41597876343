"""Strategies under load, ``pytest -m load --specdec-batch 1,4,16 --specdec-rate 2``: no time is asserted."""

from __future__ import annotations

import pytest

from benchsuite.benches.load.bench import LoadBench
from benchsuite.benches.serving.load import Traffic

pytestmark = [pytest.mark.load, pytest.mark.slow]


def test_load(load: Traffic, specdec_load: LoadBench) -> None:
    rows = specdec_load.measure(load)
    assert [row.arm for row in rows] == specdec_load.names
    assert all(row.served.asked == rows[0].served.asked > 0 for row in rows)
    wrong = [line for lines in specdec_load.wrong(load).values() for line in lines]
    assert not wrong, "\n".join(wrong)
