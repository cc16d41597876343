"""Writes a head in the form of the speculators package (0.9): config.json and model.safetensors in a folder.

Source of keys and names: github.com/vllm-project/speculators, ``speculators/models/eagle3``, ``dflash`` and ``mtp``.
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

from specdec import SpecdecError
from specdec_plugins.heads.dflash_head import BlockShape, DFlashHead
from specdec_plugins.heads.eagle3_head import Eagle3Head, Eagle3Shape
from specdec_plugins.heads.eagle_head import EagleHead
from specdec_plugins.heads.files import fingerprint
from specdec_plugins.heads.mtp_head import MtpHead


def export_eagle3(
    folder: Path, head: Eagle3Head, ids: Tensor, layers: Sequence[int], model: PreTrainedModel, proposals: int
) -> None:
    """Write an EAGLE-3 head for ``model`` in bfloat16; its token i is the target's ``ids[i]``, int64 [D].

    ``layers`` are those whose outputs it fuses, ``proposals`` how many tokens a step proposes unless told otherwise.
    The embeddings are the target's, and not written. The config names a layer by its input, which is the output of
    the layer before it.
    """
    shape, source = head.shape, model.config
    config = {
        **_package_config("eagle3", "Eagle3DraftModel", proposals, source),
        "transformer_layer_config": _layer_config(shape, source)
        | {
            "model_type": "qwen3" if shape.head_norms else "llama",
            "num_hidden_layers": shape.layers,
            "attention_bias": shape.bias,
            "mlp_bias": shape.wide_bias,
        },
        "draft_vocab_size": shape.vocabulary,
        "target_hidden_size": None if shape.state_size == shape.hidden else shape.state_size,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.fusion_norm == "all",
        "fc_norm": shape.fusion_norm == "each",
        "norm_output": shape.norm_output,
        "embed_requires_grad": False,
    }
    _written(folder, model, config, package_parts(head), _token_maps(ids, source.vocab_size))


def export_dflash(folder: Path, head: DFlashHead, ids: Tensor, layers: Sequence[int], model: PreTrainedModel) -> None:
    """Write a DFlash head without windows for ``model`` in bfloat16; its token i is the target's ``ids[i]``, int64 [D].

    See ``export_eagle3``. Its tokens are read with the target's rows, which are written if they are not all of them.
    """
    shape, source = head.shape, model.config
    whole = len(ids) == source.vocab_size
    config = {
        **_package_config("dflash", "DFlashDraftModel", shape.proposals, source),
        "transformer_layer_config": _layer_config(shape, source)
        | {
            "model_type": "qwen3",
            "num_hidden_layers": len(shape.windows),
            "attention_bias": head.block_layers()[0].qkv_bias is not None,
            "layer_types": ["full_attention"] * len(shape.windows),
        },
        "draft_vocab_size": len(ids),
        "aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        "block_size": shape.block,
        "mask_token_id": head.mask,
        "sample_from_anchor": shape.from_first,
    }
    parts: dict[str, Tensor] = {
        "fc.weight": head.enter,
        "hidden_norm.weight": head.norm_enter,
        "norm.weight": head.norm,
    }
    if not whole:
        parts["lm_head.weight"] = model.get_output_embeddings().weight[ids.to(model.device)]
    for index, layer in enumerate(head.block_layers()):
        name = f"layers.{index}"
        parts[f"{name}.input_layernorm.weight"] = layer.norm_before
        parts[f"{name}.post_attention_layernorm.weight"] = layer.norm_after
        parts[f"{name}.self_attn.q_norm.weight"] = layer.norm_query
        parts[f"{name}.self_attn.k_norm.weight"] = layer.norm_keys
        parts |= _split(name, "weight", shape, layer.qkv, layer.out, layer.gate_up, layer.down)
        parts |= _split(name, "bias", shape, layer.qkv_bias, layer.out_bias, None, None)
    _written(folder, model, config, parts, {} if whole else _token_maps(ids, source.vocab_size))


def export_mtp(folder: Path, head: MtpHead, model: PreTrainedModel, proposals: int) -> None:
    """Write a module for multi-token prediction that was trained for ``model``, in bfloat16.

    ``proposals``: see ``export_eagle3``. Embeddings and head are the target's, and not written.
    """
    names = {
        "entry.token_norm": "token_layernorm",
        "entry.hidden_norm": "hidden_layernorm",
        "entry.project": "input_proj",
        "last": "final_layernorm",
        "layers.0": "",
    }
    parts = {}
    for own, tensor in head.model.base_model.state_dict().items():
        [begins] = [name for name in names if own.startswith(f"{name}.")]
        rest = own.removeprefix(f"{begins}.")
        parts[".".join(part for part in ("mtp_layers.0", names[begins], rest) if part)] = tensor
    layer = json.loads(model.config.to_json_string(use_diff=False))
    config = {
        **_package_config("mtp", "MTPDraftModel", proposals, model.config),
        # What begins with an underscore says where the model came from.
        "transformer_layer_config": {key: value for key, value in layer.items() if not key.startswith("_")},
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    _written(folder, model, config, parts, {})


def export_eagle(folder: Path, head: EagleHead, model: PreTrainedModel, proposals: int) -> None:
    """Write an EAGLE head, trained for ``model``, as a module for multi-token prediction: it is the same network.

    That form has no reduced vocabulary: read from it, the head may propose any token. See ``export_mtp``. Raises
    SpecdecError for a target whose layers or rotary are not the head's.
    """
    shape, module = head.shape, MtpHead(model.config, state_first=False, before=False)
    rows = [shape.heads * shape.head_dim, *[shape.heads_kv * shape.head_dim] * 2]
    gate, up = head.gate_up.chunk(2)
    parts = {
        **{f"self_attn.{one}_proj": part for one, part in zip("qkv", head.qkv.split(rows), strict=True)},
        **{"self_attn.o_proj": head.out, "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": head.down},
        **{"input_layernorm": head.norm_before, "post_attention_layernorm": head.norm_after},
    }
    whole = {"entry.token_norm": head.token_norm, "entry.hidden_norm": head.hidden_norm, "entry.project": head.enter}
    whole |= {"last": head.norm, **{f"layers.0.{name}": part for name, part in parts.items()}}
    tensors = {f"{name}.weight": part.detach() for name, part in whole.items()}
    found, needed = ({name: tuple(part.shape) for name, part in tensors.items()}, module.shapes)
    rotary = model.config.rope_parameters
    if found != needed or rotary["rope_type"] != "default" or rotary["rope_theta"] != shape.theta:
        raise SpecdecError(
            f"a layer of {type(model).__name__} over {rotary} is not the head's, a layer of Llama with rotary of base "
            f"{shape.theta}; multi-token prediction has the target's kind of layer, so that this head cannot be written"
        )
    module.fill(tensors)
    export_mtp(folder, module, model, proposals)


def _package_config(kind: str, architecture: str, proposals: int, source: Any) -> dict[str, Any]:
    """What the config of every head says for a target of the config ``source``."""
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
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
        "dtype": "bfloat16",
    }


def _written(
    folder: Path, model: PreTrainedModel, config: dict[str, Any], parts: dict[str, Tensor], maps: dict[str, Tensor]
) -> None:
    """Write a folder with a config and tensors, ``parts`` in bfloat16 and ``maps`` as they are.

    The fingerprint of the target ``model`` is among the metadata of the tensors.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in parts.items()}
    save_file(tensors | maps, folder / "model.safetensors", metadata={"format": "pt", "target": fingerprint(model)})


