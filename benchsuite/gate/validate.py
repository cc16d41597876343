"""How often the gate is wrong on this machine: ``python -m benchsuite.gate.validate``. It can be resumed.

Real launches of one suite on ``tiny``, as it is (twice: A and B) and with a known slowdown in each row (P): a busy
loop in the step, forwards that nothing needs in the draft, copies of keys and values, each twice the tolerance. Once on
the machine as it is and once while another process loads one core. From these launches, comparisons are drawn; some
more are made live, by the command that users type. Every launch is a file in the folder, and is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchsuite.gate.draws import CONDITIONS, LOSSES, PLANTED, STAGES, TOLERANCE, report
from benchsuite.gate.figures import record_origin
from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import Record

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
    return Launcher(suite, Path(__file__).parents[2], pairs)


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


def _main() -> None:
    """Collect what is missing, then write the report beside it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=Path("results/gate-validation"), help="where launches are kept")
    parser.add_argument("--launches", type=int, default=80, help="of each of A, B and P, in each condition")
    parser.add_argument("--live", type=int, default=10, help="whole gatings in each condition")
    parser.add_argument("--condition", choices=CONDITIONS, help="only one; default: both")
    parser.add_argument("--report", action="store_true", help="measure nothing, report what is there")
    given = parser.parse_args()
    least = sum(STAGES) + 1
    if given.launches < least:
        parser.error(f"--launches is {given.launches}; comparisons are drawn from {least} or more")
    # `tiny` is faster on one thread, and two would wait for each other beside a busy core.
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        losses(folder)
        for condition in [given.condition] if given.condition else CONDITIONS:
            collect(folder, condition, given.launches)
            live(folder, condition, given.live)
    text, values = report(folder, given.launches)
    command = ["python", "-m", "benchsuite.gate.validate", *sys.argv[1:]]
    here = {**record_origin(launcher().folder, None), "command": command}
    commits = sorted({str(Record.load(file).made["commit"]) for file in folder.glob("*-[ABP]-*.json")})
    card = [
        f"machine {here['machine']['processor']}, {here['machine']['cores']} cores, one thread a launch",
        f"versions {', '.join(f'{name} {number}' for name, number in here['versions'].items() if number)}",
        f"launches at commit {', '.join(commits)}; reported at {here['commit']}",
        f"suite `pytest {' '.join(SUITE)}`, {PAIRS} pairs or more a launch",
        f"tolerance {TOLERANCE:.0%}, stages {STAGES[0]}+{STAGES[1]}; P is slower by {2 * TOLERANCE:.0%} in each row",
    ]
    text = "\n".join(["# How often the gate is wrong", "", *(f"- {line}" for line in card), "", text])
    (folder / "report.md").write_text(text, encoding="utf-8")
    content = {"made": here, "relative": values}
    (folder / "values.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    _main()
