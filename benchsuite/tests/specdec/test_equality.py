"""Speculation changes no token: plain decoding, transformers and every exact strategy emit the same tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from benchsuite.conformance.models import families, tiny
from benchsuite.conformance.models.tiny import ask, requests
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import DEVICES, Make, assert_same, peer_runner, slow_after
from specdec import Engine, Request, SamplingParams
from specdec.assembly import Assembly

DRAFTS = ("ngram", "ngram(n_max=2, n_min=1)", "draft_model", "garbage", "oracle(0.8)", "oracle(1.0)", "oracle(0.0)")
MIXED = ("draft_model", "oracle(0.8)")
CHAINS = ("suffix", "medusa(head_init=random)", "eagle", "hybrid(sources='suffix, ngram, draft_model')")
TREES = (
    "ngram(branches=3)",
    "suffix(branches=3)",
    "medusa(head_init=random, beam=3)",
    "tree(beam=2, depth=3, least=0.01)",
)
LAID_OUT = ("llama", "gemma3", "mistral", "gpt2")
"""Families whose arenas differ: full layers, rings beside full layers, rings alone, learnt positions."""

SLOWER = [draft for draft in (*DRAFTS, *CHAINS, *TREES) if draft not in ("ngram", "oracle(0.8)", TREES[3])]
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_new_tokens=14)
GREEDY = SamplingParams(max_new_tokens=14)


ASKED = ((1, 1, 1), (3, 2, -1), (7, 4, 1), (4, 3, -1))
"""K, rows, and the order of the requests."""


def source(engine: Engine) -> EngineSource:
    """An engine as a source of tokens."""
    return EngineSource(engine)


@cache
def target_of(family: str, rows: int, device: str = "cpu") -> tuple[Assembly, Judge, EngineSource]:
    """An assembly of a family's tiny target, its judge, and plain decoding one by one."""
    build = tiny.assembly(family, max_rows=rows, device=device)
    return build, Judge(build.target, range(40)), source(build.engine(None, max_rows=1))


@cache
def plain_tokens(family: str, rows: int, request: Request, device: str = "cpu") -> tuple[int, ...]:
    """Plain decoding's output of a request."""
    return target_of(family, rows, device)[2].tokens([request])[0]


def assert_plain(family: str, rows: int, other: EngineSource, work: list[Request], device: str = "cpu") -> None:
    """Assert that a source has plain decoding's tokens, or certified ties."""
    _, judge, plain = target_of(family, rows, device)
    assert_same(judge, plain, other, work, [plain_tokens(family, rows, request, device) for request in work])


@pytest.mark.parametrize("family", slow_after(1, families.CONFIGS))
def test_plain_decoding_equals_transformers_generate_on_tiny(family: str, assemble: Make) -> None:
    build = assemble(family)
    judge = Judge(build.target, range(40))
    ours = source(build.engine(None))
    theirs = peer_runner("transformers", judge.model)
    for request in requests(GREEDY):
        work = [request]
        pair = ours.tokens(work)[0], theirs.tokens(work)[0]
        found = judge.compare(work, request, ours, theirs, pair)
        assert all(difference.tie for difference in found), found[-1]


