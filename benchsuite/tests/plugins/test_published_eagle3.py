"""EAGLE-3 heads of all dialects: logits of every step as the package speculators gives them, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.tests.eagle3_heads import (
    EAGLE3_HEADS,
    EAGLE3_SIZES,
    eagle3_chain,
    eagle3_config,
    eagle3_recorded,
    eagle3_tensors,
    head_written,
)
from specdec import SpecdecError
from specdec_kernels.reference import Reference
from specdec_plugins.published import eagle3, read_published
from specdec_plugins.published.eagle3 import Eagle3Parts
from specdec_plugins.published.reading import Published, Reading, TargetSizes

CASES = {"eagle3": "0-2-4", "one_norm": "1-3", "eagle31": "0-2-4", "two_layers": "4-0-2", "window": "0-2-4"}
CASES |= {"tiny_llama": "0-1"}
STEPS = 4


def _sizes(case: str) -> TargetSizes:
    return TargetSizes(hidden=32, vocabulary=258, layers=2) if case == "tiny_llama" else EAGLE3_SIZES


def _errors(head: Eagle3Parts, case: str, dtype: torch.dtype) -> list[float]:
    """The largest difference of each step's logits from those recorded, over all places of the text.

    A window moves with each step; in the package's training it stays, so that only its first step is comparable.
    """
    given = eagle3_recorded(case)
    states, tokens, errors = given["states"].to(dtype), given["tokens"], [0.0] * STEPS
    assert head.embedding is not None
    for place in range(len(tokens) - STEPS + 1):
        chain = eagle3_chain(head, Reference(), states[: place + 1], tokens[: place + STEPS], head.embedding)
        for step in range(1 if head.window else STEPS):
            error = (chain[step] - given["logits"][step, place]).abs().max()
            errors[step] = max(errors[step], float(error))
    return errors


@pytest.mark.parametrize("case", CASES)
def test_every_step_gives_the_logits_of_the_package_that_wrote_the_head(case: str) -> None:
    published = read_published(EAGLE3_HEADS / case, _sizes(case))
    assert published.dialect == "speculators"
    layers = next(choice for choice in published.choices if choice.what == "layers")
    assert str(layers).startswith(f"layers={CASES[case]} (eagle_aux_hidden_state_layer_ids, ")
    assert max(_errors(published.head, case, torch.float32)) < 2e-5
    halves = _errors(published.head, case, torch.bfloat16)
    assert max(halves) > 0
    for mine, theirs in zip(halves, eagle3_recorded(case)["error"].tolist(), strict=True):
        assert mine <= 2 * theirs


def test_own_states_matter_as_much_as_the_targets() -> None:
    """A step that was fed the target's states, or its own from the other side of the norm, is not the recorded one."""
    for states in ("before", "after"):
        case = "eagle3" if states == "after" else "eagle31"
        published = read_published(EAGLE3_HEADS / case, EAGLE3_SIZES, Reading(states=states))
        errors = _errors(published.head, case, torch.float32)
        assert errors[0] < 2e-5
        assert min(errors[1:]) > 0.1


FLAT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "draft_vocab_size": 20,
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "max_window_layers": 48,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 64,
}
"""Keys of SpecForge's configs, with the sizes of the recorded heads."""

MODELOPT = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
SWITCHED = {"num_attention_heads": 4, "head_dim": 6, "num_key_value_heads": 1, "fc_norm": True, "norm_output": True}
SCALED: dict[str, Any] = {
    "rope_theta": 500.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_type": "llama3",
    },
}


def _midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def _prefixed(name: str) -> str:
    return name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}"


DIALECTS: dict[str, tuple[str, dict[str, Any], Callable[[str], str], str]] = {
    "SpecForge, ids as outputs": (
        "eagle3",
        FLAT | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}},
        _midlayer,
        "eagle",
    ),
    "SpecForge 3.1": ("eagle31", FLAT | SWITCHED, _midlayer, "eagle"),
    "EAGLE's repository": (
        "eagle3",
        FLAT | {"architectures": ["LlamaForCausalLM"], "target_hidden_size": 16},
        _midlayer,
        "eagle",
    ),
    "ModelOpt": (
        "eagle3",
        FLAT
        | {
            "architectures": ["LlamaForCausalLM"],
            "eagle_config": MODELOPT | {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
        },
        _midlayer,
        "modelopt",
    ),
    "ModelOpt with a norm and no ids": (
        "one_norm",
        FLAT
        | SCALED
        | {"norm_before_residual": True, "eagle_config": MODELOPT | {"norm_before_fc": True}}
        | {"eagle_aux_hidden_state_layer_ids": []},
        _midlayer,
        "modelopt",
    ),
    "NeMo": (
        "eagle3",
        FLAT
        | {"architectures": ["LlamaEagle3DraftModel"], "num_hidden_layers": 8, "num_aux_hidden_states": 3}
        | {"return_dict": True, "torchscript": False, "target_hidden_size": 16, "layer_types": ["full_attention"] * 8},
        _prefixed,
        "nemo",
    ),
    "llama.cpp": ("eagle31", FLAT | SWITCHED | {"architectures": ["Eagle3LlamaForCausalLM"]}, _midlayer, "eagle"),
}
"""The recorded head that each is, its config, its names of tensors, and what the reader calls the dialect."""


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_is_the_same_network_under_other_names(name: str, tmp_path: Path) -> None:
    """The recorded tensors under the dialect's names; the ids are EAGLE's own where the file has any."""
    case, config, rename, dialect = DIALECTS[name]
    tensors = {rename(one): tensor for one, tensor in eagle3_tensors(case).items()}
    folder = head_written(tmp_path, config, tensors)
    asked = Reading()
    if "eagle_config" not in config or case == "one_norm":
        with pytest.raises(
            SpecdecError, match=r"decides its layers \(looked for: .*name it: eagle3\(head=…, layers=\d"
        ):
            read_published(folder, EAGLE3_SIZES)
        asked = Reading(layers=(1, 3, 4)[: 2 if case == "one_norm" else 3])
    published = read_published(folder, EAGLE3_SIZES, asked)
    assert (published.form, published.dialect) == ("eagle3", dialect)
    if asked == Reading():
        assert published.reading.layers == (1, 3, 4)
    assert max(_errors(published.head, case, torch.float32)) < 2e-5


