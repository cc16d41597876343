"""Traces of a run by torch.profiler, with the parts of each step as named ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from specdec.engine import Engine
from specdec.request import Request

RANGES = ("draft", "control", "verify", "accept", "commit", "host")
"""Names of the ranges. ``host`` is a whole step: what lies in none of the others is the host's."""


def trace(engine: Engine, requests: Sequence[Request], file: Path) -> None:
    """Run requests once more, and write a Chrome trace of the run; a name ending in ``.gz`` is compressed.

    The run is slower than an untraced one, and is not timed. Open the file in chrome://tracing or Perfetto.
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as profiler, ranges(engine):
        engine.run(requests)
    profiler.export_chrome_trace(str(file))


@contextmanager
def ranges(engine: Engine) -> Iterator[None]:
    """Inside it, every part of the engine's steps is a range of torch.profiler. The engine's own code has none."""
    parts: list[tuple[Any, str, str]] = [
        (engine, "step", "host"),
        (engine.target, "forward", "verify"),
        (engine.policy, "accept", "accept"),
        (engine.arena, "commit", "commit"),
        (engine.controller, "next_k", "control"),
    ]
    parts += [(engine.draft, method, "draft") for method in ("propose", "observe") if engine.draft]
    with ExitStack() as stack:
        for owner, method, name in parts:
            setattr(owner, method, _named(getattr(owner, method), name))
            stack.callback(delattr, owner, method)
        yield


def _named(method: Any, name: str) -> Any:
    @wraps(method)
    def inside(*arguments: Any, **named: Any) -> Any:
        with record_function(name):
            return method(*arguments, **named)

    return inside
