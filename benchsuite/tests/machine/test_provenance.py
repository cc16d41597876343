"""What a figure is filed under: the machine, with the processors that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchsuite.gate.figures import machine
from benchsuite.machine import provenance


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor")
def test_a_process_that_may_use_one_processor_is_another_machine() -> None:
    allowed = os.sched_getaffinity(0)
    before = machine(None)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine(None)["cores"] == f"1 of {os.cpu_count()} processors" != before["cores"]
        assert provenance.cores_line() == f"1 of {os.cpu_count()} cores"
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine(None) == before


@pytest.mark.parametrize(
    ("quota", "allowed"),
    [("max 100000", 8), ("100000 100000", 1), ("150000 100000", 2), ("10000 100000", 1), ("900000 100000", 8), ("", 8)],
)
def test_a_control_groups_quota_is_what_a_process_may_use(
    quota: str, allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    (tmp_path / "own").write_text("0::/\n")
    places = {"/sys/fs/cgroup": tmp_path, "/proc/self/cgroup": tmp_path / "own"}
    monkeypatch.setattr(provenance, "Path", lambda text: places[text])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert provenance.allowed_cores() == allowed
