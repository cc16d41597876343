"""Predictions from a run so far: how many tokens K proposals would give, and how many seconds they would take."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import exp, inf, log
from operator import attrgetter, getitem
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specdec.calibration import Polyline
from specdec.lengths import Ks

KEEP = 0.85
"""Factor by which a new observation reduces the weight of the older ones: about the last seven count."""

TRUST = 3.0
"""Weight of the prior at each depth, in observations. With less, one
rejected first proposal ends drafting for steps: over 32 tokens that cost up to 6 % (docs/log.md, 2026-11-25)."""

KEEP_HOPE = 0.95
"""Factor by which every observation reduces the weight of the prior at depth 1: a draft of which nothing is accepted
would otherwise look good for ever, because older observations fade."""

HOPE = 0.6
"""Prior chance that a proposal is accepted: high enough for a first attempt, which gives data, and low enough for a
short one, because a wide window of several rows can cost as much as three steps."""


ALIKE = 6.0
"""How alike the moments of a text are, in observations: the chance of a moment is as if drawn from a beta distribution
of this weight, so that a kept proposal makes the next depth likelier. Where chances were independent, K rose in several
steps in text that is copied, and a queue of 16 requests lost up to 7.6 % to the best fixed K; it loses up to 4.7 %."""


class Chances:
    """For each depth, the chance of reaching it from the depth before: a running share with a prior of ``TRUST``.

    ``hope`` is the prior at depth 1, and ``keep`` what a new observation leaves of the older ones' weight. The prior of
    a deeper depth is the chance at the depth before, raised because that depth was reached (``ALIKE``).
    """

    def __init__(self, hope: float = HOPE, keep: float = KEEP) -> None:
        self._hope, self._weight, self._keep = hope, TRUST, keep
        self._hits: list[float] = []
        self._tries: list[float] = []

    def seen(self, depth: int, hits: float, tries: float) -> None:
        """Add an observation: ``hits`` of ``tries`` went from depth - 1 to ``depth``, which counts from 1."""
        while len(self._hits) < depth:
            self._hits.append(0.0)
            self._tries.append(0.0)
        self._hits[depth - 1] = self._keep * self._hits[depth - 1] + hits
        self._tries[depth - 1] = self._keep * self._tries[depth - 1] + tries
        if depth == 1:
            self._weight *= KEEP_HOPE

    def faded(self, share: float) -> None:
        """Multiply the weight of all observations by ``share``, because the text has changed."""
        self._hits = [hits * share for hits in self._hits]
        self._tries = [tries * share for tries in self._tries]

    def recalled(self) -> Chances:
        """What is known of a text of which nothing has been seen: these shares, as ``TRUST`` observations at most."""
        found = Chances(self._hope)
        found._weight = self._weight
        kept = [min(1.0, TRUST / tries) if tries else 0.0 for tries in self._tries]
        found._hits = [share * hits for share, hits in zip(kept, self._hits, strict=True)]
        found._tries = [share * tries for share, tries in zip(kept, self._tries, strict=True)]
        return found

    def reached(self, most: int, own: Chances | None = None, usual: float = TRUST) -> list[float]:
        """The chances of reaching depths 1 … ``most``.

        ``own``: the observations of one row, each a whole one, which are among these. Its share at a depth then counts
        in place of everyone's, beside ``usual`` observations with everyone's share: the chances of a row that is like
        all others are those of all.
        """
        chance, weight, here, out = self._hope, self._weight, 1.0, []
        for depth in range(most):
            if depth < len(self._hits):
                hits, tries = self._hits[depth], self._tries[depth]
                if own is not None and tries > 0:
                    hits = tries * own.share(depth, hits / tries, usual)
                chance = (hits + weight * chance) / (tries + weight)
            here *= chance
            out.append(here)
            chance, weight = (chance * (ALIKE + depth) + 1) / (ALIKE + depth + 1), TRUST
        return out

    def share(self, depth: int, everyones: float, weight: float) -> float:
        """The share of tries that hit at a depth, from 0, beside ``weight`` tries with everyone's share."""
        hits, tries = (kept[depth] if depth < len(kept) else 0.0 for kept in (self._hits, self._tries))
        return (hits + weight * everyones) / (tries + weight)


