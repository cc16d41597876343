"""``python -m benchsuite.workshop.sweep``: try each type of causal model over the arena, and write docs/families.md.

Each type of model is tried in a fork of this process, which has imported what all need.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.utils import logging

from benchsuite.conformance.models.tiny import registry
from benchsuite.machine.files import write_file
from benchsuite.workshop.mutation.workers import in_fork
from benchsuite.workshop.sweep.battery import CRASHED, FamilyOutcome, try_family
from benchsuite.workshop.sweep.configs import model_kinds
from benchsuite.workshop.sweep.page import PAGE, families_page, read_families

MEMORY = 3 << 30
"""Bytes that a trial may take beside what this process has."""

CPU_SECONDS = 30
"""Seconds of a core that a trial may take."""


def outcome_in_fork(kind: str, folder: Path, backend: str = "auto") -> FamilyOutcome:
    """Try one type of model in a fork of this process, limited in memory and time; a signal that ends it is its reason.

    ``folder`` gets the outcome's file.
    """
    file = folder / f"{kind}.json"

    def work() -> int:
        torch.set_num_threads(1)
        logging.set_verbosity_error()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        with Path(os.devnull).open("w") as silent:
            os.dup2(silent.fileno(), 2)
        write_file(file, json.dumps(vars(try_family(kind, backend))).encode())
        return 0

    code = os.waitstatus_to_exitcode(os.waitpid(in_fork(work), 0)[1])
    if code:
        return FamilyOutcome(kind, CRASHED, signal.Signals(-code).name if code < 0 else f"exit code {code}")
    return FamilyOutcome(**json.loads(file.read_text()))


def sweep(kinds: Sequence[str], page: Path, backend: str = "auto") -> None:
    """Try these types of models and write their lines of ``page``, which keeps those of others; prints each outcome."""
    outcomes = read_families(page.read_text()) if page.exists() else {}
    registry().backend(backend)  # imports every plugin before the forks
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            outcomes[kind] = found = outcome_in_fork(kind, Path(folder), backend)
            print(": ".join(filter(None, (kind, found.result, found.reason))), flush=True)
            known = {name: outcomes[name] for name in model_kinds() if name in outcomes}
            write_file(page, families_page(known).encode())


def sweep_main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchsuite.workshop.sweep", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="TYPE", help="types of models to try; without one, all")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="the page (docs/families.md)")
    parser.add_argument("--backend", default="auto", help="a backend, as of a run (auto)")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.kinds) - set(model_kinds()))
    if unknown:
        parser.error(
            f"AutoModelForCausalLM builds no model of type {unknown[0]}; expected one of {len(model_kinds())}: "
            f"{', '.join(model_kinds())}"
        )
    sweep(given.kinds or model_kinds(), given.page, given.backend)
    return 0


if __name__ == "__main__":
    sys.exit(sweep_main())
