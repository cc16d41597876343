"""Threads of the host: how many a backend's own kernels take, and how torch is kept to one beside them.

Threads of torch that have nothing to do wait for more work in a loop (libgomp: some 6 ms), on the cores that the
kernels' own threads then lack. On two cores one torch op of two threads in a step made the step 6 ms longer, half as
long again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specdec.errors import SpecdecError


class _Held(threading.local):
    count = 0


_held = _Held()


def kernel_threads() -> int:
    """The threads for a backend that has its own: as many as torch has, or had outside ``one_torch_thread``."""
    return _held.count or torch.get_num_threads()


@contextmanager
def one_torch_thread(wanted: bool = True) -> Iterator[None]:
    """Within it, torch's ops run on the calling thread alone, which starts and wakes no other; with ``wanted`` False
    torch keeps its threads. May be nested; each thread has its own.

    Raises SpecdecError if torch has another number of threads at the end than at the beginning: a plugin that sets
    more would have the target's forward run on more than plain decoding's does.

    Example: ``with one_torch_thread(engine.target.own_threads): draft.propose(context)``
    """
    usual = torch.get_num_threads()
    alone = wanted and not _held.count
    if alone:
        _held.count = usual
        torch.set_num_threads(1)
    given = 1 if alone else usual
    try:
        yield
        found = torch.get_num_threads()
    finally:
        if torch.get_num_threads() != usual:
            torch.set_num_threads(usual)
        if alone:
            _held.count = 0
    if found != given:
        raise SpecdecError(
            f"torch was set from {given} to {found} threads within a call of a plugin; its threads are one number for "
            f"the whole run: leave them as they are, or start the run with OMP_NUM_THREADS={found}"
        )
