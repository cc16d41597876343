"""With any processors, speculation emits plain decoding's tokens, and plain decoding transformers' tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchsuite.conformance.models import tiny
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import assert_same, pairs_in_turn, peer_runner, slow_after
from specdec import Request, SamplingParams
from specdec.assembly import Assembly

EACH: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {5: 9.0, 9: -6.0, 200: 8.5}},
    "repetition": {"repetition_penalty": 1.4},
    "repeating": {"repetition_penalty": 0.4},
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 2.0},
    "bad words": {"bad_words": (*((token,) for token in range(0, 258, 2)), (7, 9), (3, 5, 7))},
    "least length": {"eos": tuple(range(0, 256, 3)), "min_new_tokens": 9},
    "min-p": {"temperature": 1.0, "min_p": 0.2},
    "top-k": {"temperature": 1.0, "top_k": 6},
    "top-p": {"temperature": 1.0, "top_p": 0.6},
    "all": {
        "temperature": 0.9,
        "top_k": 60,
        "top_p": 0.95,
        "min_p": 0.01,
        "logit_bias": {5: 2.0, 9: -6.0},
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.6,
        "presence_penalty": -0.5,
        "bad_words": ((11,), (7, 8), (3, 4, 6)),
        "eos": (1, 2, 3, 250),
        "min_new_tokens": 8,
    },
}
"""Parameters that change some token of most outputs of the tiny models."""

DRAFTS = (
    "garbage",
    "ngram(n_min=1)",
    "draft_model",
    "eagle",
    "oracle(0.8)",
    "ngram(n_min=1, branches=3)",
    "tree(beam=2, depth=3)",
    "medusa(head_init=random, beam=3)",
)
FAST = ("draft_model", "ngram(n_min=1, branches=3)")
SLOWER = [pytest.param(draft, marks=pytest.mark.slow) for draft in DRAFTS if draft not in FAST]
FAMILIES = ("llama", "gemma3")
OTHERS = [pytest.param(f, marks=pytest.mark.slow) for f in ("qwen2", "qwen3", "gemma2", "mistral", "gpt2")]
ROWS, KS = (1, 3, 8), (1, 3, 7)


@cache
def built(family: str = "llama") -> tuple[Assembly, Judge, EngineSource]:
    """An assembly of a family's tiny target, its judge, and plain decoding one by one."""
    build = tiny.assembly(family, max_rows=8)
    return build, Judge(build.target, range(40)), EngineSource(build.engine(None, max_rows=1))


@cache
def speculating(draft: str, k: int, rows: int) -> EngineSource:
    """An engine under ``match``."""
    return EngineSource(built()[0].engine(draft, k=k, max_rows=rows))


@cache
def expected(work: tuple[Request, ...]) -> list[tuple[int, ...]]:
    """Plain decoding's outputs."""
    return built()[2].tokens(work)


def works(params: SamplingParams, count: int) -> tuple[Request, ...]:
    """Requests of different prompts and lengths with these parameters."""
    prompts = tiny.prompts(6)
    return tuple(
        Request(i, prompts[i % 6], replace(params, max_new_tokens=10 + 3 * (i % 4), seed=i)) for i in range(count)
    )


@pytest.mark.parametrize(
    ("draft", "kind"), slow_after(1, [*pairs_in_turn(FAST, [*EACH]), *pairs_in_turn(SLOWER, [*EACH], 1)])
)
def test_a_processor_changes_plain_and_speculative_outputs_alike_on_tiny(draft: str, kind: str) -> None:
    """``draft_model`` copies, as trees do; each processor with one of both, and with one of the others."""
    _, judge, plain = built()
    params = EACH[kind]
    for index, (rows, k) in enumerate(zip(ROWS, KS, strict=True)):
        for heat in {params.get("temperature", 0.0), float(index)} - {2.0}:
            work = works(SamplingParams(**{**params, "temperature": heat}), rows)
            assert_same(judge, plain, speculating(draft, k, rows), list(work), expected(work))


IDS = st.integers(0, 257)


@st.composite
def mixed(draw: st.DrawFn) -> SamplingParams:
    """Parameters of one request: any combination of processors."""
    parts = draw(st.lists(st.sampled_from(list(EACH.values())[:-1]), max_size=6))
    params = {name: value for part in parts for name, value in part.items()}
    params["temperature"] = draw(st.sampled_from([0.0, 0.0, 0.7, 1.0, 1.5]))
    params["eos"] = tuple(draw(st.lists(IDS, max_size=30, unique=True)))
    words = (*params.get("bad_words", ()), *draw(st.lists(st.tuples(IDS, IDS), max_size=20)))
    params["bad_words"] = tuple(word for word in words if len(word) > 1 or word[0] not in params["eos"])
    params["logit_bias"] = draw(st.dictionaries(IDS, st.floats(-4, 4), max_size=20))
    most = draw(st.integers(1, 20))
    params["min_new_tokens"] = draw(st.integers(0, most))
    return SamplingParams(**params, max_new_tokens=most, seed=draw(st.integers(0, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("draft", [*FAST, *SLOWER])
@settings(max_examples=settings().max_examples // 16, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_ragged_rows_with_any_mix_of_processors_equal_plain_on_tiny(draft: str, data: st.DataObject) -> None:
    _, judge, plain = built()
    rows, k = data.draw(st.sampled_from(ROWS)), data.draw(st.sampled_from(KS))
    prompts = tiny.prompts(6)
    work = tuple(Request(i, prompts[i % 6], data.draw(mixed())) for i in range(rows + data.draw(st.integers(0, 2))))
    assert_same(judge, plain, speculating(draft, k, rows), list(work), expected(work))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"), slow_after(2, [*pairs_in_turn(FAMILIES, [*EACH]), *pairs_in_turn(OTHERS, [*EACH])])
)
def test_greedy_decoding_with_a_processor_equals_transformers_generate_on_tiny(family: str, kind: str) -> None:
    _, judge, plain = built(family)
    params = EACH[kind]
    theirs = peer_runner("transformers", judge.model)
    changed = 0
    for request in works(SamplingParams(**{**params, "temperature": 0.0}), 3):
        pair = plain.tokens([request])[0], theirs.tokens([request])[0]
        found = judge.compare([request], request, plain, theirs, pair)
        assert all(difference.tie for difference in found), found[-1]
        bare = SamplingParams(max_new_tokens=request.params.max_new_tokens, eos=request.params.eos)
        changed += pair[0] != plain.tokens([replace(request, params=bare)])[0]
    assert changed or "temperature" in params, "the processor changed no output, so the test shows nothing"
