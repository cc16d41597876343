"""Models by their names: what a name stands for, which files are read, what memory is asked for, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers.utils import logging

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from benchsuite.tests.rig import slow_after
from benchsuite.workshop.sweep.battery import compare_bytes, spread_model
from specdec import ArenaModel, SpecdecError, catalog, smollm2
from specdec.amounts import amount
from specdec.catalog import ModelBytes
from specdec.choices import check_model, is_gguf
from specdec.peer import PeerEnv

CPU = torch.device("cpu")
LAYER = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64
TINY_WEIGHTS = 2 * 258 * 64 + 2 * LAYER + 64
"""Embedding and head, two layers, the last norm."""
TINY_CELL = 2 * 2 * 2 * 16
"""Numbers of one token in the arena: keys and values of two layers with two heads of 16."""


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """A folder with the tiny model, its tokenizer and a config of bfloat16."""
    loaded = catalog.load("tiny", CPU, torch.float32)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.model.config.dtype = torch.bfloat16
    loaded.model.config.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def asked_memory(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What memory was asked for."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(catalog, "require_memory", lambda *given: asked.append(given))
    return asked


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The embedded model's folder, which is never made."""
    monkeypatch.setattr(smollm2, "folder", lambda: tmp_path / "embedded")
    monkeypatch.setattr(smollm2, "gguf", lambda: tmp_path / "embedded.gguf")
    return tmp_path / "embedded"


