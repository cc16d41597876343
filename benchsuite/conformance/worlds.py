"""Runs that a controller sees without an engine: counters and times are made up, of many steps in no time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from specdec import Controller
from specdec.calibration import Calibration
from specdec.devices import Stopwatch
from specdec.lengths import each_k
from specdec.stats import Marks, RowStats, RowStep, Stats, Step

STEPS = 160
"""Steps of a run in a world."""

ROWS = 12
"""Rows of the largest batch in a world."""

LONGEST = 250
"""Tokens of the longest text in a world; where a text is shorter, its row has room for the rest."""

CLOCKS = ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "monotonic_ns", "process_time")
"""Functions of the module ``time`` that tell one."""


class ControllerWorld(NamedTuple):
    """What happens in each step, from 0, of a run.

    ``rows``: live rows; ``text``: the tokens of each; ``made``: how many a row proposes of its K; ``kept``: how many of
    these are accepted; ``branches``: of how many proposals one is a depth.
    """

    rows: Callable[[int], int] = lambda step: 3
    text: Callable[[int], int] = lambda step: 40 + step
    made: Callable[[int, int], int] = lambda step, k: k
    kept: Callable[[int, int], int] = lambda step, depth: depth
    branches: int = 1


WORLDS: dict[str, ControllerWorld] = {
    "everything is accepted": ControllerWorld(),
    "nothing is accepted": ControllerWorld(kept=lambda step, depth: 0),
    "nothing is proposed": ControllerWorld(made=lambda step, k: 0),
    "a third is proposed, and half of it accepted": ControllerWorld(
        made=lambda step, k: -(-k // 3), kept=lambda step, depth: (depth + step % 2) // 2
    ),
    "text that can be predicted comes and goes": ControllerWorld(kept=lambda step, depth: depth * (step // 20 % 2)),
    "batches grow and shrink": ControllerWorld(rows=lambda step: 1 + min(step, STEPS - step) * (ROWS - 1) * 2 // STEPS),
    "texts are nearly over": ControllerWorld(text=lambda step: LONGEST - 3 + step % 4),
    "proposals are trees": ControllerWorld(kept=lambda step, depth: depth // 2, branches=3),
}


Asked = Callable[[int, Any, Stats], None]
"""Receives a step, from 0, the K that a controller asks for, and what it was asked with."""


def live_in(world: ControllerWorld, controller: Controller, see: Asked = lambda step, k, stats: None) -> None:
    """Ask a controller for the K of each step of a run; ``see`` may raise, and what it lets pass has to be a K.

    The controller is one for ``ROWS`` rows of ``LONGEST`` tokens or more.
    """
    stats, requests = Stats(Stopwatch(torch.device("cpu"))), itertools.count()
    for step in range(STEPS):
        stats.batch = world.rows(step)
        stats.lengths = (world.text(step),) * stats.batch
        new = [RowStats(next(requests)) for _ in range(stats.batch - len(stats.rows))]
        stats.rows = (*stats.rows[: stats.batch], *new)
        for row in stats.rows:
            row.length, row.room = world.text(step), LONGEST - world.text(step)
        k = controller.next_k(stats)
        see(step, k, stats)
        stats.chosen.append(k if isinstance(k, int) else tuple(k))
        _take(world, step, each_k(stats.chosen[-1], stats.batch), stats)


def _take(world: ControllerWorld, step: int, ks: Sequence[int], stats: Stats) -> None:
    """Add a step to the stats, as an engine does."""
    each = []
    for row, k in zip(stats.rows, ks, strict=True):
        made = min(world.made(step, k), row.room)
        depth = -(-made // world.branches)
        kept = world.kept(step, depth)
        each.append(RowStep(made, depth, kept, kept + 1))
        row.book(each[-1], k, ())
        stats.proposed(made, depth)
        stats.accepted(kept)
        stats.counts["num_emitted_tokens"] += kept + 1
    stats.counts["target_forwards"] += 1
    width = 1 + max(row.proposed for row in each)
    marks = stats.stopwatch.marks
    first, now = len(marks), float(step)
    # Each part of a step takes a thousandth of a second, and the forward that for each slot of each row.
    parts = [1e-3] * 9
    parts[3] *= stats.batch * width
    marks.append(now)
    for part in parts:
        now += part
        marks.append(now)
    stats.steps.append(Step.of(tuple(each), width, Marks(*range(first, first + 10))))


@contextmanager
def clock_watched() -> Iterator[list[str]]:
    """Yields the names of the clocks that are read inside: of the host, of a step, and of the target's calibration."""
    read: list[str] = []

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            read.append(name)
            return original(*given, **named)

        return call

    owners: list[tuple[Any, str, str]] = [(time, name, f"time.{name}") for name in CLOCKS]
    owners += [(Stopwatch, "seconds", "Stats.times"), (Calibration, "forward", "Env.calibration")]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, told in owners:
            patch.setattr(owner, name, watched(told, getattr(owner, name)))
        yield read
