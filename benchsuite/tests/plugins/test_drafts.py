"""The built-in drafts propose what they document, also where a wrong proposal would change no token."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchsuite.conformance.guards.tape import Tape
from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import ask, prompts, requests, save_target
from benchsuite.tests.rig import Make, saved_head, slow_after
from specdec import Context, Draft, Env, Request, SamplingParams, SpecdecError, Verdict, Window, catalog
from specdec.runtime import Graphed
from specdec_plugins.controllers.fixed import Fixed
from specdec_plugins.drafts.garbage import Garbage
from specdec_plugins.drafts.ngram import Ngram


@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 1.0]))
@pytest.mark.parametrize("family", slow_after(1, ["llama", "gemma3", "mistral", "gpt2"]))
def test_a_draft_that_is_the_target_has_every_proposal_accepted(
    family: str, temperature: float, tmp_path: Path, assemble: Make
) -> None:
    """A stale position, a lost token or a wrong catch-up changes no output under `match`, only acceptance."""
    engine = assemble(family, max_rows=3).engine(f"draft_model(model={save_target(family, tmp_path)})", k=4)
    params = SamplingParams(temperature=temperature, max_new_tokens=30)
    assert engine.draft is not None
    ask(engine, [4, 4, 0, 4, 0, 0, 4, 1, 4] * 40)
    engine.run(requests(params, count=6))
    assert engine.stats.acceptance_rate == 1.0
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"


@pytest.mark.slow
def test_a_draft_left_alone_for_longer_than_its_widest_window_catches_up(tmp_path: Path, assemble: Make) -> None:
    draft = f"draft_model(model={save_target('llama', tmp_path)})"
    engine = assemble(max_rows=2, max_length=500).engine(draft, k=4)
    ask(engine, [*[0] * 280, *[4] * 200])
    # A third request takes the second row late; it is then far less behind than the first.
    lengths = (400, 270, 60)
    work = [
        Request(i, p, SamplingParams(max_new_tokens=n))
        for i, (p, n) in enumerate(zip(prompts(3), lengths, strict=True))
    ]
    engine.run(work)
    assert engine.stats.counts["num_draft_tokens"] > 50
    assert engine.stats.acceptance_rate == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [(320, 258), pytest.param((258, 320), marks=pytest.mark.slow)], ids=["smaller", "larger"]
)
def test_a_draft_padded_to_another_vocabulary_costs_no_token(
    sizes: tuple[int, int], tmp_path: Path, assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = {}
    for name, size in zip(("target", "draft"), sizes, strict=True):
        configs[name] = families.CONFIGS["llama"]()
        configs[name].vocab_size = size
    AutoModelForCausalLM.from_config(configs["draft"]).save_pretrained(tmp_path)
    catalog.byte_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setitem(families.CONFIGS, "llama", lambda: configs["target"])
    build = assemble("llama", max_rows=2)
    work = [Request(r.id, (*r.prompt, sizes[0] - 1), r.params) for r in requests()]
    engine = build.engine(f"draft_model(model={str(tmp_path)!r})", k=3)
    assert [c.tokens for c in engine.run(work)] == [build.plain(r) for r in work]


@pytest.mark.slow
def test_rejection_accepts_a_draft_that_is_the_target_always(tmp_path: Path, assemble: Make) -> None:
    """p = q: min(1, p/q) = 1, up to the rounding of two forwards of different width."""
    engine = assemble(max_rows=2).engine(f"draft_model(model={save_target('llama', tmp_path)})", "rejection", k=4)
    engine.run(requests(SamplingParams(temperature=1.0, max_new_tokens=60)))
    assert engine.stats.counts["num_draft_tokens"] > 100
    assert engine.stats.acceptance_rate == 1.0


@pytest.mark.parametrize(
    "draft",
    slow_after(
        5,
        [
            *("ngram(n_min=1)", "ngram(n_min=1, branches=3)", "suffix(min_match=1)", "suffix(min_match=1, branches=3)"),
            *("hybrid(sources='ngram(n_min=1), draft_model', model_k=9)", "oracle(1.0)", "garbage"),
            *("draft_model", "draft_model(model={path}, vocabulary=intersection)", "tree(beam=3, depth=3)"),
            *("tree(widths=2-2-1)", "medusa(num_heads=6)", "medusa(beam=3)", "eagle", "eagle(head={eagle!r})"),
            *(
                "eagle(head={eagle!r}, beam=3, depth=3)",
                "eagle(head={eagle!r}, leaves=2, depth=3)",
                "custom_class(path='benchsuite.tests.vllm_rig:TheirLookup', {three})",
            ),
        ],
    ),
)
def test_no_row_of_a_window_is_wider_than_the_rows_own_room(draft: str, tmp_path: Path, assemble: Make) -> None:
    """Chains and trees, in batches whose rows have budgets of 3, 6 and 30 tokens."""
    build = assemble(max_rows=3)
    head = saved_head("eagle", build, tmp_path) if "{eagle" in draft else ""
    path = save_target("llama", tmp_path) if "{path" in draft else ""
    three = 'settings=\'{"prompt_lookup_min": 1, "prompt_lookup_max": 3}\''
    engine, tight = build.engine(draft.format(eagle=head, path=path, three=three), k=6), 0

    def judge(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        nonlocal tight
        for row, room in enumerate(context.max_proposals_host.tolist()):
            assert room == min(6, int(context.max_proposals[row]))
            proposed = int(window.width[row]) - 1
            assert 0 <= proposed <= room
            tight += 0 < room < 6 and proposed == room
            above = window.parents[row, 1 : proposed + 1]
            assert bool((above <= torch.arange(proposed)).all())

    engine.trace = judge
    text = prompts(1)[0]
    work = [Request(i, text + text[i:], SamplingParams(max_new_tokens=n)) for i, n in enumerate((3, 6, 30, 3, 6))]
    done = engine.run(work)
    assert [len(completion.tokens) for completion in done] == [3, 6, 30, 3, 6]
    assert tight, "no row filled a room below K: the case is not covered"


@pytest.mark.parametrize(
    ("history", "limit", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], 3, [3, 9, 1]),  # the docstring's example
        ([1, 2, 3, 9, 1, 2], 1, [3]),  # the budget cuts
        ([1, 2, 7, 1, 2, 8, 1, 2], 2, [8, 1]),  # the most recent of two
        ([5, 1, 2, 7, 1, 2, 8, 5, 1, 2], 2, [7, 1]),  # a longer match before a more recent one
        ([1, 2, 3, 4], 4, []),  # nothing repeats
        ([4, 4, 4, 4], 2, [4]),  # the continuation ends with the history
        ([1, 2], 4, []),  # too short to have a past
    ],
)
def test_ngram_follows_its_last_longest_match(history: list[int], limit: int, expected: list[int]) -> None:
    env: Any = None
    found = Ngram(env, n_max=3, n_min=2).continuations(0, np.array(history), limit)
    assert (found[0] if found else []) == expected


@pytest.mark.slow
def test_the_oracles_rate_is_the_acceptance_of_its_first_proposal(assemble: Make) -> None:
    """500 coins at 0.7: 5 standard deviations of the mean are 0.103."""
    build = assemble(max_rows=4, max_length=400)
    engine = build.engine("oracle(0.7)", k=2)
    work = [Request(i, p, SamplingParams(max_new_tokens=300)) for i, p in enumerate(prompts(4))]
    engine.run(work)
    stats = engine.stats
    assert stats.proposed_per_pos[0] > 500
    assert abs(stats.accepted_per_pos[0] / stats.proposed_per_pos[0] - 0.7) < 0.103


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["draft_model", "eagle", "garbage"])
def test_the_oracles_cost_is_spent_and_changes_no_proposal(assemble: Make, cost: str) -> None:
    build = assemble(max_rows=2)
    free, paid = build.engine("oracle(0.7)", k=3), build.engine(f"oracle(0.7, cost={cost})", k=3)
    assert [done.tokens for done in paid.run(requests())] == [done.tokens for done in free.run(requests())]
    assert paid.stats.counts["num_accepted_tokens"] == free.stats.counts["num_accepted_tokens"]
    assert paid.draft is not None
    alone = build.engine(cost, k=3).draft
    assert alone is not None
    assert (paid.draft.weight_bytes, paid.draft.needs_hidden) == (alone.weight_bytes, alone.needs_hidden)
    proposing = sum(step.width > 1 for step in paid.stats.steps)
    assert paid.stats.counts["draft_forwards"] >= (0 if cost == "garbage" else proposing)


@pytest.mark.slow
def test_a_draft_model_that_is_a_cost_catches_up_as_far_as_after_its_own_proposals(assemble: Make) -> None:
    build = assemble(backend="reference")
    engine = build.engine("oracle(0.7, cost=draft_model)", k=4, recorder=Tape())
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=60))])
    assert isinstance(engine.runtime, Graphed)
    proposing = [kind for kind in engine.runtime.kinds if isinstance(kind, tuple) and len(kind) == 4]
    behind = [kind[-1] for kind in proposing if isinstance(kind[0], Draft) and kind[1] != "observe"]
    assert behind
    assert max(behind) <= 2


def test_a_cost_that_proposes_trees_is_refused(assemble: Make) -> None:
    with pytest.raises(SpecdecError, match="the cost 'tree' of oracle proposes trees; expected a draft of chains"):
        assemble().engine("oracle(0.7, cost=tree)", k=3)


@pytest.mark.slow
def test_the_oracle_falls_silent_where_the_output_left_its_script(assemble: Make) -> None:
    build = assemble(max_length=400)
    engine = build.engine("oracle(0.5)", "rejection", k=4)
    work = [Request(0, prompts(1)[0], SamplingParams(temperature=1.0, max_new_tokens=200))]
    done = engine.run(work)[0]
    left = next(i for i, (a, b) in enumerate(zip(done.tokens, build.plain(work[0]), strict=True)) if a != b)
    assert "accepted" not in done.kinds[left + 1 :]
    assert set(done.kinds[left + 1 :]) == {"plain"}


@pytest.mark.parametrize(
    ("draft", "asked"), slow_after(1, [("oracle(0.8)", 2), ("hybrid(sources='ngram, oracle(0.8)')", 2), ("ngram", 0)])
)
def test_each_call_for_plains_output_is_counted_in_the_engine_whose_draft_made_it(
    draft: str, asked: int, assemble: Make
) -> None:
    build, work = assemble(), requests(count=2)
    other, engine = build.engine("oracle(0.8)", k=4), build.engine(draft, k=4)
    for request in work:
        build.plain(request)  # as the suite asks; it is no call of a draft
    other.run(work[:1])
    engine.run(work)
    assert (other.replayed(), engine.replayed()) == (1, asked)
    engine.run(work)
    assert engine.replayed() == 2 * asked
    assert build.engine(None, k=0).replayed() == 0


def test_an_engine_says_how_long_its_factories_took(assemble: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock is a second after the last: a factory that reads it n times takes n + 1 seconds."""

    def reading(times: int, factory: Callable[..., Any]) -> Callable[..., Any]:
        def build(env: Env) -> Any:
            for _ in range(times):
                time.perf_counter()
            return factory(env)

        return build

    extra = (("draft", "slow", reading(5, Garbage)), ("controller", "late", reading(2, Fixed)))
    build = assemble(extra=extra)
    monkeypatch.setattr(time, "perf_counter", map(float, itertools.count()).__next__)
    assert build.engine("slow", controller="late").set_up_seconds == {"controller": 3.0, "draft": 6.0}
    combined = build.engine("hybrid(sources='ngram, slow')", controller="late")
    assert combined.set_up_seconds == {"controller": 3.0, "draft": 6.0}


@pytest.mark.slow
def test_garbage_is_accepted_about_never(assemble: Make) -> None:
    engine = assemble(max_rows=2).engine("garbage", k=4)
    engine.run(requests(SamplingParams(max_new_tokens=60)))
    assert engine.stats.acceptance_rate is not None
    assert engine.stats.acceptance_rate < 0.05  # by chance 1 in 258
