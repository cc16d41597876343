"""How many proposals of a step are accepted, as a distribution that somebody chooses: for replays and for servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import fsum, isfinite
from operator import mul

from specdec import SpecdecError

OFF = 1e-6
"""How far the sum of a histogram may lie from 1, for the rounding of what is typed."""


@dataclass(frozen=True)
class Schedule:
    """A distribution of how many of the K proposals of a step are accepted; steps are independent.

    ``rates``: for each position from 1 to K, the probability that its proposal is accepted if all before it are.

    Example: ``Schedule((0.7, 0.5)).length`` is 2.05
    """

    rates: tuple[float, ...]

    @property
    def reached(self) -> tuple[float, ...]:
        """For each position, the probability that it and all before it are accepted: vLLM's
        ``synthetic_acceptance_rates``."""
        return tuple(accumulate(self.rates, mul))

    @property
    def histogram(self) -> tuple[float, ...]:
        """The probabilities of 0, 1, … K accepted proposals."""
        at_least = (1.0, *self.reached, 0.0)
        return tuple(here - deeper for here, deeper in pairwise(at_least))

    @property
    def length(self) -> float:
        """The mean number of tokens of a step: the accepted proposals and the target's own token."""
        return 1 + fsum(self.reached)

    @property
    def variance(self) -> float:
        """The variance of the number of accepted proposals of a step."""
        mean = self.length - 1
        return fsum(chance * (count - mean) ** 2 for count, chance in enumerate(self.histogram))

    def forwards(self, tokens: int, rows: int = 1) -> float:
        """Return the expected number of steps until each of ``rows`` rows, begun together, has so many tokens.

        Exact, for rows that are independent of each other.

        Example: ``Schedule((1.0,)).forwards(5)`` is 3
        """
        chances = self.histogram
        short = [1.0] + [0.0] * (tokens - 1)  # the probability that a row has 0, 1, … tokens, fewer than it needs
        expected = 0.0
        while (left := fsum(short)) > 0 and (going := 1 - (1 - min(left, 1.0)) ** rows) > 0:
            expected += going
            short = [
                fsum(short[have - count - 1] * chance for count, chance in enumerate(chances) if have > count)
                for have in range(tokens)
            ]
        return expected


def schedule_of(
    k: int, rate: float | None = None, length: float | None = None, rates: str = "", histogram: str = ""
) -> Schedule:
    """Return the schedule of K proposals that one of four descriptions gives.

    ``rate``: every position is accepted so often, given those before it. ``rates``: the same for each position,
    ``0.7-0.5-0.3``. ``histogram``: the probabilities of 0, 1, … K accepted proposals, ``0.3-0.35-0.245-0.105``.
    ``length``: the mean number of tokens of a step, from 1 to K + 1; of all schedules with this mean, the one of least
    variance, which vLLM makes of its ``synthetic_acceptance_length``: a step accepts one of the two numbers of
    proposals next to ``length - 1``.

    Raises SpecdecError for none or several of them, and for what no distribution over K proposals is.

    Example: ``schedule_of(3, length=2.6).histogram`` is ``(0, 0.4, 0.6, 0)``
    """
    given = {
        name: value
        for name, value in (("rate", rate), ("length", length), ("rates", rates), ("histogram", histogram))
        if value not in (None, "")
    }
    if len(given) != 1:
        raise SpecdecError(
            f"the acceptance is given by {' and '.join(given) or 'nothing'}; expected one of rate, length, rates, "
            "histogram, each of which describes all of it"
        )
    if rate is not None:
        return Schedule((_probability("rate", rate),) * k)
    if length is not None:
        if not 1 <= length <= k + 1:
            raise SpecdecError(
                f"length is {length!r}; expected 1 to {k + 1}: a step emits one token and up to K = {k} proposals. "
                "Raise K or lower the length"
            )
        return Schedule(tuple(min(max(length - position, 0.0), 1.0) for position in range(1, k + 1)))
    if rates:
        return Schedule(tuple(_probability("rates", one) for one in _numbers("rates", rates, k)))
    chances = [_probability("histogram", one) for one in _numbers("histogram", histogram, k + 1)]
    total = fsum(chances)
    if abs(total - 1) > OFF:
        raise SpecdecError(
            f"histogram is {histogram!r}, which sums to {total:g}; expected 1: the probabilities of 0, 1, … K accepted "
            "proposals"
        )
    at_least = [*accumulate(reversed(chances))][::-1]
    return Schedule(tuple(deeper / here if here else 0.0 for here, deeper in pairwise(at_least)))


def _numbers(name: str, text: object, count: int) -> Sequence[float]:
    """The numbers of ``text``, joined by "-"; a single one may have become a number on its way."""
    parts = str(text).split("-")
    try:
        found = [float(part) for part in parts]
    except ValueError:
        found = []
    if len(found) != count:
        what = "one for each position" if name == "rates" else "the probabilities of 0, 1, … K accepted proposals"
        raise SpecdecError(
            f"{name} is {text!r}; expected numbers joined by -, {count} of them at K = {count - (name != 'rates')}: "
            f"{what}"
        )
    return found


def _probability(name: str, value: float) -> float:
    if not (isfinite(value) and 0 <= value <= 1):
        raise SpecdecError(f"{name} is {value!r}; expected a probability from 0 to 1")
    return value
