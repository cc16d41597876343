"""A target whose next token is known by construction, and heads of it in EAGLE-3's form that nobody had to train.

The next token follows from the last one and from a mean over the text before, which changes slowly: a head that has
the mean of one token earlier, in the target's state, is mostly right. Each layer turns the mean by another rotation, so
that a state of another layer tells a head nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

PART, VOCABULARY, LAYERS, WIDE = 32, 258, 5, 128
HIDDEN = 3 * PART
TOKEN, MEAN, NEXT = slice(0, PART), slice(PART, 2 * PART), slice(2 * PART, HIDDEN - 1)
"""Parts of a state: the last token's signs, the mean over the text, and what the head of the target reads."""

ONE = HIDDEN - 1
"""The place of a state that holds a constant, which opens gates."""

CONSTANT, OPEN, SELF = 4.0, 5.0, 15.0
LAYER = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": HIDDEN // 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
}
"""The settings of a head's layer."""

TAPPED = (1, 2, 3)
"""The layers whose outputs a head reads."""


@torch.no_grad()
def made_up_target(seed: int) -> PreTrainedModel:
    """A Llama of five layers: the first makes the mean, the last the next token, those between turn the mean."""
    dice = torch.Generator().manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=HIDDEN // 4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=256,
        tie_word_embeddings=False,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.fill_(1) if parameter.dim() == 1 else parameter.zero_()
    embeddings = model.get_input_embeddings().weight
    embeddings[:, TOKEN] = torch.randn(VOCABULARY, PART, generator=dice).sign()
    embeddings[:, ONE] = CONSTANT
    # After its last norm the mean has other signs than before it; the head of the target does not read it.
    model.base_model.norm.weight[MEAN] = torch.randn(PART, generator=dice).sign()
    first, *between, last = model.base_model.layers
    # Queries and keys are 0, so that every token of the text has the same weight.
    first.self_attn.v_proj.weight[:PART, TOKEN] = _rotation(dice)
    first.self_attn.o_proj.weight[MEAN, :PART] = 8 * torch.eye(PART)
    for layer in between:
        layer.mlp.gate_proj.weight[:PART, ONE] = OPEN
        layer.mlp.up_proj.weight[:PART, MEAN] = _rotation(dice) - torch.eye(PART)
        layer.mlp.down_proj.weight[MEAN, :PART] = torch.eye(PART) / (OPEN * CONSTANT)
    last.mlp.gate_proj.weight[:, TOKEN] = torch.randn(WIDE, PART, generator=dice)
    last.mlp.up_proj.weight[:, MEAN] = torch.randn(WIDE, PART, generator=dice)
    last.mlp.down_proj.weight[NEXT] = torch.randn(PART - 1, WIDE, generator=dice)
    output = model.get_output_embeddings().weight
    output[:256, NEXT] = torch.randn(256, PART - 1, generator=dice)
    return model


def _rotation(dice: torch.Generator) -> Tensor:
    q, _ = torch.linalg.qr(torch.randn(PART, PART, generator=dice))
    turned: Tensor = q
    return turned


def made_up_prompts(seed: int, count: int, length: int = 40) -> list[tuple[int, ...]]:
    """Random texts, no two of which lead to the same answer."""
    dice = torch.Generator().manual_seed(seed)
    return [tuple(row) for row in torch.randint(0, 256, (count, length), generator=dice).tolist()]


