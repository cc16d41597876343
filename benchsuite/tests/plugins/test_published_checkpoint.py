"""A published head's files: everything in them is taken by name, and what is damaged is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec import SpecdecError
from specdec_plugins.published.checkpoint import Checkpoint

CONFIG = {
    "draft_vocab_size": 6,
    "norm_output": False,
    "eps": 1,
    "eagle_config": {"use_aux": True, "ids": [1, 2]},
    "torch_dtype": "bfloat16",
    "sliding_window": None,
}
TENSORS = {"fc.weight": torch.randn(4, 8), "norm.weight": torch.ones(4), "d2t": torch.arange(6)}


def _saved(folder: Path, config: Any = CONFIG, tensors: dict[str, Tensor] = TENSORS) -> Path:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _taken(checkpoint: Checkpoint) -> None:
    """Take all, as a reader does."""
    settings, tensors = checkpoint.settings, checkpoint.tensors
    assert settings.take("draft_vocab_size", int) == 6
    assert settings.take("norm_output", bool, True) is False
    assert settings.take("eps", float) == 1.0
    assert settings.take("sliding_window", int, 0) == 0
    settings.fixed("hidden_act", "silu")
    settings.inside("eagle_config").fixed("use_aux", True)
    assert settings.inside("eagle_config").integers("ids") == (1, 2)
    assert settings.inside("absent").integers("ids") is None
    settings.harmless("torch_dtype", "initializer_range")
    torch.testing.assert_close(tensors.take("fc.weight", (4, 8)), TENSORS["fc.weight"], rtol=0, atol=0)
    assert tensors.take("norm.weight", (4,)).tolist() == [1, 1, 1, 1]
    assert tensors.take("d2t", (6,), "integers").tolist() == [0, 1, 2, 3, 4, 5]
    assert tensors.take("t2d", (9,), "flags", optional=True) is None
    tensors.harmless("*.inv_freq")
    checkpoint.done()


def test_a_folder_a_file_and_shards_hold_the_same(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    _taken(Checkpoint.open(folder))
    _taken(Checkpoint.open(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    parts = {f"model-{n}.safetensors": {name: TENSORS[name]} for n, name in enumerate(TENSORS)}
    for file, held in parts.items():
        save_file(held, folder / file)
    _taken(Checkpoint.open(folder))
    places = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    save_file({"fc.weight": torch.zeros(4, 8)}, folder / "other.safetensors")  # the index does not name it
    _taken(Checkpoint.open(folder))


def test_a_pickle_is_read_only_if_asked_for_and_runs_nothing(tmp_path: Path) -> None:
    folder, ran = _saved(tmp_path), tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    torch.save(TENSORS, folder / "pytorch_model.bin")
    for path in (folder, folder / "pytorch_model.bin"):
        with pytest.raises(SpecdecError, match=r"pytorch_model.bin in .* is a pickle.* say pickle=true"):
            Checkpoint.open(path)
        _taken(Checkpoint.open(path, pickle=True))

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (ran,)

    torch.save({"fc.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(SpecdecError, match=r"pytorch_model.bin cannot be read as weights alone"):
        Checkpoint.open(folder, pickle=True)
    assert not ran.exists()
    torch.save({"fc.weight": 3}, folder / "pytorch_model.bin")
    with pytest.raises(SpecdecError, match=r"something else than a dictionary of tensors"):
        Checkpoint.open(folder, pickle=True)


def _without(*names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in TENSORS.items() if name not in names}


@pytest.mark.parametrize(
    ("config", "tensors", "sentence"),
    [
        (CONFIG, _without("norm.weight"), r"has no tensor norm.weight, \[4\]; it has d2t, fc.weight"),
        (
            CONFIG,
            TENSORS | {"fc.weight": torch.zeros(8, 4)},
            r"fc.weight in .* is \[8, 4\] \(it is transposed\); expected \[4, 8\]",
        ),
        (CONFIG, TENSORS | {"fc.weight": torch.zeros(4, 12)}, r"fc.weight in .* is \[4, 12\]; expected \[4, 8\]"),
        (CONFIG, TENSORS | {"fc.weight": torch.zeros(4, 8, dtype=torch.int8)}, r"fc.weight in .* is int8; expected fl"),
        (CONFIG, TENSORS | {"d2t": torch.zeros(6)}, r"d2t in .* is float32; expected int32 or int64"),
        (CONFIG, TENSORS | {"norm.weight": torch.full((4,), torch.nan)}, r"norm.weight in .* never filled"),
        (CONFIG, TENSORS | {"gate.weight": torch.zeros(2)}, r"tensors that nobody reads: gate.weight"),
        (CONFIG | {"markov_rank": 256}, TENSORS, r"settings that nobody reads: markov_rank"),
        (
            CONFIG | {"eagle_config": {"ids": [1, 2], "norms": 1}},
            TENSORS,
            r"settings that nobody reads: eagle_config.norms",
        ),
        (CONFIG | {"draft_vocab_size": None}, TENSORS, r"config.json has no draft_vocab_size; expected int"),
        (CONFIG | {"draft_vocab_size": "6"}, TENSORS, r"draft_vocab_size in .* is '6' \(str\); expected int"),
        (CONFIG | {"draft_vocab_size": True}, TENSORS, r"draft_vocab_size in .* is True \(bool\); expected int"),
        (CONFIG | {"hidden_act": "gelu"}, TENSORS, r"hidden_act in .* is 'gelu' \(str\); expected 'silu', all that"),
        (CONFIG | {"eagle_config": 3}, TENSORS, r"eagle_config in .* is 3 \(int\); expected an object"),
        (
            CONFIG | {"eagle_config": {"ids": [1, 2.5]}},
            TENSORS,
            r"eagle_config.ids in .* \[1, 2.5\] \(list\); expected a list of integers",
        ),
        ("[]", TENSORS, r"config.json holds list; expected an object"),
        ('{"a": 1, "a": 2}', TENSORS, r"config.json has the key 'a' twice"),
        ("{", TENSORS, r"config.json cannot be read as JSON"),
    ],
)
def test_what_is_damaged_is_refused_by_its_name(
    tmp_path: Path, config: Any, tensors: dict[str, Tensor], sentence: str
) -> None:
    folder = _saved(tmp_path, config, tensors)
    with pytest.raises(SpecdecError, match=sentence):
        _taken(Checkpoint.open(folder))


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8])


def _twice(folder: Path) -> None:
    save_file(_without("d2t"), folder / "other.safetensors")


def _index(places: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    return write


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_no_config, r"has no config.json"),
        (_no_weights, r"has no .safetensors file"),
        (_cut, r"model.safetensors cannot be read"),
        (_twice, r"model.safetensors and other.safetensors in .* both hold fc.weight, norm.weight"),
        (_index({"fc.weight": "gone.safetensors"}), r"names 'gone.safetensors', which is no file in"),
        (
            _index(dict.fromkeys(["fc.weight", "d2t", "lm_head.weight"], "model.safetensors")),
            r"index.json and model.safetensors do not hold the same tensors: lm_head.weight, norm.weight",
        ),
        (_index(dict.fromkeys(TENSORS, "../model.safetensors")), r"which is no file in"),
        (_index(None), r"has no weight_map"),
    ],
)
def test_files_that_are_absent_or_contradict_one_another_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    damage(_saved(folder))
    with pytest.raises(SpecdecError, match=sentence):
        Checkpoint.open(folder)
    with pytest.raises(SpecdecError, match=r"there is no head"):
        Checkpoint.open(folder / "gone")
