"""Servers under load, ``pytest -m serving --specdec-endpoint plain=http://…,spec=http://…``: no time is asserted."""

from __future__ import annotations

import pytest

from benchsuite.benches.serving.certificate import Certificate
from benchsuite.benches.serving.figures import EndpointFigures

pytestmark = [pytest.mark.serving, pytest.mark.slow]


def test_serving(specdec_served: list[EndpointFigures]) -> None:
    assert any(row.failed != {} or row.asked for row in specdec_served)
    inconclusive = [f"{row.endpoint}: {row.why}" for row in specdec_served if row.why]
    assert not inconclusive, "INCONCLUSIVE: " + "; ".join(inconclusive)


def test_outputs_are_those_of_the_first_endpoint(specdec_certificates: list[Certificate]) -> None:
    wrong = ["\n".join(one.lines) for one in specdec_certificates if one.state == "bug"]
    assert not wrong, "\n\n".join(wrong)