class ComeTrue:
    """How far a draft's confidence comes true: the running share of proposals that were kept, over the chances that the
    draft gave them, beside ``TRUST`` proposals of which it was right.

    Example: ``ComeTrue().chance(0.8)`` is 0.8; less once proposals are refused of which the draft was as sure.
    """

    def __init__(self) -> None:
        self._kept = self._told = TRUST

    def seen(self, told: float, kept: float) -> None:
        """Add proposals: how many were kept, and the sum of the chances that the draft gave them."""
        self._kept, self._told = KEEP * self._kept + kept, KEEP * self._told + told

    def chance(self, told: float) -> float:
        """The chance that a proposal is kept to which the draft gives this one."""
        return min(1.0, told * self._kept / self._told)


PACE = 5
"""Forwards whose median says how fast the machine is at the moment."""

CALIBRATED = 16.0
"""Forwards of a width that its calibration counts as, against those of the run."""


class Forwards:
    """Seconds of the target's forward by width: as calibrated, corrected by what a run shows.

    What is wrong for every width alike is the machine's ``pace``, which changes within a second where something else
    uses it; what is wrong for one width alone is learned over the whole run. So widths that were measured at different
    times are compared as if they had been measured at once. An error of a width with so many rows says nothing of the
    same width with others.

    A width is a number of slots a row: where padding costs nothing (``ArenaModel.skips_padding``) a mean, which need
    not be whole. ``calibrated(width, rows)`` gives seconds. Example::

        forwards = Forwards(lambda width, rows: 0.01 * width)
        forwards.seen(1, 4, 0.02)  # twice as slow as calibrated
        forwards.at(2, 4)  # 0.02: at the calibrated pace
        forwards.pace  # 2.0
    """

    def __init__(self, calibrated: Callable[[float, int], float]) -> None:
        self.calibrated = calibrated
        self._late: deque[float] = deque(maxlen=PACE)  # logarithms of seen over expected
        # By whole width and rows: forwards seen, sum of their logarithms.
        self._wrong: dict[tuple[int, int], tuple[int, float]] = {}
        self.pace = 1.0

    def seen(self, width: float, rows: int, seconds: float) -> None:
        """Add one measurement; 0 seconds, of a clock too coarse for it, say nothing."""
        if seconds <= 0:
            return
        late = log(seconds / self.calibrated(width, rows))
        if self._late:
            key = round(width), rows
            count, total = self._wrong.get(key, (0, 0.0))
            self._wrong[key] = count + 1, total + late - log(self.pace)
        self._late.append(late - self._correction(width, rows))
        self.pace = exp(median(self._late))

    def at(self, width: float, rows: int) -> float:
        """Seconds for ``width`` slots of ``rows`` rows, at the calibrated pace."""
        return self.calibrated(width, rows) * exp(self._correction(width, rows))

    def _correction(self, width: float, rows: int) -> float:
        low = int(width)
        narrow, wide = (self._of_width(whole, rows) for whole in (low, low + 1))
        return narrow + (width - low) * (wide - narrow)

    def _of_width(self, width: int, rows: int) -> float:
        count, total = self._wrong.get((width, rows), (0, 0.0))
        return total / (count + CALIBRATED)


