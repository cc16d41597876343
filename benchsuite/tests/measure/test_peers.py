"""Peers: their options are parsed and refused, reach ``generate``, and their tokens are timed as they arrive."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import CompileConfig, DynamicCache, PreTrainedModel, StaticCache
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import requests
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm
from benchsuite.measure.card import card
from benchsuite.measure.peers import parse_peer
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.rows import Machine
from benchsuite.measure.runners import Outcome
from benchsuite.measure.session import Bench
from benchsuite.run.matrix import build_matrix
from benchsuite.tests.rig import SETTING, Make, assert_same, peer_runner, requested, slow_after
from specdec import Registry, SamplingParams, SpecdecError

EVERY = ("transformers", "transformers(cache=static)", "transformers_prompt_lookup", "transformers_prompt_lookup(k=3)")
LOOKUPS = [(10, 2), (3, 2), (3, 1), (1, 2)]
"""(k, ngram) of prompt lookup."""


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Forget what was compiled before, and afterwards what the test has compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def cyclic() -> PreTrainedModel:
    """A model whose next token depends on the last one alone, so that its output runs into a cycle and is looked up."""
    model = families.build_model("llama")
    for name, weight in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            weight.data.zero_()
    return model


def counts(outcome: Outcome) -> list[list[int]]:
    """The number of tokens of each emission of each request."""
    return [[count for _, count in request] for request in outcome.emissions]


@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 0.8]))
@pytest.mark.parametrize("judged", [False, True])
def test_an_arrival_is_a_forward_of_the_target_also_where_candidates_meet_the_stopping_criteria(
    judged: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.17 calls the criteria on every candidate too, before the forward that verifies it."""
    model = cyclic()
    propose, criteria = PromptLookupCandidateGenerator.get_candidates, list[Any]()
    prepare = type(model)._get_stopping_criteria

    def prepared(self: Any, *given: Any, **named: Any) -> Any:
        criteria[:] = [prepare(self, *given, **named)]
        return criteria[0]

    def judging(self: Any, ids: Tensor, *given: Any, **named: Any) -> Any:
        candidates, logits = propose(self, ids, *given, **named)
        criteria[0](candidates, None)
        return candidates, logits

    if judged:
        monkeypatch.setattr(type(model), "_get_stopping_criteria", prepared)
        monkeypatch.setattr(PromptLookupCandidateGenerator, "get_candidates", judging)
    runner = peer_runner("transformers_prompt_lookup(k=3)", model)
    forwards = list[int]()
    hook = model.register_forward_hook(lambda *_: forwards.append(1))
    asked = requests(SamplingParams(max_new_tokens=60, temperature=temperature), 1)
    outcome = runner.run(asked)
    hook.remove()
    [arrived] = counts(outcome)
    assert sum(arrived) == len(outcome.tokens[0]) == 60
    assert all(count > 0 for count in arrived)
    assert len(arrived) == len(forwards)
    assert outcome.forwards == len(forwards) - 1
    if temperature == 0:
        assert max(arrived) > 1, "nothing was accepted"


def test_the_defaults_of_prompt_lookup_are_those_of_transformers() -> None:
    parameters = inspect.signature(PromptLookupCandidateGenerator).parameters
    theirs = {"k": parameters["num_output_tokens"].default, "ngram": parameters["max_matching_ngram_size"].default}
    assert Registry().entry("peer", "transformers_prompt_lookup").options == theirs


