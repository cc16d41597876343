"""A block that an engine's own queue served: its requests, and the steps that it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from benchsuite.benches.serving.load import ServedBlock
from specdec.stats import Stats, Step


class QueueStep(NamedTuple):
    """One step: its rows, the slots of all their windows, the tokens that they emitted, and when it began and ended, in
    seconds since the block began."""

    rows: int
    slots: int
    emitted: int
    begun_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.begun_s

    @staticmethod
    def of(step: Step, stats: Stats, start: int) -> QueueStep:
        """A step of an engine with these stats, in a block that began at the mark ``start``; waits for the device."""
        begun, ended = (stats.stopwatch.seconds(start, mark) for mark in (step.marks.start, step.marks.end))
        return QueueStep(step.rows, step.rows + step.proposed, step.emitted, begun, ended)


@dataclass(frozen=True)
class QueueBlock(ServedBlock):
    """One arm's answers to the prompts of a group in one round, and the steps in which they came."""

    steps: tuple[QueueStep, ...] = ()
