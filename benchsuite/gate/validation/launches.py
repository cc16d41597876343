"""Make the launches for a validation of the gate, each a file in a folder; existing files are kept.

One suite on ``tiny`` is launched as it is (twice: A and B) and with a known slowdown in each row (P): a busy loop in
the step, unused forward passes in the draft, or copies of keys and values. Each costs twice the tolerance.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import Record
from benchsuite.gate.validation.draws import LOSSES, PLANTED, STAGES, TOLERANCE

PAIRS = 10
SUITE = (
    "benchsuite/test_speculation.py",
    "--specdec-target",
    "tiny",
    "--specdec-workload",
    "chat",
    "--specdec-peer",
    "none",
    "--specdec-arm",
    "ngram, suffix, oracle(0.8)",
    "--specdec-prompts",
    "3",
    "--specdec-max-new-tokens",
    "32",
    "--benchmark-quiet",
)


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
    """Make launches A, B and P, ``count`` of each, in random order within each triple; existing files are kept."""
    plants = ",".join(f"{part}={2 * TOLERANCE}@{draft}" for draft, part in PLANTED.items())
    with busy_core(condition):
        for number in range(count):
            for side in random.Random(number).sample("ABP", 3):
                file = folder / f"{condition}-{side}-{number:03}.json"
                if not file.exists():
                    launcher().measure(plant=plants if side == "P" else "").save(file)
                    print(file.name, flush=True)


def losses(folder: Path) -> None:
    """Make one launch of each workload as it is, and one with 1 % of the accepted proposals rejected.

    Outputs are long and drafts often right, because 1 % of a few accepted tokens would be less than one.
    """
    other = {"ngram, suffix, oracle(0.8)": "oracle(0.5), oracle(0.8), oracle(0.95)/rejection", "32": "160"}
    for workload in LOSSES:
        suite = [{**other, "chat": workload}.get(argument, argument) for argument in SUITE]
        for side, plant in (("as-it-is", ""), ("loss", "acceptance=0.01")):
            file = folder / f"{side}-{workload}.json"
            if not file.exists():
                launcher(suite, pairs=1).measure(plant=plant).save(file)
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
