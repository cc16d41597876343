"""The parts of the peers of transformers and vLLM: what each is, its defaults, its times, and what it compiles."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from benchsuite.conformance.engines import kit_env
from benchsuite.conformance.models import families, tiny
from specdec import Generation, Registry, Request, SamplingParams, SpecdecError, catalog
from specdec.peer import Peer
from specdec_plugins.engines import transformers as engine_of_transformers
from specdec_plugins.engines import transformers_compiled
from specdec_plugins.engines.transformers import Transformers, _Arrivals

KINDS = {
    "endpoint": (None, True, False, False),
    "llama_cpp": (None, True, False, True),
    "llama_cpp_prompt_lookup": ("llama_cpp", True, False, True),
    "onnxruntime": (None, False, False, False),
    "onnxruntime_speculative": ("onnxruntime", False, False, False),
    "openvino": (None, True, True, False),
    "openvino_draft": ("openvino", True, True, False),
    "openvino_prompt_lookup": ("openvino", True, True, False),
    "transformers": (None, False, False, False),
    "transformers_assisted": ("transformers", False, False, False),
    "transformers_compiled": ("transformers", False, False, False),
    "transformers_early_exit": ("transformers", False, False, False),
    "transformers_prompt_lookup": ("transformers", False, False, False),
    "vllm": (None, True, True, False),
    "vllm_speculative": ("vllm", True, True, False),
}
"""Of each peer: what it is compared with, whether its arithmetic is its own, whether it batches, wants a GGUF file."""


def test_every_peer_is_registered_under_its_name_and_says_what_it_is() -> None:
    registry = Registry()
    found = {}
    for name in KINDS:
        kind: Any = registry.entry("peer", name).factory
        assert issubclass(kind, Peer)
        found[name] = (kind.reference or None, kind.own_arithmetic, kind.batches, kind.needs_gguf)
    assert found == KINDS


class _Doubles:
    """A model of transformers' whose ``generate`` calls the stopping criteria as transformers does."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, *lengths: int) -> None:
        self.config, self.lengths = families.build_model("llama").config, lengths
        self.generation_config: Any = "the model's own"
        self.given: dict[str, Any] = {}
        self.noise = 0.0

    def generate(self, ids: torch.Tensor, **given: Any) -> Any:
        self.given, self.noise = given, float(torch.rand(1))
        if "return_dict_in_generate" in given:
            return SimpleNamespace(logits=[torch.tensor([[float(n), 1.0]], dtype=torch.float64) for n in range(2)])
        whole = torch.arange(max(self.lengths)).unsqueeze(0)
        for length in self.lengths:
            for criterion in given["stopping_criteria"]:
                assert criterion(whole[:, :length], None).tolist() == [False]
        return whole


def _peer_of(text: str, model: object) -> Any:
    return Registry().peer(text, kit_env(lambda: model))


@pytest.mark.parametrize(
    ("lengths", "counts", "forwards"),
    [((3,), [1], 0), ((3, 4, 5), [1, 1, 1], 2), ((4, 4, 7), [2, 3], 2)],
)
def test_tokens_arrive_with_the_forward_that_appended_them(
    lengths: tuple[int, ...], counts: list[int], forwards: int
) -> None:
    peer = _peer_of("transformers", _Doubles(*lengths))
    [done] = peer.generate([Request(0, (0, 1), SamplingParams(max_new_tokens=9))])
    assert done.tokens == tuple(range(2, lengths[-1]))
    assert [count for _, count in done.emissions] == counts
    assert done.forwards == forwards
    times = [0.0, *(seconds for seconds, _ in done.emissions), done.seconds]
    assert times == sorted(times)


def test_a_forward_beyond_the_output_emits_nothing_and_time_counts_from_the_start() -> None:
    arrivals: Any = _Arrivals(torch.device("cpu"))
    go_on = arrivals(torch.zeros(1, 4), None)
    assert (go_on.dtype, go_on.tolist()) == (torch.bool, [False])
    assert [length for _, length in arrivals.seen] == [4]
    arrivals.seen = [(10, 4), (20, 4), (30, 6), (40, 9)]
    arrivals.watch = SimpleNamespace(seconds=lambda start, mark: (start, mark))
    assert arrivals.emissions(5, 3, 3) == (((5, 10), 1), ((5, 30), 2))
    assert arrivals.emissions(5, 3, 6) == (((5, 10), 1), ((5, 30), 2), ((5, 40), 3))


def test_what_a_device_still_does_is_waited_for_before_a_request_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(engine_of_transformers, "synchronize", waited.append)
    peer = _peer_of("transformers", _Doubles(3))
    peer.generate([Request(0, (0, 1))])
    assert waited == [torch.device("cpu")]


def test_a_draw_follows_from_the_requests_seed_and_number_at_any_temperature() -> None:
    model = _Doubles(3)
    peer = _peer_of("transformers", model)
    assert isinstance(model.generation_config, transformers.GenerationConfig), "the model's defaults change no output"
    for temperature in (0.5, 1.0, 1.5):
        peer.generate([Request(3, (0, 1), SamplingParams(temperature=temperature, seed=40))])
        torch.manual_seed(43)
        assert model.noise == float(torch.rand(1))


def test_logits_are_those_of_one_token_in_single_precision_and_none_beyond_the_output() -> None:
    model = _Doubles(3)
    peer, request = _peer_of("transformers", model), Request(0, (0, 1), SamplingParams())
    for index in range(2):
        logits = peer.logits_at(request, index)
        assert (logits.dtype, logits.tolist()) == (torch.float32, [index, 1.0])
    assert (model.given["output_logits"], model.given["return_dict_in_generate"]) == (True, True)
    assert peer.logits_at(request, 2) is None


