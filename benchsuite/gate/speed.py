"""Levels 1 to 3: compare the times of launches, in two stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, isinf, log, log1p
from statistics import fmean

from benchsuite.gate.record import BESIDE, CALL, DECODE, FIRST, MEANS, STARTS, STEPS, WHOLE, GatedRow, Launch, Record
from benchsuite.gate.shift import Shift, holm, paired, unpaired
from benchsuite.gate.sides import Sides
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.gate.where import where

FIRST_LEVEL = 1 / 32
"""The level of the first stage's bounds: the smallest p-value that five signed ranks can have."""

PLAINLY = {
    DECODE: "seconds per token",
    FIRST: "seconds to the first token",
    WHOLE: "seconds from prompt to last token",
    CALL: "seconds a call",
}
WORDS = {
    **PLAINLY,
    **{MEANS[figure]: f"{PLAINLY[figure]}, as a mean over the passes after the first" for figure in (DECODE, FIRST)},
    **{STARTS[figure]: f"{PLAINLY[figure]} in the first pass" for figure in STARTS},
    MEANS[CALL]: "seconds a call, as a mean over the rounds",
    STEPS: "forwards per emitted token",
}
"""Each figure in a sentence."""

CALLS = (CALL, MEANS[CALL])
UNRELATED = (*CALLS, STEPS)
"""Figures that are compared as they are, and not over a control's or by the clock."""

BEGINS = (FIRST, MEANS[FIRST], STARTS[FIRST])

GONE = -0.75
"""A gain beyond this is flagged: work that is gone, or fails early, is the commonest reason."""

LOOK = ", which few repairs do: look whether it still does what it measured"

PROMPT = 5
"""A single prompt is named if it alone got slower by more than this many tolerances."""


@dataclass(frozen=True)
class Subject:
    """What is judged: a figure of a row, relative to its control's or, if ``alone``, by the clock.

    ``coarse``: the figure's noise is that of a whole launch or of a few runs, so that only a slowdown far beyond the
    tolerance can be told.
    """

    row: str
    figure: str
    alone: bool = False
    coarse: bool = False

    @property
    def figure_name(self) -> str:
        """The figure as tables and files name it."""
        by_the_clock = self.coarse and self.alone and self.figure not in UNRELATED
        return f"{self.figure} by the clock" if by_the_clock else self.figure

    @property
    def family(self) -> tuple[str, bool, bool]:
        """Cases of one family share the chance of a false alarm."""
        return self.figure, self.alone, self.coarse


@dataclass(frozen=True)
class Tolerances:
    """The slowdowns let through, as fractions: of each row's ``s/token`` and ``E2E``, of every ``TTFT``, of everything
    that is ``coarse``, and of every ``steps/token``."""

    rows: Mapping[str, float]
    first: float
    coarse: float
    acceptance: float = 0.025

    def of(self, case: Subject) -> float:
        """The tolerance of a case: a row's own, and not less than what the figure's noise allows."""
        if case.figure == STEPS:
            return self.acceptance
        least = (self.coarse if case.coarse else 0.0, self.first if case.figure in BEGINS else 0.0)
        return max(self.rows[case.row], *least)


@dataclass(frozen=True)
class Side:
    """One side of a case: of each launch, the value of each prompt in logarithms, and the launch."""

    prompts: Sequence[Sequence[float]]
    launches: Sequence[Launch]

    @property
    def values(self) -> list[float]:
        """The compared value of each launch: the mean over its prompts."""
        return [fmean(values) for values in self.prompts]


