"""How a draft with keys and values of its own reads text that is already known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec import Window


def known_text(tokens: Tensor) -> Window:
    """The window of a text's ``tokens`` int64 [B, W]: a chain, full in every row.

    Example: ``known_text(context.pending[:, None])``
    """
    return Window.chain(tokens[:, 0], tokens[:, 1:], torch.full_like(tokens[:, 0], tokens.shape[1] - 1))


def caught_up(forward: Callable[[Window], Tensor], tokens: Tensor, last: Tensor) -> Tensor:
    """Read ``tokens`` int64 [B, W] of each row's text; returns what ``forward`` gives for slot ``last`` int64 [B].

    ``forward`` maps a window to [B, W, D], and the result is [B, 1, D]. Rows that lack fewer tokens than the others
    read on past their end, so that a row's ``last`` is one less than the tokens that it lacks.

    Example: ``caught_up(lambda window: model.forward(arena, window, rows, longest)[0], tokens, missing - 1)``
    """
    read = forward(known_text(tokens))
    return read.gather(1, last[:, None, None].expand(-1, 1, read.shape[2]))


def of_path(states: Tensor, path: Tensor) -> Tensor:
    """The states [B, N, …] of the slots ``path`` int64 [B, N], the root first, from those of all slots [B, W, …].

    Example: ``of_path(hidden, verdict.path.clamp(min=0))``
    """
    if path.shape[1] == 1:
        return states[:, :1]
    flat = states.flatten(2)
    kept = flat.gather(1, path[:, :, None].expand(-1, -1, flat.shape[2]))
    return kept.view(*path.shape, *states.shape[2:])
