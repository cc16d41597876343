"""vLLM's peers hand a stand-in what vLLM's documentation asks for; a GGUF file is a target with the same weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import StaticCache

from benchsuite.conformance.engines import kit_env, kit_target
from benchsuite.conformance.models import families, tiny
from benchsuite.tests.rig import peer_runner
from specdec import DraftCounts, Registry, Request, SamplingParams, SpecdecError, catalog
from specdec_plugins.engines import transformers_compiled
from specdec_plugins.engines.transformers import generate_arguments


class StandIn:
    """vLLM's ``LLM`` and its engine, without a model: each step adds two tokens to every request.

    With ``per_request_spec_decode_metrics`` the last of a request has its counts: one of three proposals a step.
    """

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
            steps = len(tokens) // 2
            told = self.given.get("per_request_spec_decode_metrics") == "detailed" and len(tokens) == most
            counted = SimpleNamespace(per_step_drafted=[3] * steps, per_step_accepted=[1] * steps) if told else None
            output = SimpleNamespace(token_ids=list(tokens), spec_decode_metrics=counted)
            found.append(SimpleNamespace(request_id=name, outputs=[output]))
            if len(tokens) == most:
                del self.live[name]
        return found


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in in vLLM's place."""
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    return stand_in


LOOKED_UP = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("vllm", None),
        ("vllm_speculative", LOOKED_UP),
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
    assert [one.forwards for one in done] == [1, 1]
    steps = [[(3, 1)], [(3, 1)] * 2]
    assert [one.counts for one in done] == [DraftCounts.of_steps(one) if config else None for one in steps]
    assert [prompt for prompt, _ in vllm.asked] == [[7, 8, 0], [7, 8, 1]]
    assert vllm.asked[1][1]["stop_token_ids"] == [5]
    assert vllm.asked[1][1]["max_tokens"] == 4


@pytest.mark.parametrize(
    ("text", "options", "described"),
    [
        ("vllm", {}, "vLLM 0: float32, compiled and captured by vLLM, no prefix caching"),
        (
            "vllm(memory=0.5, eager=True)",
            {"gpu_memory_utilization": 0.5, "enforce_eager": True},
            "vLLM 0: float32, not compiled, no prefix caching",
        ),
        (
            "vllm_speculative(memory=1, eager=True, k=2, ngram=3, shortest=1)",
            {
                "gpu_memory_utilization": 1,
                "enforce_eager": True,
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 2,
                    "prompt_lookup_max": 3,
                    "prompt_lookup_min": 1,
                },
                "per_request_spec_decode_metrics": "detailed",
            },
            "vLLM 0: float32, not compiled, no prefix caching; method ngram, num_speculative_tokens 2, "
            "prompt_lookup_max 3, prompt_lookup_min 1",
        ),
        (
            "vllm_speculative(method=custom_class, draft=suffix(min_match=3))",
            {
                "speculative_config": {
                    "method": "custom_class",
                    "num_speculative_tokens": 4,
                    "model": "specdec_plugins.for_vllm.SpecdecProposer",
                },
                "per_request_spec_decode_metrics": "detailed",
                "additional_config": {"specdec_draft": "suffix(min_match=3)", "specdec_forgets": True},
            },
            "vLLM 0: float32, compiled and captured by vLLM, no prefix caching; method custom_class, "
            "num_speculative_tokens 4, model specdec_plugins.for_vllm.SpecdecProposer, draft suffix(min_match=3)",
        ),
    ],
)
def test_vllm_is_given_these_arguments_and_no_others(
    text: str, options: dict[str, Any], described: str, vllm: StandIn
) -> None:
    peer = Registry().peer(text, kit_env(None))
    memory = {} if "gpu_memory_utilization" in options else {"kv_cache_memory_bytes": 2**28}
    usual = {"enforce_eager": False, **memory}
    sizes = {"max_model_len": 192, "max_num_seqs": 4, "enable_prefix_caching": False}
    assert vllm.given == {"model": str(kit_target()), "dtype": "float32", **sizes, **usual, **options}
    assert peer.set_up_seconds.keys() == {"load"}
    assert 0 <= peer.set_up_seconds["load"] < 60
    assert peer.described() == described
    compiled = "no" if options.get("enforce_eager") else "by vLLM"
    assert peer.conditions() == {"dtype": "float32", "compile": compiled}


