"""A tiny configuration of any model of transformers, made by rule from the names of its configuration's fields."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 64
"""Tokens of every tiny model."""

SPAN = 12
"""The tokens that a sliding layer of a tiny model sees."""

CHUNK = 16
"""The tokens of a chunk, for layers that attend within chunks."""

POSITIONS = 256
"""Positions of every tiny model."""

MULTIPLIER = 0.75
"""What multiplies in a tiny model where a configuration has 1 by default, which would change nothing."""

SIZES: tuple[tuple[str, int], ...] = (
    (r"type_vocab_size|num_codebooks", 2),
    (r"\w*vocab_size\w*", VOCABULARY),
    (r"unpadded_vocab_size", VOCABULARY),
    (r"max_window_layers|num_kv_shared_layers|n_layers_per_attn_res_block", 2),
    (r"num_dense_layers|first_k_dense_replace|num_mtp_layers|num_nextn_predict_layers", 1),
    (r"(num_(hidden_|encoder_|decoder_)?|encoder_|decoder_|n_)layers?|depth|num_blocks", 4),
    (r"\w*(key_value|kv)_heads", 2),
    (r"\w*(num|n)_heads|\w*attention_heads|n_head|num_heads|linear_num_\w+_heads", 4),
    (r"qk_rope_head_dim|\w*rotary_dim|qk_pos_emb_head_dim", 4),
    (r"\w*head_dim|\w*head_size|\w*lora_rank|d_kv|d_head|adapter_rank|laurel_rank|hc_lowrank|\w*_lowrank", 8),
    (r"hidden_size_per_layer_input|d_rel|mamba_d_head|mamba_d_state|\w*state_size|\w*hc_rank", 8),
    (
        r"(\w+_)?hidden_size(_\w+)?|n_embd|d_model|embedding_size|emb_dim|hidden_dim|\w*embed_dim|lru_width|adapter_(in|out|input)_(dim|size)",
        32,
    ),
    (r"\w*embedding_size|router_hidden_size|\w*embed_proj_dim|out_hidden_size|\w*output_dims?|projection_dim", 32),
    (r"\w*intermediate_size(_\w+)?|\w*ffn_dim|\w*ffn_hidden_size|n_inner|d_inner|feed_forward_size|ffn_size", 48),
    (r"index_topk", CHUNK),
    (r"num_experts_per_tok|\w*top_?k(_experts)?|moe_k|num_selected_experts|\w*experts_per_token", 2),
    (r"(moe_)?num_(local_)?experts|n_routed_experts|num_routed_experts|zero_expert_num|\w*num_centroids", 4),
    (r"original_max_position_embeddings", 64),
    (r"(max|n)_(target_)?(position_embeddings|positions)|max_seq_len|max_sequence_length|context_length", POSITIONS),
    (r"\w*sliding_window(_size)?|attention_window(_size)?|window_size|local_attention", SPAN),
    (r"attention_chunk_size", CHUNK),
    (r"\w*chunk_size|block_size|rel_extent|\w*chunk_length", 8),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r"ngram_vocab_size_base|num_channels_latents", 64),
    (r"floor_scale|log_scaling_n_floor|max_inference_chunksize", 16),
)
"""Patterns of the names of fields, and what a tiny model has there; the first pattern that fits a whole name counts."""

AT_MOST = (
    (r"n_group|topk_group|\w*n_?groups?|n_shared_experts|\w*num_shared_experts", 1),
    (r"sliding_window_pattern|no_rope_layer_interval|full_attn_interval|full_attention_interval|\w*layer_period", 2),
    (r"\w*layer_offset|decoder_sparse_step|interleave_moe_layer_step", 1),
)
"""Fields that keep their own number where it is not above this one."""


def model_kinds() -> tuple[str, ...]:
    """The types of all models that ``AutoModelForCausalLM`` builds, in alphabetical order."""
    return tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def class_names(kind: str) -> str:
    """The class that ``AutoModelForCausalLM`` builds for a type of model, or several with commas."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    return found if isinstance(found, str) else ", ".join(found)


_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}

