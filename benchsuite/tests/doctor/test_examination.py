"""An examination batch by batch: what is decided is not asked again."""

from __future__ import annotations

import pytest

from benchsuite.conformance.models import tiny
from benchsuite.doctor.examination import HeadReading, examine_readings
from benchsuite.tests.made_up_models import made_up_prompts


@pytest.mark.slow
def test_a_reading_that_is_no_better_is_not_asked_again() -> None:
    """The one taken accepts nothing, so that all prompts are read; another that accepts as little ends after twelve."""
    readings = [HeadReading(name, "garbage") for name in ("taken", "another")]
    found = examine_readings(tiny.assembly(max_rows=12), made_up_prompts(1, 24, 12), readings, k=2, tokens=6)
    [other] = found.others
    assert found.prompts == len(found.taken.hits) == 24
    assert (len(other.measured.hits), other.outcome) == (12, "no better")
    assert found.verdict == "cannot tell"
