"""A draft's model runs no more forwards, and no wider ones, than the tokens that it lacks; it counts each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.tests.rig import Make
from specdec import Draft, Env, SpecdecError, catalog
from specdec_plugins.drafts.draft_model import DraftModel, _require_same_ids
from specdec_plugins.growth import Forest, Growth


def test_the_targets_first_tenth_drafts_where_no_model_and_no_layers_are_named() -> None:
    class Asked(Exception):
        """Carries how many layers were asked for."""

    class Target:
        """A target with so many layers; it tells how many of them are to draft."""

        def __init__(self, total: int) -> None:
            self.layers = [None] * total

        def twin(self, layers: int) -> Any:
            raise Asked(layers)

    def first(total: int, layers: int | None) -> int:
        env: Any = type("Lent", (), {"target": Target(total)})()
        with pytest.raises(Asked) as asked:
            DraftModel(env, None, layers)
        found: int = asked.value.args[0]
        return found

    found = {total: first(total, None) for total in (1, 9, 10, 19, 20, 21, 30, 32)}
    assert found == {1: 1, 9: 1, 10: 1, 19: 1, 20: 2, 21: 2, 30: 3, 32: 3}
    assert [first(30, layers) for layers in (1, 2, 30)] == [1, 2, 30]


@pytest.mark.slow
def test_a_draft_needs_as_many_positions_as_a_sequence_may_have(tmp_path: Path, assemble: Make) -> None:
    """As many are enough; the target's own layers are not asked, since the target has the same positions."""
    model = families.build_model("gpt2", seed=1)
    model.save_pretrained(tmp_path)
    catalog.byte_tokenizer().save_pretrained(tmp_path)
    limit = int(model.config.max_position_embeddings)
    kept: list[Env] = []

    def held(env: Env) -> Draft:
        kept.append(env)
        return DraftModel(env)

    assemble(extra=(("draft", "held", held),)).engine("held", k=2)
    [env] = kept
    DraftModel(replace(env, max_length=limit), str(tmp_path))
    with pytest.raises(SpecdecError) as refused:
        DraftModel(replace(env, max_length=limit + 1), str(tmp_path))
    assert str(refused.value) == (
        f"the draft {str(tmp_path)!r} has {limit} positions and sequences may reach {limit + 1}; choose another draft "
        "or shorter prompts and outputs"
    )


def test_a_draft_of_another_tokenizer_is_refused_by_the_first_token_that_differs() -> None:
    _require_same_ids({"a": 0, "b": 1}, {"b": 1, "a": 0}, "other")
    for theirs, count, token, one, two in (
        ({"a": 0, "b": 2}, 1, "b", 1, 2),
        ({"a": 0}, 1, "b", 1, None),
        ({"a": 1, "b": 0, "_": 5}, 3, "_", None, 5),
    ):
        with pytest.raises(SpecdecError) as refused:
            _require_same_ids({"a": 0, "b": 1}, theirs, "other")
        assert str(refused.value) == (
            f"the draft 'other' has another tokenizer: {count} tokens differ, for example {token!r} is {one} in the "
            f"target and {two} in the draft; a draft must share the target's token ids, or draft only the tokens that "
            "both have: draft_model(model=…, vocabulary=intersection)"
        )


def test_a_forest_holds_the_expanded_nodes_and_the_slots_of_their_parents() -> None:
    """Two depths of two nodes: children of the pending token have no parent, the others that node's slot."""
    chances = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]]).log()
    growth, forest = Growth(chances, None, 2), Forest()
    first = forest.window(growth)
    assert first.tokens.tolist() == [[0, 1], [3, 2]]
    assert first.parents.tolist() == [[-1, -1], [-1, -1]]
    assert first.width.tolist() == [2, 2]
    growth.expand(torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.05, 0.05, 0.1, 0.8]], [[0.7, 0.1, 0.1, 0.1]] * 2]).log())
    second = forest.window(growth)
    # Row 0: of 0.5 x (0.4, 0.3) and 0.3 x (0.8, 0.1), 0.24 and 0.2 are the best: token 3 after each of the two.
    assert second.tokens.tolist() == [[0, 1, 3, 3], [3, 2, 0, 0]]
    assert second.parents.tolist() == [[-1, -1, 0, 1], [-1, -1, 0, 1]]
    assert second.width.tolist() == [4, 4]
    assert growth.paths.tolist() == [[[0, 3], [1, 3]], [[3, 0], [2, 0]]]