_INDEXED = {
    "ple_embed_dim": 32,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": CHUNK,
    "indexer_compress_ratio": 4,
}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"full_attention": _ROTARY, "sliding_attention": _ROTARY},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dory": {"n_input_layers": 1, "n_output_layers": 1},
    "dots3_note": {"vision_config": {"mlp_layer_types": ["dense"] * 4}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "falcon_h1": {"mlp_multipliers": [0.75, 1.5], "ssm_multipliers": [0.75, 1.5, 0.75, 1.5, 0.75]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"head_dim": 4},
    "mamba2": {"head_dim": 16},
    "ministral": {"head_dim": 8},
    "moshi": {"audio_vocab_size": VOCABULARY},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp": {"text_config": _INDEXED},
    "qwen4_exp_text": _INDEXED,
    "reformer": {"axial_pos_embds_dim": (8, 24), "axial_pos_shape": (16, 16)},
    "xlstm": {"chunk_size": 16},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"default_language": "en_XX"},
}
"""Values of types of models whose fields have no default, or depend on each other in a way that no name says."""

TEXTS = {
    "fuyu": "persimmon",
    "gemma4_assistant": "gemma4_text",
    "gemma4_unified_assistant": "gemma4_unified_text",
    "got_ocr2": "qwen2",
    "moss_transcribe_diarize": "qwen3",
}
"""Types whose ``text_config`` may be of any type, and the type that it is of by default."""


def config_by_rule(kind: str) -> PretrainedConfig:
    """A configuration of this type of model with four layers, of each kind that its own has, and ``VOCABULARY`` tokens.

    Raises whatever the configuration's class raises for values that do not fit each other.
    """
    made = CONFIG_MAPPING[kind]
    values = tiny_values(made)
    if kind in TEXTS:
        values["text_config"] = {"model_type": TEXTS[kind], **tiny_values(CONFIG_MAPPING[TEXTS[kind]])}
    for name, value in EXCEPTIONS.get(kind, {}).items():
        values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
    config = made(**values)
    layers = _default_layers(made)
    if set(layers) > set(getattr(config, "layer_types", None) or ()):
        config = made(**values, layer_types=[layers[place % len(layers)] for place in range(4)])
    return config


def _default_layers(made: type[PretrainedConfig]) -> list[str]:
    """Each kind of layer that a class of configurations has by default, once; none if it has no default."""
    try:
        return [*dict.fromkeys(getattr(made(), "layer_types", None) or ())]
    except Exception:  # some have parts that must be given, and raise what they like
        return []


def tiny_values(made: type[PretrainedConfig]) -> dict[str, Any]:
    """The values by which a class of configurations makes a tiny one: of its own fields and of its parts."""
    parts: dict[str, Any] = {name: one for name, one in made.sub_configs.items() if dataclasses.is_dataclass(one)}
    values: dict[str, Any] = {name: tiny_values(one) for name, one in parts.items()}
    for field in dataclasses.fields(made):
        if field.name not in parts:
            default = field.default
            small = _small(field.name, default)
            if small is not default:
                values[field.name] = small
    own = {field.name: field.default for field in dataclasses.fields(made)}
    if "num_key_value_heads" in values and own.get("num_key_value_heads") == own.get("num_attention_heads"):
        values["num_key_value_heads"] = values["num_attention_heads"]
    return values


def _small(name: str, default: Any) -> Any:
    """What a field has in a tiny configuration; its default where no rule says otherwise."""
    if name == "is_decoder":
        return True
    if re.fullmatch(r"\w*_token_(id|index)|\w*_token_ids|\w*_(idx|index)", name):
        return _id_within(default)
    if isinstance(default, float) and default == 1.0 and re.fullmatch(r"\w*_multiplier|logits?_scaling", name):
        return MULTIPLIER
    if isinstance(default, bool) or not isinstance(default, int) or default <= 0:
        return default
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return size
    return next((min(size, default) for pattern, size in AT_MOST if re.fullmatch(pattern, name)), default)


def _id_within(value: Any) -> Any:
    """An id of a special token, or a list of them, within the vocabulary."""
    if isinstance(value, list | tuple):
        return [_id_within(one) for one in value]
    return 3 if isinstance(value, int) and value >= VOCABULARY else value
