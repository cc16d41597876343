"""The part of a closed block in which as many requests run as the load has, and the tail in which fewer do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression

from benchsuite.benches.load.queue_block import QueueStep


@dataclass(frozen=True)
class BusyPart:
    """The steps of a closed block of ``at_once`` places: until one stays empty (``busy``), and the rest (``tail``).

    A request follows each that ends while there is one: from the first step with fewer rows on all have fewer.
    Example: ``BusyPart(block.steps, 4).full_s``
    """

    steps: tuple[QueueStep, ...]
    at_once: int

    @property
    def busy(self) -> list[QueueStep]:
        """The steps with all places taken."""
        return [step for step in self.steps if step.rows == self.at_once]

    @property
    def tail(self) -> list[QueueStep]:
        """The steps behind them."""
        return [step for step in self.steps if step.rows < self.at_once]

    @property
    def tokens(self) -> int:
        """All tokens of the block."""
        return sum(step.emitted for step in self.steps)

    @property
    def tail_s(self) -> float:
        """Seconds from the first step of the tail to the end."""
        tail = self.tail
        return tail[-1].ended_s - tail[0].begun_s if tail else 0.0

    @property
    def reading_s(self) -> float:
        """Seconds between steps until the tail begins, in which all prompts are read; 0 where no step was busy."""
        busy, tail = self.busy, self.tail
        if not busy:
            return 0.0
        end = tail[0].begun_s if tail else busy[-1].ended_s
        return end - sum(step.seconds for step in busy)

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
        busy = self.busy
        if not busy:
            return None
        rows = sum(step.rows for step in self.steps)
        slots = sum(step.slots for step in self.steps) * self.at_once / rows
        each = fmean(step.seconds for step in busy)
        moved = slots - fmean(step.slots for step in busy)
        return self.reading_s + (each + moved * _slope(busy)) * rows / self.at_once


def _slope(steps: Sequence[QueueStep]) -> float:
    """Seconds a slot, by least squares: 0 at least, and at most what it is if nothing else takes time.

    0 where all steps have as many slots. The limits matter where few steps differ, and by little.
    """
    slots, seconds = [step.slots for step in steps], [step.seconds for step in steps]
    if len({*slots}) == 1:
        return 0.0
    return min(max(linear_regression(slots, seconds).slope, 0.0), fmean(seconds) / fmean(slots))