@dataclass(frozen=True)
class MadeUpHead:
    """Conventions of a head.

    ``after``: it feeds its states back as they are after its norm; else it norms them first of all, so that both are
    one to it. ``own``: it has embeddings of its own, which are not the target's. ``tokens``: how many of the target's
    it knows, of which every ``stride``-th is one.
    """

    after: bool = False
    own: bool = False
    tokens: int = 256
    stride: int = 1

    @torch.no_grad()
    def tensors(self, seed: int) -> dict[str, Tensor]:
        """The tensors of a head of ``made_up_target(seed)``, by the names of the speculators form."""
        model = made_up_target(seed)
        states = _states(model)
        dice = torch.Generator().manual_seed(99)
        last, table = model.base_model.layers[-1].mlp, model.get_input_embeddings().weight
        places = torch.randperm(PART, generator=dice) if self.own else torch.arange(PART)
        fusion = torch.zeros(HIDDEN, len(TAPPED) * HIDDEN)
        read = torch.cat([states[layer] for layer in TAPPED], dim=-1).flatten(0, -2)
        wanted = states[LAYERS - 2][..., MEAN].flatten(0, -2)
        normal = read.T @ read + 1e-2 * len(read) * torch.eye(read.shape[1])
        fusion[MEAN] = torch.linalg.solve(normal, read.T @ wanted).T
        query, value = torch.zeros(HIDDEN, 2 * HIDDEN), torch.zeros(HIDDEN, 2 * HIDDEN)
        query[:, ONE] = SELF / 4  # a token attends to itself alone
        size = float(table[0].square().mean().sqrt())
        value[torch.arange(PART), places] = size
        value[ONE, ONE] = size
        # The next token and the constant take the places of the last ones, which the head's own states still hold.
        for part in (*range(PART), *range(2 * PART, HIDDEN)):
            value[part, HIDDEN + part] = -1
        embeddings = table.clone()
        embeddings[:, places] = table[:, :PART]
        ids = torch.arange(self.tokens) * self.stride
        output = model.get_output_embeddings().weight
        return {
            "embed_tokens.weight": embeddings,
            "fc.weight": fusion,
            "layers.0.input_layernorm.weight": torch.ones(HIDDEN),
            "layers.0.hidden_norm.weight": torch.ones(HIDDEN),
            "layers.0.post_attention_layernorm.weight": torch.ones(HIDDEN),
            "layers.0.self_attn.q_proj.weight": query,
            "layers.0.self_attn.k_proj.weight": query.clone(),
            "layers.0.self_attn.v_proj.weight": value,
            "layers.0.self_attn.o_proj.weight": torch.eye(HIDDEN),
            "layers.0.mlp.gate_proj.weight": last.gate_proj.weight.clone(),
            "layers.0.mlp.up_proj.weight": last.up_proj.weight.clone(),
            "layers.0.mlp.down_proj.weight": last.down_proj.weight.clone(),
            "norm.weight": torch.ones(HIDDEN),
            "lm_head.weight": output[ids].clone(),
            "d2t": ids - torch.arange(self.tokens),
        }

    @property
    def config(self) -> dict[str, Any]:
        """The config of the speculators form, whose ids of layers are those of their inputs."""
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": self.tokens,
            "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in TAPPED],
            "norm_before_residual": not self.after,
            "norm_output": self.after,
            "target_hidden_size": HIDDEN,
            "transformer_layer_config": LAYER,
        }


@dataclass(frozen=True)
class MadeUpMtp:
    """Conventions of a module for multi-token prediction in the form of speculators, which says nothing of them.

    ``state_first``: the state comes before the embedding in its input. ``final`` and ``states``: whether it reads the
    target's states, and its own, from before or after a last norm. Its own can be from before only if the target's are.
    """

    state_first: bool = False
    final: Literal["before", "after"] = "after"
    states: Literal["before", "after"] = "after"

    @torch.no_grad()
    def tensors(self, seed: int) -> dict[str, Tensor]:
        """The tensors of a module of ``made_up_target(seed)``."""
        model = made_up_target(seed)
        last, table = model.base_model.layers[-1].mlp, model.get_input_embeddings().weight
        signs = model.base_model.norm.weight
        token, state = torch.zeros(HIDDEN, HIDDEN), torch.zeros(HIDDEN, HIDDEN)
        size = float(table[0].square().mean().sqrt())
        for part in (*range(PART), ONE):
            token[part, part] = size
        seen = signs if self.final == "after" else torch.ones(HIDDEN)
        for part in range(PART, 2 * PART):
            state[part, part] = 3 * seen[part]
        # Its own state must show the mean as the target's does.
        norm = torch.ones(HIDDEN) if (self.final, self.states) == ("before", "after") else signs
        none = torch.zeros(HIDDEN, HIDDEN)
        layer = {
            "input_proj": torch.cat([state, token] if self.state_first else [token, state], dim=1),
            "token_layernorm": torch.ones(HIDDEN),
            "hidden_layernorm": torch.ones(HIDDEN),
            "final_layernorm": norm.clone(),
            "input_layernorm": torch.ones(HIDDEN),
            "post_attention_layernorm": torch.ones(HIDDEN),
            **{f"self_attn.{part}_proj": none.clone() for part in "qkvo"},
            **{f"mlp.{part}_proj": getattr(last, f"{part}_proj").weight.clone() for part in ("gate", "up", "down")},
        }
        named = {f"mtp_layers.0.{name}.weight": one for name, one in layer.items()}
        return {**named, "lm_head.weight": model.get_output_embeddings().weight.clone()}

    @property
    def config(self) -> dict[str, Any]:
        """The config of the speculators form."""
        return {
            "architectures": ["MTPDraftModel"],
            "speculators_model_type": "mtp",
            "num_nextn_predict_layers": 1,
            "transformer_layer_config": LAYER,
        }


def write_head(head: MadeUpHead | MadeUpMtp, seed: int, folder: Path, changed: Mapping[str, Any]) -> str:
    """Write the files of a head of ``made_up_target(seed)``; ``changed`` settings and tensors take the place of the
    right ones. Returns the folder's path."""
    folder.mkdir(parents=True)
    tensors, config = head.tensors(seed), head.config
    for name, value in changed.items():
        (tensors if isinstance(value, Tensor) else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def _states(model: PreTrainedModel) -> Tensor:
    """Outputs of all layers [L, B, T, H] on random texts."""
    texts = torch.tensor(made_up_prompts(7, 24, 72))
    seen: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda part, given, out: seen.append(out[0] if isinstance(out, tuple) else out))
        for layer in model.base_model.layers
    ]
    model(texts, use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(seen)[:, :, 36:]
