"""Makes tiny checkpoints with a module for multi-token prediction, and logits of it by programs written elsewhere.

Run by hand, from the root of a checkout: ``python benchsuite/tests/recorded/heads/record_mtp.py transformers`` with
transformers 5.24, whose ``MtpModel`` reads the files itself, ``… speculators`` with speculators 0.9, whose
``MTPDraftModel`` saves them, and ``… kit`` for a module without logits. Each folder of ``mtp/`` is a checkpoint:
``config.json`` has the keys of a published one (its values are tiny), and the file of the same name beside it has texts
and the logits of every step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

_HERE = Path(__file__).parent / "mtp"
_STEPS = 4

_COMMON: dict[str, Any] = {
    **{"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 128},
    **{"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "rms_norm_eps": 1e-06},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "rope_scaling": None, "rope_theta": 10000},
    **{"tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.54.0", "use_cache": True},
}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
_QWEN: dict[str, Any] = {
    **{"attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "full_attention_interval": 1, "head_dim": 8},
    **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
    **{"linear_value_head_dim": 4, "partial_rotary_factor": 0.5},
}
_PUBLISHED: dict[str, dict[str, Any]] = {
    "deepseek": _COMMON
    | _EXPERTS
    | {
        **{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_nextn_predict_layers": 1},
        **{"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "num_key_value_heads": 2},
        **{"attention_bias": False, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 1},
        **{"kv_lora_rank": 6, "q_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8},
        **{"moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 3, "n_shared_experts": 1, "topk_group": 1},
        **{"routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    },
    "glm": _COMMON
    | _EXPERTS
    | {
        **{"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_nextn_predict_layers": 1},
        **{"attention_bias": True, "pad_token_id": 3, "eos_token_id": [3, 4], "head_dim": 8, "use_qk_norm": True},
        **{"partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1, "n_routed_experts": 3, "n_shared_experts": 1},
        **{"routed_scaling_factor": 2.5, "first_k_dense_replace": 1},
    },
    "qwen3-next": _COMMON
    | _EXPERTS
    | _QWEN
    | {
        **{"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "decoder_sparse_step": 1},
        **{"mlp_only_layers": [], "num_experts": 3, "output_router_logits": False, "router_aux_loss_coef": 0.001},
        **{"shared_expert_intermediate_size": 8, "use_sliding_window": False},
    },
    "qwen3.5": _COMMON
    | _QWEN
    | {
        **{"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1},
        **{"mtp_use_dedicated_embeddings": False, "attn_output_gate": True, "mamba_ssm_dtype": "float32"},
    },
    "mimo": _COMMON
    | {
        **{"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1, "head_dim": 8},
        **{"auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}, "attention_bias": True, "use_mrope": False},
        **{"bos_token_id": 1, "eos_token_id": 2, "max_window_layers": 2, "sliding_window": 128},
        **{"use_sliding_window": False},
    },
}
_LIKE = {"mimo": "qwen2"}
"""Kinds that transformers has not, and the one whose layers they have."""


def _renamed(kind: str) -> Callable[[str], str]:
    """A name of transformers' ``MtpModel`` as the published checkpoints of a kind have it."""
    parts = {
        "qwen": ("mtp.", "mtp.layers.0.", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
        "mimo": (*["model.mtp_layers.0."] * 2, "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
    }
    deepseek = (*["model.layers.2."] * 2, "eh_proj", "enorm", "hnorm", "shared_head.norm")
    first, layer, *own = next((found for name, found in parts.items() if kind.startswith(name)), deepseek)
    names = dict(zip(("eh_proj", "enorm", "hnorm", "post_norm"), own, strict=True))

    def published(name: str) -> str:
        inner = name.removeprefix("layers.0.")
        if inner.startswith("mtp_block."):
            return layer + inner.removeprefix("mtp_block.")
        part, _, rest = inner.partition(".")
        return f"{first}{names[part]}.{rest}"

    return published


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of all experts together as one of each expert, as checkpoints have them."""
    found = dict[str, Tensor]()
    for name, tensor in tensors.items():
        before, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for index, both in enumerate(tensor):
                for part, half in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True):
                    found[f"{before}.{index}.{part}.weight"] = half.contiguous()
        elif last == "down_proj":
            found |= {f"{before}.{index}.down_proj.weight": one.contiguous() for index, one in enumerate(tensor)}
        else:
            found[name] = tensor.contiguous()
    return found


def _drawn(model: torch.nn.Module, seed: int) -> None:
    """Draw every parameter and persistent buffer, so that no two norms are alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            about = 1.0 if "norm" in name and "weight" in name else 0.0
            tensor.copy_(about + 0.3 * noise if about or tensor.dim() == 1 else noise / tensor.shape[-1] ** 0.5)


def _texts(seed: int) -> list[list[int]]:
    """Two texts: the second goes on otherwise after most of the first, as a text does after a rejection."""
    tokens: list[int] = torch.randint(0, 64, (14,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [tokens[:11], tokens[:9] + tokens[11:]]


@torch.no_grad()
def _with_transformers(kind: str, seed: int) -> None:
    """One folder, and its logits by transformers' ``MtpModel``: states after its norm go on, and states before it."""
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    published, folder = _PUBLISHED[kind], _HERE / kind
    model_type = _LIKE.get(kind, published["model_type"])
    given = {name: value for name, value in published.items() if name not in ("model_type", "architectures")}
    config = AutoConfig.for_model(model_type, **given)
    main: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager").eval()
    _drawn(main, seed)
    folder.mkdir(parents=True, exist_ok=True)
    main.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
    config.mtp_hidden_states_first = kind == "mimo"
    mtp: Any = MtpModel(main, 1).eval()
    own = {name: tensor for name, tensor in mtp.state_dict().items() if name.startswith("layers.")}
    _drawn(torch.nn.ModuleList([mtp.layers]), seed + 1)
    published_name = _renamed(kind)
    extra = {published_name(name): tensor for name, tensor in _apart(own).items()}
    if kind in ("deepseek", "glm"):  # published with copies of the target's
        extra["model.layers.2.embed_tokens.weight"] = main.get_input_embeddings().weight.clone()
        extra["model.layers.2.shared_head.head.weight"] = main.lm_head.weight.clone()
    save_file(load_file(folder / "model.safetensors") | extra, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(published, indent=1, sort_keys=True) + "\n")

    if kind != "mimo":  # no kind of transformers' own
        main._keys_to_ignore_on_load_unexpected = [r"^mtp.*", r"model\.layers\.2\..*"]
        main.config.name_or_path, main.config.dtype = str(folder), torch.float32
        again = MtpModel.from_pretrained(main).eval()
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor, mtp.state_dict()[name]), name
        mtp = again
    expected = dict[str, Tensor]()
    for index, text in enumerate(_texts(seed)):
        expected[f"{index}.tokens"] = torch.tensor(text)
        hidden = main.model(torch.tensor([text[:-1]]), use_cache=False).last_hidden_state
        for states in ("after", "before"):
            norm = mtp.layers[0].post_norm
            mtp.layers[0].use_post_norm = states == "after"
            cache, state, logits = MtpCache(config=config.get_mtp_config()), hidden, list[Tensor]()
            tokens, positions = torch.tensor([text[1:]]), torch.arange(1, len(text))[None]
            for _ in range(_STEPS):
                state = mtp.forward_layer(0, state, positions, cache, input_ids=tokens)[:, -1:]
                logits.append(main.lm_head(state if states == "after" else norm(state))[0, 0])
                tokens, positions = logits[-1].argmax()[None, None], positions[:, -1:] + 1
            expected[f"{index}.{states}"] = torch.stack(logits)
    save_file(expected, _HERE / f"{kind}.safetensors")


@torch.no_grad()
def _with_speculators(kind: str, seed: int) -> None:
    """A checkpoint in the form of speculators, of the module of one above or of a new one over Qwen3, and its logits.

    ``MTPDraftModel`` computes a step of all positions at once: it attends to what the same step made of those before.
    """
    from speculators.config import SpeculatorsConfig, VerifierConfig  # type: ignore[import-not-found]
    from speculators.convert.mtp.converter import MTPConverter  # type: ignore[import-not-found]
    from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig  # type: ignore[import-not-found]
    from speculators.proposals.greedy import GreedyTokenProposalConfig  # type: ignore[import-not-found]

    target, folder = _HERE / kind, _HERE / f"speculators-{kind}"
    if kind == "qwen3":
        config = AutoConfig.for_model("qwen3", **_COMMON, head_dim=8)
        main: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        _drawn(main, seed)
        main.save_pretrained(target)
        (target / "generation_config.json").unlink(missing_ok=True)
        said = SpeculatorsConfig(
            algorithm="mtp",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=_STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(str(target)),
        )
        module: Any = MTPDraftModel(MTPSpeculatorConfig(transformer_layer_config=config, speculators_config=said))
        _drawn(module.mtp_layers, seed + 1)
        module.save_pretrained(str(folder))
    else:
        main = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        MTPConverter().convert(str(target), str(folder), str(target), _STEPS)
    settings = json.loads((folder / "config.json").read_text())
    settings["speculators_config"]["verifier"]["name_or_path"] = kind
    module = MTPDraftModel.from_pretrained(str(folder)).eval()
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    tokens = torch.tensor([_texts(seed)[0]])
    hidden = main.model(tokens, use_cache=False).last_hidden_state
    logits, _, _ = module(tokens, hidden)
    save_file({"tokens": tokens[0], "logits": torch.cat(logits)}, _HERE / f"speculators-{kind}.safetensors")


@torch.no_grad()
def _for_the_kit(seed: int) -> None:
    """A module in the form of speculators for the Llama of the conformance kit, whose vocabulary is that of bytes."""
    folder = _HERE / "speculators-llama"
    layer = {"model_type": "llama", "vocab_size": 258, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    layer |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    settings = json.loads((_HERE / "speculators-qwen3" / "config.json").read_text())
    settings["transformer_layer_config"] = layer
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(num_hidden_layers=1, **layer))
    module = torch.nn.ModuleDict({f"{name}_layernorm": torch.nn.LayerNorm(32) for name in ("token", "hidden", "final")})
    module["input_proj"] = torch.nn.Linear(64, 32, bias=False)
    layer_of: Any = model.model.layers[0]
    _drawn(module, seed)
    _drawn(layer_of, seed + 1)
    parts = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("bias")}
    tensors = {f"mtp_layers.0.{name}": tensor.bfloat16() for name, tensor in (parts | layer_of.state_dict()).items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    if sys.argv[1:] == ["transformers"]:
        for number, name in enumerate(_PUBLISHED):
            _with_transformers(name, 100 + number)
    elif sys.argv[1:] == ["kit"]:
        _for_the_kit(300)
    elif sys.argv[1:] == ["speculators"]:
        for number, name in enumerate(("qwen3-next", "qwen3.5", "qwen3")):
            _with_speculators(name, 200 + number)
    else:
        sys.exit("name the program that computes the logits: transformers or speculators; or the kit")
