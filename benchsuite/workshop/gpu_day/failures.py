"""A pytest plugin for a scarce GPU: failures are written as they come, and a broken context ends its worker.

After an illegal access every further call of the process fails. xdist then starts another worker and names the test:
``-p benchsuite.workshop.gpu_day.failures --max-worker-restart 99``. The variable ``SPECDEC_FAILURES`` names the file.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

FAILURES = "SPECDEC_FAILURES"

BROKEN = (
    *("illegal memory access", "misaligned address", "unspecified launch failure", "device-side assert"),
    "illegal instruction",
)
"""What CUDA says of errors after which a process can launch nothing."""

MOST = 2500
"""Characters of a failure that are kept, its last."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Append a failed item to the file; leave the process where CUDA's context is broken."""
    report = yield
    if report.failed:
        text = report.longreprtext
        with Path(os.environ.get(FAILURES, "failures.txt")).open("a", encoding="utf-8") as file:
            file.write(f"=== {item.nodeid} ({report.when}, {report.duration:.1f} s)\n{text[-MOST:]}\n")
        if any(words in text for words in BROKEN):
            os._exit(70)
    return report


def failed_items(file: Path) -> list[str]:
    """Return the ids of the items that a file of failures names, each once; empty if there is no file."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return list(dict.fromkeys(line[4:].rpartition(" (")[0] for line in lines if line.startswith("=== ")))
