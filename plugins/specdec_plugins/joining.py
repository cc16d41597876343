"""Windows of several drafts as one: rows of either, chains that go on behind chains, trees that grow together.

All of it is computed on the device, because the host does not know what a model has drawn. A proposal keeps its
draft's confidence; what was looked up has none. Letters as in ``specdec.messages``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec import Window
from specdec.confidence import NO_ESTIMATE


def rows_of_either(looked: Window, drafted: Window, theirs: Tensor) -> Window:
    """Rows of ``drafted`` where ``theirs`` bool [B] is true, else rows of ``looked``, chains that are certain."""
    size = max(looked.tokens.shape[1], drafted.tokens.shape[1])

    def either(one: Tensor, other: Tensor) -> Tensor:
        one, other = (F.pad(part, (0, size - part.shape[1])) for part in (one, other))
        return torch.where(theirs[:, None], one, other)

    tokens, parents = either(drafted.tokens, looked.tokens), either(drafted.parents, looked.parents)
    width = torch.where(theirs, drafted.width, looked.width)
    q = None
    if drafted.q is not None:
        q = F.pad(drafted.q, (0, 0, 0, size - 1 - drafted.q.shape[1]))
        q = torch.where(theirs[:, None, None], q, _certain(tokens[:, 1:], q))
    return Window(tokens, parents, width, q, _told(drafted, theirs[:, None], size))


def continued(window: Window, tokens: Tensor, count: Tensor, room: Tensor) -> Window:
    """Chains with ``count`` int64 [B] of ``tokens`` int64 [B, M] behind each row's last proposal.

    A row without a proposal stays without, and none that goes on has more than ``room`` int64 [B]. What goes on is
    certain: whatever was drawn before, the tokens follow from it.

    Example: behind the chain 5 6, with ``tokens`` ``[[7, 8]]`` and ``count`` ``[2]``, the chain is 5 6 7 8.
    """
    most, proposed = tokens.shape[1], window.width - 1
    size = max(window.tokens.shape[1], most + 1)
    place = window.width[:, None] + torch.arange(most, device=tokens.device)
    wide = F.pad(window.tokens, (0, size + most - window.tokens.shape[1])).scatter(1, place, tokens)[:, :size]
    more = torch.minimum(count, room.clamp(max=size - 1) - proposed).clamp(min=0)
    more = torch.where(proposed > 0, more, 0)
    before = torch.arange(size, device=tokens.device) < window.width[:, None]
    q = None
    if window.q is not None:
        own = F.pad(window.q, (0, 0, 0, size - 1 - window.q.shape[1]))
        q = torch.where(before[:, 1:, None], own, _certain(wide[:, 1:], own))
    return Window.chain(wide[:, 0], wide[:, 1:], proposed + more, q, _told(window, before, size))


def grown_together(elder: Window, younger: Window, first: Tensor, room: Tensor, most: int) -> Window:
    """One tree of two with the same pending token; a path that both have occurs once, as the elder's, which is certain.

    The elder's ``first`` int64 [B] proposals come first. The others are in order of depth, at each depth the elder's
    before the younger's, and what is over ``room`` int64 [B], at most ``most``, is left out: the deepest, which are
    accepted only if all before them are.

    A younger node is tried after the elder's siblings and only if it is none of them: its q is what it was drawn from,
    without their tokens. A path that both have keeps the younger's confidence.

    Example: the chains 5 6 7 and 5 8 are the tree 5 → 6 → 7 and 5 → 8, with the tokens 5 6 8 7 and parents -1 0 0 1, if
    ``first`` is 0 or 1.
    """
    (rows, width), device = elder.tokens.shape, elder.tokens.device
    size = width + younger.tokens.shape[1] - 1
    ours, theirs = _nodes(elder), _nodes(younger)
    shared, twin = _twins(elder, younger, ours, theirs)
    # The nodes of both, the elder's first, by numbers: node i of the younger has number width - 1 + i.
    above = younger.parents[:, 1:].clamp(min=0)
    of_twin = shared.gather(1, above)
    above = torch.where(above == 0, 0, torch.where(of_twin, twin.gather(1, above), width - 1 + above))
    parents = torch.cat([elder.parents.clamp(min=0), above], dim=1)
    tokens = torch.cat([elder.tokens, younger.tokens[:, 1:]], dim=1)
    kept = torch.cat([ours, (theirs & ~shared)[:, 1:]], dim=1)
    kept[:, 0] = True
    depth = torch.cat([elder.depth, younger.depth[:, 1:]], dim=1)
    numbers = torch.arange(size, device=device)
    turn = torch.where(numbers <= first[:, None], 0, depth)
    order = torch.where(kept, turn * size, size * size).add(numbers).argsort(dim=1)
    slot = torch.empty_like(order).scatter_(1, order, numbers.expand(rows, -1))
    order, slots = order[:, : most + 1], numbers[: most + 1]
    nodes = torch.minimum(kept.sum(dim=1), room + 1)
    inside = slots < nodes[:, None]
    placed = torch.where(inside, slot.gather(1, parents.gather(1, order)), 0)
    placed[:, 0] = -1
    q = None
    if younger.q is not None:
        elders = (elder.parents[:, None] == above[:, :, None]) & ours[:, None]
        drawn = _without(younger.q, elder.tokens, elders)
        both = torch.cat([_certain(elder.tokens[:, 1:], drawn), drawn], dim=1)
        q = both.gather(1, (order[:, 1:, None] - 1).expand(-1, -1, both.shape[2]))
    sure = _told(younger, theirs, younger.tokens.shape[1])
    if sure is not None:
        of_both = torch.where(shared, sure, NO_ESTIMATE)
        elders = torch.full_like(elder.tokens, NO_ESTIMATE, dtype=sure.dtype).scatter_reduce(1, twin, of_both, "amax")
        sure = torch.cat([elders, sure[:, 1:]], dim=1).gather(1, order)
    return Window(tokens.gather(1, order), placed, nodes, q, sure)


def _told(window: Window, where: Tensor, size: int) -> Tensor | None:
    """A window's confidence in the slots ``where`` bool [B or 1, W or 1], of ``size`` slots; None if it has none."""
    if window.confidence is None:
        return None
    wide = F.pad(window.confidence, (0, size - window.confidence.shape[1]), value=NO_ESTIMATE)
    return torch.where(where, wide, NO_ESTIMATE)


