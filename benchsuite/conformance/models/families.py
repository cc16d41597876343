"""Tiny random models of every supported family: real transformers classes, real attention kinds, no download."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

SPAN = 24
"""Span of the sliding layers of these models: shorter than most test prompts."""

_COMMON = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": 256,
}
_HYBRID = ["sliding_attention", "full_attention", "sliding_attention"]

CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_COMMON, num_hidden_layers=2),
    "smollm2": lambda: LlamaConfig(**_COMMON, num_hidden_layers=3, tie_word_embeddings=True, rope_theta=100000.0),
    "qwen2": lambda: Qwen2Config(**_COMMON, num_hidden_layers=2),
    "qwen2-hybrid": lambda: Qwen2Config(
        **_COMMON, num_hidden_layers=3, use_sliding_window=True, sliding_window=SPAN, layer_types=_HYBRID
    ),
    "qwen3": lambda: Qwen3Config(**_COMMON, num_hidden_layers=2),
    "mistral": lambda: MistralConfig(**_COMMON, num_hidden_layers=2, sliding_window=SPAN),
    "gemma2": lambda: Gemma2Config(
        **_COMMON,
        num_hidden_layers=3,
        sliding_window=SPAN,
        layer_types=_HYBRID,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=2.0,  # low, so that the caps change these small scores
        final_logit_softcapping=5.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **_COMMON, num_hidden_layers=3, sliding_window=SPAN, layer_types=_HYBRID, query_pre_attn_scalar=8
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=258,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=256,
    ),
}
"""A config of each family; ``smollm2`` ties its embeddings, ``mistral`` has sliding layers only."""

SPARSE: dict[str, Callable[[], PretrainedConfig]] = {
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **_COMMON, num_hidden_layers=3, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "deepseek": lambda: DeepseekV3Config(
        **{name: value for name, value in _COMMON.items() if name not in ("head_dim", "num_key_value_heads")},
        num_hidden_layers=3,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=32,
        q_lora_rank=12,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
    ),
}
"""Mixtures of experts: transformers runs their experts, and our ops the rest. ``deepseek`` attends over latents."""

_SPARSELY = {"num_local_experts": 4, "num_experts_per_tok": 2}

ATTENDING: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt-oss": lambda: GptOssConfig(
        **_COMMON, **_SPARSELY, num_hidden_layers=3, sliding_window=SPAN, layer_types=_HYBRID
    ),
    "llama4": lambda: Llama4TextConfig(
        **_COMMON,
        **_SPARSELY,
        intermediate_size_mlp=64,
        num_hidden_layers=4,
        attention_chunk_size=SPAN,
        layer_types=["chunked_attention", "full_attention"] * 2,
        no_rope_layers=[1, 0] * 2,
        floor_scale=16,
    ),
    "gemma4": lambda: Gemma4TextConfig(
        **_COMMON,
        num_hidden_layers=4,
        sliding_window=SPAN,
        layer_types=["sliding_attention", "full_attention"] * 2,
        global_head_dim=12,
        hidden_size_per_layer_input=0,
    ),
}
"""Attention that differs from Llama's: sinks (``gpt-oss``), chunks, heads whose size differs by layer."""

_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

RECURRENT: dict[str, Callable[[], PretrainedConfig]] = {
    "lfm2": lambda: Lfm2Config(
        **{name: value for name, value in _COMMON.items() if name != "head_dim"},
        num_hidden_layers=4,
        layer_types=["conv", "full_attention"] * 2,
        block_auto_adjust_ff_dim=False,
    ),
    "mamba": lambda: MambaConfig(
        **{name: _COMMON[name] for name in ("vocab_size", "hidden_size", "initializer_range")},
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=256,
        num_hidden_layers=3,
        state_size=4,
        time_step_min=0.5,  # long steps, so that states change the output
        time_step_max=2.0,
    ),
    "qwen3-next": lambda: Qwen3NextConfig(
        **_COMMON,
        **_LINEAR,
        num_hidden_layers=4,
        layer_types=["linear_attention", "full_attention"] * 2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
}
"""Recurrent and convolutional layers: beside attention, and alone (``mamba``)."""

KINDS = RECURRENT | ATTENDING | SPARSE
"""Families whose layers are of other kinds than Llama's."""

WIDE: dict[str, Callable[[], PretrainedConfig]] = {
    "llama-16": lambda: LlamaConfig(**{**_COMMON, "hidden_size": 64, "head_dim": 16}, num_hidden_layers=2),
}
"""Targets of other engines: the attention of some takes heads of 16 numbers or a multiple."""


MIXTURES = (*SPARSE, "gpt-oss", "llama4", "qwen3-next")
"""Families of which some layers are mixtures of experts."""


def config_of(family: str, layers: int | None = None) -> PretrainedConfig:
    """Return a family's config, with so many ``layers`` if that is said; their kinds then come in turn."""
    config = (CONFIGS | KINDS | WIDE)[family]()
    if layers is not None:
        kinds = getattr(config, "layer_types", None)
        config.num_hidden_layers = layers
        if kinds:
            config.layer_types = [kinds[layer % len(kinds)] for layer in range(layers)]
    return config


def build_model(
    family: str, seed: int = 0, dtype: torch.dtype = torch.float32, layers: int | None = None
) -> PreTrainedModel:
    """Return a random model of the family on the CPU, of ``layers`` as in ``config_of``; a seed has one model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # torch's products of groups, transformers' default, take no float64.
        more = {"experts_implementation": "eager"} if family in MIXTURES else {}
        config = config_of(family, layers)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **more)
    return model.eval().to(dtype)
