"""budget: a K for each row, so that the whole batch emits most tokens per second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from specdec import SpecdecError, hookimpl
from specdec.interfaces import ControllerFactory, Env
from specdec.lengths import Ks, each_k
from specdec.stats import Stats, Step
from specdec_plugins.controllers.goodput import Goodput
from specdec_plugins.forecast import (
    Chances,
    ComeTrue,
    fastest_of_rows,
    speeds_to_the_end,
    step_seconds,
    worth_of_rows,
)

LOST = 0.01
"""Of a batch to which no request comes: the largest share of the steps that are left which a probe may cost if nothing
comes of it, and the least gain that proposals must promise, because what is known of its last row is a guess."""


class Budget(Goodput):
    """Gives slots to (row, depth) in the order of what they bring, until the next one costs more than that.

    It knows the chances of each row: of its own proposals, as far as they have been seen, and of everyone's beside
    them. Where the draft says how sure it was of a proposal, that counts in place of what came of it, times the share
    of such estimates that has come true. A token is worth as much in every row as long as requests may come. A batch
    to which none comes (``Stats.closed``) ends with its last row: its width is that which ends it soonest
    (``forecast.speeds_to_the_end``), a probe may cost little of what is left, a gain of less than that is none, and
    among rows a token is worth what it saves (``forecast.worth_of_rows``).

    Times, probes and what is done with trees are those of ``goodput``, which is this rule with one K for all rows,
    whose tokens are all worth the same. Windows are padded to the widest row: a slot costs something where it widens
    the window, and below that it is free, so that all rows get as many as they have room for. ``price`` is for what no
    clock here shows: slots that are paid for, or wanted by others.

    Source: the slots of (request, position) that vLLM's adaptive verification and DSpark's confidence heads budget; the
    goodput of SmartSpec, Liu et al. 2406.14066.

    Example: ``budget(maximum=8)``
    """

    reads_confidence = True

    def __init__(
        self,
        env: Env,
        maximum: Annotated[int, "largest K of a row"] = 15,
        probe: Annotated[int, "smallest number of steps between two probes while K is 0"] = 8,
        price: Annotated[float, "what a proposal costs beside its time, in forwards of one slot"] = 0.0,
    ) -> None:
        if not 0 <= price < float("inf"):
            raise SpecdecError(f"budget was given price={price}; expected a number of forwards from 0 on, as 0.01")
        self._price = price
        super().__init__(env, maximum, probe)

    def forget(self) -> None:
        """Return to the prior chances, to trust in the draft's confidence, and to the calibrated times."""
        super().forget()
        self._true = ComeTrue()

    def _begin(self, stats: Stats | None) -> None:
        super()._begin(stats)
        self._own: dict[int, Chances] = {}  # by request

    def next_k(self, stats: Stats) -> Ks:
        """The K of each row with the largest predicted goodput, or those of a probe."""
        found = super().next_k(stats)
        self._own = {row.request: self._own.get(row.request, Chances()) for row in stats.rows}
        return found

    def speeds(self) -> list[float]:
        """Predicted tokens per second of a row, at the calibrated pace, for each K up to which rows may be asked."""
        return [speed for speed, _ in self._budgets()]

    def _budgets(self) -> list[tuple[float, tuple[int, ...]]]:
        rows = self._stats.rows if self._stats else ()
        kept = [self._kept.reached(min(self._most, row.room), self._own.get(row.request)) for row in rows]
        price, seconds = self._price * self._verify.at(1, len(rows) or self._most_rows), step_seconds(*self._costs())
        if not self._closed:
            return fastest_of_rows(kept or [self._kept.reached(self._most)], seconds, price)
        made, _, draft, rest = self._costs()
        left = [row.room + 1 for row in rows]
        worth = worth_of_rows(left, lambda count: self._verify.at(1, count))
        valued = [[one * chance for chance in chances] for one, chances in zip(worth, kept, strict=True)]
        given = [ks for _, ks in fastest_of_rows(valued, seconds, price)]
        alone = step_seconds(made, lambda width: self._verify.at(width, 1), draft, rest)
        paid = [price * sum(ks) for ks in given]
        together = [took + more for took, more in zip(seconds, paid, strict=True)]
        alone = [took + more / len(rows) for took, more in zip(alone, paid, strict=True)]
        return list(zip(speeds_to_the_end(left, kept, given, alone, together), given, strict=True))

    @property
    def _closed(self) -> bool:
        """Whether several rows end together, and no request comes to take their places."""
        return self._stats is not None and self._stats.closed and not self._stats.waiting and len(self._stats.rows) > 1

    def _affords(self, k: int) -> bool:
        if not self._closed or not self._stats:
            return True
        seconds = step_seconds(*self._costs())
        return seconds[k] / seconds[0] - 1 <= LOST * max(row.room + 1 for row in self._stats.rows)

    def _choose(self) -> Ks:
        if self._tree or not self._most:
            return self._best(super().speeds()) if self._most else 0
        budgets = self._budgets()
        plain, *others = (speed for speed, _ in budgets)
        least = 1 - LOST if self._closed else 1.0
        return budgets[self._best([plain, *(least * speed for speed in others)])][1]

    @property
    def _steps_differ(self) -> bool:
        return super()._steps_differ and not self._closed

    def _learn(self, stats: Stats, step: Step) -> None:
        super()._learn(stats, step)
        ks = each_k(self._k, step.rows)
        if not any(ks):
            return
        told = {row.request: row.confidence for row in stats.rows if row.steps}
        for (request, own), row, k in zip(self._own.items(), step.each, ks, strict=True):
            sure = told.get(request, ())
            for depth in range(1, max(ks) + 1):
                kept, tried = float(row.accepted >= depth), float(k >= depth and row.accepted >= depth - 1)
                chance = sure[depth - 1] if depth <= len(sure) else None
                if chance is None:
                    own.seen(depth, kept, tried)
                    continue
                own.seen(depth, self._true.chance(chance), 1.0)
                if tried:
                    self._true.seen(chance, bool(kept))


@hookimpl
def specdec_register_controllers(register: Callable[[str, ControllerFactory], None]) -> None:
    """Register ``budget``."""
    register("budget", Budget)
