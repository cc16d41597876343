"""The embedded model: equality over prompts of every workload, on the real weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from benchsuite.judge.sources import EngineSource, Tokens
from benchsuite.judge.ties import Judge
from benchsuite.measure import workloads
from benchsuite.tests.rig import assert_same, loaded_smollm2, pairs_in_turn, peer_runner
from specdec import Request, SamplingParams
from specdec.assembly import Assembly

pytestmark = pytest.mark.slow
TOKENS, ROWS = 8, 4

END = 40
"""Tokens that are left of a prompt where another one is read whole: reading takes most of the time."""


@cache
def smollm2() -> tuple[Assembly, Judge, tuple[tuple[int, ...], ...]]:
    """The model, a judge over it, and a prompt of each of the six workloads: the longest whole, the ends of the
    others."""
    loaded, target = loaded_smollm2()
    texts = [workloads.load_workload(kind).encode(loaded.tokenizer)[0] for kind in workloads.KINDS]
    longest = max(texts, key=len)
    prompts = tuple(text if text is longest else text[-END:] for text in texts)
    build = Assembly(registry(), target, loaded.tokenizer, max_rows=ROWS, max_length=len(longest) + TOKENS)
    return build, Judge(target, longest), prompts


def _work(temperature: float = 0.0) -> list[Request]:
    """A request for every prompt: more than there are rows."""
    params = SamplingParams(temperature=temperature, max_new_tokens=TOKENS, eos=(2,))
    return [Request(i, prompt, params) for i, prompt in enumerate(smollm2()[2])]


@cache
def _source() -> EngineSource:
    """Plain decoding in ragged batches."""
    return EngineSource(smollm2()[0].engine(None))


@cache
def _plain(work: tuple[Request, ...]) -> list[Tokens]:
    """Plain outputs, decoded once for all tests that are compared with them."""
    return _source().tokens(work)


def _assert_plain(draft: str, work: Sequence[Request]) -> None:
    """Assert that a draft's outputs are plain's, up to certified ties."""
    build, judge, _ = smollm2()
    assert_same(judge, _source(), EngineSource(build.engine(draft, k=4)), [*work], _plain(tuple(work)))


def _assert_generates(work: Sequence[Request]) -> None:
    """Assert that plain outputs are those of transformers' ``generate``, one by one, up to certified ties."""
    judge = smollm2()[1]
    assert_same(judge, _source(), peer_runner("transformers", judge.model), [*work], _plain(tuple(work)))


def test_plain_equals_transformers_generate_on_every_prompt() -> None:
    _assert_generates(_work())


@pytest.mark.parametrize(
    ("draft", "temperature"),
    pairs_in_turn(["ngram", "draft_model", pytest.param("oracle(0.8)", marks=pytest.mark.deep)], [0.0, 1.0]),
)
def test_every_exact_row_equals_plain_on_every_prompt_in_a_ragged_batch(draft: str, temperature: float) -> None:
    """The oracle's, which are right more often, are in the certified ties below."""
    _assert_plain(draft, _work(temperature))


def test_the_converted_model_speaks() -> None:
    build, _, _ = smollm2()
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    ids = build.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    done = build.engine("ngram", max_rows=1).run([Request(0, tuple(ids), SamplingParams(eos=(2,)))])[0]
    assert (
        build.tokenizer.decode(list(done.tokens), skip_special_tokens=True).strip() == "The capital of France is Paris."
    )
    assert done.finish_reason == "eos"


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float32, marks=pytest.mark.deep), torch.bfloat16],
    ids=["float32", "bfloat16"],
)
def test_every_difference_is_a_certified_tie_whose_rate_is_printed(dtype: torch.dtype, deep: bool) -> None:
    """Plain compared with wide windows, on one prompt of every workload; ``-s --specdec-deep`` shows the rates.

    Without it, of every second prompt the end alone, in bfloat16: in float32 the rows above are judged the same way.
    """
    most = 48 if deep else 8
    loaded, target = loaded_smollm2(dtype)
    encoded = [workloads.load_workload(kind).encode(loaded.tokenizer)[0] for kind in workloads.KINDS]
    encoded = encoded if deep else [prompt[-END:] for prompt in encoded[::2]]
    build = Assembly(registry(), target, loaded.tokenizer, max_rows=6, max_length=max(map(len, encoded)) + most)
    judge = Judge(target, max(encoded, key=len))
    plain = EngineSource(build.engine(None, max_rows=1))
    wide = EngineSource(build.engine("oracle(0.8)", k=8))
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_new_tokens=most, eos=(2,))
        requests = [Request(i, prompt, params) for i, prompt in enumerate(encoded)]
        # The oracle asks for the same outputs.
        outputs = [build.plain(request) for request in requests], wide.tokens(requests)
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


def _processed(temperature: float) -> list[Request]:
    """Two short prompts with every processor, whose penalties differ."""
    params, prompts = replace(PROCESSED, temperature=temperature), smollm2()[2][:4:2]
    return [Request(i, prompt, replace(params, repetition_penalty=1.2 - i / 10)) for i, prompt in enumerate(prompts)]


def test_greedy_decoding_with_every_processor_equals_transformers_generate() -> None:
    work = _processed(0.0)
    _assert_generates(work)
    bare = SamplingParams(max_new_tokens=PROCESSED.max_new_tokens, eos=PROCESSED.eos)
    unprocessed = _plain(tuple(replace(request, params=bare) for request in work))
    assert all(with_all != without for with_all, without in zip(_plain(tuple(work)), unprocessed, strict=True))


@pytest.mark.parametrize(
    ("draft", "temperature"),
    pairs_in_turn(
        ["eagle(head=trained)", "eagle(head=trained, beam=3)", "medusa(head_init=trained)", "draft_model", "ngram"],
        [0.0, 1.0],
    ),
)
def test_speculation_with_every_processor_equals_plain(draft: str, temperature: float) -> None:
    _assert_plain(draft, _processed(temperature))


@pytest.mark.parametrize("draft", ["eagle(head=trained)", "draft_model", "medusa(head_init=trained)"])
def test_a_next_turn_accepts_as_much_as_one_that_is_prefilled_anew(draft: str) -> None:
    build, _, prompts = smollm2()
    engine = build.engine(draft, k=4, max_rows=1)
    first = Request(0, prompts[0], SamplingParams(max_new_tokens=8), keep=True)
    text = (*first.prompt, *engine.run([first])[0].tokens)
    following = Request(1, (*text, *prompts[1][:9]), SamplingParams(max_new_tokens=12), continues=0)
    found = []
    for request in (following, following.alone()):
        done = engine.run([request])[0]
        found.append((done.tokens, engine.stats.acceptance_rate))
        if request.continues is not None:
            assert engine.stats.counts["kv_reused_tokens"] >= len(text) - 2
    assert found[0] == found[1]
