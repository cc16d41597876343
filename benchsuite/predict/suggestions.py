"""Suggestions: the change that would help a row most, and what it would then be, in one sentence."""

from __future__ import annotations

from statistics import fmean

from benchsuite.predict.checked import CheckedCell
from benchsuite.predict.costs import Costs, strategy_of
from benchsuite.predict.prediction import needed_acceptance
from benchsuite.predict.recommendation import WORTH, expected_speedup, recommended
from benchsuite.predict.traces import reached


def suggestion(cell: CheckedCell, costs: Costs) -> str:
    """Return the change of a row that would help most: the recommended K, a draft of half the cost, or the acceptance
    that it would need. Speedups are the measured one, and what replays of the row's own texts make of it.

    Example: ``drafting costs 0.31 of a forward: a draft half as expensive would give 1.40x, not 1.22x``
    """
    name, rows = strategy_of(cell.arm), cell.arm.setting.batch
    traces = [trace for unit in cell.units for trace in unit.traces]
    length = fmean(size + unit.prompts.tokens / 2 for unit in cell.units for size in unit.prompts.lengths)
    steps = [step for trace in traces for step in trace.steps]
    widest = max(step.proposed for step in steps)
    if not widest:
        return "no token was proposed"
    now, forward = cell.measured, costs.verify(1, rows, length)
    half = now * expected_speedup(cell, costs.cheaper(name, 0.5)) / expected_speedup(cell, costs)
    best = recommended([cell], costs)
    if (best.k or best.cell is None) and best.expected >= half:
        wide = costs.verify(widest + 1, rows, length, name) / forward
        instead = f"K = {best.k} would give {best.expected:.2f}x" if best.k else "plain decoding is faster, 1.00x"
        return f"a window of {widest + 1} costs {wide:.2f} forwards at batch {rows}: {instead}, not {now:.2f}x"
    proposing = [step.proposed for step in steps if step.asked]
    drafting = costs.strategies[name].draft(rows, length, round(fmean(proposing)))
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
