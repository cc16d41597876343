"""The gate's verdict on a row and on a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isinf
from typing import Any


class GateVerdict(StrEnum):
    """Verdicts from best to worst; the verdict on a run is the worst one on its rows."""

    IMPROVED = "IMPROVED"
    PASS = "PASS"
    COARSE = "COARSE"
    INCONCLUSIVE = "INCONCLUSIVE"
    REGRESSED = "REGRESSED"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Finding:
    """The verdict on one row at one level, with its details.

    ``change``: the relative change of a ``figure`` (0.06 is 6 % slower), measured relative to the control arm if the
    row has one. ``low`` and ``high``: its bounds. All four are None if nothing was timed. ``where``: the part that
    changed most. ``against``: "anchor" if the row was held against the anchor.
    """

    row: str
    level: int
    verdict: GateVerdict
    message: str
    figure: str | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    where: str | None = None
    launches: int = 0
    against: str = "base"

    @property
    def subject(self) -> str:
        """What was judged: the figure and, unless it is the base, what it was held against; empty without both."""
        return ", ".join(part for part in (self.figure, self.against if self.against != "base" else None) if part)

    def record(self) -> dict[str, Any]:
        """A dict for JSON; infinite bounds are None."""
        bounds = (self.low, self.high)
        low, high = (None if b is None or isinf(b) else b for b in bounds)
        return {**asdict(self), "verdict": str(self.verdict), "low": low, "high": high}


def worst(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """The verdict on several rows or levels together; PASS if there are none."""
    order = list(GateVerdict)
    return max(verdicts, key=order.index, default=GateVerdict.PASS)
