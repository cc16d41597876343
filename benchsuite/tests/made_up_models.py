"""What targets have in common whose weights are written by hand, and heads of them that nobody had to train."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

VOCABULARY, LAYERS = 258, 5

TAPPED = (1, 2, 3)
"""The layers whose outputs a head reads."""

LAYER = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
}
"""The settings of a head's layer, but for its sizes."""


class MadeUp(Protocol):
    """A head by hand: the draft that runs it, its target, and its files."""

    @property
    def form(self) -> str:
        """The name of the draft."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings of its config.json."""

    def target(self, seed: int) -> PreTrainedModel:
        """The model that it drafts for."""

    def tensors(self, seed: int) -> dict[str, Tensor]:
        """The tensors of the head of ``target(seed)``, by their names."""


@torch.no_grad()
def blank_llama(hidden: int, wide: int, heads: int) -> PreTrainedModel:
    """A Llama of five layers whose matrices are 0 and whose norms are 1."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=256,
        tie_word_embeddings=False,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.fill_(1) if parameter.dim() == 1 else parameter.zero_()
    return model


def made_up_rotation(dice: torch.Generator, size: int) -> Tensor:
    """A random orthogonal matrix [size, size]."""
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=dice))
    turned: Tensor = q
    return turned


def made_up_prompts(seed: int, count: int, length: int = 40) -> list[tuple[int, ...]]:
    """Random texts, no two of which lead to the same answer."""
    dice = torch.Generator().manual_seed(seed)
    return [tuple(row) for row in torch.randint(0, 256, (count, length), generator=dice).tolist()]


def layer_states(model: PreTrainedModel) -> Tensor:
    """Outputs of all layers [L, N, H] at places of random texts."""
    texts = torch.tensor(made_up_prompts(7, 24, 72))
    seen: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda part, given, out: seen.append(out[0] if isinstance(out, tuple) else out))
        for layer in model.base_model.layers
    ]
    model(texts, use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(seen)[:, :, 36:].flatten(1, 2)


def fitted_matrix(read: Tensor, wanted: Tensor) -> Tensor:
    """The matrix [W, F] that makes ``wanted`` [N, W] of ``read`` [N, F] with the least squares."""
    normal = read.T @ read + 1e-2 * len(read) * torch.eye(read.shape[1])
    solved: Tensor = torch.linalg.solve(normal, read.T @ wanted).T
    return solved


def write_head(head: MadeUp, seed: int, folder: Path, changed: Mapping[str, Any]) -> str:
    """Write the files of a head of ``head.target(seed)``; ``changed`` settings and tensors take the place of the right
    ones. Returns the folder's path."""
    folder.mkdir(parents=True)
    tensors, config = head.tensors(seed), head.config
    for name, value in changed.items():
        (tensors if isinstance(value, Tensor) else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors")
    return str(folder)
