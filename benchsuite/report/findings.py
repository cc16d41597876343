"""Verdicts of the gate as a section of tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from benchsuite.gate.record import BESIDE
from benchsuite.gate.rules import Rules
from benchsuite.gate.speed import percent
from benchsuite.gate.trial import SUITE
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.report.document import Lines, Section, Table
from specdec.amounts import amount

NAMED = 4
"""Rows that a sentence names one by one."""

QUIET = (GateVerdict.PASS, GateVerdict.COARSE)
"""Verdicts that fail no run and are counted, where they are many."""


def findings_section(findings: Sequence[Finding], title: str = "") -> Section:
    """Return a table with a line for each finding (row, level, figure, verdict, change, bounds, changed part).

    Means and first passes, which are beside the median of the same, have one where they did not pass and the median is
    not REGRESSED as well. Below it is a sentence for each such finding that did not pass, or that is about the suite.
    """
    worse = {_place(f, f.figure) for f in findings if f.verdict == GateVerdict.REGRESSED}
    findings = [f for f in findings if not ((m := _median(f)) and (f.verdict in QUIET or _place(f, m) in worse))]
    told = [finding_sentence(f) for f in findings if f.verdict not in QUIET or f.row == SUITE]
    columns = {
        "row": [_short(f.row) for f in findings],
        "level": [str(f.level) for f in findings],
        "of": [f.subject for f in findings],
        "verdict": [str(f.verdict) for f in findings],
        "change": ["" if f.change is None else percent(f.change) for f in findings],
        "bounds": [_bounds(f) for f in findings],
        "where": [f.where or "" for f in findings],
    }
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    table = Table(list(shown), list(zip(*shown.values(), strict=True)))
    return Section(title, [table, *([Lines(told)] if told else [])])


def _median(finding: Finding) -> str | None:
    """The name of the figure that a mean or a first pass is beside; None for any other."""
    figure, clock, _ = (finding.figure or "").partition(" by the clock")
    return f"{BESIDE[figure]}{clock}" if figure in BESIDE else None


def _place(finding: Finding, figure: str | None) -> tuple[object, ...]:
    return finding.row, finding.level, finding.against, figure


def finding_sentence(finding: Finding) -> str:
    """A finding as one sentence: verdict, level, row, message and changed part."""
    where = f"; where: {finding.where}" if finding.where else ""
    return f"{finding.verdict} at level {finding.level}, {finding.row}: {finding.message}{where}"


def run_sentence(
    findings: Sequence[Finding],
    rules: Rules,
    compared: bool = True,
    ungated: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """The run's verdict in words and the next action; ``compared`` is False if the run only made a baseline.

    ``ungated``: what was measured and not compared, by what it is. Figures that are COARSE are counted.
    """
    overall = worst(finding.verdict for finding in findings)
    rows, levels = {f.row for f in findings} - {SUITE}, sorted({f.level for f in findings})
    against = f"against {rules.file or rules.base or rules.endpoint or 'itself'}"
    at = f"level{'s' * (len(levels) > 1)} {', '.join(map(str, levels))}"
    scope = f"{amount(len(rows), 'row')} at {at} {against}"
    update = ", accept it with --gate-update" if rules.file else ", merge it all the same"
    part = " of what was gated" if any(ungated.values()) else ""
    action = {
        GateVerdict.IMPROVED: "something got better"
        + (": write it down with --gate-update, or the next loss of it goes unseen" if rules.file else ""),
        GateVerdict.PASS: f"nothing got worse{part}" if compared else "nothing was compared, the baseline is this run",
        GateVerdict.COARSE: f"nothing is shown to have got worse{part}",
        GateVerdict.INCONCLUSIVE: "something could not be decided, and "
        + (
            "is let through by --gate-inconclusive=report"
            if rules.inconclusive == "report"
            else "does not pass unseen (--gate-inconclusive=report lets it)"
        ),
        GateVerdict.REGRESSED: f"something got worse; if it is meant{update}",
        GateVerdict.ERROR: "something could not be compared, and does not pass unseen",
    }[overall]
    if rules.update and overall not in (*QUIET, GateVerdict.ERROR):
        action = "accepted by --gate-update"
    if rules.self_test:
        tells = "tells" if overall == GateVerdict.PASS else "does not reliably tell"
        action = f"this machine {tells} a slowdown of {2 * rules.tolerance:.1%} from none"
    shown = "" if rules.mode == "fail" else " (--gate=report: nothing fails)"
    unheld = [f.row for f in findings if f.against == "anchor" and f.figure is None and f.verdict == GateVerdict.PASS]
    left = [
        *((f"not gated ({what})", names) for what, names in ungated.items()),
        ("not held against the anchor", unheld),
    ]
    return f"{scope}: {action}{shown}{_coarse(findings)}{''.join(_named(*one) for one in left)}"


def _coarse(findings: Sequence[Finding]) -> str:
    timed = [finding for finding in findings if finding.figure]
    count = sum(finding.verdict == GateVerdict.COARSE for finding in timed)
    return f"; COARSE: {count} of {len(timed)} figures, of which twice the tolerance is not excluded" if count else ""


def _named(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"; {what}: {', '.join(names[:NAMED])}{more}" if names else ""


def _bounds(finding: Finding) -> str:
    if finding.low is None or finding.high is None:
        return ""
    return " to ".join(map(percent, (finding.low, finding.high)))


def _short(row: str) -> str:
    return row if len(row) <= 50 else f"…{row[-49:]}"
