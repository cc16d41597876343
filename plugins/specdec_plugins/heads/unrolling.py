"""What heads compute at all places of a text at once: for training, with the very dependencies that drafting has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.decoder import Cells
from specdec.interfaces import Backend
from specdec_plugins.heads.dflash_head import DFlashHead
from specdec_plugins.heads.mtp_head import MtpHead

FeedbackStep = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A head's own states [B, T, H] of embeddings, states [B, T, H] and a mask [B, 1, T, L] of all that it was given, this
last; called in turn, it keeps what it was given."""


def fed_back(step: FeedbackStep, embedded: Tensor, hidden: Tensor, steps: int) -> Iterator[Tensor]:
    """Yields the head's own states [B, T, H] after 0, 1 … steps - 1 tokens with its own estimates as input.

    ``embedded`` [B, T, H] are the embeddings of tokens t + 1, ``hidden`` [B, T, H] what the head reads of the target's
    states of tokens t. After r such tokens, index j uses the target's states up to j - r and its own r estimates
    after that, as in drafting (training-time test, EAGLE-3, Li et al. 2503.01840, figure 5).
    """
    batch, length = embedded.shape[:2]
    index = torch.arange(length, device=hidden.device)
    for fed in range(steps):
        blocks = [index[:, None] - index[None, :] >= fed]
        blocks += [index[:, None] - index[None, :] == fed - own for own in range(1, fed + 1)]
        sees = torch.cat(blocks, dim=1)
        mask = hidden.new_zeros(sees.shape).masked_fill_(~sees, float("-inf"))[None, None].expand(batch, 1, -1, -1)
        state = step(embedded, hidden, mask)
        yield state
        hidden = torch.cat([hidden[:, :1], state[:, :-1]], dim=1)


def mtp_step(head: MtpHead) -> FeedbackStep:
    """The step of a module for multi-token prediction, in its own dtype.

    Its layer is any of transformers', whose only interface to earlier entries is a cache of its own making; so what
    was given before is computed again in each step, with the masks that it had.
    """
    base = head.model.base_model
    dtype = base.last.weight.dtype
    given, masks = list[Tensor](), list[Tensor]()

    def step(embedded: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
        batch, length = embedded.shape[:2]
        given.append(base.entry(embedded.to(dtype), hidden.to(dtype)))
        masks.append(mask.to(dtype))
        widest = mask.shape[-1]
        whole = [F.pad(one, (0, widest - one.shape[-1]), value=float("-inf")) for one in masks]
        position = torch.arange(length, device=hidden.device).repeat(len(given)).expand(batch, -1)
        out = base(
            inputs_embeds=torch.cat(given, dim=1),
            attention_mask=torch.cat(whole, dim=2),
            position_ids=position,
            use_cache=False,
        )
        state: Tensor = out.last_hidden_state[:, -length:]
        return (state if head.before else base.last(state)).to(hidden.dtype)

    return step


def unrolled_blocks(head: DFlashHead, ops: Backend, embedded: Tensor, hidden: Tensor, steps: int) -> Iterator[Tensor]:
    """Yields the states [B, T, H] of proposals 1 … ``steps`` of the blocks that begin at every place.

    ``embedded`` [B, T, H] are the embeddings of tokens t + 1, the pending ones, ``hidden`` [B, T, n, H] the target's
    states of tokens t. At an index is the state that estimates the target's of the token there, so that further
    proposals of a block lie at further indices; indices that no block reaches have a state of another place. Each block
    sees the text before its pending token, and all of itself (DFlash, 2602.06036). For heads without windows.
    """
    batch, length = embedded.shape[:2]
    shape, weights, device = head.shape, head.weights(ops), embedded.device
    assert head.masked is not None
    assert not any(shape.windows)
    index = torch.arange(length, device=device)
    slots = torch.arange(shape.block, device=device)
    blocks = torch.cat(
        [embedded[:, :, None], head.masked.to(embedded).expand(batch, length, shape.block - 1, -1)], dim=2
    )
    sees = torch.cat([index[None] <= index[:, None], index.new_ones(length, shape.block, dtype=torch.bool)], dim=1)
    mask = hidden.new_zeros(sees.shape).masked_fill_(~sees, float("-inf"))
    mask = mask[None, :, None, None].expand(batch, -1, 1, shape.block, -1).flatten(0, 1)
    cells = (length + slots).expand(batch * length, -1)
    position = (1 + index[:, None] + slots).expand(batch, -1, -1).flatten(0, 1)
    at = []
    for keys, values in head.entries(ops, hidden.flatten(2), index.expand(batch, -1), weights):
        # A block has a copy of the text's keys and values, behind which its own are written.
        keys, values = (F.pad(text, (0, 0, 0, shape.block)).repeat_interleave(length, dim=0) for text in (keys, values))
        at.append(Cells(keys, values, cells, mask))
    states = head(ops, blocks.flatten(0, 1), position, at, weights).unflatten(0, (batch, length))
    first = 0 if shape.from_first else 1
    for fed in range(steps):
        slot = states[:, :, first + fed]
        yield torch.cat([slot[:, :fed], slot[:, : length - fed]], dim=1)
