"""The attention layers and positions of a model, as its configuration says them."""

from __future__ import annotations

from dataclasses import replace

from transformers import PretrainedConfig, PreTrainedModel

from specdec.arena import LayerShape
from specdec.errors import SpecdecError
from specdec.sharding import sharding_of

WITHOUT_ATTENTION = ("linear_attention", "conv", "mlp", "moe")
"""Kinds of layers that have no keys and values: recurrences, convolutions, and those without any memory of a text."""


def layer_shapes(config: PretrainedConfig) -> list[LayerShape]:
    """What the arena holds of each layer of a text model's config: no head of a layer without attention.

    Raises SpecdecError for a kind that the arena does not support.
    """
    config = config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    spans = {"full_attention": None, "sliding_attention": window, "hybrid": None, "hybrid_sliding": window}
    strange = sorted(set(kinds) - set(spans) - set(WITHOUT_ATTENTION))
    if strange:
        raise SpecdecError(
            f"a {config.model_type} model has layers of kind {', '.join(strange)}; "
            f"the arena holds {', '.join((*spans, *WITHOUT_ATTENTION))}: choose another model"
        )
    attends = set(kinds) & set(spans)
    if config.is_encoder_decoder or (attends and not hasattr(config, "num_attention_heads")):
        raise SpecdecError(
            f"a {config.model_type} model is not a decoder made of attention or recurrent layers; choose another model"
        )
    if not attends:
        return [LayerShape(0, 0, None)] * len(kinds)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if getattr(config, "kv_lora_rank", None):  # latent attention: the arena holds what the latents expand to
        heads = config.num_attention_heads
        head_dim = max(config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim)
    return [LayerShape(heads, head_dim, spans[kind]) if kind in spans else LayerShape(0, 0, None) for kind in kinds]


def layers_of(model: PreTrainedModel) -> list[LayerShape]:
    """The attention layers of a model, with this rank's heads alone if it was cut (``specdec.sharding``)."""
    shapes, cut = layer_shapes(model.config), sharding_of(model)
    return shapes if cut is None else [replace(shape, heads=shape.heads // cut.heads) for shape in shapes]


def position_limit(config: PretrainedConfig) -> int | None:
    """The model's number of positions; None if every attention layer has a sliding window and positions are rotary.

    Of a model whose rotary frequencies are others in a forward that reaches beyond a length (longrope), that length: a
    window of proposals would reach it before plain decoding does, and its tokens would be of another model.
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
    return min((int(length) for length in lengths if length), default=None)
