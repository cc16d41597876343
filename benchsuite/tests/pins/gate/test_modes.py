"""Pins of test_modes.py: tests that read what is private."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchsuite.gate import rules
from benchsuite.gate.record import GateError


def test_an_export_is_a_format_and_a_file_that_may_have_an_equals_sign() -> None:
    folder = Path("there")
    assert [rules._export(f"{kind}=a=b", folder) for kind in rules.FORMATS] == [
        (kind, folder / "a=b") for kind in ("bmf", "github-action-benchmark", "markdown", "junit")
    ]
    for text in ("bmf", "bmf=", "=a", "a=b", ""):
        with pytest.raises(GateError, match="expected FORMAT=FILE with one of bmf, github-action-benchmark, markdown"):
            rules._export(text, folder)
