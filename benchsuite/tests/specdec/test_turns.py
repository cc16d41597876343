"""A request that continues another emits the same tokens as without it, and prefills only what is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.models import families, tiny
from benchsuite.tests.rig import Make, pairs_in_turn, slow_after
from specdec import Engine, Request, SamplingParams, SpecdecError

FAMILIES = ["mistral", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "gemma3", "gpt2"))]
DRAFTS = [
    None,
    "ngram(n_min=1)",
    "oracle(0.8)",
    "draft_model",
    "tree(beam=2, depth=3)",
    "medusa(head_init=random)",
    "eagle",
    "hybrid(sources='suffix, draft_model')",
    "custom_class(path='benchsuite.tests.vllm_rig:TheirLookup')",
]
SAMPLED = SamplingParams(temperature=1.0, seed=4, max_new_tokens=9, repetition_penalty=1.2)


def turns(engine: Engine, prompt: tuple[int, ...], count: int, parted: int = 0) -> list[Request]:
    """Run ``count`` turns, each of which continues the one before; returns their requests.

    A turn's text parts from the one before ``parted`` tokens before its end, as text does that was tokenised again.
    """
    asked: list[Request] = []
    for number in range(count):
        continues = number - 1 if number else None
        asked.append(Request(number, prompt, SAMPLED, keep=True, continues=continues))
        text = (*prompt, *engine.run(asked[-1:])[0].tokens)
        prompt = (*text[: len(text) - parted], *((token + 1) % 250 for token in tiny.prompts(2)[1]), number)
    return asked


def anew(engine: Engine, asked: list[Request]) -> list[tuple[int, ...]]:
    """The outputs of the same requests, each prefilled anew."""
    return [engine.run([request.alone()])[0].tokens for request in asked]


@pytest.mark.parametrize(
    ("draft", "parted", "family"),
    slow_after(2, pairs_in_turn([pytest.param(draft, parted) for parted in (0, 3) for draft in DRAFTS], FAMILIES)),
)
def test_a_turn_that_continues_equals_one_that_is_prefilled_anew(
    draft: str | None, parted: int, family: str, assemble: Make
) -> None:
    # float64, in which a near tie does not fall the other way because chunks begin elsewhere.
    build = assemble(family, dtype=torch.float64)
    engine = build.engine(draft, k=None if draft is None else 4)
    asked = turns(engine, tiny.prompts(1)[0], 3, parted)
    found = anew(build.engine(None), asked)
    again = build.engine(draft, k=None if draft is None else 4)
    for request in asked:
        assert again.run([request])[0].tokens == found[request.id]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_the_tokens_after_the_common_beginning_are_prefilled(family: str, assemble: Make) -> None:
    engine = assemble(family).engine("oracle(0.8)", k=4)
    first = Request(0, tiny.prompts(1)[0], SAMPLED, keep=True)
    text = (*first.prompt, *engine.run([first])[0].tokens)
    cells = engine.stats.counts["kv_kept_bytes_copied"]
    assert cells == engine.kept[0].cells.nbytes == (len(text) - 1) * per_token(engine)
    following = Request(1, (*text, 5, 6, 7), SAMPLED, continues=0)
    engine.run([following])
    counts = engine.stats.counts
    assert counts["kv_reused_tokens"] == len(text) - 1
    assert counts["kv_kept_bytes_copied"] == cells
    steps = sum(step.width * step.rows for step in engine.stats.steps)
    assert counts["kv_appended_tokens_total"] - steps == len(following.prompt) - 1 - (len(text) - 1)
    assert not engine.kept


@pytest.mark.slow
@pytest.mark.parametrize("parted", [0, 4])
@pytest.mark.parametrize("family", slow_after(1, ["llama", "gemma3"]))
def test_a_draft_goes_on_with_its_own_keys_and_values(family: str, parted: int, tmp_path: Path, assemble: Make) -> None:
    """The target as its own draft is still always accepted, and reads only what is new."""
    build = assemble(family, dtype=torch.float64)
    engine = build.engine(f"draft_model(model={tiny.save_target(family, tmp_path)})", k=4)
    first = turns(engine, tiny.prompts(1)[0], 1)[0]
    text = (*first.prompt, *engine.finished[0].tokens)
    assert [call.name for call in engine.stats.calls] == ["admit", "keep", "release"]
    engine.run([Request(1, (*text[: len(text) - parted], 9, 8, 7), SAMPLED, continues=0)])
    assert [call.name for call in engine.stats.calls] == ["resume", "release"]
    assert engine.stats.acceptance_rate == 1


def per_token(engine: Engine) -> int:
    """Bytes of one token's keys and values over all layers."""
    return engine.arena.bytes_per_token(engine.arena.layers, engine.target.dtype)