def test_vllms_memory_is_a_share_of_a_gpu_and_on_a_cpu_what_the_cache_of_the_run_needs(vllm: StandIn) -> None:
    """A share of a CPU's memory is one of all of it, and vLLM does not start where others use the rest."""
    env = replace(kit_env(None), max_rows=500, max_length=5000)
    Registry().peer("vllm", env)
    config = families.build_model("llama-16").config
    cell = config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2 * 4  # float32 keys and values
    assert vllm.given["kv_cache_memory_bytes"] == 3 * 500 * 5000 * cell
    assert "gpu_memory_utilization" not in vllm.given
    Registry().peer("vllm", replace(env, device=torch.device("cuda")))
    assert (vllm.given["gpu_memory_utilization"], "kv_cache_memory_bytes" in vllm.given) == (0.9, False)


USUAL: dict[str, Any] = {
    "max_tokens": 5,
    "min_tokens": 0,
    "temperature": 0.0,
    "top_k": -1,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "stop_token_ids": [],
    "ignore_eos": True,
    "detokenize": False,
}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"temperature": 0.5, "seed": 7}, {"temperature": 0.5, "seed": 10}),
        ({"temperature": 0.0, "seed": 7}, {}),
        ({"top_k": 4, "top_p": 0.5, "min_p": 0.1}, {"top_k": 4, "top_p": 0.5, "min_p": 0.1}),
        ({"presence_penalty": 0.5, "frequency_penalty": 0.25}, {"presence_penalty": 0.5, "frequency_penalty": 0.25}),
        ({"repetition_penalty": 1.5, "logit_bias": {3: 2.0}}, {"repetition_penalty": 1.5, "logit_bias": {3: 2.0}}),
        ({"eos": (5, 6), "min_new_tokens": 2}, {"stop_token_ids": [5, 6], "min_tokens": 2}),
    ],
)
def test_vllm_is_given_every_sampling_parameter(given: dict[str, Any], changed: dict[str, Any], vllm: StandIn) -> None:
    params = SamplingParams(max_new_tokens=5, **given)
    peer = Registry().peer("vllm", kit_env(None))
    peer.check_params(params)
    peer.generate([Request(3, (7,), params)])
    assert vllm.asked == [([7], {**USUAL, **changed})]


@pytest.mark.slow
def test_what_vllm_lacks_is_refused_and_a_closed_peer_says_so(vllm: StandIn) -> None:
    peer = Registry().peer("vllm", kit_env(None))
    with pytest.raises(SpecdecError, match=r"vllm cannot decode with bad_words, logprobs, stop; it takes temp"):
        peer.check_params(SamplingParams(stop=("x",), bad_words=((3,),), logprobs=0))
    peer.close()
    with pytest.raises(SpecdecError, match=r"^this peer of vLLM is closed; build another$"):
        peer.generate([Request(0, (1,))])


