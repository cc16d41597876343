"""What a config says of a model's layers and positions, and how a model is called over its arena."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma4TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    RwkvConfig,
)

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from benchsuite.workshop.sweep.battery import spread_model
from specdec import SpecdecError, Window
from specdec.arena import Arena, LayerShape
from specdec.layers import layer_shapes, layers_of, position_limit
from specdec.model import PREFILL_CHUNK, ArenaModel

NOTHING = LayerShape(0, 0, None)
CPU = torch.device("cpu")

SIZES: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3}


def _target(family: str = "llama") -> ArenaModel:
    return ArenaModel(families.build_model(family), registry().backend())


def _bare(**given: Any) -> Any:
    """A config of these values alone, with a limit of 50 positions."""
    values = {"is_encoder_decoder": False, "model_type": "bare", "max_position_embeddings": 50}
    config = SimpleNamespace(**{**SIZES, **values, **given})
    config.get_text_config = lambda decoder: config
    return config


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (LlamaConfig(**SIZES, num_key_value_heads=2), [LayerShape(2, 8, None)] * 3),
        (LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=12), [LayerShape(2, 12, None)] * 3),
        (GPT2Config(n_embd=32, n_head=4, n_layer=2), [LayerShape(4, 8, None)] * 2),
        (_bare(), [LayerShape(4, 8, None)] * 3),
        (_bare(num_attention_heads=5, hidden_size=34), [LayerShape(5, 6, None)] * 3),
        (_bare(num_key_value_heads=1, sliding_window=7), [LayerShape(1, 8, 7)] * 3),
        (_bare(sliding_window=None, num_key_value_heads=None), [LayerShape(4, 8, None)] * 3),
        (
            _bare(sliding_window=7, layer_types=["full_attention", "sliding_attention", "full_attention"]),
            [LayerShape(4, 8, None), LayerShape(4, 8, 7), LayerShape(4, 8, None)],
        ),
        (_bare(num_hidden_layers=0), []),
        (
            Gemma4TextConfig(**SIZES, num_key_value_heads=2, head_dim=8, global_head_dim=12, sliding_window=7),
            [LayerShape(2, 8, 7), LayerShape(2, 8, 7), LayerShape(2, 12, None)],
        ),
        (
            _bare(attention_chunk_size=6, layer_types=["chunked_attention", "full_attention"]),
            [LayerShape(4, 8, 6, chunked=True), LayerShape(4, 8, None)],
        ),
        (
            _bare(sliding_window=7, layer_types=["linear_attention", "hybrid", "hybrid_sliding", "conv", "mlp", "moe"]),
            [NOTHING, LayerShape(4, 8, None), LayerShape(4, 8, 7), NOTHING, NOTHING, NOTHING],
        ),
        (MambaConfig(num_hidden_layers=2), [NOTHING] * 2),
    ],
)
def test_the_layers_of_a_config_have_its_heads_their_size_and_their_spans(
    config: Any, layers: list[LayerShape]
) -> None:
    assert layer_shapes(config) == layers


def test_a_config_that_the_arena_cannot_hold_is_refused_in_these_words() -> None:
    with pytest.raises(SpecdecError) as refused:
        layer_shapes(_bare(layer_types=["odd", "full_attention", "linear", "odd"]))
    assert str(refused.value) == (
        "a bare model has layers of kind linear, odd; the arena holds full_attention, hybrid, sliding_attention, "
        "hybrid_sliding, chunked_attention, linear_attention, conv, mlp, moe: choose another model"
    )
    with pytest.raises(
        SpecdecError, match=r"kind indexed_attention \(its indexer chooses tokens by keys of its own, .*\);"
    ):
        layer_shapes(_bare(layer_types=["indexed_attention", "full_attention"]))
    for config, name in ((_bare(is_encoder_decoder=True), "bare"), (RwkvConfig(), "rwkv")):
        with pytest.raises(SpecdecError) as refused:
            layer_shapes(config)
        assert str(refused.value) == (
            f"a {name} model is not a decoder made of attention or recurrent layers; choose another model"
        )


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        # Twice the heads in windows; keys repeated for each query; two attentions a layer; what latents expand to.
        ("mimo_v2_flash", [LayerShape(2, 8, None), *[LayerShape(4, 8, 12)] * 3]),
        ("jetmoe", [LayerShape(4, 128, None)] * 4),
        ("diffllama", [LayerShape(4, 8, None)] * 8),
        ("longcat_flash", [LayerShape(4, 12, None)] * 8),
        ("deepseek_v3", [LayerShape(4, 12, None)] * 4),
    ],
)
def test_the_arena_holds_what_a_model_attends_with(kind: str, layers: list[LayerShape]) -> None:
    assert ArenaModel(spread_model(kind), registry().backend()).layers == layers


def test_a_configuration_that_says_fewer_heads_than_a_model_has_changes_nothing() -> None:
    model = families.build_model("llama")
    model.config.num_key_value_heads = 1
    target = ArenaModel(model, registry().backend())
    assert target.layers == [LayerShape(2, 8, None)] * 2


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_keys_that_the_cells_have_no_room_for_are_refused_before_they_are_written(backend: str) -> None:
    arena = Arena([LayerShape(1, 4, None)], rows=1, max_length=8, max_window=2, dtype=torch.float32, device=CPU)
    window = Window.chain(torch.tensor([1]), torch.tensor([[2]]), torch.tensor([1]))
    plan = arena.plan(window, registry().backend(backend), slice(0, 1), 0)
    fits, wide = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 5)
    for keys, values in ((wide, wide), (fits, wide), (wide, fits)):
        with pytest.raises(SpecdecError, match="1 heads of 5 numbers.*its cells have 1 heads of 4 numbers"):
            plan.attend(0, fits, keys, values, 1.0, None)
    assert not any(cells.any() for cells in (*arena.keys, *arena.values))


def test_a_model_that_embeds_tokens_for_all_of_its_layers_is_no_draft_of_its_first_ones() -> None:
    config = families.config_of("gemma4")
    config.hidden_size_per_layer_input, config.vocab_size_per_layer_input = 8, 258
    target = ArenaModel(AutoModelForCausalLM.from_config(config), registry().backend())
    with pytest.raises(SpecdecError, match="a gemma4_text model embeds each token once .* first 1 are no model"):
        target.twin(layers=1)


def test_a_model_that_was_cut_has_its_part_of_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = SimpleNamespace(config=_bare())
    for cut, heads in ((None, 4), (SimpleNamespace(heads=1), 4), (SimpleNamespace(heads=2), 2)):
        monkeypatch.setattr("specdec.layers.sharding_of", lambda model, cut=cut: cut)
        assert layers_of(model) == [LayerShape(heads, 8, None)] * 3


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, 50),
        ({"rope_parameters": {}}, 50),
        ({"sliding_window": 7}, 50),
        ({"sliding_window": 7, "rope_parameters": None}, 50),
        ({"sliding_window": 7, "rope_parameters": {}}, None),
        (
            {
                "sliding_window": 7,
                "rope_parameters": {},
                "layer_types": ["full_attention", "sliding_attention"],
            },
            50,
        ),
        ({"max_position_embeddings": None}, None),
        # Frequencies of a forward that reaches beyond position 20 are others: for each kind of layer, or for all.
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 20}}, 20),
        ({"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 20}, 20),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 99}}, 50),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 20}}, 50),
        (
            {
                "sliding_window": 7,
                "rope_parameters": {
                    "full_attention": {"rope_type": "longrope", "original_max_position_embeddings": 20},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            20,
        ),
    ],
)
def test_only_rotary_positions_in_windows_alone_have_no_limit(given: dict[str, Any], limit: int | None) -> None:
    assert position_limit(_bare(**given)) == limit
    assert position_limit(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=7)) is None


def test_a_model_over_its_arena_is_frozen_and_has_run_no_forward_yet() -> None:
    target = _target()
    assert not target.model.training
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    assert (target.forwards, target.limit, target.vocabulary, target.bits) == (0, 512, 258, None)
    assert (target.layers, target.sharding) == (layer_shapes(target.model.config), None)
    assert ArenaModel.own_threads is False
    assert target.model.config._attn_implementation == "specdec"
    assert PREFILL_CHUNK == 256


@pytest.mark.parametrize(
    ("longest", "window", "widest"), [(100, 3, 100), (100, 120, 120), (256, 1, 256), (400, 1, 256)]
)
def test_an_arena_has_room_for_the_widest_window_and_for_a_chunk_of_a_prompt(
    longest: int, window: int, widest: int
) -> None:
    target = _target()
    arena = target.arena(2, longest, window)
    assert (arena.max_window, len(arena.committed), arena.layers) == (widest, 2, tuple(target.layers))
    assert arena.keys[0].dtype == target.dtype
    assert arena.capacity == {None: -(-(longest + widest - 1) // 64) * 64}


@torch.inference_mode()
def test_a_forward_and_a_prefill_give_the_model_these_tokens_and_no_cache() -> None:
    target, told = _target(), []
    arena = target.arena(3, 300, 4)

    def watch(name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            told.append((name, kwargs["input_ids"].tolist(), kwargs["position_ids"].tolist(), kwargs["use_cache"]))

        return hook

    target.model.register_forward_pre_hook(watch("whole"), with_kwargs=True)
    target.model.base_model.register_forward_pre_hook(watch("base"), with_kwargs=True)
    prompt = tuple(number * 7 % 258 for number in range(260))
    arena.committed.fill_(9)
    chunks = [
        (start, tokens.tolist(), tuple(hidden.shape)) for start, tokens, hidden in target.prefill(arena, 1, prompt)
    ]
    assert chunks == [
        (0, [list(prompt[:256])], (1, 256, 32)),
        (256, [list(prompt[256:259])], (1, 3, 32)),
    ]
    assert arena.committed.tolist() == [9, 259, 9]
    assert told == [
        ("base", [list(prompt[:256])], [list(range(256))], False),
        ("base", [list(prompt[256:259])], [[256, 257, 258]], False),
    ]
    assert [start for start, *_ in target.prefill(arena, 0, prompt[:9], 3)] == [3]
    assert arena.committed.tolist() == [8, 259, 9]
    assert told[-1] == ("base", [list(prompt[3:8])], [[3, 4, 5, 6, 7]], False)
    assert list(target.prefill(arena, 2, (5,))) == []
    assert arena.committed.tolist() == [8, 259, 0]
    told.clear()
    assert target.forwards == 0
    for count in (1, 2, 3):
        window = Window.chain(torch.tensor([5, 6]), torch.tensor([[7], [8]]), torch.tensor([1, 1]))
        logits, hidden = target.forward(arena, window, slice(1, 3), 259)
        assert (logits.shape, hidden.shape) == ((2, 2, 258), (2, 2, 32))
        torch.testing.assert_close(target.model.get_output_embeddings()(hidden).float(), logits.float())
        assert target.forwards == count
    whole = [one for one in told if one[0] == "whole"]
    assert whole == [("whole", [[5, 7], [6, 8]], [[259, 260], [0, 1]], False)] * 3
    assert arena.committed.tolist() == [8, 259, 0], "a forward commits nothing"
    assert not target.model.get_output_embeddings()._forward_pre_hooks


@torch.inference_mode()
def test_a_prompt_in_chunks_is_committed_in_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.model.PREFILL_CHUNK", 4)
    target = _target()
    arena = target.arena(3, 30, 4)
    prompt = tuple(range(40, 52))
    assert [(start, tokens.tolist()) for start, tokens, _ in target.prefill(arena, 1, prompt, 2)] == [
        (2, [[42, 43, 44, 45]]),
        (6, [[46, 47, 48, 49]]),
        (10, [[50]]),
    ]
    assert arena.committed.tolist() == [0, 11, 0]
    for tensor in (*arena.keys, *arena.values):
        assert not tensor[0].any()
        assert not tensor[2].any()
        assert tensor[1, :, 2:11].any(dim=2).all()
        assert not tensor[1, :, 11:].any()


@pytest.mark.parametrize("layers", [0, 3, 4, -1])
def test_a_part_of_a_model_has_fewer_layers_and_at_least_one(layers: int) -> None:
    target = _target("gemma2")
    with pytest.raises(SpecdecError) as refused:
        target.twin(layers)
    assert str(refused.value) == f"layers is {layers}; the target has 3, expected 1 to 2"
    for few in (1, 2):
        part = target.twin(few)
        assert part.config.num_hidden_layers == len(part.config.layer_types) == len(part.base_model.layers) == few
        assert part.config.layer_types == target.model.config.layer_types[:few]
        assert part.config._attn_implementation == target.native_attention
    assert target.model.config.num_hidden_layers == len(target.model.base_model.layers) == 3
