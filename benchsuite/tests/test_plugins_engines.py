"""vLLM's peers hand a stand-in what vLLM's documentation asks for; a GGUF file is a target with the same weights."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.conformance.engines import kit_env, kit_target
from benchsuite.prove import families, tiny
from benchsuite.tests.rig import peer_runner
from specdec import Registry, Request, SamplingParams, SpecdecError, catalog


class StandIn:
    """vLLM's ``LLM`` and its engine, without a model: each step adds two tokens to every request."""

    __version__ = "0"

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.asked: list[tuple[list[int], dict[str, Any]]] = []
        self.live: dict[str, tuple[int, list[int]]] = {}

    def LLM(self, **given: Any) -> SimpleNamespace:
        self.given = given
        return SimpleNamespace(llm_engine=self)

    def SamplingParams(self, **given: Any) -> dict[str, Any]:
        return given

    def add_request(self, name: str, prompt: dict[str, list[int]], params: dict[str, Any]) -> None:
        self.asked.append((prompt["prompt_token_ids"], params))
        self.live[name] = params["max_tokens"], []

    def has_unfinished_requests(self) -> bool:
        return bool(self.live)

    def step(self) -> list[SimpleNamespace]:
        found = []
        for name, (most, tokens) in list(self.live.items()):
            tokens += range(len(tokens), min(len(tokens) + 2, most))
            found.append(SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=list(tokens))]))
            if len(tokens) == most:
                del self.live[name]
        return found


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in in vLLM's place."""
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    return stand_in


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("vllm", None),
        ("vllm_speculative", {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}),
        (
            "vllm_speculative(method=eagle, k=2, model=a/b)",
            {"method": "eagle", "num_speculative_tokens": 2, "model": "a/b"},
        ),
    ],
)
def test_vllm_is_given_the_target_and_what_speculates(text: str, config: object, vllm: StandIn) -> None:
    peer = Registry().peer(text, kit_env(None))
    assert vllm.given["model"] == str(kit_target())
    assert vllm.given["enable_prefix_caching"] is False
    assert vllm.given.get("speculative_config") == config
    work = [Request(i, (7, 8, i), SamplingParams(max_new_tokens=3 + i, eos=(5,))) for i in range(2)]
    done = peer.generate(work)
    assert [one.tokens for one in done] == [(0, 1, 2), (0, 1, 2, 3)]
    assert [[count for _, count in one.emissions] for one in done] == [[2, 1], [2, 2]]
    assert [prompt for prompt, _ in vllm.asked] == [[7, 8, 0], [7, 8, 1]]
    assert vllm.asked[1][1]["stop_token_ids"] == [5]
    assert vllm.asked[1][1]["max_tokens"] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm(memory=2)", "memory of the peer vllm is 2; expected a share"),
        ("vllm_speculative(method=eagel)", "unknown method .*did you mean 'eagle'"),
        ("vllm_speculative(method=eagle)", "model of .* is None; eagle takes the files of one"),
        ("vllm_speculative(k=0)", "k of the peer vllm_speculative is 0"),
        ("transformers_assisted", "model of the peer transformers_assisted is None; expected the assistant's name"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_loaded(text: str, message: str, vllm: StandIn) -> None:
    with pytest.raises(SpecdecError, match=message):
        Registry().peer(text, kit_env(None))
    assert not vllm.given


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.peer.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(SpecdecError, match=r"'vllm' cannot run here: .*pip install 'specdec-bench\[vllm\]'"):
        Registry().peer("vllm", kit_env(None))


def test_an_assistant_with_the_same_weights_changes_no_token_and_is_right(tmp_path: Path) -> None:
    model, work = families.build_model("llama"), tiny.requests(SamplingParams(max_new_tokens=16), 2)
    assisted = peer_runner(f"transformers_assisted(model={tiny.save_target('llama', tmp_path)}, k=3)", model)
    outcome = assisted.run(work)
    assert outcome.tokens == peer_runner("transformers", model).tokens(work)
    assert max(count for request in outcome.emissions for _, count in request) == 4


def test_a_gguf_file_is_a_target_with_the_weights_that_were_written() -> None:
    model, loaded = families.build_model("llama"), catalog.load(str(kit_target()), torch.device("cpu"), torch.float32)
    ids = torch.tensor([tiny.prompts(1)[0]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, loaded.model(ids).logits)


def test_a_target_without_a_gguf_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match=r"'tiny' has no GGUF file.*convert_hf_to_gguf.py"):
        catalog.gguf_file("tiny")
    with pytest.raises(SpecdecError, match="there is no GGUF file"):
        catalog.gguf_file(str(tmp_path / "none.gguf"))