@pytest.mark.parametrize("policy", ["match", pytest.param("rejection", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", slow_after(1, families.CONFIGS))
def test_greedy_speculation_equals_plain_on_tiny(family: str, policy: str, deep: bool) -> None:
    """Two drafts of mixed acceptance on each family, and of the others one in turn."""
    build, _, _ = target_of(family, 3)
    others = [draft for draft in DRAFTS if draft not in MIXED]
    turn = [*families.CONFIGS].index(family) % len(others)
    for draft in DRAFTS if deep else (*MIXED, others[turn]):
        assert_plain(family, 3, source(build.engine(draft, policy, k=4)), requests(GREEDY))


@pytest.mark.slow
@pytest.mark.parametrize("family", LAID_OUT)
def test_greedy_chains_and_trees_equal_plain_under_every_exact_policy_on_tiny(family: str, deep: bool) -> None:
    """Each draft under each policy, on the families in turn."""
    build, _, _ = target_of(family, 3)
    pairs = [
        (policy, draft)
        for policy in ("match", "longest_prefix", "tree_rejection", "block")
        for draft in (*CHAINS, *(TREES if policy != "block" else ()))
    ]
    turn = LAID_OUT.index(family)
    # Eight drafts and four families: shifted by one for each policy, or a draft would have the same family under all.
    for policy, draft in (
        pair for index, pair in enumerate(pairs) if deep or (index + index // 8) % len(LAID_OUT) == turn
    ):
        other = source(build.engine(draft, policy, k=6))
        assert other.engine.policy.contract(GREEDY) == "exact"
        assert_plain(family, 3, other, requests(GREEDY))


@pytest.mark.slow
@pytest.mark.parametrize("draft", slow_after(3, [*CHAINS, *TREES]))
@pytest.mark.parametrize("controller", [pytest.param("adaptive(window=2)", marks=pytest.mark.slow), "goodput"])
def test_a_length_that_changes_changes_no_token_on_tiny(draft: str, controller: str) -> None:
    build, _, _ = target_of("llama", 3)
    assert_plain("llama", 3, source(build.engine(draft, controller=controller, k=5)), requests(SAMPLED))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "draft",
    slow_after(2, ["ngram", "oracle(0.8)", TREES[3], *(pytest.param(d, marks=pytest.mark.slow) for d in SLOWER)]),
)
@pytest.mark.parametrize("params", slow_after(1, [GREEDY, SAMPLED]), ids=["greedy", "sampled"])
def test_match_emits_plain_tokens_for_any_k_batch_and_order_on_tiny(
    params: SamplingParams, draft: str, device: str, deep: bool
) -> None:
    """Each draft with every K, greedy or sampled: one draft's greedy ones are the next one's sampled ones."""
    build, _, _ = target_of("llama", 4, device)
    turn = ([*DRAFTS, *CHAINS, *TREES].index(draft) + (params is GREEDY)) % 2
    for k, rows, order in ASKED if deep else ASKED[turn::2]:
        other = source(build.engine(draft, k=k, max_rows=rows))
        assert_plain("llama", 4, other, requests(params, count=6)[::order], device)


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(1, ["mistral", "gemma3", "gpt2"]))
def test_a_ragged_batch_equals_one_by_one_on_tiny(family: str, assemble: Make) -> None:
    build = assemble(family, max_rows=3)
    judge = Judge(build.target, range(40))
    work = requests(SAMPLED, count=6)
    assert_same(judge, source(build.engine(None, max_rows=1)), source(build.engine(None, max_rows=3)), work)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    slow_after(
        1,
        [
            replace(SAMPLED, top_k=5),
            replace(SAMPLED, top_p=0.7),
            replace(SAMPLED, temperature=0.6, top_k=20, top_p=0.9),
        ],
    ),
    ids=["top-k", "top-p", "both"],
)
def test_filtered_sampling_is_the_same_under_speculation_on_tiny(params: SamplingParams, assemble: Make) -> None:
    build = assemble("qwen3", max_rows=2)
    judge = Judge(build.target, range(40))
    assert_same(judge, source(build.engine(None)), source(build.engine("draft_model", k=3)), requests(params))


@pytest.mark.slow
def test_rows_of_different_parameters_share_a_batch_on_tiny(assemble: Make) -> None:
    build = assemble("llama", max_rows=4)
    judge = Judge(build.target, range(40))
    mixes = [GREEDY, SAMPLED, replace(SAMPLED, top_k=3, seed=9), replace(SAMPLED, temperature=0.5)]
    work = [replace(r, params=p) for r, p in zip(requests(GREEDY), mixes, strict=True)]
    assert_same(judge, source(build.engine(None, max_rows=1)), source(build.engine("oracle(0.8)", k=4)), work)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_speculation_in_bfloat16_equals_plain_or_ties_on_tiny(device: str, assemble: Make) -> None:
    build = assemble("llama", dtype=torch.bfloat16, device=device)
    judge = Judge(build.target, range(40))
    assert_same(judge, source(build.engine(None)), source(build.engine("oracle(0.8)", k=4)), requests(GREEDY))


@pytest.mark.slow
def test_where_every_layer_slides_output_runs_past_the_span_on_tiny(assemble: Make) -> None:
    build = assemble("mistral", max_length=400)
    judge = Judge(build.target, range(40))
    work = [replace(requests()[0], params=SamplingParams(max_new_tokens=300))]
    assert build.target.layers[0].span == families.SPAN
    assert_same(judge, source(build.engine(None)), source(build.engine("oracle(0.8)", k=4)), work)


@pytest.mark.slow
def test_a_draft_that_was_not_asked_for_some_steps_catches_up_on_tiny(assemble: Make) -> None:
    build = assemble("llama", max_rows=2)
    plain = build.engine(None)
    other = build.engine("draft_model", k=4)
    ask(other, [4, 0, 0, 0, 4, 0, 4, 4, 0, 0] * 20)
    assert_same(Judge(build.target, range(40)), source(plain), source(other), requests(SAMPLED))
    assert other.stats.counts["num_accepted_tokens"] > 0
