"""Advice from a run's own cells: the fastest strategy of each text, also with a K that was not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean

from benchsuite.measure.arms import Setting
from benchsuite.predict.checked import CheckedCell
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.prediction import Replay

KS_TRIED = (1, 2, 3, 4, 6, 8, 12)
"""Other K that a strategy's steps are replayed with."""

WORTH = 1.03
"""Least factor by which a K that was not run must be faster to be named."""


@dataclass(frozen=True)
class AtHand:
    """What to use for a text at one batch. ``k``: the K that is expected to be best, None for the strategy as it was
    run; ``measured``: its speedup as it was run, ``expected``: with ``k``. ``best`` is None where plain decoding is
    faster."""

    setting: Setting
    best: CheckedCell | None
    k: int | None
    expected: float

    def __str__(self) -> str:
        """Example: ``chat, batch 1: eagle with K = 2, 1.48x expected (1.39x as run)``"""
        where = f"{self.setting.workload}, batch {self.setting.batch}"
        if self.best is None:
            return f"{where}: plain decoding"
        name, ran = self.best.arm.label, f"{self.best.measured:.2f}x"
        if self.k is None:
            return f"{where}: {name} as run, {ran}"
        return f"{where}: {name} with K = {self.k}, {self.expected:.2f}x expected ({ran} as run)"


def advice_at_hand(cells: Sequence[CheckedCell], costs: Costs) -> list[AtHand]:
    """Return the advice for each text and batch of the cells, which must share their costs.

    A strategy with another K is expected to be as much faster than it was measured as the replay of its own steps
    with that K is faster than their replay as they were. Strategies that replay plain's output are left out.
    """
    groups: dict[Setting, list[CheckedCell]] = defaultdict(list)
    for cell in cells:
        if not any(unit.replays for unit in cell.units):
            groups[cell.arm.setting].append(cell)
    found = []
    for setting, mine in groups.items():
        best = AtHand(setting, None, None, 1.0)
        for cell in mine:
            if cell.measured > best.expected:
                best = AtHand(setting, cell, None, cell.measured)
        for cell in mine:
            for k, expected in _with_other_ks(cell, costs):
                if expected > best.expected * (WORTH if best.k is None else 1.0):
                    best = AtHand(setting, cell, k, expected)
        found.append(best)
    return found


def _with_other_ks(cell: CheckedCell, costs: Costs) -> list[tuple[int, float]]:
    replay = Replay(costs, strategy_of(cell.arm))
    widest = max(step.proposed for unit in cell.units for trace in unit.traces for step in trace.steps)
    if any(trace.branched for unit in cell.units for trace in unit.traces):
        return []

    def gain(k: int | None) -> float:
        return fmean(
            replay.gains([trace if k is None else trace.with_k(k) for trace in unit.traces], unit.prompts)[0]
            for unit in cell.units
        )

    now = gain(None)
    return [(k, cell.measured * exp(gain(k) - now)) for k in KS_TRIED if k < widest]
