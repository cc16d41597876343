"""What adapters of other projects' drafts share: their package, imported when it is asked for, and their windows."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from specdec import Context, SpecdecError, Window
from specdec.peer import absent


def guest_module(draft: str, module: str, extra: str) -> Any:
    """A module of an optional package, imported now. SpecdecError if it is not installed, or cannot be imported.

    Example: ``guest_module("rest", "draftretriever", "rest").Reader``
    """
    hint = f"python -m benchsuite guests {draft} sets up an environment that has it"
    if reason := absent(module.partition(".")[0], extra):
        raise SpecdecError(f"the draft {draft} cannot be built: {reason}; {hint}")
    try:
        return import_module(module)
    except ImportError as error:
        raise SpecdecError(f"the draft {draft} cannot import {module}: {error}; {hint}") from error


def window_of_tensors(
    context: Context, proposed: Sequence[Tensor], counts: Sequence[Tensor], q: Sequence[Tensor] | None = None
) -> Window:
    """A window of each row's proposals, int64 [n] on the engine's device, of which the first ``counts``, int64 [],
    are real; nothing is read there.

    ``q``: float32 [n, V] for each row, from which its proposals were drawn; None: all of them are certain.
    """
    size = max(len(tokens) for tokens in proposed)

    def wide(part: Tensor) -> Tensor:
        return torch.nn.functional.pad(part, (0, 0) * (part.dim() - 1) + (0, size - len(part)))

    drawn = None if q is None else torch.stack([wide(rows) for rows in q])
    return Window.chain(
        context.pending, torch.stack([wide(tokens) for tokens in proposed]), torch.stack([*counts]), drawn
    )


def count_of(tokens: Tensor) -> Tensor:
    """How many proposals there are, int64 [] on their device, without a copy from the host."""
    return torch.full((), len(tokens), dtype=torch.int64, device=tokens.device)
