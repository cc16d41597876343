"""Levels 1 to 3: compare the times of launches, in two stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import expm1, isinf, log, log1p

from benchsuite.gate.record import GatedRow, Launch
from benchsuite.gate.shift import Shift, holm, paired, unpaired
from benchsuite.gate.sides import Sides
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.gate.where import where

FIRST_LEVEL = 1 / 32
"""The level of the first stage's bounds: the smallest p-value that five signed ranks can have."""


@dataclass(frozen=True)
class Side:
    """One side of a row: the compared value of each launch, and the launches."""

    values: Sequence[float]
    launches: Sequence[Launch]


def values(row: GatedRow, level: int) -> list[float] | None:
    """The value of each launch that a level compares: log seconds (level 3, and level 2 of a plain benchmark), else log
    seconds relative to the control. None if a launch has no control."""
    if level == 3 or (level == 2 and row.digest is None):
        return [log(launch.seconds) for launch in row.launches]
    found = [launch.relative for launch in row.launches if launch.relative is not None]
    return found if len(found) == len(row.launches) else None


def decide(
    rows: Mapping[str, tuple[Side, Side]],
    level: int,
    tolerances: Mapping[str, float],
    alpha: float,
    final: bool,
    live: bool,
) -> list[Finding]:
    """Judge rows (base, head) that were measured in the same launches; ``live``: the launches come in pairs.

    REGRESSED, in the last stage only: the estimate is above the tolerance and the exact test rejects "no slower" at
    ``alpha``, with Holm's correction over the rows. IMPROVED: the same in the other direction. PASS: the estimate is
    not above the tolerance, in the first stage also not below minus the tolerance, and a slowdown of twice the
    tolerance is excluded (level 1/32 in the first stage, ``alpha`` in the last). INCONCLUSIVE: everything else; in the
    first stage it leads to the second.
    """
    bound = alpha if final else FIRST_LEVEL
    shifts = {name: _shift(*sides, live, bound) for name, sides in rows.items()}
    slower = holm({name: shift.p_more for name, shift in shifts.items()}, alpha) if final else set()
    faster = holm({name: shift.p_less for name, shift in shifts.items()}, alpha) if final else set()
    found = []
    for name, shift in shifts.items():
        tolerance = log1p(tolerances[name])
        if name in slower and shift.estimate > tolerance:
            verdict = GateVerdict.REGRESSED
        elif name in faster and shift.estimate < -tolerance:
            verdict = GateVerdict.IMPROVED
        elif (final or shift.estimate >= -tolerance) and shift.estimate <= tolerance and shift.high < 2 * tolerance:
            verdict = GateVerdict.PASS
        else:
            verdict = GateVerdict.INCONCLUSIVE
        found.append(_finding(name, level, verdict, shift, rows[name], tolerances[name], bound))
    return found


def _shift(base: Side, head: Side, live: bool, bound: float) -> Shift:
    if live:
        return paired([b - a for a, b in zip(base.values, head.values, strict=True)], bound)
    return unpaired(base.values, head.values, bound)


def percent(bound: float) -> str:
    """A change as text; ``any`` for an infinite bound."""
    return "any" if isinf(bound) else f"{bound:+.1%}"


def _finding(
    name: str, level: int, verdict: GateVerdict, shift: Shift, sides: tuple[Side, Side], tolerance: float, bound: float
) -> Finding:
    change, low, high = (x if isinf(x) else expm1(x) for x in (shift.estimate, shift.low, shift.high))
    base, head = (side.launches for side in sides)
    message = (
        f"{change:+.1%} seconds per token ({percent(low)} to {percent(high)}, each bound at {bound:.2g}; {len(base)} "
        f"and {len(head)} launches)"
    )
    message += {
        GateVerdict.REGRESSED: f", beyond the tolerance of {tolerance:.1%}",
        GateVerdict.IMPROVED: "; write the gain down with --gate-update",
        GateVerdict.PASS: f", within the tolerance of {tolerance:.1%}",
        GateVerdict.INCONCLUSIVE: f": too noisy to exclude a slowdown of {2 * tolerance:.1%} or to prove one of "
        f"{tolerance:.1%}; more --gate-pairs, more --gate-launches or a quieter machine decides",
    }.get(verdict, "")
    return Finding(name, level, verdict, message, change, low, high, where(base, head), len(head))


def staged(
    sides: Sides, level: int, tolerances: Mapping[str, float], alpha: float, launches: tuple[int, int]
) -> list[Finding]:
    """Judge the rows in ``tolerances``: by the first stage if it decides all of them, else by the second.

    Every row must have something to compare at this level (``values``).
    """
    first, more = launches
    found: list[Finding] = []
    for count in (first, first + more) if more else (first,):
        base, head = sides.at_least(count)
        found, timed = [], {}
        for name in tolerances:
            before, now = base.rows[name], head.rows.get(name)
            compared = values(before, level), values(now, level) if now else None
            if now and compared[0] and compared[1]:
                timed[name] = Side(compared[0], before.launches), Side(compared[1], now.launches)
            else:
                found.append(Finding(name, level, GateVerdict.ERROR, "its test failed in a launch"))
        found += decide(timed, level, tolerances, alpha, count == first + more, sides.paired and level != 1)
        if not any(finding.verdict == GateVerdict.INCONCLUSIVE for finding in found):
            break
    return found
