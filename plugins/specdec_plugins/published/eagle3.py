"""Reads EAGLE-3 heads: one network (Li et al. 2503.01840, and 3.1), under the names of all who publish it.

Keys and names are those of the code of November 2026: the package ``speculators``; EAGLE's repository, SpecForge and
AngelSlim; NVIDIA's ModelOpt, which nests settings; NeMo AutoModel, which prefixes tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from specdec import SpecdecError
from specdec_plugins.heads.eagle3_head import Eagle3Head, Eagle3Layer, Eagle3Shape
from specdec_plugins.published.checkpoint import Checkpoint, Settings, Tensors
from specdec_plugins.published.layers import layer_harmless, layer_spans
from specdec_plugins.published.reading import (
    Choice,
    Published,
    Reading,
    TargetSizes,
    are_ids,
    draft_ids,
    settled,
    token_ids,
)
from specdec_plugins.published.rotary import rotary_of

FORM = "eagle3"

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaEagle3DraftModel")
"""Names of the network outside of the package speculators; EAGLE's own and ModelOpt's older files have Llama's."""

IDS = "eagle_aux_hidden_state_layer_ids"


class Eagle3Parts(nn.Module):
    """The network and what stands around it.

    ``ids`` int64 [D] are the target's ids of the head's tokens; None: all. ``embedding`` [V, H] is the head's own;
    None: the target's is read. ``spans`` are the tokens over which each layer attends; None: all. What a file has,
    whether it was taken or not: ``d2t`` and ``window`` (0: none).
    """

    ids: Tensor | None
    embedding: Tensor | None
    d2t: Tensor | None

    def __init__(
        self,
        network: Eagle3Head,
        ids: Tensor | None,
        embedding: Tensor | None,
        spans: tuple[int | None, ...],
        d2t: Tensor | None,
        window: int,
    ) -> None:
        super().__init__()
        self.network, self.spans, self.window = network, spans, window
        for name, held in (("ids", ids), ("embedding", embedding), ("d2t", d2t)):
            self.register_buffer(name, held)