@pytest.mark.parametrize(
    ("text", "same", "label", "k"),
    [
        ("transformers", "transformers", "transformers", None),
        ("transformers()", "transformers", "transformers", None),
        ("transformers(cache=dynamic)", "transformers", "transformers", None),
        (" transformers( cache = 'static' ) ", "transformers(cache=static)", "transformers", None),
        ("transformers_prompt_lookup", "transformers_prompt_lookup(k=10)", "transformers prompt lookup", 10),
        ("transformers_prompt_lookup(4)", "transformers_prompt_lookup(k=4)", "transformers prompt lookup", 4),
        (
            "transformers_prompt_lookup(ngram=3,k=4)",
            "transformers_prompt_lookup(k=4, ngram=3)",
            "transformers prompt lookup",
            4,
        ),
        ("endpoint(name=a, url='http://x')", "endpoint(url=http://x, name=a)", "endpoint a", None),
    ],
)
def test_a_peer_has_one_text_however_it_was_written(text: str, same: str, label: str, k: int | None) -> None:
    peer = parse_peer(text)
    assert (peer.text, peer.label, peer.k) == (same, label, k)
    assert parse_peer(peer.text) == peer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tgi",
            r"unknown peer 'tgi'; choices: auto, endpoint, llama_cpp, llama_cpp_prompt_lookup, none, "
            "onnxruntime, onnxruntime_speculative, openvino, openvino_draft, openvino_prompt_lookup, "
            "transformers, transformers_assisted, transformers_compiled, "
            r"transformers_early_exit, transformers_prompt_lookup, vllm, vllm_speculative\. Plugins are found",
        ),
        ("transformers_compiled(mode=default)", "'transformers_compiled' does not take mode .*; its options: none$"),
        ("transformer", r"unknown peer 'transformer'; did you mean 'transformers', "),
        ("transformers(k=4)", r"the peer 'transformers' does not take k .*; its options: cache='dynamic'$"),
        (
            "transformers_prompt_lookup(cache=static)",
            r"'transformers_prompt_lookup' does not take cache .*; its options: k=10, ngram=2$",
        ),
        ("transformers_prompt_lookup(k=4, k=5)", "does not take k "),
        ("transformers_prompt_lookup(k=4", r"cannot read the peer .*; expected name or name\(option=value, …\)"),
        ("transformers_prompt_lookup(k=0)", "k of the peer transformers_prompt_lookup is 0; expected a whole number"),
        ("transformers_prompt_lookup(k=2.5)", "k of .* is 2.5; expected a whole number, 1 or more"),
        ("transformers_prompt_lookup(k=True)", "k of .* is True; expected a whole number, 1 or more"),
        ("transformers_prompt_lookup(k=many)", "k of .* is 'many'; expected a whole number, 1 or more"),
        ("transformers_prompt_lookup(ngram=0)", "ngram of .* is 0; expected a whole number, 1 or more"),
        (
            "transformers(cache=sttic)",
            r"unknown cache of the peer transformers 'sttic'; did you mean 'static'\? choices: dynamic, static$",
        ),
        ("transformers(cache=4)", "unknown cache of the peer transformers '4'; choices: dynamic, static$"),
    ],
)
def test_a_peer_or_an_option_that_does_not_exist_is_refused_with_the_choices(text: str, message: str) -> None:
    with pytest.raises(SpecdecError, match=message):
        parse_peer(text)


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(2, families.CONFIGS))
def test_a_static_cache_and_prompt_lookup_change_no_token_on_tiny(family: str, assemble: Make) -> None:
    build = assemble(family)
    judge = Judge(build.target, range(40))
    plain, work = EngineSource(build.engine(None)), requests(count=2)
    for text in ("transformers(cache=static)", "transformers_prompt_lookup"):
        assert_same(judge, plain, peer_runner(text, judge.model), work)


@pytest.mark.slow
@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.0},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.3},
        {"presence_penalty": -0.5, "frequency_penalty": 1.0, "repetition_penalty": 0.8},
    ],
    ids=lambda penalties: ", ".join(penalties),
)
def test_prompt_lookup_draws_with_the_penalties_of_each_token_it_accepts(
    penalties: dict[str, Any], assemble: Make
) -> None:
    """Proposals of one forward are each judged after those before them, also where they repeat."""
    build = assemble()
    judge = Judge(build.target, range(40))
    base = SamplingParams(max_new_tokens=24)
    ours, work = EngineSource(build.engine(None)), requests(replace(base, **penalties), count=3)
    expected = ours.tokens(work)
    assert expected != ours.tokens(requests(base, count=3)), "the penalties change nothing here"
    for text in ("transformers", "transformers_prompt_lookup", "transformers_prompt_lookup(k=3, ngram=1)"):
        assert_same(judge, ours, peer_runner(text, judge.model), work, expected)


