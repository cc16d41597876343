"""The launches that a validation of the gate is made of, each a file in a folder; those that exist are kept.

One suite on ``tiny``, as it is (twice: A and B) and with a known slowdown in each row (P): a busy loop in the step,
forwards that nothing needs in the draft, copies of keys and values, each twice the tolerance.
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
    "--specdec-max-new-tokens",
    "32",
    "--benchmark-quiet",
)


def launcher(suite: Sequence[str] = SUITE, pairs: int = PAIRS) -> Launcher:
    """Of the suite, from the top of the checkout."""
    return Launcher(suite, Path(__file__).parents[3], pairs)


@contextmanager
def busy_core(condition: str) -> Iterator[None]:
    """One core kept busy by another process, if the condition says so."""
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
    """Launches A, B and P, ``count`` of each, in random order within each triple; those that exist are kept."""
    plants = ",".join(f"{part}={2 * TOLERANCE}@{draft}" for draft, part in PLANTED.items())
    with busy_core(condition):
        for number in range(count):
            for side in random.Random(number).sample("ABP", 3):
                file = folder / f"{condition}-{side}-{number:03}.json"
                if not file.exists():
                    launcher().measure(plant=plants if side == "P" else "").save(file)
                    print(file.name, flush=True)


def losses(folder: Path) -> None:
    """One launch of each workload as it is and one with a hundredth of what is accepted refused.

    Long outputs of drafts that are often right: a hundredth of a few tokens would be none.
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
    """Whole gatings of this commit against itself, by the command: half at level 2, half at level 1 from a file."""
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
