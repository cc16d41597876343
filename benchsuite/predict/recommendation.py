"""Recommendations from a run's own cells: K for a strategy, and the fastest strategy of each text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import fmean

from benchsuite.measure.arms import Setting
from benchsuite.measure.interval import FEWEST, estimate
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.predict.checked import CheckedCell
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.ks import KS
from benchsuite.predict.prediction import Replay
from specdec_plugins.forecast import fastest_k

WORTH = 1.03
"""Least factor by which what was not run must be faster to be recommended."""


@dataclass(frozen=True)
class Recommendation:
    """What to use. ``k``: the K that is expected to be the fastest, None for the strategy as it was run; ``expected``:
    the speedup over plain. ``cell`` is None for plain decoding.

    ``level``: what was run and cannot be distinguished from it, since the largest of several speedups is partly luck;
    None where the units are too few to tell.
    """

    cell: CheckedCell | None
    k: int | None
    expected: float
    level: tuple[str, ...] | None = ()

    def __str__(self) -> str:
        """Example: ``eagle with K = 2, 1.48x expected (1.39x as run)``"""
        if self.cell is None:
            return "plain decoding"
        name, ran = self.cell.arm.label, f"{self.cell.measured:.2f}x"
        if self.k is None:
            return f"{name} as run, {ran}{self._level}"
        return f"{name} with K = {self.k}, {self.expected:.2f}x expected ({ran} as run)"

    @property
    def _level(self) -> str:
        """What follows a speedup of what was run."""
        if self.level is None:
            assert self.cell
            units = len(self.cell.units)
            return f"; {'one unit is' if units == 1 else f'{units} units are'} too few to tell it from others"
        return f"; not distinguishable from {', '.join(self.level)}" if self.level else ""


PLAIN = Recommendation(None, None, 1.0)
"""Plain decoding."""


def expected_speedup(cell: CheckedCell, costs: Costs, k: int | None = None) -> float:
    """Return the speedup of a cell's strategy at ``costs`` with another K (None: as it was run), by replays of its
    texts' own steps. Not in the scale of ``cell.measured``: two replays have the costs' mistakes in common.

    Example: ``cell.measured * expected_speedup(cell, costs, 2) / expected_speedup(cell, costs)``
    """
    replay = Replay(costs, strategy_of(cell.arm))
    return exp(
        fmean(
            replay.gains([trace if k is None else trace.with_k(k) for trace in unit.traces], unit.prompts)[0]
            for unit in cell.units
        )
    )


def speedups_by_k(cell: CheckedCell, costs: Costs) -> dict[int, float]:
    """Return the speedup over plain of each of ``KS`` below the widest step of a cell: of 0, plain decoding, it is 1.

    A strategy with another K is expected to be as much faster than it was measured as the replay of its own steps
    with that K is faster than their replay as they were. A tree is proposed whole, and has no other K.
    """
    traces = [trace for unit in cell.units for trace in unit.traces]
    widest = max(step.proposed for trace in traces for step in trace.steps)
    if any(trace.branched for trace in traces):
        return {0: 1.0}
    now = expected_speedup(cell, costs)
    return {0: 1.0} | {k: cell.measured * expected_speedup(cell, costs, k) / now for k in KS if 0 < k < widest}


def recommended(cells: Sequence[CheckedCell], costs: Costs) -> Recommendation:
    """Return the fastest of the cells of one text and batch, as run or with another K, or plain decoding.

    What was not run must be ``WORTH`` times as fast as what was.

    Example: ``recommended([cell], costs).k``
    """
    best = max([PLAIN, *(Recommendation(cell, None, cell.measured) for cell in cells)], key=lambda one: one.expected)
    if best.cell is not None:
        best = replace(best, level=_level_with(best.cell, cells))
    others = [PLAIN]
    for cell in cells:
        speedups = speedups_by_k(cell, costs)
        if k := fastest_k(speedups):
            others.append(Recommendation(cell, k, speedups[k]))
    other = max(others, key=lambda one: one.expected)
    return other if other.expected > WORTH * best.expected else best


def _level_with(best: CheckedCell, cells: Sequence[CheckedCell]) -> tuple[str, ...] | None:
    """What is not measurably slower than a cell, unit by unit: other cells of its text, and plain decoding."""
    if len(best.units) < FEWEST:
        return None
    gains = {unit.number: unit.gain for unit in best.units}
    others = [(cell.arm.label, {unit.number: unit.gain for unit in cell.units}) for cell in cells if cell is not best]
    level = []
    for name, theirs in [*others, ("plain decoding", dict.fromkeys(gains, 0.0))]:
        over = estimate({"": [gain - theirs[number] for number, gain in gains.items() if number in theirs] or [0.0]})
        if SpeedVerdict(over).label != "faster":
            level.append(name)
    return tuple(level)


def recommended_by_text(cells: Sequence[CheckedCell], costs: Costs) -> dict[Setting, Recommendation]:
    """Return the recommendation for each text and batch of cells that share their costs. Strategies that replay plain's
    output are left out."""
    groups: dict[Setting, list[CheckedCell]] = defaultdict(list)
    for cell in cells:
        if not any(unit.replays for unit in cell.units):
            groups[cell.arm.setting].append(cell)
    return {setting: recommended(mine, costs) for setting, mine in groups.items()}
