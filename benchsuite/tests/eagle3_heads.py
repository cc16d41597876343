"""EAGLE-3 heads that the package speculators wrote, with its logits, and random ones of ours in their form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec import Window
from specdec.arena import Arena, LayerShape
from specdec.interfaces import Backend
from specdec_plugins.heads.placed import placed
from specdec_plugins.published.eagle3 import Eagle3Parts
from specdec_plugins.published.reading import TargetSizes
from specdec_plugins.reading import known_text

_HELD = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "embed_tokens"), (0,)),
    **dict.fromkeys(("o_proj", "down_proj"), (1,)),
    **dict.fromkeys(("q_norm", "k_norm"), (0, 1)),
}
"""Axes of tensors whose size has nothing to do with the target's."""

EAGLE3_HEADS = Path(__file__).parent / "recorded/heads/eagle3"
EAGLE3_SIZES = TargetSizes(hidden=16, vocabulary=64, layers=8)

EAGLE3_HEAD = str(EAGLE3_HEADS / "tiny_llama")
"""The folder of the head for tiny Llama."""


def eagle3_recorded(case: str) -> dict[str, Tensor]:
    """What a recorded head was given, and what it gave."""
    return load_file(EAGLE3_HEADS / f"{case}.safetensors")


def eagle3_config(case: str) -> dict[str, Any]:
    """The config.json of a recorded head."""
    config: dict[str, Any] = json.loads((EAGLE3_HEADS / case / "config.json").read_text())
    return config


def eagle3_tensors(case: str) -> dict[str, Tensor]:
    """The tensors of a recorded head."""
    return load_file(EAGLE3_HEADS / case / "model.safetensors")


def head_written(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a checkpoint."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def eagle3_written(folder: Path, sizes: TargetSizes, layers: tuple[int, ...], case: str = "eagle3") -> Path:
    """Write a random head for a target of these sizes, in the form of a recorded one; it knows every third token.

    ``layers`` are outputs of the target's.
    """
    config, tensors = eagle3_config(case), eagle3_tensors(case)
    known = torch.arange(0, sizes.vocabulary, 3)
    old, count = config["transformer_layer_config"]["hidden_size"], len(config["eagle_aux_hidden_state_layer_ids"])
    config["transformer_layer_config"] |= {"hidden_size": sizes.hidden, "vocab_size": sizes.vocabulary}
    config |= {"draft_vocab_size": len(known), "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers]}
    generator = torch.Generator().manual_seed(7)
    for name, tensor in tensors.items():
        part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        size = [
            one if axis in _HELD.get(part, ()) else one * sizes.hidden // old for axis, one in enumerate(tensor.shape)
        ]
        if part in ("fc", "input_norm"):
            size[-1] = len(layers) * sizes.hidden
        size[0] = {"lm_head.weight": len(known), "embed_tokens.weight": sizes.vocabulary}.get(name, size[0])
        if tensor.is_floating_point():
            noise = torch.randn(size, generator=generator) * (1 if "embed" in name else 0.2)
            tensors[name] = (noise + (len(size) == 1)).to(torch.bfloat16)
    tensors["d2t"] = known - torch.arange(len(known))
    tensors["t2d"] = torch.zeros(sizes.vocabulary, dtype=torch.bool).index_fill(0, known, True)
    assert count == len(layers) or case != "eagle31", "there is a norm for each state"
    return head_written(folder, config, tensors)


@torch.no_grad()
def eagle3_chain(parts: Eagle3Parts, ops: Backend, states: Tensor, tokens: Tensor, embedding: Tensor) -> Tensor:
    """Logits [S, D] of a chain: the first follow the target's true ``states`` [T, n H] and as many tokens, and each
    further one an own state and one more of ``tokens`` int64 [T + S - 1]. ``embedding`` is [V, H]."""
    dtype = states.dtype
    network = placed(parts.network, states.device, dtype)
    shape, weights = network.shape, network.weights(ops)
    layers = [LayerShape(shape.heads_kv, shape.head_dim, span) for span in parts.spans]
    longest = len(tokens) + 1
    arena = Arena(layers, rows=1, max_length=longest, max_window=longest, dtype=dtype, device=states.device)
    found = list[Tensor]()

    def entered(window: Window, feature: Tensor, length: int) -> Tensor:
        plan = arena.plan(window, ops, slice(0, 1), length)
        turn, cells = network.turn(plan.position, dtype), [plan.at(layer) for layer in range(shape.layers)]
        after: Tensor = network(ops, embedding.to(dtype)[window.tokens], feature, turn, cells, weights)
        arena.committed += window.tokens.shape[1]
        found.append(network.logits(ops, after[:, -1:], weights)[0, 0])
        return after[:, -1:]

    true = states[None].unflatten(-1, (shape.states, shape.state_size))
    feature = entered(known_text(tokens[None, : len(states)]), network.fused(ops, true, weights), 0)
    for place in range(len(states), len(tokens)):
        feature = entered(known_text(tokens[None, place : place + 1]), feature, place)
    return torch.stack(found)
