"""Runs the recurrent and convolutional layers of a transformers model over the states beside the arena.

Such a layer asks the model's cache for its state and gives it the next one. Over the arena the cache is one of this
file: it reads and writes ``StateRings``, and returns the keys and values of attention layers as they are, because
``specdec.model`` keeps these in the arena. The model's own modules run unchanged, one slot of a window after another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from specdec.errors import SpecdecError
from specdec.forwards import forward_with, names_in_forward, own_forward
from specdec.running import attend_in
from specdec.states import StateKey, StateRings, StateShape

ASKED = frozenset(("update_conv_state", "update_recurrent_state", "set_linear_cache"))
"""What a module calls to give a cache its next state."""

SCAN = "mamba_selective_scan"
"""The function of transformers' Mamba 1 layers that begins without a state, also where their cache has one."""


class StateCache(Cache):  # type: ignore[misc]  # transformers' classes are untyped
    """What a model's modules ask of a cache, for a text's first tokens; ``held`` has the states that they gave.

    Example: ``model(tokens, use_cache=False, cache=cache := StateCache())``, then ``cache.shapes()``
    """

    fresh = True
    """Whether the text begins with this forward, so that there is no state before it."""

    in_slots = False
    """Whether modules run once for each slot, not for all of them at once."""

    slot: int | None = None
    """The slot for which a module runs; None where it runs for all of them at once."""

    part: Tensor | None = None
    """The first argument of the module for this slot."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.held: dict[StateKey, Tensor] = {}

    def shapes(self) -> dict[StateKey, StateShape]:
        """The sizes and dtypes of the states of one row."""
        return {key: StateShape(tuple(state.shape[1:]), state.dtype) for key, state in self.held.items()}

    def run(self, module: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the forward of a module returns for all its tokens."""
        return module(*given, **named)

    def slots(
        self, given: tuple[Any, ...], named: dict[str, Any], width: int
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments of a module for each of ``width`` slots alone; ``slot`` and ``part`` say meanwhile which."""
        for slot in range(width):
            one = tuple(_of_slot(value, slot, width) for value in given)
            other = {name: _of_slot(value, slot, width) for name, value in named.items()}
            self.slot, self.part = slot, one[0] if one else next(iter(other.values()))
            yield one, other
        self.slot = self.part = None

    def before(self, key: StateKey) -> Tensor | None:
        """The state from which the module goes on, which it may change in place; None before a text's first token."""
        return self.held.get(key)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """The keys and values themselves, for the layer that attends next: layers of Zamba share their attention."""
        attend_in(layer_idx)
        return key_states, value_states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The last inputs of a convolution, [B, channels, kernel size]."""
        return self.before(StateKey(layer_idx, "conv", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Append the inputs of a convolution; returns them behind those before, all [B, channels, tokens]."""
        key = StateKey(layer_idx, "conv", state_idx)
        before, size = self.before(key), conv_kernel_size or conv_states.shape[-1]
        whole = conv_states if before is None else torch.cat([before, conv_states], dim=-1)
        self.held[key] = nn.functional.pad(whole, (max(size - whole.shape[-1], 0), 0))[..., -size:]
        return whole

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state of a recurrence, [B, …]."""
        return self.before(StateKey(layer_idx, "recurrent", state_idx))

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Replace the state of a recurrence."""
        self.held[StateKey(layer_idx, "recurrent", state_idx)] = recurrent_states
        return recurrent_states

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        """The state of a recurrence, as MiniMax asks for it."""
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, cache: Tensor) -> None:
        """Replace the state of a recurrence, as MiniMax gives it."""
        self.update_recurrent_state(cache, layer_idx)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether there is a state before this forward."""
        return not self.fresh

    def is_recording_past(self, layer_idx: int) -> bool:
        """No: the rings keep the states of slots."""
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Masks as if the forward's tokens were the whole text; over the arena there are none."""
        return query_length, 0


