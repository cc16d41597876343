"""Make the launches for a validation of the gate, each a file in a folder; existing files are kept."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import Record
from benchsuite.gate.validation.plan import COUNTED, PAIRS, SIDES, STAGES, SUITE


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
    with busy_core(condition):
        for number in range(count):
            for name in random.Random(number).sample(names, len(names)):
                file = folder / f"{condition}-{name}-{number:03}.json"
                if not file.exists():
                    launcher().measure(plant=SIDES[name].plant).save(file)
                    print(file.name, flush=True)


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
    with busy_core(condition):
        for number in range(count):
            file = folder / f"{condition}-live-{number:03}.json"
            against = ["HEAD", "--gate-level=0,2"] if number % 2 else [str(baseline), "--gate-level=0,1"]
            if not file.exists():
                command = [sys.executable, "-m", "pytest", *SUITE, "-q", f"--gate-json={file}", "--gate=fail"]
                subprocess.run(
                    [*command, "--gate-on-mismatch=ignore", "--gate-against", *against],
                    cwd=launcher().folder,
                    stdout=subprocess.DEVNULL,
                    check=False,
                )
                print(file.name, flush=True)
