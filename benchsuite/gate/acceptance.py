"""Level 0: compare forwards per emitted token, prompt by prompt, of rows whose counters no exact comparison holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import expm1, isinf, log, log1p
from statistics import fmean

from benchsuite.gate.record import STEPS, GatedRow, StepCounts
from benchsuite.gate.shift import Shift, holm, paired
from benchsuite.gate.verdict import Finding, GateVerdict

PLACE = "acceptance"
"""Where a loss of this figure is."""

PROMPT = 5
"""A single prompt is named if it alone got worse by more than this many tolerances."""

Both = tuple[StepCounts, StepCounts]
"""What the base and this run count."""


def comparable_steps(row: GatedRow) -> StepCounts | None:
    """What the first launch of a row counts, if it can be compared with another process's and says anything.

    None if the controller reads the clock, if forwards are not counted, and if every token takes one forward: nothing
    was proposed, or nothing accepted.
    """
    steps = row.launches[0].steps if row.launches and row.deterministic else None
    return steps if steps and any(value != 1.0 for value in steps.per_token) else None


def acceptance_findings(sides: Mapping[str, Both], tolerance: float, coarse: float, alpha: float) -> list[Finding]:
    """The finding on each row, by its name: how many more forwards a token takes, a mean over prompts in logarithms.

    Of the same tokens the counts are exact: REGRESSED beyond the tolerance, or where one prompt alone is beyond
    ``PROMPT`` of them. Of other tokens, as drawn anew, texts are noise: REGRESSED if a signed-rank test over the
    prompts rejects "no more" as well, at ``alpha`` with Holm's correction over these rows; COARSE if not, and
    INCONCLUSIVE beyond the tolerance ``coarse``.
    """
    changes = {name: _changes(both) for name, both in sides.items()}
    drawn = {name: paired(changes[name], alpha) for name, (base, head) in sides.items() if base.text != head.text}
    more = holm({name: shift.p_more for name, shift in drawn.items()}, alpha)
    fewer = holm({name: shift.p_less for name, shift in drawn.items()}, alpha)
    return [
        _drawn(name, drawn[name], len(changes[name]), tolerance, coarse, name in more, name in fewer)
        if name in drawn
        else _exact(name, both, changes[name], tolerance)
        for name, both in sides.items()
    ]


def _changes(both: Both) -> list[float]:
    return [log(now / before) for before, now in zip(*(side.per_token for side in both), strict=True)]


def _exact(name: str, both: Both, changes: Sequence[float], tolerance: float) -> Finding:
    change, worst = fmean(changes), max(changes)
    before, now = (fmean(side.per_token) for side in both)
    message = (
        f"{expm1(change):+z.1%} forwards per emitted token, {before:.3f} before and {now:.3f} now, of equal tokens"
    )
    if change > log1p(tolerance):
        verdict, message = GateVerdict.REGRESSED, f"{message}; beyond the tolerance of {tolerance:.1%}"
    elif worst > log1p(PROMPT * tolerance):
        verdict = GateVerdict.REGRESSED
        place = changes.index(worst) + 1
        message = f"prompt {place} of {len(changes)} alone takes {expm1(worst):+z.1%}; over all prompts {message}"
    elif change < -log1p(tolerance):
        verdict, message = GateVerdict.IMPROVED, f"{message}; write the gain down with --gate-update"
    else:
        verdict = GateVerdict.PASS
    return _finding(name, verdict, message, expm1(change))


def _drawn(name: str, shift: Shift, prompts: int, tolerance: float, coarse: float, more: bool, fewer: bool) -> Finding:
    change, low, high = (x if isinf(x) else expm1(x) for x in (shift.estimate, shift.low, shift.high))
    bounds = " to ".join("any" if isinf(bound) else f"{bound:+z.1%}" for bound in (low, high))
    message = f"{change:+z.1%} forwards per emitted token ({bounds}; {prompts} prompts, whose tokens are others now)"
    if more and change > tolerance:
        verdict, said = GateVerdict.REGRESSED, f", beyond the tolerance of {tolerance:.1%}"
    elif fewer and log1p(change) < -log1p(tolerance):
        verdict, said = GateVerdict.IMPROVED, "; write the gain down with --gate-update"
    elif change > max(tolerance, coarse):
        verdict, said = GateVerdict.INCONCLUSIVE, ": too few prompts to prove it; more --specdec-prompts decide"
    elif change > tolerance or high >= expm1(2 * log1p(tolerance)):
        verdict, said = GateVerdict.COARSE, f": nothing is shown, and {2 * tolerance:.1%} is not excluded"
    else:
        verdict, said = GateVerdict.PASS, f"; {2 * tolerance:.1%} more is excluded"
    return _finding(name, verdict, message + said, change, low, high)


def _finding(
    name: str, verdict: GateVerdict, message: str, change: float, low: float | None = None, high: float | None = None
) -> Finding:
    place = PLACE if verdict in (GateVerdict.REGRESSED, GateVerdict.IMPROVED) else None
    return Finding(name, 0, verdict, message, STEPS, change, low, high, place, 1)
