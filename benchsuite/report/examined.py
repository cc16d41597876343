"""The examination of a head as a document: what was read, what it accepts, its other readings, the verdict."""

from __future__ import annotations

from math import isfinite

from benchsuite.doctor.commands import HeadReport
from benchsuite.doctor.evidence import ERROR, NO_MATTER
from benchsuite.doctor.examination import Examination
from benchsuite.doctor.hits import Rate
from benchsuite.report.document import Code, Document, Lines, Part, Section, Table
from specdec.amounts import amount


def head_document(report: HeadReport) -> Document:
    """Return the verdict first, then what it is from."""
    found = report.examination
    read: list[Part] = [Lines([str(choice) for choice in report.choices]), Code(found.taken.candidate.draft)]
    return Document(
        f"{report.head} on {report.target}",
        [
            Section("What was read, and from what", read),
            Section("Accepted by position", [_positions(found)]),
            Section("Other readings", _others(found)),
        ],
        [*verdict_lines(found), f"{report.seconds:.0f} s"],
    )


def verdict_lines(found: Examination) -> list[str]:
    """Return the verdict in sentences: what it is, what is to be done, and how much text it is from."""
    read = f"{amount(found.prompts, 'prompt')}, {amount(found.places, 'place')} in {amount(found.tokens, 'token')}"
    text = f"{read} of the target's own text"
    sure = f"a right reading is accused with a probability of at most {ERROR:.0%}"
    lines = [f"{found.verdict}: {_reason(found)} ({text}; {sure})"]
    best = found.best
    if best.collapses:
        own, fed = best.positions[1]
        lines.append(
            f"good after the target's states, bad without them: position 2 accepts {own.share:.0%}, and first "
            f"proposals for the same tokens {fed.share:.0%}; past the first position the head is given something else "
            "than in training (states of its own, a mask, the place of another head), or it was trained on "
            "the target's states alone"
        )
    return lines


def _reason(found: Examination) -> str:
    if found.better:
        best = found.better[0]
        more = [other.measured.candidate.name for other in found.as_good]
        also = f"; not told apart from it: {', '.join(more)}" if more else ""
        return (
            f"{best.measured.candidate.name}, {best.measured.length.share:.2f} proposals at a place where the reading "
            f"taken accepts {found.taken.length.share:.2f}: {best.measured.candidate.draft}{also}"
        )
    accepted = f"{found.taken.length.share:.2f} proposals at a place, and {found.taken.by_chance.share:.2f} by chance"
    need = f"about {found.needs:,.0f} tokens decide it" if isfinite(found.needs) else "more text would not help"
    if not found.taken.skilled:
        return f"the head is not seen to accept more than chance ({accepted}); {need}; is it a head of this target?"
    if found.open:
        names = ", ".join(other.measured.candidate.name for other in found.open)
        return f"open is {names}; {need}"
    if found.taken.collapses:
        return "no other reading accepts more, and yet the head falls off past the first position"
    if not found.others:
        return f"no other reading loads, so that acceptance cannot say whether this one is right ({accepted})"
    return f"none of {len(found.others)} other readings accepts {NO_MATTER} proposals more at a place"


def _positions(found: Examination) -> Table:
    rows = [
        (position + 1, own.tried, _shown(own), _shown(fed) if position else None)
        for position, (own, fed) in enumerate(found.taken.positions)
    ]
    return Table(("position", "tried", "accepted", "after the target's states"), rows)


def _shown(rate: Rate) -> str:
    return f"{rate.share:.1%} ± {rate.error:.1%}" if rate.tried else "-"


def _others(found: Examination) -> list[Part]:
    taken = (found.taken.candidate.name, f"{found.taken.length.share:.2f}", "", "")
    rows = [
        (
            other.measured.candidate.name,
            f"{other.measured.length.share:.2f}",
            f"{other.gain:+z.2f} ± {other.error:.2f}",
            other.outcome if other.outcome != "open" else f"open, {_needed(other.needs)}",
        )
        for other in found.others
    ]
    rows.insert(0, taken)
    parts: list[Part] = [Table(("reading", "accepted at a place", "more than as taken", "outcome"), rows)]
    if found.refused:
        parts.append(Lines([f"does not load: {one.name}: {reason}" for one, reason in found.refused]))
    return parts


def _needed(prompts: float) -> str:
    return f"{prompts:,.0f} prompts decide it" if isfinite(prompts) else "more text would not help"
