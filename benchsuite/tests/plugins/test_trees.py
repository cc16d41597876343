"""Trees from the drafts: their nodes, their verification, and their counters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import ask, prompts, requests, save_target
from benchsuite.tests.rig import Make, slow_after
from specdec import Context, Request, SamplingParams, SpecdecError, Verdict, Window

# 0 - 1 - 3        slots; 1 and 2 are siblings, 4 continues 2
#   - 2 - 4
TREE = Window(torch.tensor([[9, 5, 6, 7, 7]]), torch.tensor([[-1, 0, 0, 1, 2]]), torch.tensor([5]))


def test_a_path_runs_from_the_root_to_its_node() -> None:
    assert TREE.path_to(torch.tensor([4])).tolist() == [[0, 2, 4, -1, -1]]
    assert TREE.path_to(torch.tensor([0])).tolist() == [[0, -1, -1, -1, -1]]


def test_the_deepest_slot_counts_valid_ones_only() -> None:
    assert TREE.deepest.tolist() == [2]
    assert Window(TREE.tokens, TREE.parents, torch.tensor([3])).deepest.tolist() == [1]
    assert Window(TREE.tokens, TREE.parents, torch.tensor([1])).deepest.tolist() == [0]


@pytest.mark.parametrize(
    ("good", "width", "expected"),
    [
        ([0, 0, 0, 0, 0], 5, [1, 2, 3, 4, 0]),  # no proposal is good: every choice stays
        ([0, 1, 1, 0, 0], 5, [5, 2, 3, 4, 0]),  # the first of two good siblings
        ([0, 0, 1, 0, 1], 5, [6, 2, 7, 4, 0]),  # a good child under a good child
        ([1, 0, 1, 0, 1], 4, [6, 2, 3, 4, 0]),  # padding is not good, and the root has no parent
    ],
)
def test_the_first_good_child_takes_its_parents_choice(good: list[int], width: int, expected: list[int]) -> None:
    window = Window(TREE.tokens, TREE.parents, torch.tensor([width]))
    assert window.prefer(torch.tensor([good]).bool(), torch.tensor([[1, 2, 3, 4, 0]])).tolist() == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(1, ["llama", "gemma3", "mistral", "gpt2"]))
def test_every_node_of_a_models_tree_is_a_likely_child_of_its_parent(
    family: str, tmp_path: Path, assemble: Make
) -> None:
    """The draft is the target, so the target's own logits are the expected ones.

    A stale position, a visible cousin or a lost token changes the distributions, also where no output changes.
    """
    engine = assemble(family, max_rows=3).engine(f"tree(model={save_target(family, tmp_path)}, beam=3, depth=3)", k=12)
    ask(engine, [12, 12, 0, 12, 0, 0] * 60)
    depths: set[int] = set()

    def judge(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in range(context.rows):
            for slot in range(1, int(window.width[row])):
                distribution = logits[row, window.parents[row, slot]]
                assert distribution[window.tokens[row, slot]] >= distribution.topk(3).values[-1] - 1e-4
                depths.add(int(window.depth[row, slot]))

    engine.trace = judge
    engine.run(requests(SamplingParams(max_new_tokens=40), count=6))
    assert depths == {1, 2, 3}
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 1.0]))
def test_a_tree_of_the_target_itself_is_kept_to_its_full_depth(
    temperature: float, tmp_path: Path, assemble: Make
) -> None:
    """All 3 + 9 nodes are verified; under the coupled policy the target's own draw is among them."""
    engine = assemble("llama", max_rows=3).engine(
        f"tree(model={save_target('llama', tmp_path)}, beam=3, depth=2)", k=12
    )
    kept: set[int] = set()

    def watch(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        whole = [row for row in range(context.rows) if context.max_proposals_host[row] == 12]
        kept.update(int(verdict.num_accepted[row]) for row in whole)

    engine.trace = watch
    engine.run(requests(SamplingParams(temperature=temperature, max_new_tokens=60), count=6))
    assert kept == {2}


@pytest.mark.slow
def test_widths_say_how_many_children_a_node_has_at_each_depth(tmp_path: Path, assemble: Make) -> None:
    """3 + 6 + 6 nodes; the draft is the target, so each child is one of its parent's likeliest tokens."""
    engine = assemble("llama").engine(f"tree(model={save_target('llama', tmp_path)}, widths=3-2-1)", k=15)
    shapes: set[tuple[tuple[int, int], ...]] = set()

    def judge(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        parents, depth = window.parents[0].tolist(), window.depth[0].tolist()
        if int(window.width[0]) == 16:
            shapes.add(tuple(sorted((depth[slot], parents.count(slot)) for slot in range(16))))
            for slot in range(1, 16):
                distribution = logits[0, parents[slot]]
                assert (
                    distribution[window.tokens[0, slot]]
                    >= distribution.topk((3, 2, 1)[depth[slot] - 1]).values[-1] - 1e-4
                )

    engine.trace = judge
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=40))])
    assert shapes == {((0, 3), *[(1, 2)] * 3, *[(2, 1)] * 6, *[(3, 0)] * 6)}
    with pytest.raises(SpecdecError, match="widths='3-x'; expected whole numbers from 1 on, as 4-2-1"):
        assemble("llama").engine("tree(widths=3-x)", k=4)


@pytest.mark.slow
def test_a_tree_counts_by_depth_and_copies_its_path_only(tmp_path: Path, assemble: Make) -> None:
    build = assemble("llama")
    engine = build.engine(f"tree(model={save_target('llama', tmp_path)}, beam=3, depth=3)", k=21)
    moved: list[int] = []

    def watch(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        path = verdict.path[0, : int(verdict.num_accepted[0]) + 1].tolist()
        moved.append(sum(slot != place for place, slot in enumerate(path)))
        assert int(window.deepest[0]) <= 3

    engine.trace = watch
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=60))])
    stats, counts = engine.stats, engine.stats.counts
    cell = engine.arena.bytes_per_token(engine.arena.layers, build.target.dtype)
    assert counts["kv_bytes_copied"] == sum(moved) * cell > 0
    assert len(stats.proposed_per_pos) == 3
    assert stats.proposed_per_pos[0] == counts["num_drafts"]
    assert sum(stats.accepted_per_pos) == counts["num_accepted_tokens"]
    assert counts["num_draft_tokens"] > 6 * counts["num_drafts"]


def test_improbable_nodes_are_pruned_row_by_row(tmp_path: Path, assemble: Make) -> None:
    """Each path has a probability of at least 0.1: at most ten nodes at a depth, and rows of different shapes."""
    widths = []
    engine = assemble("llama", max_rows=3).engine("tree(beam=4, depth=3, least=0.1)", k=15)
    engine.trace = lambda context, window, logits, verdict: widths.append(tuple(window.width.tolist()))
    engine.run(requests(count=3))
    assert max(map(max, widths)) < 16
    assert any(len(set(row)) > 1 for row in widths if len(row) > 1)


def test_trees_need_a_policy_that_reads_them(assemble: Make) -> None:
    with pytest.raises(SpecdecError, match="proposes trees and the policy Block reads chains only"):
        assemble().engine("suffix(branches=2)", "block", k=4)
