"""A target whose next token is known by construction, and heads of it in EAGLE-3's form that nobody had to train.

The next token follows from the last one and from a mean over the text before, which changes slowly: a head that has
the mean of one token earlier, in the target's state, is mostly right. Each layer turns the mean by another rotation, so
that a state of another layer tells a head nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchsuite.tests.made_up_models import (
    LAYER,
    LAYERS,
    TAPPED,
    blank_llama,
    fitted_matrix,
    layer_states,
    made_up_rotation,
)

PART, WIDE = 32, 128
HIDDEN = 3 * PART
TOKEN, MEAN, NEXT = slice(0, PART), slice(PART, 2 * PART), slice(2 * PART, HIDDEN - 1)
"""Parts of a state: the last token's signs, the mean over the text, and what the head of the target reads."""

ONE = HIDDEN - 1
"""The place of a state that holds a constant, which opens gates."""

CONSTANT, OPEN, SELF = 4.0, 5.0, 15.0
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": HIDDEN // 4,
}
"""The sizes of a head's layer."""


@torch.no_grad()
def made_up_target(seed: int) -> PreTrainedModel:
    """A Llama of five layers: the first makes the mean, the last the next token, those between turn the mean."""
    dice = torch.Generator().manual_seed(seed)
    model = blank_llama(HIDDEN, WIDE, 4)
    embeddings = model.get_input_embeddings().weight
    embeddings[:, TOKEN] = torch.randn(len(embeddings), PART, generator=dice).sign()
    embeddings[:, ONE] = CONSTANT
    # After its last norm the mean has other signs than before it; the head of the target does not read it.
    model.base_model.norm.weight[MEAN] = torch.randn(PART, generator=dice).sign()
    first, *between, last = model.base_model.layers
    # Queries and keys are 0, so that every token of the text has the same weight.
    first.self_attn.v_proj.weight[:PART, TOKEN] = made_up_rotation(dice, PART)
    first.self_attn.o_proj.weight[MEAN, :PART] = 8 * torch.eye(PART)
    for layer in between:
        layer.mlp.gate_proj.weight[:PART, ONE] = OPEN
        layer.mlp.up_proj.weight[:PART, MEAN] = made_up_rotation(dice, PART) - torch.eye(PART)
        layer.mlp.down_proj.weight[MEAN, :PART] = torch.eye(PART) / (OPEN * CONSTANT)
    last.mlp.gate_proj.weight[:, TOKEN] = torch.randn(WIDE, PART, generator=dice)
    last.mlp.up_proj.weight[:, MEAN] = torch.randn(WIDE, PART, generator=dice)
    last.mlp.down_proj.weight[NEXT] = torch.randn(PART - 1, WIDE, generator=dice)
    output = model.get_output_embeddings().weight
    output[:256, NEXT] = torch.randn(256, PART - 1, generator=dice)
    return model


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

    @property
    def form(self) -> str:
        """The draft that runs it."""
        return "eagle3"

    def target(self, seed: int) -> PreTrainedModel:
        """``made_up_target``."""
        return made_up_target(seed)

    @torch.no_grad()
    def tensors(self, seed: int) -> dict[str, Tensor]:
        """The tensors of a head of ``made_up_target(seed)``, by the names of the speculators form."""
        model = made_up_target(seed)
        states = layer_states(model)
        dice = torch.Generator().manual_seed(99)
        last, table = model.base_model.layers[-1].mlp, model.get_input_embeddings().weight
        places = torch.randperm(PART, generator=dice) if self.own else torch.arange(PART)
        fusion = torch.zeros(HIDDEN, len(TAPPED) * HIDDEN)
        read = torch.cat([states[layer] for layer in TAPPED], dim=-1)
        fusion[MEAN] = fitted_matrix(read, states[LAYERS - 2][:, MEAN])
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
            "transformer_layer_config": LAYER | SIZES,
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

    @property
    def form(self) -> str:
        """The draft that runs it."""
        return "mtp"

    def target(self, seed: int) -> PreTrainedModel:
        """``made_up_target``."""
        return made_up_target(seed)

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
            "transformer_layer_config": LAYER | SIZES,
        }
