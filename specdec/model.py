"""Runs a transformers model over the arena: no fork, one attention function, a cache object for recurrent layers alone.

``AttentionInterface`` sends the attention of every layer to ``_attention``, which finds the plan of the forward in
``specdec.running``. No mask function is registered under the name "specdec", so transformers builds no mask (see
``masking_utils.py``, transformers 5.23).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from specdec.arena import NO_STATES, Arena
from specdec.choices import BITS
from specdec.devices import uploaded
from specdec.errors import SpecdecError
from specdec.interfaces import Backend
from specdec.layers import layers_of, position_limit
from specdec.messages import Window
from specdec.recurrent import ChunkStates, WindowStates, run_as_made, run_in_slots, state_keepers
from specdec.running import attending_layer, next_turn, running, running_plan
from specdec.sharding import sharding_of
from specdec.states import StateKey, StateShape
from specdec.straight import Straight
from specdec.swap import Swap
from specdec.taps import NO_LAYERS, Taps
from specdec.threads import one_torch_thread
from specdec.trial import WATCHED, ArenaTrial, in_short

PREFILL_CHUNK = 256
"""Largest number of prompt tokens in one prefill forward."""

_ALONE = "a model over the arena was called by itself; call ArenaModel.forward, or the model that twin() gives"


def _attention(module: nn.Module, *tensors: Tensor, **given: Any) -> tuple[Tensor, None]:
    layer = attending_layer()
    if layer is None:
        layer = cast(int, module.layer_idx)  # every decoder's attention carries one
    return _attended(layer, module, *tensors, **given), None


def _attention_in_turn(module: nn.Module, *tensors: Tensor, **given: Any) -> tuple[Tensor, None]:
    """For a model whose layers attend more than once in a forward: each call has keys and values of its own."""
    return _attended(next_turn(), module, *tensors, **given), None


def _attended(
    layer: int,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> Tensor:
    plan = running_plan()
    if plan is None:
        raise SpecdecError(_ALONE)
    size = value.shape[-1]
    if key.shape[-1] != size:  # the narrower is filled with zeros, which change no product
        wide = max(key.shape[-1], size)
        query, key, value = (nn.functional.pad(x, (0, wide - x.shape[-1])) for x in (query, key, value))
    if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
        query = _tuned(module, query, plan.position)
    return plan.attend(layer, query, key, value, scaling, softcap, s_aux)[..., :size]


def _tuned(module: Any, query: Tensor, position: Tensor) -> Tensor:
    """Queries [B, heads, W, d] of a layer of Llama 4 without rotary positions, scaled by ``position`` [B, W].

    The layer has scaled them by the positions that it counts from 0 in each forward, as it is given no cache.
    """

    def scale(at: Tensor) -> Tensor:
        scaled: Tensor = torch.log1p(torch.floor((at.float() + 1.0) / module.floor_scale)) * module.attn_scale + 1.0
        return scaled

    counted = torch.arange(position.shape[1], device=position.device)
    return (query * (scale(position) / scale(counted))[:, None, :, None]).to(query.dtype)


AttentionInterface.register("specdec", _attention)
AttentionInterface.register("specdec_in_turn", _attention_in_turn)


class ArenaModel:
    """A causal transformers model whose attention reads and writes an arena.

    In place: the model's attention implementation becomes ``specdec``, and the parts that ``ops`` computes are
    replaced (``specdec.swap``); ``twin()`` gives an unmodified copy over the same weights. ``bits`` 8 or 4
    rounds the weights of its products, in place. A model that was cut (``specdec.sharding``) has an arena of this
    rank's heads, and every rank must make the same calls. Raises SpecdecError for a model that cannot run over the
    arena.

    Example: ``ArenaModel(AutoModelForCausalLM.from_pretrained(folder), ops)``
    """

    own_threads: bool = False
    """Whether its forwards run on threads of a backend's own: see ``specdec.threads``."""

    skips_padding: bool = False
    """Whether a forward costs what the slots cost that count: see ``Backend.skips_padding``."""

    slots_of_a_pass: int = 1
    """Slots for which a forward reads each weight once: see ``Backend.slots_of_a_pass``."""

    states: Mapping[StateKey, StateShape] = NO_STATES
    """What its recurrent layers keep of a row, beside the arena's cells."""

    def __init__(self, model: PreTrainedModel, ops: Backend, bits: int | None = None) -> None:
        self._keepers = state_keepers(model)
        try:
            self.layers, self.sharding = layers_of(model), sharding_of(model)
            self.limit = position_limit(model.config)
        except (AttributeError, TypeError, ValueError) as error:  # a configuration of another kind than a decoder's
            raise SpecdecError(
                f"a {model.config.model_type} model cannot run over the arena: its configuration says no layers that "
                f"it could hold ({in_short(error)}); choose another model"
            ) from error
        if getattr(model.config.get_text_config(decoder=True), "attn_logit_softcapping", None):
            # sdpa leaves the cap out, and transformers 5.17 chooses it for Gemma 2 all the same.
            model.set_attn_implementation("eager")
        self.native_attention: str = model.config._attn_implementation
        self.model = model.eval().requires_grad_(False)
        self.ops, self.bits = ops, bits
        self.swap = Swap(self.model, ops, bits)
        self.forwards = 0
        weight = next(model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
        self._switch()

    @torch.inference_mode()
    def _switch(self) -> None:
        """Send the model's attention to the arena, and refuse a model for which this changes the logits.

        Some families ignore the switch, and some attend with more than queries, keys and values; both would emit
        fluent but wrong text (``specdec.trial``). Layers that only look like Llama's fail the trial too; they then keep
        their own forward, and the trial runs again.
        """
        reason = self._tried()
        self.forwards = 0
        self.own_threads = self.sharding is None and self.swap.own_threads
        self.skips_padding = self.sharding is None and self.swap.skips_padding
        self.slots_of_a_pass = self.swap.slots_of_a_pass if self.skips_padding else 1
        if reason:
            raise SpecdecError(
                f"a {self.model.config.model_type} model cannot run over the arena ({reason}); "
                "families that can: Llama, Qwen2, Qwen3, Mistral, Gemma 2, Gemma 3, GPT-2, DeepSeek-V3 and those built "
                "like them"
            )

    def _tried(self) -> str:
        """Why the model is refused; empty if it runs."""
        recurrent = bool(self._keepers)
        run_in_slots(self._keepers)
        try:
            trial = ArenaTrial(self.model, self.limit, recurrent)
            self.model.set_attn_implementation(WATCHED)
            found = trial.watched(self.model, self.layers)
            if found.in_turn:
                self.model.set_attn_implementation(self.native_attention)
                found.refusal = found.refusal or trial.steps_differ(self.model)
            self.model.set_attn_implementation("specdec_in_turn" if found.in_turn else "specdec")
        except Exception as error:  # whatever the model's code raises
            return in_short(error)
        if found.refusal:
            return found.refusal
        for table in found.tables:
            self.swap.place(table.module, _at_positions(table.module, table.first))
        self.layers, self.states = found.held(self.layers), found.states
        self.swap.put_in(layers=not found.in_turn)
        reason = trial.differs(self)
        if reason and self.swap.straight:
            self.swap.straight = None
            reason = trial.differs(self)
        if reason:
            self.swap.take_out()
            self.swap.put_in(layers=False)
            reason = trial.differs(self)
        return reason and (found.guess or reason)

    @property
    def precision(self) -> str:
        """The name of its dtype as options have it: ``int8`` or ``int4`` where its weights are rounded to these."""
        return next((name for name, bits in BITS.items() if bits == self.bits), str(self.dtype).removeprefix("torch."))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as a forward reads them; shared weights are counted once."""
        return self.swap.weight_bytes

    def twin(self, layers: int | None = None) -> PreTrainedModel:
        """An unmodified model over the same weights: the reference, or only its first ``layers`` layers, as a draft."""
        memo: dict[int, Any] = {id(p): p for p in self.model.parameters()}
        with self.swap.taken_out(), run_as_made(self._keepers):
            model: PreTrainedModel = copy.deepcopy(self.model, memo)
        if layers is not None:
            total = model.config.num_hidden_layers
            if not 0 < layers < total:
                raise SpecdecError(f"layers is {layers}; the target has {total}, expected 1 to {total - 1}")
            if getattr(model.config.get_text_config(decoder=True), "hidden_size_per_layer_input", None):
                raise SpecdecError(
                    f"a {model.config.model_type} model embeds each token once for all of its layers, so that the "
                    f"first {layers} are no model; choose a draft with a model of its own"
                )
            name, stack = _stack(model, total)
            setattr(_base(model), name, stack[:layers])
            model.config.num_hidden_layers = layers
            kinds = getattr(model.config, "layer_types", None)
            if kinds and len(kinds) > layers:  # some follow the number of layers by themselves
                model.config.layer_types = kinds[:layers]
        model.set_attn_implementation(self.native_attention)
        return model

    def arena(self, rows: int, max_length: int, max_window: int) -> Arena:
        """An arena for this model; its widest window also fits a prefill chunk."""
        widest = max(max_window, min(PREFILL_CHUNK, max_length))
        return Arena(
            self.layers,
            rows=rows,
            max_length=max_length,
            max_window=widest,
            dtype=self.dtype,
            device=self.device,
            states=self.states,
            kept_window=max_window,
        )

    def forward(
        self, arena: Arena, window: Window, rows: slice, longest: int, taps: Taps = NO_LAYERS
    ) -> tuple[Tensor, Tensor]:
        """One forward of a window: logits [B, W, V] and the hidden states of ``taps``, in the model's dtype.

        Logits of a model in half precision are float32: the head's sums, which are not rounded. Those of slots behind a
        row's width mean nothing.
        The hidden states are [B, W, n, H], or without layers the input of the head (after the final norm), [B, W, H].
        In place: the arena's cells past ``committed``; nothing is committed. ``longest`` as in ``Arena.plan``.
        """
        self.forwards += 1
        if straight := self._straight(taps):
            with one_torch_thread(self.own_threads):
                plan = arena.plan(window, self.ops, rows, longest, self.limit)
                hidden = straight.hidden(window.tokens, plan)
                with running(plan):
                    return straight.head(hidden), taps.gathered((), hidden)
        with (
            one_torch_thread(self.own_threads),
            _seen_by_head(self.model) as seen,
            self._tapped(taps.layers) as outputs,
        ):
            plan = arena.plan(window, self.ops, rows, longest, self.limit)
            given: dict[str, Any] = {}
            if self.states:
                given["cache"] = WindowStates(arena.states, rows, arena.committed[rows], window.parents)
            with running(plan):
                out = self.model(input_ids=window.tokens, position_ids=plan.position, use_cache=False, **given)
        return out.logits, taps.gathered(outputs, seen[0])

    def _straight(self, taps: Taps) -> Straight | None:
        """What runs in place of the model's modules where nobody looks at what these return."""
        straight = self.swap.straight
        return straight if straight and not taps.layers and not straight.hooked else None

    @contextmanager
    def _tapped(self, layers: tuple[int, ...]) -> Iterator[list[Tensor]]:
        """Collects the outputs of decoder layers while a forward runs, in the order of their indices."""
        outputs: list[Tensor] = []
        stack = _stack(self.model, len(self.layers))[1] if layers else ()
        handles = [
            stack[layer].register_forward_hook(lambda module, given, output: outputs.append(_states(output)))
            for layer in layers
        ]
        try:
            yield outputs
        finally:
            for handle in handles:
                handle.remove()

    def extend(self, arena: Arena, tokens: Tensor, row: int, start: int, taps: Taps = NO_LAYERS) -> Tensor:
        """Run tokens int64 [1, W] of one row without the head and commit them; returns the hidden states of ``taps``,
        [1, W, H] or [1, W, n, H] as ``forward`` does.

        The row must have ``start`` committed tokens. In place: this row of the arena, through a view.
        """
        zero = torch.zeros(1, dtype=torch.int64, device=tokens.device)
        window = Window.chain(tokens[:, 0], tokens[:, 1:], zero + tokens.shape[1] - 1)
        rows, straight = slice(row, row + 1), self._straight(taps)
        with one_torch_thread(self.own_threads), self._tapped(taps.layers) as outputs:
            plan = arena.plan(window, self.ops, rows, start, self.limit)
            if straight:
                hidden = straight.hidden(tokens, plan)
            else:
                given: dict[str, Any] = {}
                if self.states:
                    given["cache"] = ChunkStates(arena.states, rows, arena.committed[rows], tokens.shape[1], start == 0)
                with running(plan):
                    out = _base(self.model)(input_ids=tokens, position_ids=plan.position, use_cache=False, **given)
                hidden = out.last_hidden_state
        arena.committed[rows] += tokens.shape[1]
        return taps.gathered(outputs, hidden)

    def prefill(
        self, arena: Arena, row: int, prompt: tuple[int, ...], first: int = 0, taps: Taps = NO_LAYERS
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Commit all prompt tokens except the last, in chunks; yields (start, tokens [1, W], hidden states) of each.

        The hidden states are those that ``extend`` returns.

        The row's first ``first`` cells are those of the prompt's first tokens already; by default it is emptied.
        """
        arena.committed[row].fill_(first)
        [tokens] = uploaded(self.device, np.array([prompt[:-1]], dtype=np.int64))
        for start in range(first, tokens.shape[1], PREFILL_CHUNK):
            chunk = tokens[:, start : start + PREFILL_CHUNK]
            yield start, chunk, self.extend(arena, chunk, row, start, taps)


def _base(model: PreTrainedModel) -> nn.Module:
    """The part of a model that gives the hidden states which its head reads."""
    # Mllama's class names a part as its base that it does not have, and is then its own.
    base: nn.Module = model.get_submodule("model") if model.base_model is model else model.base_model
    return base


def _at_positions(table: Any, first: int) -> Callable[..., Tensor]:
    """A forward that reads a table's rows at the positions of the plan, and not at those that it is given."""

    def forward(*_: Any, **__: Any) -> Tensor:
        plan = running_plan()
        if plan is None:
            raise SpecdecError(_ALONE)
        return nn.functional.embedding(plan.position + first, table.weight)

    return forward


def _stack(model: PreTrainedModel, total: int) -> tuple[str, nn.ModuleList]:
    """The list of a model's ``total`` decoder layers, and its name in the model's base."""
    for name, part in _base(model).named_children():
        if isinstance(part, nn.ModuleList) and len(part) == total:
            return name, part
    raise SpecdecError(
        f"a {model.config.model_type} model has its {total} layers in no list of modules, so that none can be read or "
        "left out; choose a draft without layers, or another model"
    )


def _states(output: Any) -> Tensor:
    # Layers of some families return a tuple that begins with their states.
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


@contextmanager
def _seen_by_head(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    # transformers has no hook that gives the last hidden state at no cost; it is the head's input.
    seen: list[Tensor] = []
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()
