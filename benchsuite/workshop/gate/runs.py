"""Draw gatings from launches whose runs are recorded one by one, with slow requests put into them:
``python -m benchsuite.workshop.gate.runs docs/results/….json.gz``."""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchsuite.gate.figures import compared
from benchsuite.gate.record import BESIDE, GatedRow, Record
from benchsuite.gate.speed import Tolerances, cases, staged
from benchsuite.gate.verdict import GateVerdict
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.paired import Series
from benchsuite.measure.runners import Outcome
from benchsuite.report.document import Document, Section, Table
from benchsuite.report.renderers import markdown
from benchsuite.workshop.gate.draws import drawn_sides
from benchsuite.workshop.gate.plan import ALPHA, COARSE, STAGES, TOLERANCE, TTFT

TOKENS, PROMPTS = 32, 3
Slow = Callable[[Arm, int], float]
"""By how much a run of an arm takes longer; runs count from 0."""

LaunchedRuns = Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]]
"""The runs of each arm, ``plain``, a draft or ``transformers``, by workload: seconds per token, to the first token, and
from prompt to last token per token."""


def has_draft(arm: Arm) -> bool:
    """Whether a row is ours and has a draft."""
    return arm.draft is not None


def is_ours(arm: Arm) -> bool:
    """Whether a row is ours, plain among them."""
    return arm.peer is None


def every_fourth(whose: Callable[[Arm], bool], times: float) -> Callable[[int], Slow]:
    """Every fourth request so many times as long, in another phase in each launch."""
    return lambda launch: lambda arm, run: times if whose(arm) and (run + launch) % 4 == 3 else 1.0


ATTACKS: Mapping[str, Callable[[int], Slow]] = {
    "nothing": lambda launch: lambda arm, run: 1.0,
    "every fourth request of drafts 2x": every_fourth(has_draft, 2.0),
    "every fourth request of our rows 2x": every_fourth(is_ours, 2.0),
    "every fourth request of drafts 10x": every_fourth(has_draft, 10.0),
    "the first pass of drafts 2x": lambda launch: lambda arm, run: 2.0 if has_draft(arm) and run < PROMPTS else 1.0,
    "the peer 3x": lambda launch: lambda arm, run: 1.0 if is_ours(arm) else 3.0,
}
"""What is put into the head's launches, by what it is; 2x of a quarter is 1.25x of all."""


def with_attack(launch: LaunchedRuns, slow: Slow) -> Record:
    """The record of a launch, as the gate makes it, with runs made longer."""
    rows: dict[str, GatedRow] = {}
    for workload, arms in launch.items():
        setting, series = Setting("tiny", "auto", "cpu", "float32", 1, workload), dict[Arm, Series]()
        for name, runs in arms.items():
            peer, draft = (name, None) if name == "transformers" else (None, None if name == "plain" else name)
            arm = Arm(setting, draft, k=4 if draft else 0, peer=peer)
            series[arm] = Series(arm, "exact", outcomes=[_outcome(run, slow(arm, at)) for at, run in enumerate(runs)])
        rows |= compared(series, PROMPTS, {})
    return Record({}, rows)


def _outcome(run: tuple[float, float, float], times: float) -> Outcome:
    decode, first, whole = (times * seconds for seconds in run)
    emissions = [[(first, 1), (TOKENS * whole, TOKENS - 1)]]
    return Outcome([(0,) * TOKENS], TOKENS * whole, TOKENS * decode, TOKENS, emissions, TOKENS, 0.0)


def drawn_alarms(
    bases: Sequence[Record], heads: Sequence[Record], level: int, draws: int, swap: bool
) -> tuple[int, int]:
    """Of so many drawn gatings, those in which a mean, a first pass or a peer is REGRESSED, and those in which another
    figure is. ``swap`` as in ``drawn_sides``."""
    coin, found = random.Random(0), (0, 0)
    rows = {name: TOLERANCE for name, row in bases[0].rows.items() if cases(name, row, level)}
    for _ in range(draws):
        sides = drawn_sides(bases, heads, level, coin, swap)
        findings = staged(sides, level, Tolerances(rows, TTFT, COARSE), ALPHA, STAGES)
        worse = [one for one in findings if one.verdict == GateVerdict.REGRESSED]
        beside = [
            bases[0].rows[one.row].peer or (one.figure or "").removesuffix(" by the clock") in BESIDE for one in worse
        ]
        found = found[0] + (True in beside), found[1] + (False in beside)
    return found


def drawn_table(launches: Mapping[str, Sequence[LaunchedRuns]], draws: int) -> Table:
    """A line for each level and attack; false alarms, which are of no attack, are drawn three times as often."""
    table = []
    for what, attack in ATTACKS.items():
        bases, heads = ([with_attack(one, ATTACKS["nothing"](0)) for one in launches[side]] for side in "AB")
        if what != "nothing":
            heads = [with_attack(one, attack(place)) for place, one in enumerate(launches["B"])]
        for level in (1, 2):
            count = 3 * draws if what == "nothing" else draws
            table.append((level, what, count, *drawn_alarms(bases, heads, level, count, what == "nothing")))
    head = ("level", "planted", "n", "a mean, a first pass or a peer REGRESSED", "another figure REGRESSED")
    return Table(head, table)


def runs_main() -> None:
    """Print the table of a file of runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="launches of sides A and B: docs/results/….json.gz")
    parser.add_argument("--draws", type=int, default=100, help="gatings of each attack")
    given = parser.parse_args()
    content: dict[str, Any] = json.loads(gzip.decompress(given.file.read_bytes()))
    print(markdown(Document(sections=[Section("", [drawn_table(content["launches"], given.draws)])])))


if __name__ == "__main__":
    runs_main()
