"""Fixtures of the suite's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from benchsuite.prove.tiny import assembly
from benchsuite.tests.gate_rig import Suite
from benchsuite.tests.rig import KILLS, Make, Run
from specdec.registry import LOAD_PLUGINS

DEEPER = 50
"""The factor by which --specdec-deep lengthens the proofs."""


def pytest_configure(config: pytest.Config) -> None:
    """Register one hypothesis profile, of normal or of deep length."""
    deep = config.getoption("specdec_deep")
    # The engine's first call in a process is slow and machines are shared: a deadline would fail at random.
    settings.register_profile(
        "specdec", max_examples=100 * (DEEPER if deep else 1), deadline=None, derandomize=True, print_blob=True
    )
    settings.load_profile("specdec")


@pytest.fixture(autouse=True)
def only_our_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load no other installed plugins, neither here nor in the processes that a test starts."""
    monkeypatch.setenv(LOAD_PLUGINS, "")


@pytest.fixture
def seeds(pytestconfig: pytest.Config) -> range:
    """Seeds of the random distributions of a proof."""
    return range(DEEPER if pytestconfig.getoption("specdec_deep") else 1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run on one thread: tiny products are faster, and a hundred times so beside a busy process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def assemble(one_thread: None) -> Make:
    """``benchsuite.prove.tiny.assembly``, on one thread."""
    return assembly


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the museum's table if its tests ran."""
    kills = config.stash.get(KILLS, [])
    if kills:
        from benchsuite.museum.kills import kills_table

        terminalreporter.section("museum")
        terminalreporter.write_line(kills_table(kills))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python from an empty folder, offline; returns the finished process with its output as text."""

    def call(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"HF_HUB_OFFLINE": "1", "COLUMNS": "120", "NO_COLOR": "1", **environment}
        env |= {"PYTHONPATH": path} if path else {}
        # xdist's variables would switch off the benchmarks of the inner run.
        outer = {name: text for name, text in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
        env = {**outer, "PYTEST_ADDOPTS": "-p no:randomly", **env}
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    return call


@pytest.fixture
def suite(run: Run, tmp_path: Path) -> Suite:
    """A third party's suite whose benchmark takes a second, committed."""
    made = Suite(tmp_path, run)
    made.write()
    made.commit()
    return made
