"""A tree of a model's likeliest proposals, grown depth by depth on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec import Context, Window
from specdec.processors import adjusted
from specdec.sampling import Purpose, gumbel
from specdec_plugins.chain import widened

STEP = 1e-3
"""Subtracted from the score at each depth, so that a child with probability 1 is not chosen before its parent."""


def wanted(
    context: Context,
    logits: Tensor,
    depth: int | Tensor,
    paths: Tensor | None = None,
    ids: Tensor | None = None,
    vocabulary: int = 0,
) -> Tensor:
    """Log-probabilities [B, W, D] for proposing tokens, from logits [B, W, D] over ``ids`` int64 [D] (None: all V).

    ``depth`` is the depth of the nodes before the tokens (0: the root), an int or int64 [W]; ``paths`` int64
    [B, W, depth] are the proposals on the way to them (None: unknown). Under a coupled policy that samples, the logits
    include the target's noise, so that the token that it would draw ranks first; a greedy row beside sampled ones has
    the log-probabilities that it has without them.
    """
    params, noisy = context.params, context.coupled and not context.params.greedy
    if noisy or params.adjustments is not None:
        paths = logits.new_zeros((*logits.shape[:2], 0), dtype=torch.int64) if paths is None else paths
        whole = widened(logits.float(), ids, vocabulary)
        if noisy:
            # A greedy row's own distribution is one-hot, and its tree would have no siblings.
            whole = context.ops.process(whole, params.ungreedy(), paths)
        elif params.adjustments is not None:
            whole = adjusted(whole, params.adjustments, paths)
        logits = whole if ids is None else whole.index_select(-1, ids)
    if noisy:
        position = context.length[:, None] + depth
        tokens = torch.arange(logits.shape[-1], device=logits.device) if ids is None else ids
        noise = gumbel(context.ops.noise_keys(params.stream, position, 0)[Purpose.TARGET], tokens)
        logits = logits + torch.where(params.temperature[:, None, None] > 0, noise, 0.0)
    return logits.float().log_softmax(dim=-1)


class Growth:
    """Nodes with the log-probability of their whole path; the likeliest nodes are verified.

    At each depth, each of the ``beam`` likeliest new nodes is expanded into its ``beam`` + ``leaves`` likeliest
    children, and the window takes the best of all nodes (EAGLE-2, Li et al. 2406.16858, section 4). With ``widths``,
    every node of depth i is expanded into ``widths[i]`` children (SpecInfer, Miao et al. 2305.09781, section 3). Nodes
    are certain: they depend on the context alone, so any policy may judge them, greedy or sampled.

    Letters: B rows, D the draft's vocabulary, N nodes so far, F nodes of the frontier. ``tokens``, ``parents`` (-1:
    the root) and ``score`` are [B, N]; ``frontier`` [B, F] holds the nodes to expand next, and ``paths`` int64
    [B, F, depth] the tokens on the way to each.
    """

    def __init__(
        self, distribution: Tensor, ids: Tensor | None, beam: int, widths: Sequence[int] = (), leaves: int = 0
    ) -> None:
        self._ids, self._beam, self._children, self._widths = ids, beam, beam + leaves, deque(widths)
        rows = distribution.shape[0]
        none = torch.zeros(rows, 0, dtype=torch.int64, device=distribution.device)
        self.tokens, self.parents, self.score = none, none, none.to(distribution.dtype)
        self.frontier, self.paths = none[:, :1], none[:, None]
        self._add(
            distribution[:, None],
            torch.full((rows, 1), -1, device=distribution.device),
            distribution.new_zeros(rows, 1),
        )

    def expand(self, distribution: Tensor) -> None:
        """Add one depth, from log-probabilities [B, F, D] after each node of the frontier."""
        self._add(distribution, self.frontier, self.score.gather(1, self.frontier))

    def _add(self, distribution: Tensor, parents: Tensor, score: Tensor) -> None:
        children = min(self._widths.popleft() if self._widths else self._children, distribution.shape[-1])
        expanded = min(self._beam, distribution.shape[1] * children)
        top = distribution.topk(children, dim=-1)
        found = top.indices if self._ids is None else self._ids[top.indices]
        first = self.tokens.shape[1]
        scores = (score[:, :, None] + top.values - STEP).flatten(1)
        self.tokens = torch.cat([self.tokens, found.flatten(1)], dim=1)
        self.parents = torch.cat([self.parents, parents[:, :, None].expand_as(found).flatten(1)], dim=1)
        self.score = torch.cat([self.score, scores], dim=1)
        # Sorted by node number, so that siblings stay in order.
        chosen = scores.topk(expanded, dim=1).indices.sort(dim=1).values
        self.frontier = chosen + first
        before = (chosen // children)[:, :, None].expand(-1, -1, self.paths.shape[2])
        tokens = found.flatten(1).gather(1, chosen)
        self.paths = torch.cat([self.paths.gather(1, before), tokens[:, :, None]], dim=2)

    def window(self, context: Context, most: int, least: float) -> Window:
        """A window of each row's likeliest nodes: at most ``most``, as many as it may propose, none below ``least``."""
        rows, nodes = self.tokens.shape
        most = min(most, nodes)
        best = self.score.topk(most, dim=1)
        likely = best.values > torch.log(torch.tensor(least)) if least > 0 else best.values.isfinite()
        numbers = torch.arange(1, most + 1, device=likely.device).expand(rows, -1)
        likely &= numbers <= context.max_proposals[:, None]
        # A node's number is above its parent's, so order by number keeps parents first; nodes left out go last.
        chosen = torch.where(likely, best.indices, nodes).sort(dim=1).values
        inside = chosen < nodes
        chosen = chosen.clamp(max=nodes - 1)
        slot = torch.zeros(rows, nodes + 1, dtype=torch.int64, device=chosen.device)
        slot.scatter_(1, torch.where(inside, chosen, nodes), numbers)
        above = self.parents.gather(1, chosen)
        parents = torch.where(inside & (above >= 0), slot.gather(1, above.clamp(min=0)), 0)
        tokens = torch.cat([context.pending[:, None], self.tokens.gather(1, chosen)], dim=1)
        root = torch.full((rows, 1), -1, dtype=torch.int64, device=chosen.device)
        return Window(tokens, torch.cat([root, parents], dim=1), inside.sum(dim=1) + 1)


class Forest:
    """The expanded nodes of a growth as one window for the drafting model, with several roots.

    The model processes all expanded nodes again at each depth, which keeps its arena as simple as the target's:
    committed tokens, then one window. ``parents`` are -1 for the children of the pending token.
    """

    def __init__(self) -> None:
        self.nodes: Tensor | None = None

    def window(self, growth: Growth) -> Window:
        """Add the growth's frontier to the forest; returns the window, whose last F slots are the frontier."""
        frontier = growth.frontier
        self.nodes = frontier if self.nodes is None else torch.cat([self.nodes, frontier], dim=1)
        rows, size = self.nodes.shape
        above = growth.parents.gather(1, self.nodes)
        # The slot of a node's parent: the parent of an expanded node was expanded too.
        same = above[:, :, None] == self.nodes[:, None, :]
        slots = torch.arange(size, device=above.device)
        parents = torch.where(above < 0, -1, (same * slots).sum(dim=2))
        tokens = growth.tokens.gather(1, self.nodes)
        return Window(tokens, parents, torch.full((rows,), size, dtype=torch.int64, device=above.device))
