"""``python -m benchsuite.gpu_day 1``, then ``2`` and ``3``: see docs/gpu.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchsuite.gpu_day.checkout import commit_of, keep_commit, look_installed
from benchsuite.gpu_day.failures import FAILURES
from benchsuite.gpu_day.jobs import GpuOutcome, run_wave
from benchsuite.gpu_day.page import FIGURES, visit_page
from benchsuite.gpu_day.stages import Stages
from benchsuite.machine.provenance import COMMIT

CACHES = Path(tempfile.gettempdir()) / "specdec-gpu"
"""What is compiled. One path on every machine: Triton's cache holds absolute ones."""

CARRIED = Path(".gpu")
"""Where a call finds what came back from the one before: caches.tar.gz and failures.txt; and the commit."""

PACKING_S = 12.0
"""Seconds that are left for packing."""

FAULTS = {
    "fail": "raise SystemExit('a planted failure')",
    "crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hang": "import signal; print('a planted hang', flush=True); signal.pause()",
}
"""Code that ``--plant`` runs in a job's place."""


def gpu_day_main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if every job passed, 1 if not, 2 for what cannot be begun."""
    parser = argparse.ArgumentParser(
        prog="python -m benchsuite.gpu_day",
        description="Three calls of at most 200 seconds each that settle what waits for a GPU. The folder of a call "
        "gets eight files; put its caches.tar.gz and failures.txt into .gpu/ before the next call.",
    )
    parser.add_argument("call", choices=("1", "2", "3", "all", "commit"), help="all: one after the other, taking over")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the calls on tiny")
    parser.add_argument("--into", type=Path, default=None, help="the folder of results ($OUT, else gpu-day)")
    parser.add_argument("--seconds", type=float, default=200.0, help="the most that a call takes (%(default)s)")
    parser.add_argument("--only", default="", help="names of jobs, with commas: the others are not run")
    parser.add_argument("--plant", action="append", default=[], metavar="JOB=FAULT", help=f"FAULT: {', '.join(FAULTS)}")
    given = parser.parse_args(arguments)
    planted = dict(one.partition("=")[::2] for one in given.plant)
    wrong = sorted(set(planted.values()) - FAULTS.keys())
    if wrong:
        parser.error(f"--plant has the fault {wrong[0]!r}; expected one of {', '.join(FAULTS)}")
    if given.call == "commit":
        print(keep_commit())
        return 0
    into = (given.into or Path(os.environ.get("OUT", "gpu-day"))).resolve()
    work = Path(tempfile.mkdtemp(prefix="specdec-gpu-"))
    environment = call_environment(work)
    reason = absent_device(given.device, environment)
    if reason:
        print(f"gpu_day: {reason}", file=sys.stderr)
        return 2
    calls = (1, 2, 3) if given.call == "all" else (int(given.call),)
    passed = True
    for call in calls:
        out = into / f"call-{call}" if given.call == "all" else into
        passed &= run_call(call, given.device, out, work / str(call), given.seconds, given.only, planted, environment)
        if given.call == "all":
            CARRIED.mkdir(exist_ok=True)
            for name in ("caches.tar.gz", "failures.txt"):
                shutil.copy(out / name, CARRIED / name)
    shutil.rmtree(work, ignore_errors=True)
    return 0 if passed else 1


def call_environment(work: Path) -> dict[str, str]:
    """Return the variables of a call's jobs: the project is found, caches lie in ``CACHES``, no hub is asked."""
    environment = {
        **os.environ,
        "PYTHONPATH": look_installed(work / "site"),
        "SPECDEC_CACHE": str(CACHES / "specdec"),
        COMMIT: commit_of() or "",
        "HF_HUB_OFFLINE": "1",
        "TRITON_CACHE_DIR": str(CACHES / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(CACHES / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if Path("/usr/local/cuda/bin/nvcc").exists():
        environment["CUDA_HOME"] = "/usr/local/cuda"  # the compiler's path is part of the name of what it built
    return environment


def absent_device(device: str, environment: dict[str, str]) -> str | None:
    """Return why the calls cannot run on ``device`` with this Python; None if they can."""
    code = f"from specdec.devices import pick_device; pick_device({device!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1].partition("SpecdecError: ")
    if last[1]:
        return last[2]
    return f"{sys.executable} cannot load the project: {last[0]}; name another Python (make gpu-day PYTHON=…)"


def run_call(
    call: int,
    device: str,
    out: Path,
    work: Path,
    seconds: float,
    only: str,
    planted: dict[str, str],
    environment: dict[str, str],
) -> bool:
    """Run a call and write its eight files into ``out``; returns whether every job that was begun passed."""
    begin = time.monotonic()
    for folder in (out, work, CACHES):
        folder.mkdir(parents=True, exist_ok=True)
    if (CARRIED / "caches.tar.gz").exists():
        with tarfile.open(CARRIED / "caches.tar.gz") as file:
            file.extractall(CACHES, filter="data")
    results = work / "results"
    results.mkdir()
    own = {**environment, FAILURES: str(out / "failures.txt"), FIGURES: str(work / "figures.jsonl")}
    (out / "failures.txt").write_text("", encoding="utf-8")
    outcomes = list[GpuOutcome]()
    for wave in Stages(device, results, CACHES / "shapes", CARRIED / "failures.txt").waves(call):
        chosen = [job for job in wave if not only or job.name in only.split(",")]
        jobs = [
            replace(job, command=(sys.executable, "-c", FAULTS[planted[job.name]])) if job.name in planted else job
            for job in chosen
        ]
        for outcome in run_wave(jobs, work, begin + seconds - PACKING_S, own):
            outcomes.append(outcome)
            print(f"{outcome.job.name}: {outcome.ended}, {outcome.seconds:.0f} s. {outcome.said}", flush=True)
    write_visit(call, device, out, work, outcomes, own[COMMIT])
    print(f"call {call}: {time.monotonic() - begin:.0f} s, {out / 'page.md'}", flush=True)
    return all(outcome.ended in ("passed", "not run") for outcome in outcomes)


def write_visit(call: int, device: str, out: Path, work: Path, outcomes: Sequence[GpuOutcome], commit: str) -> None:
    """Write the files of a call beside failures.txt: page, outcomes, figures, tables, and three archives."""
    figures = work / "figures.jsonl"
    lines = figures.read_text(encoding="utf-8").splitlines() if figures.exists() else []
    measured = [json.loads(line) for line in lines]
    results = sorted((work / "results").glob("*.json"))
    (out / "page.md").write_text(visit_page(call, device, outcomes, measured, results, commit), encoding="utf-8")
    (out / "outcomes.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
    (out / "figures.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")
    logs = [(log.stem, log.read_text(errors="replace")[-20000:]) for log in sorted(work.glob("*.txt"))]
    tables = [f"# {name}\n\n```\n{text}\n```\n" for name, text in logs]
    (out / "tables.md").write_text("\n".join(tables), encoding="utf-8")
    # Triton reads none of its intermediate texts again.
    texts = (".ttir", ".ttgir", ".llir", ".ptx", ".source")
    for name, folder in (("logs", work), ("results", work / "results"), ("caches", CACHES)):
        with tarfile.open(out / f"{name}.tar.gz", "w:gz", compresslevel=3) as file:
            for path in sorted(folder.rglob("*")) if name != "logs" else sorted(folder.glob("*.txt")):
                if path.is_file() and not path.name.endswith(texts):
                    file.add(path, path.relative_to(folder), recursive=False)


if __name__ == "__main__":
    sys.exit(gpu_day_main())
