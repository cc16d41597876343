"""The key/value benchmark: the arena compared with transformers' caches, as the context grows.

A round appends a window's keys and values in every layer and rolls the window back. ``depths`` attends over the caches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchsuite.machine import clock
from specdec.arena import Arena
from specdec.messages import Verdict, Window
from specdec.model import ArenaModel

LENGTHS = (128, 512, 1024, 2048, 4096)
"""Committed tokens before a round."""

WIDTH = 5
"""Slots of the window of a round: the pending token and four proposals."""

ROUNDS = 9
"""Rounds of each cache at each length, all caches in random order within a round; the medians are reported."""

ROW = slice(0, 1)
"""The one row of the arena."""


@dataclass(frozen=True)
class CacheCost:
    """Costs of one cache at one length, over all layers: milliseconds of each part, bytes and allocations.

    ``moved``: bytes that append and roll-back write; ``allocations``: tensors that they allocate.
    """

    cache: str
    length: int
    append_ms: float
    roll_back_ms: float
    moved: int
    allocations: int


class Meter(TorchDispatchMode):
    """Counts the storages that torch allocates while the mode is active, and their bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocations = self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; a storage of its results is new if no argument has it."""
        kwargs = kwargs or {}
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = function(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known and tensor.numel():
                self.allocations += 1
                self.bytes += tensor.untyped_storage().nbytes()
        return out


class Cache:
    """A cache of random keys and values under test, and what a step does with it, each over all layers.

    ``name`` is shown in its row.
    """

    name: str

    def append(self) -> None:
        """Write a window's keys and values."""

    def attend(self) -> list[Tensor]:
        """Attend from the window, appended before, to all tokens and to itself: [1, W, heads, head_dim] a layer."""
        raise NotImplementedError

    def roll_back(self) -> None:
        """Discard the whole window."""

    def step(self) -> Tensor:
        """Run the whole model on the window, then discard it: logits [1, W, V]."""
        raise NotImplementedError


class ArenaCache(Cache):
    """The arena, on the target's ops."""

    name = "arena"

    def __init__(self, target: ArenaModel, length: int, width: int) -> None:
        self.target, self.ops, self.scaling = target, target.ops, target.layers[0].head_dim ** -0.5
        self.arena: Arena = target.arena(1, length + width, width)
        self.arena.committed[0] = length
        for stored in (*self.arena.keys, *self.arena.values):
            stored.normal_()
        tokens = torch.arange(width, device=target.device)[None]
        none = torch.full_like(tokens[:, 0], -1)
        self.window = Window.chain(tokens[:, 0], tokens[:, 1:], tokens.amax(1))
        self.kept = Verdict(tokens, none, none)  # commits nothing, not even the root: the length stays
        self.length = length
        self.query, self.keys, self.values = _states(target, width)
        self.plan = self.arena.plan(self.window, self.ops, ROW, length)

    def append(self) -> None:
        """Call one op for each layer."""
        for layer in range(len(self.arena.layers)):
            at = self.plan.at(layer)
            self.ops.kv_append(at.keys, at.values, self.keys, self.values, at.cells)

    def attend(self) -> list[Tensor]:
        """Make the masks of one plan, then call one op for each layer."""
        plan = self.arena.plan(self.window, self.ops, ROW, self.length)
        layers = range(len(self.arena.layers))
        return [plan.at(layer).attend(self.ops, self.query, self.scaling) for layer in layers]

    def roll_back(self) -> None:
        """Commit nothing."""
        self.arena.commit(self.kept, ROW, self.ops, compact=False)

    def step(self) -> Tensor:
        """Call the target, whose windows need no roll-back."""
        return self.target.forward(self.arena, self.window, ROW, self.length)[0]


class TransformersCache(Cache):
    """A cache of transformers with its attention function ``sdpa``."""

    def __init__(self, target: ArenaModel, length: int, width: int, static: bool) -> None:
        self.name = "transformers static" if static else "transformers dynamic"
        self.layers, self.length, self.width = range(len(target.layers)), length, width
        self.model = target.twin()
        config = self.model.config
        # A static cache is allocated for the longest sequence.
        self.cache = StaticCache(config, max_cache_len=max(LENGTHS) + width) if static else DynamicCache(config=config)
        self.static = static
        self.query, self.keys, self.values = _states(target, width)
        self.module: Any = SimpleNamespace(num_key_value_groups=self.query.shape[1] // self.keys.shape[1])
        self.tokens = torch.arange(width, device=target.device)[None]
        self.cached: list[tuple[Tensor, Tensor]] = []
        _, *past = _states(target, length)
        for layer in self.layers:
            self.cache.update(*(one.clone() for one in past), layer)

    def append(self) -> None:
        """Call ``update`` for every layer."""
        self.cached = [self.cache.update(self.keys, self.values, layer) for layer in self.layers]

    def attend(self) -> list[Tensor]:
        """Make a boolean mask, or none for a single slot, then call ``sdpa`` for every layer, as the models do."""
        mask = None
        if self.width > 1 or self.static:
            cells = torch.arange(self.cached[0][0].shape[2], device=self.query.device)
            position = self.length + torch.arange(self.width, device=self.query.device)
            mask = (cells <= position[:, None])[None, None]
        return [sdpa_attention_forward(self.module, self.query, *cached, mask)[0] for cached in self.cached]

    def roll_back(self) -> None:
        """Call ``crop``; the static cache has none, so its length is set back in place."""
        if not self.static:
            self.cache.crop(-self.width)
            return
        for layer in self.cache.layers:
            layer.cumulative_length.sub_(self.width)

    def step(self) -> Tensor:
        """Call the unswapped model, which appends; then roll back."""
        logits: Tensor = self.model(self.tokens, past_key_values=self.cache).logits
        self.roll_back()
        return logits


def _states(target: ArenaModel, width: int) -> tuple[Tensor, Tensor, Tensor]:
    heads: int = target.model.config.get_text_config(decoder=True).num_attention_heads
    shape = target.layers[0]
    states = torch.randn(1, width, heads, shape.head_dim, device=target.device).to(target.dtype).transpose(1, 2)
    return states, states[:, : shape.heads], states[:, : shape.heads]


@torch.inference_mode()
def measure_caches(target: ArenaModel, lengths: Sequence[int] = LENGTHS) -> list[CacheCost]:
    """Measure all caches at all lengths, in random order within a round."""
    order, costs = random.Random(0), []
    for length in lengths:
        caches: list[Cache] = [
            ArenaCache(target, length, WIDTH),
            *(TransformersCache(target, length, WIDTH, static) for static in (False, True)),
        ]
        seconds: dict[str, list[tuple[float, ...]]] = {cache.name: [] for cache in caches}
        for _ in range(ROUNDS + 1):
            order.shuffle(caches)
            for cache in caches:
                parts = (cache.append, cache.roll_back)
                seconds[cache.name].append(tuple(clock.device_seconds(part, target.device) for part in parts))
        for cache in sorted(caches, key=lambda cache: cache.name):
            append, back = (median(times) * 1e3 for times in zip(*seconds[cache.name][1:], strict=True))
            meter = Meter()
            with meter:
                cache.append()
            with meter:
                cache.roll_back()
            written = 2 * WIDTH * sum(s.heads * s.head_dim for s in target.layers) * target.dtype.itemsize
            moved = max(meter.bytes, written)
            costs.append(CacheCost(cache.name, length, append, back, moved, meter.allocations))
    return costs