VERSION = transformers.__version__


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("transformers", "dynamic cache, {} attention, float32, not compiled"),
        ("transformers(cache=static)", "static cache, {} attention, float32, not compiled"),
        (
            "transformers_prompt_lookup",
            "dynamic cache, {} attention, float32, not compiled; prompt lookup k=10, ngram=2",
        ),
        (
            "transformers_compiled",
            "static cache, {} attention, float32, compiled by torch.compile, mode default",
        ),
    ],
)
def test_peers_of_transformers_describe_themselves_with_their_defaults(text: str, described: str) -> None:
    model = _Doubles(3)
    peer = _peer_of(text, model)
    attention = model.config._attn_implementation
    assert peer.described() == f"transformers {VERSION} generate: {described.format(attention)}"
    compiled = "default" if text == "transformers_compiled" else "no"
    assert peer.conditions() == {"dtype": "float32", "compile": compiled}
    assert peer.set_up_seconds == ({} if compiled == "no" else {"compile": 0.0})


def test_the_lookup_of_transformers_has_its_defaults() -> None:
    assert _peer_of("transformers_prompt_lookup", _Doubles(3))._own == {
        "prompt_lookup_num_tokens": 10,
        "max_matching_ngram_size": 2,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("transformers(cache=statik)", "unknown cache of the peer transformers 'statik'; did you mean 'static'"),
        ("transformers_prompt_lookup(k=0)", "k of the peer transformers_prompt_lookup is 0; expected a whole number"),
        ("transformers_prompt_lookup(ngram=0)", "ngram of the peer transformers_prompt_lookup is 0; expected a whole"),
        (
            "transformers_early_exit(layers=0)",
            "layers of the peer transformers_early_exit is 0; expected a whole number",
        ),
        ("transformers_assisted(model=x, k=0)", "k of the peer transformers_assisted is 0; expected a whole number"),
        ("transformers_assisted(model=3)", "model of the peer transformers_assisted is 3; expected the assistant's na"),
    ],
)
def test_wrong_options_of_transformers_are_refused_by_the_peers_name(text: str, says: str) -> None:
    with pytest.raises(SpecdecError, match=f"^{says}"):
        Registry().parse_peer(text)


@pytest.mark.slow
def test_an_assistant_has_four_proposals_and_the_targets_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"transformers_assisted(model={tiny.save_target('llama', tmp_path)})"
    peer = _peer_of(text, _Doubles(3))
    assert peer._own["assistant_model"].generation_config.num_assistant_tokens == 4
    assert peer._own.keys() == {"assistant_model"}
    assert peer.described().endswith(f"; assistant {tmp_path}, k=4")
    other = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: {"a": 0}), model=None)
    monkeypatch.setattr(catalog, "load", lambda *given, **more: other)
    with pytest.raises(SpecdecError, match=r"^the assistant .* has another tokenizer than the target"):
        _peer_of(text, _Doubles(3))


def test_only_what_is_compiled_in_set_up_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timed run that would compile is compiled outside, booked, and run again; another error is not swallowed."""
    ticks = iter((1.0, 3.0, 10.0, 14.0, 20.0))
    monkeypatch.setattr(transformers_compiled, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    peer = _peer_of("transformers_compiled", _Doubles(3))
    request, done = Request(0, (0, 1)), Generation((2,), (), 0.0)
    dynamo, ran = torch._dynamo.config, list[tuple[bool, str]]()
    fails = {"fail_on_recompile"}

    def generate(self: object, requests: object) -> list[Generation]:
        may = dynamo.recompile_limit == transformers_compiled.MOST_GRAPHS
        stance = torch._dynamo.eval_frame._stance.stance
        ran.append((may, stance))
        if stance in fails:
            fails.clear()
            raise RuntimeError("it must be compiled")
        return [done]

    monkeypatch.setattr(Transformers, "generate", generate)
    peer.warm_up(request)
    assert (ran, peer.set_up_seconds) == ([(True, "default")], {"compile": 2.0})
    assert peer.generate([request]) == [done]
    assert ran[1:] == [(False, "fail_on_recompile"), (True, "default"), (False, "fail_on_recompile")]
    assert peer.set_up_seconds == {"compile": 6.0}
    assert peer.generate([request]) == [done]
    assert len(ran) == 5, "what is compiled is run once"
    fails |= {"fail_on_recompile", "default"}
    monkeypatch.setattr(Transformers, "generate", lambda self, requests: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        peer.generate([request])


def test_a_compiled_peer_starts_each_request_with_an_empty_cache() -> None:
    peer = _peer_of("transformers_compiled", _Doubles(3))
    resets: list[int] = []
    peer._cache.reset = lambda: resets.append(1)
    assert peer._given() == {"compile_config": peer._config, "past_key_values": peer._cache}
    assert resets == [1]


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ("", {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}),
        (
            "method=suffix",
            {"method": "suffix", "num_speculative_tokens": 4, "suffix_decoding_max_cached_requests": 0},
        ),
        ("method=mtp, k=1", {"method": "mtp", "num_speculative_tokens": 1}),
        *(
            (f"method={name}, model=x", {"method": name, "num_speculative_tokens": 4, "model": "x"})
            for name in ("draft_model", "eagle", "eagle3", "medusa")
        ),
    ],
)
def test_every_method_of_vllm_is_given_what_it_needs(
    options: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    stand_in = SimpleNamespace(LLM=lambda **more: given.update(more), __version__="0")
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    peer = _peer_of(f"vllm_speculative({options})", None)
    assert given["speculative_config"] == config
    assert (given["kv_cache_memory_bytes"], given["enforce_eager"]) == (2**28, False)
    words = ", ".join(f"{name} {value}" for name, value in config.items())
    assert peer.described() == f"vLLM 0: float32, compiled and captured by vLLM, no prefix caching; {words}"
