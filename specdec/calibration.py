"""What a forward of the target costs: measured before the first step, looked up afterwards."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import product
from math import exp, log
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from specdec.devices import Stopwatch
from specdec.messages import Window
from specdec.model import ArenaModel

ROUNDS = 7
"""Measurements of each point, in as many random orders."""

SHORTEST = 1e-9
"""Seconds that a forward has taken at least, where the clock is too coarse to show any."""


class Point(NamedTuple):
    """A forward: rows, tokens of context in each, slots of each row's window: their mean if some rows have one more."""

    rows: int
    length: int
    width: float

    @property
    def widths(self) -> list[int]:
        """The slots of each row's window, from wide to narrow."""
        low, wider = divmod(round(self.width * self.rows), self.rows)
        return [low + 1] * wider + [low] * (self.rows - wider)


class Calibration:
    """Seconds of the target's forward, by ``Point``.

    ``seconds`` are those already known, from an earlier run on the same machine; who gives them answers for that
    (``benchsuite.predict.costs`` refuses a file of another machine or model).

    Example: ``Calibration(target).forward(5, rows=1, length=256)``
    """

    def __init__(self, target: ArenaModel, seconds: Mapping[Point, float] | None = None) -> None:
        self.target = target
        self.seconds: dict[Point, float] = dict(seconds or {})

    def measure(self, rows: Iterable[int], lengths: Iterable[int], widths: Iterable[float]) -> None:
        """``measure_points`` of every combination."""
        self.measure_points(Point(*point) for point in product(rows, lengths, widths))

    @torch.inference_mode()
    def measure_points(self, points: Iterable[Point]) -> None:
        """Measure those points that are not known yet, on an arena of its own, in random order.

        Tokens are drawn from the whole vocabulary, because a mixture of experts reads those of each token: slots with
        one token would read no more than one slot. Each round is divided by its own pace, the geometric mean of its
        points, before medians are taken: what slows the machine for a whole round changes no point against another.
        """
        missing = sorted({*points} - set(self.seconds))
        if not missing:
            return
        taken: dict[Point, list[float]] = {point: [] for point in missing}
        paces: list[float] = []
        order, watch = random.Random(0), Stopwatch(self.target.device)
        dice = torch.Generator().manual_seed(0)
        arena = self.target.arena(
            max(point.rows for point in missing),
            max(point.length + point.widths[0] for point in missing),
            max(point.widths[0] for point in missing),
        )
        for turn in range(ROUNDS + 1):
            order.shuffle(missing)
            for point in missing:
                arena.committed.fill_(point.length)
                size = point.rows, point.widths[0]
                tokens = torch.randint(self.target.vocabulary, size, generator=dice).to(self.target.device)
                proposals = tokens.new_tensor(point.widths) - 1
                window = Window.chain(tokens[:, 0], tokens[:, 1:], proposals)
                start = watch.mark()
                self.target.forward(arena, window, slice(0, point.rows), point.length)
                seconds = watch.seconds(start, watch.mark())
                if turn:  # the first round warms up
                    taken[point].append(log(max(seconds, SHORTEST)))
            if turn:
                paces.append(fmean(values[-1] for values in taken.values()))
        usual = median(paces)
        for point, values in taken.items():
            own = median(value - pace for value, pace in zip(values, paces, strict=True))
            self.seconds[point] = exp(usual + own)

    def forward(self, width: float, rows: int, length: int) -> float:
        """Seconds of one forward: on straight lines between the measured points, rows within lengths within widths.

        Raises ValueError before the first measurement.
        """
        return forward_seconds(self.seconds, width, rows, length)


def forward_seconds(seconds: Mapping[Point, float], width: float, rows: int, length: int) -> float:
    """Return the seconds of a forward from those of measured points; see ``Calibration.forward``. ``width`` is that of
    all rows or, where padding costs nothing (``ArenaModel.skips_padding``), their mean."""
    if not seconds:
        raise ValueError("no forward has been measured; call Calibration.measure first")
    by_rows: dict[int, dict[int, dict[float, float]]] = {}
    for point, value in seconds.items():
        by_rows.setdefault(point.rows, {}).setdefault(point.length, {})[point.width] = value
    return interpolated(
        {
            some: interpolated({at: interpolated(widths, width) for at, widths in lengths.items()}, length)
            for some, lengths in by_rows.items()
        },
        rows,
    )


class Polyline:
    """Values by a number as key: linear between known keys, the smallest key's below them.

    Above them the line through the smallest and the largest goes on, unless it falls; a single value stays as it is.
    ``known`` must not be empty, and is not to change afterwards.

    Example: ``Polyline({1: 1.0, 5: 3.0}).at(3)`` is 2.0.
    """

    def __init__(self, known: Mapping[int, float] | Mapping[float, float]) -> None:
        self._known: Mapping[Any, float] = known
        self._keys: list[float] = sorted(known)

    def at(self, key: float) -> float:
        """The value at ``key``."""
        known, keys = self._known, self._keys
        if key in known:
            return known[key]
        place = bisect_left(keys, key)
        if place == 0:
            return known[keys[0]]
        low = keys[place - 1]
        if place < len(keys):
            share = (key - low) / (keys[place] - low)
            return (1 - share) * known[low] + share * known[keys[place]]
        first = keys[0]
        if first == low:
            return known[low]
        return known[low] + max(0.0, (known[low] - known[first]) / (low - first)) * (key - low)


def interpolated(known: Mapping[int, float] | Mapping[float, float], key: float) -> float:
    """Return the value of one key: see ``Polyline``, which answers for several of them sooner."""
    return Polyline(known).at(key)
