"""Timing of kernels: every op on every available backend, in alternation, compared with the machine's limits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from statistics import median
from typing import Any, TypeVar

import torch
from transformers import DynamicCache

from benchsuite.benches.kernels import caches
from benchsuite.benches.kernels.depths import DepthCost, measure_depth
from benchsuite.benches.kernels.shapes import WIDTHS, Target, Work
from benchsuite.machine import clock
from benchsuite.machine.roofline import Peak
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ops import Ops
from specdec_kernels.flex import Flex

Name = TypeVar("Name", bound=Hashable)

ROUNDS = 7
"""Samples of each timing, unless --specdec-pairs says otherwise: one in each round, all backends in random order."""

SETTLE_S = 0.02
"""Seconds before a sample: torch's threads spin for milliseconds after their work, on the cores of the next backend."""

SAMPLE_S = 0.002
"""Minimum seconds of a sample: the call is repeated, so that clock resolution and launch time do not dominate."""

CONTEXT = 128
"""Committed tokens at which a whole model's v(W) is measured."""


@dataclass(frozen=True)
class Timing:
    """One op at one shape on one backend: seconds of a call, bytes moved, operations.

    ``fraction`` is of the machine's read bandwidth or arithmetic peak, whichever is larger. ``ratio`` is the
    reference's seconds over these, the median over rounds; None where only the reference ran.
    """

    op: str
    kind: str
    shape: str
    backend: str
    seconds: float
    moved: int
    operations: int
    fraction: float
    ratio: float | None


@dataclass(frozen=True)
class Curve:
    """Seconds of W rows, from W = 1: ``what`` names the op or model, and its backend.

    ``of_torch``: the seconds of one row over those of torch itself, which is the reference's ``linear`` in the target's
    dtype or, for a model, transformers.
    """

    what: str
    seconds: dict[int, float]
    of_torch: float

    @property
    def v(self) -> dict[int, float]:
        """v(W): the cost of W rows in units of one."""
        return {width: value / self.seconds[1] for width, value in self.seconds.items()}


