"""The advice of an advisor as a document, with the command that measures it."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from benchsuite.predict.advisor import CLOSE, Advice
from benchsuite.report.document import Code, Document, Lines, Section, Table

SHOWN = 6
"""Strategies of each batch that the table names; JSON has all."""


def advice_document(advices: Sequence[Advice]) -> Document:
    """Return a section for each batch: what was tried, the advice, and the command that measures it."""
    return Document(sections=[_section(advice) for advice in advices])


def _section(advice: Advice) -> Section:
    rows = [
        (
            one.arm.draft,
            one.arm.policy,
            one.arm.controller,
            one.arm.k,
            f"{exp(one.predicted):.2f}x",
            one.runs,
            f"{exp(one.expected):.2f}x",
        )
        for one in advice.tried[:SHOWN]
    ]
    headers = ("draft", "policy", "controller", "K", "predicted", "runs", "expected")
    best = advice.best.setting
    return Section(
        f"{best.workload}, {advice.context} tokens of context, batch {best.batch}: the first {len(rows)} of "
        f"{len(advice.tried)} strategies",
        [
            Table(headers, rows),
            Lines([f"{_chosen(advice)}, after {advice.seconds:.0f} s"]),
            Code(advice.command),
        ],
    )


def _chosen(advice: Advice) -> str:
    best = advice.best
    if advice.speedup < 1:
        return f"no strategy is faster than plain decoding; the best, {best.strategy}, has {advice.speedup:.2f}x"
    return (
        f"advice: {best.strategy}, {advice.speedup:.2f}x plain ({advice.low:.2f} to {advice.high:.2f} with 90 %); at "
        f"least {CLOSE:g} of the best one's speed with probability {advice.sure:.2f}"
    )
