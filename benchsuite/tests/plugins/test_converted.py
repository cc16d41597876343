"""A model is converted once for the same weights, from float32 on the host, and never in part."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedModel

from benchsuite.conformance.models import families
from specdec import SpecdecError
from specdec_plugins.converted import converted_model
from specdec_plugins.openvino_ir import save_ir


class Tool:
    """A converter that writes one file, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[PreTrainedModel] = []

    def __call__(self, model: PreTrainedModel, folder: Path) -> None:
        self.given.append(model)
        (folder / "weights").write_bytes(b"whole")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a test."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    return tmp_path / "converted"


def test_the_same_weights_are_converted_once_by_each_version_and_others_again(cache_folder: Path) -> None:
    tool = Tool()
    first, again = (converted_model(families.build_model("llama"), "tool-1", tool) for _ in range(2))
    assert first == again
    assert (first / "weights").read_bytes() == b"whole"
    other = families.build_model("llama")
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1e-3
    longer = families.build_model("llama")
    longer.config.rope_parameters["rope_theta"] = 20000.0  # the same weights rotate otherwise
    found = [
        first,
        converted_model(families.build_model("llama"), "tool-2", tool),
        converted_model(other, "tool-1", tool),
        converted_model(longer, "tool-1", tool),
    ]
    assert len(set(found)) == len(tool.given) == 4
    assert sorted(cache_folder.iterdir()) == sorted(found), "no temporary folder is left"


def test_the_converter_gets_float32_and_the_model_stays_as_it_is() -> None:
    tool, model = Tool(), families.build_model("llama", dtype=torch.bfloat16)
    converted_model(model, "tool", tool)
    [given] = tool.given
    assert {weight.dtype for weight in given.parameters()} == {torch.float32}
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    for ours, theirs in zip(model.parameters(), given.parameters(), strict=True):
        assert torch.equal(ours.float(), theirs)


@pytest.mark.parametrize("error", [SpecdecError("no such layer"), OSError("disk full")])
def test_a_conversion_that_fails_leaves_nothing_and_is_tried_again(error: Exception, cache_folder: Path) -> None:
    def fails(model: PreTrainedModel, folder: Path) -> None:
        (folder / "weights").write_bytes(b"a part")
        raise error

    with pytest.raises(SpecdecError, match="no such layer|could not be written to .*disk full; check the disk, or set"):
        converted_model(families.build_model("llama"), "tool", fails)
    assert list(cache_folder.iterdir()) == []
    assert (converted_model(families.build_model("llama"), "tool", Tool()) / "weights").read_bytes() == b"whole"


def test_a_full_disk_is_refused_before_the_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    tool, model = Tool(), families.build_model("llama")
    needed = 3 * 4 * sum(weight.numel() for weight in model.parameters())
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    with pytest.raises(SpecdecError, match=r"converting the model for tool needs 0\.0 GB in .* or set SPECDEC_CACHE"):
        converted_model(model, "tool", tool)
    assert not tool.given
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=needed))
    converted_model(model, "tool", tool)


def test_sliding_layers_are_refused_since_openvino_would_see_the_whole_text(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="MistralForCausalLM has sliding layers, which the peers of OpenVINO would"):
        save_ir(families.build_model("mistral"), SimpleNamespace(), tmp_path)