@pytest.mark.slow
@pytest.mark.parametrize("text", EVERY)
def test_only_the_request_ends_an_output_and_says_how_it_is_drawn(text: str) -> None:
    model = cyclic()
    request = requests()[0]
    whole = peer_runner("transformers", model).tokens([request])[0]
    model.config.eos_token_id = model.generation_config.eos_token_id = whole[2]
    model.generation_config.repetition_penalty = 9.0
    peer = peer_runner(text, model)
    assert peer.tokens([request]) == [whole]
    ended = peer.run([replace(request, params=replace(request.params, eos=(whole[5],)))])
    assert ended.tokens == [whole[:6]]
    assert sum(counts(ended)[0]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("text", slow_after(1, EVERY))
def test_sampling_repeats_itself_and_the_request_filters_it(text: str) -> None:
    peer = peer_runner(text, cyclic())
    warm = SamplingParams(temperature=2.0, seed=3, max_new_tokens=12)
    drawn, greedy = (peer.tokens(requests(params, count=2)) for params in (warm, SamplingParams(max_new_tokens=12)))
    assert peer.tokens(requests(warm, count=2)) == drawn != greedy
    assert peer.tokens(requests(replace(warm, seed=4), count=2)) != drawn
    assert peer.tokens(requests(replace(warm, top_k=1), count=2)) == greedy
    assert peer.tokens(requests(replace(warm, top_p=1e-6), count=2)) == greedy
    assert peer.tokens(requests(replace(warm, temperature=1e-5), count=2)) == greedy


@pytest.mark.parametrize("text", slow_after(1, EVERY))
def test_emissions_forwards_and_times_are_those_of_a_clock_that_ticks_with_each_forward(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cyclic()
    peer, work = peer_runner(text, model), requests(count=3)
    done: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: done.append(1))
    monkeypatch.setattr("specdec.devices.time", SimpleNamespace(perf_counter=lambda: float(len(done))))
    outcome = peer.run(work)
    steps = [len(request) for request in outcome.emissions]
    assert [[at for at, _ in request] for request in outcome.emissions] == [[*range(1, n + 1)] for n in steps]
    assert [sum(request) for request in counts(outcome)] == [len(tokens) for tokens in outcome.tokens] == [14, 17, 20]
    assert outcome.wall_s == sum(steps) == len(done)
    assert outcome.forwards == outcome.decode_s == sum(steps) - len(work)
    assert outcome.decoded == sum(sum(request[1:]) for request in counts(outcome))
    assert outcome.mean_length == sum(len(r.prompt) + len(t) / 2 for r, t in zip(work, outcome.tokens, strict=True)) / 3
    assert outcome.stats is None


def looked_up(prompt: tuple[int, ...], output: tuple[int, ...], k: int, ngram: int) -> list[int]:
    """The number of tokens of each emission, by the rule of transformers' prompt lookup and its own output.

    The last n tokens, n = ``ngram`` down to 1, are looked up in the text; what followed them at the first place where
    they stand is proposed, up to ``k`` tokens.
    """
    text, whole, found = list(prompt), [*prompt, *output], []
    while len(text) < len(whole):
        proposal: list[int] = []
        for n in range(min(ngram, len(text) - 1), 0, -1):
            ends = [i + n for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
            if ends:
                proposal = text[ends[0] : ends[0] + k]
                break
        left = whole[len(text) :]
        kept = next((i for i, (a, b) in enumerate(zip(proposal, left, strict=False)) if a != b), len(proposal))
        found.append(min(kept + 1, len(left)))
        text += left[: found[-1]]
    return found


@pytest.mark.parametrize(("k", "ngram"), slow_after(1, LOOKUPS))
def test_emissions_of_prompt_lookup_are_those_of_its_rule_with_that_k_and_ngram(k: int, ngram: int) -> None:
    work = requests(SamplingParams(max_new_tokens=50), count=2)
    got = peer_runner(f"transformers_prompt_lookup(k={k}, ngram={ngram})", cyclic()).run(work)
    assert counts(got) == [
        looked_up(request.prompt, output, k, ngram) for request, output in zip(work, got.tokens, strict=True)
    ]


@pytest.mark.slow
def test_each_k_and_ngram_of_that_test_gives_other_emissions_and_the_same_tokens() -> None:
    work = requests(SamplingParams(max_new_tokens=50), count=2)
    found = [peer_runner(f"transformers_prompt_lookup({k}, {ngram})", cyclic()).run(work) for k, ngram in LOOKUPS]
    assert len({str(counts(outcome)) for outcome in found}) == len(LOOKUPS)
    assert [max(map(max, counts(outcome))) for outcome in found] == [k + 1 for k, _ in LOOKUPS]
    plain = peer_runner("transformers", cyclic()).tokens(work)
    assert all(outcome.tokens == plain for outcome in found)


def test_the_first_emission_of_prompt_lookup_has_what_its_first_forward_accepted() -> None:
    model = cyclic()
    request = requests(SamplingParams(max_new_tokens=60))[0]
    whole = peer_runner("transformers", model).tokens([request])[0]
    # A prompt that ends in the cycle: the first forward has the prompt and the proposals, all of them right.
    late = replace(request, prompt=whole, params=SamplingParams(max_new_tokens=20))
    outcome = peer_runner("transformers_prompt_lookup(k=4)", model).run([late])
    assert counts(outcome)[0] == [5, 5, 5, 5]
    assert (outcome.forwards, outcome.decoded) == (3, 15)


def test_a_forward_past_the_end_of_the_output_emits_nothing() -> None:
    model = cyclic()
    peer, generate = peer_runner("transformers_prompt_lookup", model), model.generate

    def longer(ids: Tensor, **given: Any) -> Tensor:
        out: Tensor = generate(ids, **given)
        model(out)
        given["stopping_criteria"][0](torch.cat([out, out], dim=1), None)
        return out

    work = requests(count=1)
    usual = peer.run(work)
    model.generate = longer
    outcome = peer.run(work)
    assert counts(outcome) == counts(usual)
    assert (outcome.forwards or 0) == (usual.forwards or 0) + 1


@pytest.mark.parametrize("text", ["transformers_prompt_lookup(k=3)", "transformers_early_exit(layers=1, k=3)"])
def test_a_peer_of_transformers_counts_the_candidates_that_generate_accepted(text: str) -> None:
    """Each step emits one token more than it accepted, up to the end of the output."""
    work = requests(SamplingParams(max_new_tokens=30), 2)
    outcome = peer_runner(text, cyclic()).run(work)
    assert outcome.tokens == peer_runner("transformers", cyclic()).tokens(work)
    assert outcome.counts is not None
    steps = [size for request in counts(outcome) for size in request]
    gained = sum(steps) - len(steps)
    assert 0 < gained <= (outcome.counts.accepted or 0) <= gained + 2 * 3
    assert (outcome.counts.proposed or 0) >= (outcome.counts.accepted or 0)
    assert len(outcome.counts.proposed_by_position) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("transformers", DynamicCache),
        ("transformers(cache=static)", StaticCache),
        ("transformers_prompt_lookup", DynamicCache),
    ],
)
def test_the_cache_is_the_one_asked_for(text: str, kind: type) -> None:
    model = cyclic()
    seen: set[type] = set()
    model.register_forward_pre_hook(
        lambda module, inputs, given: seen.add(type(given.get("past_key_values", given.get("cache")))), with_kwargs=True
    )
    peer_runner(text, model).run(requests(count=2))
    assert seen == {kind}