class Times:
    """Seconds by integer key: the median of the last nine measurements; linear between and above measured keys.

    ``proportional``: below the smallest measured key seconds are proportional to the key, as those of a draft are that
    has a forward for each proposal; otherwise they are the smallest key's.
    """

    def __init__(self, proportional: bool = False) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._line: Polyline | None = None  # kept, because every step asks for many keys
        self._proportional = proportional

    def seen(self, key: int, seconds: float) -> None:
        """Add one measurement."""
        measured = self._seen.setdefault(key, deque(maxlen=9))
        measured.append(seconds)
        self._medians[key] = median(measured)
        self._line = Polyline(self._medians)

    def at(self, key: int) -> float:
        """Seconds for ``key``; 0 before the first measurement."""
        known = self._medians
        if self._proportional and known and 0 < key < min(known):
            return known[min(known)] * key / min(known)
        if len(known) == 1 and key > max(known) > 0:
            return next(iter(known.values())) * key / max(known)  # the cost of one proposal, until others are known
        return self._line.at(key) if self._line else 0.0


def step_seconds(
    made: Sequence[float],
    verify: Callable[[float], float],
    draft: Callable[[int], float],
    rest: Callable[[int], float],
    rows: int = 0,
) -> list[float]:
    """Return the expected seconds of a step whose widest row is asked for K = 0, 1 … ``len(made)`` proposals.

    ``made``: the chance that some row of the batch has a proposal of that depth; each makes the window a slot wider.
    Windows are padded to the widest row, so that no other row's proposals cost anything. With ``rows``, padding costs
    nothing (``unpadded``): so many rows are asked for K each, and ``made`` is the share of them that have one.

    Seconds: ``verify(W)`` of the target's forward, ``draft(K)`` of all that the draft does in a step that asks for K
    (0: what it costs without proposing), ``rest(0)`` and ``rest(1)`` of everything else in steps that ask for none and
    for some.

    Example: ``step_seconds([0.5], lambda w: 1.0 * w, lambda k: 0.1 * k, lambda k: 0.0)`` is ``[1.0, 1.6]``.
    """
    narrow = verify(1)
    out, forward, proposed, after = [narrow + draft(0) + rest(0)], narrow, 0.0, rest(1)
    for k, asked in enumerate(made, 1):
        proposed += asked
        if rows:
            forward = unpadded(verify, proposed, made[0], rows)
        else:  # one more slot, weighted by the chance that a k-th proposal is made
            wide = verify(k + 1)
            forward, narrow = forward + asked * max(0.0, wide - narrow), wide
        out.append(forward + draft(k) + after)
    return out


def unpadded(verify: Callable[[float], float], proposed: float, made: float, asked: int) -> float:
    """Return the expected seconds of a forward that costs what the slots cost that count, whatever the widest row has.

    ``verify``: seconds by the mean slots of a row. ``proposed``: the expected proposals of a row. ``made``: the chance
    that one of the ``asked`` rows has any; without any the forward is one of one slot a row.

    Example: ``unpadded(lambda width: max(1.0, width), 1.0, 0.5, 1)`` is 2.0: half of the forwards have three slots.
    """
    some = 1 - (1 - made) ** asked
    plain = verify(1)
    return plain + some * (verify(1 + proposed / some) - plain) if some else plain


def goodputs(
    kept: Sequence[float],
    made: Sequence[float],
    verify: Callable[[float], float],
    draft: Callable[[int], float],
    rest: Callable[[int], float],
) -> list[float]:
    """Return the expected tokens per second of a row for K = 0, 1 … ``len(kept)``: the formula of every forecast.

    A step emits one token and, of each depth, the share that is ``kept`` there: the chance that a proposal of that
    depth is made and accepted. The other arguments are those of ``step_seconds``.

    Source: the expected length of Leviathan et al. 2211.17192, section 3.1, with a chance of its own at each depth,
    over a step's expected time; the goodput of SmartSpec, Liu et al. 2406.14066.

    Example: ``goodputs([0.5], [1.0], lambda w: 1.0, lambda k: 0.1 * k, lambda k: 0.0)`` is ``[1.0, 1.5 / 1.1]``.
    """
    tokens, seconds = accumulate(kept, initial=1.0), step_seconds(made, verify, draft, rest)
    return [emitted / took for emitted, took in zip(tokens, seconds, strict=True)]


