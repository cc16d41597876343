"""Which of two sources each row takes its proposals from, at a price: what was looked up, or what a model drafts."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from specdec.lengths import Price

Chain = Sequence[float]
"""Of each proposal of a row the chance that it is kept with all before it."""


def of_either(
    price: Price, looked: Sequence[Chain], drafted: Sequence[Chain], takes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The proposals that each row takes of what was looked up, and those that it takes of what a model drafts.

    A row takes the chain that brings more at what a slot costs on average, and of all chains ``Price.best`` decides how
    many. ``takes[d]``: the model's forwards if it goes d deep, for all rows together, so that every depth is tried.

    Example: where slots cost nothing and a forward a tenth of a token, ``of_either(price, [[0.3], []], [[0.6, 0.4],
    [0.5, 0.2]], [0, 1, 2])`` is ``([0, 0], [2, 2])``.
    """
    slot = price.slot

    def brings(chain: Chain, worth: float) -> float:
        return sum(max(0.0, worth * chance - slot) for chance in chain)

    most, chosen = -inf, (list[int](), list[int]())
    for depth in range(1 + max(map(len, drafted), default=0)):
        both = [*zip(looked, (chain[:depth] for chain in drafted), price.worth.tolist(), strict=True)]
        theirs = [brings(draft, worth) > brings(found, worth) for found, draft, worth in both]
        gain, counts = price.best(
            [draft if drawn else found for drawn, (found, draft, _) in zip(theirs, both, strict=True)]
        )
        asked = [count if drawn else 0 for drawn, count in zip(theirs, counts, strict=True)]
        gain -= price.drafting(takes[max(asked, default=0)])
        if gain > most:
            most, chosen = gain, ([count - own for count, own in zip(counts, asked, strict=True)], asked)
    return chosen
