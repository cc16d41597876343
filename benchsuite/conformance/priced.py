"""Prices of slots that follow nothing: a draft that heeds them proposes less, and changes no output."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from specdec.interfaces import Controller
from specdec.lengths import Price
from specdec.stats import Stats


class AtAnyPrice(Controller):
    """Asks every row for all; what each further proposal of the rows costs is drawn from ``prices``, in tokens, by
    chance, always in the same order. ``forward``: what a forward of the draft's model costs, in tokens.

    Example: ``engine.controller = AtAnyPrice(4, [0.0, 0.5])``
    """

    def __init__(self, k: int, prices: Sequence[float] = (0.0, 0.3, 0.7, 2.0), forward: float = 0.0) -> None:
        self._k, self._prices, self._forward, self._dice = k, prices, forward, random.Random(3)

    @property
    def max_k(self) -> int:
        """K."""
        return self._k

    def next_k(self, stats: Stats) -> int:
        """Always K."""
        each = self._dice.choices(self._prices, k=stats.batch * self._k)
        self.slot_price = Price(np.cumsum([0.0, *each]), np.ones(stats.batch), self._forward * np.arange(self._k + 2.0))
        return self._k
