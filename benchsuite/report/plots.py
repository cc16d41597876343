"""Plots as plain geometry: what a template draws, in the pixels of its own frame. Shapes stand beside colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 480.0, 340.0
"""Small, so that texts of 15 pixels can be read where a phone shows the frame at three quarters of its size."""

LEFT, RIGHT, TOP, BOTTOM = 56.0, 16.0, 14.0, 54.0
"""The margins of a plot's frame."""

SHAPES = ("circle", "square", "triangle", "diamond", "cross", "plus", "ring", "bar")
DASHES = ("", "7 4", "2 3", "10 3 2 3", "5 2", "1 4", "12 4", "3 6")
COLOURS = 8
"""How many colours the page's style has; each has another shape in the next round."""


@dataclass(frozen=True)
class Trace:
    """Points of one name. ``joined``: a line runs through them; ``bars``: lower and upper ends of their intervals;
    ``said``: a sentence for each point; ``number``: its place among the names, which its colour and shape follow."""

    name: str
    points: Sequence[tuple[float, float]]
    number: int
    joined: bool = False
    bars: Sequence[tuple[float, float]] = ()
    said: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """A plot with its axes' titles. ``note`` says how to read it. ``level``: a height that is drawn as a line, with its
    name; ``diagonal``: the name of the line where both axes are equal; ``whole``: the x axis has whole numbers only;
    ``zero``: the axes begin at 0; ``ratios``: equal distances are equal ratios, on both axes.
    """

    title: str
    note: str
    x: str
    y: str
    traces: Sequence[Trace]
    level: tuple[float, str] | None = None
    diagonal: str | None = None
    whole: bool = False
    zero: bool = True
    ratios: bool = False

    def drawn(self) -> dict[str, Any]:
        """Return what the template draws: ticks, lines, marks and texts, each with its place in pixels."""
        xs = [x for trace in self.traces for x, _ in trace.points]
        ys = [y for trace in self.traces for _, y in trace.points]
        ys += [end for trace in self.traces for bar in trace.bars for end in bar]
        ys += [self.level[0]] if self.level else []
        if self.diagonal:
            xs = ys = [*xs, *ys]
        if self.ratios:
            across, up = Scale.of_ratios(xs, LEFT, WIDTH - RIGHT), Scale.of_ratios(ys, HEIGHT - BOTTOM, TOP)
        else:
            across = Scale.of(xs, LEFT, WIDTH - RIGHT, zero=self.zero and bool(self.diagonal), whole=self.whole)
            up = Scale.of(ys, HEIGHT - BOTTOM, TOP, zero=self.zero)
        low, high = max(across.ticks[0], up.ticks[0]), min(across.ticks[-1], up.ticks[-1])
        return {
            "title": self.title,
            "note": self.note,
            "x": self.x,
            "y": self.y,
            "width": WIDTH,
            "height": HEIGHT,
            "frame": (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
            "x_ticks": [(across.at(value), across.text(value)) for value in across.ticks],
            "y_ticks": [(up.at(value), up.text(value)) for value in up.ticks],
            "level": self.level and (up.at(self.level[0]), self.level[1]),
            "diagonal": self.diagonal and (across.at(low), up.at(low), across.at(high), up.at(high), self.diagonal),
            "traces": [_drawn(trace, across, up) for trace in self.traces],
        }


@dataclass(frozen=True)
class Scale:
    """Values of one axis, from the first to the last of its round ``ticks``, and where they are in pixels.

    ``ratios``: equal ratios, not differences, are equally far from each other.
    """

    ticks: Sequence[float]
    start: float
    end: float
    ratios: bool = False

    @staticmethod
    def of(values: Sequence[float], start: float, end: float, zero: bool, whole: bool = False) -> Scale:
        """The scale over ``values`` from pixel ``start`` to ``end``; ``zero``: it begins at 0. Of no values: 0 to 1."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        low = min(low, 0.0) if zero else low
        step = _round_step((high - low) / 5 or max(abs(high), 1.0) / 5)
        step = max(1.0, step) if whole else step
        first, last = math.floor(low / step), math.ceil(high / step + 1e-9)
        return Scale([number * step for number in range(first, last + 1)], start, end)

    @staticmethod
    def of_ratios(values: Sequence[float], start: float, end: float) -> Scale:
        """The scale of ratios over ``values``, all above 0: ticks at 1, 2, 5 times powers of ten. Of none: 1 to 2."""
        values = values or [1.0]
        powers = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 1)
        ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        below = max(place for place, tick in enumerate(ticks) if tick <= min(values))
        above = min(place for place, tick in enumerate(ticks) if tick >= max(values) and place > below)
        return Scale(ticks[below : above + 1], start, end, ratios=True)

    def at(self, value: float) -> float:
        """The pixel of a value."""
        value, low, high = (math.log(x) if self.ratios else x for x in (value, self.ticks[0], self.ticks[-1]))
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def text(self, value: float) -> str:
        """A tick with as many digits as it needs."""
        if self.ratios:
            return f"{value:g}"
        return f"{value:.{max(0, -math.floor(math.log10(self.ticks[1] - self.ticks[0]) + 1e-9))}f}"


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not less than ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _drawn(trace: Trace, across: Scale, up: Scale) -> dict[str, Any]:
    points = [(across.at(x), up.at(y)) for x, y in trace.points]
    return {
        "name": trace.name,
        "colour": trace.number % COLOURS,
        "shape": SHAPES[(trace.number + trace.number // COLOURS) % len(SHAPES)],
        "dash": DASHES[trace.number % len(DASHES)],
        "line": " ".join(f"{x},{y}" for x, y in points) if trace.joined else "",
        "marks": [
            (x, y, trace.said[place] if trace.said else f"{trace.name}: {trace.points[place][1]:.3g}")
            for place, (x, y) in enumerate(points)
        ],
        "bars": [
            (x, up.at(low), up.at(high)) for (x, _), (low, high) in zip(points, trace.bars, strict=bool(trace.bars))
        ],
    }