def cases(name: str, row: GatedRow, level: int) -> list[Subject]:
    """What a level judges of a row; empty if its launches have nothing that can be compared at this level."""
    figures = [figure for figure in WORDS if all(figure in launch.times for launch in row.launches)]
    if not row.launches or not level:
        return []
    coarse = {figure for figure in figures if row.peer or figure in BESIDE}
    if level == 3 or (row.digest is None and not row.peer):
        return [Subject(name, figure, alone=True, coarse=figure in coarse) for figure in figures if level > 1]
    related = [figure for figure in figures if _side(row, Subject(name, figure))]
    found = [Subject(name, figure, coarse=figure in coarse) for figure in related]
    if level == 2 and row.digest == row.plain_digest and not row.counters.get("num_drafts"):
        # Plain decoding is in every other row's time: what strikes it and them alike shows on the clock alone. A peer
        # may have no control.
        found += [Subject(name, figure, alone=True, coarse=True) for figure in figures if figure != WHOLE]
    if not row.deterministic and all(launch.steps for launch in row.launches):
        # Counters of a controller that reads the clock differ from launch to launch, so that level 0 compares none.
        found.append(Subject(name, STEPS, alone=True))
    return found


def _side(row: GatedRow, case: Subject) -> Side | None:
    """The launches' values of a case; None if a launch lacks them."""
    found: list[Sequence[float]] = []
    for launch in row.launches:
        if case.figure == STEPS:
            if launch.steps is None:
                return None
            found.append([log(value) for value in launch.steps.per_token])
            continue
        times = launch.times.get(case.figure)
        values = None if times is None else [log(s) for s in times.seconds] if case.alone else times.relative
        if values is None:
            return None
        found.append(values)
    return Side(found, row.launches)


def decide(
    sides: Mapping[Subject, tuple[Side, Side]],
    tolerances: Tolerances,
    alpha: float,
    final: bool,
    live: bool,
) -> dict[Subject, tuple[GateVerdict, Shift]]:
    """Judge cases (base, head) that were measured in the same launches; ``live``: the launches come in pairs.

    REGRESSED, in the last stage only: the estimate is above the tolerance and the exact test rejects "no slower" at
    ``alpha``, with Holm's correction over the cases of a family. IMPROVED: the same in the other direction. PASS: the
    estimate is not above the tolerance, in the first stage also not below minus the tolerance, and a slowdown of twice
    the tolerance is excluded (level 1/32 in the first stage, ``alpha`` in the last). COARSE, of coarse cases: the same
    without the latter. INCONCLUSIVE: everything else; in the first stage it leads to the second. A coarse case is never
    IMPROVED.
    """
    bound = alpha if final else FIRST_LEVEL
    shifts = {case: shift_of(*both, live, bound) for case, both in sides.items()}
    slower, faster = set[Subject](), set[Subject]()
    for family in {case.family for case in shifts} if final else ():
        members = {case: shift for case, shift in shifts.items() if case.family == family}
        slower |= holm({case: shift.p_more for case, shift in members.items()}, alpha)
        faster |= holm({case: shift.p_less for case, shift in members.items()}, alpha)
    found = {}
    for case, shift in shifts.items():
        tolerance = log1p(tolerances.of(case))
        if case in slower and shift.estimate > tolerance:
            verdict = GateVerdict.REGRESSED
        elif case in faster and shift.estimate < -tolerance and not case.coarse:
            verdict = GateVerdict.IMPROVED
        elif shift.estimate > tolerance or not (final or case.coarse or shift.estimate >= -tolerance):
            verdict = GateVerdict.INCONCLUSIVE
        elif shift.high < 2 * tolerance:
            verdict = GateVerdict.PASS
        elif case.coarse:
            verdict = GateVerdict.COARSE
        else:
            verdict = GateVerdict.INCONCLUSIVE
        found[case] = verdict, shift
    return found


