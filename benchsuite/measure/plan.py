"""How much is measured: prompts and pairs that the user fixes, or a precision and a budget that choose them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchsuite.measure.interval import FEWEST, estimate, units_needed

LITTLE = 0.95
"""A further pass over all prompts that leaves more than this share of the width of an interval is the last one."""


@dataclass(frozen=True)
class MeasuringPlan:
    """The user's wishes.

    ``prompts``: most prompts of each workload (None: all); ``pairs``: runs of each unit beside the baseline;
    ``least``: least pairs of a row, for the gate. ``precision``: measure until the interval of every row over all
    workloads reaches at most this share of its ratio to either side; ``budget``: seconds after which measuring ends.
    ``timeout``: most seconds of one run; ``baseline``: the arm that speedups are relative to. ``dry``: every model is
    replaced by a tiny one with random weights, whose figures mean nothing. ``judge``: the model under which the
    perplexity of every arm's outputs is taken, if any; ``debug``: errors of arms have their traceback. ``graphs``: on
    CUDA the parts of steps are recorded and replayed; ``exact``: windows of every width give the same bits. ``across``:
    conditions in which arms may differ and are compared nevertheless.
    """

    prompts: int | None = None
    pairs: int = 1
    least: int = 1
    precision: float | None = None
    budget: float | None = None
    timeout: float | None = None
    baseline: str = "plain"
    dry: bool = False
    judge: str = ""
    debug: bool = False
    graphs: bool = True
    exact: bool = False
    across: tuple[str, ...] = ()

    @property
    def chooses(self) -> bool:
        """Whether prompts and pairs follow from what has been measured."""
        return self.precision is not None or self.budget is not None

    def passes(self, units: int) -> int:
        """The number of passes over ``units`` units."""
        return max(self.pairs, -(-self.least // units))


Logs = Mapping[str, Mapping[str, Sequence[float]]]
"""For each arm, by its label, the logs of its paired ratios by workload."""


@dataclass
class Search:
    """Chooses how many units of each workload are measured next; one object for each setting apart from its workload.

    ``room``: units that each workload has. ``measure(units, enough)`` measures each workload's units up to that number
    (0: all units once more) and returns the logs so far. ``said`` is filled with what was reached.
    """

    plan: MeasuringPlan
    room: int
    workloads: int
    measure: Callable[[int, Callable[[], bool]], Logs]
    clock: Callable[[], float] = time.perf_counter
    said: str = ""
    _end: float = field(default=float("inf"), init=False)

    def run(self) -> None:
        """Measure until the precision is reached, the budget is spent, or nothing more would help."""
        self._end = self.clock() + (self.plan.budget or float("inf"))
        # The fewest units that have an interval, and two of a workload, whose difference shows the spread.
        have = min(self.room, max(2, -(-FEWEST // self.workloads)))
        found = self.measure(have, self._spent)
        before = float("inf")
        while not self._spent():
            _, width = _widest(found)
            if self.plan.precision is not None and width is not None and width <= self.plan.precision:
                self.said = f"precision {_percent(self.plan.precision)} reached: every interval is within it"
                return
            if have < self.room:
                have = min(self.room, max(have + 1, min(2 * have, self._needed(found))))
                found = self.measure(have, self._spent)
                continue
            if width is None or width > LITTLE * before:
                self.said = f"all {self.room} prompts of each workload are used and a further pass narrows nothing"
                break
            before = width
            found = self.measure(0, self._spent)
        self.said = self.said or f"the budget of {self.plan.budget:g} s is spent"
        self._lacking(found)

    def _spent(self) -> bool:
        return self.clock() >= self._end

    def _needed(self, found: Logs) -> int:
        """Units of each workload that the widest interval needs, by the spread so far; all if no number would do."""
        if self.plan.precision is None:
            return self.room
        wanted = [units_needed(logs, self.plan.precision) for logs in found.values()]
        return max((self.room if units is None else -(-units // self.workloads) for units in wanted), default=self.room)

    def _lacking(self, found: Logs) -> None:
        label, width = _widest(found)
        if self.plan.precision is None or width is None:
            return
        if width <= self.plan.precision:
            self.said = f"precision {_percent(self.plan.precision)} reached: every interval is within it"
            return
        logs = found[label]
        units, wanted = sum(map(len, logs.values())), units_needed(logs, self.plan.precision)
        self.said += (
            f": the interval of {label} reaches {_percent(width)} with {units} units, and "
            f"{_percent(self.plan.precision)} would have taken about {wanted}"
        )


def _widest(found: Logs) -> tuple[str, float | None]:
    """The arm with the widest interval; None while an arm has no interval."""
    widths: dict[str, float] = {}
    for label, logs in found.items():
        speed = estimate(logs)
        if speed.half_width is None:
            return label, None
        widths[label] = speed.half_width
    label = max(widths, key=lambda name: widths[name], default="")
    return label, widths.get(label)


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
