"""Attribute a change of speed to acceptance or to a part of a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median

from benchsuite.gate.record import DECODE, PARTS, Launch


def where(base: Sequence[Launch], head: Sequence[Launch], figure: str = DECODE) -> str | None:
    """The part that changed the time most, and by how much; None without parts.

    Seconds per token are seconds per step divided by tokens per step (tau, acceptance). The change of their logarithm
    is therefore the sum of the changes that acceptance and each part of a step account for.

    Example: ``"draft +5.8 %"``
    """
    moved = attribution(base, head, figure)
    if not moved:
        return None
    part = max(moved, key=lambda name: abs(moved[name]))
    return f"{part} {100 * moved[part]:+z.1f} %"


def attribution(base: Sequence[Launch], head: Sequence[Launch], figure: str = DECODE) -> dict[str, float]:
    """The relative change of the time that each part accounts for; empty without parts."""
    counted = {launch.tau is not None for launch in (*base, *head)}
    if len(counted) > 1 or not all(launch.parts.get(figure) for launch in (*base, *head)):
        return {}
    before, now = (
        {part: median(launch.parts[figure][part] for launch in side) for part in PARTS} for side in (base, head)
    )
    whole = (sum(before.values()) + sum(now.values())) / 2
    moved = {part: (now[part] - before[part]) / whole for part in PARTS}
    if figure != DECODE or counted == {False}:
        return moved
    tau_before, tau_now = (median(launch.tau or 1.0 for launch in side) for side in (base, head))
    return {"acceptance": -log(tau_now / tau_before), **moved}