def test_the_byte_tokenizer_has_a_token_for_each_byte_and_two_special_ones() -> None:
    tokenizer = catalog.byte_tokenizer()
    assert len(tokenizer) == 258
    assert tokenizer.convert_tokens_to_ids(["<|end|>", "<|turn|>"]) == [256, 257]
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|end|>", 256)
    for text in ("a", " a  b\n", "é 漢 🙂", "don't 12 345", "<|end|>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert len(ids) == (1 if text == "<|end|>" else len(text.encode()))
    assert tokenizer.encode("a<|turn|>") == [tokenizer.encode("a")[0], 257]


def test_the_tiny_model_has_this_shape_and_a_given_seed_gives_it_these_weights() -> None:
    config = catalog.read_config("tiny")
    expected = {
        **{"model_type": "llama", "vocab_size": 258, "hidden_size": 64, "intermediate_size": 128},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
        **{"max_position_embeddings": 4096, "initializer_range": 0.2},
        **{"eos_token_id": 256, "bos_token_id": None, "pad_token_id": 256},
    }
    assert {name: getattr(config, name) for name in expected} == expected
    logging.enable_progress_bar()
    before = torch.random.get_rng_state()
    first = catalog.load("tiny", CPU, torch.float32)
    assert not logging.is_progress_bar_enabled(), "a bar would be written among the results"
    same, other = (catalog.load("tiny", CPU, torch.float32, seed=seed) for seed in (0, 1))
    half = catalog.load("tiny", CPU, torch.bfloat16)
    assert torch.equal(torch.random.get_rng_state(), before), "the numbers of others stay as they are"
    assert (first.name, first.model.dtype, half.model.dtype) == ("tiny", torch.float32, torch.bfloat16)
    assert len(first.tokenizer) == 258
    pairs = zip(*(one.model.parameters() for one in (first, same, other, half)), strict=True)
    matrices = [four for four in pairs if four[0].dim() == 2]
    for mine, again, theirs, rounded in matrices:
        assert torch.equal(mine, again)
        assert not torch.equal(mine, theirs)
        assert torch.equal(mine.to(torch.bfloat16), rounded), "drawn in float32 and rounded, as everywhere"


def test_a_shape_is_drawn_with_the_byte_tokenizer_in_the_asked_dtype(
    tiny_folder: Path, asked_memory: list[tuple[Any, ...]]
) -> None:
    name = f"shape:{tiny_folder}"
    (tiny_folder / "model.safetensors").unlink()
    (tiny_folder / "tokenizer.json").unlink()
    assert catalog.read_config(name).dtype == torch.bfloat16
    drawn, tiny = catalog.load(name, CPU, torch.float32, seed=3), catalog.load("tiny", CPU, torch.float32, seed=3)
    assert drawn.name == name
    assert len(drawn.tokenizer) == 258
    for mine, theirs in zip(drawn.model.parameters(), tiny.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), "the config's own dtype decides nothing"
    logits = 4 * 258 * 32
    says = f"the model {name!r} with 0 rows of 0 tokens"
    assert asked_memory == [(4 * TINY_WEIGHTS + logits, CPU, says)]


@pytest.mark.parametrize(("rows", "length", "dtype"), [(0, 0, "float32"), (1, 10, "float32"), (3, 7, "bfloat16")])
def test_memory_is_asked_for_weights_cells_and_the_logits_of_32_slots(
    rows: int, length: int, dtype: str, asked_memory: list[tuple[Any, ...]]
) -> None:
    size = 4 if dtype == "float32" else 2
    given = "it", catalog.tiny_config()
    assert catalog.sizes(*given, getattr(torch, dtype)) == ModelBytes(size * TINY_WEIGHTS, size * TINY_CELL, 0)
    catalog._require_room(*given, CPU, getattr(torch, dtype), rows, length)
    needed = size * TINY_WEIGHTS + size * TINY_CELL * rows * length + 4 * 258 * 32 * (rows or 1)
    assert asked_memory == [(needed, CPU, f"the model 'it' with {amount(rows, 'row')} of {length} tokens")]


def test_the_vocabulary_is_that_of_the_decoder(
    asked_memory: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "sizes", lambda *given: ModelBytes(0, 0, 0))
    config: Any = SimpleNamespace(
        get_text_config=lambda decoder=False: SimpleNamespace(vocab_size=10 if decoder else 99)
    )
    catalog._require_room("it", config, CPU, torch.float32, 2, 5)
    assert asked_memory[0][0] == 4 * 10 * 2 * 32


def test_a_shape_is_drawn_on_the_gpu_where_it_is_used_and_tiny_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []

    class DrawnModel:
        def to(self, **where: Any) -> str:
            noted.append(where)
            return "moved"

    def made(config: Any, **given: Any) -> Any:
        context: Any = torch.overrides._get_current_function_mode_stack()[-1]
        noted.append((config, given, context.device.type))
        return DrawnModel()

    def forked(devices: Any) -> Any:
        noted.append(devices)
        return nullcontext()

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_config", made)
    monkeypatch.setattr(torch.random, "fork_rng", forked)
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    gpu, config, tokenizer, half = torch.device("cuda"), catalog.tiny_config(), catalog.byte_tokenizer(), torch.bfloat16
    for name, device in (("shape:x", gpu), ("tiny", gpu), ("shape:x", CPU)):
        noted.clear()
        loaded: Any = catalog._random(name, config, tokenizer, device, half, 5)
        assert (loaded.name, loaded.model, loaded.tokenizer) == (name, "moved", tokenizer)
        there = device is gpu and name != "tiny"
        assert noted == [
            [gpu] if there else [],
            (config, {"dtype": half if there else torch.float32}, "cuda" if there else "cpu"),
            {"device": device, "dtype": half},
        ]
    assert seeds == [5] * 3


@pytest.mark.slow
def test_a_folder_is_read_with_its_own_weights_and_tokenizer(tiny_folder: Path) -> None:
    tokenizer = catalog.byte_tokenizer()
    tokenizer.chat_template = "its own"
    tokenizer.save_pretrained(tiny_folder)
    name, first = str(tiny_folder), catalog.load("tiny", CPU, torch.float32)
    loaded = catalog.load(name, CPU, torch.float64)
    assert (loaded.name, loaded.model.dtype, loaded.tokenizer.chat_template) == (name, torch.float64, "its own")
    assert catalog.load_tokenizer(name).chat_template == "its own"
    assert "its own" not in str(catalog.load_tokenizer(f"shape:{name}").chat_template)
    for mine, theirs in zip(loaded.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(mine, theirs.double())
    weights = load_file(tiny_folder / "model.safetensors")
    del weights["model.norm.weight"], weights["lm_head.weight"]
    save_file(weights, tiny_folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SpecdecError) as refused:
        catalog.load(name, CPU, torch.float32)
    assert str(refused.value) == (
        f"the model {name!r} lacks 2 of its weights, for example lm_head.weight; "
        "the files are incomplete or of another model"
    )


@pytest.mark.parametrize("gguf", [True, False])
def test_a_gguf_file_is_read_by_its_name_in_its_folder_and_its_format_is_forgotten(
    gguf: bool, tmp_path: Path, asked_memory: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.GGUF" if gguf else tmp_path / "folder"
    if gguf:
        path.touch()
    else:
        path.mkdir()
        (path / "config.json").touch()
    source, more = (str(tmp_path), {"gguf_file": "a.GGUF"}) if gguf else (str(path), {})
    missing: dict[str, list[Any]] = {"missing_keys": [], "mismatched_keys": []}
    asked: list[Any] = []
    config = catalog.tiny_config()

    class ReadModel(SimpleNamespace):
        def to(self, device: Any) -> Any:
            asked.append(device)
            return self

    def reader(result: Callable[[], Any]) -> Any:
        def read(*given: Any, **kept: Any) -> Any:
            asked.append((given, kept))
            return result()

        return read

    own = SimpleNamespace(quantization_config={"quant_method": "gguf"}, other=1, get_text_config=config.get_text_config)
    tokenizer = SimpleNamespace(eos_token_id=None, encode=len)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", reader(lambda: config))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", reader(lambda: tokenizer))
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM,
        "from_pretrained",
        reader(lambda: (ReadModel(config=own, generation_config=None), missing)),
    )
    loaded: Any = catalog.load(str(path), CPU, torch.float16, rows=2, max_length=3)
    assert asked == [
        ((source,), more),
        ((source,), more),
        ((source,), {"config": config, "dtype": torch.float16, "output_loading_info": True, **more}),
        CPU,
    ]
    assert (loaded.tokenizer, loaded.model.config) == (tokenizer, own)
    assert ("quantization_config" in vars(own), own.other) == (not gguf, 1)
    assert asked_memory[0][2] == f"the model {str(path)!r} with 2 rows of 3 tokens"
    missing["missing_keys"], missing["mismatched_keys"] = ["b", "a"], [("c", 1, 2)]
    with pytest.raises(SpecdecError, match="lacks 3 of its weights, for example a; the files are incomplete"):
        catalog.load(str(path), CPU, torch.float16)
    missing["missing_keys"] = []
    with pytest.raises(SpecdecError, match=r"lacks 1 of its weights, for example \('c', 1, 2\); the files"):
        catalog.load(str(path), CPU, torch.float16)


UNKNOWN = (
    "unknown model {!r}{} choices: <file>.gguf, <folder>, <hub id>, shape:<config>, smollm2-135m, tiny. "
    "A hub id has the form owner/name; a folder must exist."
)


def test_a_name_stands_for_the_embedded_model_a_file_a_folder_or_a_hub_id(embedded: Path, tmp_path: Path) -> None:
    folder, file, other = tmp_path / "folder", tmp_path / "m.gguf", tmp_path / "notes"
    folder.mkdir()
    other.touch()
    assert catalog._source("smollm2-135m") == (str(embedded), {})
    with pytest.raises(SpecdecError) as refused:
        check_model(str(folder))
    assert str(refused.value) == f"the folder {str(folder)!r} holds no model: expected a config.json in it"
    (folder / "config.json").touch()
    assert catalog._source(str(folder)) == (str(folder), {})
    with pytest.raises(SpecdecError) as refused:
        check_model(str(file))
    assert str(refused.value) == f"there is no GGUF file {str(file)!r}; give the path of one, or another target"
    file.touch()
    assert catalog._source(str(file)) == (str(tmp_path), {"gguf_file": "m.gguf"})
    for name in ("owner/name", "An-owner_1/n.a-m_e", "-o/.n"):
        assert catalog._source(name) == (name, {})
    for name, guess in (
        *((name, ";") for name in ("zzzzzz", "a/b/c", "owner/", ".o/name", "a b/c", str(other))),
        ("tini", "; did you mean 'tiny'?"),
        ("smollm2", "; did you mean 'smollm2-135m'?"),
        ("folder", "; did you mean '<folder>'?"),
        ("hub id", "; did you mean '<hub id>'?"),
        ("fil.gguv", "; did you mean '<file>.gguf'?"),
    ):
        with pytest.raises(SpecdecError) as refused:
            check_model(name)
        assert str(refused.value) == UNKNOWN.format(name, guess)


def test_a_path_that_looks_like_a_hub_id_and_exists_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "name").touch()
    with pytest.raises(SpecdecError, match="^unknown model 'owner/name'"):
        check_model("owner/name")