def test_the_times_of_vllms_tokens_are_those_of_the_steps_that_returned_them(vllm: StandIn) -> None:
    """A request that is over has the time of its last tokens, and one without tokens none."""
    peer = Registry().peer("vllm", kit_env(None))
    step, ran = vllm.step, 0

    def empty_first() -> list[SimpleNamespace]:
        nonlocal ran
        ran += 1
        if ran == 1:  # a step that reads a prompt returns no token
            return [SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[])]) for name in vllm.live]
        return step()

    vllm.step = empty_first  # type: ignore[method-assign]
    short, long = peer.generate([Request(i, (1,), SamplingParams(max_new_tokens=most)) for i, most in ((0, 2), (1, 6))])
    assert [count for _, count in long.emissions] == [2, 2, 2]
    assert long.emissions[0][0] == short.emissions[0][0]
    assert short.seconds == short.emissions[-1][0] < long.emissions[1][0] < long.seconds == long.emissions[-1][0]
    assert (short.forwards, long.forwards) == (0, 2)
    vllm.step = lambda: vllm.live.clear() or []  # type: ignore[method-assign,func-returns-value]
    [none] = peer.generate([Request(0, (1,))])
    assert (none.tokens, none.emissions, none.seconds) == ((), (), 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm(memory=0)", "memory of the peer vllm is 0; expected a share, more than 0 and at most 1"),
        ("vllm(memory=1.01)", "memory of the peer vllm is 1.01; expected a share"),
        ("vllm(memory=True)", "memory of the peer vllm is True; expected a share"),
        ("vllm(memory=much)", "memory of the peer vllm is 'much'; expected a share"),
        ("vllm(eager=1)", "eager of the peer vllm is 1; expected True or False"),
        ("vllm_speculative(memory=0)", "memory of the peer vllm is 0; expected a share"),
        ("vllm_speculative(eager=1)", "eager of the peer vllm is 1; expected True or False"),
        ("vllm_speculative(shortest=0)", "shortest of the peer vllm_speculative is 0; expected a whole number"),
        ("vllm_speculative(ngram=1)", "shortest of .* is 2 and ngram 1; expected shortest <= ngram"),
        ("vllm_speculative(draft=suffix)", "draft of .* is 'suffix'; only method=custom_class takes one"),
        ("vllm_speculative(method=custom_class)", "draft of .* is None and model None; custom_class takes one of them"),
        ("vllm_speculative(method=custom_class, draft=suffix, model=a.B)", "draft .* is 'suffix' and model 'a.B'"),
        ("vllm_speculative(ngram=0)", "ngram of the peer vllm_speculative is 0; expected a whole number"),
        *(
            (f"vllm_speculative(method={method}, model=x)", f"is 'x'; {method} takes none")
            for method in ("ngram", "suffix", "mtp")
        ),
        *(
            (f"vllm_speculative(method={method})", f"is None; {method} takes the files of one")
            for method in ("draft_model", "eagle", "eagle3", "medusa")
        ),
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


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"eos": (5, 6)}, {"eos_token_id": [5, 6]}),
        ({"eos": (5,), "min_new_tokens": 2}, {"eos_token_id": [5], "min_new_tokens": 2}),
        ({"min_new_tokens": 2}, {}),
        ({"top_k": 4, "top_p": 0.5, "min_p": 0.1}, {}),
        (
            {"temperature": 0.5, "top_k": 4, "top_p": 0.25},
            {"do_sample": True, "temperature": 0.5, "top_k": 4, "top_p": 0.25},
        ),
        (
            {"temperature": 1.0, "min_p": 0.1},
            {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
        ),
        ({"logit_bias": {3: 2.0, 1: -1.0}}, {"sequence_bias": [[[1], -1.0], [[3], 2.0]]}),
        ({"bad_words": ((3,), (4, 5))}, {"bad_words_ids": [[3], [4, 5]]}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"frequency_penalty": 0.5}, {"logits_processor": [(0.5, 0.0, 3)]}),
        ({"presence_penalty": -0.5}, {"logits_processor": [(0.0, -0.5, 3)]}),
    ],
)
def test_transformers_is_given_these_arguments_and_no_others(given: dict[str, Any], changed: dict[str, Any]) -> None:
    found = generate_arguments(Request(0, (7, 8, 9), SamplingParams(max_new_tokens=5, **given)))
    if "logits_processor" in found:
        found["logits_processor"] = [(p.frequency, p.presence, p.prompt) for p in found["logits_processor"]]
    assert found == {"max_new_tokens": 5, "eos_token_id": None, "do_sample": False, **changed}


def test_the_penalties_of_transformers_count_the_output_alone_also_of_a_request_that_goes_on() -> None:
    request = Request(0, (7, 8), SamplingParams(max_new_tokens=5, frequency_penalty=0.5, presence_penalty=0.25))
    [penalties] = generate_arguments(request.after((9, 9)))["logits_processor"]
    assert penalties.prompt == 2
    scores = torch.zeros(1, 11)
    found = penalties(torch.tensor([[7, 8, 9, 9, 1]]), scores)
    expected = torch.zeros(1, 11)
    expected[0, 9], expected[0, 1] = -1.25, -0.75
    assert torch.equal(found, expected)
    assert not scores.any()


