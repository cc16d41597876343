"""Memory of large outputs, which is used again instead of given back to the system."""

from __future__ import annotations

import mmap
import sys
from math import prod
from threading import Lock

import numpy as np
import torch
from torch import Tensor


class Recycled:
    """Tensors in one piece of memory: the next takes the place of the last if nothing refers to that any more.

    A new piece costs a page fault for each 4 KiB that is written, or where the system has large pages the clearing of
    2 MiB for each slot of sparse logits. Example: ``Recycled().floats((32, 16, 49152))``
    """

    def __init__(self) -> None:
        self._numbers = np.empty(0, np.float32)
        self._alone = sys.getrefcount(self._numbers)  # what it says where nothing else refers to them
        self._lock = Lock()

    def floats(self, shape: tuple[int, ...]) -> Tensor:
        """Return a float32 tensor on the CPU: 0, or numbers that earlier tensors were given."""
        count = prod(shape)
        with self._lock:
            if sys.getrefcount(self._numbers) > self._alone or len(self._numbers) < count:
                # Pages of a private map begin as 0, and are the system's small ones.
                self._numbers = np.frombuffer(mmap.mmap(-1, max(4 * count, 1)), np.float32)
            piece = self._numbers[:count]
        return torch.from_numpy(piece).view(shape)
