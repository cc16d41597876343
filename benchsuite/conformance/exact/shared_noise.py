"""Several draws by one key's noise, exactly: nothing is sampled.

argmax(log w + Gumbel noise) over V tokens is the argmin of E / w for exponential E = exp(-noise). It depends on
E / sum E alone, a point that is uniform on the simplex with V corners. A draw of token a leaves the points where
E_a w_b <= E_b w_a for every b; the share of the volume that the next draw leaves is its probability. A coin that falls
below p is a draw of token 0 from (p, 1 - p), because E_0 / (E_0 + E_1) is uniform from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

Share = float | Fraction
Point = tuple[Share, ...]

FLAT = 1e-13
"""A corner of float64 that lies closer to a cut than this lies on it; fractions are exact."""


@dataclass(frozen=True)
class Noise:
    """Where the noise of a key may lie: (volume, corners) of simplices, the whole simplex having volume 1.

    Example: ``Noise.of(2).after(0, [0.5, 0.5]).chance(0, [0.25, 0.75])`` is 0.5
    """

    parts: tuple[tuple[Share, tuple[Point, ...]], ...]

    @staticmethod
    def of(tokens: int) -> Noise:
        """The noise of a key that nothing was drawn with, over so many tokens."""
        corners = tuple(tuple(Fraction(axis == corner) for axis in range(tokens)) for corner in range(tokens))
        return Noise(((Fraction(1), corners),))

    @property
    def volume(self) -> Share:
        """The probability that the noise of a new key lies here."""
        return sum(share for share, _ in self.parts)

    def after(self, token: int, shares: Sequence[Share]) -> Noise:
        """What is left after a draw of ``token`` from a distribution."""
        parts: Iterable[tuple[Share, tuple[Point, ...]]] = self.parts
        for other in range(len(shares)):
            if other != token:
                parts = [kept for part in parts for kept in _below(*part, token, other, shares)]
        return Noise(tuple(parts))

    def chance(self, token: int, shares: Sequence[Share]) -> Share:
        """The probability that a draw from a distribution gives ``token``."""
        return self.after(token, shares).volume / self.volume


def _below(
    volume: Share, corners: tuple[Point, ...], token: int, other: int, shares: Sequence[Share]
) -> list[tuple[Share, tuple[Point, ...]]]:
    """The simplices of a simplex in which ``token`` is drawn rather than ``other``."""
    side = [corner[token] * shares[other] - corner[other] * shares[token] for corner in corners]
    over, under = max(range(len(side)), key=side.__getitem__), min(range(len(side)), key=side.__getitem__)
    if side[over] <= (0 if isinstance(side[over], Fraction) else FLAT):
        return [(volume, corners)]
    if side[under] >= (0 if isinstance(side[under], Fraction) else -FLAT):
        return []
    # Here the cut meets the edge between two corners. In place of either corner the point makes one of two simplices,
    # whose volumes are as the parts of the edge.
    far = side[over] / (side[over] - side[under])
    point = tuple(a + far * (b - a) for a, b in zip(corners[over], corners[under], strict=True))
    halves = ((over, 1 - far), (under, far))
    return [
        kept
        for corner, share in halves
        for kept in _below(volume * share, (*corners[:corner], point, *corners[corner + 1 :]), token, other, shares)
    ]