class KernelBench:
    """Times the ops over one target, and stores the results.

    ``target`` runs on the fastest backends available. ``settle_s``: seconds before each sample.

    Example: ``KernelBench("tiny", target).time("linear")``
    """

    def __init__(self, name: str, target: ArenaModel, rounds: int = ROUNDS, settle_s: float = SETTLE_S) -> None:
        assert isinstance(target.ops, Ops)
        self.name, self.target = name, target
        self.rounds, self.settle_s = rounds, settle_s
        self.backends = [Ops([backend, target.ops.chain[-1]]) for backend in target.ops.chain[:-1]]
        if target.device.type == "cuda":
            self.backends.append(Ops([Flex(), target.ops.chain[-1]]))  # for the table alone: it is not in the chain
        self.backends.append(Ops([target.ops.chain[-1]]))
        self.peak = Peak.of(target.device, target.dtype)
        self.shapes = Target(target)
        self.timings: list[Timing] = []
        self.curves: list[Curve] = []
        self.costs: list[caches.CacheCost] = []
        self.depths: list[DepthCost] = []
        self._order = random.Random(0)

    @torch.inference_mode()
    def time(self, op: str) -> list[Timing]:
        """Time one op at all its shapes, on the reference and on every backend that takes it."""
        found = self._time(list(self.shapes.work(op)))
        self.timings += found
        if op == "linear":
            unit = next(t.seconds for t in found if t.backend == "reference")  # one row in the target's own dtype
            for kind in dict.fromkeys(timing.kind for timing in found):
                for backend in dict.fromkeys(timing.backend for timing in found):
                    mine = [t for t in found if t.kind == kind and t.backend == backend]
                    seconds = {int(t.shape.removeprefix("W=")): t.seconds for t in mine}
                    if seconds:
                        self.curves.append(Curve(f"linear {kind}, {backend}", seconds, seconds[1] / unit))
        return found

    def _time(self, works: Sequence[Work]) -> list[Timing]:
        """Time all shapes in the same rounds, so that a slower phase of the machine affects all of them."""
        calls: dict[tuple[int, str], Callable[[], object]] = {}
        kept: dict[str, dict[int, tuple[Any, Any]]] = {ops.name: {} for ops in self.backends}
        for index, given in enumerate(works):
            for ops in self.backends:
                work = given.on(ops, kept[ops.name])
                ops.calls.clear()
                work.do(ops)
                # The reference's decoder layer calls other ops, and only these are counted.
                if ops.ran()[work.op, ops.name] or ops.name == "reference":
                    calls[index, ops.name] = partial(work.do, ops)
        samples = self._samples(calls)
        timings = []
        for (index, name), seconds in samples.items():
            work, middle = works[index], median(seconds)
            ratios = [r / s for r, s in zip(samples[index, "reference"], seconds, strict=True)]
            fraction = self.peak.fraction(work.moved, work.operations, middle)
            ratio = median(ratios) if len(self.backends) > 1 else None
            timings.append(
                Timing(work.op, work.kind, work.shape, name, middle, work.moved, work.operations, fraction, ratio)
            )
        return timings

    def _samples(self, calls: Mapping[Name, Callable[[], object]]) -> dict[Name, list[float]]:
        device = self.target.device
        times = {name: ceil(SAMPLE_S / max(clock.device_seconds(call, device), 1e-9)) for name, call in calls.items()}
        samples: dict[Name, list[float]] = {name: [] for name in calls}
        for _ in range(self.rounds):
            names = list(calls)
            self._order.shuffle(names)
            for name in names:
                time.sleep(self.settle_s)
                samples[name].append(clock.device_seconds(calls[name], device, times[name]))
        return samples

    @torch.inference_mode()
    def model_curves(self, widths: Sequence[int] = WIDTHS) -> list[Curve]:
        """Measure v(W) of the whole model: on its backends, on the reference, and in transformers with its cache."""
        forwards: dict[str, Callable[[int], Callable[[], object]]] = {
            f"model, {self.target.ops.name}": _over_arena(self.target, max(widths)),
            "model, transformers": _over_cache(self.target, max(widths)),
        }
        if self.target.ops.name != "reference":
            slow = ArenaModel(self.target.twin(), self.backends[-1])
            forwards["model, reference"] = _over_arena(slow, max(widths))
        calls = {(what, width): make(width) for what, make in forwards.items() for width in widths}
        samples = {name: median(seconds) for name, seconds in self._samples(calls).items()}
        unit = samples["model, transformers", 1]
        found = [
            Curve(what, {width: samples[what, width] for width in widths}, samples[what, 1] / unit) for what in forwards
        ]
        self.curves += found
        return found

    def caches(self) -> list[caches.CacheCost]:
        """Measure the arena and transformers' caches, at every length."""
        self.costs = caches.measure_caches(self.target)
        return self.costs

    @torch.inference_mode()
    def depth(self, context: int) -> list[DepthCost]:
        """Measure attention and whole steps after so many tokens, ours beside transformers'."""
        found = measure_depth(self.target, context, self._samples)
        self.depths += found
        return found

    def as_json(self) -> dict[str, Any]:
        """Return peak, timings, curves and depths as plain values; ``costs`` is not included."""
        return {
            "target": self.name,
            "device": str(self.target.device),
            "peak": asdict(self.peak),
            "timings": [asdict(timing) for timing in self.timings],
            "curves": [{**asdict(curve), "v": curve.v} for curve in self.curves],
            "depths": [asdict(cost) for cost in self.depths],
        }


def _over_arena(model: ArenaModel, widest: int) -> Callable[[int], Callable[[], object]]:
    arena = model.arena(1, CONTEXT + widest, widest)
    tokens = torch.arange(CONTEXT + widest, device=model.device)[None] % model.vocabulary
    model.extend(arena, tokens[:, :CONTEXT], 0, 0)

    def make(width: int) -> Callable[[], object]:
        own = tokens[:, CONTEXT : CONTEXT + width]
        window = Window.chain(own[:, 0], own[:, 1:], torch.full_like(own[:, 0], width - 1))
        return lambda: model.forward(arena, window, caches.ROW, CONTEXT)

    return make


def _over_cache(target: ArenaModel, widest: int) -> Callable[[int], Callable[[], object]]:
    model = target.twin()
    cache = DynamicCache(config=model.config)
    tokens = torch.arange(CONTEXT + widest, device=target.device)[None] % target.vocabulary
    model(tokens[:, :CONTEXT], past_key_values=cache)

    def make(width: int) -> Callable[[], object]:
        def call() -> None:
            model(tokens[:, CONTEXT : CONTEXT + width], past_key_values=cache)
            cache.crop(-width)

        return call

    return make
