"""The probe: measures what forwards, drafts and the engine cost, apart from the rows of a run."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean, median, stdev

from benchsuite.predict.costs import Costs, DraftCosts
from specdec.assembly import Assembly
from specdec.calibration import Point
from specdec.engine import Engine
from specdec.interfaces import Controller
from specdec.request import Request, SamplingParams
from specdec.stats import Stats

TOKENS, PLAIN_TOKENS = 24, 10
"""Tokens of each row that a strategy, or plain decoding, decodes in a run of the probe."""

TURNS = 2
"""Runs of each strategy, rows and context, one in each pass over them all."""

WARM_UP = 3
"""Tokens that each engine decodes before."""

KS_PROBED = (0, 1, 2, 3, 4, 6, 8, 12, 15)
"""K that the steps of the probe ask for, up to the strategy's own; each in turn, in random order."""

WIDTHS_PROBED = (1, 2, 3, 5, 9, 16)
"""Slots of the windows whose forwards are measured alone, up to the widest that is needed."""

FEWEST_PLAIN = 3
"""Runs of plain decoding at each number of rows and context, at least."""

FEWEST_STEPS = 3
"""Steps of one width from which their forwards in runs are taken, and not those measured alone."""


class Cycling(Controller):
    """Asks for each K in turn, in random order; the controller that it stands for spends its own time all the same."""

    deterministic = False

    def __init__(self, own: Controller, ks: Sequence[int], seed: int) -> None:
        self._own, self._ks, self._dice = own, list(ks), random.Random(seed)
        self._left: list[int] = []

    @property
    def max_k(self) -> int:
        """The largest K of the controller that it stands for."""
        return self._own.max_k

    def next_k(self, stats: Stats) -> int:
        """Let the controller choose, and return the next K of the cycle."""
        self._own.next_k(stats)
        if not self._left:
            self._left = self._dice.sample(self._ks, len(self._ks))
        return self._left.pop()


