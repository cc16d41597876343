"""Prices of slots: what proposals cost and tokens are worth, for drafts that know how likely each of theirs is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import exp, log
from statistics import median

import numpy as np

from specdec.lengths import Price
from specdec.stats import Stats, Step
from specdec_plugins.forecast import PACE, Forwards, Times

LATELY = 0.95
"""Factor by which a new step reduces the weight of the older ones in what a row does of late, and by which a step
without proposals reduces what the first one costs the host: one slow step would otherwise end all proposals, and with
them all that shows what they cost."""

TIED = 1.4
"""By how much less a token saves in a batch that ends with its last row than if one row alone were the last: rows that
end together end sooner only if each of them does. Without it eight chats took up to a tenth longer than plain."""

BEGUN = 2
"""Steps without proposals that a row has besides its own, in what it emits and proposes in a step."""

KEEP_LINE, TRUST_LINE, SLOW = 0.98, 0.06, 1.25
"""Of the line through forwards of late: what a new one leaves of the older, the weight of the expected slope, and how
far from the line a forward counts. Seconds of a forward vary by 5 %, and a calibrated slope is off by 20 %: the weight
is the square of their ratio."""


class Line:
    """What further slots really add to a forward, from those of a run: level + slope · x at the machine's pace.

    x is what they were expected to add, over the expected seconds of one slot a row; a level and a slope of 1 are what
    was expected. The pace is that of the last few forwards, so that a machine that slows down while windows become
    narrow does not make slots look cheap.

    Example: ``Line().at(0.3)`` is ``1.3``.
    """

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=PACE)  # logarithms of seen over expected
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # sums over forwards

    def seen(self, x: float, y: float) -> None:
        """Add a forward that took ``y``; one that something else slowed down counts as a little slow."""
        expected = self.at(x)
        self._late.append(log(y / expected))
        y = min(max(y / exp(median(self._late)), expected / SLOW), expected * SLOW)
        self._weight = KEEP_LINE * self._weight + 1
        self._x = KEEP_LINE * self._x + x
        self._y = KEEP_LINE * self._y + y
        self._xx = KEEP_LINE * self._xx + x * x
        self._xy = KEEP_LINE * self._xy + x * y

    def at(self, x: float) -> float:
        """What a forward takes of which ``x`` was expected."""
        if not self._weight:
            return 1 + x
        x_mean, y_mean = self._x / self._weight, self._y / self._weight
        usual = y_mean / (1 + x_mean)  # if all is as much slower than expected
        with_x = self._xy - self._weight * x_mean * y_mean + TRUST_LINE * usual
        slope = max(0.0, with_x / (self._xx - self._weight * x_mean**2 + TRUST_LINE))
        return max(y_mean + slope * (x - x_mean), usual / 4)


class Prices:
    """What proposals add to the next step, by their number, and what a token is worth in each row, in seconds.

    Where requests may come, a token is worth the time in which the batch emits one, of late. Of a batch to which none
    comes it is worth what it saves until the last row ends (``seconds_of_tokens``). ``verify`` knows the seconds of
    forwards, of widths up to ``most`` + 1, ``rest`` those of the rest of a step, without proposals and with some, and
    ``drafting`` those of the draft by the forwards of its model (``Step.draft_forwards``), not of a step after one
    without any, which begins with what has waited. ``surcharge``: what a proposal costs beside its time, in forwards of
    one slot.

    Source: the price of a unit of a shared resource at which all who pay it together use it best, Everett, Operations
    Research 11 (1963).
    """

    def __init__(self, verify: Forwards, rest: Times, drafting: Times, most: int, surcharge: float) -> None:
        self._verify, self._rest, self._drafting, self._most, self._surcharge = verify, rest, drafting, most, surcharge
        self._line = Line()
        self._weight, self._tokens, self._slots, self._made = 0.0, 0.0, 0.0, 0.0  # sums over steps of late, a row
        self._drafted = 0.0  # the seconds of the draft's model in steps of late
        self._rested = True  # whether it had none in the last step
        self._idle = 0  # steps since the last proposals

    def seen(self, stats: Stats, step: Step, slots: float) -> None:
        """Add a step, whose rows had to compute so many slots each."""
        times = stats.times(step)
        made = min(step.proposed, 1)
        self._verify.seen(slots, step.rows, times.target)
        if times.target > 0 and step.rows > 1:
            plain, expected = (self._verify.calibrated(width, step.rows) for width in (1, slots))
            self._line.seen(expected / plain - 1, times.target / plain)
        rest, drafting, forwards = times.rest / self._verify.pace, times.draft / self._verify.pace, step.draft_forwards
        if forwards and not (self._rested and self._drafting.at(1)):
            self._drafting.seen(forwards, drafting)
        self._rest.seen(made, rest if forwards else rest + drafting)
        self._rested = not forwards
        self._idle = 0 if made else self._idle + 1
        self._weight = LATELY * self._weight + 1
        self._tokens = LATELY * self._tokens + step.emitted / step.rows
        self._slots = LATELY * self._slots + slots
        self._made = LATELY * self._made + made
        self._drafted = LATELY * self._drafted + (self._drafting.at(forwards) if forwards else 0.0)

    def of(self, stats: Stats, closed: bool) -> Price:
        """The price of the next step's proposals. ``closed``: no request comes."""
        rows = stats.batch
        proposals = np.arange(rows * self._most + 1)
        each = np.maximum.accumulate([self._forward(1 + count / rows, rows) for count in proposals.tolist()])
        plain, first = float(each[0]), max(0.0, self._rest.at(1) - self._rest.at(0))
        forwards = np.maximum.accumulate([0.0, *(self._drafting.at(count) for count in range(1, self._most + 2))])
        cost = each - plain + self._surcharge * plain * proposals
        cost[1:] += first * LATELY**self._idle
        if closed:
            worth = self._saved(stats, plain, float(cost[self._most]) / self._most)
        else:
            step = self._forward(self._of_late(self._slots, 1.0), rows) + self._rest.at(0)
            step += first * self._of_late(self._made, 0.0) + self._of_late(self._drafted, 0.0)
            worth = [step / self._of_late(self._tokens, 1.0) / rows] * rows
        return Price(cost, np.array(worth), forwards)

    def _forward(self, width: float, rows: int) -> float:
        """Seconds of a forward, as the run's own show them: of each width, or of several rows of any mean width."""
        if rows == 1:
            return self._verify.at(width, rows)
        plain = self._verify.calibrated(1, rows)
        return plain * self._line.at(self._verify.calibrated(width, rows) / plain - 1)

    def _of_late(self, total: float, before: float) -> float:
        """The mean of a sum over steps; ``before`` the first step."""
        return total / self._weight if self._weight else before

    def _saved(self, stats: Stats, plain: float, slot: float) -> list[float]:
        """Seconds that a token of each row saves. ``plain`` and ``slot``: those of one slot a row, and of one more."""
        steps = [row.steps + BEGUN for row in stats.rows]
        more = max(0.0, plain - self._forward(1, 1)) / (stats.batch - 1)
        saved = seconds_of_tokens(
            [row.room + 1 for row in stats.rows],
            [1 + sum(row.accepted_per_pos) / count for row, count in zip(stats.rows, steps, strict=True)],
            [more + slot * sum(row.proposed_per_pos) / count for row, count in zip(stats.rows, steps, strict=True)],
            plain - stats.batch * more,
        )
        return [seconds / TIED for seconds in saved]


UNSURE = 0.2
"""How far apart the ends of two rows must be, as a share of the last one's, for it to be e times as likely the last."""


def seconds_of_tokens(left: Sequence[int], rates: Sequence[float], added: Sequence[float], fixed: float) -> list[float]:
    """Return the seconds that a token of each row saves of a batch that no request waits for.

    ``left``: the tokens that each row may still emit; ``rates``: those of a step; ``added``: the seconds that a row
    adds to a step with its proposals; ``fixed``: those of a step besides. A row that ends a step sooner saves what it
    adds, and the last one the whole step; the further their ends are apart, the surer it is which one that is.

    Example: ``seconds_of_tokens([8, 8], [1.0, 2.0], [0.2, 0.2], 0.8)`` is about ``[0.87, 0.16]``.
    """
    ends = [tokens / rate for tokens, rate in zip(left, rates, strict=True)]
    last = [exp((end / max(ends) - 1) / UNSURE) for end in ends]
    whole = sum(last)
    return [(more + fixed * one / whole) / rate for more, one, rate in zip(added, last, rates, strict=True)]