def knows(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is an EAGLE-3 head that proposes token by token."""
    kind = checkpoint.settings.peek("speculators_model_type")
    if kind is not None:
        return kind == "eagle3"
    named = checkpoint.settings.peek("architectures")
    mine = isinstance(named, list) and not {*ARCHITECTURES}.isdisjoint(named)
    parallel = any(name.endswith("mask_hidden") for name in checkpoint.tensors.shapes)
    return (mine or "midlayer.hidden_norm.weight" in checkpoint.tensors) and not parallel


def read(checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[Eagle3Parts]:
    """Read a head in any dialect: see ``specdec_plugins.published``."""
    settings, tensors = checkpoint.settings, checkpoint.tensors
    speculators = "speculators_model_type" in settings
    layer = settings.inside("transformer_layer_config") if speculators else settings
    prefix = "model." if "model.fc.weight" in tensors else ""
    first = f"{prefix}midlayer." if f"{prefix}midlayer.hidden_norm.weight" in tensors else f"{prefix}layers.0."
    dialect = _dialect(settings, speculators, prefix)
    _take_known(settings, layer)

    state_size = settings.take("target_hidden_size", int, None) or layer.take("hidden_size", int)
    _fits(checkpoint, "states of size", state_size, sizes.hidden)
    vocabulary = layer.take("vocab_size", int)
    _fits(checkpoint, "a vocabulary of", vocabulary, sizes.vocabulary)
    states = _states(checkpoint, f"{prefix}fc.weight", state_size)
    layers = _layers(checkpoint, sizes, reading, speculators, states)
    norm_output = _flag(settings, "norm_output")
    fed = settled("states", reading.states, [("after" if norm_output.value else "before", norm_output.source)], "")
    shape = _shape(checkpoint, layer, prefix, first, states, state_size, vocabulary, fed.value == "after")
    spans, named, source = layer_spans(layer, shape.layers)
    alike = None if spans is None or len({*spans}) > 1 else spans[0] or 0
    window = settled("window", reading.window, [(alike, source)], f"eagle3(head=…, window={named})")
    ids, d2t, said = _ids(checkpoint, shape.vocabulary, vocabulary, reading)
    name = f"{prefix}embed_tokens.weight"
    own = tensors.take(name, (vocabulary, shape.hidden), optional=True)
    found: Literal["own", "target"] = "target" if own is None else "own"
    embedding = settled("embedding", reading.embedding, [(found, f"{name} is {'not ' * (own is None)}there")], "")
    if embedding.value == "own" and own is None:
        raise SpecdecError(f"{checkpoint.path} has no {name}; leave embedding=own out, or say embedding=target")
    if embedding.value == "target":
        _fits(checkpoint, "embeddings of size", shape.hidden, sizes.hidden)
    rotary = rotary_of(layer, checkpoint.path, shape.head_dim, layer.take("max_position_embeddings", int, 2048))
    network = Eagle3Head(shape, *rotary).requires_grad_(False)
    with torch.no_grad():
        _fill(network, tensors, prefix, first)
    choices = (layers, fed, *said, window, embedding)
    taken = Reading(**{choice.what: choice.value for choice in choices})  # type: ignore[arg-type]  # by their names
    parts = Eagle3Parts(
        network,
        ids,
        own if embedding.value == "own" else None,
        (taken.window or None,) * shape.layers,
        d2t,
        named,
    )
    return Published(FORM, dialect, parts, taken, choices)


def alternatives(published: Published[Eagle3Parts], sizes: TargetSizes) -> dict[str, Reading]:
    """The other readings of a head that would load, by names in plain words."""
    reading, parts = published.reading, published.head
    layers = reading.layers or ()
    found = {
        "layers one earlier": replace(reading, layers=tuple(layer - 1 for layer in layers)),
        "layers one later": replace(reading, layers=tuple(layer + 1 for layer in layers)),
        "layers in the reverse order": replace(reading, layers=layers[::-1]),
        "states after the norm fed back": replace(reading, states="after"),
        "states before the norm fed back": replace(reading, states="before"),
        "window ignored": replace(reading, window=0),
        "embeddings of the target": replace(reading, embedding="target"),
    }
    if parts.window:
        found[f"a window of {parts.window}"] = replace(reading, window=parts.window)
    if parts.d2t is not None and are_ids(token_ids(parts.d2t, "id"), sizes.vocabulary):
        found["d2t as ids"] = replace(reading, ids="id")
    if parts.d2t is not None and are_ids(token_ids(parts.d2t, "offset"), sizes.vocabulary):
        found["d2t as offsets"] = replace(reading, ids="offset")
    if parts.network.shape.hidden != sizes.hidden:
        del found["embeddings of the target"]
    return {
        name: other
        for name, other in found.items()
        if other != reading and all(0 <= layer < sizes.layers for layer in other.layers or ())
    }


def _dialect(settings: Settings, speculators: bool, prefix: str) -> str:
    if speculators:
        return "speculators"
    if prefix:
        return "nemo"
    return "modelopt" if "use_last_layernorm" in settings.inside("eagle_config") else "eagle"


def _take_known(settings: Settings, layer: Settings) -> None:
    """Take what says nothing of the network, and what may have one value alone."""
    for one in (settings, layer):
        layer_harmless(one)
        one.fixed("model_type", "llama", "qwen2", "qwen3", "mistral", "eagle3")
        one.fixed("tie_word_embeddings", False)
    settings.harmless("speculators_config", "speculators_version", "speculators_model_type", "embed_requires_grad")
    settings.fixed("parallel_drafting", False)
    layer.fixed("hidden_act", "silu")
    nested = settings.inside("eagle_config")
    for key, value in (
        ("use_aux_hidden_state", True),
        ("use_input_layernorm_in_first_layer", True),
        ("use_last_layernorm", True),
        ("use_mtp_layernorm", False),
        ("parallel_draft_step", 1),
    ):
        nested.fixed(key, value)


def _fits(checkpoint: Checkpoint, what: str, got: int, expected: int) -> None:
    if got != expected:
        raise SpecdecError(
            f"{checkpoint.path} reads {what} {got}, and the target has {expected}: it is the head of another target"
        )


def _states(checkpoint: Checkpoint, name: str, size: int) -> int:
    """How many states the fusion reads, by the size of its matrix."""
    shape = checkpoint.tensors.shapes.get(name, (0, 0))
    if len(shape) != 2 or shape[1] % size or not shape[1]:
        raise SpecdecError(f"{name} in {checkpoint.path} is {list(shape)}; expected [H, n · {size}], of n states")
    return shape[1] // size


def _layers(checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading, speculators: bool, states: int) -> Choice:
    """The layers whose outputs are fused: by the form of speculators, or by the triple that EAGLE-3 reads by itself.

    In speculators, and in the engine that it trains with, id k is what layer k reads, the output of layer k - 1.
    Elsewhere some write what a layer reads and some what it gives, and the numbers alone do not tell, but for the
    triple of EAGLE's own code: the inputs of layers 2, n / 2 and n - 3.
    """
    settings, count = checkpoint.settings, sizes.layers
    read = (2, count // 2, count - 3)
    usual = tuple(layer - 1 for layer in read)
    found, source = settings.integers(IDS), IDS
    inner = settings.inside("eagle_config").integers(IDS)
    if inner:
        if found and found != inner:
            raise SpecdecError(f"{checkpoint.path} has {IDS} {found} and eagle_config.{IDS} {inner}; expected one")
        found, source = inner, f"eagle_config.{IDS}"
    stated: list[tuple[tuple[int, ...] | None, str]] = []
    if found and speculators:
        stated.append((tuple(layer - 1 for layer in found), f"{source}, in speculators the inputs of layers"))
    elif found and found in (read, usual):
        meaning = "inputs" if found == read else "outputs"
        stated.append((usual, f"{source}, which are EAGLE-3's own layers written as {meaning}"))
    elif found:
        stated.append((None, f"{source} {list(found)}, which may be outputs or inputs of layers"))
    else:
        stated.append((None, IDS))
    example = usual if states == 3 and min(usual) >= 0 else tuple(range(states))
    option = f"eagle3(head=…, layers={'-'.join(map(str, example))}), the outputs in their order"
    choice = settled("layers", reading.layers, stated, option)
    layers = choice.value
    assert isinstance(layers, tuple)
    if len(layers) != states:
        raise SpecdecError(
            f"{checkpoint.path} names {len(layers)} layers ({choice}), and its fc fuses {states} states; "
            "expected as many"
        )
    if len({*layers}) < states or min(layers) < 0 or max(layers) >= count:
        raise SpecdecError(
            f"{checkpoint.path} reads the outputs of layers {layers} ({choice.source}); expected different ones from 0 "
            f"to {count - 1}, those of this target"
        )
    return choice


def _flag(settings: Settings, key: str) -> Choice:
    """A switch of the network, which stands at the top or inside ``eagle_config``, and is off if it is absent."""
    nested = settings.inside("eagle_config")
    found = [
        (one.take(key, bool), name) for one, name in ((settings, key), (nested, f"eagle_config.{key}")) if key in one
    ]
    if len({value for value, _ in found}) > 1:
        raise SpecdecError(f"{key} is {settings.peek(key)}, and eagle_config.{key} is {nested.peek(key)}; expected one")
    return Choice(key, *found[0]) if found else Choice(key, False, f"{key} is absent")


def _shape(
    checkpoint: Checkpoint,
    layer: Settings,
    prefix: str,
    first: str,
    states: int,
    state_size: int,
    vocabulary: int,
    norm_output: bool,
) -> Eagle3Shape:
    settings, tensors = checkpoint.settings, checkpoint.tensors
    one, each = _flag(settings, "norm_before_fc").value, _flag(settings, "fc_norm").value
    if one and each:
        raise SpecdecError(f"{checkpoint.path} has both norm_before_fc and fc_norm; expected one of them")
    hidden, heads = layer.take("hidden_size", int), layer.take("num_attention_heads", int)
    shape = Eagle3Shape(
        hidden=hidden,
        intermediate=layer.take("intermediate_size", int),
        heads=heads,
        heads_kv=layer.take("num_key_value_heads", int, heads),
        head_dim=layer.take("head_dim", int, hidden // heads),
        eps=layer.take("rms_norm_eps", float),
        states=states,
        state_size=state_size,
        vocabulary=settings.take("draft_vocab_size", int, vocabulary),
        layers=1,
        fusion_norm="all" if one else "each" if each else "none",
        norm_before_residual=bool(_flag(settings, "norm_before_residual").value),
        norm_output=norm_output,
        bias=f"{first}self_attn.q_proj.bias" in tensors,
        out_bias=f"{first}self_attn.o_proj.bias" in tensors,
        wide_bias=f"{first}mlp.gate_proj.bias" in tensors,
        head_norms=f"{first}self_attn.q_norm.weight" in tensors,
    )
    while f"{prefix}layers.{shape.layers}.input_layernorm.weight" in tensors:
        shape = replace(shape, layers=shape.layers + 1)
    if settings.take("num_aux_hidden_states", int, states) != states:
        raise SpecdecError(
            f"num_aux_hidden_states of {checkpoint.path} is {settings.peek('num_aux_hidden_states')}, and its fc fuses "
            f"{states} states; expected as many"
        )
    # NeMo keeps the target's number of layers here, and has one layer.
    named = layer.take("num_hidden_layers", int)
    if named != shape.layers and not prefix:
        raise SpecdecError(
            f"{checkpoint.path} has the tensors of {shape.layers} layers, and num_hidden_layers is {named}; expected "
            "as many"
        )
    for key, has in (("attention_bias", shape.bias), ("mlp_bias", shape.wide_bias)):
        if layer.take(key, bool, has) != has:
            raise SpecdecError(
                f"{key} of {checkpoint.path} is {layer.peek(key)}, and its tensors say {has}: biases are "
                f"{'there' if has else 'missing'}"
            )
    if "transformer_layer_config" in settings and layer.peek("model_type") == "qwen3" and not shape.head_norms:
        tensors.take(f"{first}self_attn.q_norm.weight", (shape.head_dim,))  # refuses, by its name
    return shape


def _ids(
    checkpoint: Checkpoint, known: int, vocabulary: int, reading: Reading
) -> tuple[Tensor | None, Tensor | None, tuple[Choice, ...]]:
    """The target's ids of the head's tokens, ``d2t`` as it is, and how it was read."""
    tensors = checkpoint.tensors
    t2d = tensors.take("t2d", (vocabulary,), "flags", optional=True)
    d2t = tensors.take("d2t", (known,), "integers", optional=known == vocabulary and t2d is None)
    if d2t is None:
        return None, None, ()
    ids, choice = draft_ids(d2t, t2d, vocabulary, reading.ids, "eagle3(head=…, ids=offset), or ids=id")
    return ids, d2t, (choice,)


def _fill(network: Eagle3Head, tensors: Tensors, prefix: str, first: str) -> None:
    """Copy every tensor of the network to its place; matrices that are all of bfloat16 stay so."""
    shape, kinds = network.shape, set[torch.dtype]()

    def put(place: Tensor | None, *names: str) -> None:
        """Copy tensors, one under the other, to a place of the network; to none if the network has no such place."""
        if place is None:
            return
        rows = [place.shape[0] // len(names)] * len(names) if not names[0].endswith(_QUERY) else _rows(shape)
        taken = [tensors.take(name, (count, *place.shape[1:])) for name, count in zip(names, rows, strict=True)]
        place.copy_(torch.cat(taken))
        kinds.update(one.dtype for one in taken if one.dim() > 1)

    put(network.fusion, f"{prefix}fc.weight")
    if shape.fusion_norm == "all":
        put(network.fusion_norm, f"{prefix}input_norm.weight")
    elif network.fusion_norm is not None:
        for index, gain in enumerate(network.fusion_norm):
            put(gain, f"{prefix}fc_norm.{index}.weight")
    put(network.token_norm, f"{first}input_layernorm.weight")
    put(network.norm, f"{prefix}norm.weight")
    put(network.output, "lm_head.weight")
    for index, layer in enumerate(network.layers):
        assert isinstance(layer, Eagle3Layer)
        at = f"{prefix}layers.{index}." if index else first
        put(layer.norm_before, f"{at}{'input_layernorm' if index else 'hidden_norm'}.weight")
        put(layer.norm_after, f"{at}post_attention_layernorm.weight")
        attention, wide = f"{at}self_attn.", f"{at}mlp."
        for kind, qkv, out, gate_up, down in (
            ("weight", layer.qkv, layer.out, layer.gate_up, layer.down),
            ("bias", layer.qkv_bias, layer.out_bias, layer.gate_up_bias, layer.down_bias),
        ):
            put(qkv, *(f"{attention}{part}_proj.{kind}" for part in "qkv"))
            put(out, f"{attention}o_proj.{kind}")
            put(gate_up, f"{wide}gate_proj.{kind}", f"{wide}up_proj.{kind}")
            put(down, f"{wide}down_proj.{kind}")
        put(layer.query_norm, f"{attention}q_norm.weight")
        put(layer.key_norm, f"{attention}k_norm.weight")
    if kinds == {torch.bfloat16}:
        matrices = [weight for weight in network.parameters() if weight.dim() > 1 and weight is not network.fusion_norm]
        for weight in matrices:
            weight.data = weight.to(torch.bfloat16)


_QUERY = ("q_proj.weight", "q_proj.bias")


def _rows(shape: Eagle3Shape) -> list[int]:
    return [count * shape.head_dim for count in (shape.heads, shape.heads_kv, shape.heads_kv)]
