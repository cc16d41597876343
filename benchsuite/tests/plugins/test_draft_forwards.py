"""A draft's model runs no more forwards, and no wider ones, than the tokens that it lacks; it counts each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import ask, prompts, save_target
from benchsuite.tests.rig import Make, saved_head
from specdec import Draft, Engine, Env, Request, SamplingParams, SpecdecError, Window, catalog
from specdec_plugins.drafts.draft_model import DraftModel, _require_same_ids
from specdec_plugins.growth import Forest, Growth


class NotedForwards:
    """Notes of every window that an arena is asked for after the prompts: the call that asked, its width, and by how
    much the host's bound on the cells that are read is above the largest row's."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[tuple[str, int, int]] = []
        draft: Any = engine.draft
        arena, self._phase = draft._arena, ""
        plan = arena.plan

        def planned(window: Window, ops: Any, rows: slice, longest: int, *more: Any, **named: Any) -> Any:
            if self._phase:
                held = int(arena.committed[rows].max())
                self.seen.append((self._phase, window.tokens.shape[1], longest - held))
            return plan(window, ops, rows, longest, *more, **named)

        object.__setattr__(arena, "plan", planned)
        for name in ("propose", "observe"):
            object.__setattr__(draft, name, self._within(name, getattr(draft, name)))

    def _within(self, name: str, method: Any) -> Any:
        def call(*given: Any) -> Any:
            self._phase = name
            try:
                return method(*given)
            finally:
                self._phase = ""

        return call


def widths_by_step(engine: Engine, asked: list[int], new: int, count: int = 1) -> list[int]:
    """Run requests one after another; the widths of the draft's forwards. Every bound holds, and all are counted."""
    noted = NotedForwards(engine)
    ask(engine, asked)
    text = prompts(1)[0]
    engine.run([Request(i, text, SamplingParams(max_new_tokens=new)) for i in range(count)])
    assert all(loose >= 0 for _, _, loose in noted.seen)
    assert len(noted.seen) == engine.stats.counts["draft_forwards"]
    return [width for _, width, _ in noted.seen]


def test_a_draft_model_reads_what_it_lacks_in_as_few_tokens_as_it_can(tmp_path: Path, assemble: Make) -> None:
    """One token at first, two after proposals that were all accepted, one more after each step without any; a
    second request in the row begins with one again."""
    engine = assemble(backend="reference").engine(f"draft_model(model={save_target('llama', tmp_path)})", k=3)
    asked = [0, 3, 3, 0, 0, 3, 1, 3, *[0] * 6, 3]
    emitted = sum(k + 1 for k in asked)
    expected = [2, 1, 1, 2, 1, 1, 4, 1, 1, 2, 2, 1, 1, 8, 1, 1]
    assert widths_by_step(engine, [*asked, 3, 3, *[0] * 99], emitted, count=2)[: len(expected) + 6] == [
        *expected,
        *(1, 1, 1, 2, 1, 1),
    ]


@pytest.mark.parametrize("text", ["tree(model={path}, beam=2, depth=3)", "tree(model={path}, widths=2-1)"])
def test_a_trees_model_reads_the_nodes_again_at_each_depth(text: str, tmp_path: Path, assemble: Make) -> None:
    """The window of a depth has all nodes that were expanded before, so two more at each."""
    engine = assemble(backend="reference").engine(text.format(path=save_target("llama", tmp_path)), k=6)
    depth = 3 if "depth" in text else 2
    found = widths_by_step(engine, [6] * 99, 24)
    at = 0
    steps = []
    while at < len(found):
        steps.append(found[at : at + depth])
        at += depth
    assert steps[0] == [1, *[2 * (i + 1) for i in range(depth - 1)]]
    assert all(step[1:] == steps[0][1:] for step in steps if len(step) == depth and step is not steps[-1])
    assert {step[0] for step in steps[1:-1]} <= {*range(1, depth + 2)}


def test_eagles_layer_reads_each_proposal_once_and_then_what_was_accepted(tmp_path: Path, assemble: Make) -> None:
    """A chain of K takes K - 1 forwards of one entry; the verdict's are K + 1 wide, those of steps without proposals
    are read together before the next proposal."""
    build = assemble(backend="reference")
    engine = build.engine(f"eagle(head={saved_head('eagle', build, tmp_path)!r})", k=3)
    noted = NotedForwards(engine)
    ask(engine, [3, 1, 0, 0, 2, 3, *[0] * 99])
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=30))])
    seen = [(phase, width) for phase, width, _ in noted.seen]
    assert seen[:9] == [
        *[("propose", 1)] * 2,
        ("observe", 4),
        ("observe", 2),
        ("propose", 2),
        ("propose", 1),
        ("observe", 3),
        *[("propose", 1)] * 2,
    ]
    assert seen[9] == ("observe", 4)
    loose = [by for _, _, by in noted.seen]
    assert loose[:4] == [0] * 4, "after own proposals the host knows how many entries there are"
    assert min(loose) >= 0


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
