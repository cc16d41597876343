"""What else the machine does while a run is prepared."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

SECONDS = 0.5
"""How long the machine is watched."""

BUSY, STOLEN = 10.0, 1.0
"""Percent of the cores' time above which other processes, or other guests of the host, are worth a line."""


@dataclass(frozen=True)
class Load:
    """Percent of all cores' time that other processes used, and that the host gave to other guests."""

    used: float
    stolen: float

    @staticmethod
    def measured() -> Load:
        """Measure while this process sleeps."""
        times = psutil.cpu_times_percent(interval=SECONDS)
        stolen = float(getattr(times, "steal", 0.0))  # only Linux tells it
        return Load(max(0.0, 100.0 - times.idle - getattr(times, "iowait", 0.0) - stolen), stolen)

    def lines(self) -> list[str]:
        """Return what a card says: nothing on a quiet machine."""
        if self.used <= BUSY and self.stolen <= STOLEN:
            return []
        return [
            f"the machine is busy: others use {self.used:.0f} % of its cores, its host gives {self.stolen:.0f} % away; "
            "torch's threads (the reference, transformers) spin while they wait and lose most beside others: "
            "run alone, or set GOMP_SPINCOUNT=2000 before the start, which costs torch a tenth of its speed alone"
        ]
