"""Sources of launches: a baseline file and live launches, or live launches on both sides."""

from __future__ import annotations

import random
import secrets
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
    """Two checkouts, or this one without and with ``plant``.

    Of every two pairs of launches the base goes first in one, drawn from ``seed``, a fresh one by default. ``ran`` has
    the sides in the order in which they ran.
    """

    launcher: Launcher
    checkout: Path | None
    say: Say
    plant: str = ""
    paired: bool = True
    base: list[Record] = field(default_factory=list)
    head: list[Record] = field(default_factory=list)
    seed: int | None = None
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.seed is None:
            self.seed = secrets.randbits(32)
        self._coin = random.Random(self.seed)
        self._orders: list[tuple[str, str]] = []

    def at_least(self, count: int) -> tuple[Record, Record]:
        """See ``Sides``."""
        while len(self.head) < count:
            self.say(f"pair {len(self.head) + 1} of {count}")
            if not self._orders:
                self._orders = self._coin.sample([("base", "head"), ("head", "base")], 2)
            for side in self._orders.pop():
                self.ran.append(side)
                if side == "base":
                    self.base.append(self.launcher.measure(self.checkout))
                else:
                    self.head.append(self.launcher.measure(plant=self.plant))
        return self.base[0].joined(self.base[1:]), self.head[0].joined(self.head[1:])
