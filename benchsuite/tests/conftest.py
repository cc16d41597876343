"""Fixtures of the suite's own tests."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import engine as conjecture

from benchsuite.conformance.models.tiny import assembly
from benchsuite.gate import launcher
from benchsuite.machine import load, roofline
from benchsuite.tests import budget
from benchsuite.tests.gate_rig import STEADY, Suite, run_inside
from benchsuite.tests.rig import KILLS, Make, Python, Run, child_variables
from benchsuite.tests.warm import Warm, hurry
from specdec.installed import LOAD_PLUGINS

DEEPER = 50
"""The factor by which --specdec-deep lengthens the proofs."""

SHRINKING_S = 30
"""Seconds for which Hypothesis looks for a smaller example of a failure."""


def pytest_configure(config: pytest.Config) -> None:
    """Register one hypothesis profile, of normal or of deep length, and the list of tests above their budget."""
    config.pluginmanager.register(budget)
    config.addinivalue_line("markers", "deep: a case of a product that others hold too; only with --specdec-deep")
    deep = config.getoption("specdec_deep")
    # The engine's first call in a process is slow and machines are shared: a deadline would fail at random.
    settings.register_profile(
        "specdec",
        max_examples=100 * (DEEPER if deep else 1),
        deadline=None,
        derandomize=True,
        print_blob=True,
        # To explain a failure, and to look for others beside it, takes minutes where an example is a run of the engine.
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    settings.load_profile("specdec")
    if not hasattr(conjecture, "MAX_SHRINKING_SECONDS"):
        raise pytest.UsageError(
            "this Hypothesis has no MAX_SHRINKING_SECONDS; expected its limit on shrinking, five minutes by default: "
            "look for the limit's new place, or install hypothesis<=6.170"
        )
    conjecture.MAX_SHRINKING_SECONDS = SHRINKING_S


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the rest of a product (``rig.in_turn``) to --specdec-deep."""
    if not config.getoption("specdec_deep"):
        left = [item for item in items if item.get_closest_marker("deep")]
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if not item.get_closest_marker("deep")]


def pytest_collection_finish() -> None:
    """Collected tests are never garbage: not to look through them at each collection saves a seventh of the time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Extensions that count what they leak at the end look at what is left."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def only_our_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load no other installed plugins, neither here nor in the processes that a test starts."""
    monkeypatch.setenv(LOAD_PLUGINS, "")


@pytest.fixture
def seeds(pytestconfig: pytest.Config) -> range:
    """Seeds of the random distributions of a proof."""
    return range(DEEPER if pytestconfig.getoption("specdec_deep") else 1)


@pytest.fixture
def deep(pytestconfig: pytest.Config) -> bool:
    """Whether the proofs are lengthened."""
    return bool(pytestconfig.getoption("specdec_deep"))


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Run on one thread: tiny products are faster, and a hundred times so beside a busy process.

    The main job, whose items may run in the same process, has its threads before and after.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package", autouse=True)
def brief_probes() -> Iterator[None]:
    """Run with brief probes of the machine (``hurry``).

    What users run in the same process has its own: with 4 MiB, which a cache holds, the memory would look much faster.
    """
    read, looked = dict(roofline.PROBE_BYTES), load.SECONDS
    hurry()
    yield
    roofline.PROBE_BYTES.update(read)
    load.SECONDS = looked


@pytest.fixture
def assemble() -> Make:
    """``benchsuite.conformance.models.tiny.assembly``."""
    return assembly


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the museum's table if its tests ran."""
    kills = config.stash.get(KILLS, [])
    if kills:
        from benchsuite.report.renderers import terminal
        from benchsuite.workshop.museum.kills import kills_document

        terminalreporter.section("museum")
        for line in terminal(kills_document(kills)):
            terminalreporter.write_line(line)


def _cold(arguments: Sequence[str], folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python in an interpreter that starts and imports by itself."""
    words = [sys.executable, *arguments]
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def python() -> Iterator[Python]:
    """Run Python with arguments in a folder with an environment, forked from a process that has imported everything.

    Where a fork after imports is not safe, it is an interpreter that imports by itself.
    """
    if sys.platform != "linux":
        yield _cold
        return
    warm = Warm({**child_variables("", {}), LOAD_PLUGINS: ""})
    yield warm.run
    warm.close()


@pytest.fixture
def run(python: Python, tmp_path: Path) -> Run:
    """Run Python from an empty folder, offline and without a GPU; returns the finished process with its output as text.

    The process is forked from one that has imported everything: what a process imports is for ``cold`` to show.
    """

    def call(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return python(arguments, tmp_path, child_variables(path, environment))

    return call


@pytest.fixture
def endless_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which each message of a command of this process has one line."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def cold(tmp_path: Path) -> Run:
    """As ``run``, in an interpreter that starts and imports by itself."""

    def call(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return _cold(arguments, tmp_path, child_variables(path, environment))

    return call


@pytest.fixture
def suite(run: Run, tmp_path: Path) -> Suite:
    """A third party's suite whose benchmark takes a second, committed."""
    return Suite.committed(tmp_path, run)


@pytest.fixture
def inside(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Run:
    """As ``run`` for ``-m pytest``, and for the gate's launches, in this process: nothing is started but git.

    A launch of the same side, files, arguments and path is made once, unless the suite is noisy.
    """
    made: dict[Any, str] = {}
    written = tmp_path_factory.getbasetemp()

    def call(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        assert arguments[:2] == ("-m", "pytest")
        return run_inside(arguments[2:], tmp_path, {**os.environ, "COLUMNS": "1000", **environment}, written)

    def launch(
        command: Sequence[str], folder: Path, variables: Mapping[str, str], seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        assert command[1:3] == ["-m", "pytest"]
        [file] = [Path(word.partition("=")[2]) for word in command if word.startswith("--gate-save=")]
        found = sorted(file for kind in ("*.py", "*.ini") for file in folder.rglob(kind))
        texts = tuple((str(file.relative_to(folder)), file.read_text()) for file in found)
        words = tuple(word for word in command if not word.startswith("--gate-save="))
        path = variables["PYTHONPATH"].replace(str(folder), "")  # a worktree has another name each time, and so has
        path = re.sub(rf"{tempfile.gettempdir()}/specdec-gate-[^/:]*", "", path)  # what is registered there
        same = variables[launcher.OTHER], texts, words, path
        if same in made:  # its clock is exact: another launch would write the same
            file.write_text(made[same])
            return subprocess.CompletedProcess(command, 0, "", "")
        done = run_inside(command[3:], folder, variables, written)
        if file.exists() and any(STEADY in text for _, text in texts):
            made[same] = file.read_text()
        return done

    monkeypatch.setattr(launcher, "run_group", launch)
    return call


@pytest.fixture
def theirs(inside: Run, tmp_path: Path) -> Suite:
    """``suite``, run in this process."""
    return Suite.committed(tmp_path, inside)
