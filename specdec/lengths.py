"""K, the number of proposals that a controller asks for: one number for all rows of a step, or one for each row."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec.errors import SpecdecError

Price = npt.NDArray[np.float64]
"""Of each row the tokens that its first, second … proposal must bring to be worth its slot: float [B, K]."""

Ks = int | tuple[int, ...]
"""K of a step: one number for all rows, or one for each row, in their order."""


def each_k(k: Ks, rows: int) -> tuple[int, ...]:
    """K of each of so many rows.

    Example: ``each_k(4, 3)`` is ``(4, 4, 4)``
    """
    return (k,) * rows if isinstance(k, int) else k


def allowed_k(asked: object, rows: int, most: int, owner: str) -> Ks:
    """What a controller's ``next_k`` returned for so many rows; one number where all rows have the same.

    Raises SpecdecError, which names the controller ``owner``, for anything but whole numbers from 0 to ``most``, and
    for as many numbers as there are no rows.

    Example: ``allowed_k([4, 0], 2, 8, "Budget")`` is ``(4, 0)``
    """
    listed = isinstance(asked, Sequence) or (isinstance(asked, np.ndarray) and asked.ndim == 1)
    each: Any = asked if listed else [asked]
    try:
        ks = tuple(map(index, each))
    except TypeError:
        ks = ()
    if not ks or not all(0 <= k <= most for k in ks) or (listed and len(ks) != rows):
        raise SpecdecError(
            f"the controller {owner} asks for {asked!r} proposals; next_k must return a whole number from 0 to its "
            f"max_k, {most}, for which the arena was made, or a list with one for each live row, of which there are "
            f"{rows}: stats.rows has them in their order"
        )
    return ks[0] if len(set(ks)) == 1 else ks


def allowed_price(price: object, rows: int, most: int, owner: str) -> Price | None:
    """What a controller's ``slot_price`` is for so many rows and at most ``most`` proposals of each.

    Raises SpecdecError, which names the controller ``owner``, for anything but None or numbers [rows, most].

    Example: ``allowed_price(np.zeros((2, 4)), 2, 4, "Budget")``
    """
    if price is None:
        return None
    numbers = isinstance(price, np.ndarray) and price.dtype.kind in "fiu"
    if not isinstance(price, np.ndarray) or not numbers or price.shape != (rows, most) or np.isnan(price).any():
        got = f"an array {price.shape} of {price.dtype}" if isinstance(price, np.ndarray) else repr(price)
        raise SpecdecError(
            f"the controller {owner} has the slot_price {got}; expected None, or numpy's numbers [{rows}, {most}] "
            "without a NaN: for each of stats.rows, in their order, the tokens that its first, second … proposal must "
            "bring"
        )
    return price
