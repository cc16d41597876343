"""Speedups of cells that were not measured: traces of other texts, replayed at measured costs."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt
from statistics import fmean, variance

from benchsuite.measure.interval import student
from benchsuite.predict.costs import Costs
from benchsuite.predict.traces import StepTrace
from specdec_plugins.forecast import goodputs

DRAWS = 24
"""Batches that are put together from traces of single prompts, for each batch that is predicted."""

PRIOR = 4.0
"""Degrees of freedom that the spread of a strategy over all workloads adds to that within one."""

WRONG = 0.08
"""Standard deviation of the logarithm of a replay at measured costs, from what a run of the same steps takes.

Chosen from 108 cells on two cores, where 0.04 left 41 % outside of their 90 % intervals. A later run of other code,
whose rows were all slower than predicted, had 24 % outside: docs/results/20261124-predictions-*.md."""

STRIDE = 16
"""Tokens of context between two evaluations of a cost."""


@dataclass(frozen=True)
class PromptSizes:
    """Requests that run together: tokens of each prompt, and tokens that each is to emit."""

    lengths: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Prediction:
    """A predicted speedup over plain decoding, and the 90 % interval in which the measured one is expected.

    ``end_to_end``: the same from prompt to last token. ``low`` and ``high`` are None where a unit has a single other
    text. ``texts``: traces that it follows from.
    """

    ratio: float
    low: float | None
    high: float | None
    end_to_end: float
    texts: int

    @staticmethod
    def around(ratio: float, half: float | None, end_to_end: float, texts: int) -> Prediction:
        """The prediction with ``half`` of the interval of ln(ratio) on either side; None for no interval."""
        low, high = (None, None) if half is None else (ratio * exp(-half), ratio * exp(half))
        return Prediction(ratio, low, high, end_to_end, texts)

    @property
    def log_ratio(self) -> float:
        """ln(ratio)."""
        return log(self.ratio)

    @property
    def log_end_to_end(self) -> float:
        """ln(end_to_end)."""
        return log(self.end_to_end)

    @property
    def half(self) -> float | None:
        """Half the interval of ln(ratio); None without one."""
        return None if self.high is None else log(self.high / self.ratio)

    def widened(self, factor: float) -> Prediction:
        """The same with ``factor`` times the interval of ln(ratio)."""
        half = self.half
        return self if half is None else Prediction.around(self.ratio, factor * half, self.end_to_end, self.texts)


class Replay:
    """Runs of a strategy and of plain decoding at ``costs``: sums of the costs of their steps, nothing is executed."""

    def __init__(self, costs: Costs, strategy: str) -> None:
        self.costs, self.strategy = costs, strategy
        self._step = cache(
            lambda rows, place, asked, made, slots: costs.step(strategy, rows, place * STRIDE, asked, made, slots)
        )
        self._plain = cache(lambda rows, place: costs.plain_step(rows, place * STRIDE))

    def decoding(self, traces: Sequence[StepTrace], prompts: PromptSizes) -> float:
        """Seconds of decoding ``prompts`` together, each with the steps of its trace, begun again where it ends."""
        live = [(trace, length, 0, 0) for trace, length in zip(traces, prompts.lengths, strict=True)]
        seconds = 0.0
        while live:
            now = [trace.steps[at % len(trace.steps)] for trace, _, at, _ in live]
            longest = max(length + emitted for _, length, _, emitted in live)
            asked, proposed = max(step.asked for step in now), [step.proposed for step in now]
            slots = self.costs.slots(proposed)
            seconds += self._step(len(live), longest // STRIDE, asked, max(proposed), slots)
            after = [
                (trace, length, at + 1, emitted + step.accepted + 1)
                for (trace, length, at, emitted), step in zip(live, now, strict=True)
            ]
            live = [row for row in after if row[3] < prompts.tokens]
        return seconds

    def plain(self, prompts: PromptSizes) -> float:
        """Seconds of decoding ``prompts`` together, a token of each in every step."""
        longest, rows = max(prompts.lengths), len(prompts.lengths)
        return sum(self._plain(rows, (longest + token) // STRIDE) for token in range(prompts.tokens))

    def gains(self, traces: Sequence[StepTrace], prompts: PromptSizes) -> tuple[float, float]:
        """The logs of the speedup of decoding, and from prompt to last token."""
        ours, theirs = self.decoding(traces, prompts), self.plain(prompts)
        ours_begun = sum(self.costs.begun(self.strategy, length) for length in prompts.lengths)
        begun = sum(self.costs.begun(None, length) for length in prompts.lengths)
        return log(theirs / ours), log((theirs + begun) / (ours + ours_begun))


Text = tuple[int, ...]
"""A text is told apart from others by its prompt's token ids."""


@dataclass(frozen=True)
class PredictedUnit:
    """A unit that is predicted: its requests' sizes and texts, and the traces of texts that it is predicted from."""

    prompts: PromptSizes
    texts: tuple[Text, ...]
    donors: Mapping[Text, StepTrace]


