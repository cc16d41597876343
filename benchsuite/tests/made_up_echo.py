"""A target whose next token follows from the one four places back, and heads of it that draft several at once.

A head that has a state of the target finds in it the last three tokens, and with them the next three: nothing between
need be known. Each layer turns these by another rotation, so that a state of another layer tells a head nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchsuite.tests.made_up_models import (
    LAYER,
    TAPPED,
    VOCABULARY,
    blank_llama,
    fitted_matrix,
    layer_states,
    made_up_rotation,
)

BACK = 4
"""How far back the token stands from which the next one follows."""

PART = 32
HIDDEN = 6 * PART
LAST, HEARD, NEXT, SPARE = (slice(start * PART, end * PART) for start, end in ((0, 1), (0, 3), (3, 4), (4, 5)))
"""Parts of a state: signs of the last token, of the last three, of that from which the next one follows, and none."""

OTHER, MARK, ONE = HIDDEN - PART, HIDDEN - 2, HIDDEN - 1
"""Places of a state: one that nothing uses; one that only the mask has; one that every other token has."""

CONSTANT, OPEN, SHARP, FAR, MASK, WIDTH = 4.0, 5.0, 64.0, 6, 257, 8
NOISE = 0.25
"""How wrong what a head reads is, so that some of its proposals are."""


def looking_back(places: float) -> Tensor:
    """A query [32] whose product with the key ``looking_back(0)`` is largest that many places back, by the rotary."""
    angle, direction = places * 10000 ** (-torch.arange(5) / (PART // 2)), torch.zeros(PART)
    direction[:5], direction[PART // 2 : PART // 2 + 5] = angle.cos(), -angle.sin()
    return direction


@torch.no_grad()
def echo_target(seed: int) -> PreTrainedModel:
    """A Llama of five layers: the first collects tokens, the others turn them; a token follows one other."""
    dice = torch.Generator().manual_seed(seed)
    model = blank_llama(HIDDEN, 3 * PART, HIDDEN // PART)
    embeddings = model.get_input_embeddings().weight
    embeddings[:, LAST] = torch.randn(VOCABULARY, PART, generator=dice).sign()
    embeddings[:, ONE] = CONSTANT
    embeddings[MASK] = 0
    embeddings[MASK, MARK] = CONSTANT
    # After its last norm a state has other signs than before it; the head of the target does not read them.
    model.base_model.norm.weight[HEARD] = torch.randn(3 * PART, generator=dice).sign()
    first, *others = model.base_model.layers
    size = float(embeddings[0].square().mean().sqrt())
    for places in range(1, BACK):
        part = slice(places * PART, (places + 1) * PART)
        first.self_attn.q_proj.weight[part, ONE] = 2 * looking_back(places)
        first.self_attn.k_proj.weight[part, ONE] = 2 * looking_back(0)
        first.self_attn.v_proj.weight[part, LAST] = torch.eye(PART)
        first.self_attn.o_proj.weight[part, part] = size * torch.eye(PART)
    square = (BACK * PART + CONSTANT**2) / HIDDEN
    for layer in others:
        layer.mlp.gate_proj.weight[:, ONE] = OPEN
        layer.mlp.up_proj.weight[:, HEARD] = made_up_rotation(dice, 3 * PART) - torch.eye(3 * PART)
        layer.mlp.down_proj.weight[HEARD] = torch.eye(3 * PART) * square / (OPEN * CONSTANT)
    order = torch.randperm(256, generator=dice)
    model.get_output_embeddings().weight[order.roll(-1), NEXT] = embeddings[order, LAST]
    return model


def _collected(model: PreTrainedModel) -> Tensor:
    """The fusion [H, n H] of the layers that are read: the last token's signs, and the constant."""
    states, fusion = layer_states(model), torch.zeros(HIDDEN, len(TAPPED) * HIDDEN)
    fusion[LAST] = fitted_matrix(torch.cat([states[layer] for layer in TAPPED], dim=-1), states[0][:, LAST])
    fusion[ONE, ONE] = 1
    return fusion


def _wrongly(dice: torch.Generator) -> Tensor:
    return torch.eye(PART) + NOISE * torch.randn(PART, PART, generator=dice)


def _vocabulary(model: PreTrainedModel, tokens: int, stride: int) -> dict[str, Tensor]:
    ids = torch.arange(tokens) * stride
    rows = model.get_output_embeddings().weight[ids].clone()
    return {"lm_head.weight": rows, "d2t": ids - torch.arange(tokens)}


def _own_embeddings(model: PreTrainedModel) -> Tensor:
    """Embeddings [V, H] of a head, in which the mask is marked at another place than in the target's."""
    table: Tensor = model.get_input_embeddings().weight.clone()
    table[:, OTHER], table[:, MARK] = table[:, MARK].clone(), 0
    return table


