"""llama.cpp's peers hand a stand-in what llama-cpp-python's documentation asks for, and read what it yields."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch

from benchsuite.conformance.engines import kit_env, kit_target
from specdec import Registry, Request, SamplingParams, SpecdecError
from specdec_plugins.engines.llama_cpp import LlamaCpp

BLOCKS = ((4, 5, 6), (7,), (8, 9, 10, 11), (12,), (13, 14))
"""The tokens that each forward of the stand-in yields."""


class Llama:
    """llama-cpp-python's ``Llama``, without a model."""

    made: list[Llama]

    def __init__(self, **given: Any) -> None:
        self.given, self.calls = given, list[Any]()
        self.metadata = {"general.file_type": int(gguf.LlamaFileType.MOSTLY_Q4_1)}
        Llama.made.append(self)

    def reset(self) -> None:
        self.calls.append("reset")

    def set_seed(self, seed: int) -> None:
        self.calls.append(seed)

    def eval(self, tokens: Any) -> None:
        self.calls.append(list(tokens))

    def generate(self, prompt: list[int], **given: Any) -> Iterator[int]:
        self.calls.append(given)
        new = prompt
        for block in BLOCKS:
            self.eval(new)
            yield from block
            new = list(block)

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The stand-in in llama-cpp-python's place."""
    Llama.made = []
    stand_in = SimpleNamespace(Llama=Llama, __version__="9.9")
    lookup = SimpleNamespace(LlamaPromptLookupDecoding=lambda **given: given)
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", lookup)
    return stand_in


def peer(text: str, **changed: Any) -> tuple[LlamaCpp, Llama]:
    """A peer, and the stand-in that it loaded."""
    built = Registry().peer(text, replace(kit_env(None), **changed))
    assert isinstance(built, LlamaCpp)
    [made] = Llama.made
    return built, made


LOADED = {
    "n_ctx": 192,
    "n_threads": 1,
    "n_threads_batch": 1,
    "n_gpu_layers": 0,
    "verbose": False,
}


@pytest.mark.parametrize(
    ("text", "device", "changed"),
    [
        ("llama_cpp", "cpu", {}),
        ("llama_cpp(threads=3)", "cpu", {"n_threads": 3, "n_threads_batch": 3}),
        ("llama_cpp", "cuda", {"n_gpu_layers": -1}),
        (
            "llama_cpp_prompt_lookup",
            "cpu",
            {
                "n_ctx": 203,
                "draft_model": {"max_ngram_size": 2, "num_pred_tokens": 10},
                "logits_all": True,
            },
        ),
        (
            "llama_cpp_prompt_lookup(k=3, ngram=4, threads=2)",
            "cpu",
            {
                "n_ctx": 196,
                "n_threads": 2,
                "n_threads_batch": 2,
                "draft_model": {"max_ngram_size": 4, "num_pred_tokens": 3},
                "logits_all": True,
            },
        ),
    ],
)
def test_llama_cpp_is_given_the_file_room_for_a_request_and_its_proposals_and_threads(
    text: str, device: str, changed: dict[str, Any], module: object
) -> None:
    built, made = peer(text, device=torch.device(device))
    assert made.given == {"model_path": str(kit_target()), **LOADED, **changed}
    assert built.set_up_seconds.keys() == {"load"}
    assert 0 <= built.set_up_seconds["load"] < 60


@pytest.mark.parametrize("threads", [1, 2])
def test_without_a_number_the_threads_are_our_engines(threads: int, module: object) -> None:
    assert peer("llama_cpp", threads=threads)[1].given["n_threads"] == threads


