"""Set fixed tolerances of one run's ratio beside the gate's rule, on the same recorded launches:
``python -m benchsuite.workshop.gate.fixed docs/results/….json``."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import log1p
from pathlib import Path
from statistics import fmean

from benchsuite.gate.record import DECODE, FigureTimes, GatedRow, Launch, Record
from benchsuite.gate.speed import Tolerances, staged
from benchsuite.gate.verdict import Finding, GateVerdict
from benchsuite.report.document import Document, Section, Table
from benchsuite.report.renderers import markdown
from benchsuite.workshop.gate.draws import drawn_sides
from benchsuite.workshop.gate.plan import ALPHA, COARSE, STAGES, TOLERANCE, TTFT

Ratios = Mapping[str, Sequence[float]]
"""Of each row, the log of its time over plain's in each launch."""

TOLERANCES = (0.0, 0.02, 0.05, 0.1)
"""Fixed tolerances; 0 is a threshold at the value of one run."""

LOSSES = (0.0, 0.05, 0.1)
"""How much longer the head takes than what was recorded of the same code."""

HEAD = (
    *("rule", "launches a side", "same code: rows failed", "runs of six rows failed"),
    *("5 % loss: rows passed", "10 % loss: rows passed"),
)


def fixed_rates(sides: tuple[Ratios, Ratios], tolerance: float, launches: int = 1) -> list[float]:
    """How often a fixed tolerance is wrong: of the same code, the share of rows and of whole runs that fail, and of
    each loss the share of rows that pass.

    One launch each: every two of all launches, in both orders. Several: the means of so many, drawn 2,000 times.
    """
    every = [{row: values[place] for row, values in side.items()} for side in sides for place in range(_count(side))]
    coin, pairs = random.Random(0), list(permutations(every, 2))
    if launches > 1:
        drawn = [coin.sample(every, 2 * launches) for _ in range(2000)]
        pairs = [(_means(one[:launches]), _means(one[launches:])) for one in drawn]
    limit = log1p(tolerance)
    found: list[float] = []
    for loss in LOSSES:
        runs = [[head[row] + log1p(loss) - base[row] > limit for row in base] for base, head in pairs]
        failed = fmean(one for run in runs for one in run)
        found += [failed, fmean(any(run) for run in runs)] if not loss else [1 - failed]
    return found


def gate_rates(sides: tuple[Ratios, Ratios], level: int, draws: int) -> list[tuple[float, float]]:
    """The same of the gate's rule, in gatings drawn from these launches: of the same code, shares that are REGRESSED,
    and of losses those that pass; beside each, the share that is INCONCLUSIVE, which fails a run too."""
    found: list[tuple[float, float]] = []
    for loss in LOSSES:
        coin = random.Random(level)
        bases, heads = ([_record(side, place) for place in range(_count(side))] for side in sides)
        runs = []
        for _ in range(draws):
            drawn = drawn_sides(bases, heads, level, coin, swap=True)
            drawn.head = [_slowed(record, loss) for record in drawn.head]
            runs.append(
                staged(drawn, level, Tolerances(dict.fromkeys(sides[0], TOLERANCE), TTFT, COARSE), ALPHA, STAGES)
            )
        rows = [one for run in runs for one in run]
        regressed, undecided = (
            fmean(one.verdict == verdict for one in rows)
            for verdict in (GateVerdict.REGRESSED, GateVerdict.INCONCLUSIVE)
        )
        if loss:
            found.append((max(0.0, 1 - regressed - undecided), undecided))
        else:
            found += [
                (regressed, undecided),
                (_any(runs, GateVerdict.REGRESSED), _any(runs, GateVerdict.INCONCLUSIVE)),
            ]
    return found


def fixed_table(conditions: Mapping[str, tuple[Ratios, Ratios]], draws: int) -> Table:
    """A line for each rule; a cell has a share for each condition, whose two sides are launches of the same code, made
    in pairs. Without ``draws`` the gate has no line."""
    tables = [_lines(sides, draws) for sides in conditions.values()]
    lines = [
        (rule[0][0], rule[0][1], *(" / ".join(shares) for shares in zip(*(one[2:] for one in rule), strict=True)))
        for rule in zip(*tables, strict=True)
    ]
    return Table(HEAD, lines)


def _lines(sides: tuple[Ratios, Ratios], draws: int) -> list[tuple[str, ...]]:
    total = sum(STAGES)
    lines = [
        (f"fixed, {tolerance:.0%}", str(launches), *map(_share, fixed_rates(sides, tolerance, launches)))
        for launches, tolerances in ((1, TOLERANCES), (total, TOLERANCES[2:3]))
        for tolerance in tolerances
    ]
    for level, what in ((1, "file"), (2, "revision")) if draws else ():
        cells = [f"{_share(share)} + {_share(undecided)}" for share, undecided in gate_rates(sides, level, draws)]
        lines.append((f"the gate's, against a {what}", f"{STAGES[0]} or {total}", *cells))
    return lines


def read_ratios(file: Path) -> dict[str, tuple[Ratios, Ratios]]:
    """The launches of sides A and B, which are the same code, by condition."""
    found = json.loads(file.read_text(encoding="utf-8"))["relative"]
    return {condition: (sides["A"], sides["B"]) for condition, sides in found.items()}


def _count(side: Ratios) -> int:
    return min(map(len, side.values()))


def _means(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {row: fmean(launch[row] for launch in launches) for row in launches[0]}


def _record(side: Ratios, place: int) -> Record:
    times = {row: {DECODE: FigureTimes((1.0,), (values[place],))} for row, values in side.items()}
    row = GatedRow(control="plain", digest="d", plain_digest="p")
    return Record({}, {name: replace(row, launches=(Launch(each),)) for name, each in times.items()})


def _slowed(record: Record, loss: float) -> Record:
    return _record({row: [_ratio(one) + log1p(loss)] for row, one in record.rows.items()}, 0)


def _ratio(row: GatedRow) -> float:
    relative = row.launches[0].times[DECODE].relative
    assert relative is not None
    return relative[0]


def _any(runs: Sequence[Sequence[Finding]], verdict: GateVerdict) -> float:
    return fmean(any(one.verdict == verdict for one in run) for run in runs)


def _share(value: float) -> str:
    return f"{value:.1%}" if 0.0005 <= value < 0.1 else f"{value:.0%}"


def fixed_main() -> None:
    """Print the tables of a file of launches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="launches of sides A and B: docs/results/….json")
    parser.add_argument("--draws", type=int, default=100, help="gatings of each loss")
    given = parser.parse_args()
    found = read_ratios(given.file)
    print(markdown(Document(sections=[Section(" / ".join(found), [fixed_table(found, given.draws)])])))


if __name__ == "__main__":
    fixed_main()
