"""A tiny Llama as a GGUF file, in float32, so that llama.cpp decodes from the weights of our tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from specdec import catalog

if TYPE_CHECKING:
    from gguf import GGUFWriter

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Parts of a layer in transformers, and their names in GGUF files."""


def save_gguf(model: PreTrainedModel, path: Path) -> Path:
    """Write a Llama of ``families.build_model`` or ``tiny`` with the byte tokenizer; return the path.

    Queries and keys are reordered, because llama.cpp rotates neighbours and transformers halves of a head. The token
    257 is called ``ab``: a BPE tokenizer without a single merge is refused by llama.cpp.

    Source: ggml-org/ggml, docs/gguf.md; ggml-org/llama.cpp, convert_hf_to_gguf.py (the order of queries and keys).

    Example: ``save_gguf(families.build_model("llama"), tmp_path / "tiny.gguf")``
    """
    from gguf import GGUFWriter  # the kit is also imported where nothing of GGUF is installed

    config, weights = model.config, {name: value.float().numpy() for name, value in model.state_dict().items()}
    writer = GGUFWriter(path, "llama")
    _describe(writer, config)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    writer.add_tensor("output.weight", weights["lm_head.weight"])
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for theirs, name in NAMES.items():
            weight = weights[f"model.layers.{layer}.{theirs}.weight"]
            ordered = _neighbours(weight, heads[theirs]) if theirs in heads else weight
            writer.add_tensor(f"blk.{layer}.{name}.weight", ordered)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: GGUFWriter, config: Any) -> None:
    from gguf import TokenType

    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(0)
    tokens = catalog.byte_tokenizer().convert_ids_to_tokens(list(range(257)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, "ab"])
    writer.add_token_types([TokenType.NORMAL] * 256 + [TokenType.CONTROL, TokenType.NORMAL])
    writer.add_token_merges(["a b", "a b"])  # transformers 5.17 takes an array of one for its element
    writer.add_bos_token_id(256)  # transformers 5.17 reads no file without one
    writer.add_eos_token_id(256)


def _neighbours(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """The rows of each head with its two halves interleaved; weight [heads * d, H]."""
    pairs = weight.reshape(heads, 2, -1, weight.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))
