"""Whether counters of speculation have the distribution of accepted proposals that was asked for.

Of the steps that reach a position, the number that accept it is binomial with the position's rate, whatever came
before: one exact test for each of the K positions. The accepted proposals of all steps have the convolution of the
histogram with itself: one exact test of the mean, which sees what is a little off everywhere. The p-value of all is the
smallest of the K + 1, times K + 1.

Counts are sums: they do not show whether rows of a batch draw together, which leaves all means as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log, sqrt
from statistics import NormalDist

import torch

from benchsuite.judge.fidelity import FALSE_ALARM, LEAST, SURE
from benchsuite.judge.ties import binomial_tails
from specdec import SpecdecError
from specdec.amounts import amount
from specdec.draft_counts import DraftCounts
from specdec_plugins.schedule import Schedule

MOST_STEPS = 2_000_000
"""The most steps whose sums are computed."""

EXACT_STEPS = 20_000
"""Up to this many steps what is found is computed exactly; sums of more are as good as normal."""

OFF_MEAN = 0.04
"""How far the mean of a planted fault is off, of the tokens of a step."""


@dataclass(frozen=True)
class PlaceCheck:
    """A position of the window: ``accepted`` of the steps that ``reached`` it, and the ``rate`` that was asked for."""

    reached: int
    accepted: int
    rate: float

    @property
    def p_value(self) -> float:
        """How often steps as asked would accept as many or more, or as few or fewer, whichever is rarer, doubled."""
        more = binomial_tails(self.reached, self.rate)[self.accepted]
        fewer = binomial_tails(self.reached, 1 - self.rate)[self.reached - self.accepted]
        return min(1.0, max(LEAST, 2 * min(float(more), float(fewer))))


@dataclass(frozen=True)
class AcceptanceCheck:
    """Counts of ``drafts`` steps of K proposals beside the ``schedule`` that was asked for.

    ``places`` is empty where the server does not count by position: the mean alone is tested then.
    """

    schedule: Schedule
    drafts: int
    accepted: int
    places: tuple[PlaceCheck, ...]

    @cached_property
    def total_p(self) -> float:
        """How often steps as asked would accept as many in all or more, or as few or fewer, doubled; at least LEAST."""
        chances = _sums(self.schedule.histogram, self.drafts)
        fewer, more = chances[: self.accepted + 1].sum(), chances[self.accepted :].sum()
        return min(1.0, max(LEAST, 2 * min(float(fewer), float(more))))

    @cached_property
    def p_value(self) -> float:
        """How often, at most, the counts of steps as asked would be as far off."""
        found = [self.total_p, *(place.p_value for place in self.places)]
        return min(1.0, len(found) * min(found))

    @property
    def length(self) -> float:
        """The mean number of tokens of a step, as counted."""
        return 1 + self.accepted / self.drafts

    @property
    def failure(self) -> str | None:
        """Why the steps are not as asked; None if they may be."""
        if self.p_value >= FALSE_ALARM:
            return None
        odd = min(enumerate(self.places, 1), key=lambda pair: pair[1].p_value, default=None)
        where = ""
        if odd and odd[1].p_value <= self.total_p:
            place, one = odd
            where = f"position {place} accepted {one.accepted} of {one.reached}, asked for is {one.rate:.4g}; "
        return (
            f"{self.drafts} steps do not accept as asked: {where}they emitted {self.length:.3f} tokens each, asked for "
            f"is {self.schedule.length:.3f}; steps as asked would be as far off with a probability of "
            f"{self.p_value:.1g}, and {FALSE_ALARM:.0e} or more is expected. Look for a position too many or too few, "
            "for vLLM's rates (a position and all before it) taken for rates given those before it, or for another "
            "shape of the same mean"
        )

    @property
    def lines(self) -> list[str]:
        """The check as lines: what was counted at each position, the verdict, and what so many steps find."""
        rows = [
            f"position {place}: {one.accepted} of {one.reached} accepted, {one.accepted / one.reached:.4f}; asked for "
            f"is {one.rate:.4f}"
            if one.reached
            else f"position {place}: no step reached it; asked for is {one.rate:.4f}"
            for place, one in enumerate(self.places, 1)
        ]
        verdict = self.failure or (
            f"{self.drafts} steps may accept as asked: they emitted {self.length:.3f} tokens each, asked for is "
            f"{self.schedule.length:.3f}; p={self.p_value:.2g}"
        )
        if not rows:
            rows = [
                "acceptance by position is not counted: the mean alone is tested, and no other shape of it is found"
            ]
        return [*rows, verdict, f"found with {SURE:.0%}: {', '.join(self._powers())}"]

    def _powers(self) -> list[str]:
        """What would be found, with the number of steps that this takes, and whether there were as many."""
        found = []
        for name, other in planted_schedules(self.schedule).items():
            needed = steps_needed(self.schedule, other, bool(self.places))
            if needed is None:
                found.append(f"{name} never")
            else:
                enough = "" if needed <= self.drafts else ", more than there were"
                found.append(f"{name} from {amount(needed, 'step')}{enough}")
        return found


def acceptance_check(schedule: Schedule, counts: DraftCounts) -> AcceptanceCheck:
    """Return the check of what was counted.

    Raises SpecdecError for counts that do not say how many steps there were, of steps with fewer than K proposals, and
    of no step or more than ``MOST_STEPS``.

    Example: ``acceptance_check(schedule_of(2, rate=0.5), DraftCounts.of_histogram([5, 2, 3], 20)).failure`` is None
    """
    k, drafts, accepted = len(schedule.rates), counts.drafts, counts.accepted
    if drafts is None or accepted is None or counts.proposed is None:
        raise SpecdecError(
            "the server does not count steps, proposals and accepted proposals: a mean without counts cannot be "
            "tested; read a server that has them on /metrics or in its answers (docs/metrics.md)"
        )
    if not 0 < drafts <= MOST_STEPS:
        raise SpecdecError(f"{drafts} steps were counted; expected 1 to {MOST_STEPS}: ask for another number of steps")
    if counts.proposed != drafts * k:
        raise SpecdecError(
            f"{drafts} steps had {counts.proposed} proposals; expected {drafts * k}, K = {k} in each: shorter steps "
            "cut off what would be accepted. Name the K of the server, or have it say what each step proposed (vLLM: "
            "--per-request-spec-decode-metrics detailed), which leaves shorter ones out"
        )
    kept = counts.accepted_by_position
    if not kept and accepted:
        return AcceptanceCheck(schedule, drafts, accepted, ())
    at = (drafts, *kept, *[0] * (k - len(kept)))
    places = (PlaceCheck(*three) for three in zip(at, at[1:], schedule.rates, strict=False))
    return AcceptanceCheck(schedule, drafts, accepted, tuple(places))


def whole_steps(k: int, proposed: Sequence[int], accepted: Sequence[int]) -> DraftCounts:
    """Return the counts of the steps that proposed K tokens. A step's number of proposals is fixed before any of them
    is accepted, so that leaving others out favours no outcome.

    Example: ``whole_steps(4, [4, 2, 4], [1, 2, 0]).drafts`` is 2
    """
    return DraftCounts.of_steps((had, kept) for had, kept in zip(proposed, accepted, strict=True) if had == k)


def steps_needed(asked: Schedule, other: Schedule, by_position: bool = True) -> int | None:
    """Return how many steps of ``other`` are found not to be as ``asked`` with the probability ``SURE``.

    One single test finds them so often: the power is exact up to ``EXACT_STEPS`` steps, and above by normal sums.
    ``by_position``: whether the counts are. None: no test would find it, because the two accept the same.

    Example: ``steps_needed(schedule_of(3, length=2.6), schedule_of(3, length=2.704))`` is 1191
    """
    tests = _tests(asked, other, by_position)
    steps = min((one.normal_steps for one in tests), default=inf)
    if steps == inf:
        return None
    low, high = 0, max(1, ceil(steps))

    def found(count: int) -> bool:
        return any(one.power(count) >= SURE for one in tests if one.normal_steps < 1.2 * count + 10)

    while high <= EXACT_STEPS and not found(high):
        low, high = high, high + 1 + high // 20
    while low and high - low > 1:  # a first estimate that is enough is kept: it is at most a few steps too many
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class _PlacePower:
    """The test of a position that a ``share`` of the steps reach, and accept with the probability ``got``."""

    share: float
    wanted: float
    got: float
    alarm: float

    @property
    def normal_steps(self) -> float:
        """The steps at which it finds, were sums normal; one step that cannot be is enough where none may differ."""
        if not self.share or self.wanted == self.got:
            return inf
        if self.wanted in (0, 1):
            fits = 1 - self.share * abs(self.wanted - self.got)
            return log(1 - SURE) / log(fits) if fits > 0 else 1.0
        wanted, got = (one * (1 - one) for one in (self.wanted, self.got))
        return _normal(self.wanted - self.got, wanted, got, self.alarm) / self.share

    def power(self, steps: int) -> float:
        """How often it finds after so many steps."""
        reaching = -binomial_tails(steps, self.share).diff()
        found = 0.0
        for reached in (reaching > 1e-9).nonzero()[:, 0].tolist():
            more = binomial_tails(reached, self.wanted)[:-1]
            fewer = binomial_tails(reached, 1 - self.wanted)[:-1].flip(0)
            kept = -binomial_tails(reached, self.got).diff()
            found += float(reaching[reached] * kept[2 * torch.minimum(more, fewer) < self.alarm].sum())
        return found


@dataclass(frozen=True)
class _MeanPower:
    """The test of all accepted proposals."""

    asked: Schedule
    other: Schedule
    alarm: float

    @property
    def normal_steps(self) -> float:
        """The steps at which it finds, were sums normal."""
        return _normal(self.asked.length - self.other.length, self.asked.variance, self.other.variance, self.alarm)

    def power(self, steps: int) -> float:
        """How often it finds after so many steps."""
        wanted, got = (_sums(one.histogram, steps) for one in (self.asked, self.other))
        fewer, more = wanted.cumsum(0), wanted.flip(0).cumsum(0).flip(0)
        return float(got[2 * torch.minimum(fewer, more) < self.alarm].sum())


def _tests(asked: Schedule, other: Schedule, by_position: bool) -> list[_PlacePower | _MeanPower]:
    k = len(asked.rates) if by_position else 0
    alarm = FALSE_ALARM / (k + 1)
    shares = (1.0, *other.reached)[:k]
    places = [_PlacePower(*three, alarm) for three in zip(shares, asked.rates, other.rates, strict=False)]
    return [_MeanPower(asked, other, alarm), *places]


def _normal(off: float, wanted_variance: float, variance: float, alarm: float) -> float:
    """The draws whose mean is found to be ``off``, both variances being those of one draw."""
    far, sure = NormalDist().inv_cdf(1 - alarm / 2), NormalDist().inv_cdf(SURE)
    return inf if abs(off) < 1e-12 else ((far * sqrt(wanted_variance) + sure * sqrt(variance)) / off) ** 2


def planted_schedules(schedule: Schedule) -> Mapping[str, Schedule]:
    """Return what a server might do in place of a schedule, by name: a position too late or too early, a mean
    ``OFF_MEAN`` higher or lower (``off_by``), and one rate for all positions with the same mean.

    Those that are no schedule of K proposals, or are this one, are left out.
    """
    rates = schedule.rates
    found = {
        "a position too late": Schedule((1.0, *rates[:-1])),
        "a position too early": Schedule((*rates[1:], 0.0)),
        f"a mean {OFF_MEAN:.0%} higher": off_by(schedule, OFF_MEAN),
        f"a mean {OFF_MEAN:.0%} lower": off_by(schedule, -OFF_MEAN),
        "independent draws of this mean": _of_one_rate(schedule),
    }
    return {name: one for name, one in found.items() if one is not None and not _same(one, schedule)}


def off_by(schedule: Schedule, share: float) -> Schedule | None:
    """Return a schedule whose mean length is ``1 + share`` times as large; None if there is none of this kind.

    Rates below 1 are scaled alike, up to 1; where that is not enough, all are.

    Example: ``off_by(schedule_of(3, length=2.6), 0.04).length`` is 2.704
    """
    goal = schedule.length * (1 + share)

    def scaled(factor: float) -> Schedule:
        return Schedule(tuple(min(1.0, rate * factor) if rate < 1 else 1.0 for rate in schedule.rates))

    def all_scaled(factor: float) -> Schedule:
        return Schedule(tuple(min(1.0, rate * factor) for rate in schedule.rates))

    return _found(scaled, goal, 1e6) or _found(all_scaled, goal, 1e6)


def _of_one_rate(schedule: Schedule) -> Schedule | None:
    return _found(lambda rate: Schedule((rate,) * len(schedule.rates)), schedule.length, 1.0)


def _found(made: Callable[[float], Schedule], length: float, most: float) -> Schedule | None:
    """The schedule of this mean length among those that ``made`` makes of numbers from 0, longer for larger ones."""
    low, high = 0.0, most
    if not made(low).length <= length <= made(high).length:
        return None
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if made(middle).length < length else (low, middle)
    return made(high)


def _same(one: Schedule, other: Schedule) -> bool:
    return all(abs(a - b) < 1e-9 for a, b in zip(one.reached, other.reached, strict=True))


def _sums(histogram: Sequence[float], steps: int) -> torch.Tensor:
    """The probabilities, float64, of each sum of so many draws from a histogram, up to rounding in the 15th decimal."""
    size = 1 << (steps * (len(histogram) - 1)).bit_length()
    one = torch.zeros(size, dtype=torch.float64)
    one[: len(histogram)] = torch.tensor(histogram, dtype=torch.float64)
    chances: torch.Tensor = torch.fft.irfft(torch.fft.rfft(one) ** steps, size)
    return chances.clamp(min=0)
