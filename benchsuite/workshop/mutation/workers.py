"""Several processes that share a list of work: each takes the next thing that no other has taken."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
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


def in_fork(work: Callable[[], int], failed: int = 1) -> int:
    """Fork this process, and return the number of the new one, which ends with the code that ``work()`` returns.

    If ``work`` raises, the new process prints why and ends with ``failed``. Nothing of this process runs on in it.

    Example: ``os.waitpid(in_fork(lambda: 0), 0)``
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = failed
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def in_processes(count: int, work: Callable[[int], None]) -> None:
    """Call ``work(0)`` … ``work(count - 1)`` at once, each in a fork of this process, and wait for all.

    Raises RuntimeError if one of them failed, after it has printed why; when this process is interrupted or fails, they
    are ended.

    Example: ``in_processes(2, lambda worker: print(worker))``
    """

    def done(worker: int) -> int:
        work(worker)
        return 0

    running: list[int] = []
    try:
        for worker in range(count):
            running.append(in_fork(partial(done, worker)))
        failed = 0
        while running:
            _, status = os.waitpid(running[0], 0)
            del running[0]
            failed += status != 0
        if failed:
            raise RuntimeError(f"{failed} of {count} processes failed; what they printed says why")
    finally:
        for process in running:
            os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)
