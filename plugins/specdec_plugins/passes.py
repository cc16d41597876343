"""What a forward of the target costs by its slots, where products read their weights once for a pass of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median

from specdec.calibration import Calibration, Point

MANY = 64
"""Slots beyond which only the forward without proposals is measured: a further pass costs what the last ones do."""

Seconds = Callable[[int, int, int], float]


class Passes:
    """Seconds of forwards of slots, however these are spread over rows.

    Products read each weight once for a pass of ``size`` slots. The slot that begins a pass costs a share of it, which
    is measured, and those that fill it share the rest. Measured are, for each of ``rows`` and ``lengths``, forwards of
    one slot a row, of the full pass in which these end, of one slot more, and of some further full passes, up to
    ``widest`` slots a row. What a row adds at as many slots lies on a line between the measured numbers of rows.

    Example: ``Passes(env.calibration, [1, 2, 4, 8], [64, 192], 16, 8).seconds(9, rows=8, length=64)``
    """

    def __init__(
        self, calibration: Calibration, rows: Sequence[int], lengths: Sequence[int], widest: int, size: int
    ) -> None:
        self._rows, self._size = sorted(rows), size
        slots = {some: measured_slots(some, widest, size) for some in rows}
        calibration.measure_points(
            Point(some, length, count / some) for some, length in product(rows, lengths) for count in slots[some]
        )
        known = {
            (some, length): {count: calibration.forward(count / some, some, length) for count in slots[some]}
            for some, length in product(rows, lengths)
        }
        self._begins = median([share_of_a_begin(seconds, some, size) for (some, _), seconds in known.items()])
        self._known = {
            at: [(self._way(count, at[0]), seconds[count]) for count in sorted(seconds)]
            for at, seconds in known.items()
        }

    def seconds(self, slots: int, rows: int, length: int) -> float:
        """Of one forward; ``length`` is one of those that were measured, ``slots`` at least ``rows``."""
        place = bisect_right(self._rows, rows)
        fewer, more = self._rows[max(0, place - 1)], self._rows[min(place, len(self._rows) - 1)]
        found = self._measured(slots, fewer, length)
        if not fewer < rows < more:
            return found
        both = max(slots, more)
        added = self._measured(both, more, length) - self._measured(both, fewer, length)
        return found + (rows - fewer) / (more - fewer) * added

    def _measured(self, slots: int, rows: int, length: int) -> float:
        """Of as many rows as were measured."""
        known, way = self._known[rows, length], self._way(slots, rows)
        place = min(max(1, bisect_left(known, (way,))), len(known) - 1)
        (low, fast), (high, slow) = known[place - 1], known[place]
        return fast + (slow - fast) * (way - low) / (high - low)

    def _way(self, slots: int, rows: int) -> float:
        """The passes begun behind the one in which one slot of each row ends, and how much of the last they cost."""
        full, more = divmod(slots - full_passes(rows, self._size), self._size)
        if full < 0 or not more:  # slots that fill a pass in which others are cost alike
            return full + more / self._size
        return full + self._begins + (1 - self._begins) * (more - 1) / (self._size - 1)


def full_passes(slots: int, size: int) -> int:
    """The slots of all passes that so many begin. Example: ``full_passes(9, 8)`` is 16."""
    return -(-slots // size) * size


def measured_slots(rows: int, widest: int, size: int) -> list[int]:
    """How many slots the forwards have that are measured, of so many rows with up to ``widest`` each.

    Example: ``measured_slots(4, 16, 8)`` is ``[4, 8, 9, 16, 24, 40, 64]``.
    """
    first = full_passes(rows, size)
    most = min(rows * widest, max(MANY, first))
    powers = [2**power for power in range(most.bit_length())]
    begun = [rows * power for power in powers if rows * power < first]
    more = [count for count in (*(first + size * power for power in powers), most) if count <= most]
    return sorted({*begun, rows, first, first + 1, first + size, *more})


def share_of_a_begin(seconds: Mapping[int, float], rows: int, size: int) -> float:
    """How much of a pass its first slot costs; as much as any other if no pass costs anything."""
    first = full_passes(rows, size)
    whole = seconds[first + size] - seconds[first]
    return min(1.0, max(1 / size, (seconds[first + 1] - seconds[first]) / whole)) if whole > 0 else 1 / size