def peer_env(target: str) -> PeerEnv:
    """What a factory of a peer is given, over this target."""
    unused: Any = None
    return PeerEnv(target, CPU, torch.float32, 8, 1, 1, unused, unused)


def test_other_engines_get_a_targets_files_and_targets_in_memory_have_none(embedded: Path, tmp_path: Path) -> None:
    file, folder = tmp_path / "m.gguf", tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").touch()
    assert [is_gguf(name) for name in ("a.gguf", "b/A.GGUF", "gguf", "a.gguf.txt")] == [
        True,
        True,
        False,
        False,
    ]
    assert catalog.gguf_file("smollm2-135m") == peer_env("smollm2-135m").gguf() == tmp_path / "embedded.gguf"
    with pytest.raises(SpecdecError, match="^there is no GGUF file"):
        catalog.gguf_file(str(file))
    file.touch()
    assert catalog.gguf_file(str(file)) == peer_env(str(file)).gguf() == file
    for name in ("tiny", str(folder), "owner/name"):
        with pytest.raises(SpecdecError, match=f"^the target '{name}' has no GGUF file, and llama.cpp reads no"):
            catalog.gguf_file(name)
    for name, files in (
        (str(file), str(file)),
        (str(folder), str(folder)),
        ("owner/name", "owner/name"),
        ("smollm2-135m", str(embedded)),
    ):
        assert catalog.files_of(name) == peer_env(name).files() == files
    for name in ("tiny", "shape:x"):
        with pytest.raises(SpecdecError, match=f"^the target '{name}' is made in memory and has no files that another"):
            catalog.files_of(name)


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (OSError("\n no such file\nmore "), "no such file"),
        (ValueError("a\nb"), "a"),
        (ValueError("none of:\n(1) a  file,\n\n(2) another."), "none of: (1) a file, (2) another"),
        (KeyError("x"), "'x'"),
        (AttributeError(), "AttributeError"),
        (RuntimeError(" \n "), "RuntimeError"),
        (AssertionError("padding"), "padding"),
        (ZeroDivisionError("by zero"), "by zero"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_first_line_of_the_reason(error: Exception, first: str) -> None:
    def reader() -> Any:
        raise error

    with pytest.raises(SpecdecError) as refused:
        catalog._read("it", reader)
    assert str(refused.value) == (
        f"the model 'it' cannot be loaded: {first}. A file is missing, truncated or damaged, or the hub is out of "
        "reach; check the folder or the network, or fetch the model again"
    )
    assert refused.value.__cause__ is error


TURNS_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}|{{ m['content'] }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def begins_with_end(tokenizer: Any) -> Any:
    """The tokenizer, which now puts a special token before every text."""
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", 256)]
    )
    return tokenizer


