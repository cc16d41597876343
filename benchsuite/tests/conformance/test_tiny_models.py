"""The kit's tiny models, what is asked of them, and a model as a GGUF file."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from benchsuite.conformance.models import families, tiny
from benchsuite.conformance.models.gguf_file import save_gguf
from specdec import SamplingParams, SpecdecError, catalog

OTHERS = [name for name in families.CONFIGS if name != "gpt2"]


def common_sizes(family: str) -> dict[str, Any]:
    """The sizes of a family's model under the names that most configs have."""
    config = families.CONFIGS[family]()
    named = ("vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings", "initializer_range")
    return {name: getattr(config, name) for name in named}


def test_all_families_have_the_same_sizes_which_fit_the_byte_tokenizer() -> None:
    tokenizer = catalog.byte_tokenizer()
    for family in families.CONFIGS:
        config = families.CONFIGS[family]()
        assert common_sizes(family) == common_sizes("llama"), family
        assert config.vocab_size == len(tokenizer)
        assert (config.bos_token_id, config.eos_token_id) == (None, tokenizer.eos_token_id)
        assert config.pad_token_id == config.eos_token_id
        assert config.max_position_embeddings & (config.max_position_embeddings - 1) == 0
    for family in OTHERS:
        config = families.CONFIGS[family]()
        heads = config.num_attention_heads, config.num_key_value_heads
        assert heads[0] == 2 * heads[1], "two queries of a head of keys"
        assert heads[0] * config.head_dim == config.hidden_size
        assert config.intermediate_size == 2 * config.hidden_size


def test_the_families_differ_in_their_kinds_of_layers_and_in_what_is_done_to_logits() -> None:
    configs = {family: families.CONFIGS[family]() for family in families.CONFIGS}
    assert {configs[family].model_type for family in configs} == {
        *("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt2")
    }
    hybrid = {name for name, config in configs.items() if len({*(getattr(config, "layer_types", None) or ())}) == 2}
    assert hybrid == {"qwen2-hybrid", "gemma2", "gemma3"}
    for name in hybrid:
        assert configs[name].layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
        assert configs[name].num_hidden_layers == 3
    sliding = {name for name, config in configs.items() if getattr(config, "sliding_window", None) == families.SPAN}
    assert sliding == {*hybrid, "mistral"}
    deep = {name for name, config in configs.items() if config.num_hidden_layers != 2}
    assert deep == {*hybrid, "smollm2"}
    tied = {name for name in OTHERS if configs[name].tie_word_embeddings}
    assert tied == {"smollm2", "gemma2", "gemma3"}
    assert configs["smollm2"].num_hidden_layers == 3
    assert configs["smollm2"].rope_parameters["rope_theta"] == 100_000, "as HuggingFaceTB/SmolLM2-135M has it"
    for name in ("gemma2", "gemma3"):
        assert configs[name].query_pre_attn_scalar == configs[name].head_dim
    assert 1 < configs["gemma2"].attn_logit_softcapping < configs["gemma2"].final_logit_softcapping < 10


