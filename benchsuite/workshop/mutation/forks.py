"""Runs of pytest over a copy of the checkout, each in a process forked from this one.

This process imports torch, transformers and pytest once, and nothing of ours but this room; a fork forgets that, puts
the copy's folders first, and imports our code from there.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.machine.files import write_file
from benchsuite.machine.groups import kill_group
from benchsuite.workshop.mutation.copied import Copied
from benchsuite.workshop.mutation.workers import in_fork

OURS = ("benchsuite", "specdec", "specdec_kernels", "specdec_plugins")

FOREIGN = (
    *("torch", "torch._dynamo", "torch.profiler", "accelerate", "coverage", "hypothesis.strategies", "jinja2"),
    *("safetensors.torch", "yaml", "transformers.generation.utils", "transformers.models.auto.modeling_auto"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama"),
    *("_hypothesis_pytestplugin", "pytest_benchmark.plugin", "_pytest.faulthandler", "_pytest.unittest"),
)
"""What is imported before the forks."""

ARGUMENTS = ("-q", "--no-header", "-p", "no:cacheprovider", "--specdec-target", "tiny", "--benchmark-quiet")
"""As ``make test`` runs the tests, in one process."""

VARIABLES = {
    **{"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
    "COVERAGE_CORE": "ctrace",  # the other one reports a line once, and not again for the next test
}


@dataclass(frozen=True)
class ForkLimits:
    """When a run is ended: after ``cpu`` seconds of a core, ``wall`` seconds on the clock, or ``still`` in one test.

    ``still`` seconds on the clock without a test that ends also include what is imported before the first one.
    """

    cpu: float
    wall: float
    still: float = float("inf")


@dataclass(frozen=True)
class Ended:
    """How a run ended: pytest's exit code, None if it was ended or crashed; what its plugin said; its output."""

    code: int | None
    said: Mapping[str, Any]
    output: str
    seconds: float


def import_foreign() -> None:
    """Import what all runs need, so that forks do not; torch starts no thread by that. What is missing is left out."""
    os.environ.update(VARIABLES)
    for name in FOREIGN:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)


def run_pytest(
    copy: Copied,
    arguments: Sequence[str],
    plugin: Callable[[], Any],
    limits: ForkLimits,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run pytest over the copy in a fork, with ``plugin()``, whose ``said`` (a dict of plain data) comes back.

    ``plugin`` is called in the fork, after our modules were forgotten.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output, said = Path(folder, "output"), Path(folder, "said")
        # As pytest ends after an error of its own.
        process = in_fork(lambda: _child(copy, arguments, plugin, limits, variables or {}, output, said), failed=3)
        code = _wait(process, limits, _progress(said))
        text = output.read_text(errors="replace") if output.exists() else ""
        told = json.loads(said.read_text()) if said.exists() else {}
        return Ended(code, told, text, time.monotonic() - start)


def _child(
    copy: Copied,
    arguments: Sequence[str],
    plugin: Callable[[], Any],
    limits: ForkLimits,
    variables: Mapping[str, str],
    output: Path,
    said: Path,
) -> int:
    """Become a run of pytest; returns its code."""
    os.setsid()
    gc.freeze()  # or every collection would go through all that was imported; pytest makes five at its end
    resource.setrlimit(resource.RLIMIT_CPU, (int(limits.cpu) + 1, int(limits.cpu) + 3))
    for number, name, mode in ((0, os.devnull, os.O_RDONLY), (1, str(output), os.O_WRONLY | os.O_CREAT)):
        os.dup2(os.open(name, mode), number)
    os.dup2(1, 2)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a run of pytest around this one has others
    os.environ.update({**VARIABLES, **variables, "PYTHONPATH": os.pathsep.join(copy.roots)})
    os.chdir(copy.folder)
    kept = [path for path in sys.path if path and not _is_ours(path)]
    sys.path[:] = [*copy.roots, *kept]
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    importlib.invalidate_caches()
    import pytest

    ours = plugin()
    options = ("--rootdir", str(copy.folder), "-c", str(copy.folder / "pyproject.toml"))
    code = int(pytest.main([*ARGUMENTS, *options, *arguments], plugins=[ours, _Progress(_progress(said))]))
    write_file(said, json.dumps(ours.said).encode())
    return code


def _is_ours(path: str) -> bool:
    """Whether a folder of ``sys.path`` holds one of our packages."""
    return any((Path(path) / name / "__init__.py").exists() for name in OURS)


class _Progress:
    """A plugin of pytest that adds a byte to a file as each test ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logfinish(self) -> None:
        with self._path.open("ab") as file:
            file.write(b".")


def _progress(said: Path) -> Path:
    return said.with_name("progress")


def _wait(process: int, limits: ForkLimits, progress: Path) -> int | None:
    """The exit code of a process, which is ended at its limits with all that it started; None if killed.

    Seconds in which this process was stopped, or the machine slept, are not counted.
    """
    waited, still, done, last, code = 0.0, 0.0, 0, time.monotonic(), None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        if waited > limits.wall or still > limits.still:
            break
        time.sleep(0.01)
        now = time.monotonic()
        passed, last = min(now - last, 1.0), now
        before, done = done, progress.stat().st_size if progress.exists() else 0
        waited, still = waited + passed, still + passed if done == before else 0.0
    kill_group(process)  # what it started and left
    if code is None:
        os.kill(process, signal.SIGKILL)  # it may not lead its group yet
        os.waitpid(process, 0)
    return code if code is not None and code >= 0 else None
