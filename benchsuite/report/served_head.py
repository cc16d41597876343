"""A head in an engine's server and in our engine as a document: acceptance of both, and how many steps are equal."""

from __future__ import annotations

from benchsuite.engines.served_head import ENGINE, SIDES, ServedHead, mean_difference
from benchsuite.report.document import Document, Lines, Section, Table
from specdec.draft_counts import DraftCounts

HEADERS = ("text", "prompts", "equal outputs", ENGINE, "by position, %", "ours", "by position, %", "difference")


def served_head_document(found: ServedHead) -> Document:
    """Return the difference of mean acceptance lengths first, then both sides on each kind of text."""
    kinds = dict.fromkeys(one.workload for one in found.prompts)
    rows = [_line(found, kind, kind) for kind in kinds] + [_line(found, None, "all")]
    served, ours = (found.counts(side).drafts for side in SIDES)
    lines = [
        f"steps: {found.same_steps} equal, that is, they begin at the same place and accept equally many proposals; "
        f"{ENGINE} has {served}, our engine {ours}",
        f"steps count from the first place at which both begin one, if their {found.k + 1} slots end before the answer "
        "does and before the outputs differ",
        _outputs(found),
        *found.reported.lines(ENGINE),
    ]
    return Document(
        f"{found.head} on {found.target}: K = {found.k}, greedy, float32",
        [Section(parts=[Table(HEADERS, rows, "Mean acceptance length"), Lines(lines)])],
        [f"mean acceptance length of {ENGINE} minus ours: {_difference(found, None)}, a 95 % interval over prompts"],
    )


def _line(found: ServedHead, kind: str | None, name: str) -> list[object]:
    mine = found.of(kind)
    cells: list[object] = [name, len(mine), sum(one.agreement.equal for one in mine)]
    for counts in (found.counts(side, kind) for side in SIDES):
        cells += [_length(counts), " ".join(f"{share:.0%}"[:-1] for share in counts.acceptance_by_position)]
    return [*cells, _difference(found, kind)]


def _length(counts: DraftCounts) -> str:
    length = counts.mean_acceptance_length
    return "-" if length is None else f"{length:.3f}"


def _difference(found: ServedHead, kind: str | None) -> str:
    differences = found.differences(kind)
    if not differences:
        return "-"
    middle, interval = mean_difference(differences)
    return f"{middle:+z.3f}" + (f" ({interval[0]:+z.3f} to {interval[1]:+z.3f})" if interval else "")


def _outputs(found: ServedHead) -> str:
    whole = found.agreement
    different = whole.runs - whole.equal
    if not different:
        return f"outputs: {whole.summary}, token by token"
    return (
        f"outputs: {whole.summary} the first difference; {found.ties} of {different} first differences are ties, "
        f"whose two tokens have logits within {found.bound:.1e} of each other"
    )
