"""Launches of made-up runs: the outcomes of plain, of a draft and of peers, the rows that the gate records of them, and
the findings on two sides."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchsuite.gate.figures import compared
from benchsuite.gate.record import GatedRow, Record
from benchsuite.gate.rules import Rules
from benchsuite.gate.speed import Tolerances, cases, staged
from benchsuite.gate.trial import Trial
from benchsuite.gate.verdict import Finding
from benchsuite.measure.arms import Arm
from benchsuite.measure.paired import Series
from benchsuite.measure.runners import Outcome
from benchsuite.tests.gate_rig import PLAIN_RULES
from benchsuite.tests.rig import SETTING
from specdec.stats import Call, Marks, RowStep, Stats, Step

PASSES = 4
TOKENS = 10
PLAIN, DRAFTED = Arm(SETTING), Arm(SETTING, "ngram", "match", "fixed", 4)
PEER, OWN = Arm(SETTING, peer="transformers"), Arm(SETTING, peer="own_engine")


def timed_outcome(
    decode: float = 1.0, prefill: float = 0.2, admit: float = 0.0, forget: float = 0.0, observe: float = 0.0
) -> Outcome:
    """A run of one prompt in one step, whose parts take the given seconds; the draft's come on top of ``decode``."""
    # Marks are milliseconds: draft 0.1 s and what observing takes, target the rest, accept, commit and host 0.
    target, seen = round(1000 * decode) - 100, round(1000 * observe)
    marks = Marks(
        0, 0, 0, 100, 100 + target, 100 + target, 100 + target, 100 + target, 100 + target + seen, 100 + target + seen
    )
    watch = SimpleNamespace(seconds=lambda start, end: (end - start) / 1000)
    stats = Stats(cast(Any, watch), steps=[Step.of((RowStep(4, 4, 2, TOKENS),), 5, marks)])
    stats.calls = [Call("admit", 0, round(1000 * admit))]
    decoding = decode + observe
    whole = forget + prefill + admit + decoding
    return Outcome(
        tokens=[tuple(range(TOKENS))],
        wall_s=whole,
        decode_s=decoding,
        decoded=TOKENS,
        emissions=[[(whole, TOKENS)]],
        forwards=1,
        mean_length=5.0,
        stats=stats,
        forgetting_s=forget,
    )


def engine_outcome(decode: float = 0.9, prefill: float = 0.1, forwards: int | None = None) -> Outcome:
    """A run of one prompt by another engine: a token after its prefill, and the others in so many seconds and forwards,
    if it counts them."""
    whole = prefill + decode
    emissions = [[(prefill, 1), (whole, TOKENS - 1)]]
    return Outcome([tuple(range(TOKENS))], whole, decode, TOKENS - 1, emissions, forwards, 5.0)


def gated_rows(
    ours: Sequence[Outcome],
    plain: Sequence[Outcome],
    peer: Sequence[Outcome] = (),
    own: Sequence[Outcome] = (),
    prompts: int | None = None,
) -> dict[str, GatedRow]:
    """The gated rows of plain, of one draft, and of transformers and an engine of one's own where they ran.

    Each of as many prompts as outcomes, in ``PASSES`` passes; or the outcomes are of all passes over ``prompts``.
    """
    runs = {arm: found for arm, found in {PLAIN: plain, DRAFTED: ours, PEER: peer, OWN: own}.items() if found}
    passes = PASSES if prompts is None else 1
    series = {arm: Series(arm, "exact", outcomes=list(found) * passes) for arm, found in runs.items()}
    return compared(series, prompts or len(ours), {"prompts": "p"})


def launches_of(
    make: Callable[[float], dict[str, GatedRow]], seed: int, noise: float = 0.002, count: int = 13
) -> Record:
    """Launches of one side; ``make`` is given each launch's own noise as a factor."""
    coin = random.Random(seed)
    records = [Record({}, make(exp(coin.gauss(0, noise)))) for _ in range(count)]
    return records[0].joined(records[1:])


class Stored:
    """Two records: a ``Sides``."""

    def __init__(self, base: Record, head: Record, paired: bool = True) -> None:
        self.both, self.paired = (base, head), paired

    def at_least(self, count: int) -> tuple[Record, Record]:
        """The first launches of both."""
        base, head = (
            replace(side, rows={name: replace(row, launches=row.launches[:count]) for name, row in side.rows.items()})
            for side in self.both
        )
        return base if self.paired else self.both[0], head


def judged(base: Record, head: Record, level: int = 2) -> dict[tuple[str, str | None], Finding]:
    """The findings on both rows, by arm and figure."""
    rows = {name: 0.03 for name, row in base.rows.items() if cases(name, row, level)}
    tolerances = Tolerances(rows, first=0.1, coarse=0.15)
    found = staged(Stored(base, head, paired=level == 2), level, tolerances, 0.01, (5, 8))
    short = {PLAIN.id: "plain", DRAFTED.id: "ngram", PEER.id: "transformers", OWN.id: "own"}
    return {(short[finding.row], finding.figure): finding for finding in found}


def drafted(prompts: Sequence[float], **parts: float) -> Callable[[float], dict[str, GatedRow]]:
    """Rows whose draft takes these seconds on each prompt, times the launch's noise; plain takes a second on each."""
    return lambda noise: gated_rows(
        [timed_outcome(p * noise, **parts) for p in prompts], [timed_outcome()] * len(prompts)
    )


def slowed(plain: float, ours: float, peer: bool = False) -> Callable[[float], dict[str, GatedRow]]:
    """Rows in which plain and the draft take these seconds, times the launch's noise, and transformers two."""
    outside = [timed_outcome(2.0)] * 3 if peer else []
    return lambda noise: gated_rows([timed_outcome(ours * noise)] * 3, [timed_outcome(plain * noise)] * 3, outside)


def trial(base: Record, head: Record, anchor: Record | None = None, **rules: Any) -> Trial:
    """A trial at levels 0 and 1, by the usual rules but these, whose launches are ``head``'s, in order."""
    launches = iter(
        Record(head.made, {name: replace(row, launches=(row.launches[i],)) for name, row in head.rows.items()})
        for i in range(head.launches)
    )
    given = Rules(**{**PLAIN_RULES, "file": Path("gate.json"), "anchor": Path("anchor.json"), **rules})
    launcher = SimpleNamespace(measure=lambda *given, **named: next(launches), lacking=[])
    wanted = dict.fromkeys(head.rows)
    return Trial(given, (0, 1), cast(Any, launcher), head.last(1), wanted, base, lambda text: None, {}, anchor)
