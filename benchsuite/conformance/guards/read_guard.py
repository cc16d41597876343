"""A guard over steps: only the engine reads the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from specdec import Engine, Request
from specdec.beam import BeamSearch

READS = {"tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero"}


class NoReads(TorchFunctionMode):
    """Forbids host reads of tensors while ``allowed`` is False; ``seen`` counts the permitted reads."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = False
        self.seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in READS:
            assert self.allowed, f"a step read the device through {func.__name__}"
            self.seen += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def only_engine_reads(engine: Engine | BeamSearch) -> Iterator[NoReads]:
    """In this context a host read of a tensor fails, except in its ``read``; on CUDA, so does any wait torch knows."""
    mode, read = NoReads(), engine.read

    def allow(allowed: bool) -> None:
        mode.allowed = allowed
        if engine.target.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default" if allowed else "error")

    def permitted(packed: torch.Tensor) -> Any:
        allow(True)
        try:
            return read(packed)
        finally:
            allow(False)

    object.__setattr__(engine, "read", permitted)
    allow(False)
    try:
        with mode:
            yield mode
    finally:
        allow(True)
        object.__setattr__(engine, "read", read)


def guarded_steps(engine: Engine, requests: Sequence[Request], steps: int) -> None:
    """Admit requests, then take steps under the guard; AssertionError for a read outside ``engine.read``."""
    engine.submit(requests)
    with only_engine_reads(engine) as mode:
        for _ in range(steps):
            engine.step()
    assert mode.seen >= steps, "the guard saw no read: it guards nothing"
