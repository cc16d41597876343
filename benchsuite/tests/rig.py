"""Shared by several test files: types of fixtures, devices, a setting, equality up to certified ties."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.measure.matrix import Setting
from benchsuite.measure.sources import TokenSource
from benchsuite.measure.ties import Judge
from benchsuite.report.journal import Journal
from specdec import Request
from specdec.assembly import Assembly

Make = Callable[..., Assembly]
"""The fixture ``assemble``."""

Run = Callable[..., subprocess.CompletedProcess[str]]
"""The fixture ``run``."""

POLICIES = (
    *("match", "longest_prefix", "rejection", "block", "tree_rejection", "conf_threshold", "topk_agree", "typical"),
    "tree_agree(m=1)",
)
"""Every built-in policy; a test of the pairs of drafts and policies holds them against the registry."""

DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.gpu]),
    pytest.param("mps", marks=[pytest.mark.mps, pytest.mark.gpu]),
]
"""Every device a test may run on; a missing device skips with the reason."""

KILLS = pytest.StashKey[list[Any]]()
"""The museum's results for mutants in this run."""

SETTING = Setting("tiny", "auto", "cpu", "float32", 1, 0.0, 0, 1.0, 24, 0, "chat")
"""One setting of the tiny target, for arms that a test makes itself."""

SHORT = ("--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny", "--specdec-workload", "chat")
QUICK = (*SHORT, "--specdec-max-new-tokens", "6", "--specdec-prompts", "1")
"""pytest's arguments for a short main job on the tiny target."""


def as_installed(source: str, folder: Path) -> str:
    """Write a third party's module ``specdec_echo`` with its entry point, as pip installs it; return the folder for
    ``PYTHONPATH``. ``LOAD_PLUGINS`` must name ``specdec-echo``."""
    site = folder / "site"
    info = site / "specdec_echo-1.dist-info"
    info.mkdir(parents=True)
    (site / "specdec_echo.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec-echo\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[specdec]\necho = specdec_echo\n")
    return str(site)


def assert_same(
    judge: Judge,
    plain: TokenSource,
    other: TokenSource,
    work: list[Request],
    expected: list[tuple[int, ...]] | None = None,
) -> None:
    """Assert equal tokens, or certified ties at all differences; ``expected`` is plain's output, if known already."""
    outputs = expected or plain.tokens(work), other.tokens(work)
    for request, want, got in zip(work, *outputs, strict=True):
        found = judge.compare(work, request, plain, other, (want, got))
        for difference in found:
            print(difference)
        assert all(difference.tie for difference in found), found[-1]


def repeatable(root: Path) -> list[dict[str, Any]]:
    """What does not depend on the clock, of every row in the newest folder of ``root``."""
    rows = json.loads((Journal.load(root).folder / "benchmark.json").read_text())["rows"]
    names = ("draft", "temperature", "max_new_tokens", "counters", "emitted_digest", "contract_checked", "units")
    return [{name: row[name] for name in names} for row in rows]