@pytest.mark.slow
@pytest.mark.parametrize("text", slow_after(1, EVERY))
def test_logits_are_those_from_which_each_token_was_drawn(text: str) -> None:
    model = cyclic()
    peer, work = peer_runner(text, model), requests(count=2)
    for request, output in zip(work, peer.tokens(work), strict=True):
        for index in (0, 1, 11, len(output) - 1):
            logits = peer.logits_at(work, request.id, index)
            assert logits is not None
            assert int(logits.argmax()) == output[index]
        assert peer.logits_at(work, request.id, len(output)) is None


@pytest.mark.parametrize("text", EVERY)
def test_a_single_token_is_one_emission_and_no_decoding(text: str) -> None:
    peer = peer_runner(text, cyclic())
    outcome = peer.run(requests(SamplingParams(max_new_tokens=1), count=1))
    assert [count for _, count in outcome.emissions[0]] == [1]
    assert (outcome.forwards, outcome.decoded, outcome.decode_s) == (0, 0, 0.0)


def test_a_model_whose_config_asks_for_compilation_is_not_compiled() -> None:
    model = families.build_model("llama")
    peer = peer_runner("transformers(cache=static)", model)
    asked = CompileConfig()
    asked._compile_all_devices = True
    model.generation_config.compile_config = asked
    model.get_compiled_call = lambda config: pytest.fail("compiled")
    peer.run(requests(count=1))
    assert peer.conditions()["compile"] == "no"


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
def test_a_peer_says_in_which_dtype_and_how_it_runs(dtype: torch.dtype, name: str) -> None:
    model = families.build_model("llama", dtype=dtype)
    version = transformers.__version__
    lookup, plain = (
        peer_runner(text, model) for text in ("transformers_prompt_lookup(k=3)", "transformers(cache=static)")
    )
    assert lookup.conditions() == plain.conditions() == {"dtype": name, "compile": "no"}
    assert lookup.described() == (
        f"transformers {version} generate: dynamic cache, sdpa attention, {name}, not compiled; "
        "prompt lookup k=3, ngram=2"
    )
    assert plain.described() == f"transformers {version} generate: static cache, sdpa attention, {name}, not compiled"