class Generates:
    """A model of transformers' whose ``generate`` notes what it is given, and adds two tokens."""

    device, dtype = torch.device("cpu"), torch.float32
    generation_config: Any = None

    def __init__(self) -> None:
        self.config = families.build_model("llama").config
        self.given: dict[str, Any] = {}

    def register_forward_hook(self, hook: object) -> SimpleNamespace:
        return SimpleNamespace(remove=lambda: None)

    def generate(self, ids: torch.Tensor, **given: Any) -> torch.Tensor:
        self.given = {**given, "noise": float(torch.rand(1))}
        return torch.cat([ids, torch.tensor([[1, 2]])], dim=1)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("transformers", {"disable_compile": True, "cache_implementation": "dynamic"}),
        ("transformers(cache=static)", {"disable_compile": True, "cache_implementation": "static"}),
        (
            "transformers_prompt_lookup(k=3, ngram=1)",
            {"disable_compile": True, "prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
        ),
    ],
)
def test_generate_is_given_the_cache_or_the_lookup_and_its_seed(text: str, own: dict[str, Any]) -> None:
    model = Generates()
    peer = Registry().peer(text, kit_env(lambda: model))
    params = SamplingParams(max_new_tokens=2, temperature=1.0, seed=40)
    [done] = peer.generate([Request(2, (7, 8), params)])
    usual = {"max_new_tokens": 2, "eos_token_id": None, "do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    torch.manual_seed(42)
    noise = float(torch.rand(1))
    assert model.given.pop("attention_mask").tolist() == [[1, 1]]
    assert len(model.given.pop("stopping_criteria")) == 1
    assert model.given == {"pad_token_id": 0, "noise": noise, **usual, **own}
    assert done.tokens == (1, 2)
    peer.generate([Request(2, (7, 8), SamplingParams(max_new_tokens=2, seed=40))])
    assert model.given["noise"] != noise, "a greedy request changes nobody's random numbers"
    peer.close()
    with pytest.raises(SpecdecError, match=r"^this peer of transformers is closed; build another$"):
        peer.generate([Request(0, (1,))])


@pytest.mark.parametrize(("device", "mode"), [("cpu", "default"), ("cuda", "reduce-overhead")])
def test_a_compiled_forward_is_one_graph_on_any_device_over_one_cache_of_the_whole_length(
    device: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    def cache_of(**given: Any) -> StaticCache:
        made.append(given)
        return StaticCache(**given)

    monkeypatch.setattr(transformers_compiled, "StaticCache", cache_of)
    model, limits = Generates(), list[tuple[int, int]]()
    model.device = torch.device(device)
    env = kit_env(lambda: model)
    peer: Any = Registry().peer("transformers_compiled", env)
    [cache] = made
    assert cache == {"config": model.config, "max_cache_len": 192}
    given = peer._given()
    assert given.keys() == {"compile_config", "past_key_values"}
    assert isinstance(given["past_key_values"], StaticCache)
    config = given["compile_config"]
    assert (config.fullgraph, config.mode, config._compile_all_devices) == (True, mode, True)
    assert peer.conditions() == {"dtype": "float32", "compile": mode}
    assert peer.set_up_seconds == {"compile": 0.0}
    dynamo = torch._dynamo.config

    def generate(ids: torch.Tensor, **given: Any) -> torch.Tensor:
        limits.append((dynamo.recompile_limit, dynamo.accumulated_recompile_limit))
        return ids

    monkeypatch.setattr(model, "generate", generate)
    model.device = torch.device("cpu")
    peer.warm_up(Request(0, (7, 8)))
    assert limits == [(256, 256)]
    assert (dynamo.recompile_limit, dynamo.accumulated_recompile_limit) != (256, 256)


def test_an_assistant_proposes_the_same_number_in_every_step_and_is_never_unsure(tmp_path: Path) -> None:
    text = f"transformers_assisted(model={tiny.save_target('llama', tmp_path)}, k=3)"
    peer: Any = Registry().peer(text, kit_env(Generates))
    assistant = peer._own["assistant_model"].generation_config
    assert (assistant.num_assistant_tokens, assistant.num_assistant_tokens_schedule) == (3, "constant")
    assert assistant.assistant_confidence_threshold == 0.0
    assert peer.described().endswith(f", not compiled; assistant {tmp_path}, k=3")
    peer.close()
    assert peer._own == {}
    assert peer._model is None


def test_a_target_cannot_be_left_after_its_last_layer_and_its_own_defaults_come_back() -> None:
    model = Generates()
    most = model.config.num_hidden_layers
    peer = Registry().peer(f"transformers_early_exit(layers={most - 1}, k=3)", kit_env(lambda: model))
    seen = list[Any]()
    generate = model.generate
    model.generate = lambda *given, **named: seen.append(model.generation_config) or generate(*given, **named)  # type: ignore[method-assign,func-returns-value]
    peer.generate([Request(0, (7, 8), SamplingParams(max_new_tokens=2))])
    assert model.given["assistant_early_exit"] == most - 1
    assert (seen[0].num_assistant_tokens, seen[0].num_assistant_tokens_schedule) == (3, "constant")
    assert (seen[0].assistant_confidence_threshold, model.generation_config.num_assistant_tokens) == (0.0, None)
    assert peer.described().endswith(f", not compiled; early exit after {most - 1} layers, k=3")
    with pytest.raises(SpecdecError, match=rf"layers of .* is {most}, and the target .* has {most}; expected fewer, "):
        Registry().peer(f"transformers_early_exit(layers={most})", kit_env(Generates))


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.peer.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(SpecdecError, match=r"'vllm' cannot run here: .*pip install 'specdec-bench\[vllm\]'"):
        Registry().peer("vllm", kit_env(None))


@pytest.mark.slow
def test_an_assistant_with_the_same_weights_changes_no_token_and_is_right(tmp_path: Path) -> None:
    model, work = families.build_model("llama"), tiny.requests(SamplingParams(max_new_tokens=16), 2)
    assisted = peer_runner(f"transformers_assisted(model={tiny.save_target('llama', tmp_path)}, k=3)", model)
    outcome = assisted.run(work)
    assert outcome.tokens == peer_runner("transformers", model).tokens(work)
    assert max(count for request in outcome.emissions for _, count in request) == 4


@pytest.mark.slow
def test_a_gguf_file_is_a_target_with_the_weights_that_were_written() -> None:
    model, loaded = (
        families.build_model("llama-16"),
        catalog.load(str(kit_target()), torch.device("cpu"), torch.float32),
    )
    ids = torch.tensor([tiny.prompts(1)[0]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, loaded.model(ids).logits)


def test_a_target_without_a_gguf_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match=r"'tiny' has no GGUF file.*convert_hf_to_gguf.py"):
        catalog.gguf_file("tiny")
    with pytest.raises(SpecdecError, match="there is no GGUF file"):
        catalog.gguf_file(str(tmp_path / "none.gguf"))


def test_cuda_graphs_that_torch_compile_skips_stand_on_the_card() -> None:
    model = Generates()
    peer = Registry().peer("transformers_compiled", kit_env(lambda: model))
    peer.warm_up(Request(0, (7, 8), SamplingParams(max_new_tokens=2)))
    assert peer.conditions()["compile"] == "default"
    generate = model.generate

    def skipping(ids: torch.Tensor, **given: Any) -> torch.Tensor:
        torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] += 2
        return generate(ids, **given)

    model.generate = skipping  # type: ignore[method-assign]
    peer.warm_up(Request(0, (7, 8), SamplingParams(max_new_tokens=2)))
    assert peer.conditions()["compile"] == "default, 2 CUDA graphs skipped"
    assert "mode default, 2 CUDA graphs skipped" in peer.described()


def test_vllms_workers_are_waited_for_until_they_are_idle_and_no_time_has_that(
    vllm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker looks for its next step in a loop, for a second after the last one."""
    clock, step = [0.0], vllm.step

    def children(self: object, recursive: bool = False) -> list[SimpleNamespace]:
        spent = min(clock[0], 11.0) - 10.0  # it is busy for one second after its work
        return [SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=spent, system=0.0))]

    def timed_step() -> list[SimpleNamespace]:
        clock[0] += 5.0
        return step()

    vllm.step = timed_step  # type: ignore[method-assign]
    monkeypatch.setattr("psutil.Process.children", children)
    clocks = SimpleNamespace(
        monotonic=lambda: clock[0],
        perf_counter=lambda: clock[0],
        sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
    )
    monkeypatch.setattr("specdec_plugins.engines.vllm.time", clocks)
    monkeypatch.setattr("specdec.devices.time", clocks)
    [done] = Registry().peer("vllm", kit_env(None)).generate([Request(0, (1,), SamplingParams(max_new_tokens=4))])
    assert done.seconds == 10.0
    assert 11.0 < clock[0] < 11.5
