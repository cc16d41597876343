"""Changes of a row between two runs: which way its speed went, whether that is more than noise, and what else moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchsuite.compare.sides import ComparedSide, Figures
from benchsuite.measure.interval import Estimate, estimate
from benchsuite.measure.verdict import SpeedVerdict
from specdec.amounts import amount

MARKS = {
    "faster": "+",
    "slower": "-",
    "within noise": "~",
    "too few units": "?",
    "not comparable": "!",
    "fails now": "x",
    "works again": "o",
    "new": "n",
    "gone": "g",
    "no speed": " ",
}
"""Every kind of change with its mark, which does not need colour."""


@dataclass(frozen=True)
class Change:
    """One row in two runs. ``ratio``: head's speedup over base's, with its 95 % interval; ``also``: what else moved."""

    row: str
    kind: str
    before: float | None = None
    now: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    also: str = ""

    @property
    def changed(self) -> bool:
        """Whether it is more than the same thing measured again."""
        return self.kind not in ("within noise", "too few units", "no speed") or bool(self.also)


def changes(base: ComparedSide, head: ComparedSide) -> list[Change]:
    """Return the change of every row of two runs, in head's order, with those that are gone at the end."""
    found = [_change(row, base.rows.get(row), figures) for row, figures in head.rows.items()]
    return [*found, *(Change(row, "gone", before=base.rows[row].speedup) for row in base.rows if row not in head.rows)]


def _change(row: str, before: Figures | None, now: Figures) -> Change:
    if before is None:
        return Change(row, "new", now=now.speedup)
    if now.failure or before.failure:
        kind = "no speed" if now.failure and before.failure else "fails now" if now.failure else "works again"
        also = "" if kind == "no speed" else (now.failure or before.failure or "").splitlines()[0]
        return Change(row, kind, before.speedup, now.speedup, also=also)
    other = list(_different(before.same, now.same))
    if other:
        return Change(
            row, "not comparable", before.speedup, now.speedup, also="measured otherwise: " + ", ".join(other)
        )
    also = ", ".join(_different(before.counted, now.counted))
    if before.speedup is None or now.speedup is None:
        return Change(row, "no speed", before.speedup, now.speedup, also=also)
    ratio, (low, high) = now.speedup / before.speedup, _bounds(before, now) or (None, None)
    # What shifts a whole process is in no interval between prompts; plain decoding against itself shows how much.
    verdict = SpeedVerdict(Estimate(ratio, low, high, 0, ""), math.hypot(before.noise, now.noise))
    kind = {None: "too few units", "~": "within noise"}.get(verdict.label, str(verdict.label))
    return Change(row, kind, before.speedup, now.speedup, ratio, low, high, also)


def _bounds(before: Figures, now: Figures) -> tuple[float, float] | None:
    """The interval of the ratio of two speedups: of the units' own differences where both runs have the same units."""
    paired = before.logs.keys() == now.logs.keys() and all(
        len(before.logs[name]) == len(now.logs[name]) for name in now.logs
    )
    if now.logs and paired:
        logs = {
            name: [b - a for a, b in zip(before.logs[name], values, strict=True)] for name, values in now.logs.items()
        }
        speed = estimate(logs)
        return (speed.low, speed.high) if speed.low is not None and speed.high is not None else None
    halves = []
    for one in (before, now):
        if one.low is None or one.high is None:
            return None
        halves.append(math.log(one.high / one.low) / 2)
    assert before.speedup
    assert now.speedup
    ratio, half = now.speedup / before.speedup, math.hypot(*halves)
    return ratio * math.exp(-half), ratio * math.exp(half)


def _different(before: Any, now: Any) -> Iterator[str]:
    for name in (name for name in now if name in before):  # two kinds of sources know different things
        one, other = before.get(name), now.get(name)
        if one != other and not _close(one, other):
            yield f"{name} {_short(one)} → {_short(other)}"


def _close(one: Any, other: Any) -> bool:
    return isinstance(one, float) and isinstance(other, float) and math.isclose(one, other)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = "none" if value is None else str(value)
    return text if len(text) <= 20 else f"{text[:19]}…"


def summary(found: Sequence[Change]) -> str:
    """Return the changes in a sentence."""
    kinds = {kind: sum(change.kind == kind for change in found) for kind in MARKS}
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return f"{amount(len(found), 'row')}: {named}" if found else "no rows"
