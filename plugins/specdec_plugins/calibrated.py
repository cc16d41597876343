"""What a forward of the target costs at the context of the moment: calibrated by width, rows and length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from specdec.calibration import Polyline
from specdec.interfaces import Env


class CalibratedCosts:
    """Seconds of the target's forward by width and rows, over ``length`` tokens of context, which may be set.

    They are measured when it is built: at ``widths``, of 1, 2, 4 … rows and of all, over a quarter of the longest
    context and over all of it; between these they lie on straight lines. All controllers of an assembly share the
    measurements.

    Example: ``CalibratedCosts(env, [1, 2, 4]).at(3, rows=8)``
    """

    def __init__(self, env: Env, widths: Sequence[int]) -> None:
        lengths = sorted({max(1, env.max_length // 4), max(1, env.max_length - max(widths))})
        powers = {2**power for power in range(env.max_rows.bit_length())}
        env.calibration.measure({*powers, env.max_rows}, lengths, widths)
        self.half = env.max_length // 2
        self.length: float = self.half

        @cache
        def at_lengths(width: int, rows: int) -> Polyline:
            return Polyline({length: env.calibration.forward(width, rows, length) for length in lengths})

        self._at_lengths = at_lengths

    def at(self, width: float, rows: int) -> float:
        """Seconds for ``width`` slots of each of ``rows`` rows; between whole numbers on a straight line."""
        low = int(width)
        seconds = self._at_lengths(low, rows).at(self.length)
        share = width - low
        return seconds + share * (self._at_lengths(low + 1, rows).at(self.length) - seconds) if share else seconds
