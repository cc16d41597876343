"""What a forward of the target costs at the context of the moment: calibrated by width, rows and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from specdec.calibration import Polyline
from specdec.interfaces import Env
from specdec_plugins.passes import Passes

NONE = 1e-6
"""Part of a slot that is none: a mean over rows, times the rows, need not be whole."""


class CalibratedCosts:
    """Seconds of the target's forward by width and rows, over ``length`` tokens of context, which may be set.

    They are measured when it is built, of 1, 2, 4 … rows and of all, over a quarter of the longest context and over all
    of it; between these they lie on straight lines. Measured are ``widths``, or, where products read their weights once
    for a pass of slots (``ArenaModel.slots_of_a_pass``), what passes cost (``passes.Passes``). All controllers of an
    assembly share the measurements.

    Example: ``CalibratedCosts(env, [1, 2, 4]).at(3, rows=8)``
    """

    def __init__(self, env: Env, widths: Sequence[int]) -> None:
        size = env.target.slots_of_a_pass
        self._by_slots = size > 1
        widest = max(*widths, 2 * size)
        lengths = sorted({max(1, env.max_length // 4), max(1, env.max_length - widest)})
        rows = sorted({*(2**power for power in range(env.max_rows.bit_length())), env.max_rows})
        self.half = env.max_length // 2
        self.length: float = self.half
        seconds: Callable[[int, int, int], float]
        if self._by_slots:
            seconds = Passes(env.calibration, rows, lengths, max(widths), size).seconds
        else:
            env.calibration.measure(rows, lengths, widths)
            seconds = env.calibration.forward

        @cache
        def at_lengths(amount: int, rows: int) -> Polyline:
            return Polyline({length: seconds(amount, rows, length) for length in lengths})

        self._at_lengths = at_lengths

    def at(self, width: float, rows: int) -> float:
        """Seconds for ``width`` slots of each of ``rows`` rows; on a straight line between whole numbers: of slots of
        all rows where passes were measured, and else of slots of a row."""
        amount = width * rows if self._by_slots else width
        low = int(amount + NONE)
        seconds, share = self._at_lengths(low, rows).at(self.length), amount - low
        if share < NONE:
            return seconds
        return seconds + share * (self._at_lengths(low + 1, rows).at(self.length) - seconds)
