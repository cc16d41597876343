"""A signal that ends a gating leaves nothing behind: no worktree, no folder, no process."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from benchsuite.gate.processes import ENDED
from benchsuite.tests.gate_rig import NO_PLUGINS, Suite, refused
from benchsuite.tests.rig import Run

pytestmark = pytest.mark.slow

LONGEST = 120.0
"""The limit of every wait, in seconds."""

WAITS = "if 'SPECDEC_GATE_OWN' in os.environ: __import__('subprocess').run(['sleep', '301'])"
"""The body of a benchmark that starts a process and waits for it, in launches alone."""


def _waited(condition: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    """The processes that ``condition`` finds, as soon as it finds any. AssertionError after LONGEST."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"nothing was found in {LONGEST} s")


def _naming(word: str, processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if word in process.cmdline():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # it ended while it was looked at
    return found


@pytest.mark.parametrize(
    ("number", "code", "message"), [(signal.SIGTERM, ENDED, "SIGTERM ended the gate"), (signal.SIGINT, 2, "Interrupt")]
)
def test_a_signal_ends_the_launch_with_its_children_and_removes_the_worktree(
    suite: Suite,
    cold: Run,
    tmp_path_factory: pytest.TempPathFactory,
    number: signal.Signals,
    code: int,
    message: str,
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("this run ignores the signal, and so does all that it starts")
    suite.write(body=WAITS)
    suite.commit()
    temporary = tmp_path_factory.mktemp("temporary")
    gating = ("-m", "pytest", *NO_PLUGINS, "--gate=fail", "--gate-against=HEAD", "--gate-launches=5+2")

    def worktrees() -> list[str]:
        words = ["git", "worktree", "list"]
        return subprocess.run(words, cwd=suite.folder, capture_output=True, text=True, check=True).stdout.splitlines()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cold, *gating, LAUNCHES=str(suite.folder), TMPDIR=str(temporary))
        [gate] = _waited(lambda: _naming("--gate-against=HEAD", psutil.Process().children()))
        waiting = _waited(lambda: _naming("301", gate.children(recursive=True)))
        started = gate.children(recursive=True)
        assert waiting
        assert len(worktrees()) == 2
        gate.send_signal(number)
        done = running.result(LONGEST)
    refused(done, code, message)
    _, alive = psutil.wait_procs(started, timeout=LONGEST)
    assert alive == []
    assert len(worktrees()) == 1
    assert list(Path(temporary).glob("specdec-gate-*")) == []
