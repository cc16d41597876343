"""Logprobs are the target's, raw and processed, with and without speculation, and cost no second read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchsuite.conformance.guards.read_guard import guarded_steps
from benchsuite.conformance.models import tiny
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import Make, pairs_in_turn, slow_after
from specdec import Request, SamplingParams
from specdec.logprobs import TokenLogprobs
from specdec.queue import Completion
from specdec_plugins.engines.transformers import generate_arguments

GREEDY = SamplingParams(max_new_tokens=16, logprobs=4)
MIX = replace(
    GREEDY, repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={5: 3.0}, bad_words=((7,), (9, 4)), seed=2
)
SAMPLED = replace(MIX, temperature=0.8, top_k=30, min_p=0.01)
KINDS = {"bare": GREEDY, "processors": MIX, "sampled": SAMPLED}


def chances(token: TokenLogprobs) -> list[float]:
    """All finite log-probabilities of a token; those of alternatives are sorted by rank, so they are continuous."""
    ranked = [chance for _, chance in (*token.top_raw, *token.top_processed)]
    return [token.raw, token.processed, *ranked]


@pytest.mark.parametrize("params", [GREEDY, MIX], ids=["bare", "processors"])
@pytest.mark.parametrize("family", slow_after(1, ["llama", "gemma3", "gpt2"]))
def test_plain_logprobs_are_those_of_transformers_logits_and_scores(family: str, params: Any, assemble: Make) -> None:
    build = assemble(family)
    judge = Judge(build.target, range(40))
    request = Request(0, tiny.prompts(1)[0], params)
    done = build.engine(None).run([request])[0]
    generate: Any = judge.model.generate
    ids = torch.tensor([request.prompt])
    out = generate(
        ids,
        attention_mask=torch.ones_like(ids),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **generate_arguments(request),
    )
    assert tuple(out.sequences[0, len(request.prompt) :].tolist()) == done.tokens
    assert len(done.logprobs) == len(done.tokens)
    for token, ours, logits, scores in zip(done.tokens, done.logprobs, out.logits, out.scores, strict=True):
        for mine, top, theirs in ((ours.raw, ours.top_raw, logits), (ours.processed, ours.top_processed, scores)):
            distribution = theirs[0].float().log_softmax(dim=-1)
            assert mine == pytest.approx(float(distribution[token]), abs=1e-4)
            best = distribution.topk(4)
            assert [chance for _, chance in top] == pytest.approx(best.values.tolist(), abs=1e-4)
            assert [float(distribution[i]) for i, _ in top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "kind"),
    slow_after(
        2,
        pairs_in_turn(
            ["ngram(n_min=1)", "draft_model", "oracle(0.8)", "tree(beam=2, depth=3)", "garbage"], [*KINDS], 1
        ),
    ),
)
def test_speculative_logprobs_equal_plain_within_the_bound_on_tiny(kind: str, draft: str, assemble: Make) -> None:
    build, params = assemble("llama", max_rows=3), KINDS[kind]
    bound = Judge(build.target, range(40)).bound
    work = tiny.requests(params, 5)
    plain, other = build.engine(None, max_rows=1).run(work), build.engine(draft, k=5).run(work)
    for a, b in zip(plain, other, strict=True):
        assert a.tokens == b.tokens
        assert len(b.logprobs) == len(b.tokens)
        for one, two in zip(a.logprobs, b.logprobs, strict=True):
            # Two logits differ by twice the bound, a log-probability by that of a logit and of the sum; the penalty and
            # the temperature magnify both.
            assert chances(one) == pytest.approx(chances(two), abs=4 * bound * 1.3 / 0.8)


@pytest.mark.slow
def test_logprobs_are_in_the_steps_one_read_and_for_rows_that_ask(assemble: Make) -> None:
    build = assemble("llama", max_rows=3)
    asked = [None, 0, 3, None, 20, 1]
    work = [
        replace(r, params=replace(r.params, logprobs=n)) for r, n in zip(tiny.requests(count=6), asked, strict=True)
    ]
    engine = build.engine("oracle(0.8)", k=4)
    done = engine.run(work)
    assert engine.stats.counts["host_reads"] == engine.stats.counts["target_forwards"]
    for completion, count in zip(done, asked, strict=True):
        assert len(completion.logprobs) == (0 if count is None else len(completion.tokens))
        for token in completion.logprobs:
            assert len(token.top_raw) == len(token.top_processed) == count
    guarded_steps(build.engine("oracle(0.8)", k=4), work, 6)


def test_logprobs_end_with_the_tokens_where_a_stop_lies_inside_a_block(assemble: Make) -> None:
    base = Request(0, tiny.prompts(1)[0], GREEDY)
    full = assemble("llama").plain(base)
    engine = assemble("llama", extra=(tiny.past_stops(full),)).engine("past_stops", k=6)
    for place in range(8):
        done: Completion = engine.run([replace(base, params=replace(GREEDY, eos=(full[place],)))])[0]
        assert len(done.logprobs) == len(done.tokens) == full.index(full[place]) + 1


@pytest.mark.slow
def test_a_sampled_token_has_a_finite_processed_logprob_and_alternatives_that_sum_to_at_most_one(
    assemble: Make,
) -> None:
    build = assemble("llama", max_rows=2)
    for policy in ("match", "rejection", "tree_rejection"):
        for completion in build.engine("draft_model", policy, k=3).run(tiny.requests(SAMPLED, 3)):
            for token in completion.logprobs:
                assert token.processed > float("-inf")
                total = sum(torch.tensor([chance for _, chance in token.top_processed]).exp().tolist())
                assert total < 1 + 1e-5