def _token_maps(ids: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """The package's two maps between the tokens of a head, ``ids`` int64 [D], and those of its target."""
    known = torch.zeros(vocabulary, dtype=torch.bool)
    known[ids.cpu()] = True
    return {"d2t": ids.cpu() - torch.arange(len(ids)), "t2d": known}


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
    for index, layer in enumerate(head.stack()):
        name = f"layers.{index}"
        found[f"{name}.{'input_layernorm' if index else 'hidden_norm'}.weight"] = layer.norm_before
        found[f"{name}.post_attention_layernorm.weight"] = layer.norm_after
        if layer.query_norm is not None and layer.key_norm is not None:
            found[f"{name}.self_attn.q_norm.weight"] = layer.query_norm
            found[f"{name}.self_attn.k_norm.weight"] = layer.key_norm
        found |= _split(name, "weight", shape, layer.qkv, layer.out, layer.gate_up, layer.down)
        found |= _split(name, "bias", shape, layer.qkv_bias, layer.out_bias, layer.gate_up_bias, layer.down_bias)
    return found


def _split(
    name: str,
    kind: str,
    shape: Eagle3Shape | BlockShape,
    qkv: Tensor | None,
    out: Tensor | None,
    gate_up: Tensor | None,
    down: Tensor | None,
) -> dict[str, Tensor]:
    """Weights or biases of a decoder layer by the package's names, those that are there."""
    rows = [shape.heads * shape.head_dim, *[shape.heads_kv * shape.head_dim] * 2]
    found: dict[str, Tensor | None] = {f"{name}.self_attn.o_proj.{kind}": out, f"{name}.mlp.down_proj.{kind}": down}
    if qkv is not None:
        found |= {f"{name}.self_attn.{one}_proj.{kind}": part for one, part in zip("qkv", qkv.split(rows), strict=True)}
    if gate_up is not None:
        gate, up = gate_up.chunk(2)
        found |= {f"{name}.mlp.gate_proj.{kind}": gate, f"{name}.mlp.up_proj.{kind}": up}
    return {key: part for key, part in found.items() if part is not None}


def _layer_config(shape: Eagle3Shape | BlockShape, source: Any) -> dict[str, Any]:
    """What a config of transformers says of any decoder layer of these sizes, whose rotary is the target's."""
    return {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads_kv,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "vocab_size": source.vocab_size,
        "max_position_embeddings": source.max_position_embeddings,
        "rope_parameters": dict(source.rope_parameters),
        "tie_word_embeddings": False,
    }
