"""The break-even map: the acceptance that K proposals need, by batch and context, at measured costs; some of it
measured."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from statistics import fmean
from typing import Any

from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.session import Bench
from benchsuite.predict.costs import Costs
from benchsuite.predict.forecasts import costs_of
from benchsuite.predict.interleave import run_in_turn
from benchsuite.predict.ks import KS
from benchsuite.predict.prediction import constant_speed, needed_acceptance
from specdec.calibration import Point
from specdec_plugins.forecast import fastest_k

ACCEPTANCES = (0.2, 0.4, 0.6, 0.8, 0.95)
"""Chances of each proposal, given that all before it were accepted, at which the map has a speedup."""

MEASURED = ((0.4, 2), (0.4, 8), (0.6, 4), (0.8, 2), (0.8, 8), (0.95, 15))
"""The (acceptance, K) of each batch that are measured as a check, with ``oracle(acceptance)``."""


@dataclass(frozen=True)
class MapPoint:
    """K proposals in each step of ``rows`` rows with ``length`` tokens of context.

    ``window``: the forward's cost, in forwards of one slot; ``needed``: the acceptance at which nothing is gained or
    lost, None where even 1 loses; ``speedups``: over plain, for each of ``ACCEPTANCES``.
    """

    rows: int
    length: int
    k: int
    window: float
    needed: float | None
    speedups: tuple[float, ...]


@dataclass(frozen=True)
class MapCheck:
    """A cell of the map that was run: the speedup of ``oracle(acceptance)`` with K, and that of the map between its
    lengths. ``accepted``: the share of proposals that were accepted, given those before them."""

    rows: int
    length: int
    k: int
    acceptance: float
    accepted: float
    measured: float
    mapped: float


def break_even_map(costs: Costs, drafting: float = 0.0, ks: Sequence[int] = KS[1:]) -> list[MapPoint]:
    """Return the map at the rows and lengths that were probed.

    ``drafting``: what one proposal costs, in forwards of one slot; 0 is a lookup. Every row of a batch accepts by
    itself, and its windows are all K + 1 slots.

    Example: ``min(break_even_map(costs), key=lambda point: point.needed or 1)``
    """
    found = []
    for rows, length in sorted({(point.rows, point.length) for point in costs.plain}):
        forward = costs.verify(1, rows, length)
        for k in ks:
            spent = drafting * k * forward
            speeds = [constant_speed(costs, chance, k, rows, length, spent) for chance in ACCEPTANCES]
            needed = needed_acceptance(costs, k, rows, length, spent)
            window = costs.verify(k + 1, rows, length) / forward
            found.append(MapPoint(rows, length, k, window, needed, tuple(speeds)))
    return found


def map_of_windows(windows: Mapping[int, float], drafting: float = 0.0) -> list[MapPoint]:
    """Return the map of a run in which a window of W slots cost ``windows[W]`` forwards of one slot, up to the widest;
    widths between are interpolated, and nothing else takes time. Its rows and length are 1. Empty without a window.

    Example: ``map_of_windows({1: 1.0, 5: 1.4})`` has K = 1, 2, 3 and 4.
    """
    if 1 not in windows:
        return []
    one = Point(1, 1, 1)
    forward = {one._replace(width=width): cost for width, cost in windows.items()}
    costs = Costs({}, forward, {}, {one: windows[1]}, {}, 0.0)
    return break_even_map(costs, drafting, [k for k in KS if 0 < k < max(windows)])


def fastest_ks(points: Sequence[MapPoint]) -> dict[tuple[int, int], list[int]]:
    """Return the fastest K of a map for each of ``ACCEPTANCES``, by rows and context; 0 is plain decoding.

    Example: ``fastest_ks(break_even_map(costs))[1, 256]`` is ``[0, 1, 3, 8, 15]``
    """
    by_place: dict[tuple[int, int], list[MapPoint]] = defaultdict(list)
    for point in points:
        by_place[point.rows, point.length].append(point)
    return {
        place: [fastest_k({0: 1.0} | {one.k: one.speedups[n] for one in mine}) for n in range(len(ACCEPTANCES))]
        for place, mine in by_place.items()
    }


def oracle_arms(settings: Sequence[Setting]) -> list[Arm]:
    """Return the arms that check the map, ``MEASURED`` for each setting."""
    return [Arm(setting, f"oracle({rate})", "match", "fixed", k) for setting in settings for rate, k in MEASURED]


def checked_map(bench: Bench, arms: Sequence[Arm]) -> tuple[Costs, list[MapCheck]]:
    """Return the costs of a prepared bench's target, and its ``oracle_arms`` measured beside plain decoding.

    Every prompt runs once with each arm, in random order with a fixed seed. The map's value is at the acceptance that
    occurred, which in few tokens is not the one asked for.
    """
    [(_, costs, _)] = costs_of(bench, "cached")
    stages, dice = dict(bench.stages()), random.Random(0)
    by_setting: dict[Setting, list[Arm]] = defaultdict(list)
    for arm in arms:
        by_setting[arm.setting].append(arm)
    found = []
    for setting, mine in by_setting.items():
        gains, units = defaultdict[Arm, list[float]](list), bench.units(setting)
        tries, hits = defaultdict[Arm, int](int), defaultdict[Arm, int](int)
        plain = Arm(setting)
        for unit in units:
            ran = run_in_turn(stages, [plain, *mine], unit.requests, dice)
            for arm in mine:
                gains[arm].append(log(ran[plain].seconds_per_token / ran[arm].seconds_per_token))
                stats = ran[arm].stats
                assert stats is not None, "an arm of ours has the engine's statistics"
                for row in (row for step in stats.steps for row in step.each):
                    hits[arm] += min(row.accepted, row.proposed)
                    tries[arm] += min(row.accepted + 1, row.proposed)
        sizes = [
            len(request.prompt) + setting.sampling.max_new_tokens / 2 for unit in units for request in unit.requests
        ]
        for arm, (rate, k) in zip(mine, MEASURED, strict=True):
            share, length = hits[arm] / max(1, tries[arm]), fmean(sizes)
            mapped = constant_speed(costs, share, k, setting.batch, length)
            found.append(MapCheck(setting.batch, round(length), k, rate, share, exp(fmean(gains[arm])), mapped))
    return costs, found


def map_json(points: Sequence[MapPoint], checks: Sequence[MapCheck]) -> dict[str, Any]:
    """Return the map and its check as JSON has them."""
    speedups = [dict(zip(map(str, ACCEPTANCES), point.speedups, strict=True)) for point in points]
    return {
        "map": [{**asdict(point), "speedups": found} for point, found in zip(points, speedups, strict=True)],
        "measured": [asdict(check) for check in checks],
    }
