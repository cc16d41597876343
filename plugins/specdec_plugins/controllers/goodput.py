"""goodput: the K (0 included) with the highest predicted number of tokens per second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil, sqrt
from operator import attrgetter
from statistics import fmean
from typing import Annotated

from specdec import Controller, SpecdecError, hookimpl
from specdec.interfaces import ControllerFactory, Env
from specdec.lengths import Ks, each_k
from specdec.stats import Stats, Step
from specdec_plugins.calibrated import CalibratedCosts
from specdec_plugins.forecast import (
    PACE,
    Chances,
    Forwards,
    StepChoice,
    Times,
    beyond_the_usual,
    fastest_k,
    step_seconds,
)

CHEAP = 0.003
"""Largest share of plain decoding's time that probes may cost while K is 0."""

KEEP_EVER = 0.98
"""What a new observation leaves of the older ones' weight in what is known of a request before it is seen."""

EARLY, SHORT = 2 * CHEAP, 100
"""Largest share of the time of a request's first ``SHORT`` tokens that probes at its begin may cost."""

PUT_OFF = 1.5
"""Factor by which a draft's time exceeds the usual where it does more than propose: where it was not asked for steps,
what it has put off comes first, as the reading of prompts. That is a price of asking again, not of proposals."""

USUAL = 0.8
"""Factor by which a new step reduces the weight of the older ones in the usual speed: about the last five count."""

Seconds = Callable[[int], float]


