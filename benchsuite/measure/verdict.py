"""What may be said of a speedup: one rule, one mark and one sentence for every table, page and picture."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from benchsuite.measure.interval import Estimate

MARKS = (
    "~: the interval holds 1, or the noise is as large; ?: too few prompts for an interval; !: not comparable (below)"
)
"""Meanings of the marks."""


@dataclass(frozen=True)
class SpeedVerdict:
    """A speedup beside the noise of the machine that measured it.

    ``noise``: the largest |ln ratio| by which plain decoding differs from itself (``noise_of``). ``reason``: why
    nothing can be compared. ``baseline``: it is the arm that speedups are relative to.

    Example: ``SpeedVerdict(estimate({"chat": logs}), noise_of(again)).label``
    """

    speed: Estimate | None
    noise: float = 0.0
    reason: str | None = None
    baseline: bool = False

    @property
    def label(self) -> str | None:
        """``faster``, ``slower``, ``~``, ``not comparable`` or ``baseline``; None without an interval.

        ``~``: the interval holds 1, or the speedup lies within the noise.
        """
        if self.baseline:
            return "baseline"
        if self.reason:
            return "not comparable"
        if self.speed is None or self.interval is None:
            return None
        low, high = self.interval
        if low <= 1 <= high or self.within_noise:
            return "~"
        return "faster" if self.speed.ratio > 1 else "slower"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval; None without one."""
        low, high = (self.speed.low, self.speed.high) if self.speed else (None, None)
        return None if low is None or high is None else (low, high)

    @property
    def within_noise(self) -> bool:
        """Whether the speedup is no further from 1 than plain decoding from itself; also without an interval."""
        return self.speed is not None and abs(log(self.speed.ratio)) <= self.noise

    @property
    def mark(self) -> str:
        """What follows a number in a table: ``~``, ``?``, ``!`` or nothing."""
        return {"~": "~", "not comparable": "!", None: "?"}.get(self.label, "")

    @property
    def cell_text(self) -> str:
        """The speedup with its mark: ``1.25x``, ``1.02x~``, ``1.31x?``; ``-`` without one."""
        return "-" if self.speed is None else f"{self.speed.ratio:.2f}x{self.mark}"

    @property
    def sentence(self) -> str:
        """The speedup, its interval and what may be said of it: ``1.02x (0.99 to 1.05), ~``."""
        if self.speed is None:
            return self.reason or "not measured"
        if self.interval is None:
            shown, lack = f"{self.speed.ratio:.2f}x", "too few prompts for an interval"
        else:
            shown, lack = "{:.2f}x ({:.2f} to {:.2f})".format(self.speed.ratio, *self.interval), None
        return ", ".join(filter(None, (shown, lack, self.reason or self.label)))

    @property
    def distinguishable(self) -> bool:
        """Whether the number may be shown as faster or slower: comparable, and outside of interval and noise."""
        return self.speed is not None and self.label in ("faster", "slower", None) and not self.within_noise


def noise_of(again: Estimate | None) -> float:
    """Return the largest |ln ratio| in the interval of plain decoding against itself; of its ratio where there is no
    interval, and 0 where it was not measured again."""
    return farthest(again.ratio, again.low, again.high) if again else 0.0


def farthest(*ratios: float | None) -> float:
    """Return the largest |ln ratio|, of those that are known; 0 if none is."""
    return max((abs(log(ratio)) for ratio in ratios if ratio), default=0.0)
