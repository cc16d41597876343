"""Process groups: whatever a process started ends with it, however it ended itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import BinaryIO

import pytest

from benchsuite.machine.groups import end_group, kill_group

CHILD = "import signal; {} ; print('here', flush=True); signal.pause()"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def begun(leader: str, child: str, lines: int = 1) -> tuple[subprocess.Popen[bytes], BinaryIO]:
    """A leader that starts a child and then does as ``leader`` says; and their output, which ends when both have ended.

    It returns after so many lines of output.
    """
    code = f"import signal, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); {leader}"
    reads, writes = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writes, start_new_session=True)
    os.close(writes)
    output = os.fdopen(reads, "rb")
    for _ in range(lines):
        output.readline()
    return process, output


@pytest.mark.parametrize("patience", [0.0, 30.0])
@pytest.mark.parametrize("child", [CHILD.format("pass"), CHILD.format(DEAF)], ids=["child", "deaf-child"])
@pytest.mark.parametrize("leader", ["p.wait()", "sys.exit(0)"], ids=["waits", "has-left"])
def test_nothing_of_a_group_is_left(leader: str, child: str, patience: float) -> None:
    process, output = begun(leader, child)
    if leader == "sys.exit(0)":
        process.wait()
    end_group(process, patience)
    assert process.returncode is not None
    with output:
        assert output.read() == b"", "a process that lives holds the other side"


@pytest.mark.slow
def test_a_leader_that_does_not_listen_is_killed_after_the_patience() -> None:
    process, output = begun(f"{DEAF}; print('deaf', flush=True); signal.pause()", CHILD.format("pass"), lines=2)
    end_group(process, 0.1)
    assert process.returncode == -signal.SIGKILL
    with output:
        assert output.read() == b""


def test_a_group_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait()
    kill_group(process.pid)
    end_group(process, 1.0)
    assert process.returncode == 0


@pytest.mark.parametrize(("given", "code"), [((), -signal.SIGKILL), ((30.0,), 7)])
def test_a_leader_is_asked_to_end_and_waited_for_where_there_is_patience(given: tuple[float, ...], code: int) -> None:
    leader = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(flush=True)"
    command = [sys.executable, "-c", f"{leader}\nwhile True: signal.pause()"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        end_group(process, *given)
        assert process.returncode == code
