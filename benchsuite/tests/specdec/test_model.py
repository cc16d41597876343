"""Which models run over the arena, and which are refused because their output would be wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    RwkvConfig,
    StableLmConfig,
    T5Config,
)

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec import SpecdecError, Window
from specdec.layers import layer_shapes, position_limit
from specdec.model import ArenaModel

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("config", [RwkvConfig(), T5Config()], ids=["rwkv", "t5"])
def test_a_config_without_attention_layers_is_refused(config: Any) -> None:
    with pytest.raises(SpecdecError, match="choose another model"):
        layer_shapes(config)


def test_a_layer_that_only_looks_like_llamas_keeps_its_own_forward() -> None:
    """Granite has the same modules, and adds half of what they give: its projections and norms are ours, its layer is
    not."""
    scales = {"residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0}
    config = GraniteConfig(**SMALL, num_key_value_heads=2, intermediate_size=48, **scales)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(9)[None] * 7 % 64
    with torch.inference_mode():
        expected = model(tokens, use_cache=False).logits
    target = ArenaModel(model, registry().backend())
    arena = target.arena(1, 16, 9)
    window = Window.chain(tokens[:, 0], tokens[:, 1:], torch.tensor([8]))
    with torch.inference_mode():
        logits, _ = target.forward(arena, window, slice(0, 1), 0)
    assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("value", [8, 20])
def test_latents_are_attended_as_transformers_does_whichever_of_key_and_value_is_wider(value: int) -> None:
    """DeepSeek's keys have 12 numbers here. A rejected window lies behind the committed tokens."""
    config = families.config_of("deepseek")
    config.v_head_dim = value
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    tokens = torch.arange(12)[None] * 31 % 258
    with torch.inference_mode():
        expected = model(tokens, use_cache=False).logits
    target = ArenaModel(model, registry().backend())
    arena, rows, six = target.arena(1, 16, 9), slice(0, 1), torch.tensor([5])
    with torch.inference_mode():
        target.extend(arena, tokens[:, :6], 0, 0)
        target.forward(arena, Window.chain(tokens[:, 0], tokens[:, 1:6], six), rows, 6)
        logits, _ = target.forward(arena, Window.chain(tokens[:, 6], tokens[:, 7:], six), rows, 6)
    assert torch.allclose(logits, expected[:, 6:], atol=1e-4)


def test_a_model_whose_layers_are_handed_no_keywords_runs_over_two_arenas_in_turn() -> None:
    """StableLM's layers hand none to their attention."""
    torch.manual_seed(0)
    config = StableLmConfig(**SMALL, num_key_value_heads=2, intermediate_size=48)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(2 * 9).view(2, 9) * 11 % 64
    with torch.inference_mode():
        expected = model(tokens, use_cache=False).logits
    target = ArenaModel(model, registry().backend())
    arenas = [target.arena(1, 16, 9) for _ in range(2)]
    six = torch.tensor([5])
    with torch.inference_mode():
        for arena, text in zip(arenas, tokens, strict=True):
            target.extend(arena, text[None, :3], 0, 0)
        for arena, text, own in zip(arenas, tokens, expected, strict=True):
            logits, _ = target.forward(arena, Window.chain(text[3:4], text[None, 4:], six), slice(0, 1), 3)
            assert torch.allclose(logits[0], own[3:], atol=1e-4)


def test_a_model_over_the_arena_is_not_called_by_itself() -> None:
    target = ArenaModel(families.build_model("gpt2"), registry().backend())
    with pytest.raises(SpecdecError, match="was called by itself; call ArenaModel.forward"):
        target.model(torch.tensor([[1, 2]]), use_cache=False)


def test_spans_and_limits_are_the_configs() -> None:
    spans = {family: [shape.span for shape in layer_shapes(config())] for family, config in families.CONFIGS.items()}
    assert spans["llama"] == spans["gpt2"][:2] == [None, None]
    assert spans["mistral"] == [families.SPAN] * 2
    assert spans["gemma2"] == spans["qwen2-hybrid"] == [families.SPAN, None, families.SPAN]
    limits = {family: position_limit(config()) for family, config in families.CONFIGS.items()}
    assert {family for family, limit in limits.items() if limit is None} == {"mistral"}


def test_twins_share_weights_and_leave_the_target_alone() -> None:
    target = ArenaModel(families.build_model("gemma2"), registry().backend())
    whole, part = target.twin(), target.twin(layers=1)
    pointers = {p.data_ptr() for p in target.model.parameters()}
    assert {p.data_ptr() for p in whole.parameters()} == pointers
    assert {p.data_ptr() for p in part.parameters()} < pointers
    assert (whole.config.num_hidden_layers, part.config.num_hidden_layers) == (3, 1)
    assert target.model.config._attn_implementation == "specdec"
    assert whole.config._attn_implementation != "specdec"
