"""Several processes that share a list of work: each takes the next thing that no other has taken."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Thing = TypeVar("Thing")


def first_taken(things: Iterable[Thing], folder: Path) -> Iterator[Thing]:
    """Yield those of ``things`` that this process is the first to take.

    ``folder``: empty at first, the same for all processes, which must go through the same things in the same order; a
    file in it stands for each that is taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, thing in enumerate(things):
        with suppress(FileExistsError):
            os.close(os.open(folder / str(number), os.O_CREAT | os.O_EXCL))
            yield thing


def in_processes(count: int, work: Callable[[int], None]) -> None:
    """Call ``work(0)`` … ``work(count - 1)`` at once, each in a fork of this process, and wait for all.

    Raises RuntimeError if one of them failed, after it has printed why; when this process is interrupted or fails, they
    are ended.

    Example: ``in_processes(2, lambda worker: print(worker))``
    """
    sys.stdout.flush()
    sys.stderr.flush()
    running: list[int] = []
    try:
        for worker in range(count):
            process = os.fork()
            if process == 0:
                _child(work, worker)
            running.append(process)
        failed = []
        while running:
            process, status = os.waitpid(running[0], 0)
            running.remove(process)
            failed += [process] if status else []
        if failed:
            raise RuntimeError(f"{len(failed)} of {count} processes failed; what they printed says why")
    finally:
        for process in running:
            os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)


def _child(work: Callable[[int], None], worker: int) -> None:
    """Become the process of a worker; never returns."""
    code = 1
    try:
        work(worker)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
