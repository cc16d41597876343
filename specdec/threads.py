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


class _Held(threading.local):
    count = 0


_held = _Held()


def kernel_threads() -> int:
    """The threads for a backend that has its own: as many as torch has, or had outside ``one_torch_thread``."""
    return _held.count or torch.get_num_threads()


@contextmanager
def one_torch_thread(wanted: bool = True) -> Iterator[None]:
    """Within it, torch's ops run on the calling thread alone, which starts and wakes no other; ``wanted`` False changes
    nothing. May be nested; each thread has its own.

    Example: ``with one_torch_thread(engine.target.own_threads): draft.propose(context)``
    """
    if not wanted or _held.count:
        yield
        return
    _held.count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_held.count)
        _held.count = 0