def predict(costs: Costs, strategy: str, targets: Sequence[PredictedUnit], spread: float | None = None) -> Prediction:
    """Predict the speedup of a cell: the geometric mean over its units.

    ``spread``: the variance of the log speedup between texts of this strategy over all workloads, which steadies that
    within this one. Raises ValueError for a unit without traces.

    The interval is Student's t. Its variance has three parts. Texts: what is predicted is a sum of texts' logs with
    weights, and what is measured is another; the variance between texts counts with the squares of the differences of
    these weights, so that a text that is in both sums in equal parts adds nothing. The machine: its noise in each unit,
    of the arm's run and of plain's, twice the variance of one. The costs: ``WRONG``. The variance between texts is
    moderated: ``spread`` counts as ``PRIOR`` degrees of freedom. Source: Smyth 2004 (moderated t), with a fixed prior.
    """
    replay = Replay(costs, strategy)
    decoding, whole, by_text = list[float](), list[float](), list[list[float]]()
    weights: dict[Text, float] = defaultdict(float)
    for target in targets:
        if not target.donors:
            raise ValueError("a unit has no trace of another text to be predicted from")
        rows, traces = len(target.prompts.lengths), [*target.donors.values()]
        found = [replay.gains(drawn, target.prompts) for drawn in drawn_batches(traces, rows)]
        decoding.append(fmean(one for one, _ in found))
        whole.append(fmean(one for _, one in found))
        alone = found if rows == 1 else [replay.gains([trace] * rows, target.prompts) for trace in traces]
        by_text.append([one for one, _ in alone])
        for text in target.texts:
            weights[text] += 1 / rows / len(targets)
        for text in target.donors:
            weights[text] -= 1 / len(traces) / len(targets)
    texts = min(len(target.donors) for target in targets)
    half = _half_width(by_text, texts, sum(share**2 for share in weights.values()), spread, costs.noise, len(targets))
    return Prediction.around(exp(fmean(decoding)), half, exp(fmean(whole)), texts)


def drawn_batches(traces: Sequence[StepTrace], size: int) -> list[list[StepTrace]]:
    """Return batches of ``size`` traces: each trace alone, or ``DRAWS`` batches drawn with a fixed seed."""
    if size == 1:
        return [[trace] for trace in traces]
    dice = random.Random(0)
    whole = len(traces) >= size
    return [dice.sample(traces, size) if whole else dice.choices(traces, k=size) for _ in range(DRAWS)]


def pooled_variance(by_group: Sequence[Sequence[float]]) -> float | None:
    """Return the variance around the mean of each group, over all of them; None where no group has two."""
    groups = [group for group in by_group if len(group) > 1]
    degrees = sum(len(group) - 1 for group in groups)
    return sum(variance(group) * (len(group) - 1) for group in groups) / degrees if groups else None


def _half_width(
    by_text: Sequence[Sequence[float]], texts: int, squares: float, spread: float | None, noise: float, units: int
) -> float | None:
    """Half the interval of the log; ``squares``: the sum of the squares of the texts' weights."""
    degrees, prior = texts - 1, PRIOR if spread is not None else 0.0
    if not degrees + prior:
        return None
    between = ((pooled_variance(by_text) or 0.0) * degrees + (spread or 0.0) * prior) / (degrees + prior)
    return half_of_sum(between * squares, degrees + prior, 2 * noise**2 / units + WRONG**2)


def half_of_sum(estimated: float, degrees: float, certain: float) -> float:
    """Return half the 90 % interval of a log with two variances: one that was estimated, with its degrees of freedom,
    and one that is taken for certain and has no uncertainty of its own (Welch and Satterthwaite).

    Example: ``half_of_sum(0.0, 0.0, 0.01)`` is 0.1645, that of a normal distribution.
    """
    whole = estimated + certain
    freedom = degrees * (whole / estimated) ** 2 if estimated > 0 else 1e6
    return student(0.9, min(freedom, 1e6)) * sqrt(whole)


def needed_acceptance(costs: Costs, k: int, rows: int, length: float, drafting: float = 0.0) -> float | None:
    """Return the acceptance at which K proposals neither gain nor lose, the same at every position; None above 1.

    ``drafting``: seconds of the draft for all K.

    Example: ``needed_acceptance(costs, 4, rows=1, length=256)`` is 0.08 where a window of five costs 1.09 forwards.
    """
    # What a step costs does not depend on what is accepted; how many tokens it emits does.
    alone = constant_speed(costs, 0.0, k, rows, length, drafting)

    def speed(acceptance: float) -> float:
        return alone * sum(acceptance**depth for depth in range(k + 1))

    if speed(1.0) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if speed(middle) < 1:
            low = middle
        else:
            high = middle
    return high


def constant_speed(costs: Costs, acceptance: float, k: int, rows: int, length: float, drafting: float = 0.0) -> float:
    """Return the speedup of K proposals of which each is accepted with the same chance, if all before it were.

    ``drafting``: seconds of the draft in a step. Everything else costs what it does in plain decoding.
    """
    rest = costs.plain_step(rows, length) - costs.verify(1, rows, length)
    found = goodputs(
        [acceptance**depth for depth in range(1, k + 1)],
        [1.0] * k,
        lambda width: costs.verify(width, rows, length),
        lambda asked: drafting if asked else 0.0,
        lambda asked: rest,
    )
    return found[-1] * costs.plain_step(rows, length)