def _nodes(window: Window) -> Tensor:
    """bool [B, W]: the slots that are proposals."""
    slots = torch.arange(window.tokens.shape[1], device=window.tokens.device)
    return (slots > 0) & (slots < window.width[:, None])


def _twins(elder: Window, younger: Window, ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a node of the younger [B, W] is one of the elder too, by the tokens on the way to it, and which."""
    longest = max(elder.paths.shape[2], younger.paths.shape[2])
    mine, other = (F.pad(one.paths, (0, longest - one.paths.shape[2]), value=-1) for one in (elder, younger))
    same = (other[:, :, None] == mine[:, None]).all(dim=3) & theirs[:, :, None] & ours[:, None]
    return same.any(dim=2), same.to(torch.int64).argmax(dim=2)


def _certain(tokens: Tensor, like: Tensor) -> Tensor:
    """One-hot rows of tokens [B, N] over the vocabulary of ``like`` [..., V], in its dtype."""
    rows = like.new_zeros(*tokens.shape, like.shape[-1])
    return rows.scatter_(2, tokens[:, :, None], 1.0)


def _without(q: Tensor, tokens: Tensor, taken: Tensor) -> Tensor:
    """q [B, N, V] without those of ``tokens`` [B, M] that are ``taken`` bool [B, N, M], normalised."""
    rows = tokens[:, None].expand(-1, q.shape[1], -1)
    gone = torch.zeros_like(q).scatter_add_(2, rows, taken.to(q.dtype))
    left = torch.where(gone > 0, 0.0, q)
    mass = left.sum(dim=2, keepdim=True)
    return torch.where((gone > 0).any(dim=2, keepdim=True) & (mass > 0), left / mass, left)
