"""The probe: measures what forwards, drafts and the engine cost, apart from the rows of a run."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import log, sqrt
from statistics import median

from benchsuite.predict.costs import Costs, DraftCosts
from benchsuite.predict.interleave import SteppedRun, step_in_turn
from benchsuite.predict.ks import KS
from benchsuite.predict.prediction import pooled_variance
from specdec.assembly import Assembly
from specdec.calibration import Point, forward_seconds
from specdec.engine import Engine
from specdec.interfaces import Controller
from specdec.lengths import each_k
from specdec.request import Request, SamplingParams
from specdec.stats import Stats

TOKENS = 16
"""Tokens of each row that plain decoding and each strategy decode in a run of the probe."""

TURNS = 2
"""Runs with each number of rows and each context."""

WARM_UP = 3
"""Tokens that each engine decodes before."""

WIDTHS_PROBED = (1, 2, 3, 5, 9, 16)
"""Slots of the windows whose forwards are measured alone, up to the widest that is needed."""

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
    """Seconds of the parts of steps, as runs bring them. ``alone``: of the target's forwards, as measured before."""

    def __init__(self, alone: Mapping[Point, float] | None = None) -> None:
        self._alone = dict(alone or {})
        self.forward: dict[Point, list[float]] = defaultdict(list)
        self.trees: dict[str, dict[Point, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.prefill: dict[int, list[float]] = defaultdict(list)
        self.plain: dict[Point, list[float]] = defaultdict(list)
        self.noise = 0.0
        self.steps: dict[tuple[str, int, int, int], list[float]] = defaultdict(list)
        self.rest: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        self.admit: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.release: dict[str, list[float]] = defaultdict(list)

    def book(self, name: str, engine: Engine, rows: int, length: int) -> None:
        """Take the last run of an engine; ``name`` is empty for plain decoding. Steps in which some rows have ended
        are left out. A forward whose rows have no whole number of slots on average (``Step.slots``) is booked at the
        nearest one, as long as it would have taken by the forwards alone."""
        stats = engine.stats
        chosen = stats.chosen or [0] * len(stats.steps)
        for ks, step in zip(chosen, stats.steps, strict=True):
            if step.rows != rows:
                continue
            asked = any(each_k(ks, rows))
            times = stats.times(step)
            if not name:
                self.plain[Point(rows, length, 1)].append(times.target + times.rest)
                continue
            slots = step.slots(engine.target.skips_padding)
            branched = engine.draft is not None and engine.draft.branches and slots > 1
            forward = self.trees[name] if branched else self.forward
            width = max(round(slots), 1 + branched)
            forward[Point(rows, length, width)].append(times.target * self._share(rows, length, width, slots))
            self.steps[name, rows, length, step.k if asked else -1].append(times.draft)
            self.rest[name, rows, int(asked)].append(times.rest)
        if name:
            self.admit[name, length].append(stats.called("admit", "prefilled") / rows)
            self.release[name].append(stats.called("release", "move") / rows)

    def _share(self, rows: int, length: int, width: int, slots: float) -> float:
        """A forward of ``width`` slots a row over one of ``slots``."""
        if slots == width:
            return 1.0
        return forward_seconds(self._alone, width, rows, length) / forward_seconds(self._alone, slots, rows, length)

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
    With each number of rows and each context plain decoding and all strategies run at once, step by step
    (``step_in_turn``), so that a machine that is slower for a second slows nothing alone.
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
        widths = sorted({min(width, widest) for width in WIDTHS_PROBED} | {widest})
        assembly.calibration.measure([some], lengths, widths)
        alone = assembly.calibration.seconds.items()
        forward = {point: seconds for point, seconds in alone if point.length in lengths} | forward
    found = _runs(assemblies, missing, texts, lengths, params, forward)
    forward |= {point: median(values) for point, values in found.forward.items() if len(values) >= FEWEST_STEPS}
    costs = Costs(
        identity,
        forward,
        {**(known.prefill if known else {}), **{length: median(values) for length, values in found.prefill.items()}},
        {**(known.plain if known else {}), **{one: median(values) for one, values in found.plain.items()}},
        known.strategies if known else {},
        found.noise,
        known.made if known else time.time(),
        any(assembly.target.skips_padding for assembly in assemblies.values()),
    )
    names = {name for of_rows in missing.values() for name in of_rows}
    return costs.with_strategies({name: found.strategy(name) for name in names})


def _runs(
    assemblies: Mapping[int, Assembly],
    engines: Mapping[int, Mapping[str, Engine]],
    texts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    params: SamplingParams,
    alone: Mapping[Point, float],
) -> Probed:
    found, dice = Probed(alone), random.Random(0)
    of_rows = {
        rows: {"": assembly.engine(None, k=0, max_rows=rows), **engines[rows]} for rows, assembly in assemblies.items()
    }
    for rows, mine in of_rows.items():
        for engine in mine.values():
            engine.run(_requests(texts, rows, lengths[0], 0, params, WARM_UP))
    kinds = [(rows, length) for rows in of_rows for length in lengths]
    means: dict[tuple[int, int], list[float]] = defaultdict(list)
    for number in range(TURNS):
        for rows, length in dice.sample(kinds, len(kinds)):
            requests = _requests(texts, rows, length, number, params, TOKENS)
            turns = {name: SteppedRun(engine, requests) for name, engine in of_rows[rows].items()}
            with _cycling([engine for name, engine in of_rows[rows].items() if name], number):
                step_in_turn([*turns.values()], dice)
            for name, turn in turns.items():
                found.book(name, turn.engine, rows, length)
            outcome = turns[""].outcome()
            found.prefill[length].append(turns[""].begun_s / rows)
            means[rows, length].append(outcome.seconds_per_token)
    # Over two runs each, the mean of standard deviations would be a fifth too small.
    found.noise = sqrt(pooled_variance([[*map(log, values)] for values in means.values()]) or 0.0)
    return found


@contextmanager
def _cycling(engines: Sequence[Engine], seed: int) -> Iterator[None]:
    """Engines whose controllers are ``Cycling`` meanwhile; they and their drafts have forgotten it afterwards."""
    own = [engine.controller for engine in engines]
    for engine, controller in zip(engines, own, strict=True):
        engine.controller = Cycling(controller, [k for k in KS if k <= controller.max_k], seed)
    try:
        yield
    finally:
        for engine, controller in zip(engines, own, strict=True):
            engine.controller = controller
            controller.forget()
            if engine.draft:
                engine.draft.forget()


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
