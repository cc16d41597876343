"""A block that an engine's own queue served: its requests, and the steps that it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from benchsuite.benches.serving.load import ServedBlock
from specdec.stats import Stats, Step


class QueueStep(NamedTuple):
    """One step: its rows, the slots of all their windows, the tokens that they emitted, and its seconds."""

    rows: int
    slots: int
    emitted: int
    seconds: float

    @staticmethod
    def of(step: Step, stats: Stats) -> QueueStep:
        """A step of an engine with these stats; waits for the device."""
        seconds = stats.stopwatch.seconds(step.marks.start, step.marks.end)
        return QueueStep(step.rows, step.rows + step.proposed, step.emitted, seconds)


@dataclass(frozen=True)
class QueueBlock(ServedBlock):
    """One arm's answers to the prompts of a group in one round, and the steps in which they came."""

    steps: tuple[QueueStep, ...] = ()