def beyond_the_usual(speeds: Mapping[int, float], seconds: Mapping[int, float], usual: float) -> dict[int, float]:
    """Return the tokens that a step of each K brings beyond those of its time at the ``usual`` speed.

    Where steps differ, the fastest K of each step are not the K with which all steps together are fastest: a slot is
    worth its time if it brings more tokens than that time brings elsewhere. With the speed of all steps together as
    ``usual``, the K of the largest values here make it, and no others are faster.

    Source: the parametric method for ratios, Dinkelbach, Management Science 13 (1967).

    Example: ``beyond_the_usual({0: 1.0, 1: 1.2}, {0: 1.0, 1: 1.5}, 1.1)`` is about ``{0: -0.1, 1: 0.15}``.
    """
    return {k: (speed - usual) * seconds[k] for k, speed in speeds.items()}


LEAST_WORTH = 1e-3
"""What a token is worth at least, so that slots which cost nothing are given to every row."""


def worth_of_rows(left: Sequence[int], seconds: Callable[[int], float]) -> list[float]:
    """Return what a token is worth in each row of a batch that no request waits for: 1 on average.

    ``left``: the tokens that each row may still emit; ``seconds(rows)`` of a forward of one slot. A row that ends makes
    the steps after it as much cheaper as a row costs, and the last one saves whole steps: the j-th of b rows to end is
    worth seconds(b - j + 1) - seconds(b - j) a token, with seconds(0) = 0. That is the derivative of plain decoding's
    time to the end of all. Rows with as much left share what they are worth.

    Example: ``worth_of_rows([3, 9], lambda rows: 1.0 + 0.2 * rows)`` is about ``[0.29, 1.71]``.
    """
    rows = len(left)
    costs = [0.0, *(seconds(count) for count in range(1, rows + 1))]
    each = dict[int, list[float]]()
    for place, tokens in enumerate(sorted(left)):
        each.setdefault(tokens, []).append(max(LEAST_WORTH * costs[1], costs[rows - place] - costs[rows - place - 1]))
    whole = sum(map(sum, each.values())) / rows
    return [sum(each[tokens]) / len(each[tokens]) / whole for tokens in left]


SPREAD = 0.5
"""The share of the variance of a row's end that counts. All of it does where K stays as it is; rows that fall behind
may have another one. On three of six recorded texts half of it did best."""

PLACES = np.linspace(0, 1, 17)
"""Where a tail is looked at, as shares of it."""


def speeds_to_the_end(
    left: Sequence[int],
    kept: Sequence[Sequence[float]],
    ks: Sequence[Sequence[int]],
    alone: Sequence[float],
    together: Sequence[float],
) -> list[float]:
    """Return the expected tokens per second of a row over the time to the end of all rows, by choice, of a batch to
    which no request comes: the last row decides how long it takes.

    ``left``: the tokens that each row may still emit. ``kept``: for each row the chance that a proposal is kept, by
    depth. ``ks``: for each choice the K of each row. ``alone`` and ``together``: seconds of a step of one row and of
    all, by choice; those of other numbers of rows lie on a straight line between. A row's steps to its end are taken to
    be normal. Until their mean over the rows K stays as it is. Behind it the rows that are left go on with the K that
    is best for the last of them.

    Source: the mean and the variance of a renewal process, Feller, An Introduction to Probability Theory II, XI.

    Example: ``speeds_to_the_end([8, 8], [[], []], [(0, 0)], [1.0], [1.25])`` is ``[0.8]``
    """
    rows, most = len(left), max(map(max, ks))
    depths, chances = np.arange(1, most + 1), np.zeros((rows, most))
    for row, some in enumerate(kept):
        chances[row, : len(some)] = some[:most]
    given = np.where(depths <= np.asarray(ks)[:, :, None], chances, 0.0)  # [choice, row, depth]
    mean, square = 1 + given.sum(2), 1 + (given * (2 * depths + 1)).sum(2)  # of the tokens of a step
    tokens = np.asarray(left, float)
    ends = (tokens + (square / mean - 1) / 2) / mean
    spread = np.sqrt(SPREAD * tokens * np.maximum(square - mean**2, 0.0) / mean**3) + 1e-6
    tail, beyond = _behind_the_mean(ends, spread)
    more = (np.asarray(together) - np.asarray(alone)) / max(rows - 1, 1)
    fixed = np.asarray(alone) - more
    before = fixed * ends.mean(1) + more * (ends.sum(1) - beyond)
    last = ends.argmax(1)
    as_fast = mean[np.arange(len(ks)), last][:, None] / mean[:, last].T  # [choice, choice of the tail]
    behind = ((fixed * tail[:, None] + more * beyond[:, None]) * as_fast).min(1)
    found: list[float] = (tokens.mean() / (before + behind)).tolist()
    return found


