"""The trial of a wrapped model refuses what it must, and says why; what it cannot see is planted too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BltConfig,
    DogeConfig,
    LlamaConfig,
    MistralConfig,
    MoshiConfig,
    RobertaConfig,
)

from benchsuite.conformance.models.tiny import registry
from specdec import SpecdecError, Window
from specdec.layers import position_limit
from specdec.model import ArenaModel
from specdec.trial import LENGTH, WIDTH

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48}
MOSHI = {**SMALL, "num_key_value_heads": 4, "ffn_dim": 48, "audio_vocab_size": 64}


def _model(config: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
            "2 of its 2 attention layers attend in code of their own, not through transformers' AttentionInterface",
        ),
        (
            RobertaConfig(**SMALL, intermediate_size=48, is_decoder=True),
            "its forward counts positions from 2, and with position_ids, which generate gives it, from 0",
        ),
        (
            MoshiConfig(**MOSHI, sliding_window=4096),
            "a token of layer 0 sees the last 4096 tokens, and by its mask token 4096 sees token 0",
        ),
        (DogeConfig(**LLAMA, keep_window_size=8), "its attention takes masks that its layers make"),
        (BltConfig(), "its configuration says no layers that it could hold .AttributeError"),
    ],
    ids=lambda given: getattr(given, "model_type", ""),
)
def test_a_refused_model_has_its_reason(config: Any, reason: str) -> None:
    model = _model(config) if config.model_type != "blt" else _Bare(config)
    with pytest.raises(SpecdecError, match=rf"a {config.model_type} model cannot run over the arena.*{reason}"):
        ArenaModel(model, registry().backend())


class _Bare:
    """A model without modules, of which nothing but the configuration is read."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def modules(self) -> list[Any]:
        return []

    def forward(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("window", [7, 40, 4096, 1 << 16])
def test_a_window_that_the_configuration_hides_is_found_however_long_it_is(window: int) -> None:
    """The model's masks have a window; the kinds of its layers, which the arena reads, have none."""
    config = MistralConfig(**LLAMA, sliding_window=window)
    config.layer_types = ["full_attention"] * 2
    with pytest.raises(SpecdecError, match=r"sees every earlier token, and by its mask token [0-9]+ does not see"):
        ArenaModel(_model(config), registry().backend())


@pytest.mark.parametrize(("after", "refused"), [(6, True), (20, True), (LENGTH - 1, True), (LENGTH, False)])
def test_a_rule_of_the_model_s_own_is_found_up_to_the_length_of_the_trial(after: int, refused: bool) -> None:
    """The planted layer doubles its output from a token of each forward on. Past its length the trial sees nothing."""
    model = _model(LlamaConfig(**LLAMA))

    def double(module: Any, given: Any, output: Any) -> Any:
        return torch.cat([output[:, :after], 2 * output[:, after:]], dim=1)

    model.model.layers[0].register_forward_hook(double)
    if refused:
        with pytest.raises(SpecdecError, match="its logits over the arena are not its own"):
            ArenaModel(model, registry().backend())
    else:
        ArenaModel(model, registry().backend())


@pytest.mark.parametrize("shape", [(2, LENGTH), (2, WIDTH)])
def test_whatever_a_model_raises_is_a_refusal_with_its_first_line(shape: tuple[int, int]) -> None:
    """In its own forward of the texts, or only in the window over the arena."""
    model = _model(LlamaConfig(**LLAMA))

    def fail(module: Any, given: Any, named: Any) -> None:
        if (given[0] if given else named["input_ids"]).shape == shape:
            raise LookupError("no such thing\nmore of it")

    model.register_forward_pre_hook(fail, with_kwargs=True)
    with pytest.raises(SpecdecError, match=r"cannot run over the arena \(LookupError: no such thing\);"):
        ArenaModel(model, registry().backend())


@pytest.mark.parametrize("spared", [0, 40])
def test_tokens_whose_embedding_is_not_finite_are_no_part_of_the_trial(spared: int) -> None:
    """Rows that no text should read may hold anything; a model without a finite row has that as its reason."""
    model = _model(LlamaConfig(**LLAMA))
    model.model.embed_tokens.weight.data[spared:] = float("inf")
    if spared:
        ArenaModel(model, registry().backend())
    else:
        with pytest.raises(SpecdecError, match="the unmodified model's logits are NaN or infinite"):
            ArenaModel(model, registry().backend())


def test_rotary_frequencies_that_grow_with_the_text_end_a_row_where_they_change() -> None:
    """A row that is as long as the model allows changes nothing for the shorter one beside it."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    assert position_limit(MistralConfig(**LLAMA, sliding_window=7, rope_parameters=rope)) == 4096 * 32
    config = LlamaConfig(**LLAMA, max_position_embeddings=64, rope_parameters=rope)
    assert position_limit(config) == 64
    model = _model(config)
    texts = torch.arange(2 * 64).view(2, 64) * 11 % 64
    with torch.inference_mode():
        expected = [model(text[None], use_cache=False).logits[0] for text in (texts[0], texts[1, :12])]
        longer = model(torch.cat([texts[0], texts[1, :8]])[None], use_cache=False).logits[0]
    assert not torch.allclose(longer[:64], expected[0], atol=0.1)
    target = ArenaModel(model, registry().backend())
    arena = target.arena(2, 64, 8)
    window = torch.stack([texts[0, 60:64], texts[1, 8:12]])
    with torch.inference_mode():
        target.extend(arena, texts[:1, :60], 0, 0)
        target.extend(arena, texts[1:, :8], 1, 0)
        padded = Window.chain(window[:, 0], torch.cat([window[:, 1:], window], dim=1), torch.tensor([3, 3]))
        logits, _ = target.forward(arena, padded, slice(0, 2), 60)
    for row, own in enumerate(expected):
        assert torch.allclose(logits[row, :4], own[-4:], atol=1e-3)
