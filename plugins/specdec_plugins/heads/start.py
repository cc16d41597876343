"""Initial heads for training, made of parts of their target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specdec import SpecdecError
from specdec_plugins.heads.dflash_head import BlockShape, DFlashHead
from specdec_plugins.heads.eagle3_head import Eagle3Head, Eagle3Shape
from specdec_plugins.heads.eagle_head import EagleHead, EagleShape
from specdec_plugins.heads.medusa_heads import MedusaHeads
from specdec_plugins.heads.mtp_head import MtpHead


@torch.no_grad()
def eagle_start(model: PreTrainedModel, tokens: Tensor, seed: int) -> EagleHead:
    """An EAGLE head that begins as the target's last layer over its last hidden state; token weights are random.

    ``tokens`` int64 [B, T] are a text on which the size of hidden states is measured: a head that begins at the
    residual stream's own scale learns at once, a head at scale 1 hardly learns (docs/log.md). Raises SpecdecError for
    a target whose layers are not Llama's.
    """
    config, parts = model.config, _last_layer(model)
    attention, mlp = parts.self_attn, parts.mlp
    torch.manual_seed(seed)
    head = EagleHead(
        EagleShape(
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.head_dim,
            config.rms_norm_eps,
            config.rope_parameters["rope_theta"],
        )
    )
    head.qkv.copy_(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]))
    head.out.copy_(attention.o_proj.weight)
    head.gate_up.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    head.down.copy_(mlp.down_proj.weight)
    head.norm_before.copy_(parts.input_layernorm.weight)
    head.norm_after.copy_(parts.post_attention_layernorm.weight)
    gain = model.base_model.norm.weight
    before, after = _sizes(model, tokens)
    head.norm.copy_(gain)
    head.hidden_norm.copy_(before * after / gain)  # undoes the target's final norm
    head.token_norm.fill_(before)
    head.enter[:, config.hidden_size :].copy_(torch.eye(config.hidden_size))
    return head


@torch.no_grad()
def eagle3_start(model: PreTrainedModel, states: int, ids: Tensor, seed: int) -> Eagle3Head:
    """An EAGLE-3 head that begins as the target's last layer over the last of ``states`` outputs that it fuses.

    It reads tokens with the target's rows of ``ids`` int64 [D] after the target's last norm. These rows do not learn:
    each batch would cost half as much again. Raises SpecdecError for a target whose layers are not Llama's.
    """
    parts, size = _last_layer(model), model.config.hidden_size
    attention, mlp = parts.self_attn, parts.mlp
    torch.manual_seed(seed)
    head = Eagle3Head(_eagle3_shape(model, states, ids), _frequencies(model))
    head.fusion.zero_()
    head.fusion[:, -size:].copy_(torch.eye(size))
    layer: Any = head.layers[0]
    layer.qkv[:, size:].copy_(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]))
    layer.out.copy_(attention.o_proj.weight)
    layer.gate_up.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    layer.down.copy_(mlp.down_proj.weight)
    layer.norm_before.copy_(parts.input_layernorm.weight)
    layer.norm_after.copy_(parts.post_attention_layernorm.weight)
    head.norm.copy_(model.base_model.norm.weight)
    head.output.copy_(model.get_output_embeddings().weight[ids])
    head.output.requires_grad_(False)
    return head


@torch.no_grad()
def eagle3_of_eagle(
    eagle: EagleHead, model: PreTrainedModel, states: int, ids: Tensor, embedded: Tensor, hidden: Tensor, seed: int
) -> Eagle3Head:
    """An EAGLE-3 head that begins with what a trained EAGLE head knows.

    The last of ``states`` must be the output of the last layer.

    Its conventions (EAGLE 3.1) make the states that are read and fed back those of ``eagle``, up to sizes that are
    measured on ``embedded`` and ``hidden`` [B, T, H]. EAGLE's layer reads one mixture of token and state, EAGLE-3's
    residual is the state alone. So there are two heads of attention for each of ``eagle``'s, with keys and values of
    their own: the first do what ``eagle``'s do; the others see their own place alone, and their values are what the
    mixture has beside the state. Attention reads inputs of size 1 and the residual keeps the size of ``eagle``'s: else
    a step of training that suits one is thirty times too large for the other.
    """
    old = eagle.shape
    shape = replace(
        _eagle3_shape(model, states, ids),
        heads=2 * old.heads,
        heads_kv=2 * old.heads,
        fusion_norm="each",
        norm_output=True,
        bias=True,
        out_bias=True,
    )
    size, inner = shape.hidden, old.heads * old.head_dim
    if inner < size:
        raise SpecdecError(f"heads of EAGLE of size {inner} in all cannot hand on states of size {size}")
    torch.manual_seed(seed)
    head = Eagle3Head(shape, _frequencies(model))
    state = _unit(hidden, shape.eps) * eagle.hidden_norm
    mixed = torch.cat([_unit(embedded, shape.eps) * eagle.token_norm, state], dim=-1).float() @ eagle.enter.T
    token_size = float(eagle.token_norm.square().mean().sqrt())
    sizes = token_size, float(_rms(state).median()), float(_rms(mixed).median())
    carried = eagle.hidden_norm / float(_rms(hidden.float()).median())
    head.fusion.zero_()
    head.fusion[:, -size:].copy_(torch.eye(size))
    assert head.fusion_norm is not None
    head.fusion_norm.fill_(token_size)
    head.fusion_norm[-1].copy_(model.base_model.norm.weight * carried)
    head.token_norm.copy_(eagle.token_norm / token_size)
    [layer] = head.stack()
    assert layer.qkv_bias is not None
    layer.qkv.copy_(_doubled(eagle, *sizes))
    here, empty = _own_place(head.inverse, shape.head_dim**-0.5).repeat(old.heads), torch.zeros(inner)
    layer.qkv_bias.copy_(torch.cat([empty, here, empty, here, empty, empty]))
    layer.out.copy_(torch.cat([eagle.out, token_size * torch.eye(size, inner)], dim=1))
    for name in ("norm_after", "gate_up", "down"):
        getattr(layer, name).copy_(getattr(eagle, name))
    head.norm.copy_(eagle.norm * carried)
    head.output.copy_(model.get_output_embeddings().weight[ids] / carried)
    hold_places(head)
    return head


def hold_places(head: Eagle3Head) -> None:
    """What does not learn: the rows that read tokens, and queries and keys that are a bias alone.

    A head of attention sees one place alone by a bias of size 26, by which a change of its queries would be multiplied.
    """
    head.output.requires_grad_(False)
    for layer in head.stack():
        if layer.qkv_bias is not None:
            learns = layer.qkv.detach().abs().sum(1) > 0
            layer.qkv.register_hook(lambda gradient, learns=learns: gradient * learns[:, None])
            layer.qkv_bias.register_hook(lambda gradient, learns=learns: gradient * learns)


def _doubled(eagle: EagleHead, token_size: float, state_size: float, mixed_size: float) -> Tensor:
    """Queries, keys and values of ``eagle``'s attention and of as many heads that carry its mixture less the state."""
    shape, size = eagle.shape, eagle.shape.hidden
    inner, each = shape.heads * shape.head_dim, shape.heads // shape.heads_kv
    enter = torch.cat([eagle.enter[:, :size] * token_size, eagle.enter[:, size:] * state_size], dim=1)
    read = (eagle.qkv * eagle.norm_before) @ enter / mixed_size
    query, *shared = read.split([inner, *[shape.heads_kv * shape.head_dim] * 2])
    key, value = (
        part.unflatten(0, (shape.heads_kv, -1)).repeat_interleave(each, dim=0).flatten(0, 1) for part in shared
    )
    beside = torch.zeros(inner, 2 * size)
    beside[:size] = enter
    beside[:size, size:] -= state_size * torch.eye(size)
    none = torch.zeros_like(query)
    return torch.cat([query, none, key, none, value, beside / token_size])