@pytest.mark.parametrize(
    ("most", "eos", "tokens", "counts", "forwards"),
    [
        (1, (), (4,), [1], 0),
        (3, (), (4, 5, 6), [3], 0),
        (4, (), (4, 5, 6, 7), [3, 1], 1),
        (6, (), (4, 5, 6, 7, 8, 9), [3, 1, 2], 2),
        (9, (9, 50), (4, 5, 6, 7, 8, 9), [3, 1, 2], 2),
        (99, (), tuple(range(4, 15)), [3, 1, 4, 1, 2], 4),
    ],
)
def test_the_tokens_of_one_forward_arrive_together_until_the_end_or_the_budget(
    most: int, eos: tuple[int, ...], tokens: tuple[int, ...], counts: list[int], forwards: int, module: object
) -> None:
    built, made = peer("llama_cpp")
    params = SamplingParams(max_new_tokens=most, eos=eos, temperature=1.0, top_k=5, top_p=0.5, min_p=0.1, seed=40)
    for _ in range(2):  # what one request counted is not the next one's
        made.calls.clear()
        [done] = built.generate([Request(2, (1, 2), params)])
        assert done.tokens == tokens
        assert [count for _, count in done.emissions] == counts
        assert done.forwards == forwards
        times = [0.0, *(seconds for seconds, _ in done.emissions), done.seconds]
        assert times == sorted(times)
        asked = {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "temp": 1.0}
        assert made.calls[:4] == ["reset", 42, asked, [1, 2]]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"temperature": 0.7, "top_k": 5}, ""),
        ({"temperature": 1.0, "top_k": 5, "top_p": 0.5, "min_p": 0.1}, ""),
        ({"temperature": 0.0, "top_p": 0.5, "min_p": 0.1}, ""),
        ({"temperature": 0.7, "top_p": 0.5}, "with temperature 0.7 they draw from different distributions"),
        ({"temperature": 0.7, "min_p": 0.1}, "with temperature 0.7 they draw from different distributions"),
        (
            {"presence_penalty": 1.0},
            "llama_cpp cannot decode with presence_penalty; it takes temperature, top_k, top_p, min_p",
        ),
    ],
)
def test_what_llama_cpp_does_in_another_order_is_refused(params: dict[str, Any], says: str, module: object) -> None:
    built, given = peer("llama_cpp")[0], SamplingParams(**params)
    if says:
        with pytest.raises(SpecdecError, match=says):
            built.check_params(given)
    else:
        built.check_params(given)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("llama_cpp(threads=0)", "threads of the peer llama_cpp is 0; expected a whole number, 1 or more"),
        ("llama_cpp_prompt_lookup(threads=0)", "threads of the peer llama_cpp is 0; expected a whole number"),
        ("llama_cpp_prompt_lookup(k=0)", "k of the peer llama_cpp_prompt_lookup is 0; expected a whole number"),
        ("llama_cpp_prompt_lookup(ngram=0)", "ngram of the peer llama_cpp_prompt_lookup is 0; expected a whole"),
    ],
)
def test_numbers_below_one_are_refused(text: str, says: str, module: object) -> None:
    with pytest.raises(SpecdecError, match=says):
        Registry().parse_peer(text)


def test_llama_cpp_says_its_version_format_file_and_threads_and_what_is_compiled(module: object) -> None:
    built, made = peer("llama_cpp_prompt_lookup")
    assert built.described() == (
        "llama-cpp-python 9.9: Q4_1 weights of llama.gguf, 1 threads; prompt lookup k=10, ngram=2"
    )
    for kind, name in ((gguf.LlamaFileType.ALL_F32, "F32"), (99_999, "unknown format")):
        made.metadata["general.file_type"] = kind
        assert built.conditions() == {"dtype": f"{name} of llama.cpp", "compile": "no"}


def test_a_closed_peer_of_llama_cpp_has_freed_its_model_once_and_says_so(module: object) -> None:
    built, made = peer("llama_cpp")
    built.close()
    built.close()
    assert made.calls == ["close"]
    assert "eval" not in vars(made)
    with pytest.raises(SpecdecError, match=r"^this peer of llama\.cpp is closed; build another$"):
        built.generate([Request(0, (1,))])


def test_llama_cpp_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.peer.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    for text in ("llama_cpp", "llama_cpp_prompt_lookup"):
        with pytest.raises(SpecdecError, match=r"llama_cpp is not installed; pip install 'specdec-bench\[llama-cpp\]'"):
            Registry().parse_peer(text)