Damage = Callable[[dict[str, Any], dict[str, Tensor]], None]


def _config(**changes: Any) -> Damage:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config.update(changes)

    return change


def _layer(**changes: Any) -> Damage:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["transformer_layer_config"].update(changes)

    return change


def _lost(name: str) -> Damage:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return change


def _tensor(name: str, make: Callable[[dict[str, Tensor]], Tensor]) -> Damage:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[name] = make(tensors)

    return change


IDS = "eagle_aux_hidden_state_layer_ids"
Q, Q_NORM = "layers.0.self_attn.q_proj", "layers.0.self_attn.q_norm.weight"
DAMAGED = [
    (_lost("fc.weight"), r"fc.weight in .* is \[0, 0\]; expected \[H, n · 16\], of n states"),
    (_lost("norm.weight"), r"has no tensor norm.weight, \[16\]"),
    (_lost("layers.0.hidden_norm.weight"), r"has no tensor layers.0.hidden_norm.weight"),
    (_lost("layers.0.mlp.up_proj.weight"), r"has no tensor layers.0.mlp.up_proj.weight, \[24, 16\]"),
    (_lost("lm_head.weight"), r"has no tensor lm_head.weight, \[20, 16\]"),
    (_lost("d2t"), r"has no tensor d2t, \[20\]"),
    (_tensor(f"{Q}.weight", lambda t: t[f"{Q}.weight"].T), r"q_proj.weight in .* is \[32, 16\] \(it is transposed\)"),
    (_tensor("lm_head.weight", lambda t: t["lm_head.weight"].T), r"lm_head.weight .*transposed\); expected \[20, 16\]"),
    (
        _tensor("fc.weight", lambda t: t["fc.weight"].T),
        r"names 3 layers .*its fc fuses 1 states|expected \[H, n · 16\]",
    ),
    (_tensor("fc.weight", lambda t: t["fc.weight"][:, :32]), r"names 3 layers .*, and its fc fuses 2 states"),
    (_tensor("fc.bias", lambda t: torch.zeros(16)), r"tensors that nobody reads: fc.bias"),
    (_tensor("input_norm.weight", lambda t: torch.ones(48)), r"tensors that nobody reads: input_norm.weight"),
    (_tensor(f"{Q}.bias", lambda t: torch.zeros(16)), r"attention_bias .* is False, and its tensors say True"),
    (_tensor("norm.weight", lambda t: torch.full((16,), torch.nan)), r"norm.weight in .* never filled"),
    (_tensor(Q_NORM, lambda t: torch.ones(8)), r"has no tensor layers.0.self_attn.k_norm.weight"),
    (_tensor("d2t", lambda t: t["d2t"] + 1), r"d2t and t2d contradict one another"),
    (_tensor("t2d", lambda t: t["t2d"][:60]), r"t2d in .* is \[60\]; expected \[64\]"),
    (_config(**{IDS: [1, 3]}), r"names 2 layers .*, and its fc fuses 3 states; expected as many"),
    (_config(**{IDS: [1, 3, 9]}), r"reads the outputs of layers \(0, 2, 8\) .*expected different ones from 0 to 7"),
    (_config(**{IDS: [0, 3, 5]}), r"reads the outputs of layers \(-1, 2, 4\)"),
    (_config(**{IDS: [3, 3, 5]}), r"reads the outputs of layers \(2, 2, 4\) .*expected different ones"),
    (_config(**{IDS: None}), r"nothing in the head decides its layers .*name it: eagle3\(head=…, layers=1-3-4\)"),
    (_config(draft_vocab_size=19), r"has no|is \[20\]; expected \[19\]"),
    (_config(norm_before_fc=True), r"has no tensor input_norm.weight, \[48\]"),
    (_config(fc_norm=True), r"has no tensor fc_norm.0.weight, \[16\]"),
    (_config(fc_norm=True, norm_before_fc=True), r"both norm_before_fc and fc_norm"),
    (_config(target_hidden_size=8), r"reads states of size 8, and the target has 16: it is the head of another target"),
    (_config(norm_every_step=True), r"settings that nobody reads: norm_every_step"),
    (_config(eagle_config={"norm_output": True}), r"norm_output is False, and eagle_config.norm_output is True"),
    (_config(eagle_config={"use_aux_hidden_state": False}), r"use_aux_hidden_state in .* is False .*expected True"),
    (_layer(vocab_size=60), r"reads a vocabulary of 60, and the target has 64"),
    (_layer(hidden_act="gelu"), r"hidden_act in .* is 'gelu'"),
    (_layer(num_hidden_layers=2), r"has the tensors of 1 layers, and num_hidden_layers is 2"),
    (_layer(model_type="qwen3"), r"has no tensor layers.0.self_attn.q_norm.weight"),
    (_layer(model_type="deepseek_v3"), r"model_type in .* is 'deepseek_v3'"),
    (_layer(sliding_window=4), r"nothing in the head decides its window \(looked for: sliding_window is 4.*window=4"),
    (_layer(sliding_window=4, layer_types=["linear_attention"]), r"layer_types is \['linear_attention'\]"),
    (_layer(rope_parameters={"rope_type": "longrope", "rope_theta": 1.0}), r"'longrope'; expected default"),
    (_layer(rope_parameters={"rope_type": "default"}), r"has no transformer_layer_config.rope_theta"),
    (
        _layer(rope_parameters={"rope_theta": 9.0, "mrope_section": [1]}),
        r"nobody reads: .*rope_parameters.mrope_section",
    ),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_or_ambiguous_head_is_refused_by_a_sentence_that_names_it(
    damage: Damage, sentence: str, tmp_path: Path
) -> None:
    config, tensors = eagle3_config("eagle3"), eagle3_tensors("eagle3")
    damage(config, tensors)
    with pytest.raises(SpecdecError, match=sentence):
        read_published(head_written(tmp_path, config, tensors), EAGLE3_SIZES)


def test_ids_that_may_be_inputs_or_outputs_are_refused_but_for_eagles_own(tmp_path: Path) -> None:
    """Engines differ here without a word; of a target of 8 layers, EAGLE's own are the inputs of 2, 4 and 5."""
    tensors = {_midlayer(name): tensor for name, tensor in eagle3_tensors("eagle3").items()}
    for ids, decided in (((2, 4, 5), True), ((1, 3, 4), True), ((1, 4, 6), False), ((2, 4, 6), False)):
        folder = head_written(tmp_path, FLAT | {IDS: list(ids)}, tensors)
        if decided:
            assert read_published(folder, EAGLE3_SIZES).reading.layers == (1, 3, 4)
            continue
        with pytest.raises(
            SpecdecError, match=r"\[\d, \d, \d\], which may be outputs or inputs of layers\); name it: "
        ):
            read_published(folder, EAGLE3_SIZES)
        assert read_published(folder, EAGLE3_SIZES, Reading(layers=ids)).reading.layers == ids
    with pytest.raises(
        SpecdecError, match=r"has eagle_aux_.* \(1, 3, 4\) and eagle_config.* \(2, 4, 5\); expected one"
    ):
        read_published(
            head_written(tmp_path, FLAT | {IDS: [1, 3, 4], "eagle_config": {IDS: [2, 4, 5]}}, tensors), EAGLE3_SIZES
        )


def test_a_head_without_embeddings_reads_the_targets_and_says_so(tmp_path: Path) -> None:
    config, tensors = eagle3_config("eagle3"), eagle3_tensors("eagle3")
    del tensors["embed_tokens.weight"]
    published = read_published(head_written(tmp_path, config, tensors), EAGLE3_SIZES)
    assert published.head.embedding is None
    assert "embedding=target (embed_tokens.weight is not there)" in map(str, published.choices)
    with pytest.raises(SpecdecError, match=r"has no embed_tokens.weight; leave embedding=own out"):
        read_published(tmp_path, EAGLE3_SIZES, Reading(embedding="own"))


def test_every_other_reading_loads_and_is_another_head(tmp_path: Path) -> None:
    """The doctor compares them: each loads by its own reading, and differs from the file's in that alone."""
    for case in CASES:
        folder, sizes = EAGLE3_HEADS / case, _sizes(case)
        published: Published[Eagle3Parts] = read_published(folder, sizes)
        others = eagle3.alternatives(published, sizes)
        assert {"layers in the reverse order", "embeddings of the target"} <= others.keys()
        assert ("layers one later" in others) == (case != "tiny_llama")
        assert ("window ignored" in others) == (case == "window")
        assert len({*others.values(), published.reading}) == len(others) + 1
        for reading in others.values():
            assert read_published(folder, sizes, reading).reading == reading


def test_a_head_of_a_larger_target_is_refused() -> None:
    with pytest.raises(SpecdecError, match=r"expected different ones from 0 to 3, those of this target"):
        read_published(EAGLE3_HEADS / "eagle3", TargetSizes(16, 64, 4))
