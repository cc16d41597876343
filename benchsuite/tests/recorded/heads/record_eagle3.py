"""Makes the recorded EAGLE-3 heads: random ones, written by the package ``speculators``, and their logits by it.

Run by hand, in an environment with ``speculators==0.9.0``, in this folder: ``python record_eagle3.py``.
"""

from __future__ import annotations

import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

TOKENS, STEPS, VOCABULARY, DRAFTED = 12, 4, 64, 20

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, tuple[type[PretrainedConfig], dict[str, Any], dict[str, Any]]] = {
    "eagle3": (LlamaConfig, {}, {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}),
    "one_norm": (
        LlamaConfig,
        {"rope_parameters": LLAMA3},
        {"eagle_aux_hidden_state_layer_ids": [2, 4], "norm_before_fc": True, "norm_before_residual": True},
    ),
    "eagle31": (
        LlamaConfig,
        {"num_attention_heads": 4, "head_dim": 6},
        {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "fc_norm": True, "norm_output": True},
    ),
    "two_layers": (
        Qwen3Config,
        {"num_hidden_layers": 2, "attention_bias": True},
        {"eagle_aux_hidden_state_layer_ids": [5, 1, 3], "draft_vocab_size": VOCABULARY},
    ),
    "window": (
        Qwen3Config,
        {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"]},
        {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
    ),
    "tiny_llama": (
        LlamaConfig,
        {"hidden_size": 32, "vocab_size": 258},
        {"eagle_aux_hidden_state_layer_ids": [1, 2], "draft_vocab_size": 60},
    ),
}
"""Kind of the layers, their settings, and those of the head; the last is for a target of the tiny families."""


def made_head(name: str) -> Any:
    """A random head of a case, all its norms and biases included, and a reduced vocabulary."""
    eagle3, config = import_module("speculators.models.eagle3"), import_module("speculators.config")
    greedy = import_module("speculators.proposals.greedy").GreedyTokenProposalConfig
    kind, layer, head = CASES[name]
    model = eagle3.Eagle3DraftModel(
        eagle3.Eagle3SpeculatorConfig(
            transformer_layer_config=kind(**SIZES | layer, attn_implementation="eager"),
            speculators_config=config.SpeculatorsConfig(
                algorithm="eagle3",
                proposal_methods=[greedy(speculative_tokens=STEPS)],
                default_proposal_method="greedy",
                verifier=config.VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
            ),
            **{"draft_vocab_size": DRAFTED} | head,
        )
    )
    torch.manual_seed(0)
    for weight_name, weight in model.named_parameters():
        noise = torch.randn_like(weight) * (0.3 if weight.dim() > 1 else 0.2)
        centre = 1.0 if weight_name.endswith("norm.weight") or ".fc_norm." in weight_name else 0.0
        weight.data = (centre + noise + (0.6 * noise if "embed" in weight_name else 0)).to(torch.bfloat16).float()
    if model.d2t is not None:
        vocabulary = len(model.t2d)
        known = torch.randperm(vocabulary)[: len(model.d2t)].sort().values
        model.d2t.copy_(known - torch.arange(len(known)))
        model.t2d.copy_(torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, known, True))
    return model.eval()


@torch.no_grad()
def eagle3_steps(model: Any, states: Tensor, tokens: Tensor) -> Tensor:
    """Logits float32 [steps, T, D]: those of step s, at place t, follow tokens up to t + s and true states up to t."""
    seen: list[Tensor] = []
    handle = model.lm_head.register_forward_hook(lambda module, given, out: seen.append(out[0].float()))
    weight = next(model.parameters())
    documents = torch.zeros(1, len(tokens), dtype=torch.long)
    model(states[None].to(weight.dtype), tokens[None], documents, ttt_steps=STEPS)
    handle.remove()
    return torch.stack(seen)


def record_heads(folder: Path) -> None:
    """Write each case's checkpoint, and beside it what it was given and gave, with the error of bfloat16."""
    for name in CASES:
        model = made_head(name)
        layers = len(CASES[name][2]["eagle_aux_hidden_state_layer_ids"])
        torch.manual_seed(1)
        states, tokens = torch.randn(TOKENS, layers * model.hidden_size), torch.randint(0, VOCABULARY, (TOKENS,))
        states *= torch.tensor([0.5, 2.0, 8.0][:layers]).repeat_interleave(model.hidden_size)
        logits = eagle3_steps(model, states, tokens)
        half = copy.deepcopy(model).to(torch.bfloat16)
        error = (eagle3_steps(half, states, tokens) - logits).abs().amax(dim=(1, 2))
        half.save_pretrained(folder / name)
        (folder / name / "config.py").unlink()
        save_file(
            {"states": states, "tokens": tokens, "logits": logits, "error": error}, folder / f"{name}.safetensors"
        )


if __name__ == "__main__":
    record_heads(Path(__file__).parent / "eagle3")
