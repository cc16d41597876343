"""The embedded model: equality over every workload prompt, on the real weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from benchsuite.measure import workloads
from benchsuite.measure.sources import EngineSource
from benchsuite.measure.ties import Judge
from benchsuite.prove.tiny import registry
from benchsuite.tests.rig import assert_same, peer_runner
from specdec import Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel

pytestmark = pytest.mark.slow
TOKENS = 8

END = 40
"""Tokens that are left of a prompt where another one of its workload is read whole: reading takes most of the time."""


@cache
def smollm2() -> tuple[Assembly, Judge, tuple[tuple[int, ...], ...]]:
    """The model, a judge over it, and three prompts of each of the six workloads: one whole, the ends of two."""
    loaded = catalog.load("smollm2-135m", torch.device("cpu"), torch.float32, rows=6, max_length=512)
    target = ArenaModel(loaded.model, registry().backend())
    texts = [workloads.load_workload(kind).first(3) for kind in workloads.KINDS]
    each = (enumerate(text.encode(loaded.tokenizer)) for text in texts)
    encoded = tuple(tuple(prompt[-END:] if place else prompt) for prompts in each for place, prompt in prompts)
    length = max(map(len, encoded)) + TOKENS
    build = Assembly(registry(), target, loaded.tokenizer, max_rows=6, max_length=length)
    return build, Judge(target, max(encoded, key=len)), encoded


def _work(temperature: float = 0.0) -> list[Request]:
    """A request for every prompt."""
    params = SamplingParams(temperature=temperature, max_new_tokens=TOKENS, eos=(2,))
    return [Request(i, prompt, params) for i, prompt in enumerate(smollm2()[2])]


@cache
def plain(temperature: float) -> tuple[EngineSource, list[tuple[int, ...]]]:
    """Plain outputs of every prompt, decoded in ragged batches, once for each temperature."""
    runner = EngineSource(smollm2()[0].engine(None))
    return runner, runner.tokens(_work(temperature))


def test_plain_equals_transformers_generate_on_every_prompt() -> None:
    build, judge, _ = smollm2()
    ours = EngineSource(build.engine(None, max_rows=1))
    theirs = peer_runner("transformers", judge.model)
    for request in _work():
        pair = build.plain(request), theirs.run([request]).tokens[0]
        for difference in judge.compare([request], request, ours, theirs, pair):
            print(difference)
            assert difference.tie, difference


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["ngram", "draft_model", "oracle(0.8)"])
def test_every_exact_row_equals_plain_on_every_prompt_in_a_ragged_batch(draft: str, temperature: float) -> None:
    build, judge, _ = smollm2()
    baseline, expected = plain(temperature)
    assert_same(judge, baseline, EngineSource(build.engine(draft, k=4)), _work(temperature), expected)


def test_the_converted_model_speaks() -> None:
    build, _, _ = smollm2()
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    ids = build.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    done = build.engine("ngram", max_rows=1).run([Request(0, tuple(ids), SamplingParams(eos=(2,)))])[0]
    assert (
        build.tokenizer.decode(list(done.tokens), skip_special_tokens=True).strip() == "The capital of France is Paris."
    )
    assert done.finish_reason == "eos"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_every_difference_is_a_certified_tie_whose_rate_is_printed(dtype: torch.dtype, seeds: range) -> None:
    """Plain compared with wide windows, on one prompt of every workload; ``-s --specdec-deep`` shows the rates.

    Without it, of each prompt the end alone.
    """
    deep = len(seeds) > 1
    most = 48 if deep else 8
    loaded = catalog.load("smollm2-135m", torch.device("cpu"), dtype, rows=6, max_length=512)
    target = ArenaModel(loaded.model, registry().backend())
    encoded = [workloads.load_workload(kind).encode(loaded.tokenizer)[0] for kind in workloads.KINDS]
    encoded = encoded if deep else [prompt[-END:] for prompt in encoded]
    build = Assembly(registry(), target, loaded.tokenizer, max_rows=6, max_length=max(map(len, encoded)) + most)
    judge = Judge(target, max(encoded, key=len))
    plain = EngineSource(build.engine(None, max_rows=1))
    wide = EngineSource(build.engine("oracle(0.8)", k=8))
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_new_tokens=most, eos=(2,))
        requests = [Request(i, prompt, params) for i, prompt in enumerate(encoded)]
        outputs = [runner.tokens(requests) for runner in (plain, wide)]
        found = [
            difference
            for request, pair in zip(requests, zip(*outputs, strict=True), strict=True)
            for difference in judge.compare(requests, request, plain, wide, pair)
        ]
        bugs = [str(difference) for difference in found if not difference.tie]
        assert not bugs, bugs[0]
        tokens = sum(map(len, outputs[0]))
        print(f"{dtype}, temperature {temperature}: {len(found)} ties in {tokens} tokens, bound {judge.bound:.1e}")


PROCESSED = SamplingParams(
    max_new_tokens=12,
    repetition_penalty=1.2,
    frequency_penalty=0.4,
    presence_penalty=0.3,
    logit_bias={28: -2.0, 198: 3.0},
    bad_words=((260,), (281, 253)),
    eos=(2, 30, 198),
    min_new_tokens=6,
    min_p=0.02,
    top_p=0.95,
    top_k=200,
    seed=3,
    logprobs=2,
)
"""Every processor, with values that change what SmolLM2 says."""


def test_greedy_decoding_with_every_processor_equals_transformers_generate() -> None:
    build, judge, prompts = smollm2()
    ours = EngineSource(build.engine(None, max_rows=1))
    theirs = peer_runner("transformers", judge.model)
    bare = SamplingParams(max_new_tokens=PROCESSED.max_new_tokens, eos=PROCESSED.eos)
    changed = 0
    for prompt in prompts[::6]:
        request = Request(0, prompt, PROCESSED)
        pair = ours.tokens([request])[0], theirs.tokens([request])[0]
        found = judge.compare([request], request, ours, theirs, pair)
        assert all(difference.tie for difference in found), found[-1]
        changed += pair[0] != ours.tokens([replace(request, params=bare)])[0]
    assert changed == len(prompts[::6])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "draft", ["eagle(head=trained)", "eagle(head=trained, beam=3)", "medusa(head_init=trained)", "draft_model", "ngram"]
)
def test_speculation_with_every_processor_equals_plain(draft: str, temperature: float) -> None:
    build, judge, prompts = smollm2()
    params = replace(PROCESSED, temperature=temperature)
    work = [Request(i, prompt, replace(params, repetition_penalty=1 + i / 10)) for i, prompt in enumerate(prompts[::6])]
    assert_same(judge, EngineSource(build.engine(None, max_rows=1)), EngineSource(build.engine(draft, k=4)), work)


@pytest.mark.parametrize("draft", ["eagle(head=trained)", "draft_model", "medusa(head_init=trained)"])
def test_a_next_turn_accepts_as_much_as_one_that_is_prefilled_anew(draft: str) -> None:
    build, _, prompts = smollm2()
    engine = build.engine(draft, k=4)
    first = Request(0, prompts[0], SamplingParams(max_new_tokens=12), keep=True)
    text = (*first.prompt, *engine.run([first])[0].tokens)
    following = Request(1, (*text, *prompts[1][:9]), SamplingParams(max_new_tokens=24), continues=0)
    found = []
    for request in (following, following.alone()):
        done = engine.run([request])[0]
        found.append((done.tokens, engine.stats.acceptance_rate))
        if request.continues is not None:
            assert engine.stats.counts["kv_reused_tokens"] >= len(text) - 2
    assert found[0] == found[1]
