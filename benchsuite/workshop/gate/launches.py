"""Make the launches for a validation of the gate, each a file in a folder; existing files are kept."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import Record
from benchsuite.workshop.gate.plan import COUNTED, PAIRS, SIDES, STAGES, SUITE


def launcher(suite: Sequence[str] = SUITE, pairs: int = PAIRS) -> Launcher:
    """A Launcher of the suite, in the top folder of the checkout."""
    return Launcher(suite, Path(__file__).parents[3], pairs)


@contextmanager
def busy_core(condition: str) -> Iterator[None]:
    """Keep one core busy with another process, unless the condition is ``quiet``."""
    if condition == "quiet":
        yield
        return
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def collect(folder: Path, condition: str, count: int) -> None:
    """Make ``count`` launches of each side, in rounds of one of each, in random order; existing files are kept."""
    names = [name for name, side in SIDES.items() if condition in side.conditions]
    files = {
        folder / f"{condition}-{name}-{number:03}.json": SIDES[name].plant
        for number in range(count)
        for name in random.Random(number).sample(names, len(names))
    }

    def make(file: Path) -> None:
        launcher().measure(plant=files[file]).save(file)

    _made(condition, files, make)


def _made(condition: str, files: Iterable[Path], make: Callable[[Path], None]) -> None:
    """Call ``make`` for each file that is not there: one at a time beside a busy core, else one on each core.

    A launch has one thread, so launches on cores of their own wait for each other in the shared cache alone.
    """
    own: SimpleQueue[int] = SimpleQueue()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") and condition == "quiet" else []
    for core in cores:
        own.put(core)

    def stay() -> None:
        if cores:
            os.sched_setaffinity(0, {own.get()})  # of this thread, and of the processes that it starts

    def named(file: Path) -> str:
        make(file)
        return file.name

    missing = [file for file in files if not file.exists()]
    with busy_core(condition), ThreadPoolExecutor(max(len(cores), 1), initializer=stay) as workers:
        try:
            for name in workers.map(named, missing):
                print(name, flush=True)
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def count_once(folder: Path) -> None:
    """Make one launch of each side that counters must find; outputs are long, so that some proposals are rejected."""
    suite = ["160" if argument == "32" else argument for argument in SUITE]
    for name, plant in {"as-it-is": "", **{name: plant for name, (_, plant, _) in COUNTED.items()}}.items():
        file = folder / f"counted-{name}.json"
        if not file.exists():
            if name == "kernels":
                os.environ["SPECDEC_FORCE_PY"] = "1"
            try:
                launcher(suite, pairs=1).measure(plant=plant).save(file)
            finally:
                os.environ.pop("SPECDEC_FORCE_PY", None)
            print(file.name, flush=True)


def live(folder: Path, condition: str, count: int) -> None:
    """Gate this commit against itself with the real command: half at level 2, half at level 1 against a file."""
    baseline = folder / f"{condition}-baseline.json"
    if not baseline.exists():
        records = [Record.load(folder / f"{condition}-A-{number:03}.json") for number in range(sum(STAGES))]
        records[0].joined(records[1:]).save(baseline)
    files = {folder / f"{condition}-live-{number:03}.json": number for number in range(count)}

    def make(file: Path) -> None:
        against = ["HEAD", "--gate-level=0,2"] if files[file] % 2 else [str(baseline), "--gate-level=0,1"]
        command = [sys.executable, "-m", "pytest", *SUITE, "-q", f"--gate-json={file}", "--gate=fail"]
        subprocess.run(
            [*command, "--gate-on-mismatch=ignore", "--gate-against", *against],
            cwd=launcher().folder,
            stdout=subprocess.DEVNULL,
            check=False,
        )

    _made(condition, list(files), make)
