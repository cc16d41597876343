"""Heads in the form of the speculators package: every number is there, under the name that the package gives it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchsuite.conformance.models import families, tiny
from benchsuite.tests.plugins.eagle3_heads import SHAPE, SHAPES, head_of
from benchsuite.tests.rig import noisy
from specdec import SpecdecError
from specdec_kernels.reference import Reference
from specdec_plugins.heads import __main__ as command
from specdec_plugins.heads import files, start, training
from specdec_plugins.heads.eagle3_head import Eagle3Head
from specdec_plugins.heads.exported import export_eagle, export_eagle3
from specdec_plugins.published import read_for, read_published
from specdec_plugins.published.reading import Reading, TargetSizes

IDS = torch.tensor([0, 2, 3, 7, 8, 9, 20, 30, 31, 40, 57])


def exported(head: Eagle3Head, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    model: Any = families.build_model("llama")
    export_eagle3(folder, head, IDS, (0, 2, 4), model, 3)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", SHAPES)
def test_every_number_of_a_head_is_written_once_and_no_other(name: str, tmp_path: Path) -> None:
    head = head_of(SHAPES[name]).float()
    _, tensors = exported(head, tmp_path)
    maps = tensors.pop("d2t"), tensors.pop("t2d")
    assert torch.equal(maps[0] + torch.arange(len(IDS)), IDS)
    assert maps[1].nonzero()[:, 0].tolist() == IDS.tolist()
    written = torch.cat([tensor.flatten() for tensor in tensors.values()])
    own = torch.cat([parameter.bfloat16().flatten() for parameter in head.parameters()])
    assert torch.equal(written.sort().values, own.sort().values)
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())


def test_the_parts_of_a_joined_matrix_have_the_names_of_their_rows(tmp_path: Path) -> None:
    head = head_of(replace(SHAPE, layers=2, bias=True, head_norms=True)).float()
    _, tensors = exported(head, tmp_path)
    for index, layer in enumerate(head.stack()):
        name = f"layers.{index}"
        for one, rows in (("q", slice(24)), ("k", slice(24, 36)), ("v", slice(36, 48))):
            assert torch.equal(tensors[f"{name}.self_attn.{one}_proj.weight"], layer.qkv[rows].bfloat16())
        for one, rows in (("gate", slice(20)), ("up", slice(20, 40))):
            assert torch.equal(tensors[f"{name}.mlp.{one}_proj.weight"], layer.gate_up[rows].bfloat16())
    first, second = head.stack()
    assert torch.equal(tensors["layers.0.input_layernorm.weight"], head.token_norm.bfloat16())
    assert torch.equal(tensors["layers.0.hidden_norm.weight"], first.norm_before.bfloat16())
    assert torch.equal(tensors["layers.1.input_layernorm.weight"], second.norm_before.bfloat16())


def test_the_config_names_layers_by_their_input_and_every_convention(tmp_path: Path) -> None:
    config, _ = exported(head_of(SHAPE), tmp_path / "plain")
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert config["target_hidden_size"] == 10
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    found = {
        name: [exported(head_of(shape), tmp_path / name)[0][flag] for flag in flags] for name, shape in SHAPES.items()
    }
    assert found == {
        **dict.fromkeys(SHAPES, [False] * 4),
        "normed residual": [True, False, False, False],
        "one norm of all states": [False, True, False, False],
        "a norm of each state": [False, False, True, False],
        "EAGLE 3.1": [False, False, True, True],
    }
    layer = exported(head_of(SHAPES["two of Qwen3's layers"]), tmp_path / "q")[0]["transformer_layer_config"]
    assert (layer["model_type"], layer["num_hidden_layers"], layer["head_dim"]) == ("qwen3", 2, 6)
    method = config["speculators_config"]["proposal_methods"][0]
    assert (method["proposal_type"], method["speculative_tokens"]) == ("greedy", 3)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_written_is_read_again_bit_for_bit_by_its_own_settings_alone(name: str, tmp_path: Path) -> None:
    head = head_of(replace(SHAPES[name], state_size=16)).float()
    config, _ = exported(head, tmp_path)
    sizes = TargetSizes(16, config["transformer_layer_config"]["vocab_size"], 6)
    published = read_published(tmp_path, sizes)
    assert (published.form, published.dialect, published.reading.layers) == ("eagle3", "speculators", (0, 2, 4))
    assert published.head.ids.tolist() == IDS.tolist()
    network = published.head.network
    assert network.shape == head.shape
    for (one, found), (other, written) in zip(network.named_parameters(), head.named_parameters(), strict=True):
        assert one == other
        assert torch.equal(found.bfloat16(), written.bfloat16()), one


@pytest.mark.slow
@pytest.mark.parametrize("begin", ["", "--begin"])
def test_the_command_trains_eagle3_and_leaves_a_folder_in_this_form(begin: str, tmp_path: Path) -> None:
    tokens = (torch.arange(80).view(8, 10) // 3) % 4 + 60
    shard = {
        "tokens": tokens.int(),
        "hidden": torch.randn(8, 10, 3, 64).bfloat16(),
        "answer": torch.ones(8, 10, dtype=torch.bool),
    }
    more = ["--target", "tiny", "--device", "cpu", "--vocabulary", "3", "--epochs", "1", "--batch", "4", "--seed", "5"]
    for name, layers in (("with", "0-1"), ("without", "")):
        (tmp_path / name).mkdir()
        part = shard if layers else shard | {"hidden": shard["hidden"][:, :, -1].clone()}
        save_file(part, tmp_path / name / "shard-0000.safetensors", metadata={"layers": layers})
    if begin:
        out = tmp_path / "eagle.safetensors"
        given = ["train", "eagle", *more, "--corpus", str(tmp_path / "without"), "--run", str(tmp_path / "e")]
        command.heads_main([*given, "--out", str(out)])
        more += ["--begin", str(out)]
    given = ["train", "eagle3", *more, "--run", str(tmp_path / "r"), "--out", str(tmp_path / "head")]
    with pytest.raises(SystemExit) as refused:
        command.heads_main([*given, "--corpus", str(tmp_path / "without")])
    assert "written without them" in str(refused.value.code)
    command.heads_main([*given, "--corpus", str(tmp_path / "with")])
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert (config["eagle_aux_hidden_state_layer_ids"], config["draft_vocab_size"]) == ([1, 2], 3)
    assert config["norm_output"] is bool(begin)
    made = json.loads((tmp_path / "head.json").read_text())
    assert len(made["epochs"]) == 1


@torch.no_grad()
def test_an_exported_eagle_head_is_the_same_network(tmp_path: Path) -> None:
    """As a module for multi-token prediction: the states of three steps, two of them over its own, of a random text."""
    build = tiny.assembly("llama")
    model: Any = build.target.twin()
    head = start.eagle_start(model, torch.arange(40).view(2, 20), 0)
    noisy(head)
    files.save(tmp_path / "eagle.safetensors", head, torch.arange(9), build.target.model)
    kept, _ = files.load_eagle(str(tmp_path / "eagle.safetensors"), build.target)
    # As those of a model that was read from a GGUF file have them.
    model.config.unk_token_id, model.config._model_name_or_path = 0, "a model"
    export_eagle(tmp_path / "mtp", kept, model, 3)
    read = read_for("mtp", str(tmp_path / "mtp"), build.target, Reading())
    read.head.place(build.target.device, torch.float32)
    embedded, hidden = torch.randn(2, 2, 9, model.config.hidden_size)
    both: tuple[training.Head, ...] = kept.float(), read.head
    ours, theirs = ([*training.unrolled(one, Reference(), embedded, hidden, 3)] for one in both)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(ours[0], ours[1], atol=0.1)


def test_an_eagle_head_for_layers_of_another_kind_is_not_written(tmp_path: Path) -> None:
    model: Any = families.build_model("llama")
    head = start.eagle_start(model, torch.arange(40).view(2, 20), 0)
    model.config.rope_parameters["rope_theta"] *= 2
    with pytest.raises(SpecdecError, match="is not the head's, a layer of Llama with rotary of base"):
        export_eagle(tmp_path, head, model, 3)
