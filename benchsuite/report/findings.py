"""Verdicts of the gate as a section of tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from benchsuite.gate.rules import Rules
from benchsuite.gate.speed import percent
from benchsuite.gate.trial import SUITE
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.report.document import Lines, Section, Table

NAMED = 4
"""Peers that a sentence names one by one."""


def findings_section(findings: Sequence[Finding], title: str = "") -> Section:
    """Return a table with a line for each finding (row, level, figure, verdict, change, bounds, changed part).

    Below it is a sentence for each that did not pass, or that is about the suite.
    """
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
    told = [finding_sentence(f) for f in findings if f.verdict != GateVerdict.PASS or f.row == SUITE]
    table = Table(list(shown), list(zip(*shown.values(), strict=True)))
    return Section(title, [table, *([Lines(told)] if told else [])])


def finding_sentence(finding: Finding) -> str:
    """A finding as one sentence: verdict, level, row, message and changed part."""
    where = f"; where: {finding.where}" if finding.where else ""
    return f"{finding.verdict} at level {finding.level}, {finding.row}: {finding.message}{where}"


def run_sentence(findings: Sequence[Finding], rules: Rules, compared: bool = True, ungated: Sequence[str] = ()) -> str:
    """The run's verdict in words and the next action; ``compared`` is False if the run only made a baseline.

    ``ungated``: the peers that were measured and not compared.
    """
    overall = worst(finding.verdict for finding in findings)
    rows, levels = {f.row for f in findings} - {SUITE}, sorted({f.level for f in findings})
    against = f"against {rules.file or rules.base or 'itself'}"
    scope = f"{len(rows)} rows at levels {', '.join(map(str, levels))} {against}"
    update = ", accept it with --gate-update" if rules.file else ", merge it all the same"
    action = {
        GateVerdict.IMPROVED: "something got better"
        + (": write it down with --gate-update, or the next loss of it goes unseen" if rules.file else ""),
        GateVerdict.PASS: "nothing got worse" if compared else "nothing was compared, the baseline is this run",
        GateVerdict.INCONCLUSIVE: "something could not be decided, and "
        + (
            "is let through by --gate-inconclusive=report"
            if rules.inconclusive == "report"
            else "does not pass unseen (--gate-inconclusive=report lets it)"
        ),
        GateVerdict.REGRESSED: f"something got worse; if it is meant{update}",
        GateVerdict.ERROR: "something could not be compared, and does not pass unseen",
    }[overall]
    if rules.update and overall not in (GateVerdict.PASS, GateVerdict.ERROR):
        action = "accepted by --gate-update"
    if rules.self_test:
        tells = "tells" if overall == GateVerdict.PASS else "does not reliably tell"
        action = f"this machine {tells} a slowdown of {2 * rules.tolerance:.1%} from none"
    shown = "" if rules.mode == "fail" else " (--gate=report: nothing fails)"
    return f"{scope}: {action}{shown}{not_gated(ungated)}"


def not_gated(peers: Sequence[str]) -> str:
    """Return "; not gated (peers): …" with what was measured and is compared with nothing; empty if there is nothing.

    Example: ``not_gated(["transformers"])``
    """
    more = f" and {len(peers) - NAMED} more" if len(peers) > NAMED else ""
    return f"; not gated (peers): {', '.join(peers[:NAMED])}{more}" if peers else ""


def _bounds(finding: Finding) -> str:
    if finding.low is None or finding.high is None:
        return ""
    return " to ".join(map(percent, (finding.low, finding.high)))


def _short(row: str) -> str:
    return row if len(row) <= 50 else f"…{row[-49:]}"
