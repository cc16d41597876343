"""Jobs: commands with a time each, run beside each other in waves, so that one that fails costs only itself."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchsuite.machine.groups import end_group


@dataclass(frozen=True)
class GpuJob:
    """A command, the most seconds that it may take, and the lines of docs/status.md that it is evidence for.

    ``least``: with fewer seconds left it is not begun, because it would end with nothing to show.
    """

    name: str
    seconds: float
    command: Sequence[str]
    settles: Sequence[str] = ()
    least: float = 5.0


@dataclass(frozen=True)
class GpuOutcome:
    """How a job ended: ``passed``, ``failed``, ``crashed`` (by a signal), ``out of time`` or ``not run``.

    ``said`` is its last line, or the reason for which it was not run.
    """

    job: GpuJob
    ended: str
    seconds: float
    said: str


def run_wave(
    wave: Sequence[GpuJob], folder: Path, deadline: float, environment: Mapping[str, str] | None = None
) -> list[GpuOutcome]:
    """Run jobs beside each other, until ``deadline`` of ``time.monotonic`` at most; each prints to ``<its name>.txt``.

    Each is a process group of its own, which is killed at its end: a worker that a job leaves behind would take the
    processor from the next wave.

    Example: ``run_wave([GpuJob("hello", 9, [sys.executable, "-c", "print(1)"])], folder, time.monotonic() + 60)``
    """
    running: list[tuple[GpuJob, subprocess.Popen[bytes] | str, float]] = []
    for job in wave:
        start = time.monotonic()
        if shutil.which(job.command[0]) is None:
            running.append((job, f"{job.command[0]} is not here", start))
        elif deadline - start < job.least:
            left = max(0.0, deadline - start)
            running.append((job, f"{left:.0f} s were left, and it needs {job.least:.0f}", start))
        else:
            with (folder / f"{job.name}.txt").open("wb") as log:
                process = subprocess.Popen(
                    job.command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                )
            running.append((job, process, start))
    try:
        with ThreadPoolExecutor(max(1, len(running))) as waiting:
            return list(waiting.map(lambda one: _ended(one, folder, deadline), running))
    finally:  # also where the call itself is interrupted
        for _, begun, _ in running:
            if not isinstance(begun, str):
                end_group(begun)


def _ended(begun: tuple[GpuJob, subprocess.Popen[bytes] | str, float], folder: Path, deadline: float) -> GpuOutcome:
    job, process, start = begun
    if isinstance(process, str):
        return GpuOutcome(job, "not run", 0.0, process)
    try:
        code = process.wait(max(0.1, min(start + job.seconds, deadline) - time.monotonic()))
        ended = "passed" if code == 0 else "failed" if code > 0 else "crashed"
    except subprocess.TimeoutExpired:
        ended = "out of time"
    end_group(process)
    lines = (folder / f"{job.name}.txt").read_text(errors="replace").strip().splitlines()
    return GpuOutcome(job, ended, time.monotonic() - start, lines[-1].strip("= ") if lines else "it printed nothing")