@pytest.mark.slow
def test_peers_compile_before_an_engine_records() -> None:
    """The recordings of torch.compile clear cuBLAS's workspaces, to which an engine's graphs would go on pointing."""
    arms = [Arm(SETTING), Arm(SETTING, draft="ngram", k=2), Arm(SETTING, peer="transformers")]
    bench, said = Bench(MeasuringPlan(prompts=1)), list[str]()
    bench.prepare(arms)
    bench.row(arms[0], said.append)
    warmed = [text.partition("warming up ")[2] for text in said if "warming up" in text]
    assert warmed == ["transformers", "plain", "plain again", "ngram"]


@pytest.mark.slow
@pytest.mark.usefixtures("forgetful")
def test_a_compiled_forward_changes_no_token_and_nothing_is_compiled_while_it_is_timed(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend compiles nothing; all else is as with the one that does. A sliding window of 24 fills up."""
    compiled = torch.compile

    def traced(*given: Any, **options: Any) -> Any:
        return compiled(*given, **{**options, "backend": "eager"})

    monkeypatch.setattr(torch, "compile", traced)
    build = assemble("mistral")
    judge = Judge(build.target, range(40))
    peer, work = peer_runner("transformers_compiled", judge.model, build.max_length), requests(count=2)
    peer.warm_up(replace(work[0], params=SamplingParams(max_new_tokens=3)))
    warm = peer.set_up_seconds["compile"]
    assert warm > 0
    assert_same(judge, EngineSource(build.engine(None)), peer, work)
    later = peer.set_up_seconds["compile"]
    assert later > warm, "a run for which something was compiled was timed"
    outcome = peer.run(work)
    assert peer.set_up_seconds["compile"] == later
    assert outcome.forwards == sum(len(tokens) - 1 for tokens in outcome.tokens)
    assert peer.conditions() == {"dtype": "float32", "compile": "default"}
    assert peer.described().endswith("static cache, sdpa attention, float32, compiled by torch.compile, mode default")


@pytest.mark.slow
@pytest.mark.usefixtures("forgetful")
def test_a_forward_that_inductor_has_compiled_changes_no_token(assemble: Make) -> None:
    build = assemble()
    judge = Judge(build.target, range(40))
    peer, work = peer_runner("transformers_compiled", judge.model, build.max_length), requests(count=2)
    peer.warm_up(work[0])
    assert_same(judge, EngineSource(build.engine(None)), peer, work)


@pytest.mark.slow
def test_a_forward_that_cannot_be_compiled_fails_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(call: object, **given: object) -> None:
        raise RuntimeError("no C++ compiler was found")

    monkeypatch.setattr(torch, "compile", missing)
    bench = Bench(MeasuringPlan(prompts=1))
    arms = [Arm(SETTING), Arm(SETTING, peer="transformers_compiled"), Arm(SETTING, peer="transformers")]
    bench.prepare(arms)
    plain, failed, other = (bench.row(arm, lambda what: None) for arm in arms)
    assert plain.failure is None
    assert other.failure is None
    assert (failed.info["failed"], failed.info["speedup"]) == ("crashed", None)
    assert (failed.failure or "").startswith("transformers compiled could not be measured: no C++ compiler was found")


@pytest.mark.parametrize(
    ("device", "peers"),
    [
        ("cpu", ["transformers", "transformers_prompt_lookup(k=10)"]),
        ("cuda", ["transformers", "transformers_prompt_lookup(k=10)", "transformers_compiled"]),
        ("cuda:1", ["transformers", "transformers_prompt_lookup(k=10)", "transformers_compiled"]),
    ],
)
def test_the_compiled_peer_runs_by_default_on_cuda_alone(device: str, peers: list[str]) -> None:
    arms = build_matrix(requested(target="tiny", workload="chat", device=device))
    assert [arm.peer for arm in arms if arm.peer] == peers


def test_the_card_has_a_line_for_each_peer() -> None:
    machine = Machine("tiny", "cpu", "cpu", "float32", 2**20, 64, 1e9, 0)
    arms = [Arm(SETTING), Arm(SETTING, peer="transformers")]
    peers = [peer_runner(text, families.build_model("llama")).described() for text in EVERY]
    lines = card(machine, torch.device("cpu"), arms, 3, 0.001, "about 3 s", ("triton: " + "word " * 40,), peers)
    assert [line for line in lines if line.startswith("peer ")] == [f"peer {line}" for line in peers]
    assert "without backend triton: " + "word " * 40 in lines, "a page makes one item of it, a terminal wraps it"
    assert "2 arms x 3 prompts x up to 24 tokens: about 3 s" in lines


@pytest.mark.parametrize(
    ("forward", "says"), [(0.004, "no forward can take less than 2.00 ms"), (0.001, "is no limit")]
)
def test_a_bandwidth_that_a_forward_has_beaten_is_called_no_limit(forward: float, says: str) -> None:
    machine = Machine("tiny", "cpu", "cpu", "float32", 2_000_000, 64, 1e9, 0)
    [line] = [one for one in card(machine, torch.device("cpu"), [Arm(SETTING)], 3, forward, "") if "bandwidth" in one]
    assert says in line
    assert ("cannot" in line or "can take less" in line) is (forward > 0.002)