def test_a_conversation_is_in_the_chat_template_the_turns_in_turn_and_the_assistant_next() -> None:
    tokenizer = catalog.byte_tokenizer()
    tokenizer.chat_template = TURNS_TEMPLATE
    for texts, whole in (
        (("a",), "[user|a]>"),
        (("a", "b", "c"), "[user|a][assistant|b][user|c]>"),
        (("a", "b", "c", "d", "e"), "[user|a][assistant|b][user|c][assistant|d][user|e]>"),
    ):
        found = catalog.chat_ids(tokenizer, *texts)
        assert type(found) is list
        assert tokenizer.decode(found) == whole
    for even in ([], ["a", "b"]):
        with pytest.raises(SpecdecError) as refused:
            catalog.chat_ids(tokenizer, *even)
        assert str(refused.value) == (
            f"a conversation of {len(even)} texts does not end with the user; expected an odd number"
        )
    tokenizer.chat_template = None
    bare = catalog.chat_ids(begins_with_end(tokenizer), "a", "b", "c")
    assert type(bare) is list
    assert tokenizer.decode(bare) == "<|end|>a\nb\nc"


def test_the_ends_of_a_text_are_those_of_the_generation_config() -> None:
    def model(**generation: Any) -> Any:
        return SimpleNamespace(generation_config=SimpleNamespace(**generation))

    assert catalog.end_tokens(model(eos_token_id=5)) == (5,)
    assert catalog.end_tokens(model(eos_token_id=[5, 6])) == (5, 6)
    assert catalog.end_tokens(model(eos_token_id=None)) == ()
    bare: Any = SimpleNamespace(generation_config=None)
    assert catalog.end_tokens(bare) == ()


