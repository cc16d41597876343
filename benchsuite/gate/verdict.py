"""What the gate says of a row, and of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isinf
from typing import Any


class GateVerdict(StrEnum):
    """From the best news to the worst: a run is as bad as its worst row."""

    IMPROVED = "IMPROVED"
    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    REGRESSED = "REGRESSED"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Finding:
    """One row at one level: the verdict and all that is known about it.

    ``change`` is the change of seconds per token, relative to the control arm where the row has one: 0.06 is 6 %
    slower; ``low`` and ``high`` bound it. None where nothing was timed. ``where`` names the part that changed most.
    """

    row: str
    level: int
    verdict: GateVerdict
    message: str
    change: float | None = None
    low: float | None = None
    high: float | None = None
    where: str | None = None
    launches: int = 0

    def record(self) -> dict[str, Any]:
        """For JSON, without infinities."""
        bounds = (self.low, self.high)
        low, high = (None if b is None or isinf(b) else b for b in bounds)
        return {**asdict(self), "verdict": str(self.verdict), "low": low, "high": high}


def worst(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """The verdict over several rows or levels; PASS of none."""
    order = list(GateVerdict)
    return max(verdicts, key=order.index, default=GateVerdict.PASS)
