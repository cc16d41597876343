"""Rotary positions as a config states them, in the two ways of transformers: nested since version 5, flat before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specdec import SpecdecError
from specdec_plugins.published.checkpoint import Settings

KINDS = ("default", "linear", "llama3", "yarn")
"""The scalings whose frequencies do not depend on the length of a text."""

NUMBERS = (
    *("factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale"),
    *("mscale_all_dim", "partial_rotary_factor"),
)


def rotary_of(settings: Settings, path: str, head_dim: int, positions: int) -> tuple[Tensor, float]:
    """The frequencies float32 [d / 2] of a layer's rotary, and the factor of its cos and sin.

    ``positions`` is the model's ``max_position_embeddings``. SpecdecError for a scaling that depends on a text's
    length, or that turns a part of a head only.

    Example: ``rotary_of(settings.inside("transformer_layer_config"), checkpoint.path, 64, 4096)``
    """
    nested = settings.inside("rope_parameters" if "rope_parameters" in settings else "rope_scaling")
    theta = nested.take("rope_theta", float, None)
    theta = settings.take("rope_theta", float) if theta is None else theta
    kind = nested.take("rope_type", str, None) or nested.take("type", str, None) or "default"
    if kind not in KINDS:
        raise SpecdecError(f"the rotary of {path} is {kind!r}; expected {' or '.join(KINDS)}")
    numbers: dict[str, Any] = {name: nested.take(name, float) for name in NUMBERS if name in nested}
    for name, type_ in (("original_max_position_embeddings", int), ("truncate", bool)):
        if name in nested:
            numbers[name] = nested.take(name, type_)
    if numbers.pop("partial_rotary_factor", 1.0) != 1 or settings.take("partial_rotary_factor", float, 1.0) != 1:
        raise SpecdecError(f"the rotary of {path} turns a part of each head; expected one that turns all of it")
    if kind == "default":
        half = torch.arange(0, head_dim, 2, dtype=torch.float32)
        return 1.0 / theta ** (half / head_dim), 1.0
    config = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **numbers},
    )
    inverse, magnitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return inverse, float(magnitude)
