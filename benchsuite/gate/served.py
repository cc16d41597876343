"""The gate over servers: figures of each under each load, judged by groups of requests. Independent of pytest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb, expm1, inf, log1p
from typing import Literal

from benchsuite.gate.record import DECODE, FIRST, STEPS, WHOLE
from benchsuite.gate.shift import Shift, holm
from benchsuite.gate.speed import GONE, LOOK, percent
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.measure.interval import FEWEST, LogMean, student, student_central

LOST = "goodput lost"
"""Beside the figures of other rows, the share of the requests within the limits that is lost. ``STEPS`` are, of a
server, the reciprocal of its acceptance length."""

ANSWERS, OUTPUTS, SPECULATION = "answers", "outputs", "speculation"
"""What is judged beside the figures: whether requests are answered, by which texts, and whether drafts are made."""

SERVED: Mapping[str, str] = {
    STEPS: "forwards a token",
    DECODE: "seconds per token",
    FIRST: "seconds to the first token",
    WHOLE: "seconds from prompt to last token",
    LOST: "of the requests within the limits lost",
}
"""Each figure in a sentence."""

TIMES = (DECODE, FIRST, WHOLE, LOST)
"""Figures that the clock makes."""


@dataclass(frozen=True)
class ServedTolerances:
    """What is let through, as fractions: of seconds per token and to the end, of those to the first token, of forwards
    a token, and of requests within the limits. ``coarse``: the least for times where they are of whole launches."""

    times: float = 0.05
    first: float = 0.1
    forwards: float = 0.025
    lost: float = 0.15
    coarse: float = 0.0

    def of(self, figure: str) -> float:
        """The tolerance of a figure."""
        own = {FIRST: self.first, STEPS: self.forwards, LOST: self.lost}.get(figure, self.times)
        return max(own, self.coarse) if figure in TIMES else own


@dataclass(frozen=True)
class ServedRow:
    """What is known of one server under one load beside its base.

    ``figures``: the means of logs of its costs over the base's. ``left``: figures that cannot be judged, and why;
    ``unsure``: those that could be and are not, and why, which is INCONCLUSIVE. ``lengths``: both acceptance lengths,
    the base's first. ``silent``: why a server that should speculate is taken not to; ``certain``: whether it is known.
    ``worse`` and ``better``: requests that this server alone, or the base alone, answered poorly, and the ``kinds`` of
    this server's. ``from_first``: the part of a longer answer that came before its first piece. ``tolerance``: of
    seconds per token and to the end, where the test has its own.
    """

    name: str
    figures: Mapping[str, LogMean]
    left: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, str] = field(default_factory=dict)
    lengths: tuple[float, float] | None = None
    silent: str = ""
    certain: bool = True
    worse: int = 0
    better: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    from_first: float | None = None
    tolerance: float | None = None


def shift_of_mean(mean: LogMean, level: float) -> Shift:
    """The shift that Student's t makes of a mean: one-sided bounds at ``level``, and p-values.

    Without any spread, as of greedy counts that repeat, the mean is exact.

    Example: ``shift_of_mean(LogMean(0.1, 0.02, 20, 21), 0.01)`` has low 0.049 and p_more 3e-5.
    """
    half = student(1 - 2 * level, mean.degrees) * mean.error
    more = _beyond(mean.mean, mean.error, mean.degrees)
    less = _beyond(-mean.mean, mean.error, mean.degrees)
    return Shift(mean.mean, mean.mean - half, mean.mean + half, more, less)


def _beyond(value: float, error: float, degrees: float) -> float:
    """P(T >= value / error): of a mean that is no larger than 0."""
    if value == 0:
        return 0.5 if error else 1.0
    far = abs(value) / error if error > abs(value) * 1e-9 else inf
    tail = 0.0 if far == inf else (1 - student_central(far, degrees)) / 2
    return tail if value > 0 else 1 - tail


Case = tuple[str, str]
"""The name of a row, and a figure."""


def decide_served(
    rows: Sequence[ServedRow], tolerances: ServedTolerances, alpha: float
) -> dict[Case, tuple[GateVerdict, Shift]]:
    """Judge every figure of every row.

    REGRESSED: the mean is beyond the tolerance, and Student's t rejects "no worse" at ``alpha``, with Holm's correction
    over all figures of all rows. IMPROVED: the mirror image. PASS: not beyond the tolerance, and twice of it is
    excluded. INCONCLUSIVE: anything else; COARSE in its place where times are coarse and not beyond the tolerance.
    """
    shifts = {(row.name, figure): shift_of_mean(mean, alpha) for row in rows for figure, mean in row.figures.items()}
    own = {row.name: row.tolerance for row in rows}
    worse = holm({case: shift.p_more for case, shift in shifts.items()}, alpha)
    better = holm({case: shift.p_less for case, shift in shifts.items()}, alpha)
    found = {}
    for case, shift in shifts.items():
        tolerance = tolerance_of(case[1], tolerances, own[case[0]])
        tolerance = tolerance if case[1] == LOST else log1p(tolerance)  # a share that is lost is no logarithm
        coarse = bool(tolerances.coarse) and case[1] in TIMES
        if shift.estimate > tolerance:
            verdict = GateVerdict.REGRESSED if case in worse else GateVerdict.INCONCLUSIVE
        elif case in better and shift.estimate < -tolerance and not coarse:
            verdict = GateVerdict.IMPROVED
        elif shift.high < 2 * tolerance:
            verdict = GateVerdict.PASS
        else:
            verdict = GateVerdict.COARSE if coarse else GateVerdict.INCONCLUSIVE
        found[case] = verdict, shift
    return found


def tolerance_of(figure: str, tolerances: ServedTolerances, own: float | None) -> float:
    """The tolerance of a figure, where a test may have its ``own`` of times per token and to the end."""
    return max(own, tolerances.coarse) if own and figure in (DECODE, WHOLE) else tolerances.of(figure)


def served_findings(
    rows: Sequence[ServedRow], tolerances: ServedTolerances, alpha: float, level: int = 2, over: str = ""
) -> list[Finding]:
    """The findings on every row: its figures, what could not be judged, its answers and its drafts.

    ``level``: of times; counts are at level 0. ``over``: what times are relative to in their own run.
    """
    decided = decide_served(rows, tolerances, alpha)
    found = list[Finding]()
    for row in rows:
        found += _poor(row, alpha)
        if row.silent:
            verdict = GateVerdict.REGRESSED if row.certain else GateVerdict.INCONCLUSIVE
            found.append(Finding(row.name, 0, verdict, row.silent, SPECULATION, where="speculation"))
        for figure, why in row.unsure.items():
            at = level if figure in TIMES else 0
            found.append(Finding(row.name, at, GateVerdict.INCONCLUSIVE, f"{SERVED[figure]}: {why}", figure))
        told = [_told(row, figure, *decided[row.name, figure], tolerances, alpha, over) for figure in row.figures]
        found += [one if one.figure == STEPS else replace(one, level=level) for one in _weighed(told)]
    return found


def _poor(row: ServedRow, alpha: float) -> Iterator[Finding]:
    """The finding on requests that this server alone did not answer well: never a pass."""
    if row.worse <= row.better:
        return
    n = row.worse + row.better
    p = sum(comb(n, k) for k in range(row.worse, n + 1)) / 2**n
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(row.kinds.items()))
    verdict = GateVerdict.REGRESSED if p <= alpha else GateVerdict.INCONCLUSIVE
    message = (
        f"{row.worse} requests have an answer that counts from the base alone, {row.better} from this server alone "
        f"(p={p:.2g}); of its requests {kinds}"
    )
    yield Finding(row.name, 0, verdict, message, ANSWERS, where="answers")


def _told(
    row: ServedRow,
    figure: str,
    verdict: GateVerdict,
    shift: Shift,
    tolerances: ServedTolerances,
    alpha: float,
    over: str,
) -> Finding:
    change, low, high = (value if figure == LOST else expm1(value) for value in (shift.estimate, shift.low, shift.high))
    tolerance = tolerance_of(figure, tolerances, row.tolerance)
    own = ""
    if figure == STEPS and row.lengths:
        own = f"acceptance length {row.lengths[0]:.2f} to {row.lengths[1]:.2f}, "
    beside = f", over {over}'s" if over and figure in TIMES else ""
    units = row.figures[figure].units
    message = (
        f"{own}{change:+z.1%} {SERVED[figure]}{beside} ({percent(low)} to {percent(high)}, each bound at {alpha:.2g}; "
        f"{units} units)"
    )
    gone = verdict == GateVerdict.IMPROVED and change < GONE
    message += {
        GateVerdict.REGRESSED: f", beyond the tolerance of {tolerance:.1%}",
        GateVerdict.IMPROVED: LOOK if gone else "",
        GateVerdict.PASS: f"; {2 * tolerance:.1%} more is excluded",
        GateVerdict.COARSE: f": not beyond the tolerance of {tolerance:.1%}, but {2 * tolerance:.1%} is not excluded",
        GateVerdict.INCONCLUSIVE: f": too noisy to exclude {2 * tolerance:.1%} or to prove {tolerance:.1%}; more "
        "--specdec-prompts, --specdec-pairs or a quieter machine decides",
    }.get(verdict, "")
    place = None if verdict in (GateVerdict.PASS, GateVerdict.COARSE) else place_of(row, figure)
    return Finding(row.name, 0, verdict, message, figure, change, low, high, place, units)


def _weighed(told: Sequence[Finding]) -> list[Finding]:
    """The findings of a row, where a longer acceptance is a gain only if a token takes less time, too."""
    by = {one.figure: one for one in told}
    forwards, seconds = by.get(STEPS), by.get(DECODE)
    if forwards and seconds and forwards.verdict == GateVerdict.IMPROVED and seconds.verdict != GateVerdict.IMPROVED:
        said = f"{forwards.message}; a token takes no less time ({seconds.change:+z.1%}): each forward got dearer"
        told = [replace(one, verdict=GateVerdict.PASS, message=said) if one is forwards else one for one in told]
    if forwards and seconds and forwards.verdict == GateVerdict.REGRESSED and seconds.verdict == GateVerdict.IMPROVED:
        said = f"{forwards.message}; a token takes less time all the same ({seconds.change:+z.1%})"
        told = [replace(one, message=said) if one is forwards else one for one in told]
    return [*told]


Place = Literal["prefill", "acceptance", "engine"]


def place_of(row: ServedRow, figure: str) -> str | None:
    """Where a figure of a row changed: ``prefill``, before the first token; ``acceptance``, fewer tokens a forward;
    ``speculation``, no drafts any more; ``answers``, requests without one; or ``engine``, what a forward takes (its
    draft, verification and host, which a server does not time apart).

    Example: ``"acceptance +5.3 %"``
    """
    forwards, seconds = row.figures.get(STEPS), row.figures.get(DECODE)
    if figure == STEPS:
        return "acceptance"
    if figure == FIRST or (figure in (WHOLE, LOST) and row.from_first is not None and row.from_first > 0.5):
        return "prefill"
    if figure == LOST and row.worse > row.better:
        return ANSWERS
    if row.silent:
        return SPECULATION
    if seconds is None:
        return None
    parts: dict[Place, float] = {"engine": seconds.mean}
    if forwards is not None:
        parts = {"acceptance": forwards.mean, "engine": seconds.mean - forwards.mean}
    most = max(parts, key=lambda part: abs(parts[part]))
    return f"{most} {100 * expm1(parts[most]):+z.1f} %"


def output_finding(server: str, state: str, said: str) -> Finding:
    """The finding on a server's outputs, by the ``state`` of its certificate and its first line."""
    verdict = {"certified": GateVerdict.PASS, "bug": GateVerdict.REGRESSED}.get(state, GateVerdict.INCONCLUSIVE)
    return Finding(f"{server}-{OUTPUTS}", 0, verdict, said, OUTPUTS, where=None if state == "certified" else "output")


def too_few(groups: int, rounds: int) -> bool:
    """Whether so many groups of requests and rounds make no interval."""
    return groups < FEWEST and rounds < FEWEST