def edited(folder: Path, name: str, **changes: Any) -> Path:
    """The folder, with changes in one of its files of JSON."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generation", "config", "letter", "ends"),
    [
        (256, 256, "<|end|>", (256,)),
        (256, 256, "a", (256, 97)),
        (256, [256, 98], "<|end|>", (256, 98)),
        ([98, 99], 256, "a", (98, 99, 256, 97)),
        (None, None, "a", (97,)),
    ],
)
def test_a_text_ends_at_every_end_token_that_the_files_of_a_model_name(
    generation: Any, config: Any, letter: str, ends: tuple[int, ...], tiny_folder: Path
) -> None:
    letters = catalog.byte_tokenizer()
    names = {97: "a", 98: "b", 99: "c"}
    ids = {number: letters.convert_tokens_to_ids(name) for number, name in names.items()}

    def own(value: Any) -> Any:
        return [ids.get(one, one) for one in value] if isinstance(value, list) else ids.get(value, value)

    edited(tiny_folder, "generation_config.json", eos_token_id=own(generation))
    edited(tiny_folder, "config.json", eos_token_id=own(config))
    edited(tiny_folder, "tokenizer_config.json", eos_token=letter)
    assert catalog.end_tokens(catalog.load(str(tiny_folder), CPU, torch.float32).model) == tuple(own([*ends]))


def test_an_end_token_beyond_the_vocabulary_is_left_out(tiny_folder: Path) -> None:
    edited(tiny_folder, "generation_config.json", eos_token_id=[999, 256])
    assert catalog.end_tokens(catalog.load(str(tiny_folder), CPU, torch.float32).model) == (256,)
    edited(tiny_folder, "generation_config.json", eos_token_id=999)
    edited(tiny_folder, "config.json", eos_token_id=None)
    edited(tiny_folder, "tokenizer_config.json", eos_token=None)
    assert catalog.end_tokens(catalog.load(str(tiny_folder), CPU, torch.float32).model) == ()


@pytest.mark.parametrize(
    "change",
    [
        *({"pad_token_id": "end"}, {"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"hidden_size": "64"}),
        *({"num_hidden_layers": -1}, {"vocab_size": None}, {"model_type": "none"}, {"rope_parameters": 3}),
    ],
    ids=str,
)
def test_a_folder_whose_config_makes_no_model_is_refused_by_its_name(change: dict[str, Any], tiny_folder: Path) -> None:
    edited(tiny_folder, "config.json", **change)
    with pytest.raises(SpecdecError, match=str(tiny_folder)):
        catalog.load(str(tiny_folder), CPU, torch.float32, rows=1, max_length=64)


@pytest.mark.parametrize(
    ("name", "layers", "billions"),
    [("qwen3-30b-a3b", 48, 30.5), ("gpt-oss-20b", 24, 20.9), ("qwen3-next-80b-a3b", 48, 79.7)],
)
def test_a_shipped_shape_in_its_models_depth_has_its_published_number_of_weights(
    name: str, layers: int, billions: float
) -> None:
    config = catalog.read_config(f"shape:{name}")
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None)
    text.num_hidden_layers = layers
    if kinds:
        repeated = ["linear_attention"] * 3 + ["full_attention"] if "linear_attention" in kinds else kinds
        text.layer_types = repeated * (layers // len(repeated))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(billions * 1e9, rel=0.005)


def test_an_unknown_shape_names_those_that_are_shipped() -> None:
    with pytest.raises(SpecdecError, match=r"'gpt-oss-21b'.* shipped: gpt-oss-20b, qwen3-30b-a3b, qwen3-next-80b-a3b"):
        catalog.read_config("shape:gpt-oss-21b")


@pytest.mark.parametrize("padding", [-1, 258, 5000])
def test_a_padding_id_outside_of_the_vocabulary_changes_nothing(padding: int, tiny_folder: Path) -> None:
    tokens = torch.tensor([[1, 256, 3]])
    before = catalog.load(str(tiny_folder), CPU, torch.float32).model(tokens).logits
    edited(tiny_folder, "config.json", pad_token_id=padding)
    assert torch.equal(catalog.load(str(tiny_folder), CPU, torch.float32).model(tokens).logits, before)


def test_weights_in_several_files_are_read_and_a_lost_one_is_named(tiny_folder: Path) -> None:
    first = catalog.load("tiny", CPU, torch.float32).model
    (tiny_folder / "model.safetensors").unlink()
    first.save_pretrained(tiny_folder, max_shard_size="50KB")
    files = sorted(tiny_folder.glob("model-*.safetensors"))
    assert len(files) > 2
    for mine, theirs in zip(
        catalog.load(str(tiny_folder), CPU, torch.float32).model.parameters(), first.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
    files[1].unlink()
    with pytest.raises(SpecdecError, match=files[1].name):
        catalog.load(str(tiny_folder), CPU, torch.float32)


def test_a_folder_without_a_tokenizer_says_so(tiny_folder: Path) -> None:
    (tiny_folder / "tokenizer.json").unlink()
    with pytest.raises(SpecdecError, match="backend tokenizer from one of: .*serialization file"):
        catalog.load(str(tiny_folder), CPU, torch.float32)


def test_a_model_of_more_than_ten_thousand_layers_is_refused_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = catalog.tiny_config()
    config.num_hidden_layers = 10_001
    with pytest.raises(SpecdecError, match=r"^the model 'deep' has 10,001 layers, expected 10,000 at most; correct"):
        catalog.sizes("deep", config, torch.float32)
    monkeypatch.setattr(catalog, "MOST_LAYERS", 3)
    for layers in (1, 3):
        config.num_hidden_layers = layers
        assert catalog.sizes("deep", config, torch.float32).cell == layers * 2 * 2 * 16 * 4
    config.num_hidden_layers = 4
    with pytest.raises(SpecdecError, match="has 4 layers, expected 3 at most"):
        catalog.sizes("deep", config, torch.float32)


@pytest.mark.parametrize("kind", slow_after(3, ("zamba", "diffllama", "mimo_v2_flash", "qwen3_next", "jetmoe", "bart")))
def test_the_bytes_of_a_configuration_are_those_of_its_model_and_arena(kind: str) -> None:
    """Of states, of layers that attend twice, of heads and sizes that no field says, and of experts."""
    compare_bytes(kind, ArenaModel(spread_model(kind), registry().backend()))


def test_a_row_has_a_state_after_each_slot_and_one_before() -> None:
    config = families.config_of("mamba")
    found = catalog.sizes("it", config, torch.bfloat16)
    channels, kernel, states = config.intermediate_size, config.conv_kernel, config.state_size
    assert (found.cell, found.state) == (0, config.num_hidden_layers * channels * (2 * kernel + 4 * states))
    assert found.row(1000, 5) == 6 * found.state


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", '{"a": NaN}', "\x00"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_folder_with_a_file_that_is_none_is_refused_by_its_name(name: str, content: str, tiny_folder: Path) -> None:
    (tiny_folder / name).write_text(content)
    if name == "tokenizer_config.json" and content == '{"a": NaN}':
        return  # Python's JSON takes NaN, and the name means nothing
    with pytest.raises(SpecdecError, match=str(tiny_folder)):
        catalog.load(str(tiny_folder), CPU, torch.float32, rows=1, max_length=64)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('only one turn, please') }}", "TemplateError: only one turn, please"),
        ("{% for m in messages %}", "TemplateSyntaxError"),
        ("{{ messages[7].content }}", "UndefinedError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages | nofilter }}", "TemplateAssertionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
    ],
)
def test_what_a_chat_template_refuses_or_fails_at_is_said(template: str, says: str) -> None:
    tokenizer = catalog.byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(SpecdecError, match=f"chat template does not take these messages .{says}"):
        catalog.chat_ids(tokenizer, "hello")


@pytest.mark.parametrize("template", [None, TURNS_TEMPLATE])
def test_half_a_character_of_a_prompt_is_refused(template: str | None) -> None:
    tokenizer = catalog.byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(SpecdecError, match="half of a surrogate pair"):
        catalog.chat_ids(tokenizer, "hello", "caf\ud83d", "you")
    assert catalog.chat_ids(tokenizer, "😀")


def test_a_bad_word_is_found_alone_and_after_a_space_without_special_tokens() -> None:
    plain, tokenizer = catalog.byte_tokenizer(), begins_with_end(catalog.byte_tokenizer())
    assert tokenizer.encode("a")[0] == 256
    expected = tuple(tuple(plain.encode(text)) for text in ("no", " no", "é", " é"))
    assert catalog.word_ids(tokenizer, ["no", "é", "no"]) == expected
    assert catalog.word_ids(tokenizer, []) == ()
    for word in ("", " \n"):
        with pytest.raises(SpecdecError) as refused:
            catalog.word_ids(tokenizer, ["no", word])
        assert str(refused.value) == f"the bad word {word!r} is empty; give it at least one visible character"
