"""Costs refined by runs: what the steps that an advisor has run say of the probe's figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import median

from benchsuite.measure.arms import Arm
from benchsuite.measure.runners import Outcome
from benchsuite.predict.costs import Costs, strategy_of

PROBED = 16
"""Steps that the probe of a width counts as, against those of runs."""

PLAIN_STEP = 0
"""Stands for the width of a step of plain decoding, whose cost is a figure of its own."""


@dataclass
class RefinedCosts:
    """The costs of one batch of ``rows``, as ``probed`` and as further runs show them.

    Runs of a round take turns step by step and share a pace of the machine: the median of their steps' times over what
    the costs say. What a width takes beyond this pace is taken for a mistake of the probe, and so is what a draft does.
    The drafts' shares are by ``strategy_of``; batches may have them in common: a draft of several sources costs what
    the one that answers does, which depends on the text. In place: ``seen``.

    Example: ``refined.seen(ran)``, then ``refined.costs``
    """

    probed: Costs
    rows: int
    drafting: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _wrong: dict[float, tuple[int, float]] = field(default_factory=dict)  # by width: steps, sum of logs

    def seen(self, ran: Mapping[Arm, Outcome]) -> None:
        """Take the runs of a round. Steps in which some rows have ended are left out, and forwards over trees."""
        late: dict[int, list[float]] = defaultdict(list)
        drafted: dict[str, tuple[float, float]] = {}
        for arm, outcome in ran.items():
            assert outcome.stats is not None
            strategy, took, said = strategy_of(arm), 0.0, 0.0
            for step in outcome.stats.steps:
                times = outcome.stats.times(step)
                if step.rows != self.rows or times.target <= 0:
                    continue
                if arm.plain:
                    expected = self.probed.plain_step(self.rows, outcome.mean_length)
                    late[PLAIN_STEP].append(log((times.target + times.rest) / expected))
                    continue
                if not self.probed.strategies[strategy].forward:
                    slots = step.slots(self.probed.skips_padding)
                    expected = self.probed.verify(slots, self.rows, outcome.mean_length)
                    late[round(slots)].append(log(times.target / expected))
                if step.k:
                    took += times.draft
                    said += self.probed.strategies[strategy].draft(self.rows, outcome.mean_length, step.k)
            if said > 0 and took > 0:
                drafted[strategy] = took, said
        if not late:
            return
        pace = median(value - self._mistake(width) for width, values in late.items() for value in values)
        for width, values in late.items():
            count, total = self._wrong.get(width, (0, 0.0))
            self._wrong[width] = count + len(values), total + len(values) * (median(values) - pace)
        for strategy, (took, said) in drafted.items():
            self.drafting[strategy].append(took / said / exp(pace))

    @property
    def costs(self) -> Costs:
        """The costs with what was seen."""
        costs = replace(
            self.probed,
            forward={
                point: seconds * exp(self._mistake(point.width) if point.rows == self.rows else 0.0)
                for point, seconds in self.probed.forward.items()
            },
            plain={
                point: seconds * exp(self._mistake(PLAIN_STEP) if point.rows == self.rows else 0.0)
                for point, seconds in self.probed.plain.items()
            },
        )
        for strategy, shares in self.drafting.items():
            costs = costs.cheaper(strategy, median(shares))
        return costs

    def _mistake(self, width: float) -> float:
        count, total = self._wrong.get(width, (0, 0.0))
        return total / (count + PROBED)