class Goodput(Controller):
    """Maximises (1 + expected accepted) / (expected time of a step) over K = 0 … ``maximum``.

    So it is for one row, whose next step is like this one. In a batch steps differ: of its rows now more copy and now
    fewer, and some are at their ends. There it maximises the expected tokens beyond those that the step's time would
    bring at the usual speed (``forecast.beyond_the_usual``): wide windows where many rows copy, narrow ones elsewhere.

    The expected accepted tokens are summed over depths; each term is the product of running chances that a proposal
    is made and accepted, given that the proposal before it was. The expected time has three parts: the target's time
    for the expected window width, with so many rows and so much context, calibrated on a spare arena when the engine is
    built and corrected in every step (``specdec_plugins.forecast.Forwards``), the draft's time for K, and the time of
    the rest. While K is 0, a probe proposes from time to time, to notice text that becomes predictable again, and
    at the begin of a request that is alone: it is another text, of which as much is expected as of all so far. Probes
    cost less than one percent, and until one is due nothing is forecast as long as the rows are the same. What a draft
    has put off while it was not asked makes its next proposals dear once: it counts for the price of a probe, and not
    of proposals. Trees are proposed whole or not at all. Chances and times pass from run to run until ``forget``, which
    keeps only the calibration.

    Source: the goodput of SmartSpec, Liu et al. 2406.14066, with measured times instead of a model of them.

    Example: ``goodput(maximum=8)``
    """

    deterministic = False
    k_option = "maximum"

    def __init__(
        self,
        env: Env,
        # 16 slots is the widest window for which the kernels read the weights only once.
        maximum: Annotated[int, "largest K"] = 15,
        probe: Annotated[int, "smallest number of steps between two probes while K is 0"] = 8,
    ) -> None:
        if not 0 <= maximum < env.max_length or probe < 1:
            raise SpecdecError(
                f"{type(self).__name__.lower()} was given maximum={maximum} and probe={probe}; expected a maximum from "
                f"0 to {env.max_length - 1} (the arena holds sequences of {env.max_length}) and probe 1 or more"
            )
        self._most, self._probe = maximum, probe
        widths = sorted({1, 2, maximum + 1} | {width for width in (4, 8, 12) if width < maximum})
        self._costs_of = CalibratedCosts(env, widths)
        self._padding_is_free = env.target.skips_padding
        self._most_rows = env.max_rows
        self.forget()

    def forget(self) -> None:
        """Return to the prior chances and to the times that were measured when the controller was built."""
        self._kept, self._made, self._ever = Chances(), Chances(hope=1.0), Chances(keep=KEEP_EVER)
        self._verify, self._draft, self._rest = Forwards(self._costs_of.at), Times(proportional=True), Times()
        self._put_off = Times()  # what a draft does first when it is asked again
        self._costs_of.length = self._costs_of.half
        self._tree = False
        self._since = 0  # steps since the last step with K above 0
        self._begin(None)

    def _begin(self, stats: Stats | None) -> None:
        self._stats, self._seen = stats, 0
        self._usual = 0.0  # the speed of the last steps, as it was predicted; 0 before the first
        self._k: Ks = 0
        self._alone: int | None = None  # the request of the last step, if it was the only one
        self._early = 0.0  # steps of plain decoding that probes of that request may still cost before they are due
        self._due = 0  # until so many steps since the last proposals K stays 0 for the same rows
        self._resting: tuple[int, ...] = ()

    @property
    def max_k(self) -> int:
        """The largest K."""
        return self._most

    def next_k(self, stats: Stats) -> Ks:
        """The K of the largest predicted goodput, or the K of a probe."""
        if stats is not self._stats:
            self._begin(stats)
            self._kept.faded(0.5)
            self._made.faded(0.5)
        if stats.lengths:
            self._costs_of.length = self._read_cells(stats.lengths)
        self._meet(stats)
        rows = stats.batch, bool(stats.waiting), *(row.request for row in stats.rows)
        unseen = stats.steps[self._seen :]
        # Nothing is seen of proposals while none are made: until a probe is due, the same rows get the same answer.
        if self._since + len(unseen) < self._due and rows == self._resting:
            return self._k
        self._seen += len(unseen)
        self._since += len(unseen[:-PACE])  # of steps without proposals the last ones say what the times are
        for step in unseen[-PACE:]:
            self._learn(stats, step)
        self._due, self._resting = 0, rows
        self._k = self._choose()
        return self._k

    def _meet(self, stats: Stats) -> None:
        """Expect of a request that is alone and new what all requests so far did, not the last one, and allow it its
        probes at once."""
        alone = stats.rows[0].request if len(stats.rows) == 1 else None
        if alone is not None and alone != self._alone and not stats.rows[0].steps:
            self._kept = self._ever.recalled()
            self._early = EARLY * min(SHORT, stats.rows[0].room + 1)
        self._alone = alone

    def _read_cells(self, lengths: Sequence[int]) -> float:
        """The cells that attention reads for a row: its own where padding is left out, else those of the longest."""
        return fmean(lengths) if self._padding_is_free else max(lengths)

    def speeds(self) -> list[float]:
        """Predicted tokens per second of a row for K = 0, 1 …, at the calibrated pace."""
        return [choice.speed for choice in self._choices()]

    def _choices(self) -> list[StepChoice]:
        """Plain decoding, then what else may be asked for, from narrow to wide."""
        tokens = accumulate(self._kept.reached(self._most), initial=1.0)
        seconds = step_seconds(*self._costs(), self._rows if self._padding_is_free else 0)
        return [
            StepChoice(emitted / took, took, k) for k, (emitted, took) in enumerate(zip(tokens, seconds, strict=True))
        ]

    @property
    def _rows(self) -> int:
        return (self._stats and self._stats.batch) or self._most_rows

    def _costs(self) -> tuple[list[float], Callable[[float], float], Seconds, Seconds]:
        """What ``step_seconds`` takes, as far as it is known now."""
        rows = self._rows
        return (
            self._made.reached(self._most),
            lambda width: self._verify.at(width, rows),
            # What a draft costs without proposing is part of ``_rest`` here.
            lambda k: self._draft.at(k) if k else 0.0,
            self._rest.at,
        )

    def _choose(self) -> Ks:
        return self._best(self._choices()).ks if self._most else 0

    @property
    def _steps_differ(self) -> bool:
        """Whether the next steps are better or worse than this one whatever it does: there are several rows."""
        return self._stats is not None and self._stats.batch > 1

    def _best(self, choices: list[StepChoice]) -> StepChoice:
        if self._tree:
            choices = [choices[0], choices[-1]]
        plain, *others = choices
        speeds = {place: choice.speed for place, choice in enumerate(choices)}
        fastest = choices[fastest_k(speeds)]
        self._usual = USUAL * (self._usual or fastest.speed) + (1 - USUAL) * fastest.speed
        if fastest is not plain and self._steps_differ:
            seconds = {place: choice.seconds for place, choice in enumerate(choices)}
            return choices[fastest_k(beyond_the_usual(speeds, seconds, self._usual))]
        if fastest is not plain or not others:
            return fastest
        tried = max(others, key=attrgetter("speed"))
        loss = 1 - tried.speed / plain.speed
        if self._alone is not None and loss <= self._early:
            self._early -= loss
            return tried
        put_off = self._put_off.at(0) / plain.seconds
        due = max(self._probe, ceil((loss + put_off) / CHEAP))
        if self._since >= due:
            if self._affords(tried.seconds / plain.seconds - 1 + put_off):
                return tried
            due = self._since + self._probe
        self._due = due
        return plain

    def _affords(self, lost: float) -> bool:
        """Whether a probe, when it is due, is worth the steps ``lost`` if nothing comes of it."""
        return True

    def _learn(self, stats: Stats, step: Step) -> None:
        times = stats.times(step)
        self._verify.seen(step.slots(self._padding_is_free), step.rows, times.target)
        ks = each_k(self._k, step.rows)
        asked, drafting, rest = max(ks), times.draft / self._verify.pace, times.rest / self._verify.pace
        # Without proposals, the draft's time is that of `observe`: plain decoding with this draft costs it too.
        self._rest.seen(min(asked, 1), rest if asked else rest + drafting)
        if not asked:
            self._since += 1
            return
        rested, self._since = self._since > 0, 0
        self._tree = self._tree or any(row.proposed > row.deepest for row in step.each)
        usual = self._draft.at(asked)
        if rested and usual and drafting > PUT_OFF * usual:
            self._put_off.seen(0, drafting - usual)
        else:
            self._draft.seen(asked, drafting)
        # Rows of a batch are more than one observation and, as they often have one kind of text, fewer than so many;
        # where all of them begin they are one, because answers to one kind of request begin with the same words.
        begun = bool(stats.rows) and all(row.steps <= 1 for row in stats.rows)
        weight = 1 / step.rows if begun else 1 / sqrt(step.rows)
        for depth in range(1, asked + 1):
            tried = sum(k >= depth and row.accepted >= depth - 1 for k, row in zip(ks, step.each, strict=True))
            kept = sum(row.accepted >= depth for row in step.each)
            # Also where no row got so far: what is known of a depth that is no longer reached fades.
            self._kept.seen(depth, weight * kept, weight * tried)
            self._ever.seen(depth, weight * kept, weight * tried)
            if self._padding_is_free:
                made = [row.proposed >= depth for k, row in zip(ks, step.each, strict=True) if k >= depth]
                before = sum(k >= depth and row.proposed >= depth - 1 for k, row in zip(ks, step.each, strict=True))
                self._made.seen(depth, weight * sum(made), weight * before)
            elif step.k >= depth - 1:
                self._made.seen(depth, float(step.k >= depth), 1.0)


@hookimpl
def specdec_register_controllers(register: Callable[[str, ControllerFactory], None]) -> None:
    """Register ``goodput``."""
    register("goodput", Goodput)
