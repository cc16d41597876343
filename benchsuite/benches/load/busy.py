"""The part of a closed block in which as many requests run as the load has, and the tail in which fewer do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchsuite.benches.load.queue_block import QueueBlock, QueueStep


@dataclass(frozen=True)
class BusyPart:
    """The steps of a block until a place stays empty (``busy``), and the rest (``tail``); ``at_once``: its places."""

    busy: tuple[QueueStep, ...]
    tail: tuple[QueueStep, ...]
    at_once: int

    @property
    def tokens(self) -> int:
        """All tokens of the block."""
        return sum(step.emitted for step in (*self.busy, *self.tail))

    @property
    def tail_s(self) -> float:
        """Seconds from the first step of the tail to the end."""
        return self.tail[-1].ended_s - self.tail[0].begun_s if self.tail else 0.0

    @property
    def reading_s(self) -> float:
        """Seconds between steps until the tail begins, in which all prompts are read; 0 where no step was busy."""
        if not self.busy:
            return 0.0
        end = self.tail[0].begun_s if self.tail else self.busy[-1].ended_s
        return end - sum(step.seconds for step in self.busy)

    @property
    def full_s(self) -> float | None:
        """What the block would take if no place stayed empty; None where no step was busy.

        That is ``reading_s``, and as many steps as its rows need with all places taken, at the mean of the busy ones'
        seconds after a correction. In a load without an end requests have windows as long, in the mean over their
        steps, as in the whole block; in its busy part those with long windows, which end sooner, are too many. The mean
        is therefore moved along the line of least squares through the busy steps, seconds over slots, to the mean slots
        of a row in the whole block (a regression estimator: Cochran, Sampling Techniques, chapter 7).

        The line needs places that serve a second request: of as many requests as places all busy steps have the same
        rows.
        """
        if not self.busy:
            return None
        rows = sum(step.rows for step in (*self.busy, *self.tail))
        slots = sum(step.slots for step in (*self.busy, *self.tail)) * self.at_once / rows
        each = fmean(step.seconds for step in self.busy)
        moved = slots - fmean(step.slots for step in self.busy)
        return self.reading_s + (each + moved * _slope(self.busy)) * rows / self.at_once


def busy_part(block: QueueBlock, at_once: int) -> BusyPart:
    """Return the parts of a closed block of ``at_once`` requests at once.

    A request follows each that ends while there is one: from the first step with fewer rows on all have fewer.
    """
    busy = tuple(step for step in block.steps if step.rows == at_once)
    tail = tuple(step for step in block.steps if step.rows < at_once)
    return BusyPart(busy, tail, at_once)


def _slope(steps: Sequence[QueueStep]) -> float:
    """Seconds a slot, by least squares: 0 at least, and at most what it is if nothing else takes time.

    0 where all steps have as many slots. The limits matter where few steps differ, and by little.
    """
    middle = fmean(step.slots for step in steps)
    spread = sum((step.slots - middle) ** 2 for step in steps)
    if not spread:
        return 0.0
    slope = sum((step.slots - middle) * step.seconds for step in steps) / spread
    return min(max(slope, 0.0), fmean(step.seconds for step in steps) / middle)
