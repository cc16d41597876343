"""Sources of launches: a baseline file and live launches, or live launches on both sides."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchsuite.gate.launcher import Launcher
from benchsuite.gate.record import Record

Say = Callable[[str], None]


class Sides(Protocol):
    """Base and head, with the launches requested so far."""

    paired: bool

    def at_least(self, count: int) -> tuple[Record, Record]:
        """Base and head with at least ``count`` live launches; launches only those that are still missing."""


@dataclass
class StoredSides:
    """A baseline with stored launches, and live launches of this checkout."""

    base: Record
    launcher: Launcher
    say: Say
    paired: bool = False
    head: list[Record] = field(default_factory=list)

    def at_least(self, count: int) -> tuple[Record, Record]:
        """See ``Sides``."""
        while len(self.head) < count:
            self.say(f"launch {len(self.head) + 1} of {count}")
            self.head.append(self.launcher.measure())
        return self.base, self.head[0].joined(self.head[1:])


@dataclass
class LiveSides:
    """Two checkouts, or this one without and with ``plant``; the order within each pair of launches is random."""

    launcher: Launcher
    checkout: Path | None
    say: Say
    plant: str = ""
    paired: bool = True
    base: list[Record] = field(default_factory=list)
    head: list[Record] = field(default_factory=list)
    order: random.Random = field(default_factory=lambda: random.Random(0))

    def at_least(self, count: int) -> tuple[Record, Record]:
        """See ``Sides``."""
        while len(self.head) < count:
            self.say(f"pair {len(self.head) + 1} of {count}")
            for side in self.order.sample(("base", "head"), 2):
                if side == "base":
                    self.base.append(self.launcher.measure(self.checkout))
                else:
                    self.head.append(self.launcher.measure(plant=self.plant))
        return self.base[0].joined(self.base[1:]), self.head[0].joined(self.head[1:])
