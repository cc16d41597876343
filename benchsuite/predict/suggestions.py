"""Levers: what a user could change of a row, and what it would then be, in one sentence."""

from __future__ import annotations

from math import exp
from statistics import fmean

from benchsuite.predict.checked import CheckedCell
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.prediction import Replay, needed_acceptance
from benchsuite.predict.traces import reached

WORTH = 1.03
"""Least factor by which a change must raise the speed to be named before what breaks even."""


def lever(cell: CheckedCell, costs: Costs) -> str:
    """Return the change of a row that would help most: another K, a draft of half the cost, or the acceptance that it
    would need. Speedups are those of replays of the row's own texts.

    Example: ``drafting costs 0.31 of a forward: a draft half as expensive would give 1.40x, not 1.22x``
    """
    name, rows = strategy_of(cell.arm), cell.arm.setting.batch
    traces = [trace for unit in cell.units for trace in unit.traces]
    length = fmean(size + unit.prompts.tokens / 2 for unit in cell.units for size in unit.prompts.lengths)
    steps = [step for trace in traces for step in trace.steps]
    widest = max(step.proposed for step in steps)
    if not widest:
        return "no token was proposed"

    def replayed(some: Costs, k: int | None = None) -> float:
        replay = Replay(some, name)
        return exp(
            fmean(
                replay.gains([trace if k is None else trace.with_k(k) for trace in unit.traces], unit.prompts)[0]
                for unit in cell.units
            )
        )

    now = replayed(costs)
    half = replayed(costs.cheaper(name, 0.5))
    shorter = {k: replayed(costs, k) for k in (0, 1, 2, 3, 4, 6, 8, 12) if k < widest}
    best = max(shorter, key=lambda k: shorter[k], default=0)
    forward = costs.verify(1, rows, length)
    if shorter and shorter[best] >= max(WORTH * now, half):
        wide = costs.verify(widest + 1, rows, length, name) / forward
        instead = f"K = {best} would give {shorter[best]:.2f}x" if best else "plain decoding is faster, 1.00x"
        return f"a window of {widest + 1} costs {wide:.2f} forwards at batch {rows}: {instead}, not {now:.2f}x"
    proposing = [step.proposed for step in steps if step.asked]
    drafting = costs.strategies[name].draft(rows, length, round(fmean(proposing))) if proposing else 0.0
    if half >= WORTH * now:
        return (
            f"drafting costs {drafting / forward:.2f} of a forward: a draft half as expensive would give {half:.2f}x, "
            f"not {now:.2f}x"
        )
    first = reached(traces, 1)[1][0]
    needed = needed_acceptance(costs, widest, rows, length, drafting)
    if needed is None:
        return f"K = {widest} cannot break even at batch {rows}; {first:.2f} of first proposals are accepted"
    return f"{first:.2f} of first proposals are accepted; K = {widest} breaks even with {needed:.2f} at every position"
