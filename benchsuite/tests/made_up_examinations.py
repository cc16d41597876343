"""Examinations of heads whose acceptance is made up, those with a fault among them."""

from __future__ import annotations

import numpy as np

from benchsuite.doctor.examination import Examination, ExaminedReading, HeadReading, beside_taken
from benchsuite.doctor.hits import Hits

PROMPTS, PLACES = 24, 20


def accepting(name: str, rate: float, later: float | None = None, prompts: int = PROMPTS) -> ExaminedReading:
    """Return a reading that accepts a share ``rate`` of first proposals, of later ones ``later``; by chance nothing."""
    dice, k = np.random.default_rng(len(name)), 3
    shares = np.array([rate, *[rate if later is None else later] * (k - 1)])
    right = dice.random((prompts, PLACES, k)) < shares
    counted = np.arange(PLACES) <= PLACES - k
    hits = tuple(Hits(one, counted) for one in right)
    return ExaminedReading(
        HeadReading(name, f"eagle3({name})"), hits, tuple(Hits(one & False, counted) for one in right)
    )


def examination(taken: ExaminedReading, *others: ExaminedReading) -> Examination:
    """Return the examination of a reading beside others."""
    beside = tuple(beside_taken(taken.hits, other, len(others)) for other in others)
    return Examination(taken, beside, (), PROMPTS, PROMPTS * (PLACES - 2), PROMPTS * PLACES)


FAULTY_HEADS = [
    (examination(accepting("taken", 0.0)), "more_than_chance", "and 0.00 ± 0.00 by chance"),
    (examination(accepting("taken", 0.4), accepting("layers", 0.9)), "no_other_reading", "layers accepts .* more"),
    (examination(accepting("taken", 0.8, later=0.05)), "its_own_states", "position 2 accepts 0.0"),
]
"""Examinations of heads with a fault, the check of the kit that finds it, and what that says."""
