"""K, the number of proposals that a controller asks for: one number for all rows of a step, or one for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec.errors import SpecdecError

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Price:
    """What the proposals of a step cost, by their number, and what a token is worth, row by row; all in one unit.

    ``cost`` float [B · K + 1]: of 0, 1, 2 … proposals of all rows together. ``worth`` float [B]: of a token.
    ``forwards`` float [n + 1]: of 0, 1, 2 … forwards of the draft's own model, for all rows together; more than n cost
    what n do.

    Example: ``Price(np.array([0.0, 1.0, 1.2]), np.array([1.0, 1.0]))``, where a first proposal costs as much as a token
    is worth, and a second one a fifth of that
    """

    cost: Numbers
    worth: Numbers
    forwards: Numbers = field(default_factory=lambda: np.zeros(1))

    @property
    def slot(self) -> float:
        """What a proposal costs on average."""
        return float(self.cost[-1]) / max(1, len(self.cost) - 1)

    def drafting(self, forwards: int) -> float:
        """What so many forwards of the draft's own model cost.

        Example: ``Price(np.zeros(2), np.ones(1), np.array([0.0, 0.2, 0.3])).drafting(2)`` is 0.3
        """
        return float(self.forwards[min(forwards, len(self.forwards) - 1)])

    def behind(self, proposals: int) -> Price:
        """The price of further proposals, where so many are made already.

        Example: at the price above that of a second proposal, ``behind(1).cost``, is about ``[0, 0.2]``
        """
        return replace(self, cost=self.cost[proposals:] - self.cost[proposals])

    def counts(self, chances: Sequence[Sequence[float]]) -> list[int]:
        """Of each row's chain the proposals that are worth their slots, chosen for all rows together.

        Example: at the price above ``counts([[0.7], [0.6]])`` is ``[1, 1]``, and ``counts([[0.7], []])`` is ``[0, 0]``
        """
        return self.best(chances)[1]

    def best(self, chances: Sequence[Sequence[float]]) -> tuple[float, list[int]]:
        """What the proposals that are worth their slots bring beyond those, and how many of each row's chain they are.

        ``chances``: of each proposal the chance that it is kept with all before it. Of every number of proposals the
        best are those that bring most, since a chance is never larger than those before it in its chain.

        Example: at the price above ``best([[0.7], [0.6]])`` is about ``(0.1, [1, 1])``
        """
        # Lists, because numpy takes longer for as few numbers as the chains of some rows have.
        each = enumerate(zip(self.worth.tolist(), chances, strict=True))
        offers = sorted((-worth * chance, row) for row, (worth, chain) in each for chance in chain)
        cost = self.cost[: len(offers) + 1].tolist()
        gain, most, brought = -cost[0], 0, 0.0
        for number, (lost, _) in enumerate(offers, start=1):
            brought -= lost
            if brought - cost[number] > gain:
                gain, most = brought - cost[number], number
        counts = [0] * len(chances)
        for _, row in offers[:most]:
            counts[row] += 1
        return gain, counts


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

    Raises SpecdecError, which names the controller ``owner``, for anything but None or a Price of these sizes.

    Example: ``allowed_price(Price(np.zeros(9), np.ones(2)), 2, 4, "Budget")``
    """
    if price is None:
        return None
    sizes = {"cost": rows * most + 1, "worth": rows}
    if (
        not isinstance(price, Price)
        or any(not _numbers(getattr(price, part), size) for part, size in sizes.items())
        or not isinstance(price.forwards, np.ndarray)
        or not _numbers(price.forwards, max(1, price.forwards.size))
    ):
        raise SpecdecError(
            f"the controller {owner} has the slot_price {price!r}; expected None, or a specdec.lengths.Price of "
            f"numpy's finite numbers: cost [{sizes['cost']}], of 0, 1 … proposals of all rows together, and worth "
            f"[{rows}], of a token in each of stats.rows, in their order; and forwards, of 0, 1 … of the draft's model"
        )
    return price


def _numbers(given: object, size: int) -> bool:
    return (
        isinstance(given, np.ndarray)
        and given.dtype.kind in "fiu"
        and given.shape == (size,)
        and bool(np.isfinite(given).all())
    )
