"""Writes a head in the form of the speculators package (0.9): config.json and model.safetensors in a folder.

Source of keys and names: github.com/vllm-project/speculators, ``speculators/models/eagle3``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from specdec_plugins.heads.eagle3_head import Eagle3Head, Eagle3Shape


def export_eagle3(
    folder: Path, head: Eagle3Head, ids: Tensor, layers: Sequence[int], model: PreTrainedModel, proposals: int
) -> None:
    """Write an EAGLE-3 head for ``model`` in bfloat16; its token i is the target's ``ids[i]``, int64 [D].

    ``layers`` are those whose outputs it fuses, ``proposals`` how many tokens a step proposes unless told otherwise.
    The embeddings are the target's, and not written. The config names a layer by its input, which is the output of
    the layer before it.
    """
    shape, source, folder = head.shape, model.config, Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": proposals,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"name_or_path": source.name_or_path, "architectures": source.architectures},
        },
        "transformer_layer_config": _layer_config(shape, source),
        "draft_vocab_size": shape.vocabulary,
        "target_hidden_size": None if shape.state_size == shape.hidden else shape.state_size,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.fusion_norm == "all",
        "fc_norm": shape.fusion_norm == "each",
        "norm_output": shape.norm_output,
        "embed_requires_grad": False,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    known = torch.zeros(source.vocab_size, dtype=torch.bool)
    known[ids.cpu()] = True
    tensors = {name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in package_parts(head).items()}
    tensors |= {"d2t": ids.cpu() - torch.arange(len(ids)), "t2d": known}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def package_parts(head: Eagle3Head) -> dict[str, Tensor]:
    """The parameters of a head by the package's names; rows of a matrix that we keep as one are named apart."""
    shape = head.shape
    found: dict[str, Tensor] = {
        "fc.weight": head.fusion,
        "norm.weight": head.norm,
        "lm_head.weight": head.output,
        "layers.0.input_layernorm.weight": head.token_norm,
    }
    if head.fusion_norm is not None:
        gains = {f"fc_norm.{index}.weight": gain for index, gain in enumerate(head.fusion_norm)}
        found |= gains if shape.fusion_norm == "each" else {"input_norm.weight": head.fusion_norm}
    rows = [shape.heads * shape.head_dim, *[shape.heads_kv * shape.head_dim] * 2]
    for index, layer in enumerate(head.stack()):
        name = f"layers.{index}"
        found[f"{name}.{'input_layernorm' if index else 'hidden_norm'}.weight"] = layer.norm_before
        found[f"{name}.post_attention_layernorm.weight"] = layer.norm_after
        for one, part in zip("qkv", layer.qkv.split(rows), strict=True):
            found[f"{name}.self_attn.{one}_proj.weight"] = part
        if layer.qkv_bias is not None:
            for one, part in zip("qkv", layer.qkv_bias.split(rows), strict=True):
                found[f"{name}.self_attn.{one}_proj.bias"] = part
        if layer.query_norm is not None and layer.key_norm is not None:
            found[f"{name}.self_attn.q_norm.weight"] = layer.query_norm
            found[f"{name}.self_attn.k_norm.weight"] = layer.key_norm
        wide = (("weight", layer.gate_up, layer.down), ("bias", layer.gate_up_bias, layer.down_bias))
        for kind, both, down in wide:
            if both is not None and down is not None:
                gate, up = both.chunk(2)
                found |= {f"{name}.mlp.gate_proj.{kind}": gate, f"{name}.mlp.up_proj.{kind}": up}
                found[f"{name}.mlp.down_proj.{kind}"] = down
        found[f"{name}.self_attn.o_proj.weight"] = layer.out
        if layer.out_bias is not None:
            found[f"{name}.self_attn.o_proj.bias"] = layer.out_bias
    return found


def _layer_config(shape: Eagle3Shape, source: Any) -> dict[str, Any]:
    """The layer as a config of transformers, whose rotary is the target's."""
    return {
        "model_type": "qwen3" if shape.head_norms else "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads_kv,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "attention_bias": shape.bias,
        "mlp_bias": shape.wide_bias,
        "vocab_size": source.vocab_size,
        "max_position_embeddings": source.max_position_embeddings,
        "rope_parameters": dict(source.rope_parameters),
        "tie_word_embeddings": False,
    }