Numbers = npt.NDArray[np.float64]


def _behind_the_mean(ends: Numbers, spread: Numbers) -> tuple[Numbers, Numbers]:
    """The steps behind the mean end in which any row goes on, and in which each does, in sum: [K] each, of [K, row].

    A logistic curve stands for the normal distribution, from which it differs by less than 0.01.
    """
    middle = ends.mean(1)
    far = (ends + 4 * spread).max(1) - middle
    places = middle[:, None] + far[:, None] * PLACES
    away = (places[:, None] - ends[:, :, None]) / spread[:, :, None]
    ended = 1 / (1 + np.exp(np.clip(-1.702 * away, -50, 50)))  # [K, row, place]

    def integral(values: Numbers) -> Numbers:
        whole: Numbers = (values.sum(1) - (values[:, 0] + values[:, -1]) / 2) * far / (len(PLACES) - 1)
        return whole

    return integral(1 - ended.prod(1)), integral((1 - ended).sum(1))


def fastest_of_rows(
    kept: Sequence[Sequence[float]], seconds: Sequence[float], price: float = 0.0
) -> list[tuple[float, tuple[int, ...]]]:
    """Return, for each K up to which rows may be asked, the K of each row that emit most per second, after that speed.

    ``kept``: for each row the chance that a proposal is kept, by depth, times what a token is worth there, which is 1
    on average (``worth_of_rows``); none is above that of the depth before, and a row has no more of them than it has
    room. ``seconds`` of a step by the K of its widest row (``step_seconds``), and
    ``price``, the seconds of each proposal beside that. Speeds are in tokens per second of a row; the first is that of
    plain decoding, the others are of at least one proposal, if there is room for any.

    Slots go to depths of rows in the order of their chances, until the next one costs more than it brings. A depth
    comes after the one before it by itself, so that no other K within that width are faster. From all slots that bring
    anything, those go that bring less than their price brings at the speed of all, until none does (Dinkelbach's
    method, see ``beyond_the_usual``).

    Example: ``fastest_of_rows([[0.5], [0.9]], [1.0, 1.2])`` is ``[(1.0, (0, 0)), (1.7 / 1.2, (1, 1))]``.
    """
    rows = len(kept)
    sums = [[*accumulate(chances, initial=0.0)] for chances in kept]
    losses = [[-chance for chance in chances] for chances in kept]
    firsts = [chances[0] if chances else -1.0 for chances in kept]
    likeliest = firsts.index(max(firsts))
    one = tuple(int(row == likeliest and bool(kept[row])) for row in range(rows))

    def speed(ks: tuple[int, ...], took: float) -> float:
        return (1 + sum(map(getitem, sums, ks)) / rows) / (took + price * sum(ks))

    def above(least: float, k: int) -> tuple[int, ...]:
        ks = tuple(min(k, bisect_left(loss, -least)) for loss in losses)
        return ks if any(ks) else one

    found = [(1 / seconds[0], (0,) * rows)]
    for k, took in enumerate(seconds[1:], 1):
        ks = above(0.0, k)
        best = speed(ks, took)
        while price and (faster := speed(fewer := above(price * rows * best, k), took)) > best:
            ks, best = fewer, faster
        found.append((best, ks))
    return found


