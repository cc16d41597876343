"""The parts of a run's time: what each plugin and the target took, and what is left of the time on the clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchsuite.measure.figures import RowFigures
from benchsuite.measure.runners import Outcome
from specdec.stats import Step, StepTimes

PARTS = ("control", "draft", "target", "accept", "commit")
"""The booked parts of decoding: controller, draft, the target's forwards, policy, the arena's commit."""


def with_parts(figures: RowFigures, outcomes: Sequence[Outcome], plain: Sequence[Outcome]) -> RowFigures:
    """Return the figures with the shares of the decoding time, and the costs of drafting and verifying in units of
    plain's forward.

    ``draft_cost`` is c: all time in the draft while decoding (``propose``, ``observe``, ``release``, ``move``) per
    proposal. ``verify_cost`` is the mean of v(W) over steps that proposed. ``sum_of_parts`` is emitted / sum over steps
    of (target + draft): the speedup if nothing else took time. It is made of the times that it is compared with and
    predicts nothing. ``overhead`` is measured from outside: the share of the time on the clock that is not booked.
    The same figures without steps; costs are None if plain ran no step of one slot.
    """
    steps = [pair for outcome in outcomes for pair in outcome.timed]
    if not steps:
        return figures
    between = sum(outcome.stats.called("release", "move") for outcome in outcomes if outcome.stats)
    booked = {part: sum(getattr(times, part) for _, times in steps) for part in PARTS}
    booked["draft"] += between
    clock = sum(outcome.decode_s for outcome in outcomes)
    figures = replace(
        figures,
        control_share=booked["control"] / clock,
        draft_share=booked["draft"] / clock,
        target_share=booked["target"] / clock,
        accept_share=booked["accept"] / clock,
        commit_share=booked["commit"] / clock,
        overhead=1 - sum(booked.values()) / clock,
    )
    single = _mean_by_width(pair for outcome in plain for pair in outcome.timed)
    if 1 not in single:
        return figures
    one_slot, widths = single[1], _mean_by_width(steps)
    proposals = sum(step.k for step, _ in steps)
    asked = [widths[step.width] / one_slot for step, _ in steps if step.k]
    emitted = sum(step.emitted / step.rows for step, _ in steps)
    return replace(
        figures,
        draft_cost=booked["draft"] / one_slot / proposals if proposals else None,
        verify_cost=sum(asked) / len(asked) if asked else None,
        sum_of_parts=emitted * one_slot / (booked["target"] + booked["draft"]),
    )


def _mean_by_width(steps: Iterable[tuple[Step, StepTimes]]) -> dict[int, float]:
    seconds: dict[int, list[float]] = {}
    for step, times in steps:
        seconds.setdefault(step.width, []).append(times.target)
    return {width: sum(values) / len(values) for width, values in seconds.items()}
