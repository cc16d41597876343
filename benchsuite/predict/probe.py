"""The probe: measures what forwards, drafts and the engine cost, apart from the rows of a run."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import log
from statistics import fmean, median, stdev

from benchsuite.measure.runners import Always
from benchsuite.predict.costs import Costs, DraftCosts
from specdec.assembly import Assembly
from specdec.engine import Engine
from specdec.request import Request, SamplingParams
from specdec.stats import Stats

TOKENS = 12
"""Tokens that a strategy decodes for each K and context."""

AGAIN_PLAIN = 6
"""Runs of plain decoding, whose differences are the noise."""

WIDTHS_PROBED = (1, 2, 3, 5, 9, 16)
"""Slots of the windows whose forwards are measured, up to the widest that is needed."""


def measure_costs(
    assembly: Assembly,
    engines: Mapping[str, Engine],
    text: Sequence[int],
    rows: Sequence[int],
    lengths: Sequence[int],
    identity: Mapping[str, str],
    known: Costs | None = None,
) -> Costs:
    """Measure the target's forwards, plain decoding and each strategy over ``text``, cut to ``lengths``.

    ``engines``: of each strategy, by its name, built by ``assembly``; they must have room for ``max(rows)`` requests.
    Of what ``known`` has, nothing is measured again. Order is random with a fixed seed, so that a machine that slows
    down does not slow one strategy. In place: the engines' drafts forget.
    """
    widest = max([engine.max_window for engine in engines.values()], default=1)
    widths = sorted({width for width in WIDTHS_PROBED if width < widest} | {1, widest})
    calibration = assembly.calibration
    calibration.seconds |= dict(known.forward) if known else {}
    calibration.measure(rows, lengths, widths)
    if known is None or not set(rows) <= set(known.plain):
        plain, prefill, noise = _plain(assembly.engine(None, k=0), text, rows, lengths)
    else:
        plain, prefill, noise = dict(known.plain), dict(known.prefill), known.noise
    missing = {name: engine for name, engine in engines.items() if known is None or name not in known.strategies}
    found = Costs(identity, calibration.seconds, prefill, plain, known.strategies if known else {}, noise)
    return found.with_strategies({name: _drafting(engine, text, rows, lengths) for name, engine in missing.items()})


def _requests(text: Sequence[int], rows: int, length: int, tokens: int) -> list[Request]:
    """``rows`` requests of ``length`` tokens each from different places of the text, which is taken in a circle."""
    stride, params = max(1, len(text) // max(rows, 1)), SamplingParams(max_new_tokens=tokens)
    return [
        Request(row, tuple(text[(row * stride + at) % len(text)] for at in range(length)), params)
        for row in range(rows)
    ]


def _plain(
    engine: Engine, text: Sequence[int], rows: Sequence[int], lengths: Sequence[int]
) -> tuple[dict[int, float], dict[int, float], float]:
    """Seconds of a step beside its forward by rows, of prefill by length, and the noise of whole runs."""
    rest: dict[int, list[float]] = defaultdict(list)
    prefill: dict[int, list[float]] = defaultdict(list)
    spread = []
    for some in rows:
        for length in lengths:
            runs = []
            for turn in range(AGAIN_PLAIN):
                done = engine.run(_requests(text, some, length, TOKENS))
                if not turn:
                    continue  # warms up
                times = [engine.stats.times(step) for step in engine.stats.steps]
                rest[some] += [one.rest for one in times]
                prefill[length] += [completion.prefill_s for completion in done]
                runs.append(sum(one.target + one.rest for one in times))
            spread.append(stdev(map(log, runs)))
    return (
        {some: median(values) for some, values in rest.items()},
        {length: median(values) for length, values in prefill.items()},
        fmean(spread),
    )


def _drafting(engine: Engine, text: Sequence[int], rows: Sequence[int], lengths: Sequence[int]) -> DraftCosts:
    """What a strategy costs, from runs with K fixed: in each of them every step asks for the same."""
    own, most = engine.controller, engine.max_window - 1
    ks = [k for k in sorted({0, 1, 2, 4, 8, most}) if k <= most]
    runs = [(some, length, k) for some in rows for length in lengths for k in ks]
    random.Random(0).shuffle(runs)
    steps: dict[int, dict[int, dict[int, list[float]]]] = {}
    rest: dict[int, dict[int, list[float]]] = {}
    admit: dict[int, list[float]] = defaultdict(list)
    released = []
    try:
        for some, length, k in [runs[0], *runs]:  # the first warms up
            engine.controller = Always(k)
            if engine.draft:
                engine.draft.forget()
            engine.run(_requests(text, some, length, TOKENS))
            stats = engine.stats
            _book(stats, k, steps.setdefault(some, {}).setdefault(length, {}), rest.setdefault(some, {}))
            admit[length].append(stats.called("admit", "prefilled") / some)
            released.append(stats.called("release", "move") / some)
    finally:
        engine.controller = own
        own.forget()
        if engine.draft:
            engine.draft.forget()
    return DraftCosts(
        {
            some: {at: {made: median(values) for made, values in kinds.items()} for at, kinds in at_lengths.items()}
            for some, at_lengths in steps.items()
        },
        {some: {kind: median(values) for kind, values in kinds.items()} for some, kinds in rest.items()},
        {length: median(values) for length, values in admit.items()},
        median(released),
    )


def _book(stats: Stats, k: int, steps: dict[int, list[float]], rest: dict[int, list[float]]) -> None:
    for step in stats.steps:
        times = stats.times(step)
        steps.setdefault(step.k if k else -1, []).append(times.draft)
        rest.setdefault(int(k > 0), []).append(times.rest)