def slower_prompts(
    sides: Mapping[Subject, tuple[Side, Side]], tolerances: Tolerances, alpha: float, final: bool, live: bool
) -> dict[Subject, tuple[GateVerdict, int, Shift]]:
    """For each case, the prompt that alone got slower by more than ``PROMPT`` tolerances, if there is one: its place
    from 0, the one with the largest estimate.

    A mean over many prompts may hide one. REGRESSED if, in the last stage, the exact test rejects "no slower" at
    ``alpha`` with Holm's correction over all prompts of all cases; else INCONCLUSIVE.
    """
    shifts: dict[tuple[Subject, int], Shift] = {}
    for case, both in sides.items():
        counts = {len(prompts) for side in both for prompts in side.prompts}
        if len(counts) == 1:
            for place in range(min(counts)):
                one = [Side([[prompts[place]] for prompts in side.prompts], side.launches) for side in both]
                shifts[case, place] = shift_of(one[0], one[1], live, alpha if final else FIRST_LEVEL)
    rejected = holm({at: shift.p_more for at, shift in shifts.items()}, alpha) if final else set()
    found: dict[Subject, tuple[GateVerdict, int, Shift]] = {}
    for (case, place), shift in sorted(shifts.items(), key=lambda entry: entry[1].estimate):
        if shift.estimate > log1p(PROMPT * tolerances.of(case)):
            sure = (case, place) in rejected
            found[case] = GateVerdict.REGRESSED if sure else GateVerdict.INCONCLUSIVE, place, shift
    return found


def shift_of(base: Side, head: Side, live: bool, bound: float) -> Shift:
    """How much longer head takes, in logarithms: by pairs of launches if ``live``, else by all differences."""
    if live:
        return paired([b - a for a, b in zip(base.values, head.values, strict=True)], bound)
    return unpaired(base.values, head.values, bound)


def percent(bound: float) -> str:
    """A change as text; ``any`` for an infinite bound."""
    return "any" if isinf(bound) else f"{bound:+z.1%}"


def staged(sides: Sides, level: int, tolerances: Tolerances, alpha: float, launches: tuple[int, int]) -> list[Finding]:
    """Judge the rows in ``tolerances.rows``: by the first stage if it decides all of them, else by the second.

    Every row must have something to compare at this level (``cases``).
    """
    first, more = launches
    found: list[Finding] = []
    for count in (first, first + more) if more else (first,):
        base, head = sides.at_least(count)
        found = list(_stage(base, head, level, tolerances, alpha, count == first + more, sides.paired and level != 1))
        if not any(finding.verdict == GateVerdict.INCONCLUSIVE for finding in found):
            break
    return found


def _stage(
    base: Record, head: Record, level: int, tolerances: Tolerances, alpha: float, final: bool, live: bool
) -> Iterator[Finding]:
    timed: dict[Subject, tuple[Side, Side]] = {}
    for name in tolerances.rows:
        before, now = base.rows[name], head.rows.get(name)
        for case in cases(name, before, level):
            both = _side(before, case), _side(now, case) if now else None
            if both[0] and both[1]:
                timed[case] = both[0], both[1]
            else:
                yield Finding(name, level, GateVerdict.ERROR, _lacking(now, case), case.figure_name)
    single = {case: both for case, both in timed.items() if case.figure == DECODE and not case.coarse}
    prompts = slower_prompts(single, tolerances, alpha, final, live)
    bound = alpha if final else FIRST_LEVEL
    for case, (verdict, shift) in decide(timed, tolerances, alpha, final, live).items():
        row = base.rows[case.row]
        told = _told(case, level, row, verdict, shift, timed[case], tolerances.of(case), bound)
        if verdict == GateVerdict.IMPROVED and not case.alone:
            told = _doubted(told, row, case, level, base, head, bound)
        if verdict == GateVerdict.REGRESSED and row.peer and row.control == "plain" and not case.alone:
            told = _blamed(told, row, case, level, base, head, bound, tolerances.of(case))
        if case in prompts and verdict in (GateVerdict.PASS, GateVerdict.IMPROVED):
            worse, place, own = prompts[case]
            message = (
                f"prompt {place + 1} of {len(timed[case][0].prompts[0])} alone takes {expm1(own.estimate):+z.1%} "
                f"{WORDS[case.figure]} ({percent(_fraction(own.low))} to {percent(_fraction(own.high))}); over all "
                f"prompts {told.message}"
            )
            told = replace(told, verdict=worse, message=message)
        yield told


