"""How much is measured: prompts and pairs that the user fixes, or a precision and a budget that choose them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchsuite.measure.interval import FEWEST, estimate, units_needed

LITTLE = 0.95
"""A further pass over all prompts that leaves more than this share of the width of an interval is the last one."""

FLOOR = 24
"""Units in all below which no precision is called reached: the spread of few is small by luck, and those that end a run
then are the lucky ones (docs/measuring.md has the coverages at stopping)."""


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
    (0: all units once more) and returns the logs so far. ``said`` is filled with what ended the search, and what was
    reached.
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
        found, before, ended = self.measure(have, self._spent), float("inf"), ""
        while not ended:
            _, width = _widest(found)
            if self._spent():
                ended = f"the budget of {self.plan.budget:g} s is spent"
            elif self._within(width) and _units(found) >= FLOOR:
                ended = "the precision is reached"
            elif have < self.room:
                have = min(self.room, max(have + 1, min(2 * have, self._needed(found))))
                found = self.measure(have, self._spent)
            elif self._within(width):
                ended = f"all {self.room} prompts of each workload are used"
            elif width is None or width > LITTLE * before:
                ended = f"all {self.room} prompts of each workload are used and a further pass narrows nothing"
            else:
                before, found = width, self.measure(0, self._spent)
        self.said = ended + self._told(found)

    def _spent(self) -> bool:
        return self.clock() >= self._end

    def _within(self, width: float | None) -> bool:
        return self.plan.precision is not None and width is not None and width <= self.plan.precision

    def _needed(self, found: Logs) -> int:
        """Units of each workload that the widest interval needs, by the spread so far; all if no number would do."""
        if self.plan.precision is None:
            return self.room
        wanted = [units_needed(logs, self.plan.precision) for logs in found.values()]
        each = [self.room if units is None else -(-max(units, FLOOR) // self.workloads) for units in wanted]
        return max(each, default=self.room)

    def _told(self, found: Logs) -> str:
        """What is said of the precision, whatever ended the measurement."""
        label, width = _widest(found)
        if self.plan.precision is None or width is None:
            return ""
        precision, units = _percent(self.plan.precision), _units(found)
        if not self._within(width):
            wanted = units_needed(found[label], self.plan.precision)
            many = "more than a million" if wanted is None else f"about {max(wanted, FLOOR)}"
            reaches = (
                f"the interval of {label} reaches {_percent(width)} with {sum(map(len, found[label].values()))} units"
            )
            return f": {reaches}, and {precision} would have taken {many}"
        few = f"fewer than the {FLOOR} that show a spread; " if units < FLOOR else ""
        return (
            f": every interval is within {precision}, with {units} units; {few}a kind of prompt that is rarer than "
            f"{100 * unseen(units):.0f} % may be missing"
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


def _units(found: Logs) -> int:
    """The fewest independent units of an arm; a prompt that ran again is no further one."""
    return min((sum(map(len, logs.values())) for logs in found.values()), default=0)


def unseen(units: int, level: float = 0.95) -> float:
    """Return the share of prompts below which a kind of them may be missing from so many: with a larger one, they hold
    it with probability ``level``.

    Example: ``unseen(24)`` is 0.117.
    """
    return float(1 - (1 - level) ** (1 / units))


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
