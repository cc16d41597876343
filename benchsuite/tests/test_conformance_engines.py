"""Engines with planted faults: which check of the kit finds each."""

from __future__ import annotations

import re

import pytest

from benchsuite import conformance
from benchsuite.conformance.claims import failures
from benchsuite.tests.faulty_engines import ENGINES
from benchsuite.tests.rig import slow_after
from specdec_plugins.engines.transformers import Transformers


@pytest.mark.parametrize(("fault", "check", "message"), slow_after(6, ENGINES))
def test_a_planted_fault_is_found_by_its_check(fault: type[Transformers], check: str, message: str) -> None:
    checks = conformance.engine("planted", factory=fault, refuses=["cache=sttic"])
    said = next(failures(checks, only=check), None)
    assert said, f"{check} finds nothing"
    assert re.search(message, said[1], re.DOTALL), said


@pytest.mark.slow
def test_an_engine_without_fault_is_certified() -> None:
    assert dict(failures(conformance.engine("planted", factory=Transformers, refuses=["cache=sttic"]))) == {}
