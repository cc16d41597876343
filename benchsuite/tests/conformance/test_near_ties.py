"""What the kit offers policies: tokens that are nearly the target's own, under each condition."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchsuite.conformance.near_ties import CONDITIONS, GAPS, HEATS, WIDEST, Condition, Offer, Sibling, offered, offers

SMALL = Condition(width=5, gaps=(1e-3, 0.05, 0.5), vocabulary=32)
SIBLINGS: tuple[Sibling, ...] = ("none", "younger", "elder")


def near_slots(offer: Offer) -> list[list[int]]:
    """Of each row the slots whose token is not plain decoding's after the parent."""
    window, choices = offer.window, offer.choices()
    due = choices.gather(1, window.parents.clamp(min=0))
    wrong = (window.tokens != due) & (torch.arange(window.tokens.shape[1]) > 0)
    wrong &= torch.arange(window.tokens.shape[1]) < window.width[:, None]
    return [row.nonzero()[:, 0].tolist() for row in wrong]


@pytest.mark.parametrize("sibling", SIBLINGS)
@pytest.mark.parametrize("heats", [(0.0,), HEATS], ids=["greedy", "sampled"])
def test_one_token_of_a_row_is_not_plains_and_as_many_nats_below_as_is_said(
    sibling: Sibling, heats: tuple[float, ...]
) -> None:
    """Raised by a little more than the gap plain decoding takes it, and by a little less it does not."""
    [offer] = offered("", SMALL, heats, sibling)
    window, rows = offer.window, torch.arange(len(offer.gaps))
    slots = [slot for [slot] in near_slots(offer)]
    depths = [int(window.depth[row, slot]) for row, slot in enumerate(slots)]
    assert [*zip(depths, offer.gaps, strict=True)] == [*itertools.product(range(1, SMALL.width), SMALL.gaps)]
    at = rows, window.parents[rows, slots], window.tokens[rows, slots]
    heat = offer.context.params.temperature
    scale = torch.where(heat > 0, heat, 1.0)
    for share, taken in ((0.98, False), (1.02, True)):
        raised = offer.logits.clone()
        raised[at] += torch.tensor(offer.gaps) * share * scale
        choices = replace(offer, logits=raised).choices()
        assert ((choices[at[0], at[1]] == at[2]) == taken).all()
    if sibling == "younger":
        assert max(slots) < SMALL.width, "the sibling that comes after is plain decoding's own"
    siblings = [(window.parents[row] == window.parents[row, slot]).sum().item() for row, slot in enumerate(slots)]
    assert {*siblings} == {1 if sibling == "none" else 2}


def test_each_depth_of_each_width_is_offered_at_each_gap() -> None:
    bare = [offer for offer in offers(True, (0.0,)) if not offer.condition]
    found = {
        (offer.window.tokens.shape[1], int(offer.window.depth[row, slot]), offer.gaps[row])
        for offer in bare
        if int(offer.window.depth.max()) == offer.window.tokens.shape[1] - 1  # chains
        for row, [slot] in enumerate(near_slots(offer))
    }
    assert found == {(width, depth, gap) for width in range(2, WIDEST + 1) for depth in range(1, width) for gap in GAPS}


HOLDS: dict[str, Callable[[Any], Any]] = {
    "alone in its batch": lambda offer: offer.context.rows == 1,
    "in a large vocabulary": lambda offer: (offer.window.tokens[:, 1:] > 1000).float().mean() > 0.9,
    "in a wide window": lambda offer: offer.window.depth.max() == 32,
    "after a long text": lambda offer: (offer.context.length > 1000).all(),
    "under penalties": lambda offer: offer.context.params.adjustments.penalties is not None,
    "under a bias": lambda offer: offer.context.params.adjustments.bias is not None,
    "under filters": lambda offer: (offer.context.params.top_k == 100).all(),
    "beside rows at temperature 0": lambda offer: (offer.context.params.temperature == 0).any(),
    "beside rows at temperature 0.8": lambda offer: (offer.context.params.temperature > 0).any(),
    "drawn from q": lambda offer: offer.window.q.gather(2, offer.window.tokens[:, 1:, None]).all(),
    "before padding": lambda offer: (offer.window.width == offer.window.tokens.shape[1] - 2).all(),
}
"""What is true of each offer under a condition."""


@pytest.mark.slow
@pytest.mark.parametrize("heats", [(0.0,), HEATS], ids=["greedy", "sampled"])
def test_each_condition_holds_where_it_is_named_and_rows_beside_are_not_looked_at(heats: tuple[float, ...]) -> None:
    assert HOLDS.keys() == CONDITIONS.keys()
    found = list[str]()
    for offer in offers(True, heats):
        if offer.condition:
            found.append(offer.condition)
            assert HOLDS[offer.condition](offer), offer.condition
            close = [slots for slots, seen in zip(near_slots(offer), offer.seen, strict=True) if seen]
            # Penalties and biases move tokens: some near ties are none then.
            assert sum(map(len, close)) > 0.7 * len(close)
            heat = offer.context.params.temperature[torch.tensor(offer.seen)]
            assert {*heat.tolist()} <= {*heats}
    assert {*CONDITIONS} - {*found} == ({"beside rows at temperature 0"} if heats == (0.0,) else set())
