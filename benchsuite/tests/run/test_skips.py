"""Below a run stands why the suite skipped tests; what others skip is theirs to tell."""

from __future__ import annotations

from pathlib import Path

from benchsuite.tests.rig import Run

SKIPPED = """
import pytest
from benchsuite import conformance

class TestGuess(conformance.policy("match", greedy="exact", sampled="exact")): ...

def test_theirs():
    pytest.skip("a reason of their own")
"""


def test_a_reason_is_said_once_with_its_tests_where_pytest_does_not_say_it(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "test_certified.py").write_text(SKIPPED)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "theirs or targets_distribution")
    said, detailed = (inside(*words, *more).stdout.splitlines() for more in ((), ("-rs",)))
    [line] = [line for line in said if "skipped: " in line]
    assert line.endswith(" skipped: claimed: sampled=exact")
    assert not [line for line in detailed if " skipped: claimed" in line]
    assert [line for line in detailed if "a reason of their own" in line]
