"""What several test files stand on: types of fixtures, devices, a setting, equality up to certified ties."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from benchsuite.measure.matrix import Setting
from benchsuite.measure.sources import TokenSource
from benchsuite.measure.ties import Judge
from specdec import Request
from specdec.assembly import Assembly

Make = Callable[..., Assembly]
"""The fixture ``assemble``."""

Run = Callable[..., subprocess.CompletedProcess[str]]
"""The fixture ``run``."""

DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.gpu]),
    pytest.param("mps", marks=[pytest.mark.mps, pytest.mark.gpu]),
]
"""Every device a test may run on; those that are not here skip with the reason."""

KILLS = pytest.StashKey[list[Any]]()
"""What the museum's mutants came to in this run."""

SETTING = Setting("tiny", "auto", "cpu", "float32", 1, 0.0, 0, 1.0, 24, 0, "chat")
"""One setting of the tiny target, for arms that are made by hand."""

SHORT = ("--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny", "--specdec-workload", "chat")
QUICK = (*SHORT, "--specdec-max-new-tokens", "6", "--specdec-prompts", "1")
"""pytest's arguments for a short main job on the tiny target."""


def assert_same(
    judge: Judge,
    plain: TokenSource,
    other: TokenSource,
    work: list[Request],
    expected: list[tuple[int, ...]] | None = None,
) -> None:
    """Equal token for token, or every difference a certified tie; ``expected`` if plain has run already."""
    outputs = expected or plain.tokens(work), other.tokens(work)
    for request, want, got in zip(work, *outputs, strict=True):
        found = judge.compare(work, request, plain, other, (want, got))
        for difference in found:
            print(difference)
        assert all(difference.tie for difference in found), found[-1]
