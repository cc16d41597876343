"""Process groups: a process that leads one, and all that it started, end together."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def kill_group(leader: int) -> None:
    """Kill every process of a group at once, by the id of the process that led it; nothing if none is left."""
    with suppress(ProcessLookupError, PermissionError):  # all have ended; on macOS a group of zombies alone
        os.killpg(leader, signal.SIGKILL)


def end_group(process: subprocess.Popen[bytes] | subprocess.Popen[str], patience_s: float = 0.0) -> None:
    """End a process and all that it started, and wait for the process. It was begun with ``start_new_session=True``.

    With ``patience_s`` the group first gets SIGTERM; it is killed when its leader has not ended after so many seconds,
    or has left something behind.

    Example: ``end_group(subprocess.Popen(command, start_new_session=True), 5.0)``
    """
    if patience_s:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    kill_group(process.pid)
    process.wait()
