"""How sure a draft was of its proposals, on its way to the host: with the step's one read, by its bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec.errors import SpecdecError

NO_ESTIMATE = -1.0
"""In place of a chance, where a draft has none."""


def confidence_bits(confidence: Tensor) -> Tensor:
    """int64 [B, W] that carries the floats [B, W] of ``Window.confidence``."""
    return confidence.float().contiguous().view(torch.int32).long()


def confidence_read(
    bits: npt.NDArray[np.int64], proposed: npt.NDArray[np.int64], owner: str
) -> list[tuple[float | None, ...]]:
    """The confidence of each row's proposals, from the bits [B, W] of their slots; ``proposed`` int64 [B] counts them.

    A proposal without an estimate has None, and a row without any is empty. Raises SpecdecError, which names the draft
    ``owner``, for a number that is no chance.
    """
    values = bits.astype(np.int32).view(np.float32)
    each = [row[1 : 1 + count].tolist() for row, count in zip(values, proposed, strict=True)]
    wrong = [chance for row in each for chance in row if not is_chance_or_none(chance)]
    if wrong:
        raise SpecdecError(
            f"draft {owner!r} has the confidence {wrong[0]} in a proposal; expected the chance, from 0 to 1, that the "
            f"proposal is kept if the one before it is, or {NO_ESTIMATE:g} where there is no estimate"
        )
    told = [tuple(None if chance == NO_ESTIMATE else chance for chance in row) for row in each]
    return [row if any(chance is not None for chance in row) else () for row in told]


def is_chance_or_none(number: float) -> bool:
    """Whether a number of ``Window.confidence`` is a chance, or says that there is no estimate."""
    return 0 <= number <= 1 or number == NO_ESTIMATE
