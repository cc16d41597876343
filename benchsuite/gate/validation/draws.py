"""Draw comparisons from stored launches, and count how often the gate's verdict is right."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from tabulate import tabulate

from benchsuite.gate import counters, speed
from benchsuite.gate.record import Record
from benchsuite.gate.speed import staged
from benchsuite.gate.verdict import Finding, GateVerdict, worst

TOLERANCE, ALPHA, STAGES = 0.03, 0.01, (5, 8)
DRAWS = 300
PLANTED = {"ngram": "host", "suffix": "draft", "oracle(0.8)": "K/V"}
"""The part in which each draft is slowed down, in launches of side P."""

CONDITIONS = ("quiet", "loaded")
LOSSES = ("chat", "question_answering", "summarisation", "code_editing", "rewriting", "reasoning")
"""The workloads that are also launched with 1 % of the accepted proposals rejected."""

Values = dict[str, dict[str, dict[str, list[float | None]]]]


@dataclass
class Drawn:
    """Stored launches, in the order of their use: a ``Sides``."""

    base: Sequence[Record]
    head: Sequence[Record]
    paired: bool

    def at_least(self, count: int) -> tuple[Record, Record]:
        """The first ``count`` launches of each live side; a baseline always has all of its launches."""
        base = self.base[:count] if self.paired else self.base
        return base[0].joined(base[1:]), self.head[0].joined(self.head[1:count])


def drawn_sides(bases: Sequence[Record], heads: Sequence[Record], level: int, coin: random.Random, swap: bool) -> Drawn:
    """Draw one comparison: pairs that were launched next to each other (level 2), or any launches (level 1).

    ``swap``: both sides are the same code, so base and head are also assigned at random.
    """
    count = sum(STAGES)
    if level == 2:
        pairs = coin.sample(list(zip(bases, heads, strict=True)), count)
        pairs = [pair[::-1] if swap and coin.random() < 0.5 else pair for pair in pairs]
        return Drawn([base for base, _ in pairs], [head for _, head in pairs], paired=True)
    if swap:
        every = coin.sample([*bases, *heads], 2 * count)
        return Drawn(every[:count], every[count:], paired=False)
    return Drawn(coin.sample(list(bases), count), coin.sample(list(heads), count), paired=False)


def report(folder: Path, count: int) -> tuple[str, Values]:
    """The tables in Markdown, and the values of all launches by condition, side (A, B, P) and row."""
    parts: list[str] = []
    values: Values = {}
    for condition in CONDITIONS:
        files = {side: sorted(folder.glob(f"{condition}-{side}-*.json"))[:count] for side in "ABP"}
        if all(len(side) > sum(STAGES) for side in files.values()):
            sides = {side: [Record.load(file) for file in found] for side, found in files.items()}
            alive = [json.loads(f.read_text())["verdict"] for f in sorted(folder.glob(f"{condition}-live-*.json"))]
            parts += [f"## {condition.capitalize()}", _noise(sides), _verdicts(sides, alive)]
            values[condition] = {
                side: {name: [_value(record, name) for record in records] for name in _rows(records)}
                for side, records in sides.items()
            }
    return "\n\n".join([*parts, "## Acceptance", _losses(folder)]) + "\n", values


def _rows(records: Sequence[Record]) -> dict[str, str]:
    """The rows that are slowed down in P, each with its draft."""
    return {name: draft for draft in PLANTED for name in records[0].rows if f"-{draft}-" in name}


def _value(record: Record, name: str) -> float:
    return (speed.values(record.rows[name], 1) or [float("nan")])[0]


def _noise(sides: dict[str, list[Record]]) -> str:
    table = []
    for name in _rows(sides["A"]):
        a, b, planted = ([_value(record, name) for record in sides[side]] for side in "ABP")
        pairs = [y - x for x, y in zip(a, b, strict=True)]
        table.append((name, len(a), f"{stdev(a):.2%}", f"{stdev(pairs):.2%}", f"{mean(planted) - mean(a):+.2%}"))
    head = ("row", "launches a side", "s, launch", "s, difference of a pair", "mean change of P")
    return tabulate(table, head, "github", disable_numparse=True)


def _verdicts(sides: dict[str, list[Record]], alive: Sequence[str]) -> str:
    a, b, planted = (sides[side] for side in "ABP")
    rows, coin = _rows(a), random.Random(0)
    tolerances = dict.fromkeys(rows, TOLERANCE)
    pairs = [coin.sample([*a, *b], 2) for _ in range(DRAWS)]
    zero = [worst(counters.compare(name, x.rows[name], y.rows[name]).verdict for name in x.rows) for x, y in pairs]
    table = [_line("0", "A/A, drawn", zero)]
    for level in (1, 2):
        alike, found = [], list[Finding]()
        for _ in range(DRAWS):
            same = staged(drawn_sides(a, b, level, coin, swap=True), level, tolerances, ALPHA, STAGES)
            alike.append(worst(finding.verdict for finding in same))
            found += staged(drawn_sides(a, planted, level, coin, swap=False), level, tolerances, ALPHA, STAGES)
        table.append(_line(str(level), "A/A, drawn", alike))
        for name, draft in rows.items():
            own = [finding for finding in found if finding.row == name]
            caught = [finding for finding in own if finding.verdict == GateVerdict.REGRESSED]
            right = sum((finding.where or "").startswith(PLANTED[draft]) for finding in caught)
            what = f"{2 * TOLERANCE:.0%} in {PLANTED[draft]} of {draft}, drawn"
            table.append(_line(str(level), what, [f.verdict for f in own], f"{right / max(len(caught), 1):.0%}"))
    table.append(_line("1 or 2", "A/A, live", alive))
    return tabulate(
        table, ("level", "comparison", "n", *map(str, GateVerdict), "where right"), "github", disable_numparse=True
    )


def _line(level: str, what: str, verdicts: Sequence[str], right: str = "") -> tuple[object, ...]:
    counted = Counter(map(str, verdicts))
    return level, what, len(verdicts), *(counted[str(verdict)] for verdict in GateVerdict), right


def _losses(folder: Path) -> str:
    table = []
    for workload in LOSSES:
        files = [folder / f"{side}-{workload}.json" for side in ("as-it-is", "loss")]
        if not all(file.exists() for file in files):
            continue
        base, head = map(Record.load, files)
        for name in base.rows:
            kept = [record.rows[name].counters["num_accepted_tokens"] for record in (base, head)]
            if kept[0] >= 100:  # 1 % of fewer is less than one token
                finding = counters.compare(name, base.rows[name], head.rows[name])
                table.append((name, *kept, str(finding.verdict), finding.where))
    return tabulate(
        table, ("row", "accepted", "with a loss of 1 %", "level 0", "where"), "github", disable_numparse=True
    )
