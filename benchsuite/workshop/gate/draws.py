"""Draw comparisons from stored launches, and count how often the gate's verdict is right."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, mean, stdev

from benchsuite.gate import counters
from benchsuite.gate.record import DECODE, Record
from benchsuite.gate.speed import Tolerances, staged
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from benchsuite.report.document import Document, Lines, Part, Section, Table
from benchsuite.report.renderers import markdown
from benchsuite.workshop.gate.plan import ALPHA, COARSE, CONDITIONS, COUNTED, CURVE, SIDES, STAGES, TOLERANCE, TTFT

DRAWS = 300
Values = dict[str, dict[str, dict[str, list[float]]]]
Launches = Mapping[str, Sequence[Record]]


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
    """Draw one comparison: pairs that were launched in one round (level 2), or any launches (level 1).

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


def drawn(launches: Launches, name: str, level: int, coin: random.Random) -> list[Finding]:
    """The findings of one drawn comparison of side A with another; B is the same code."""
    sides = drawn_sides(launches["A"], launches[name], level, coin, swap=name == "B")
    rows = dict.fromkeys(launches["A"][0].rows, TOLERANCE)
    related = rows if level == 2 else {row: t for row, t in rows.items() if launches["A"][0].rows[row].control}
    return staged(sides, level, Tolerances(related, TTFT, COARSE), ALPHA, STAGES)


def report(folder: Path, count: int) -> tuple[str, Values]:
    """The tables in Markdown, and the log-ratios of decoding of all launches by condition, side and row."""
    sections: list[Section] = []
    values: Values = {}
    for condition in CONDITIONS:
        names = [name for name, side in SIDES.items() if condition in side.conditions]
        files = {name: sorted(folder.glob(f"{condition}-{name}-[0-9]*.json"))[:count] for name in names}
        launches = {name: [Record.load(file) for file in found] for name, found in files.items() if found}
        whole = {name: found for name, found in launches.items() if len(found) > sum(STAGES)}
        if {"A", "B"} <= whole.keys():
            least = min(map(len, whole.values()))
            whole = {name: found[:least] for name, found in whole.items()}
            alive = [json.loads(f.read_text())["verdict"] for f in sorted(folder.glob(f"{condition}-live-*.json"))]
            sections.append(Section(condition.capitalize(), [*_noise(whole), *_verdicts(whole, alive)]))
            values[condition] = {
                side: {name: _values(found, name) for name in found[0].rows if found[0].rows[name].control}
                for side, found in whole.items()
            }
    return markdown(Document(sections=[*sections, Section("Counters", [_counted(folder)])])), values


def _values(records: Sequence[Record], name: str) -> list[float]:
    times = [record.rows[name].launches[0].times[DECODE].relative for record in records]
    return [fmean(relative) for relative in times if relative]


def _noise(launches: Launches) -> list[Part]:
    table = []
    hours = sorted({str(record.made.get("time", ""))[:13] for found in launches.values() for record in found})
    for name, row in launches["A"][0].rows.items():
        if row.control:
            a, b = (_values(launches[side], name) for side in "AB")
            table.append((name, len(a), f"{stdev(a):.2%}", f"{stdev(y - x for x, y in zip(a, b, strict=True)):.2%}"))
    head = ("row", "launches a side", "s, launch", "s, difference of a pair")
    when = (
        f"{len(hours)} different hours, from {hours[0]} to {hours[-1]}" if len(hours) > 1 else f"one hour, {hours[0]}"
    )
    return [Table(head, table), Lines([f"Launched in {when}."])]


