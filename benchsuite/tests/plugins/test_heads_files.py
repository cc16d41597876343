"""A head's file says its kind, its shape and its target, and whoever names another is told what it holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec import SpecdecError
from specdec.model import ArenaModel
from specdec_plugins.heads import files, start
from specdec_plugins.heads.eagle_head import EagleHead, EagleShape
from specdec_plugins.heads.medusa_heads import MedusaHeads

IDS = torch.tensor([3, 1, 2])


def target_model(family: str = "llama", seed: int = 0) -> ArenaModel:
    return ArenaModel(families.build_model(family, seed=seed), registry().backend("reference"))


def small_head(kind: str) -> EagleHead | MedusaHeads:
    torch.manual_seed(3)
    if kind == "medusa":
        heads = MedusaHeads(8, 4, 2, 1e-5)
        heads.down.data.normal_()
        return heads
    return EagleHead(EagleShape(8, 16, 2, 1, 4, 1e-5, 10000.0))


SHAPES = {
    "eagle": {
        **{"hidden": 8, "intermediate": 16, "heads": 2, "heads_kv": 1, "head_dim": 4, "eps": 1e-5, "theta": 10000.0}
    },
    "medusa": {"hidden": 8, "wide": 4, "count": 2, "eps": 1e-5},
}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_file_holds_its_weights_in_half_precision_and_says_whose_they_are(kind: str, tmp_path: Path) -> None:
    head, target, path = small_head(kind), target_model(), tmp_path / "h.safetensors"
    files.save(path, head, IDS, target.model)
    with safe_open(path, framework="pt") as file:
        metadata: Any = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert set(metadata) == {"kind", "shape", "target"}
    assert (metadata["kind"], json.loads(metadata["shape"])) == (kind, SHAPES[kind])
    assert metadata["target"] == files.fingerprint(target.model)
    assert re.fullmatch(r"[0-9a-f]{16}", metadata["target"])
    expected = {name: p.detach().bfloat16() for name, p in head.named_parameters()} | {"ids": IDS.int()}
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype, name
        assert torch.equal(tensors[name], tensor), name
    load: Any = files.load_eagle if kind == "eagle" else files.load_medusa
    read, ids = load(str(path), target)
    assert (ids.dtype, ids.tolist()) == (torch.int64, [3, 1, 2])
    for name, p in read.named_parameters():
        assert not p.requires_grad, name
        assert torch.equal(p, expected[name].float()), name
        assert p.dtype == (torch.bfloat16 if p.dim() > 1 else torch.float32), "matrices are read as they are stored"


def test_the_shipped_head_is_the_one_of_its_kind_for_this_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside files that are no heads, of the other kind, or for another target, in whatever order they lie there."""
    ours, theirs = target_model(), target_model(seed=1)
    monkeypatch.setattr(files, "SHIPPED", tmp_path)
    for place, (kind, target, first) in enumerate(
        [("eagle", theirs, 10), ("medusa", ours, 20), ("eagle", ours, 30), ("medusa", theirs, 40)]
    ):
        files.save(tmp_path / f"{place}.safetensors", small_head(kind), IDS + first, target.model)
    (tmp_path / "README.md").write_text("no head")
    assert files.load_eagle("trained", ours)[1].tolist() == [33, 31, 32]
    assert files.load_eagle("trained", theirs)[1].tolist() == [13, 11, 12]
    assert files.load_medusa("trained", ours)[1].tolist() == [23, 21, 22]
    assert files.load_medusa("trained", theirs)[1].tolist() == [43, 41, 42]
    for kind, load in (("eagle", files.load_eagle), ("medusa", files.load_medusa)):
        with pytest.raises(SpecdecError) as refused:
            load("trained", target_model(seed=2))
        assert str(refused.value) == (
            f"no trained {kind} head for this target is shipped (smollm2-135m has one); train one with "
            f"`python -m specdec_plugins.heads --help` and give its file, or take the untrained form of {kind}"
        )


def test_the_shipped_folder_is_that_of_the_form_and_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = target_model(), target_model(seed=1)
    monkeypatch.setattr(files, "SHIPPED", tmp_path)
    (tmp_path / "README.md").write_text("no head")
    for name, form, target in (("a", "eagle3", theirs), ("b", "peagle", ours), ("c", "eagle3", ours)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"speculators_model_type": form}))
        mark = {"target": files.fingerprint(target.model)}
        save_file({"a": torch.zeros(1)}, tmp_path / name / "model.safetensors", metadata=mark)
    assert files.shipped_folder("eagle3", ours.model) == tmp_path / "c"
    assert files.shipped_folder("eagle3", theirs.model) == tmp_path / "a"
    with pytest.raises(SpecdecError, match=r"no trained peagle head for this target is shipped.*peagle\(head='path"):
        files.shipped_folder("peagle", theirs.model)


def test_a_file_that_is_no_head_of_this_kind_is_refused_by_what_it_holds(tmp_path: Path) -> None:
    target = target_model()
    mark = files.fingerprint(target.model)
    for metadata, holds in (
        (None, "something else"),
        ({"kind": "medusa", "shape": "{}", "target": mark}, "medusa"),
        ({"kind": "eagle", "target": mark}, "eagle"),
        ({"shape": "{}", "target": mark}, "something else"),
    ):
        name = str(tmp_path / "x.safetensors")
        save_file({"a": torch.zeros(1)}, name, metadata=metadata)
        with pytest.raises(SpecdecError) as refused:
            files.load_eagle(name, target)
        assert str(refused.value) == f"{name!r} holds {holds!r}; expected a head of kind 'eagle'"


def test_a_head_of_another_target_is_refused_with_both_marks(tmp_path: Path) -> None:
    ours, theirs, name = target_model(), target_model(seed=1), str(tmp_path / "h.safetensors")
    files.save(Path(name), small_head("eagle"), IDS, theirs.model)
    with pytest.raises(SpecdecError) as refused:
        files.load_eagle(name, ours)
    assert str(refused.value) == (
        f"the head {name!r} was trained for another target (its mark {files.fingerprint(theirs.model)}, this target's "
        f"{files.fingerprint(ours.model)}); a head reads one target's hidden states: train one with "
        "`python -m specdec_plugins.heads`"
    )


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no head at all")
    for path in (broken, tmp_path / "nowhere.safetensors"):
        with pytest.raises(SpecdecError) as refused:
            files.load_medusa(str(path), target_model())
        assert re.fullmatch(
            rf"the head {re.escape(repr(str(path)))} cannot be read: .+; name a \.safetensors file", str(refused.value)
        )


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_heads_are_not_begun_from_layers_of_another_kind(family: str) -> None:
    """One whose layers have other parts, and one whose products have biases, which a head has not."""
    model = families.build_model(family)
    with pytest.raises(SpecdecError) as refused:
        start.eagle_start(model, torch.arange(6)[None], 0)
    assert str(refused.value) == (
        f"a {family} model's layers are not Llama's; heads can be trained for Llama, SmolLM2, Mistral and those built "
        "like them"
    )
