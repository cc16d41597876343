"""Controllers that leave their bounds late or where little is known, read what they may not, and write to counters."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from specdec import Controller
from specdec.stats import Stats
from specdec_plugins.controllers.fixed import Fixed


class LateBeyond(Fixed):
    """Asks for more than its maximum after a hundred steps."""

    def next_k(self, stats: Stats) -> int:
        return self.max_k + (len(stats.steps) > 100)


class CrowdBeyond(Fixed):
    """Asks for more than its maximum in batches of more than eight rows."""

    def next_k(self, stats: Stats) -> int:
        return self.max_k + (stats.batch > 8)


class LongBeyond(Fixed):
    """Asks for more than its maximum where texts are long."""

    def next_k(self, stats: Stats) -> int:
        return self.max_k + (max(stats.lengths) > 200)


class Sulking(Fixed):
    """Asks for less each time that nothing was accepted, and for less than nothing in the end."""

    def next_k(self, stats: Stats) -> int:
        return self.max_k - sum(step.accepted == 0 for step in stats.steps[-5:])


class Dividing(Fixed):
    """Divides by the proposals so far, of which there are none at first."""

    def next_k(self, stats: Stats) -> int:
        counts = stats.counts
        if not stats.steps:
            return self.max_k
        return round(self.max_k * counts["num_accepted_tokens"] / counts["num_draft_tokens"])


class LateGrowing(Fixed):
    """Raises its maximum when it has seen a hundred steps."""

    _grown = 0

    @property
    def max_k(self) -> int:
        return self._k + self._grown

    def next_k(self, stats: Stats) -> int:
        self._grown = int(len(stats.steps) > 100)
        return 1


class Overspending(Fixed):
    """Asks for its maximum for each row, also for those with less room."""

    def next_k(self, stats: Stats) -> Any:
        return [self.max_k] * stats.batch


class Agreeing(Fixed):
    """Asks for True."""

    def next_k(self, stats: Stats) -> int:
        return True


class Computed(Fixed):
    """Asks for a number of NumPy's."""

    def next_k(self, stats: Stats) -> Any:
        return np.int64(self.max_k)


class Bookkeeper(Fixed):
    """Counts proposals as accepted that were not."""

    def next_k(self, stats: Stats) -> int:
        stats.counts["num_accepted_tokens"] += 1
        return self.max_k


class Truncating(Fixed):
    """Deletes the steps that it has seen."""

    def next_k(self, stats: Stats) -> int:
        stats.steps.clear()
        return self.max_k


class Backdating(Fixed):
    """Sets back the time at which a step ended."""

    def next_k(self, stats: Stats) -> int:
        if stats.stopwatch.marks:
            stats.stopwatch.marks[-1] = 0.0
        return self.max_k


class Patient(Fixed):
    """Says that no clock decides, and asks for nothing after a forward of a minute."""

    def next_k(self, stats: Stats) -> int:
        return 0 if stats.steps and stats.times(stats.steps[-1]).target > 60 else self.max_k


class Nightly(Fixed):
    """Says that no clock decides, and asks for nothing in a machine's first hour."""

    def next_k(self, stats: Stats) -> int:
        return 0 if time.monotonic() < 1e-9 else self.max_k


class Calibrating(Fixed):
    """Says that no clock decides, and asks for nothing where a forward takes a minute."""

    def __init__(self, env: Any, k: int = 4) -> None:
        super().__init__(env, k)
        self._calibration = env.calibration
        self._calibration.measure([1], [8], [1, 2])

    def next_k(self, stats: Stats) -> int:
        return 0 if self._calibration.forward(1, rows=1, length=8) > 60 else self.max_k


class WeightReader(Fixed):
    """Reads one of the target's weights in every step."""

    def __init__(self, env: Any, k: int = 4) -> None:
        super().__init__(env, k)
        self._weights = env.target.model.get_input_embeddings().weight

    def next_k(self, stats: Stats) -> int:
        return self.max_k if float(self._weights[0, 0]) < 1e9 else 0


CHEATING_CONTROLLERS: list[tuple[type[Controller], str, str]] = [
    (LateBeyond, "in_any_world", "stays within its bounds.*K 5 at step 101"),
    (CrowdBeyond, "in_any_world", "K 5 at step .*batches grow"),
    (LongBeyond, "in_any_world", "K 5 at step"),
    (Sulking, "in_any_world", "K -1 at step 5.*nothing is"),
    (Dividing, "in_any_world", "has a K for every step.*ZeroDivisionError.*nothing is proposed"),
    (LateGrowing, "in_any_world", "max_k 4, now 5"),
    (Overspending, "in_any_world", r"gives no row more than its room.*K \[4, 4, 4\] at step .* room for \[3"),
    (Agreeing, "within_its_bounds", "K True at step 0"),
    (Computed, "within_its_bounds", r"K np.int64\(4\) at step 0"),
    (Bookkeeper, "writes_to_nothing", "next_k changed Stats.counts"),
    (Truncating, "writes_to_nothing", "next_k changed Stats.steps"),
    (Backdating, "writes_to_nothing", "next_k changed Stats.stopwatch"),
    (Patient, "reads_the_clock", "has deterministic=True.*next_k read Stats.times"),
    (Nightly, "reads_the_clock", "has deterministic=True.*next_k read time.monotonic"),
    (Calibrating, "reads_the_clock", "has deterministic=True.*next_k read Env.calibration"),
    (WeightReader, "reads_the_device_once", "read the device through"),
]
"""Each with a part of the name of the check that finds it, and what that says."""