def _settings(kind: str, layers: list[bool]) -> dict[str, Any]:
    """The settings of layers, of which those that are marked have a window."""
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 8, "head_dim": PART}
    kinds = ["sliding_attention" if one else "full_attention" for one in layers]
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": len(layers)}
    window = {"layer_types": kinds, **({"sliding_window": WIDTH} if any(layers) else {})}
    return LAYER | sizes | heads | window | {"model_type": kind}


class OfEcho:
    """What all heads of the target have."""

    def target(self, seed: int) -> PreTrainedModel:
        """``echo_target``."""
        return echo_target(seed)


@dataclass(frozen=True)
class MadeUpBlock(OfEcho):
    """Conventions of a head that drafts a block, in the form of speculators or, if ``authors``, in that of DFlash's.

    ``proposes``: the first slot does. ``inside``: with "causal" a slot must not see later ones, with "all" it needs the
    next one's state; "" is either. ``near``: it goes wrong if it sees more of the text than its window. ``own``: it has
    embeddings of its own. ``tokens``: how many of the target's it knows, of which every ``stride``-th is one.
    """

    form: str = "dflash"
    authors: bool = False
    proposes: bool = False
    inside: Literal["", "all", "causal"] = ""
    near: bool = False
    own: bool = False
    tokens: int = 256
    stride: int = 1

    @property
    def windows(self) -> list[bool]:
        """Which layers have a window."""
        return [self.near, True] if self.inside == "all" else [self.near or self.inside == "causal"]

    @torch.no_grad()
    def tensors(self, seed: int) -> dict[str, Tensor]:
        """See ``MadeUp``."""
        model, dice = echo_target(seed), torch.Generator().manual_seed(seed + 1)
        mark, two = OTHER if self.own else MARK, len(self.windows) - 1
        back = BACK - self.proposes + two
        query, keys, values, out = (torch.zeros(PART, HIDDEN) for _ in range(4))
        query[:, mark], keys[:, mark], keys[:, ONE] = looking_back(back), looking_back(0), looking_back(0)
        if self.proposes:
            query[:, ONE] = query[:, mark]
        values[:, LAST] = torch.eye(PART)
        if self.inside == "causal":
            # The next mask stands out as much as the token that is looked for, and what it has to say is loud.
            keys[:, mark] = looking_back(back + 1)
            values[:, mark] = 3 * torch.randn(PART, generator=dice).sign()
        if self.near:
            # The further back a token is, the better it fits.
            query[FAR, mark], keys[FAR, mark], keys[FAR, ONE] = -8, 1, 1
        out[:, SPARE if two else NEXT] = _wrongly(dice).T
        layers = [(query, keys, values, out)]
        if two:
            query, keys, values, out = (torch.zeros(PART, HIDDEN) for _ in range(4))
            query[:, mark], keys[:, mark] = looking_back(-1), looking_back(0)
            values[:, SPARE], out[:, NEXT] = torch.eye(PART), torch.eye(PART)
            layers.append((query, keys, values, out))
        found = {"fc": _collected(model), "hidden_norm": torch.ones(HIDDEN), "norm": torch.ones(HIDDEN)}
        for index, (query, keys, values, out) in enumerate(layers):
            parts = {
                **{f"self_attn.{name}_proj": one for name, one in zip("qkv", (query, keys, values), strict=True)},
                "self_attn.o_proj": out.T,
                "self_attn.q_norm": torch.full((PART,), SHARP),
                "self_attn.k_norm": torch.ones(PART),
                "input_layernorm": torch.ones(HIDDEN),
                "post_attention_layernorm": torch.ones(HIDDEN),
                **{f"mlp.{name}_proj": torch.zeros(8, HIDDEN) for name in ("gate", "up")},
                "mlp.down_proj": torch.zeros(HIDDEN, 8),
            }
            found |= {f"layers.{index}.{name}": one for name, one in parts.items()}
        tensors = {f"{name}.weight": one for name, one in found.items()}
        if self.own:
            tensors["embed_tokens.weight"] = _own_embeddings(model)
        if self.form == "dspark":
            for name, count in (("markov_w1", VOCABULARY), ("markov_w2", self.tokens)):
                tensors[f"markov_head.{name}.weight"] = torch.randn(count, 4, generator=dice)
        return tensors if self.authors else tensors | _vocabulary(model, self.tokens, self.stride)

    @property
    def config(self) -> dict[str, Any]:
        """The settings of either form: ids of layers are those of outputs in one, of inputs in the other."""
        layer, block = _settings("qwen3", self.windows), {"block_size": BACK + (self.inside == "all")}
        if self.authors:
            named: dict[str, Any] = {"mask_token_id": MASK, "target_layer_ids": [*TAPPED]}
            if self.inside == "all":
                named["causal"] = False
            return layer | block | {"architectures": ["DFlashDraftModel"], "dflash_config": named}
        spark = {
            "markov_rank": 4,
            "markov_head_type": "vanilla",
            "enable_confidence_head": False,
            "confidence_head_with_markov": False,
        }
        return {
            "speculators_model_type": self.form,
            "aux_hidden_state_layer_ids": [layer + 1 for layer in TAPPED],
            "mask_token_id": MASK,
            "draft_vocab_size": self.tokens,
            "sliding_window_non_causal": self.inside == "all",
            "sample_from_anchor": self.proposes,
            "transformer_layer_config": layer,
            **block,
            **(spark if self.form == "dspark" else {}),
        }