class ChunkStates(StateCache):
    """Committed text: ``length`` tokens after ``committed`` int64 [B], of which only the last state is kept.

    ``fresh``: nothing is committed.
    """

    def __init__(self, rings: StateRings, rows: slice, committed: Tensor, length: int, fresh: bool) -> None:
        super().__init__()
        self._rings, self._rows, self._committed, self._after = rings, rows, committed, committed + length
        self.fresh = fresh

    def run(self, module: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The module once; its last states are written to the rings."""
        output = module(*given, **named)
        for key, state in self.held.items():
            self._rings.write(key, self._rows, self._after, state)
        self.held.clear()
        return output

    def before(self, key: StateKey) -> Tensor | None:
        """The state after the committed text."""
        if key not in self.held and not self.fresh:
            self.held[key] = self._rings.read(key, self._rows, self._committed)
        return self.held.get(key)


class WindowStates(StateCache):
    """A window: every slot goes on from its parent's state, slot 0 from the committed text's, and leaves its own.

    ``committed`` int64 [B], ``parents`` int64 [B, W].
    """

    fresh, in_slots = False, True

    def __init__(self, rings: StateRings, rows: slice, committed: Tensor, parents: Tensor) -> None:
        super().__init__()
        rings.refuse_wide(parents.shape[1])
        self._rings, self._rows = rings, rows
        self._sources = (committed[:, None] + 1 + parents).unbind(1)
        self._targets = [committed + 1 + slot for slot in range(len(self._sources))]

    def run(self, module: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The module once for each slot; every slot's states are written to the rings."""
        outputs = []
        for target, (one, other) in zip(self._targets, self.slots(given, named, len(self._targets)), strict=True):
            outputs.append(module(*one, **other))
            for key, state in self.held.items():
                self._rings.write(key, self._rows, target, state)
            self.held.clear()
        return _joined(outputs)

    def before(self, key: StateKey) -> Tensor | None:
        """The state after the slot's parent."""
        if key not in self.held:
            assert self.slot is not None
            self.held[key] = self._rings.read(key, self._rows, self._sources[self.slot])
        return self.held[key]


def state_keepers(model: PreTrainedModel) -> list[nn.Module]:
    """The modules of a model that give a cache their next state, by the code of their forward.

    Raises SpecdecError for a model with recurrent layers whose states no cache has.
    """
    found = [module for module in model.modules() if ASKED & names_in_forward(module)]
    config = model.config.get_text_config(decoder=True)
    if not found and "state" in inspect.signature(type(model).forward).parameters:
        raise SpecdecError(
            f"a {config.model_type} model takes the states of its layers as an argument of its own, state, and asks no "
            "cache for them; choose another model"
        )
    kinds = sorted({"linear_attention", "conv"} & set(getattr(config, "layer_types", None) or ()))
    if kinds and not found:
        raise SpecdecError(
            f"a {config.model_type} model has layers of kind {', '.join(kinds)} that keep their states in their own "
            "modules and ask no cache for them; choose another model"
        )
    return found


def run_in_slots(modules: list[nn.Module]) -> None:
    """Let a ``StateCache`` call the forward of these modules; with any other cache, or none, they run as they did."""
    for module in modules:
        module.forward = SlotForward(module)


@contextmanager
def run_as_made(modules: list[nn.Module]) -> Iterator[None]:
    """A context in which these modules have their own forward alone."""
    forwards = [module.__dict__.pop("forward") for module in modules]
    try:
        yield
    finally:
        for module, forward in zip(modules, forwards, strict=True):
            module.forward = forward


class SlotForward:
    """The forward of a module that a ``StateCache`` calls slot by slot, with its large products once for all slots.

    The linear modules that read the module's input as it is compute their outputs for all slots at once, and so does
    the one whose output the module returns: the weights of both are read once a window, not once a slot. The first call
    with a ``StateCache`` is for all tokens at once and finds the latter.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._linears = {name: part for name, part in module.named_children() if isinstance(part, nn.Linear)}
        self._last: str | None = None
        self._looked = False
        self._scans = SCAN in names_in_forward(module)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """What the module's own forward returns."""
        own: Callable[..., Any] = partial(type(self._module).forward, self._module)
        cache = next((one for one in (*given, *named.values()) if isinstance(one, StateCache)), None)
        if cache is None:
            return own(*given, **named)
        if self._scans and not (cache.fresh or cache.in_slots):
            own = self._scanning_from(cache)
        if self._looked and not cache.in_slots:
            return cache.run(own, given, named)
        whole = given[0] if given else next(iter(named.values()))
        if self._looked and whole.shape[1] == 1:
            return cache.run(own, given, named)
        calls = {name: _Linear(part, cache, whole) for name, part in self._linears.items()}
        last = calls.get(self._last or "")
        if last is not None:
            last.postponed = True
        parts = self._module._modules
        parts.update(calls)  # type: ignore[arg-type]  # they are called, and asked for their weights
        try:
            output = cache.run(own, given, named)
        finally:
            parts.update(self._linears)
        if not self._looked:
            self._looked = True
            once = {name: call.gave[0] for name, call in calls.items() if len(call.gave) == 1}
            self._last = next((name for name, gave in once.items() if gave is output), None)
        return output if last is None else last.module(output)

    def _scanning_from(self, cache: StateCache) -> Callable[..., Any]:
        """The module's own forward, whose scans begin at the cache's state; some have one for each of their heads."""
        module: Any = self._module
        state, scan = cache.get_recurrent_state(module.layer_idx), own_forward(module).__globals__[SCAN]
        assert state is not None
        starts = iter([state] if state.dim() == 3 else state.unbind(1))
        return forward_with(module, **{SCAN: lambda *given, **named: scan_from(next(starts), scan, *given, **named)})


def scan_from(
    state: Tensor,
    scan: Callable[..., tuple[Tensor, Tensor]],
    inputs: Tensor,
    step: Tensor,
    decay: Tensor,
    *matrices: Tensor,
    z: Tensor,
    delta_bias: Tensor | None,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    """The outputs [B, channels, W] of a selective scan that begins at ``state`` [B, channels, N], and its last state.

    ``scan`` begins at zeros and gets all else: ``inputs`` and ``step`` [B, channels, W], ``decay`` [channels, N] and
    the ``matrices`` by which states are written and read, [B, N, W]. As a scan is linear in its state, what is left of
    ``state`` after each token is added.
    """
    outputs, last = scan(inputs, step, decay, *matrices, z=z, delta_bias=delta_bias, **named)
    biased = step if delta_bias is None else step + delta_bias.to(step.dtype)[:, None]
    passed = nn.functional.softplus(biased).float().cumsum(-1)
    left = torch.exp(decay.float()[:, None] * passed[..., None]) * state.float()[:, :, None]
    read = torch.einsum("bcwn,bnw->bcw", left, matrices[1].float()) * nn.functional.silu(z.float())
    return outputs + read.to(outputs.dtype), last + left[:, :, -1].to(last.dtype)


class _Linear:
    """Stands for a linear module of a module that runs slot by slot over ``whole`` [B, W, H]."""

    def __init__(self, module: nn.Linear, cache: StateCache, whole: Tensor) -> None:
        self.module, self._cache, self._whole = module, cache, whole
        self._all: Tensor | None = None
        self.postponed = False
        self.gave: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __call__(self, x: Tensor) -> Any:
        if self.postponed:
            return x
        slot = self._cache.slot
        if slot is None or x is not self._cache.part:
            self.gave.append(self.module(x))
            return self.gave[-1]
        if self._all is None:
            self._all = self.module(self._whole)
        return self._all[:, slot : slot + 1]


def _of_slot(value: Any, slot: int, width: int) -> Any:
    """The part of an argument that belongs to one of ``width`` slots, its second dimension; else all of it."""
    if isinstance(value, tuple):
        return tuple(_of_slot(one, slot, width) for one in value)
    fits = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == width
    return value[:, slot : slot + 1] if fits else value


def _joined(outputs: list[Any]) -> Any:
    """The outputs of slots as one output; what has no slots is the last one's."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], tuple):
        return tuple(_joined(list(parts)) for parts in zip(*outputs, strict=True))
    whole = isinstance(outputs[0], Tensor) and outputs[0].dim() > 1 and outputs[0].shape[1] == 1
    return torch.cat(outputs, dim=1) if whole else outputs[-1]