class StepChoice(NamedTuple):
    """What may be asked for in a step: tokens per second of a row, seconds of the step, K of all rows or of each."""

    speed: float
    seconds: float
    ks: Ks


def fastest_of_slots(
    kept: Sequence[Sequence[float]],
    made: Sequence[float],
    verify: Callable[[float], float],
    draft: Callable[[int], float],
    rest: Callable[[int], float],
    price: float = 0.0,
    usual: float = 0.0,
) -> list[StepChoice]:
    """Return plain decoding and, for each K of the widest row that comes about, the fastest K of each row, where
    padding costs nothing (``unpadded``).

    ``kept`` and ``price``: see ``fastest_of_rows``; the other arguments: see ``step_seconds``. Slots are added in the
    order of the chance that they are kept if they are made, as long as one can pay; of 1,500 random cases that found
    the fastest K of all in 98 %, and at most 1.7 % slower ones. The fastest K emit most per second, or, with a
    ``usual`` speed, most beyond what the step's time brings at that (``beyond_the_usual``). Where several rows have no
    choice that is faster than plain, the only other one is a proposal of each, which shows most.

    Example: with ``kept`` ``[[0.5], [0.9]]``, ``made`` ``[1.0]`` and forwards of 1.0 and 1.4 seconds it is plain with
    speed 1.0 and ``(0, 1)`` with ``1.45 / 1.2``.
    """
    rows, each = len(kept), [verify(width) for width in range(1, len(made) + 2)]
    after, drafting = rest(1), [draft(k) for k in range(len(made) + 1)]

    def choice(ks: Sequence[int], tokens: float, proposed: float, most: int) -> StepChoice:
        asked = rows - ks.count(0)
        took = unpadded(verify, proposed / rows, made[0], asked) + drafting[most] + after + price * sum(ks)
        return StepChoice((1 + tokens / rows) / took, took, tuple(ks))

    plain = each[0] + drafting[0] + rest(0)
    found = {0: StepChoice(1 / plain, plain, (0,) * rows)}
    cheapest = min((wide - narrow for narrow, wide in pairwise(each)), default=0.0) + price
    ks, most, tokens, proposed, best = [0] * rows, 0, 0.0, 0.0, dict[int, float]()
    for worth, depth, row in _likeliest_slots(kept, made):
        if most and worth <= cheapest * min(1 / plain, usual or inf):
            break  # neither this one nor any behind it pays for its time
        ks[row], most = depth, max(most, depth)
        tokens, proposed = tokens + kept[row][depth - 1], proposed + made[depth - 1]
        one = choice(ks, tokens, proposed, most)
        value = (one.speed - usual) * one.seconds if usual else one.speed
        if value > best.get(most, -inf):
            best[most], found[most] = value, one
    ones = [min(1, len(chances)) for chances in kept]
    if rows > 1 and any(ones) and max(found.values(), key=attrgetter("speed")).ks == found[0].ks:
        firsts = sum(chances[0] for chances in kept if chances)
        found = {0: found[0], 1: choice(ones, firsts, sum(ones) * made[0], 1)}
    return [found[k] for k in sorted(found)]


def _likeliest_slots(kept: Sequence[Sequence[float]], made: Sequence[float]) -> list[tuple[float, int, int]]:
    """The depths of rows in the order of their chance to be kept if they are made: that chance, the depth, the row."""
    slots = []
    for row, chances in enumerate(kept):
        least = inf
        for depth, (chance, share) in enumerate(zip(chances, made, strict=False), 1):
            least = min(least, chance / share if share > 0 else 0.0)  # a depth is worth no more than the one before
            slots.append((-least, depth, row))
    return [(-worth, depth, row) for worth, depth, row in sorted(slots)]


def fastest_k(speeds: Mapping[int, float]) -> int:
    """Return the K of the largest speed, by whatever they are measured; of equal ones the smallest K.

    Example: ``fastest_k({0: 1.0, 2: 1.3, 4: 1.3})`` is 2.
    """
    return max(speeds, key=lambda k: (speeds[k], -k))
