"""What a config and its tensors say of a network that drafts blocks: DFlash's, and DSpark's, which is made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from specdec import SpecdecError
from specdec_plugins.heads.dflash_head import BlockShape, DFlashHead
from specdec_plugins.published.checkpoint import Checkpoint, Settings, Tensors
from specdec_plugins.published.layers import layer_harmless
from specdec_plugins.published.reading import Choice, Published, Reading, TargetSizes, draft_ids, settled
from specdec_plugins.published.rotary import rotary_of

H = TypeVar("H", bound=DFlashHead)

OF_THE_PACKAGE = ("speculators_model_type", "speculators_version", "speculators_config", "tie_word_embeddings")
"""Keys that say nothing about what the network computes, beside those of any config of transformers."""


@dataclass(frozen=True)
class BlockKeys:
    """What a dialect says beyond its layers, each value with the key or rule that it is from.

    ``layers`` are outputs of the target's layers. ``option`` is how the draft is told otherwise.
    """

    block: int
    mask: int
    reduced: int
    layers: tuple[tuple[int, ...] | None, str]
    inside: tuple[str | None, str]
    first: tuple[str | None, str]
    anchored: bool
    option: str


@dataclass(frozen=True)
class Blocks:
    """A network's sizes, how it was read, and what is left to fill."""

    shape: BlockShape
    mask: int
    inverse: Tensor
    magnitude: float
    bias: bool
    ids: Tensor | None
    reading: Reading
    choices: tuple[Choice, ...]