def _lacking(now: GatedRow | None, case: Subject) -> str:
    if now and case.figure in BESIDE and all(case.figure not in launch.times for launch in now.launches):
        return "the base has it and this run not: time as many passes, with the base's --gate-pairs and prompts"
    return "its test failed in a launch"


def _fraction(logarithm: float) -> float:
    return logarithm if isinf(logarithm) else expm1(logarithm)


def _told(
    case: Subject,
    level: int,
    row: GatedRow,
    verdict: GateVerdict,
    shift: Shift,
    sides: tuple[Side, Side],
    tolerance: float,
    bound: float,
) -> Finding:
    change, low, high = map(_fraction, (shift.estimate, shift.low, shift.high))
    base, head = (side.launches for side in sides)
    alone = "" if case.figure in UNRELATED else " by the clock"
    beside = alone if case.alone else f", over {row.control}'s"
    message = (
        f"{change:+z.1%} {WORDS[case.figure]}{beside} ({percent(low)} to {percent(high)}, each bound at {bound:.2g}; "
        f"{len(base)} and {len(head)} launches)"
    )
    gone = verdict == GateVerdict.IMPROVED and change < GONE
    if gone and row.digest is None:
        verdict = GateVerdict.INCONCLUSIVE
        message += f": its work may be gone{LOOK}; --gate-inconclusive=report lets it through"
    else:
        message += {
            GateVerdict.REGRESSED: f", beyond the tolerance of {tolerance:.1%}",
            GateVerdict.IMPROVED: f"{LOOK if gone else ''}; write the gain down with --gate-update",
            GateVerdict.PASS: f"; a slowdown of {2 * tolerance:.1%} is excluded",
            GateVerdict.COARSE: f": not beyond the tolerance of {tolerance:.1%}, but one of {2 * tolerance:.1%} is not "
            "excluded",
            GateVerdict.INCONCLUSIVE: f": too noisy to exclude a slowdown of {2 * tolerance:.1%} or to prove one of "
            f"{tolerance:.1%}; more --gate-pairs, more --gate-launches or a quieter machine decides",
        }.get(verdict, "")
    moved = where(base, head, case.figure) if row.peer or not case.alone else None
    if case.figure == STEPS:
        moved = f"acceptance {100 * change:+z.1f} %"
    return Finding(case.row, level, verdict, message, case.figure_name, change, low, high, moved, len(head))


def _doubted(
    told: Finding, row: GatedRow, case: Subject, level: int, base: Record, head: Record, bound: float
) -> Finding:
    """A gain over a control is one only if the row's own seconds fell: a slower control looks the same."""
    alone = replace(case, alone=True)
    before, now = _side(row, alone), _side(head.rows[case.row], alone)
    assert before is not None
    assert now is not None
    if level == 2:
        own = expm1(shift_of(before, now, True, bound).estimate)
        if own < 0:
            return told
        why = f"; its own seconds changed by {own:+z.1%}: {row.control} got slower, and this row no faster"
    elif row.control == "plain":
        why = "; plain got slower or this row faster, which this level cannot tell apart: gate against a revision"
    else:
        return told
    kept = told.message.removesuffix("; write the gain down with --gate-update")
    return replace(told, verdict=GateVerdict.PASS, message=kept + why)


def _blamed(
    told: Finding, row: GatedRow, case: Subject, level: int, base: Record, head: Record, bound: float, tolerance: float
) -> Finding:
    """A peer is to blame for a loss over plain decoding only if its own seconds rose: where this code makes plain
    faster, every peer looks slower."""
    alone = replace(case, alone=True)
    before, now = _side(row, alone), _side(head.rows[case.row], alone)
    assert before is not None
    assert now is not None
    own = expm1(shift_of(before, now, level == 2, bound).estimate)
    if own > tolerance:
        return told
    why = f"; its own seconds changed by {own:+z.1%}: {row.control} got faster, and this row not slower"
    return replace(told, verdict=GateVerdict.COARSE, message=told.message + why, where=None)
