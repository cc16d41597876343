"""What ``engines serve`` starts: each engine's words of speculation, and what it refuses."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.engines.launches import LLAMA_TYPES, VLLM_METHODS, WantedServer, server_command
from benchsuite.engines.llama_server import set_dotted
from specdec import Registry, SpecdecError
from specdec_plugins.for_vllm import SpecdecProposer

WANTED = WantedServer("models/small", 8100, threads=2)


def option(command: str, name: str) -> Any:
    """The JSON behind an option of a command; None where it has none."""
    words = shlex.split(command)
    return json.loads(words[words.index(name) + 1]) if name in words else None


def llama(wanted: WantedServer) -> dict[str, Any]:
    """The settings of llama.cpp's server."""
    found: dict[str, Any] = json.loads(shlex.split(server_command("llama_cpp", Path("e"), wanted))[-1])
    return found


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ({}, None),
        ({"speculation": "ngram"}, {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}),
        ({"speculation": "suffix", "k": 8}, {"method": "suffix", "num_speculative_tokens": 8}),
        (
            {"speculation": "draft_model", "draft_model": "d"},
            {"method": "draft_model", "num_speculative_tokens": 4, "model": "d"},
        ),
        ({"speculation": '{"method": "mtp"}'}, {"method": "mtp"}),
    ],
)
def test_vllm_is_told_what_speculates(asked: dict[str, Any], config: dict[str, Any] | None) -> None:
    said = option(server_command("vllm", Path("e"), replace(WANTED, **asked)), "--speculative-config")
    assert (said and {name: said[name] for name in config or ()}) == config


def test_a_draft_of_ours_in_vllm_is_one_that_it_can_load() -> None:
    command = server_command("vllm", Path("e"), replace(WANTED, speculation="specdec:suffix(min_match=3)"))
    config, more = option(command, "--speculative-config"), option(command, "--additional-config")
    assert config["method"] == "custom_class"
    assert config["model"] == f"{SpecdecProposer.__module__}.{SpecdecProposer.__name__}"
    vllm = SimpleNamespace(
        speculative_config=SimpleNamespace(**config),
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 100),
        scheduler_config=SimpleNamespace(max_num_seqs=1),
        additional_config=more,
    )
    assert SpecdecProposer(vllm)
    assert Registry().parse("draft", "suffix(min_match=3)")


def test_vllm_gets_the_threads_and_the_library_of_its_environment(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    words = shlex.split(server_command("vllm", tmp_path, replace(WANTED, more=("seed=7", "enable-lora"))))
    assert words[0] == "env"
    assert {"OMP_NUM_THREADS=2", f"LD_PRELOAD={tmp_path / 'lib' / 'libiomp5.so'}"} <= set(words)
    assert words[-3:] == ["--seed", "7", "--enable-lora"]
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--served-model-name") + 1] == "small"


def test_llama_cpp_gets_types_proposals_and_settings_of_its_own() -> None:
    plain = llama(WANTED)
    assert (plain["hostnames"], plain["port"], plain["cpuparams.n_threads"]) == (["127.0.0.1"], 8100, 2)
    assert plain["n_ctx"] == WANTED.max_length * WANTED.rows
    assert not [name for name in plain if name.startswith("speculative")]
    both = replace(WANTED, speculation="ngram-simple, draft-simple", draft_model="d.gguf", k=5)
    said = llama(replace(both, more=("speculative.ngram_simple.size_n=3", "chat_template=chatml")))
    assert said["speculative.types"] == ["ngram-simple", "draft-simple"]
    assert said["speculative.draft.mparams.path"] == "d.gguf"
    assert said["speculative.ngram_simple.size_m"] == said["speculative.draft.n_max"] == 5
    assert (said["speculative.ngram_simple.size_n"], said["chat_template"]) == (3, "chatml")


@pytest.mark.parametrize(
    ("engine", "asked", "refusal"),
    [
        ("peers", {}, "unknown engine with a server 'peers'.*choices: llama_cpp, vllm"),
        ("vllm", {"speculation": "ngrm"}, "unknown speculation of vllm 'ngrm'; did you mean 'ngram'.*specdec:suffix"),
        ("vllm", {"speculation": "{"}, "'{' is no JSON"),
        ("vllm", {"speculation": "{}", "k": 3}, "write --k and --draft-model into it"),
        ("vllm", {"k": 3}, "which is not given"),
        ("vllm", {"speculation": "ngram", "draft_model": "d"}, "--draft-model is 'd', and .* ngram of vllm takes none"),
        ("vllm", {"speculation": "eagle3"}, "--draft-model is None, and .* eagle3 of vllm needs one"),
        ("llama_cpp", {"speculation": "ngram"}, "unknown speculation of llama_cpp 'ngram'.*ngram-simple"),
        ("llama_cpp", {"speculation": "draft-simple"}, "'draft-simple' of llama_cpp needs one"),
        ("llama_cpp", {"speculation": "ngram-mod", "draft_model": "d"}, "'ngram-mod' of llama_cpp takes none"),
        ("llama_cpp", {"k": 3}, "--k is of --speculation, which is not given"),
        ("llama_cpp", {"more": ("n_ctx",)}, "--set 'n_ctx' has no value; write NAME=VALUE"),
    ],
)
def test_what_an_engine_does_not_take_is_refused(engine: str, asked: dict[str, Any], refusal: str) -> None:
    with pytest.raises(SpecdecError, match=refusal):
        server_command(engine, Path("e"), replace(WANTED, **asked))


@pytest.mark.parametrize(
    ("engine", "word", "needs"),
    [*(("vllm", *one) for one in VLLM_METHODS.items()), *(("llama_cpp", *one) for one in LLAMA_TYPES.items())],
)
def test_every_word_of_speculation_is_taken_with_what_it_needs(engine: str, word: str, needs: bool) -> None:
    wanted = replace(WANTED, speculation=word, draft_model="d" if needs else None)
    assert word in server_command(engine, Path("e"), wanted)


def test_a_parameter_that_llama_cpp_lacks_is_refused_with_those_beside_it() -> None:
    params = SimpleNamespace(draft=SimpleNamespace(n_max=3, n_min=0))
    set_dotted(params, "draft.n_max", 8)
    assert params.draft.n_max == 8
    for name in ("draft.n_mx", "drft.n_max"):
        with pytest.raises(SystemExit, match=f"no parameter '{name}'; in its place there are: "):
            set_dotted(params, name, 8)
    with pytest.raises(SystemExit, match="there are: n_max, n_min"):
        set_dotted(params, "draft.n_mx", 8)
