"""The museum: every bug is found by its layer, and no lossless change is flagged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchsuite.tests.rig import KILLS, some_of
from benchsuite.workshop.museum.controls import CONTROLS
from benchsuite.workshop.museum.edit import Edit, NotApplicable, apply
from benchsuite.workshop.museum.entries import Control, Mutant
from benchsuite.workshop.museum.kills import hold
from benchsuite.workshop.museum.layers import LAYERS
from benchsuite.workshop.museum.ours import OURS
from benchsuite.workshop.museum.shipped import SHIPPED

pytestmark = pytest.mark.slow

MUTANTS = (*SHIPPED, *OURS)

ALONE = {
    "distribution": "block verification uses the token-wise rule",
    "streams": "a seed is ignored",
    "keyed": "the purpose of a draw shifts its noise by a token: a coin's is that of a token of the residual",
    "power": "uniforms have eight bits only: a coin of 0.999 always succeeds",
    "rollback": "keys and values move to new storage in every step",
    "equality": "a greedy row beside sampled ones is sampled",
    "stops": "stop strings are searched in a tail of the output that is too short",
    "counters": "a chain is compacted although its path is already in place",
    "drafting": "the draft's lengths are stale after full acceptance: only the acceptance rate falls",
    "ties": "the judge does not compare the distance of an arm's logits with the bound",
    "processors": "a bad word of a single token is not forbidden",
    "logprobs": "the draft's logprobs are reported as the target's",
    "text": "a stream shows half a character",
    "cancels": "the draft is not told that a request was cancelled",
    "beams": "a beam's copy lacks the last committed cell",
    "files": "the half line that a kill left in the results stays there",
    "lengths": "row 0's K is used for all rows",
    "states": "a draft that asks for logits is given processed ones",
}
"""For each layer a mutant that no other layer finds."""

TABLES = ("distribution", "streams", "logprobs", "files")
"""The layers whose drafts are tables; only these are affected by a control that changes those drafts."""


UNTOUCHED = {
    "pegainfer#670": ("power", "processors", "text", "cancels", "beams", "files", "stops"),
    "a tie": (*TABLES, "keyed", "power", "processors", "text", "cancels", "beams"),
    "vllm#46104": tuple(layer for layer in LAYERS if layer != "drafting"),
}
"""Layers that call nothing of what a control changes, by its source: they would find what they find without it."""


def _entry_name(entry: Mutant | Control) -> str:
    """The entry's test id."""
    return f"{entry.source}: {entry.sentence}"


@pytest.mark.museum
@pytest.mark.parametrize("mutant", MUTANTS, ids=_entry_name)
def test_a_mutant_is_killed_by_its_layer(mutant: Mutant, pytestconfig: pytest.Config) -> None:
    kill = hold(mutant, mutant.layer)
    pytestconfig.stash.setdefault(KILLS, []).append(kill)
    assert kill.said is not None, f"{mutant.layer} finds nothing"


@pytest.mark.museum
@pytest.mark.parametrize(
    ("control", "layer"),
    some_of(
        18,
        [
            (control, layer)
            for control in CONTROLS
            for layer in LAYERS
            if (layer in TABLES or not control.of_a_table) and layer not in UNTOUCHED.get(control.source, ())
        ],
    ),
    ids=lambda value: value if isinstance(value, str) else _entry_name(value),
)
def test_a_control_is_never_flagged(control: Control, layer: str) -> None:
    assert hold(control, layer).said is None


@pytest.mark.museum
def test_the_museum_holds_what_it_should() -> None:
    assert len(OURS) >= 40
    assert len({mutant.sentence for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.layer for mutant in MUTANTS} == LAYERS.keys() == ALONE.keys()
    assert all(entry.source != "ours" for entry in SHIPPED)


def _others() -> list[Any]:
    """For each layer all others' mutants of ``ALONE`` at once; with --specdec-deep also each of them by itself."""
    alone = {mutant.layer: mutant for mutant in MUTANTS if ALONE[mutant.layer] == mutant.sentence}
    assert alone.keys() == ALONE.keys(), "a layer's own mutant is one that another layer must find"
    found = []
    for layer in LAYERS:
        others = [mutant for other, mutant in alone.items() if other != layer]
        found.append(pytest.param(layer, others, id=f"{layer}-all"))
        found += [pytest.param(layer, [one], id=f"{layer}-{one.layer}", marks=pytest.mark.deep) for one in others]
    return found


@pytest.mark.parametrize(("layer", "mutants"), _others())
def test_without_the_other_layers_their_mutants_survive(layer: str, mutants: Sequence[Mutant]) -> None:
    """The statements that ``UNTOUCHED`` controls change raise meanwhile, so that the layer is seen to run none."""
    untouched = [control for control in CONTROLS if layer in UNTOUCHED.get(control.source, ())]
    edits = [edit for mutant in mutants for edit in mutant.edits]
    raising = 'raise AssertionError("a control changes what runs here")'
    edits += [replace(edit, new=raising) for control in untouched for edit in control.edits]
    found = hold(Control("", "", tuple(edits)), layer).said
    assert found is None, [mutant.sentence for mutant in mutants if hold(mutant, layer).said]


def test_an_empty_suite_kills_nothing() -> None:
    empty = dict.fromkeys(LAYERS, lambda: None)
    assert [mutant.source for mutant in MUTANTS if hold(mutant, mutant.layer, empty).said] == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit("specdec.arena:Arena.commit", "no such text", ""), "holds 'no such text' 0 times, expected once"),
        (Edit("specdec.arena:Arena.commit", "committed", ""), "times, expected once; rewrite the mutant"),
        (Edit("specdec.arena:Arena.gone", "", ""), "is gone; the mutant that changes it must be rewritten"),
    ],
)
def test_a_mutant_that_no_longer_applies_fails_loudly(edit: Edit, message: str) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(NotApplicable, match=message):
        apply([edit], patch)


def test_a_mutant_is_undone() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.layer == "counters")
    assert hold(mutant, "counters").said
    assert hold(Control("", "", ()), "counters").said is None
