"""A module for multi-token prediction: one decoder layer, of a kind that transformers has, over the target's states."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from specdec.devices import is_half


class MtpEntry(nn.Module):
    """Joins the embedding of a token and the state before it, each normed, to the input of a layer.

    ``state_first``: in the joined vector the state lies before the embedding.
    """

    def __init__(self, norm: type[nn.Module], size: int, eps: float, state_first: bool) -> None:
        super().__init__()
        self.token_norm, self.hidden_norm = norm(size, eps=eps), norm(size, eps=eps)
        self.project = nn.Linear(2 * size, size, bias=False)
        self.state_first = state_first

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The layer's input [B, W, H] of embeddings and states [B, W, H]."""
        pair = [self.token_norm(embedded), self.hidden_norm(hidden)]
        joined: Tensor = self.project(torch.cat(pair[::-1] if self.state_first else pair, dim=-1))
        return joined


class MtpHead(nn.Module):
    """Predicts the token after next from the embedding of a token and the target's state of the token before it.

    (DeepSeek-V3, 2412.19437, section 2.2; the same module for every further token, FastMTP, 2509.18362.) ``model`` is a
    causal model of transformers' own with one layer, which may be a mixture of experts or attend over latents. Its base
    has an ``entry`` beside; its own norm is ``last``, and it has neither embeddings nor a head: its logits are the
    layer's output. ``before``: the states from which it goes on are those before the last norm, not after it.
    ``embedding`` and ``output`` [V, H] are its own, or None where they are the target's.

    Built without weights, on torch's device meta: ``fill`` gives it the tensors of ``shapes``.

    Example: ``MtpHead(config, state_first=False, before=False)``
    """

    def __init__(self, config: PretrainedConfig, state_first: bool, before: bool) -> None:
        super().__init__()
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(one_layer(config), dtype=torch.float32)
            base = model.base_model
            base.entry = MtpEntry(type(base.norm), config.hidden_size, config.rms_norm_eps, state_first)
            base.last, base.norm = base.norm, nn.Identity()
        base.rotary_emb = type(base.rotary_emb)(model.config)  # its frequencies are in no checkpoint
        model.set_input_embeddings(nn.Identity())
        model.set_output_embeddings(nn.Identity())
        self.model: PreTrainedModel = model
        self.before = before
        self.embedding: nn.Parameter | None = None
        self.output: nn.Parameter | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors that it needs, by their names in ``model``'s base; those of the layer are ``layers.0.…``."""
        return {name: tuple(tensor.shape) for name, tensor in self.model.base_model.state_dict().items()}

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of ``shapes``, all of them, without a copy."""
        self.model.base_model.load_state_dict(tensors, assign=True)

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move it to a device and a dtype; as in transformers, what chooses experts stays in float32."""
        wide = tuple(getattr(self.model, "_keep_in_fp32_modules_strict", None) or ()) if is_half(dtype) else ()
        for path, module in self.named_modules():
            for name, weight in [*module.named_parameters(recurse=False)]:
                kept = torch.float32 if any(part in f"{path}.{name}" for part in wide) else dtype
                setattr(module, name, nn.Parameter(weight.detach().to(device, kept), requires_grad=False))
            for name, held in [*module.named_buffers(recurse=False)]:
                setattr(module, name, held.to(device))


def one_layer(config: PretrainedConfig) -> PretrainedConfig:
    """The config of a model whose one layer is that which multi-token prediction adds to a model of ``config``.

    It attends to all tokens unless ``mtp_layer_types`` says otherwise, and is a mixture of experts if any layer is.
    """
    single = copy.deepcopy(config)
    single.num_hidden_layers, single.tie_word_embeddings = 1, False
    for name, own in (("layer_types", "mtp_layer_types"), ("mlp_layer_types", "mtp_mlp_layer_types")):
        if kinds := getattr(single, name, None):
            usual = "full_attention" if name == "layer_types" else "sparse" if "sparse" in kinds else kinds[-1]
            setattr(single, name, [(getattr(single, own, None) or [usual])[0]])
    if hasattr(single, "first_k_dense_replace"):
        single.first_k_dense_replace = 0
    return single
