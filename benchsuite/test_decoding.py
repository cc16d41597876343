"""Decoding as users run it, ``pytest -m decoding [--specdec-target …] [--specdec-pairs …]``: no time is asserted."""

from __future__ import annotations

import pytest

from benchsuite.benches.decoding.bench import FAMILIES, DecodingBench

pytestmark = [pytest.mark.decoding, pytest.mark.slow]


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding(family: str, specdec_decoding: DecodingBench) -> None:
    rows = specdec_decoding.measure(family)
    assert rows
    for row in rows:
        assert len(row.each) == specdec_decoding.rounds
        assert all(value > 0 for value in (*row.ours, *row.base)), row
        assert all(row.work), row
