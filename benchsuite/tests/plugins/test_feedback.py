"""Drafts that feed their own states back, with a table in place of the head: all outcomes of whole runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import Shape, chain
from benchsuite.conformance.exact.exact_runs import one, run_distance
from benchsuite.conformance.exact.table_target import Table, Tabular, random_table
from benchsuite.conformance.models.tiny import policy_named
from benchsuite.tests.rig import slow_after
from specdec import Context, Env, Window
from specdec.arena import LayerShape, Plan
from specdec.runtime import Eager
from specdec.stats import RowStats
from specdec_kernels.reference import Reference
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead


class TableHead(FeedbackHead):
    """Its state is the log-distribution after the tokens that a slot sees, all but the text's first; float64.

    The arena is its only memory: an entry holds a token and its position in place of a key and a value.
    """

    weight_bytes, ids = 0, None

    def __init__(self, table: Table, vocabulary: int) -> None:
        self._table, self.size, self.layers = table, vocabulary, [LayerShape(1, 1, None)]

    def feature(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(*hidden.shape[:2], self.size)

    def step(self, tokens: Tensor, feature: Tensor, plan: Plan) -> Tensor:
        at = plan.at(0)
        new = plan.position[:, None, :, None].double(), tokens[:, None, :, None].double()
        plan.ops.kv_append(at.keys, at.values, *new, at.cells)
        return torch.tensor(
            [
                [self._after(row, slot, mask, plan) for slot, mask in enumerate(slots)]
                for row, slots in enumerate((at.mask[:, 0] == 0).tolist())
            ],
            dtype=torch.float64,
        ).log()

    def _after(self, row: int, slot: int, mask: list[bool], plan: Plan) -> tuple[float, ...]:
        at = plan.at(0)
        seen = [
            (int(at.keys[row, 0, cell, 0]), int(at.values[row, 0, cell, 0])) for cell, sees in enumerate(mask) if sees
        ]
        places = [place for place, _ in sorted(seen)]
        assert places == [*range(int(plan.position[row, slot]) + 1)], f"a slot sees entries at {places}"
        return tuple(self._table(tuple(token for _, token in sorted(seen))))

    def logits(self, feature: Tensor) -> Tensor:
        return feature


class TableFeedback(FeedbackDraft):
    """Asserts that each proposal was drawn from the table's distribution after the row's text and its predecessors."""

    needs_hidden, nodes = True, 1

    def __init__(self, table: Table, shape: Shape, certain: bool) -> None:
        most, vocabulary = len(shape.parents) - 1, len(table(()))
        target = Tabular(table, vocabulary, Reference())
        none = cast(Any, None)
        env = Env(target, none, Reference(), 2, 12, most + 1, 0, none, none, Eager(), none)
        super().__init__(env, TableHead(table, vocabulary), 0, self.nodes, 2, 0.0)
        self._rule = table

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        for row in range(context.rows):
            text = context.history[row, 1 : context.length_host[row]].tolist()
            for depth in range(int(window.width[row]) - 1 if text and window.q is not None else 0):
                assert window.q is not None
                due = self._rule((*text, *window.tokens[row, 1 : 1 + depth].tolist()))
                assert window.q[row, depth].tolist() == pytest.approx(list(due), abs=1e-12)
        return window


class TableTree(TableFeedback):
    """The same, drafting trees, whose nodes are certain."""

    nodes = 2


def _now_and_then(row: RowStats) -> int:
    return (0, 2, 0, 0, 1)[row.steps % 5]


@pytest.mark.parametrize(
    ("policy", "k", "draft", "k_of"),
    slow_after(
        2,
        [
            ("rejection", 2, TableFeedback, _now_and_then),
            ("tree_rejection", 4, TableTree, None),
            ("rejection", 2, TableFeedback, None),
            ("block", 3, TableFeedback, None),
        ],
    ),
)
def test_proposals_follow_from_the_text_and_outputs_are_the_targets_in_every_outcome(
    policy: str, k: int, draft: type[TableFeedback], k_of: Callable[[RowStats], int] | None
) -> None:
    """Accepted, rejected or left out: the entries are those of the text, and the distribution is exact."""
    assert run_distance(policy_named(policy), 2, chain(k), one(4), draft=draft, k_of=k_of) < 1e-12
    assert random_table("q", 2)((0,)) != random_table("q", 2)((1,)), "the table does not depend on the text"