def blocks_of(checkpoint: Checkpoint, layer: Settings, keys: BlockKeys, sizes: TargetSizes, reading: Reading) -> Blocks:
    """The network of a checkpoint whose decoder layers ``layer`` describes; takes d2t and t2d. SpecdecError if it does
    not fit the target, or if nothing decides how it is read."""
    path, option, hidden = checkpoint.path, keys.option, sizes.hidden
    _refuse_strangers(checkpoint, layer, keys, sizes)
    heads, count = layer.take("num_attention_heads", int), layer.take("num_hidden_layers", int)
    head_dim = layer.take("head_dim", int, hidden // heads)
    inverse, magnitude = rotary_of(layer, path, head_dim, layer.take("max_position_embeddings", int))
    taps, (windows, window) = _taps(path, keys, sizes, reading), _windows(layer, path, count, reading.window, option)
    own = "own" if "embed_tokens.weight" in checkpoint.tensors else "target"
    first = settled("first", reading.first, [keys.first], f"{option}: first=given or first=proposes")
    choices = [
        taps,
        window,
        settled("embedding", reading.embedding, [(own, "whether there is an embed_tokens.weight")], option),
        first,
    ]
    if keys.block - (first.value == "given") < 1:
        raise SpecdecError(f"block_size in {path} is {keys.block}; expected room for a proposal")
    ahead = True
    if any(windows):
        choices.append(settled("inside", reading.inside, [keys.inside], f"{option}: inside=all or inside=causal"))
        ahead = choices[-1].value == "all"
        if keys.block > max(windows):
            raise SpecdecError(
                f"{path} has blocks of {keys.block} slots and a window of {max(windows)} tokens; expected a window "
                "that holds a block"
            )
    ids = None
    if keys.reduced != sizes.vocabulary:
        ids, how = _ids(checkpoint, keys, sizes.vocabulary, reading.ids)
        choices.append(how)
    shape = BlockShape(
        hidden,
        layer.take("intermediate_size", int),
        heads,
        layer.take("num_key_value_heads", int),
        head_dim,
        layer.take("rms_norm_eps", float),
        len(cast(tuple[int, ...], taps.value)),
        keys.block,
        windows,
        keys.anchored,
        ahead,
        first.value == "proposes",
    )
    whole = replace(Reading(), **{choice.what: cast(Any, choice.value) for choice in choices})
    return Blocks(
        shape, keys.mask, inverse, magnitude, layer.take("attention_bias", bool, False), ids, whole, tuple(choices)
    )


def fill_blocks(head: H, blocks: Blocks, tensors: Tensors, vocabulary: int) -> H:
    """The network with its tensors: all that DFlash has. SpecdecError for one that is missing or of another shape."""
    shape, size = head.shape, head.shape.hidden
    head.enter.data = tensors.take("fc.weight", (size, shape.taps * size))
    head.norm_enter.data, head.norm.data = (
        tensors.take("hidden_norm.weight", (size,)),
        tensors.take("norm.weight", (size,)),
    )
    for i, layer in enumerate(head.block_layers()):
        name, inner, outer = f"layers.{i}.", shape.heads * shape.head_dim, shape.heads_kv * shape.head_dim
        layer.norm_before.data = tensors.take(f"{name}input_layernorm.weight", (size,))
        layer.norm_after.data = tensors.take(f"{name}post_attention_layernorm.weight", (size,))
        layer.norm_query.data = tensors.take(f"{name}self_attn.q_norm.weight", (shape.head_dim,))
        layer.norm_keys.data = tensors.take(f"{name}self_attn.k_norm.weight", (shape.head_dim,))
        parts = (("q", inner), ("k", outer), ("v", outer))
        layer.qkv.data = torch.cat([tensors.take(f"{name}self_attn.{p}_proj.weight", (n, size)) for p, n in parts])
        layer.out.data = tensors.take(f"{name}self_attn.o_proj.weight", (size, inner))
        if layer.qkv_bias is not None and layer.out_bias is not None:
            layer.qkv_bias.data = torch.cat([tensors.take(f"{name}self_attn.{p}_proj.bias", (n,)) for p, n in parts])
            layer.out_bias.data = tensors.take(f"{name}self_attn.o_proj.bias", (size,))
        wide = [tensors.take(f"{name}mlp.{p}_proj.weight", (shape.intermediate, size)) for p in ("gate", "up")]
        layer.gate_up.data = torch.cat(wide)
        layer.down.data = tensors.take(f"{name}mlp.down_proj.weight", (size, shape.intermediate))
    if blocks.reading.embedding == "own":
        head.embedding = tensors.take("embed_tokens.weight", (vocabulary, size))
    reduced = vocabulary if blocks.ids is None else len(blocks.ids)
    head.rows = tensors.take("lm_head.weight", (reduced, size), optional=blocks.ids is None)
    head.ids = blocks.ids
    # The package keeps the target's own for its loss; embeddings stay unread if the target's are asked for.
    tensors.harmless("verifier_lm_head.weight", "verifier_norm.weight", "embed_tokens.weight")
    return head


def other_readings(published: Published[Any], sizes: TargetSizes) -> dict[str, Reading]:
    """The readings of a network that would load as well, by names in plain words."""
    mine, head, found = published.reading, published.head, dict[str, Reading]()
    assert mine.layers is not None
    for step, name in ((-1, "layers one earlier"), (1, "layers one later")):
        shifted = tuple(layer + step for layer in mine.layers)
        if all(0 <= layer < sizes.layers for layer in shifted):
            found[name] = replace(mine, layers=shifted)
    if mine.layers[::-1] != mine.layers:
        found["layers in reverse order"] = replace(mine, layers=mine.layers[::-1])
    if head.ids is not None:
        found |= _other_ids(mine, head.ids, sizes.vocabulary)
    if mine.window:
        found["window ignored"] = replace(mine, window=0)
        if mine.inside == "all":
            found["no slot sees later ones in a layer with a window"] = replace(mine, inside="causal")
        else:
            found["slots see later ones in a layer with a window"] = replace(mine, inside="all")
    if mine.first == "proposes" and head.shape.block > 1:
        found["the block's first slot proposes nothing"] = replace(mine, first="given")
    if mine.first == "given":
        found["the block's first slot proposes"] = replace(mine, first="proposes")
    if mine.embedding == "own":
        found["the target's embeddings"] = replace(mine, embedding="target")
    return found


def _other_ids(mine: Reading, ids: Tensor, vocabulary: int) -> dict[str, Reading]:
    places = torch.arange(len(ids))
    other: Literal["offset", "id"] = "id" if mine.ids == "offset" else "offset"
    d2t = ids - places if mine.ids == "offset" else ids
    try:
        draft_ids(d2t, None, vocabulary, other, "")
    except SpecdecError:
        return {}
    return {f"d2t as {other}": replace(mine, ids=other)}


def _refuse_strangers(checkpoint: Checkpoint, layer: Settings, keys: BlockKeys, sizes: TargetSizes) -> None:
    """Take what must be the target's, and what must be as the network is; SpecdecError for anything else."""
    path = checkpoint.path
    _fits(path, "hidden_size", layer.take("hidden_size", int), sizes.hidden)
    _fits(path, "vocab_size", layer.take("vocab_size", int), sizes.vocabulary)
    _fits(path, "target_hidden_size", checkpoint.settings.take("target_hidden_size", int, sizes.hidden), sizes.hidden)
    if not 0 <= keys.mask < sizes.vocabulary:
        last = sizes.vocabulary - 1
        raise SpecdecError(f"mask_token_id in {path} is {keys.mask}; expected a token from 0 to {last}")
    layer.fixed("hidden_act", "silu")
    for settings in (checkpoint.settings, layer):
        layer_harmless(settings)
        settings.harmless(*OF_THE_PACKAGE, "use_sliding_window", "max_window_layers")  # layer_types says which layers


def _taps(path: str, keys: BlockKeys, sizes: TargetSizes, reading: Reading) -> Choice:
    taps = settled("layers", reading.layers, [keys.layers], keys.option)
    for place in cast(tuple[int, ...], taps.value):
        if not 0 <= place < sizes.layers:
            raise SpecdecError(
                f"{path} reads the output of layer {place} of its target, {taps}, which has layers 0 to "
                f"{sizes.layers - 1}; name others: {keys.option}"
            )
    return taps


def _ids(checkpoint: Checkpoint, keys: BlockKeys, vocabulary: int, asked: str | None) -> tuple[Tensor, Choice]:
    if keys.reduced > vocabulary:
        raise SpecdecError(f"draft_vocab_size in {checkpoint.path} is {keys.reduced}; expected at most {vocabulary}")
    d2t = checkpoint.tensors.take("d2t", (keys.reduced,), "integers")
    t2d = checkpoint.tensors.take("t2d", (vocabulary,), "flags", optional=True)
    return draft_ids(d2t, t2d, vocabulary, asked, f"{keys.option}: ids=offset or ids=id")


def _fits(path: str, key: str, got: int, expected: int) -> None:
    if got != expected:
        raise SpecdecError(
            f"{key} in {path} is {got}, and the target's is {expected}; a head drafts for its own target"
        )


def _windows(layer: Settings, path: str, count: int, asked: int | None, option: str) -> tuple[tuple[int, ...], Choice]:
    """The window of each layer, 0 for none, and the choice of its width; ``asked`` is that of an option, for the layers
    that have one, or for all if none has."""
    kinds = layer.words("layer_types")
    width = layer.take("sliding_window", int, None)
    if kinds is None:
        if layer.peek("use_sliding_window") is True and asked is None:
            raise SpecdecError(f"{path} uses a window and has no layer_types, which say where; name one: window=0")
        kinds = ("full_attention",) * count
    strange = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
    if strange or len(kinds) != count:
        what = f"holds {strange[0]!r}" if strange else f"has {len(kinds)} entries"
        raise SpecdecError(f"layer_types in {path} {what}; expected full_attention or sliding_attention, {count} times")
    slides = [kind == "sliding_attention" for kind in kinds]
    source = "layer_types and sliding_window, the width" if any(slides) else "layer_types"
    choice = settled("window", asked, [(width if any(slides) else 0, source)], f"{option}: window=2048")
    width = cast(int, choice.value)
    if asked is not None and not any(slides):
        slides = [True] * count
    return tuple(width * one for one in slides), choice
