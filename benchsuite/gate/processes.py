"""Processes of the gate that end with everything they started, also when a signal ends pytest."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from benchsuite.machine.groups import kill_group

ENDED = 143
"""pytest's exit code after SIGTERM: 128 plus the number of the signal, as shells report it."""


@dataclass
class Signals:
    """A handler of SIGTERM and SIGINT that ends pytest inside ``allowed()``, and only remembers a signal outside.

    SIGTERM ends pytest with the code ``ENDED``, SIGINT with the code of an interrupted run.
    """

    open: bool = False
    came: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: at once, or later if it is held back."""
        self.came = number
        if self.open:
            self.end()

    def end(self) -> None:
        """End pytest if a signal came. What is cleaned up on the way is not interrupted by another signal."""
        number, self.came = self.came, None
        if number is not None:
            self.open = False
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            pytest.exit("SIGTERM ended the gate: its launch is stopped and its worktree removed", returncode=ENDED)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A context in which a signal ends pytest at once, and so does one that came before."""
        self.open = True
        try:
            self.end()
            yield
        finally:
            self.open = False


@contextmanager
def held_signals() -> Iterator[Signals]:
    """Hold SIGTERM and SIGINT back, except inside ``Signals.allowed()``: making and removing are not cut short.

    Does nothing in other threads than the main one, and leaves signals alone that the caller ignores.
    """
    handler, before = Signals(), {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    # None is a handler that was not set from Python and could not be restored.
    ours = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in ours:
        signal.signal(number, handler)
    try:
        yield handler
    finally:
        for number, old in ours.items():
            signal.signal(number, old)
        handler.end()


def run_group(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command; its output as text. A signal to pytest, or the timeout, kills it and all that it started.

    Raises TimeoutExpired after ``seconds``. Example: ``run_group(["git", "status"], Path.cwd(), os.environ)``
    """
    with (
        held_signals() as signals,
        subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # one group to kill; a terminal's Ctrl-C comes to pytest alone
        ) as process,
    ):
        try:
            with signals.allowed():
                stdout, stderr = process.communicate(timeout=seconds)
        except BaseException:
            kill_group(process.pid)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
