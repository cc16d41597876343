"""Rows of different K: what a controller may return, what it is told of each row, and that outputs stay the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch

from benchsuite.conformance.drafts import differ
from benchsuite.conformance.guards.read_guard import guarded_steps
from benchsuite.conformance.guards.tape import Tape
from benchsuite.conformance.models.tiny import requests, save_target
from benchsuite.judge.sources import EachRow, EngineSource
from benchsuite.tests.rig import Make, slow_after
from benchsuite.workshop.machines.uneven_runs import HYBRIDS, MOST, Telling, due_k, hybrid_run, model_run, uneven_run
from specdec import Context, SamplingParams, SpecdecError, Window
from specdec.confidence import confidence_bits, confidence_read
from specdec.lengths import allowed_k, each_k
from specdec.stats import RowStats, Stats

GREEDY = SamplingParams(max_new_tokens=12)
SAMPLED = SamplingParams(max_new_tokens=12, temperature=0.8, seed=3)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (3, 3),
        (np.int64(2), 2),
        ([4, 0, 1], (4, 0, 1)),
        ((0, 0, 4), (0, 0, 4)),
        (np.array([1, 2, 3]), (1, 2, 3)),
        ([2, 2, 2], 2),
        ([0, 0, 0], 0),
    ],
)
def test_a_controller_returns_one_k_or_one_for_each_row(asked: Any, found: object) -> None:
    assert allowed_k(asked, 3, 4, "Mine") == found
    assert each_k(allowed_k(asked, 3, 4, "Mine"), 3) == ((found,) * 3 if isinstance(found, int) else found)


@pytest.mark.parametrize(
    "asked",
    [
        *(5, -1, 2.5, 2.0, None, "4", ""),
        *([1, 2], [1, 2, 3, 4], [], [1, 2, 5], [1, -1, 2], [1, 2.0, 3], [[1], [2], [3]]),
        *(np.array([[1, 2, 3]]), np.array([1.0, 2.0, 3.0]), {1, 2, 3}),
    ],
    ids=repr,
)
def test_anything_else_is_refused_by_the_name_of_the_controller(asked: object) -> None:
    with pytest.raises(SpecdecError) as refused:
        allowed_k(asked, 3, 4, "Mine")
    assert str(refused.value) == (
        f"the controller Mine asks for {asked!r} proposals; next_k must return a whole number from 0 to its max_k, 4, "
        "for which the arena was made, or a list with one for each live row, of which there are 3: stats.rows has them "
        "in their order"
    )


def test_an_engine_refuses_as_many_ks_as_there_are_no_rows(assemble: Make) -> None:
    engine = assemble(max_rows=2).engine("ngram", k=4)
    object.__setattr__(engine.controller, "next_k", lambda stats: [1])
    with pytest.raises(SpecdecError, match=r"the controller Fixed asks for \[1\] proposals; .* of which there are 2"):
        engine.run(requests(GREEDY, 2))


def test_each_row_has_its_own_k_and_is_told_what_its_request_did_wherever_it_moved() -> None:
    uneven_run()


def test_a_controller_is_told_how_many_requests_wait_for_a_row(assemble: Make) -> None:
    """Three requests in one row: two wait, then one, then none."""
    engine, seen = assemble(max_rows=1).engine("ngram", k=0), list[int]()

    def next_k(stats: Stats) -> int:
        seen.append(stats.waiting)
        return 0

    object.__setattr__(engine.controller, "next_k", next_k)
    engine.run(requests(GREEDY, 3))
    assert [waiting for waiting, _ in groupby(seen)] == [2, 1, 0]


def test_a_controller_is_told_whether_further_requests_may_come(assemble: Make) -> None:
    """None come to a run, or behind a submission that says so; to what was submitted otherwise they may."""
    engine, seen = assemble(max_rows=2).engine("ngram", k=0), list[bool]()

    def next_k(stats: Stats) -> int:
        seen.append(stats.closed)
        return 0

    object.__setattr__(engine.controller, "next_k", next_k)
    engine.run(requests(GREEDY, 1))
    for closed in (False, True):
        engine.run([])
        engine.submit(requests(GREEDY, 1), closed=closed)
        while engine.rows.live:
            engine.step()
    list(engine.stream([replace(requests(GREEDY, 1)[0], id=9)]))
    assert [closed for closed, _ in groupby(seen)] == [True, False, True, False]


DRAFTS = (
    "ngram(n_min=1)",
    "ngram(n_min=1, branches=2)",
    "draft_model",
    "eagle",
    "medusa(head_init=random, beam=2)",
    "tree",
    "hybrid(sources='ngram, draft_model')",
)


@pytest.mark.parametrize("draft", slow_after(2, DRAFTS))
def test_rows_of_different_k_emit_what_plain_decoding_does(draft: str, assemble: Make) -> None:
    """Six requests in three rows, greedy and sampled, under the policy whose tokens depend on no proposal."""
    for params in (GREEDY, SAMPLED):
        build = assemble(max_rows=3)
        engine = build.engine(draft, k=MOST)
        engine.controller = EachRow(MOST, due_k)
        differ(f"{draft} with a K for each row", build, engine, requests(params, 6))
        assert any(isinstance(k, tuple) for k in engine.stats.chosen)
        for ks, step in zip(engine.stats.chosen, engine.stats.steps, strict=True):
            proposed = [row.proposed for row in step.each]
            assert all(own <= k for own, k in zip(proposed, each_k(ks, step.rows), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["longest_prefix", "rejection", "block", "tree_rejection"])
def test_rows_of_different_k_emit_what_plain_decoding_does_under_every_exact_policy(
    policy: str, assemble: Make
) -> None:
    build = assemble(max_rows=3)
    for draft in ("draft_model", "ngram(n_min=1, branches=2)" if policy == "tree_rejection" else "ngram(n_min=1)"):
        engine = build.engine(draft, policy, k=MOST)
        engine.controller = EachRow(MOST, due_k)
        differ(f"{draft} with a K for each row", build, engine, requests(GREEDY, 6))


@pytest.mark.slow
def test_the_target_as_its_own_draft_is_kept_whole_in_rows_of_different_k(assemble: Make, tmp_path: Any) -> None:
    """So a draft's cells are rolled back by each row's own proposals, also where a row had none."""
    engine = assemble(max_rows=3).engine(f"draft_model(model={save_target('llama', tmp_path)})", k=MOST)
    engine.controller = EachRow(MOST, due_k)
    engine.run(requests(GREEDY, 6))
    assert engine.stats.acceptance_rate == 1.0


def test_a_run_is_repeated_with_the_k_that_each_row_had(assemble: Make) -> None:
    """The judge of ties asks for logits of a run that it repeats; another K would give other windows."""
    engine = assemble(max_rows=3).engine("oracle(0.7)", k=MOST)
    engine.controller = EachRow(MOST, due_k)
    source, work = EngineSource(engine), requests(GREEDY, 3)
    source.tokens(work)
    chosen, engine.controller = engine.stats.chosen, EachRow(MOST, lambda row: 1)
    assert source.logits_at(work, 2, 5) is not None
    assert engine.stats.chosen == chosen


def _telling(assemble: Make, rows: int, sure: Callable[[Window, Context], Any]) -> Any:
    class Sure(Telling):
        def propose(self, context: Context) -> Window:
            window = super().propose(context)
            return replace(window, confidence=sure(window, context))

    return assemble(max_rows=rows, extra=(("draft", "sure", lambda env: Sure(env, rate=0.7)),)).engine("sure", k=MOST)


def test_a_confidence_comes_with_the_one_read_of_a_step(assemble: Make) -> None:
    engine = _telling(assemble, 2, lambda window, context: window.confidence)
    engine.controller = EachRow(MOST, due_k)
    guarded_steps(engine, requests(replace(GREEDY, max_new_tokens=30), 2), 6)
    assert any(row.confidence for row in engine.stats.rows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_confidence_may_have_any_floating_dtype_beside_log_probabilities(dtype: torch.dtype, assemble: Make) -> None:
    engine = _telling(assemble, 1, lambda window, context: torch.full(window.tokens.shape, 0.25, dtype=dtype))
    told: list[tuple[float | None, ...]] = []

    def k_of(row: RowStats) -> int:
        told.append(row.confidence)
        return 2

    engine.controller = EachRow(MOST, k_of)
    done = engine.run(requests(replace(GREEDY, logprobs=2), 1))
    plain = assemble(max_rows=1).engine(None).run(requests(replace(GREEDY, logprobs=2), 1))
    assert {chance for row in told for chance in row} == {0.25}
    assert len(done[0].logprobs) == len(plain[0].logprobs) == 12
    for one, other in zip(done[0].logprobs, plain[0].logprobs, strict=True):
        assert one.raw == pytest.approx(other.raw, abs=1e-4)


def test_what_lies_in_no_proposal_is_no_confidence(assemble: Make) -> None:
    """The root and the padding may hold anything: only proposals are told."""

    def outside(window: Window, context: Context) -> torch.Tensor:
        slots = torch.arange(window.tokens.shape[1])
        valid = (slots > 0) & (slots < window.width[:, None])
        return torch.where(valid, 0.5, float("nan"))

    engine = _telling(assemble, 2, outside)
    engine.controller = EachRow(MOST, due_k)
    engine.run(requests(GREEDY, 3))


@pytest.mark.parametrize("wrong", [1.5, -0.25, float("nan"), float("inf")])
def test_a_confidence_that_is_no_chance_is_refused_by_the_drafts_name(wrong: float, assemble: Make) -> None:
    engine = _telling(assemble, 1, lambda window, context: torch.full(window.tokens.shape, wrong))
    with pytest.raises(
        SpecdecError, match=f"draft 'Sure' has the confidence {wrong} in a proposal; expected the chance"
    ):
        engine.run(requests(GREEDY, 1))


def test_bits_of_a_confidence_come_back_as_the_same_floats() -> None:
    told = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    found = confidence_read(confidence_bits(told).numpy(), np.array([4, 0, 2]), "mine")
    assert found == [tuple(told[0, 1:].tolist()), (), tuple(told[2, 1:3].tolist())]


def test_a_proposal_without_an_estimate_is_told_as_none_and_a_row_without_any_as_empty() -> None:
    told = torch.tensor([[-1.0, 0.5, -1.0, 0.0], [0.5, -1.0, -1.0, 1.0], [-1.0] * 4])
    found = confidence_read(confidence_bits(told).numpy(), np.array([3, 2, 3]), "mine")
    assert found == [(0.5, None, 0.0), (), ()]


@pytest.mark.slow
@pytest.mark.parametrize("text", HYBRIDS)
def test_rows_of_a_hybrid_are_told_the_confidence_of_the_source_that_has_one(text: str) -> None:
    hybrid_run(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "temperature", "replayed"),
    [("match", 0.0, False), ("match", 0.8, True), ("rejection", 0.8, False), ("rejection", 0.8, True)],
)
def test_a_models_confidence_is_its_probability_of_what_it_proposes(
    policy: str, temperature: float, replayed: bool
) -> None:
    model_run(policy, temperature, Tape() if replayed else None)


def test_a_model_computes_no_confidence_for_a_controller_that_reads_none(assemble: Make) -> None:
    told: list[tuple[float | None, ...]] = []

    def k_of(row: RowStats) -> int:
        told.append(row.confidence)
        return 2

    engine = assemble(max_rows=2, extra=(("controller", "mute", lambda env: EachRow(2, k_of)),)).engine(
        "draft_model", controller="mute"
    )
    engine.run(requests(GREEDY, 3))
    assert {*told} == {()}


@pytest.mark.slow
def test_a_confidence_is_the_same_where_steps_are_recorded_and_replayed(assemble: Make) -> None:
    runs: list[list[tuple[float | None, ...]]] = []
    for recorder in (None, Tape()):
        told: list[tuple[float | None, ...]] = []

        def k_of(row: RowStats, told: list[tuple[float | None, ...]] = told) -> int:
            told.append(row.confidence)
            return 2

        build = assemble(max_rows=2, backend="reference", extra=(("draft", "telling", lambda env: Telling(env, 0.7)),))
        engine = build.engine("telling", k=MOST, recorder=recorder)
        engine.controller = EachRow(MOST, k_of)
        engine.run(requests(GREEDY, 3))
        runs.append(told)
    assert runs[0] == runs[1]
    assert any(runs[0])
