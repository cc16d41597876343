"""Families whose layers are of other kinds than Llama's: sinks, chunks, latents, mixtures, recurrences.

Speculation changes none of their tokens, keeps their laws, continues their texts and waits nowhere.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchsuite.conformance.guards.fake_cuda import fake_run
from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import policy_named, prompts, registry, requests
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import Make, assert_same, peer_runner, slow_after
from benchsuite.workshop.machines.run_book import Book
from benchsuite.workshop.sweep.battery import spread_weights
from specdec import ArenaModel, Assembly, Request, SamplingParams
from specdec.catalog import byte_tokenizer
from specdec.model import PREFILL_CHUNK

GREEDY = SamplingParams(max_new_tokens=14)
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_new_tokens=14)

CHAINED = ("draft_model", "oracle(0.8)", "ngram")
BRANCHED = ("tree(beam=2, depth=3)", "ngram(branches=3)")
MOVING = ("tree(beam=2, depth=3)", "oracle(0.8)")


@pytest.mark.parametrize("family", slow_after(1, families.KINDS))
def test_targets_of_every_kind_decode_as_generate_does(family: str, assemble: Make) -> None:
    build = assemble(family)
    judge = Judge(build.target, range(40))
    plain = EngineSource(build.engine(None))
    assert_same(judge, peer_runner("transformers", judge.model), plain, requests(GREEDY))


@pytest.mark.parametrize("draft", [*CHAINED, *slow_after(1, BRANCHED)])
@pytest.mark.parametrize("family", slow_after(1, families.KINDS))
def test_speculation_over_targets_of_every_kind_emits_plain_s_tokens(family: str, draft: str, assemble: Make) -> None:
    """Three rows at once, of different lengths; chains and trees."""
    build = assemble(family, max_rows=3)
    judge, plain = Judge(build.target, range(40)), EngineSource(build.engine(None, max_rows=1))
    for params in (GREEDY, SAMPLED):
        assert_same(judge, plain, EngineSource(build.engine(draft, k=4)), requests(params))


@pytest.mark.slow
@pytest.mark.parametrize("family", families.KINDS)
def test_every_k_and_exact_policy_over_every_kind_emits_plain_s_tokens(family: str, assemble: Make) -> None:
    """K from 1 to 8; each policy has every second K, ``tree_rejection`` over trees; five requests share three rows."""
    build = assemble(family, max_rows=3)
    judge, plain = Judge(build.target, range(40)), EngineSource(build.engine(None, max_rows=1))
    work = requests(GREEDY, count=5)
    expected = plain.tokens(work)
    tried = set[str]()
    for k in range(1, 9):
        for policy in ("match", "longest_prefix") if k % 2 else ("rejection", "block", "tree_rejection"):
            draft = BRANCHED[0] if policy == "tree_rejection" else "oracle(0.8)"
            assert_same(judge, plain, EngineSource(build.engine(draft, policy, k=k)), work, expected)
            tried.add(policy)
    assert tried == {one for one in registry().names("policy") if policy_named(one).contract(GREEDY) == "exact"}


LAWS = [
    *(
        pytest.param(family, "garbage", policy, marks=() if family in ("lfm2", "gpt-oss") else pytest.mark.deep)
        for family, policy in zip(families.KINDS, itertools.cycle(("rejection", "block")), strict=False)
    ),
    *(pytest.param(family, BRANCHED[0], "tree_rejection", marks=pytest.mark.deep) for family in families.KINDS),
]
"""Each kind under one of the sampling policies for chains, and under the one for trees."""


@pytest.mark.slow
@pytest.mark.parametrize(("family", "draft", "policy"), LAWS)
def test_sampled_speculation_has_the_law_of_an_unmodified_model_of_every_kind(
    family: str, draft: str, policy: str
) -> None:
    """Four tokens of 2,000 requests: chi-square beside the model's own probabilities of all texts.

    The prompt is longer than a window and a chunk. Texts expected fewer than eight times count as one; the bound is
    above five standard deviations.
    """
    config = families.config_of(family)
    config.vocab_size, config.eos_token_id, config.pad_token_id = 3, None, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        spread_weights(model)
    own = copy.deepcopy(model)
    build = Assembly(registry(), ArenaModel(model, registry().backend()), byte_tokenizer(), max_rows=50, max_length=64)
    prompt, seen, count = (1, 0, 2, 0, 2, 1) * 5, Counter[tuple[int, ...]](), 2000
    params = SamplingParams(temperature=1.5, seed=11, max_new_tokens=4)
    engine = build.engine(draft, policy, k=2)
    for done in engine.run([Request(number, prompt, params) for number in range(count)]):
        seen[done.tokens] += 1
    assert engine.stats.counts["num_accepted_tokens"] > count // 10
    with torch.inference_mode():
        texts = torch.tensor([[*prompt, *out] for out in itertools.product(range(3), repeat=4)])
        chance = own(texts, use_cache=False).logits[:, len(prompt) - 1 : -1].div(1.5).softmax(dim=-1)
        law = chance.gather(2, texts[:, len(prompt) :, None]).prod(dim=1)[:, 0] * count
    rare = law < 8
    found = torch.tensor([float(seen[tuple(text[len(prompt) :])]) for text in texts.tolist()])
    pairs = [torch.cat([one[~rare], one[rare].sum()[None]]) for one in (found, law)]
    squares = float(((pairs[0] - pairs[1]) ** 2 / pairs[1]).sum())
    degrees = int((~rare).sum())
    assert degrees > 10
    assert squares < degrees + 8 * degrees**0.5, f"{squares} of {degrees} degrees of freedom"


@pytest.mark.parametrize(("family", "draft"), slow_after(1, itertools.product(families.KINDS, MOVING)))
def test_every_copy_of_a_run_over_every_kind_is_counted_in_bytes(family: str, draft: str, assemble: Make) -> None:
    """Cells and states, counted again from windows and paths; a row ends, the next request has it, the last moves."""
    engine = assemble(family, max_rows=3).engine(draft, k=6)
    asked = [Request(i, prompt, SamplingParams(max_new_tokens=3 + 14 * i)) for i, prompt in enumerate(prompts())]
    with Book(engine, PREFILL_CHUNK).kept() as book:
        engine.submit(asked)
        while engine.rows.live:
            engine.step()
            book.check()
        book.check_end()
    assert book.counts["kv_rows_moved_bytes"] > 0
    assert (book.counts["kv_bytes_copied"] > 0) is (draft == MOVING[0])


@pytest.mark.parametrize("family", slow_after(1, families.KINDS))
def test_a_kept_text_is_continued_as_far_as_it_is_the_same(family: str, assemble: Make) -> None:
    build = assemble(family)
    params = SamplingParams(max_new_tokens=9)
    for shorter in (0, 1):
        engine = build.engine("oracle(0.8)", k=4)
        first = Request(0, prompts(1)[0], params, keep=True)
        text = (*first.prompt, *engine.run([first])[0].tokens)
        kept = engine.kept[0].cells
        cells = (len(text) - 1) * engine.arena.bytes_per_token(engine.arena.layers, engine.target.dtype)
        assert kept.nbytes == cells + engine.arena.states.state_bytes == engine.stats.counts["kv_kept_bytes_copied"]
        following = Request(1, (*text[: len(text) - 2 * shorter], 5, 6, 7), params, continues=0)
        done = engine.run([following])[0]
        same = len(text) - 1 - shorter  # states are of the whole text alone
        assert engine.stats.counts["kv_reused_tokens"] == (0 if shorter and engine.arena.states.rings else same)
        judge, plain = Judge(build.target, range(40)), EngineSource(build.engine(None))
        [expected] = plain.tokens([following.alone()])
        found = judge.compare([following], following, plain, EngineSource(engine), (expected, done.tokens))
        assert all(difference.tie for difference in found), found


@pytest.mark.fake_gpu
@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in families.KINDS if family != "qwen3-next"])
def test_a_step_over_layers_of_every_kind_waits_nowhere_and_can_be_replayed(family: str) -> None:
    """Of a mixture, transformers' own experts read the host."""
    params = SamplingParams(temperature=1.0, max_new_tokens=60)
    config = families.config_of(family)
    found = fake_run("garbage", k=2, params=params, config=config, backends="gpu", steps=3)
    assert found.wrong() is None
    assert list(found.twins())
