"""``python -m benchsuite.workshop.gpu_day 1``, then ``2`` and ``3``: see docs/gpu.md."""

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchsuite.machine.provenance import COMMIT
from benchsuite.workshop.gpu_day.checkout import commit_of, keep_commit, look_installed
from benchsuite.workshop.gpu_day.failures import FAILURES
from benchsuite.workshop.gpu_day.jobs import GpuJob, GpuOutcome, run_wave
from benchsuite.workshop.gpu_day.page import FIGURES, visit_page
from benchsuite.workshop.gpu_day.stages import Stages

CACHES = Path(tempfile.gettempdir()) / "specdec-gpu"
"""What is compiled. One path on every machine: Triton's cache holds absolute ones."""

CARRIED = Path(".gpu")
"""Where a call finds what came back from the one before: caches.tar.gz and failures.txt; and the commit."""

PACKING_S = 12.0
"""Seconds of a call that are left for packing."""

FAULTS = {
    "fail": "raise SystemExit('a planted failure')",
    "crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hang": "import signal; print('a planted hang', flush=True); signal.pause()",
}
"""Code that ``--plant`` runs in a job's place."""

TEXTS = (".ttir", ".ttgir", ".llir", ".ptx", ".source")
"""Intermediate texts of Triton's cache, which nothing reads again."""


@dataclass(frozen=True)
class Visit:
    """What the three calls have in common. ``seconds``: the most that a call takes. ``only``: names of jobs to run, all
    if empty. ``planted``: faults by the name of the job in whose place they run. ``environment``: of all jobs."""

    device: str
    seconds: float
    environment: Mapping[str, str]
    only: Sequence[str] = ()
    planted: Mapping[str, str] = field(default_factory=dict)

    def call(self, number: int, out: Path, work: Path) -> bool:
        """Run call ``number``, with ``work`` as its scratch folder; write its eight files into ``out``.

        Returns whether every job that was begun passed. What was measured is on the page after each wave.
        """
        begin, results = time.monotonic(), work / "results"
        for folder in (out, results, CACHES):
            folder.mkdir(parents=True, exist_ok=True)
        if (CARRIED / "caches.tar.gz").exists():
            with tarfile.open(CARRIED / "caches.tar.gz") as file:
                file.extractall(CACHES, filter="data")
        (out / "failures.txt").write_text("", encoding="utf-8")
        own = {**self.environment, FAILURES: str(out / "failures.txt"), FIGURES: str(work / "figures.jsonl")}
        outcomes = list[GpuOutcome]()
        for wave in Stages(self.device, results, CACHES / "shapes", CARRIED / "failures.txt").waves(number):
            jobs = [self._planted(job) for job in wave if not self.only or job.name in self.only]
            for outcome in run_wave(jobs, work, begin + self.seconds - PACKING_S, own):
                outcomes.append(outcome)
                print(f"{outcome.job.name}: {outcome.ended}, {outcome.seconds:.0f} s. {outcome.said}", flush=True)
            self._write(number, out, work, outcomes)
        pack_visit(out, work)
        print(f"call {number}: {time.monotonic() - begin:.0f} s, {out / 'page.md'}", flush=True)
        return all(outcome.ended in ("passed", "not run") for outcome in outcomes)

    def _planted(self, job: GpuJob) -> GpuJob:
        fault = self.planted.get(job.name)
        return job if fault is None else replace(job, command=(sys.executable, "-c", FAULTS[fault]))

    def _write(self, number: int, out: Path, work: Path, outcomes: Sequence[GpuOutcome]) -> None:
        figures = work / "figures.jsonl"
        lines = figures.read_text(encoding="utf-8").splitlines() if figures.exists() else []
        measured = [json.loads(line) for line in lines]
        results = sorted((work / "results").glob("*.json"))
        page = visit_page(number, self.device, outcomes, measured, results, self.environment[COMMIT])
        (out / "page.md").write_text(page, encoding="utf-8")
        (out / "outcomes.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
        (out / "figures.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")


def pack_visit(out: Path, work: Path) -> None:
    """Write what the jobs printed as ``tables.md``, and archives of logs, results and caches, into ``out``."""
    logs = sorted(work.glob("*.txt"))
    texts = [f"# {log.stem}\n\n```\n{log.read_text(errors='replace')[-20000:]}\n```\n" for log in logs]
    (out / "tables.md").write_text("\n".join(texts), encoding="utf-8")
    results, caches = (sorted(folder.rglob("*")) for folder in (work / "results", CACHES))
    for name, folder, files in (
        ("logs", work, logs),
        ("results", work / "results", results),
        ("caches", CACHES, caches),
    ):
        with tarfile.open(out / f"{name}.tar.gz", "w:gz", compresslevel=3) as archive:
            for file in files:
                if file.is_file() and not file.name.endswith(TEXTS):
                    archive.add(file, file.relative_to(folder), recursive=False)


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


def absent_device(device: str, environment: Mapping[str, str]) -> str | None:
    """Return why the calls cannot run on ``device`` with this Python; None if they can."""
    code = f"from specdec.devices import pick_device; pick_device({device!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    _, refused, reason = last.partition("SpecdecError: ")
    if refused:
        return reason
    return f"{sys.executable} cannot load the project: {last}; name another Python, make gpu-day PYTHON=/path/to/python"


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ends the process with code 2 for a job or a fault that does not exist."""
    parser = argparse.ArgumentParser(
        prog="python -m benchsuite.workshop.gpu_day",
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
    given.only = [name for name in given.only.split(",") if name]
    given.plant = dict(one.partition("=")[::2] for one in given.plant)
    given.calls = [int(given.call)] if given.call.isdigit() else [1, 2, 3]
    with tempfile.TemporaryDirectory() as folder:
        stages = Stages("cpu", Path(folder), Path(folder), Path(folder) / "none")
        known = [job.name for call in given.calls for wave in stages.waves(call) for job in wave]
    for option, names in (("--only", given.only), ("--plant", given.plant)):
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"{option} names the job {unknown[0]!r}; expected one of {', '.join(dict.fromkeys(known))}")
    for fault in given.plant.values():
        if fault not in FAULTS:
            parser.error(f"--plant has the fault {fault!r}; expected one of {', '.join(FAULTS)}")
    return given


def gpu_day_main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if every job that was begun passed, 1 if not, 2 for what cannot be begun."""
    given = read_arguments(arguments)
    if given.call == "commit":
        print(keep_commit())
        return 0
    into = (given.into or Path(os.environ.get("OUT", "gpu-day"))).resolve()
    with tempfile.TemporaryDirectory(prefix="specdec-gpu-") as folder:
        environment = call_environment(Path(folder))
        reason = absent_device(given.device, environment)
        if reason:
            print(f"gpu_day: {reason}", file=sys.stderr)
            return 2
        visit, passed = Visit(given.device, given.seconds, environment, given.only, given.plant), True
        for call in given.calls:
            out = into / f"call-{call}" if len(given.calls) > 1 else into
            passed &= visit.call(call, out, Path(folder) / str(call))
            if len(given.calls) > 1:
                CARRIED.mkdir(exist_ok=True)
                for name in ("caches.tar.gz", "failures.txt"):
                    shutil.copy(out / name, CARRIED / name)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(gpu_day_main())
