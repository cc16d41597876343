"""Rows of the gate over servers, from what was asked of them and answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchsuite.benches.serving.figures import EndpointFigures, Slo, endpoint_figures
from benchsuite.benches.serving.forward_counts import ForwardCounts, forward_counts, forward_logs, vanished
from benchsuite.benches.serving.load import ServedBlock, Traffic
from benchsuite.benches.serving.paired_costs import paired_costs, poor_answers
from benchsuite.benches.serving.speed import PairedLog, mean_of_groups
from benchsuite.gate.record import DECODE, FIRST, STEPS, WHOLE
from benchsuite.gate.served import LOST, ServedRow
from benchsuite.measure.interval import FEWEST, LogMean
from benchsuite.run.served_baseline import ServedBaseline, later_logs

ENOUGH = 0.5
"""The least share of a load's prompts of which a figure must be known."""

FOREIGN = 0.1
"""The largest share of groups whose counts cannot be those of their answers."""


def served_rows(
    blocks: Sequence[ServedBlock],
    base: str,
    heads: Sequence[str],
    load: Traffic,
    workloads: Sequence[str],
    slo: Slo | None,
    alpha: float,
) -> list[ServedRow]:
    """Return the rows of these servers under one load beside ``base``; all of them have answered.

    ``workloads``: that of each prompt, by its place. ``alpha``: the chance at which a draft that ended is taken for one
    that is silent now and then.
    """
    names = [base, *heads]
    figures = {one.endpoint: one for one in endpoint_figures(blocks, names, workloads, slo)}
    by_name = {name: [block for block in blocks if block.endpoint == name] for name in names}
    return [
        _row(f"{head}-{load.id}", by_name[head], by_name[base], (figures[head], figures[base]), workloads, slo, alpha)
        for head in heads
    ]


def _row(
    name: str,
    mine: Sequence[ServedBlock],
    base: Sequence[ServedBlock],
    both: tuple[EndpointFigures, EndpointFigures],
    workloads: Sequence[str],
    slo: Slo | None,
    alpha: float,
) -> ServedRow:
    """The row of a server; ``both``: its figures and the base's."""
    costs, poor = paired_costs(mine, base, workloads, slo), poor_answers(mine, base)
    logs = {DECODE: costs.decoding, FIRST: costs.first, WHOLE: costs.whole, **({LOST: costs.lost} if slo else {})}
    figures, left, unsure = dict[str, LogMean](), dict[str, str](), dict[str, str]()
    why = "; ".join(f"{one.endpoint}: {one.why}" for one in both if one.why)
    asked = len({one.prompt for block in mine for one in block.sent})
    for figure, some in logs.items():
        if why:
            unsure[figure] = why
        elif both[0].reason and figure in (DECODE, WHOLE):
            unsure[figure] = f"not comparable: {both[0].reason}"
        elif some or figure == LOST:
            _add(figure, some, asked, figures, unsure)
        else:
            left[figure] = "no prompt has one of both servers, as where answers come in one piece"
    found = ServedRow(
        name,
        figures,
        left,
        unsure,
        worse=poor.worse,
        better=poor.better,
        kinds=poor.kinds,
        from_first=costs.from_first,
    )
    return _with_forwards(found, forward_counts(mine), forward_counts(base), workloads, alpha)


def _with_forwards(
    row: ServedRow, ours: ForwardCounts, its: ForwardCounts, workloads: Sequence[str], alpha: float
) -> ServedRow:
    """The row with what both servers count of their forwards."""
    figures, left, unsure, silent, certain = dict(row.figures), dict(row.left), dict(row.unsure), "", True
    wrong = "; ".join(one.wrong for one in (ours, its) if one.wrong)
    if wrong:
        unsure[STEPS] = f"counts that cannot be: {wrong}"
    elif not its.proposed:
        said = "proposes no tokens by its own counts" if its.source else "counts no accepted tokens"
        left[STEPS] = f"the base {said}, in its answers or on its page"
    else:
        silent, certain = _silent(ours, its, alpha)
        foreign = ours.unread + its.unread
        if foreign > FOREIGN * (foreign + len(ours.counts) + len(its.counts)):
            unsure[STEPS] = f"{foreign} counts are not those of the answers: did others ask the servers meanwhile?"
        elif ours.proposed:
            _add(STEPS, forward_logs(ours, its, workloads), 0, figures, unsure)
    lengths = (its.length, ours.length)
    both = (lengths[0], lengths[1]) if lengths[0] and lengths[1] else None
    return replace(row, figures=figures, left=left, unsure=unsure, lengths=both, silent=silent, certain=certain)


def stored_rows(
    now: ServedBaseline, base: ServedBaseline, names: Sequence[str], workloads: Sequence[str], timed: bool, alpha: float
) -> list[ServedRow]:
    """Return these rows of a run beside those of a file. ``timed``: times can be compared, each over the same server's
    in its own run; where they cannot, a row has its counts alone."""
    found = []
    for name in names:
        mine, its = now.rows[name], base.rows[name]
        figures, unsure = dict[str, LogMean](), dict[str, str]()
        for figure in mine.times if timed and mine.over == its.over else ():
            logs = later_logs(mine.times[figure], its.times.get(figure, ()))
            _add(figure, logs, 0, figures, unsure)
        worse, better = {*mine.poor} - {*its.poor}, {*its.poor} - {*mine.poor}
        kinds = {"without an answer that counts": len(mine.poor)}
        row = ServedRow(name, figures, {}, unsure, worse=len(worse), better=len(better), kinds=kinds)
        found.append(_with_forwards(row, mine.counts, its.counts, workloads, alpha))
    return found


def _add(
    figure: str, logs: Sequence[PairedLog], asked: int, figures: dict[str, LogMean], unsure: dict[str, str]
) -> None:
    """Put the mean of a figure into ``figures``, in place, or why there is none into ``unsure``."""
    known = len({one.prompt for one in logs})
    if known < ENOUGH * asked:
        unsure[figure] = f"known of {known} of {asked} prompts"
    elif mean := mean_of_groups(logs):
        figures[figure] = mean
    else:
        unsure[figure] = f"known of fewer than {FEWEST} groups of requests, and of fewer rounds"


def _silent(ours: ForwardCounts, its: ForwardCounts, alpha: float) -> tuple[str, bool]:
    """Why a server is taken not to speculate, empty if it does; and whether that is certain."""
    base = f"the base proposed {its.proposed} tokens"
    if not ours.source:
        certain = ours.silent or its.source == "answers"
        where = "in its answers or on its page" if certain else "in its answers, and has no page that could be read"
        return f"{base}, and this server reports no speculation {where}", certain
    if not ours.proposed:
        return f"{base}, and this server none", True
    ended = vanished(ours, its)
    if ended and ended[1] <= alpha:
        spoke, chance = ended
        return f"it proposed nothing any more after {spoke} of the counts in which the base does (p={chance:.2g})", True
    return "", True


def left_of(rows: Sequence[ServedRow]) -> list[str]:
    """Return what is not judged of these rows, each with the reason.

    Example: ``["head-c1 forwards/token (the base counts no accepted tokens, …)"]``
    """
    return [f"{row.name} {figure} ({why})" for row in rows for figure, why in row.left.items()]
