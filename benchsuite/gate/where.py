"""Where a change of speed lies: in what is accepted, or in which part of a step."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median

from benchsuite.gate.record import PARTS, Launch


def where(base: Sequence[Launch], head: Sequence[Launch]) -> str | None:
    """The part that moved the time per token most, with how far it moved it; None without parts.

    Seconds per token are seconds per step over tokens per step, so the change of their logarithm is that of each
    part's share of a step and of acceptance (tau), which add up.

    Example: ``"draft +5.8 %"``
    """
    moved = attribution(base, head)
    if not moved:
        return None
    part = max(moved, key=lambda name: abs(moved[name]))
    return f"{part} {100 * moved[part]:+.1f} %"


def attribution(base: Sequence[Launch], head: Sequence[Launch]) -> dict[str, float]:
    """For each part the relative change of time per token that it accounts for; empty without parts."""
    if not all(launch.parts and launch.tau for launch in (*base, *head)):
        return {}
    before, now = ({part: median(launch.parts[part] for launch in side) for part in PARTS} for side in (base, head))
    whole = (sum(before.values()) + sum(now.values())) / 2
    moved = {part: (now[part] - before[part]) / whole for part in PARTS}
    tau_before, tau_now = (median(launch.tau or 1.0 for launch in side) for side in (base, head))
    return {"acceptance": -log(tau_now / tau_before), **moved}
