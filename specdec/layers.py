"""The attention layers and positions of a model, as its configuration says them."""

from __future__ import annotations

from dataclasses import replace

from transformers import PretrainedConfig, PreTrainedModel

from specdec.arena import LayerShape
from specdec.errors import SpecdecError
from specdec.sharding import sharding_of

WITHOUT_ATTENTION = ("linear_attention", "conv", "mlp", "moe")
"""Kinds of layers that have no keys and values: recurrences, convolutions, and those without any memory of a text."""

_FULL = ("full_attention", "hybrid")
_SLIDING = ("sliding_attention", "hybrid_sliding")
_CHUNKED = ("chunked_attention",)
_KINDS = (*_FULL, *_SLIDING, *_CHUNKED, *WITHOUT_ATTENTION)

_COMPRESSED = "it presses many tokens into one, which transformers' own cache alone holds"
_ELSEWHERE = {
    "indexed_attention": "its indexer chooses tokens by keys of its own, which transformers' own cache alone holds",
    "compressed_sparse_attention": _COMPRESSED,
    "heavily_compressed_attention": _COMPRESSED,
}
"""Why the arena does not hold layers of these kinds."""


def layer_shapes(config: PretrainedConfig) -> list[LayerShape]:
    """The layers of a text model's config: no head of a layer without attention.

    Heads and their size are those of queries, keys and values alike, as most models have them; what a model attends
    with is seen of the model itself (``specdec.trial``). Raises SpecdecError for a kind that the arena does not hold.
    """
    config = config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None)
    layers = _layer_configs(config, len(kinds) if kinds else config.num_hidden_layers)
    if kinds is None:
        slides = [getattr(layer, "sliding_window", None) for layer in layers]
        kinds = ["sliding_attention" if window else "full_attention" for window in slides]
    strange = sorted(set(kinds) - set(_KINDS))
    if strange:
        named = ", ".join(f"{kind} ({_ELSEWHERE[kind]})" if kind in _ELSEWHERE else kind for kind in strange)
        raise SpecdecError(
            f"a {config.model_type} model has layers of kind {named}; "
            f"the arena holds {', '.join(_KINDS)}: choose another model"
        )
    attends = [layer for layer, kind in zip(layers, kinds, strict=True) if kind not in WITHOUT_ATTENTION]
    if config.is_encoder_decoder or not all(hasattr(layer, "num_attention_heads") for layer in attends):
        raise SpecdecError(
            f"a {config.model_type} model is not a decoder made of attention or recurrent layers; choose another model"
        )
    return [_shape(layer, kind) for layer, kind in zip(layers, kinds, strict=True)]


def _layer_configs(config: PretrainedConfig, count: int) -> list[PretrainedConfig]:
    """The configuration of each layer: some have values that differ by layer, and refuse to give one for all."""
    differ = getattr(config, "is_heterogeneous", False)
    return [config.per_layer_config[layer] for layer in range(count)] if differ else [config] * count


def _shape(config: PretrainedConfig, kind: str) -> LayerShape:
    if kind in WITHOUT_ATTENTION:
        return LayerShape(0, 0, None)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    span = config.sliding_window if kind in _SLIDING else config.attention_chunk_size if kind in _CHUNKED else None
    return LayerShape(heads, head_dim, span, kind in _CHUNKED)


def layers_of(model: PreTrainedModel) -> list[LayerShape]:
    """The attention layers of a model, with this rank's heads alone if it was cut (``specdec.sharding``)."""
    shapes, cut = layer_shapes(model.config), sharding_of(model)
    return shapes if cut is None else [replace(shape, heads=shape.heads // cut.heads) for shape in shapes]


def position_limit(config: PretrainedConfig) -> int | None:
    """The model's number of positions; None if every attention layer has a sliding window and positions are rotary.

    Of a model whose rotary frequencies are others in a forward that reaches beyond a length (longrope, dynamic), that
    length: a window of proposals would reach it before plain decoding does, or a longer row beside it, and its tokens
    would be of another model.
    """
    config = config.get_text_config(decoder=True)
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if (switch := _switching_length(config)) is not None:
        return switch if limit is None else min(limit, switch)
    rotary = getattr(config, "rope_parameters", None) is not None
    slides = all(shape.span is not None for shape in layer_shapes(config) if shape.heads)
    return None if slides and rotary else limit


def _switching_length(config: PretrainedConfig) -> int | None:
    """The shortest length beyond which a forward has other rotary frequencies; None if there is none."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [one for one in rope.values() if isinstance(one, dict)] or [rope]  # one for each kind of layer, or one
    own = getattr(config, "original_max_position_embeddings", None)
    lengths = [
        one.get("original_max_position_embeddings") or own for one in kinds if one.get("rope_type") == "longrope"
    ]
    if any("dynamic" in one.get("rope_type", "") for one in kinds):
        lengths.append(getattr(config, "max_position_embeddings", None))
    return min((int(length) for length in lengths if length), default=None)
