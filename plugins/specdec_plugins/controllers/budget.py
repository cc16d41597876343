"""budget: a K for each row, so that the whole batch emits most tokens per second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from specdec import SpecdecError, hookimpl
from specdec.interfaces import ControllerFactory, Env
from specdec.lengths import Ks, Price, each_k
from specdec.stats import Stats, Step
from specdec_plugins.controllers.goodput import Goodput
from specdec_plugins.forecast import (
    KEEP,
    TRUST,
    Chances,
    ComeTrue,
    StepChoice,
    Times,
    fastest_of_rows,
    fastest_of_slots,
    speeds_to_the_end,
    step_seconds,
    worth_of_rows,
)
from specdec_plugins.prices import Prices

USUAL_ROWS, KEEP_OWN = 8.0, 0.92
"""Observations with everyone's share beside a row's own, and what a new one of its own leaves of the older, where each
row's slots cost. What a row's few tries say by chance then costs slots: with three observations and 0.85, as where
padding is computed, queues of recorded texts lost up to 7.5 % to the best fixed K, and with these 4.5 %."""

AGAIN = 8
"""Steps for which prices hold at most, as long as the rows are the same: at first they change with every step."""

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
    whose tokens are all worth the same. Where windows are computed as wide as the widest row, a slot costs something
    if it widens the window, and below that it is free, so that all rows get as many as they have room for; where
    padding is left out (``Backend.skips_padding``) each slot costs its time. A draft that knows how likely each of its
    proposals is (``Draft.heeds_price``) is asked for all, and told what their slots cost (``prices.Prices``): what it
    finds decides, and nothing has to be learned first. ``price`` is for what no clock here shows:
    slots that are paid for, or wanted by others.

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
        self._drafting = Times()  # of a forward of the draft's model
        super().forget()
        self._true = ComeTrue()

    def _begin(self, stats: Stats | None) -> None:
        super()._begin(stats)
        self._prices = Prices(self._verify, self._rest, self._drafting, self._most, self._price)
        self._now: Price | None = None
        self._own: dict[int, Chances] = {}  # by request

    def next_k(self, stats: Stats) -> Ks:
        """The K of each row with the largest predicted goodput, or those of a probe; all, where a price limits them."""
        self.slot_price = None
        if stats.heeds_price and self._most and (self._padding_is_free or stats.batch == 1):
            found = self._priced(stats)
        else:
            found = super().next_k(stats)
        keep = KEEP_OWN if self._padding_is_free and stats.batch > 1 else KEEP
        self._own = {row.request: self._own.get(row.request) or Chances(keep=keep) for row in stats.rows}
        return found

    def _priced(self, stats: Stats) -> Ks:
        if stats is not self._stats:
            self._begin(stats)
        rows, count = tuple(row.request for row in stats.rows), len(stats.steps)
        if rows != self._resting or count >= self._due:
            self._costs_of.length = self._read_cells(stats.lengths)
            for step in stats.steps[self._seen :]:
                self._prices.seen(stats, step, step.slots(self._padding_is_free))
            self._seen, self._resting, self._k = count, rows, self._most
            self._due = count + min(AGAIN, count + 1)
            self._now = self._prices.of(stats, self._closed)
        self.slot_price = self._now
        return self._k

    def _choices(self) -> list[StepChoice]:
        if self._tree:
            return super()._choices()
        rows = self._stats.rows if self._stats else ()
        usual = USUAL_ROWS if self._padding_is_free and len(rows) > 1 else TRUST
        kept = [self._kept.reached(min(self._most, row.room), self._own.get(row.request), usual) for row in rows]
        if not self._closed:
            return self._of_rows(kept or [self._kept.reached(self._most)])
        made, _, draft, rest = self._costs()
        left = [row.room + 1 for row in rows]
        worth = worth_of_rows(left, lambda count: self._verify.at(1, count))
        choices = self._of_rows([[one * chance for chance in some] for one, some in zip(worth, kept, strict=True)])
        if free := self._padding_is_free:  # slots of the last row alone, or of all, as if no row ended
            choices += self._of_rows(kept)[1:]
        given = [each_k(choice.ks, len(rows)) for choice in choices]
        by_k = step_seconds(made, lambda width: self._verify.at(width, 1), draft, rest, int(free))
        last = left.index(max(left))
        alone = [by_k[ks[last] if free else max(ks)] for ks in given]
        together = [choice.seconds for choice in choices]
        speeds = speeds_to_the_end(left, kept, given, alone, together)
        return [choice._replace(speed=speed) for choice, speed in zip(choices, speeds, strict=True)]

    def _of_rows(self, kept: list[list[float]]) -> list[StepChoice]:
        """The choices of rows whose proposals are ``kept`` with these chances, times what a token is worth there."""
        costs, price = self._costs(), self._price * self._verify.at(1, len(kept))
        if self._padding_is_free:
            return fastest_of_slots(kept, *costs, price, self._usual if self._steps_differ else 0.0)
        seconds = step_seconds(*costs)
        found = zip(fastest_of_rows(kept, seconds, price), seconds, strict=True)
        return [StepChoice(speed, took + price * sum(ks), ks) for (speed, ks), took in found]

    @property
    def _closed(self) -> bool:
        """Whether several rows end together, and no request comes to take their places."""
        return self._stats is not None and self._stats.closed and not self._stats.waiting and len(self._stats.rows) > 1

    def _affords(self, lost: float) -> bool:
        if not self._closed or not self._stats:
            return True
        return lost <= LOST * max(row.room + 1 for row in self._stats.rows)

    def _best(self, choices: list[StepChoice]) -> StepChoice:
        if self._closed:
            plain, *others = choices
            choices = [plain, *(one._replace(speed=(1 - LOST) * one.speed) for one in others)]
        return super()._best(choices)

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
