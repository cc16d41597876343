"""A DFlash head of random weights for the tiny targets, its draft, and what each slot of its block must see."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specdec import Draft, Env
from specdec.arena import Arena
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.dflash import PublishedBlock
from specdec_plugins.heads.dflash_head import BlockShape, DFlashHead
from specdec_plugins.reading import known_text
from specdec_plugins.whole_blocks import BlockDraft

SHAPE = BlockShape(
    hidden=32,
    intermediate=24,
    heads=2,
    heads_kv=1,
    head_dim=8,
    eps=1e-5,
    taps=2,
    block=4,
    windows=(6, 0, 6),
    ahead=False,
)


def random_block_head(shape: BlockShape = SHAPE) -> DFlashHead:
    """A head of seeded random weights, whose embeddings and rows are the target's."""
    head = DFlashHead(shape, mask=3, inverse=1.0 / 1e4 ** (torch.arange(0, shape.head_dim, 2) / shape.head_dim))
    dice = torch.Generator().manual_seed(0)
    for weight in head.parameters():
        drawn = torch.randn(weight.shape, generator=dice)
        weight.data = 1 + 0.2 * drawn if weight.dim() == 1 else drawn / weight.shape[1] ** 0.5
    return head


def random_blocks(env: Env) -> Draft:
    """A draft with that head, over the outputs of a target's first two layers."""
    return BlockDraft(env, PublishedBlock(env, random_block_head()), (0, 1), 3)


def block_states(shape: BlockShape, text: Tensor, embedded: Tensor) -> Tensor:
    """States [B, block, H] of a block ``embedded`` [B, block, H] behind a text of fused states [B, T, n H]."""
    head, ops, rows = random_block_head(shape), Reference(), slice(0, len(text))
    arena = Arena(
        shape.spans(), rows=len(text), max_length=64, max_window=16, dtype=torch.float32, device=torch.device("cpu")
    )
    weights = head.weights(ops)
    plan = arena.plan(known_text(torch.zeros(text.shape[:2], dtype=torch.int64)), ops, rows, 0)
    head.enter_text(ops, text, plan, weights)
    arena.committed += text.shape[1]
    plan = arena.plan(known_text(torch.zeros(embedded.shape[:2], dtype=torch.int64)), ops, rows, text.shape[1])
    states: Tensor = head(ops, embedded, plan.position, head.cells(plan), weights)
    return states


def slots_see_what_they_should() -> None:
    """AssertionError unless a change of one token is seen by those slots that see it, and by no other.

    A text of 12 states and a block of 4 over one layer: without a window, and with one in each of its conventions.
    """
    dice = torch.Generator().manual_seed(1)
    text, block = (torch.randn(1, size, 64 // part, generator=dice) for size, part in ((12, 1), (4, 2)))
    for windows, anchored, ahead in (
        *(((0,), True, ahead) for ahead in (True, False)),
        *(((6,), anchored, ahead) for anchored in (True, False) for ahead in (True, False)),
    ):
        shape = replace(SHAPE, windows=windows, anchored=anchored, ahead=ahead)
        before = block_states(shape, text, block)
        for changed in range(16):
            other, masks = text.clone(), block.clone()
            (other if changed < 12 else masks)[0, changed % 12] += 1
            apart = (block_states(shape, other, masks) - before)[0].abs().amax(dim=1) > 1e-6
            for slot, sees in enumerate(apart.tolist()):
                back = (12 if anchored else 12 + slot) - changed  # tokens back from where the window is counted
                if changed < 12:
                    due = not windows[0] or back <= windows[0] - (not anchored)
                else:
                    due = not windows[0] or ahead or changed - 12 <= slot
                said = f"windows {windows}, anchored {anchored}, ahead {ahead}"
                assert sees == due, f"{said}: slot {slot} {'sees' if sees else 'does not see'} token {changed}"