def test_a_seed_gives_its_model_again_and_leaves_torchs_own_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, again, other = (families.build_model("llama", *seed) for seed in ((), (0,), (1,)))
    assert torch.rand(1).equal(expected)
    weights = [dict(model.named_parameters())["lm_head.weight"] for model in (one, again, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    assert not one.training
    assert weights[0].dtype == torch.float32
    half = families.build_model("llama", dtype=torch.bfloat16)
    assert dict(half.named_parameters())["lm_head.weight"].equal(weights[0].bfloat16())


def test_prompts_have_lengths_of_their_own_and_every_second_one_says_everything_twice() -> None:
    found = tiny.prompts(6)
    lengths = [len(prompt) for prompt in found]
    assert (min(lengths), max(lengths)) == (3, 60)
    assert len({*lengths}) == 6
    assert sum(length > families.SPAN for length in lengths) > 3, "most are longer than a span"
    twice = [prompt[: len(prompt) // 2] * 2 == prompt for prompt in found]
    assert twice == [True, False] * 3
    assert all(0 <= token < 256 for prompt in found for token in prompt)
    many = [token for seed in range(40) for prompt in tiny.prompts(6, seed) for token in prompt]
    assert {*many} == {*range(256)}, "every byte, and no end"
    assert tiny.prompts() == found[:4]
    assert tiny.prompts(6, seed=0) == found
    assert tiny.prompts(6, seed=1) != found


def test_each_request_has_three_more_new_tokens_than_the_one_before_and_the_parameters_that_are_given() -> None:
    params = SamplingParams(temperature=0.5, max_new_tokens=7, seed=3)
    found = tiny.requests(params, 3)
    assert [request.id for request in found] == [0, 1, 2]
    assert [request.prompt for request in found] == tiny.prompts(3)
    assert found[0].params == params
    lengths = [request.params.max_new_tokens for request in found]
    assert [b - a for a, b in pairwise(lengths)] == [3, 3]
    assert {(request.params.temperature, request.params.seed) for request in found} == {(0.5, 3)}
    assert len(tiny.requests()) == len(tiny.prompts())
    assert tiny.requests()[0].params == SamplingParams(max_new_tokens=tiny.requests()[0].params.max_new_tokens)


def test_a_plugin_that_is_not_installed_is_known_to_a_registry_that_is_given_it() -> None:
    factory = tiny.past_stops((1, 2))[2]
    assert tiny.registry(("draft", "mine", factory)).parse("draft", "mine")[0].factory is factory
    with pytest.raises(SpecdecError, match="mine"):
        tiny.registry().parse("draft", "mine")


@pytest.fixture(scope="module")
def gguf_reader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A reader of the GGUF file of the tiny Llama."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    assert save_gguf(families.build_model("llama"), path) == path
    return gguf.GGUFReader(path)


def test_a_gguf_file_says_of_the_model_what_its_config_says(gguf_reader: Any) -> None:
    """ggml-org/ggml, docs/gguf.md: the standardised keys of Llama's architecture."""
    config = families.CONFIGS["llama"]()
    expected = {
        "general.architecture": config.model_type,
        "general.file_type": 0,  # all float32
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(config.rms_norm_eps),
        "llama.rope.dimension_count": config.head_dim,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.vocab_size": config.vocab_size,
    }
    assert {key: gguf_reader.get_field(key).contents() for key in expected} == expected


def test_the_tokens_of_a_gguf_file_are_those_of_the_byte_tokenizer_with_a_merge_for_the_last(gguf_reader: Any) -> None:
    tokenizer, config = catalog.byte_tokenizer(), families.CONFIGS["llama"]()
    told = {
        name: gguf_reader.get_field(f"tokenizer.ggml.{name}").contents() for name in ("tokens", "token_type", "merges")
    }
    ids = tokenizer.get_vocab()
    assert told["tokens"][:-1] == sorted(ids, key=ids.__getitem__)[:-1]
    assert len(told["tokens"]) == config.vocab_size
    # 1 is a normal token, 3 a control token: the end of text alone.
    assert told["token_type"] == [3 if id == config.eos_token_id else 1 for id in range(config.vocab_size)]
    assert {merge.replace(" ", "") for merge in told["merges"]} == {told["tokens"][-1]}
    for kind in ("bos", "eos"):
        assert gguf_reader.get_field(f"tokenizer.ggml.{kind}_token_id").contents() == config.eos_token_id
    assert gguf_reader.get_field("tokenizer.ggml.model").contents() == "gpt2", "a BPE tokenizer of bytes"
    assert gguf_reader.get_field("tokenizer.ggml.pre").contents() == "gpt-2"


def test_every_weight_is_in_a_gguf_file_under_the_name_that_ggufs_own_map_gives_it(gguf_reader: Any) -> None:
    gguf = pytest.importorskip("gguf")
    weights = families.build_model("llama").state_dict()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    found = {tensor.name: tensor for tensor in gguf_reader.tensors}
    expected = {names.get_name(name, try_suffixes=(".weight",)): weight for name, weight in weights.items()}
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        data = found[name].data
        assert data.dtype == np.float32
        assert data.shape == tuple(weight.shape)
        if "attn_q" not in name and "attn_k" not in name:
            assert np.array_equal(data, weight.numpy()), name


@pytest.mark.parametrize("part", ["q", "k"])
def test_what_llama_cpp_rotates_as_neighbours_are_the_halves_that_transformers_does(
    part: str, gguf_reader: Any
) -> None:
    """A rotation of the written rows in pairs of neighbours is that of ours in pairs (i, i + d/2), row by row."""
    config = families.CONFIGS["llama"]()
    size = config.head_dim
    weights = families.build_model("llama").state_dict()
    for layer in range(config.num_hidden_layers):
        ours = weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"].numpy().reshape(-1, size, 32)
        data = next(tensor.data for tensor in gguf_reader.tensors if tensor.name == f"blk.{layer}.attn_{part}.weight")
        theirs = data.reshape(-1, size, 32)
        for head in range(len(ours)):
            for pair in range(size // 2):
                assert np.array_equal(theirs[head, 2 * pair], ours[head, pair])
                assert np.array_equal(theirs[head, 2 * pair + 1], ours[head, pair + size // 2])
