"""The p-value of likelihood ratios that are averaged, for any number of observations."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp


def ville_p(ratios: Sequence[float]) -> float:
    """Return one over the mean of likelihood ratios, at most 1; ``ratios`` has the logarithm of each.

    If each ratio has an expectation of at most 1, as a product over observations it is a supermartingale, and so is the
    mean; it exceeds 1/a with a probability of at most a (Ville 1939).

    Example: ``ville_p([log(2), log(4)])`` is 1/3
    """
    most = max(ratios)
    return min(1.0, exp(-most) * len(ratios) / sum(exp(one - most) for one in ratios))
