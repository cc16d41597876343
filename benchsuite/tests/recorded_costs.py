"""What SmolLM2-135M and the drafts of ``make predictions`` cost on one machine, in forwards of one row and one slot."""

from __future__ import annotations

from benchsuite.predict.costs import Costs, DraftCosts
from benchsuite.tests.recorded_acceptance import ROWS, K
from specdec.calibration import Point, interpolated

FORWARDS = {
    1: {1: 1.0, 2: 1.04, 3: 1.07, 4: 1.10, 5: 1.13, 7: 1.2, 9: 1.3},
    4: {1: 1.15, 2: 1.21, 3: 1.4, 4: 1.63, 5: 1.87, 7: 2.36, 9: 2.82},
    8: {1: 1.3, 2: 1.72, 3: 2.15, 4: 2.62, 5: 3.05, 7: 3.95, 9: 4.8},
}
"""Forwards of SmolLM2-135M by rows and slots, in those of one row and one slot: on AVX512-BF16, two cores. Those of
eight rows were not measured: they follow those of four by the slots of all rows together."""

LOOKUP = {"ngram": 0.009, "suffix": 0.0085, "hybrid": 0.01, "hybrid+eagle": 0.03}
HEAD, REST = 0.085, 0.05
"""What a lookup costs in a step, EAGLE's head for each proposal, and everything else, in forwards."""


def forward(width: int, rows: int) -> float:
    """Seconds of a forward."""
    return interpolated({some: interpolated(widths, width) for some, widths in FORWARDS.items()}, rows)


def draft_seconds(draft: str, asked: int, made: int, rows: int) -> float:
    """Seconds of a draft in a step; ``hybrid+eagle`` asks the head where lookups find nothing, for up to 4 tokens."""
    if not asked:
        return 0.002
    if draft == "eagle" or (draft == "hybrid+eagle" and made <= 4):
        return 0.03 + HEAD * made * (1 + 0.1 * (rows - 1))
    return LOOKUP[draft] * (1 + 0.15 * (rows - 1))


def recorded_costs(strategies: dict[str, str]) -> Costs:
    """Return the costs as predictions take them; ``strategies``: the draft of each."""
    rows, length = (1, ROWS), 1
    known = {
        name: DraftCosts(
            {
                some: {length: {made: draft_seconds(draft, made >= 0, made, some) for made in range(-1, K + 1)}}
                for some in rows
            },
            {some: {0: REST, 1: REST} for some in rows},
            {length: 0.0},
        )
        for name, draft in strategies.items()
    }
    forwards = {Point(some, length, width): forward(width, some) for some in rows for width in range(1, K + 2)}
    plain = {Point(some, length, 1): forward(1, some) + REST for some in rows}
    return Costs({}, forwards, {length: 0.0}, plain, known, 0.0, made=0.0)