@pytest.mark.slow
def test_a_ring_that_overwrote_itself_is_used_by_texts_that_do_not_part_alone(assemble: Make) -> None:
    for parted, used in ((0, True), (2, False)):
        engine = assemble("mistral", max_length=500, dtype=torch.float64).engine("oracle(0.8)", k=4)
        asked = turns(engine, tiny.prompts(3)[2] * 5, 2, parted)
        assert len(asked[0].prompt) > engine.arena.capacity[families.SPAN]
        alone = assemble("mistral", max_length=500, dtype=torch.float64).engine(None)
        assert engine.finished[1].tokens == anew(alone, asked)[1]
        assert (engine.stats.counts["kv_reused_tokens"] > 0) is used


@pytest.mark.slow
def test_rows_of_a_batch_continue_their_own_texts_in_any_order(assemble: Make) -> None:
    build = assemble("llama", max_rows=3, dtype=torch.float64)
    engine, plain = build.engine("ngram(n_min=1)", k=4), build.engine(None, max_rows=1)
    firsts = [
        replace(r, params=replace(r.params, max_new_tokens=4 + 3 * r.id), keep=True) for r in tiny.requests(count=5)
    ]
    texts = [(*r.prompt, *done.tokens) for r, done in zip(firsts, engine.run(firsts), strict=True)]
    work = [Request(10 + i, (*texts[i], 7, 8, i), SAMPLED, continues=i) for i in (3, 0, 4, 1, 2)]
    done = [completion.tokens for completion in engine.run(work)]
    assert done == anew(plain, work)
    assert engine.stats.counts["kv_reused_tokens"] == sum(len(text) - 1 for text in texts)


@pytest.mark.slow
def test_a_stop_inside_a_block_leaves_the_cells_of_what_was_emitted(assemble: Make) -> None:
    base = Request(0, tiny.prompts(1)[0], SamplingParams(max_new_tokens=30))
    full = assemble("llama", dtype=torch.float64).plain(base)
    build = assemble("llama", dtype=torch.float64, extra=(tiny.past_stops(full),))
    engine = build.engine("past_stops", k=6)
    for place in range(6):
        first = replace(base, params=replace(base.params, eos=(full[place],)), keep=True)
        text = (*base.prompt, *engine.run([first])[0].tokens)
        following = Request(1, (*text, 3, 4), SAMPLED, continues=0)
        assert engine.run([following])[0].tokens == build.engine(None).run([following.alone()])[0].tokens


@pytest.mark.parametrize(
    ("continues", "message"),
    [
        ((7,), r"request 1 continues 7, whose keys and values are not here; kept are those of \[0\]"),
        ((0, 0), r"request 2 continues 0, .*one request may continue another, once"),
    ],
)
def test_continuing_what_is_not_kept_is_refused_before_anything_runs(
    continues: tuple[int, ...], message: str, assemble: Make
) -> None:
    engine = assemble("llama", max_rows=2).engine(None)
    engine.run([Request(0, (1, 2, 3), SAMPLED, keep=True)])
    forwards = engine.target.forwards
    with pytest.raises(SpecdecError, match=message):
        engine.run([Request(1 + i, (1, 2, 3, 4), SAMPLED, continues=n) for i, n in enumerate(continues)])
    assert engine.target.forwards == forwards
    engine.drop([0])
    with pytest.raises(SpecdecError, match="kept are those of no request"):
        engine.submit([Request(1, (1, 2, 3, 4), SAMPLED, continues=0)])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"logit_bias": {300: 1.0}}, "the logit_bias of request 0 has the token id 300"),
        ({"bad_words": ((1, 258),)}, "the bad_words of request 0 has the token id 258"),
    ],
)
def test_token_ids_outside_the_vocabulary_are_refused(params: dict[str, Any], message: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=message):
        assemble("llama").engine(None).run([Request(0, (1,), SamplingParams(**params))])