def _own_place(inverse: Tensor, scaling: float) -> Tensor:
    """A query [d] that is its own key: turned by any distance but 0, it scores lower by 10 and more.

    The fastest of the ``inverse`` frequencies [d / 2] tell near places apart, together with the next the far ones.
    """
    fast = max(4, len(inverse) // 4)
    distance = torch.arange(1, 4096)
    lost = fast - torch.cos(distance[:, None] * inverse[:fast]).sum(-1)
    vector = torch.zeros(2 * len(inverse))
    vector[:fast] = float((10.0 / (scaling * lost.min())).sqrt())
    return vector


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


def _unit(x: Tensor, eps: float) -> Tensor:
    return x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)


def _eagle3_shape(model: PreTrainedModel, states: int, ids: Tensor) -> Eagle3Shape:
    config, attention = model.config, _last_layer(model).self_attn
    return Eagle3Shape(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        heads_kv=config.num_key_value_heads,
        head_dim=attention.head_dim,
        eps=config.rms_norm_eps,
        states=states,
        state_size=config.hidden_size,
        vocabulary=len(ids),
    )


def _frequencies(model: PreTrainedModel) -> Tensor:
    size: int = _last_layer(model).self_attn.head_dim
    base: float = model.config.rope_parameters["rope_theta"]
    return 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)


@torch.no_grad()
def medusa(model: PreTrainedModel, tokens: Tensor, seed: int, count: int, wide: int) -> MedusaHeads:
    """Medusa heads that initially return their input hidden state."""
    config, gain = model.config, model.base_model.norm.weight
    torch.manual_seed(seed)
    heads = MedusaHeads(config.hidden_size, wide, count, config.rms_norm_eps)
    heads.norm.copy_(gain)
    heads.hidden_norm.copy_(_sizes(model, tokens)[1] / gain)
    return heads


