"""Drafts with heads that have entries of the text, with a table in place of the head: all outcomes of whole runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import Shape, chain
from benchsuite.conformance.exact.exact_runs import one, run_distance
from benchsuite.conformance.exact.table_target import Table, Tabular, random_table
from benchsuite.conformance.models.tiny import policy_named
from benchsuite.tests.rig import slow_after
from specdec import Context, Draft, Env, Window
from specdec.arena import LayerShape, Plan
from specdec.runtime import Eager
from specdec.stats import RowStats
from specdec_kernels.reference import Reference
from specdec_plugins.chain import Chain
from specdec_plugins.drafts.peagle import Peagle
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead
from specdec_plugins.whole_blocks import BlockDraft, BlockHead


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


def table_env(table: Table, shape: Shape) -> Env:
    """What a draft over a table's target is built from."""
    none = cast(Any, None)
    target, most = Tabular(table, len(table(())), Reference()), len(shape.parents) - 1
    return Env(target, none, Reference(), 2, 12, most + 1, 0, none, none, Eager(), none)


def drawn_as_due(window: Window, context: Context, due: Callable[[list[int], list[int]], Sequence[float]]) -> Window:
    """The window, each of whose proposals was drawn from ``due`` of the row's text and the proposals before it."""
    for row in range(context.rows):
        text = context.history[row, : context.length_host[row]].tolist()
        for depth in range(int(window.width[row]) - 1 if window.q is not None else 0):
            assert window.q is not None
            wanted = due(text, window.tokens[row, 1 : 1 + depth].tolist())
            assert window.q[row, depth].tolist() == pytest.approx(list(wanted), abs=1e-12)
    return window


class TableFeedback(FeedbackDraft):
    """Each proposal is drawn from the table's distribution after the row's text and its predecessors."""

    needs_hidden, nodes, leaves = True, 1, 0

    def __init__(self, table: Table, shape: Shape, certain: bool) -> None:
        super().__init__(table_env(table, shape), TableHead(table, len(table(()))), 0, self.nodes, 2, 0.0, self.leaves)
        self._rule = table

    def propose(self, context: Context) -> Window:
        return drawn_as_due(super().propose(context), context, lambda text, before: self._rule((*text[1:], *before)))


class TableTree(TableFeedback):
    """The same, drafting trees, whose nodes are certain."""

    nodes = 2


class TableLeaves(TableFeedback):
    """The same, drafting a chain with another token beside each of its proposals."""

    leaves = 1


class TableMasks(Peagle):
    """Each proposal is drawn from the distribution after the row's text and as many masks as there are before it."""

    needs_hidden = True

    def __init__(self, table: Table, shape: Shape, certain: bool) -> None:
        vocabulary = len(table(()))
        head, masked = TableHead(table, vocabulary), torch.zeros(1, 1, vocabulary, dtype=torch.float64)
        super().__init__(table_env(table, shape), head, vocabulary, masked, (), 0)
        self._rule = table

    def propose(self, context: Context) -> Window:
        return drawn_as_due(
            super().propose(context),
            context,
            lambda text, before: self._rule((*text[1:], *[self._mask] * len(before))),
        )


class TableBlock(BlockHead):
    """A block's proposals are drawn from distributions after all tokens that its last slot sees, and their places.

    The arena is its only memory: an entry holds its position and the target's state, which is a token.
    """

    weight_bytes = 0

    def __init__(self, table: Table, vocabulary: int, proposals: int) -> None:
        self._table, self._vocabulary, self.layers = table, vocabulary, [LayerShape(1, 1, None)]
        self.block, self.mask, self.proposals = proposals + 1, vocabulary, proposals

    def enter(self, states: Tensor, plan: Plan) -> None:
        at = plan.at(0)
        plan.ops.kv_append(at.keys, at.values, plan.position[:, None, :, None].double(), states[:, None], at.cells)

    def window(self, context: Context, block: Tensor, plan: Plan, k: int) -> Window:
        self.enter(block[:, :, None].double(), plan)
        at, found = plan.at(0), list[list[tuple[float, ...]]]()
        for row, mask in enumerate((at.mask[:, 0, -1] == 0).tolist()):
            cells = zip(at.keys[row, 0, :, 0].tolist(), at.values[row, 0, :, 0].tolist(), mask, strict=False)
            seen = sorted((place, int(token)) for place, token, sees in cells if sees)
            assert [place for place, _ in seen] == [*range(int(plan.position[row, -1]) + 1)], seen
            found.append([tuple(self._table((*(token for _, token in seen), place))) for place in range(k)])
        chain, logits = Chain(context, self._vocabulary), torch.tensor(found, dtype=torch.float64).log()
        for place in range(k):
            chain.propose(logits[:, place : place + 1])
        return chain.window()


class TableBlocks(BlockDraft):
    """Each proposal is drawn from the distribution after the row's text, a block of masks and its place."""

    needs_hidden = True

    def __init__(self, table: Table, shape: Shape, certain: bool) -> None:
        head = TableBlock(table, len(table(())), len(shape.parents) - 1)
        super().__init__(table_env(table, shape), head, (), 0)
        self._rule, self._masks = table, [head.mask] * head.proposals

    def propose(self, context: Context) -> Window:
        return drawn_as_due(
            super().propose(context), context, lambda text, before: self._rule((*text, *self._masks, len(before)))
        )


def _now_and_then(row: RowStats) -> int:
    return (0, 2, 0, 0, 1)[row.steps % 5]


@pytest.mark.parametrize(
    ("policy", "k", "draft", "k_of"),
    slow_after(
        4,
        [
            ("rejection", 2, TableFeedback, _now_and_then),
            ("tree_rejection", 4, TableTree, None),
            ("tree_rejection", 4, TableLeaves, None),
            ("tree_rejection", 4, TableLeaves, _now_and_then),
            ("rejection", 2, TableMasks, None),
            ("rejection", 2, TableBlocks, None),
            ("rejection", 2, TableMasks, _now_and_then),
            ("rejection", 2, TableBlocks, _now_and_then),
            ("block", 3, TableBlocks, None),
            ("rejection", 2, TableFeedback, None),
            ("block", 3, TableFeedback, None),
        ],
    ),
)
def test_proposals_follow_from_the_text_and_outputs_are_the_targets_in_every_outcome(
    policy: str, k: int, draft: Callable[[Table, Shape, bool], Draft], k_of: Callable[[RowStats], int] | None
) -> None:
    """Accepted, rejected or left out: the entries are those of the text, and the distribution is exact."""
    assert run_distance(policy_named(policy), 2, chain(k), one(4), draft=draft, k_of=k_of) < 1e-12
    assert random_table("q", 2)((0,)) != random_table("q", 2)((1,)), "the table does not depend on the text"