def _verdicts(launches: Launches, alive: Sequence[str]) -> list[Table]:
    coin = random.Random(0)
    pairs = [coin.sample([*launches["A"], *launches["B"]], 2) for _ in range(DRAWS)]
    zero = [worst(counters.compare(name, x.rows[name], y.rows[name]).verdict for name in x.rows) for x, y in pairs]
    alike = [_line("0", "A/A, drawn", zero)]
    found, curve = [], []
    for level in (1, 2):
        every = {name: [drawn(launches, name, level, coin) for _ in range(DRAWS)] for name in SIDES if name in launches}
        every.pop("A")
        alike.append(
            _line(str(level), "A/A, drawn", [worst(one.verdict for one in findings) for findings in every["B"]])
        )
        found += [_found(name, level, every[name]) for name in every if SIDES[name].found]
        curve += [_curve(level, p, every) for p in (0.0, *CURVE) if p == 0 or f"all-{p:.0%}" in every]
    alike.append(_line("1 or 2", "A/A, live", alive))
    tables = (
        (alike, ("level", "comparison", "n", *map(str, GateVerdict))),
        (found, ("level", "planted", "n", "found by the gating", "rows", "where right", "draws with a row IMPROVED")),
        (
            curve,
            ("level", "slowdown", "n", "every prompt: REGRESSED", "not PASS", "one in three: REGRESSED", "not PASS"),
        ),
    )
    return [Table(head, rows) for rows, head in tables if rows]


def _line(level: str, what: str, verdicts: Sequence[str]) -> tuple[object, ...]:
    counted = Counter(map(str, verdicts))
    return level, what, len(verdicts), *(counted[str(verdict)] for verdict in GateVerdict)


def _found(name: str, level: int, draws: Sequence[Sequence[Finding]]) -> tuple[object, ...]:
    """The shares of draws, and of rows in them, in which a side is found where it must be: REGRESSED.

    A gating fails as a whole, so it has found what any of its rows shows. Level 1 does not see plain's seconds.
    """
    wanted = SIDES[name].found
    each = [
        [one for part, figure, _ in wanted for one in findings if part in one.row and one.figure == figure]
        for findings in draws
    ]
    hits = [one for found in each for one in found]
    caught = [one for one in hits if one.verdict == GateVerdict.REGRESSED]
    gatings = [found for found in each if any(one.verdict == GateVerdict.REGRESSED for one in found)]
    right = [one for one in caught if any(p in one.row and (one.where or "").startswith(w) for p, _, w in wanted)]
    improved = sum(any(one.verdict == GateVerdict.IMPROVED for one in findings) for findings in draws)
    pairs = ((gatings, draws if hits else []), (caught, hits), (right, caught))
    shares = [f"{len(part) / len(whole):.1%}" if whole else "not seen" for part, whole in pairs]
    return level, SIDES[name].what, len(draws), *shares, improved


def _curve(level: int, slowdown: float, every: Mapping[str, Sequence[Sequence[Finding]]]) -> tuple[object, ...]:
    cells: list[str] = []
    for kind in ("all", "third"):
        draws = every.get(f"{kind}-{slowdown:.0%}" if slowdown else "B", [])
        verdicts = [one.verdict for findings in draws for one in findings if one.figure == DECODE]
        for wanted in ({GateVerdict.REGRESSED}, {*GateVerdict} - {GateVerdict.PASS, GateVerdict.IMPROVED}):
            cells.append(f"{mean(verdict in wanted for verdict in verdicts):.1%}" if verdicts else "-")
    return level, f"{slowdown:.0%}", DRAWS, *cells


def _counted(folder: Path) -> Table:
    table = []
    base = folder / "counted-as-it-is.json"
    for name, (what, _, where) in COUNTED.items():
        file = folder / f"counted-{name}.json"
        if base.exists() and file.exists():
            before, now = Record.load(base), Record.load(file)
            for row in before.rows:
                if (
                    name == "kernels" or before.rows[row].counters["num_accepted_tokens"] >= 100
                ):  # 5 % of fewer may be none
                    found = counters.compare(row, before.rows[row], now.rows[row])
                    table.append((what, row, str(found.verdict), found.where, found.where == where))
    return Table(("planted", "row", "level 0", "where", "right"), table)