@torch.no_grad()
def mtp_start(model: PreTrainedModel, tokens: Tensor, seed: int) -> MtpHead:
    """A module for multi-token prediction that begins as the target's last layer over its last state.

    See ``eagle_start``, which begins in the same way. Embeddings and head are the target's.
    """
    layer, size, gain = _last_layer(model), model.config.hidden_size, model.base_model.norm.weight
    before, after = _sizes(model, tokens)
    torch.manual_seed(seed)
    head = MtpHead(model.config, state_first=False, before=False)
    tensors = {f"layers.0.{name}": tensor.clone() for name, tensor in layer.state_dict().items()}
    tensors["entry.token_norm.weight"] = torch.full_like(gain, before)
    tensors["entry.hidden_norm.weight"] = before * after / gain  # undoes the target's final norm
    tensors["entry.project.weight"] = torch.cat([torch.randn(size, size) * 0.02, torch.eye(size)], dim=1).to(gain)
    tensors["last.weight"] = gain.clone()
    head.fill(tensors)
    return head.requires_grad_(True)


@torch.no_grad()
def dflash_start(model: PreTrainedModel, states: int, block: int, count: int, mask: int) -> DFlashHead:
    """A DFlash head of ``count`` layers that begins as the target's last ones, over the last of ``states`` outputs.

    Its blocks have ``block`` slots, the pending token's first, and ``mask`` is the token of the others. The norm
    of queries and keys, which a Llama has not, begins as 1. SpecdecError for a target whose layers are not Llama's.
    """
    last, config = _last_layer(model), model.config
    if not 0 < count <= config.num_hidden_layers or block < 2:
        raise SpecdecError(
            f"a DFlash head was to have {count} layers and blocks of {block} slots; expected 1 to "
            f"{config.num_hidden_layers} layers, as many as the target has, and 2 slots or more"
        )
    shape = BlockShape(
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        last.self_attn.head_dim,
        config.rms_norm_eps,
        states,
        block,
        (0,) * count,
        ahead=True,
    )
    head, size = DFlashHead(shape, mask, _frequencies(model)), shape.hidden
    head.enter.zero_()
    head.enter[:, -size:].copy_(torch.eye(size))
    head.norm_enter.copy_(last.input_layernorm.weight)
    head.norm.copy_(model.base_model.norm.weight)
    for mine, its in zip(head.block_layers(), model.base_model.layers[-count:], strict=True):
        attention, mlp = its.self_attn, its.mlp
        mine.qkv.copy_(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]))
        mine.out.copy_(attention.o_proj.weight)
        mine.gate_up.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        mine.down.copy_(mlp.down_proj.weight)
        mine.norm_before.copy_(its.input_layernorm.weight)
        mine.norm_after.copy_(its.post_attention_layernorm.weight)
        mine.norm_query.fill_(1)
        mine.norm_keys.fill_(1)
    head.masked = model.get_input_embeddings().weight[mask].clone()
    return head.requires_grad_(True)


def spread_layers(count: int) -> tuple[int, ...]:
    """The layers, of ``count``, whose outputs a DFlash head should read: three, from the second to the third last.

    Its authors' ``build_target_layer_ids`` takes them so.

    Example: ``spread_layers(30)`` is ``(1, 14, 27)``.
    """
    first, last = min(1, count - 1), max(1, count - 3)
    return tuple(sorted({first, round((first + last) / 2), min(last, count - 1)}))


def rarest(tokens: Tensor, vocabulary: int) -> int:
    """The token that a text has least, of several the last: one that can stand for what is not known yet."""
    counts = torch.bincount(tokens.flatten(), minlength=vocabulary)
    return int((counts == counts.min()).nonzero()[-1])


def _last_layer(model: PreTrainedModel) -> Any:
    layer = model.base_model.layers[-1] if hasattr(model.base_model, "layers") else None
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", "post_attention_layernorm")
    found = dict(layer.named_modules()) if layer is not None else {}
    if any(name not in found for name in names) or getattr(found[names[0]], "bias", None) is not None:
        raise SpecdecError(
            f"a {model.config.model_type} model's layers are not Llama's; heads can be trained for Llama, SmolLM2, "
            "Mistral and those built like them"
        )
    return layer


def _sizes(model: PreTrainedModel, tokens: Tensor) -> tuple[float, float]:
    """Median root mean square of the last hidden state, before and after the final norm."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        seen.extend((given[0], out))

    handle = model.base_model.norm.register_forward_hook(keep)
    try:
        model(tokens, use_cache=False)
    finally:
        handle.remove()
    before, after = (float(state.float().square().mean(-1).sqrt().median()) for state in seen)
    return before, after
