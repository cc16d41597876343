"""Attention and whole steps behind much text: over the arena, and over transformers' dynamic cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from statistics import median

from benchsuite.benches.kernels.caches import ArenaCache, Cache, TransformersCache
from benchsuite.measure.interval import Estimate, estimate
from specdec.model import ArenaModel

CONTEXTS = (128, 512, 2048, 8192, 16_384)
"""Committed tokens before a window."""

WINDOWS = (1, 4, 8)
"""Slots of a window."""

Timed = tuple[str, str]
"""What is timed, and over which cache."""


@dataclass(frozen=True)
class DepthCost:
    """Seconds of ``what``, attention alone or a step, over all layers: ours over the arena and transformers' own.

    ``gain``: their seconds over ours, paired round by round.
    """

    what: str
    context: int
    width: int
    seconds: float
    transformers_seconds: float
    gain: Estimate


def measure_depth(
    target: ArenaModel,
    context: int,
    samples: Callable[[Mapping[Timed, Callable[[], object]]], dict[Timed, list[float]]],
) -> list[DepthCost]:
    """Measure both at every window after ``context`` tokens; ``samples`` times calls round by round.

    A step is the model's forward with its head; transformers' appends to its cache and rolls back.
    """
    costs = []
    for width in WINDOWS:
        caches: tuple[Cache, ...] = (
            ArenaCache(target, context, width),
            TransformersCache(target, context, width, static=False),
        )
        for cache in caches:
            cache.append()  # what attention reads; a later step replaces the window, or appends it anew
            cache.roll_back()
        found = samples(
            {
                (what, cache.name): call
                for cache in caches
                for what, call in (("attention", cache.attend), ("step", cache.step))
            }
        )
        for what in ("attention", "step"):
            ours, theirs = (found[what, cache.name] for cache in caches)
            gain = estimate({what: [log(b / a) for a, b in zip(ours, theirs, strict=True)]})
            costs.append(DepthCost(what, context, width, median(ours), median(theirs), gain))
    return costs
