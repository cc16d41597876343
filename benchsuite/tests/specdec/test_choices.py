"""The names of devices, dtypes and models: taken, or refused with the choices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specdec import SpecdecError
from specdec.choices import BITS, check_device, check_dtype, check_model, is_gguf

MODEL_NAMES = "<file>.gguf, <folder>, <hub id>, shape:<config>, smollm2-135m, tiny"


def test_a_dtype_of_codes_has_the_bits_that_its_name_says() -> None:
    assert {f"int{bits}": bits for bits in (8, 4)} == BITS


@pytest.mark.parametrize(
    ("check", "name"),
    [
        *((check_device, name) for name in ("auto", "cpu", "mps", "cuda", "cuda:1")),
        *((check_dtype, name) for name in ("auto", "float32", "float16", "bfloat16", "float64", "int8", "int4")),
        *((check_model, name) for name in ("tiny", "smollm2-135m", "shape:llama", "owner/a.model_1-b", "o-w/2")),
    ],
)
def test_a_name_that_is_a_choice_is_taken(check: Callable[[str], None], name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    ("check", "name", "says"),
    [
        (check_device, "npx", "unknown device 'npx'; choices: auto, cpu, cuda, mps"),
        (check_device, "cudas:1", "did you mean 'cuda'"),
        (check_device, "auto:0", "unknown device"),
        (check_dtype, "float", "choices: auto, bfloat16, float16, float32, float64, int4, int8"),
        (check_dtype, "amp", "Autocast (amp) keeps float32 weights: name the dtype of the weights"),
        (check_model, "tini", f"choices: {MODEL_NAMES}. A hub id has the form owner/name"),
        *((check_model, name, "unknown model") for name in ("tiny2", "a/b/c", "/a", "a/", ".a/b", "a b/c", "shape")),
        (check_model, "nowhere/none.GGUF", "there is no GGUF file 'nowhere/none.GGUF'"),
    ],
)
def test_any_other_name_is_refused_with_the_choices(check: Callable[[str], None], name: str, says: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        check(name)
    assert says in str(refused.value)
    assert ("Autocast" in str(refused.value)) is (name == "amp")


def test_a_folder_is_a_model_by_its_configuration_and_a_file_by_its_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("own/model")
    folder.mkdir(parents=True)
    with pytest.raises(SpecdecError, match="holds no model: expected a config.json in it"):
        check_model("own/model")
    (folder / "config.json").mkdir()
    with pytest.raises(SpecdecError, match="holds no model"):
        check_model("own/model")
    (folder / "config.json").rmdir()
    (folder / "config.json").write_text("{}")
    check_model("own/model")
    monkeypatch.chdir("own")
    with pytest.raises(SpecdecError, match="unknown model 'model/config.json'"):
        check_model("model/config.json")
    Path("a.GGUF").write_bytes(b"")
    check_model("a.GGUF")
    Path("b.gguf").mkdir()
    with pytest.raises(SpecdecError, match="there is no GGUF file"):
        check_model("b.gguf")
    assert [is_gguf(name) for name in ("a.gguf", "A.GgUf", "gguf", "a.gguf/b")] == [True, True, False, False]
