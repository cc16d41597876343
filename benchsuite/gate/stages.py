"""Two stages: few launches first, and more only if they do not decide."""

from __future__ import annotations

from collections.abc import Mapping

from benchsuite.gate import speed
from benchsuite.gate.sides import Sides
from benchsuite.gate.verdict import Finding, Verdict


def staged(
    sides: Sides, level: int, tolerances: Mapping[str, float], alpha: float, launches: tuple[int, int]
) -> list[Finding]:
    """Findings of the rows that ``tolerances`` names, from the first stage if it decides all of them, else the second.

    Every row must have something to compare at this level (``speed.values``).
    """
    first, more = launches
    found: list[Finding] = []
    for count in (first, first + more) if more else (first,):
        base, head = sides.at_least(count)
        found, timed = [], {}
        for name in tolerances:
            before, now = base.rows[name], head.rows.get(name)
            values = speed.values(before, level), speed.values(now, level) if now else None
            if now and values[0] and values[1]:
                timed[name] = speed.Side(values[0], before.launches), speed.Side(values[1], now.launches)
            else:
                found.append(Finding(name, level, Verdict.ERROR, "its test failed in a launch"))
        found += speed.decide(timed, level, tolerances, alpha, count == first + more, sides.paired and level != 1)
        if not any(one.verdict == Verdict.INCONCLUSIVE for one in found):
            break
    return found
