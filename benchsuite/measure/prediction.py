"""The predicted speedup of a run, from its times and its acceptance, and the part that limits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchsuite.measure.matrix import Arm
from benchsuite.measure.runners import Outcome


def predicted(
    outcomes: Sequence[Outcome], plain: Sequence[Outcome], arm: Arm, measured: float | None
) -> dict[str, Any]:
    """Return the predicted speedup, emitted / sum over steps of v(W) + c K, from times measured in this run.

    The sum covers all steps. It is therefore compared with ``measured``, the ratio of tokens per second over all units,
    not with the median of the units' ratios. Empty if there are no steps or plain ran no step of one slot.
    """
    single = _mean_by_width(p.timed for p in plain)
    steps = [pair for outcome in outcomes for pair in outcome.timed]
    if not steps or 1 not in single:
        return {}
    one_slot = single[1]
    widths = _mean_by_width([steps])
    verify = {width: seconds / one_slot for width, seconds in widths.items()}
    proposals = sum(step.k for step, _ in steps)
    cost = sum(times.draft for _, times in steps) / one_slot / proposals if proposals else None
    emitted = sum(step.emitted / step.rows for step, _ in steps)
    asked = [step for step, _ in steps if step.k]
    target = sum(verify[step.width] for step, _ in steps)
    draft = (cost or 0.0) * proposals
    speedup = emitted / (target + draft)
    found: dict[str, Any] = {
        "draft_cost": cost,
        "verify_cost": sum(verify[step.width] for step in asked) / len(asked) if asked else None,
        "predicted_speedup": speedup,
        "overhead": 1 - measured / speedup if measured else None,
    }
    if not arm.plain and proposals and measured:
        # The speedup if this part alone took no time; the part with the largest gain is the limit.
        perfect = sum(step.width for step, _ in steps)
        freed = {
            "acceptance": perfect / (target + draft),
            "verification": emitted / (len(steps) + draft),
            "drafting": emitted / target,
            "overhead": speedup / measured * speedup,
        }
        found["limited_by"] = max(freed, key=lambda part: freed[part])
    return found


def _mean_by_width(runs: Any) -> dict[int, float]:
    seconds: dict[int, list[float]] = {}
    for run in runs:
        for step, times in run:
            seconds.setdefault(step.width, []).append(times.target)
    return {width: sum(values) / len(values) for width, values in seconds.items()}