@dataclass(frozen=True)
class MadeUpPeagle(OfEcho):
    """Conventions of a P-EAGLE head in the form of speculators: ``near``, ``own`` and ``tokens`` as of a block's."""

    near: bool = False
    own: bool = False
    tokens: int = 256
    stride: int = 1

    @property
    def form(self) -> str:
        """The draft that runs it."""
        return "peagle"

    @torch.no_grad()
    def tensors(self, seed: int) -> dict[str, Tensor]:
        """See ``MadeUp``."""
        model, dice = echo_target(seed), torch.Generator().manual_seed(seed + 1)
        # The constant of a true state behind its norm, and the mark of a mask's embedding behind its own.
        true, mask = HIDDEN + ONE, OTHER if self.own else MARK
        sizes = {true: CONSTANT / ((PART + CONSTANT**2) / HIDDEN) ** 0.5, mask: HIDDEN**0.5}
        query, keys, values = (torch.zeros(PART, 2 * HIDDEN) for _ in range(3))
        for place, size in sizes.items():
            query[:, place], keys[:, place] = 10 / size * looking_back(BACK - 2), 10 / size * looking_back(0)
            if self.near:
                query[FAR, place], keys[FAR, place] = -80 / size, 10 / size
        values[:, HIDDEN : HIDDEN + PART] = torch.eye(PART)
        out = torch.zeros(HIDDEN, PART)
        out[NEXT] = _wrongly(dice)
        parts = {
            "fc": _collected(model),
            "norm": torch.ones(HIDDEN),
            **{f"layers.0.{name}": torch.ones(HIDDEN) for name in ("input_layernorm", "hidden_norm")},
            "layers.0.post_attention_layernorm": torch.ones(HIDDEN),
            **{f"layers.0.self_attn.{name}_proj": one for name, one in zip("qkv", (query, keys, values), strict=True)},
            "layers.0.self_attn.o_proj": out,
            **{f"layers.0.mlp.{name}_proj": torch.zeros(8, HIDDEN) for name in ("gate", "up")},
            "layers.0.mlp.down_proj": torch.zeros(HIDDEN, 8),
        }
        tensors = {f"{name}.weight": one for name, one in parts.items()}
        if self.own:
            tensors["embed_tokens.weight"] = _own_embeddings(model)
        tensors["mask_hidden"] = torch.zeros(1, 1, len(TAPPED) * HIDDEN)
        return tensors | _vocabulary(model, self.tokens, self.stride)

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the form of speculators."""
        return {
            "speculators_model_type": "peagle",
            "draft_vocab_size": self.tokens,
            "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in TAPPED],
            "mask_token_id": MASK,
            "target_hidden_size": HIDDEN,
            "transformer_layer_config": _settings("llama", [self.near]),
        }


@dataclass(frozen=True)
class MadeUpMedusa(OfEcho):
    """Medusa's heads in the form of its repository, which read the target's last state from ``final`` its norm."""

    final: Literal["before", "after"] = "after"

    @property
    def form(self) -> str:
        """The draft that runs it."""
        return "medusa"

    @torch.no_grad()
    def tensors(self, seed: int) -> dict[str, Tensor]:
        """See ``MadeUp``."""
        model, dice = echo_target(seed), torch.Generator().manual_seed(seed + 1)
        states = layer_states(model)
        read = model.base_model.norm(states[-1]) if self.final == "after" else states[-1]
        rows, tensors = model.get_output_embeddings().weight[:, NEXT] @ _wrongly(dice), dict[str, Tensor]()
        for head in range(BACK - 1):
            token = slice((BACK - 2 - head) * PART, (BACK - 1 - head) * PART)
            tensors[f"{head}.0.linear.weight"] = torch.zeros(HIDDEN, HIDDEN)
            tensors[f"{head}.0.linear.bias"] = torch.zeros(HIDDEN)
            tensors[f"{head}.1.weight"] = rows @ fitted_matrix(read, states[0][:, token])
        return tensors

    @property
    def config(self) -> dict[str, Any]:
        """The settings of Medusa's repository."""
        return {"medusa_num_heads": BACK - 1, "medusa_num_layers": 1}
