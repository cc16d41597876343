"""Measure how often the gate is wrong here: ``python -m benchsuite.workshop.gate.validate``. It can be resumed.

Launches of one suite are made on every core of the machine, and again one by one while another process loads one core
(``validation.launches``). Comparisons are drawn at random from these launches (``validation.draws``). Some more
comparisons are made live, with the command that users type.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchsuite.gate.figures import record_origin
from benchsuite.gate.record import Record
from benchsuite.workshop.gate.draws import report
from benchsuite.workshop.gate.launches import collect, count_once, launcher, live
from benchsuite.workshop.gate.plan import CONDITIONS, PAIRS, STAGES, SUITE, TOLERANCE


def validation_main() -> None:
    """Make the launches that are missing, then write the report to the same folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=Path("results/gate-validation"), help="where launches are kept")
    parser.add_argument("--launches", type=int, default=26, help="of each side, in each condition")
    parser.add_argument("--live", type=int, default=10, help="whole gatings in each condition")
    parser.add_argument("--condition", choices=CONDITIONS, help="only one; default: both")
    parser.add_argument("--report", action="store_true", help="measure nothing, report what is there")
    given = parser.parse_args()
    least = sum(STAGES) + 1
    if given.launches < least:
        parser.error(f"--launches is {given.launches}; comparisons are drawn from {least} or more")
    # `tiny` is faster on one thread; if a core is busy, two threads would wait for each other.
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        count_once(folder)
        for condition in [given.condition] if given.condition else CONDITIONS:
            collect(folder, condition, given.launches)
            live(folder, condition, given.live)
    text, values = report(folder, given.launches)
    command = ["python", "-m", "benchsuite.workshop.gate.validate", *sys.argv[1:]]
    here = {**record_origin(launcher().folder, None), "command": command}
    commits = sorted({str(Record.load(file).made["commit"]) for file in folder.glob("*-[AB]-*.json")})
    card = [
        f"machine {here['machine']['processor']}, {here['machine']['cores']} cores, one thread a launch",
        f"versions {', '.join(f'{name} {number}' for name, number in here['versions'].items() if number)}",
        f"launches at commit {', '.join(commits)}; reported at {here['commit']}",
        f"suite `pytest {' '.join(SUITE)}`, {PAIRS} pairs or more a launch",
        f"tolerance {TOLERANCE:.0%}, stages {STAGES[0]}+{STAGES[1]}",
    ]
    text = "\n".join(["# How often the gate is wrong", "", *(f"- {line}" for line in card), "", text])
    (folder / "report.md").write_text(text, encoding="utf-8")
    content = {"made": here, "relative": values}
    (folder / "values.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    validation_main()
