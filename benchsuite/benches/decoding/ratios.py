"""Ratios of arms that alternate in one run, over equal tokens."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median

from benchsuite.measure.interval import Estimate, estimate
from specdec.errors import SpecdecError


@dataclass(frozen=True)
class Sample:
    """What one run of an arm gave: ``figures`` by name, all above 0; ``work`` counts prompt and output tokens."""

    figures: Mapping[str, float]
    work: tuple[int, int]


@dataclass(frozen=True)
class Contrast:
    """A row to be made: the ``figure`` of one arm over that of another.

    ``unit`` is the figure's, in words; a share is written as ``%``, and kept as a fraction.

    Example: ``Contrast("ragged", "equal", "tokens_per_s", "tokens/s")``
    """

    arm: str
    over: str
    figure: str
    unit: str


@dataclass(frozen=True)
class Family:
    """Arms that alternate, each a function that runs it once, and the rows made of them.

    ``legend`` says, in lines of the terminal, what the arms run and what the figures are. ``warm_up`` runs before
    anything is timed; without it every arm runs once.
    """

    arms: Mapping[str, Callable[[], Sample]]
    rows: Sequence[Contrast]
    legend: Sequence[str]
    warm_up: Callable[[], object] | None = None


@dataclass(frozen=True)
class Ratio:
    """A measured row: the figures of both arms in each round, a pair, and the tokens of one run (prompt, output)."""

    contrast: Contrast
    ours: tuple[float, ...]
    base: tuple[float, ...]
    work: tuple[int, int]

    @property
    def each(self) -> list[float]:
        """The ratio of every pair."""
        return [a / b for a, b in zip(self.ours, self.base, strict=True)]

    @property
    def estimate(self) -> Estimate:
        """The geometric mean of the pairs' ratios and its 95 % interval (``benchsuite.measure.interval``)."""
        return estimate({"": [log(ratio) for ratio in self.each]})

    @property
    def medians(self) -> tuple[float, float]:
        """The median of both arms' figures over the rounds."""
        return median(self.ours), median(self.base)


def alternated(family: Family, rounds: int, seed: int = 0) -> Iterator[Ratio]:
    """Warm up, then run every arm once in each round, in random order; yield the rows.

    Raises SpecdecError if the two arms of a row did not run equal tokens, or an arm not the same ones in each round.

    Example: ``list(alternated(family, rounds=6))[0].estimate.ratio``
    """
    order, samples = random.Random(seed), defaultdict[str, list[Sample]](list)
    for run in [family.warm_up] if family.warm_up else family.arms.values():
        run()
    for _ in range(rounds):
        names = list(family.arms)
        order.shuffle(names)
        for name in names:
            samples[name].append(family.arms[name]())
    for row in family.rows:
        ours, base = samples[row.arm], samples[row.over]
        work = {sample.work for sample in (*ours, *base)}
        if len(work) > 1:
            raise SpecdecError(
                f"{row.arm} over {row.over}: the runs have {sorted(work)} prompt and output tokens; expected equal ones"
            )
        mine, theirs = (tuple(sample.figures[row.figure] for sample in arm) for arm in (ours, base))
        yield Ratio(row, mine, theirs, work.pop())
