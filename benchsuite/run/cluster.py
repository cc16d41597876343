"""A run in parts, as jobs of a Slurm cluster or processes of this machine, through submitit (the extra ``slurm``)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchsuite.machine.files import runs
from benchsuite.report.merged import merge
from benchsuite.store.journal import Journal
from specdec.errors import SpecdecError

JOB_MINUTES = 30
"""How long a job may take, where ``--set timeout_min`` says nothing. submitit would end a process of this machine after
2 minutes and a job of Slurm after 5: beside other work, loading a model alone takes as long."""


def submit_shards(
    arguments: Sequence[str], shards: int, into: Path, cluster: str | None, settings: Mapping[str, str]
) -> Journal:
    """Run pytest with ``arguments`` in ``shards`` parts, each a job, wait for them, and merge what they measured.

    ``into`` is made with a folder for each part, one for submitit's logs, and ``merged``, which is made anew. A part
    that was begun before is gone on with. ``cluster``: ``slurm``, ``local``, or None for Slurm where there is one.
    ``settings``: submitit's parameters, ``timeout_min`` (default: ``JOB_MINUTES``), ``slurm_partition`` …

    Raises SpecdecError without submitit, for settings that it does not know, and if a part ends without results.
    """
    try:
        import submitit
    except ImportError as error:
        raise SpecdecError("to submit jobs takes submitit: pip install 'specdec-bench[slurm]'") from error
    executor = submitit.AutoExecutor(folder=into / "jobs", cluster=cluster)
    numbers = {name: int(text) if text.isdecimal() else text for name, text in settings.items()}
    try:
        executor.update_parameters(**{"timeout_min": JOB_MINUTES, **numbers})
    except (NameError, TypeError) as error:
        raise SpecdecError(
            f"submitit does not take these settings: {error}; leave out --set, or see its names"
        ) from None
    parts = [into / f"part-{number}" for number in range(1, shards + 1)]
    jobs = [
        executor.submit(run_shard, [*arguments], f"{number}/{shards}", str(part))
        for number, part in enumerate(parts, 1)
    ]
    for job, part in zip(jobs, parts, strict=True):
        job.result()
        if not runs(part):
            raise SpecdecError(
                f"{part} has no results; its output is in {job.paths.stdout} and {job.paths.stderr}. A part without "
                "rows means more parts than cells: leave some out"
            )
    merged = into / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    return merge(parts, merged)


def run_shard(arguments: Sequence[str], shard: str, folder: str) -> int:
    """Run one part in this process's folder; returns pytest's exit code: a row that fails is in the results."""
    kept = ["--specdec-results", folder, "--specdec-resume", "--specdec-shard", shard]
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *kept], check=False).returncode
