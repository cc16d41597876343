"""The museum: every bug is found by its layer, and no lossless change is flagged."""

from __future__ import annotations

import sys
from cProfile import Profile
from types import CodeType, ModuleType

import pytest

from benchsuite.museum.controls import CONTROLS
from benchsuite.museum.edit import Edit, NotApplicable, apply
from benchsuite.museum.entries import Control, Mutant
from benchsuite.museum.kills import hold
from benchsuite.museum.layers import LAYERS
from benchsuite.museum.ours import OURS
from benchsuite.museum.shipped import SHIPPED
from benchsuite.tests.rig import KILLS

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

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
}
"""For each layer a mutant that no other layer finds."""

TABLES = ("distribution", "streams", "logprobs", "files")
"""The layers whose drafts are tables; only these are affected by a control that changes those drafts."""


UNTOUCHED = {
    "pegainfer#670": ("power", "processors", "text", "cancels", "beams", "files", "stops"),
    "a tie": (*TABLES, "keyed", "power", "processors", "text", "cancels", "beams"),
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
    [
        (control, layer)
        for control in CONTROLS
        for layer in LAYERS
        if (layer in TABLES or not control.of_a_table) and layer not in UNTOUCHED.get(control.source, ())
    ],
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


def _called(layer: str) -> set[str]:
    """The functions of Python that a layer calls, each as an edit names it."""
    profile = Profile(builtins=False)  # written in C: there are millions of calls
    profile.runcall(LAYERS[layer])
    files = {
        vars(module).get("__file__"): name for name, module in [*sys.modules.items()] if isinstance(module, ModuleType)
    }
    called = [entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)]
    return {f"{files.get(code.co_filename, '')}:{code.co_qualname}" for code in called}


@pytest.mark.parametrize("layer", LAYERS)
def test_without_the_other_layers_their_mutants_survive(layer: str) -> None:
    """A mutant whose functions the layer does not call is not run: nothing of the layer would be another."""
    called = _called(layer)
    [own] = [mutant for mutant in MUTANTS if mutant.sentence == ALONE[layer]]
    assert own.layer == layer
    assert called & {edit.where for edit in own.edits}, "not even what its own mutant changes is seen to be called"
    untouched = [control for control in CONTROLS if layer in UNTOUCHED.get(control.source, ())]
    assert not called & {edit.where for control in untouched for edit in control.edits}, "a control touches this layer"
    others = [mutant for mutant in MUTANTS if mutant.sentence in ALONE.values() and mutant is not own]
    tried = [mutant for mutant in others if called & {edit.where for edit in mutant.edits}]
    assert [mutant.sentence for mutant in tried if hold(mutant, layer).said] == []


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