class Probed:
    """Seconds of the parts of steps, as runs bring them."""

    def __init__(self) -> None:
        self.forward: dict[Point, list[float]] = defaultdict(list)
        self.trees: dict[str, dict[Point, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.prefill: dict[int, list[float]] = defaultdict(list)
        self.plain: dict[Point, list[float]] = defaultdict(list)
        self.noise = 0.0
        self.steps: dict[tuple[str, int, int, int], list[float]] = defaultdict(list)
        self.rest: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        self.admit: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.release: dict[str, list[float]] = defaultdict(list)

    def book(self, name: str, engine: Engine, rows: int, length: int, pace: float = 1.0) -> None:
        """Take the last run of an engine; ``name`` is empty for plain decoding. Steps in which some rows have ended
        are left out. ``pace``: how slow the machine was meanwhile, beside how slow it was over the probe."""
        self.take(name, engine.stats, engine.draft is not None and engine.draft.branches, rows, length, pace)

    def take(self, name: str, stats: Stats, branches: bool, rows: int, length: int, pace: float) -> None:
        """As ``book``, of a run that has ended; ``branches``: its draft proposes trees."""
        chosen = stats.chosen or [0] * len(stats.steps)
        for asked, step in zip(chosen, stats.steps, strict=True):
            if step.rows != rows:
                continue
            times = stats.times(step)
            if not name:
                self.plain[Point(rows, length, 1)].append((times.target + times.rest) / pace)
                continue
            forward = self.trees[name] if branches and step.width > 1 else self.forward
            forward[Point(rows, length, step.width)].append(times.target / pace)
            self.steps[name, rows, length, step.k if asked else -1].append(times.draft / pace)
            self.rest[name, rows, int(asked > 0)].append(times.rest / pace)
        if name:
            self.admit[name, length].append(stats.called("admit", "prefilled") / rows / pace)
            self.release[name].append(stats.called("release", "move") / rows / pace)

    def strategy(self, name: str) -> DraftCosts:
        """The costs of one strategy: medians."""
        steps: dict[int, dict[int, dict[int, float]]] = {}
        for (mine, rows, length, made), values in self.steps.items():
            if mine == name:
                steps.setdefault(rows, {}).setdefault(length, {})[made] = median(values)
        rest: dict[int, dict[int, float]] = {}
        for (mine, rows, kind), values in self.rest.items():
            if mine == name:
                rest.setdefault(rows, {})[kind] = median(values)
        admit = {length: median(values) for (mine, length), values in self.admit.items() if mine == name}
        trees = {point: median(values) for point, values in self.trees[name].items()}
        return DraftCosts(steps, rest, admit, median(self.release[name]), trees)


def measure_costs(
    assemblies: Mapping[int, Assembly],
    engines: Mapping[int, Mapping[str, Engine]],
    texts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    params: SamplingParams,
    identity: Mapping[str, str],
    known: Costs | None = None,
) -> Costs:
    """Measure the target's forwards, plain decoding and each strategy over ``texts``, prompts of at most ``lengths``.

    ``assemblies`` and ``engines``, of each strategy by its name, are given for each number of rows; ``params`` are
    those of the requests that are to be predicted. Of what ``known`` has, nothing is measured again, and its age stays.
    All runs alternate in random order with a fixed seed, each with a run of plain decoding before it and after it. All
    of a run's seconds are divided by the pace of these two: theirs over the median of all runs of plain decoding with
    the same rows and context. So a machine that slows down for some seconds slows nothing alone.
    In place: the engines' drafts and controllers forget.
    """
    missing = {
        some: {
            name: engine
            for name, engine in of_rows.items()
            if known is None or name not in known.strategies or some not in known.strategies[name].steps
        }
        for some, of_rows in engines.items()
    }
    if known is not None and not any(missing.values()) and set(assemblies) <= {point.rows for point in known.plain}:
        return known
    forward = dict(known.forward) if known else {}
    for some, assembly in assemblies.items():
        widest = max([engine.max_window for engine in engines[some].values()], default=1)
        widths = sorted({width for width in WIDTHS_PROBED if width < widest} | {1, widest})
        assembly.calibration.measure([some], lengths, widths)
        alone = assembly.calibration.seconds.items()
        forward = {point: seconds for point, seconds in alone if point.length in lengths} | forward
    found = _runs(assemblies, missing, texts, lengths, params)
    forward |= {point: median(values) for point, values in found.forward.items() if len(values) >= FEWEST_STEPS}
    costs = Costs(
        identity,
        forward,
        {**(known.prefill if known else {}), **{length: median(values) for length, values in found.prefill.items()}},
        {**(known.plain if known else {}), **{one: median(values) for one, values in found.plain.items()}},
        known.strategies if known else {},
        found.noise,
        known.made if known else time.time(),
    )
    names = {name for of_rows in missing.values() for name in of_rows}
    return costs.with_strategies({name: found.strategy(name) for name in names})


@dataclass(frozen=True)
class ProbeRun:
    """A run of the probe that has ended: which, its statistics, and whether its draft proposes trees."""

    name: str
    rows: int
    length: int
    stats: Stats
    branches: bool = False

    @property
    def step_s(self) -> float:
        """Seconds of a mean step."""
        times = [self.stats.times(step) for step in self.stats.steps]
        return fmean(one.booked + one.host for one in times)


def _runs(
    assemblies: Mapping[int, Assembly],
    engines: Mapping[int, Mapping[str, Engine]],
    texts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    params: SamplingParams,
) -> Probed:
    found, dice = Probed(), random.Random(0)
    plain = {rows: assembly.engine(None, k=0, max_rows=rows) for rows, assembly in assemblies.items()}
    kinds = [
        (name, engine, rows, length)
        for rows in assemblies
        for name, engine in engines[rows].items()
        for length in lengths
    ]
    for rows, engine in (*plain.items(), *((rows, engine) for _, engine, rows, _ in kinds[:: len(lengths)])):
        engine.run(_requests(texts, rows, lengths[0], 0, params, WARM_UP))
    between = [(rows, length) for rows in plain for length in lengths]
    runs: list[ProbeRun] = []

    def decode_plainly() -> None:
        turn = sum(not run.name for run in runs)
        rows, length = between[turn % len(between)]
        done = plain[rows].run(_requests(texts, rows, length, turn, params, PLAIN_TOKENS))
        found.prefill[length] += [one.prefill_s for one in done]
        runs.append(ProbeRun("", rows, length, plain[rows].stats))

    for turn in range(TURNS):
        for name, engine, rows, length in dice.sample(kinds, len(kinds)):
            decode_plainly()
            own = engine.controller
            engine.controller = Cycling(own, [k for k in KS_PROBED if k <= own.max_k], turn)
            try:
                engine.run(_requests(texts, rows, length, turn, params, TOKENS))
            finally:
                engine.controller = own
                own.forget()
                if engine.draft:
                    engine.draft.forget()
            branches = engine.draft is not None and engine.draft.branches
            runs.append(ProbeRun(name, rows, length, engine.stats, branches))
    decode_plainly()
    while sum(not run.name for run in runs) < FEWEST_PLAIN * len(between):
        decode_plainly()
    book_runs(found, runs)
    return found


def book_runs(found: Probed, runs: Sequence[ProbeRun]) -> None:
    """Book runs, each at the pace of plain decoding before and after it; plain decoding as it was."""
    every: dict[tuple[int, int], list[float]] = defaultdict(list)
    for run in runs:
        if not run.name:
            every[run.rows, run.length].append(run.step_s)
    usual = {kind: median(values) for kind, values in every.items()}
    paces = [None if run.name else run.step_s / usual[run.rows, run.length] for run in runs]
    for place, run in enumerate(runs):
        near = [pace for pace in paces[max(0, place - 1) : place + 2] if pace is not None]
        found.take(run.name, run.stats, run.branches, run.rows, run.length, fmean(near) if run.name else 1.0)
    found.noise = stdev(log(pace) for pace in paces if pace is not None)


def _requests(
    texts: Sequence[Sequence[int]], rows: int, length: int, turn: int, params: SamplingParams, tokens: int
) -> list[Request]:
    """``rows`` requests of ``tokens`` tokens from different texts, which are cut to ``length`` less half of what is
    decoded, or joined."""
    params = replace(params, max_new_tokens=tokens, eos=())
    size, found = max(1, length - tokens // 2), []
    for row in range(rows):
        first = turn * rows + row
        joined: list[int] = []
        while len(joined) < size:
            joined += texts[first % len(texts)]
            first += 1
        found.append(Request(row, tuple(joined[-size:]), params))
    return found
