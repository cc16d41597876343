"""The step: one forward, one read, no copy, no allocation; rows, kinds and counters."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchsuite.conformance.guards.read_guard import guarded_steps, only_engine_reads
from benchsuite.conformance.models.tiny import ask, prompts, requests
from benchsuite.tests.rig import DEVICES, Make, pairs_in_turn, slow_after
from specdec import Context, Draft, Env, Request, SamplingParams, SpecdecError, Verdict, Window
from specdec.devices import HostCopy, Stopwatch
from specdec_plugins.drafts.garbage import Garbage

STRATEGIES = [
    *itertools.product([None, "ngram", "draft_model", "garbage", "oracle(0.8)"], ["match", "rejection"]),
    *(("tree(beam=2, depth=2)", policy) for policy in ("match", "tree_rejection", "tree_agree(m=1)")),
    *(("eagle", policy) for policy in ("block", "typical", "topk_agree", "conf_threshold", "longest_prefix")),
    ("suffix(branches=2)", "typical(p=0.9)"),
    ("medusa(head_init=random, beam=2)", "match"),
    ("medusa", "rejection"),
    ("hybrid(sources='suffix, ngram, eagle')", "rejection"),
]


@pytest.mark.parametrize(("strategy", "temperature"), slow_after(5, pairs_in_turn(STRATEGIES, [0.0, 1.0])))
def test_a_step_reads_the_device_once_and_only_through_read(
    strategy: tuple[str | None, str], temperature: float, assemble: Make
) -> None:
    draft, policy = strategy
    engine = assemble("gemma3", max_rows=3).engine(draft, policy, k=4)
    params = SamplingParams(temperature=temperature, top_k=40, top_p=0.9, max_new_tokens=40)
    guarded_steps(engine, [Request(i, prompt, params) for i, prompt in enumerate(prompts(3))], 6)
    assert engine.stats.counts["host_reads"] == engine.stats.counts["target_forwards"] == 6


def test_the_guard_against_reads_finds_a_planted_one(assemble: Make) -> None:
    engine = assemble().engine("ngram", k=4)
    accept = engine.policy.accept
    object.__setattr__(engine.policy, "accept", lambda *a: (a[1].width.sum().item(), accept(*a))[1])
    with pytest.raises(AssertionError, match="item"):
        guarded_steps(engine, requests(count=1), 1)


def test_on_cuda_the_guard_forbids_every_wait_but_those_of_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    engine: Any = SimpleNamespace(
        target=SimpleNamespace(device=torch.device("cuda")), read=lambda packed: (packed, modes[-1])
    )
    with only_engine_reads(engine):
        assert modes[-1] == "error"
        assert engine.read("packed") == ("packed", "default")
        assert modes[-1] == "error"
    assert modes[-1] == "default"


@pytest.mark.parametrize("draft", slow_after(2, ["ngram", "draft_model", "garbage", "oracle(0.8)"]))
def test_counters_are_exact(draft: str, assemble: Make) -> None:
    build = assemble(max_rows=2)
    engine, calls = build.engine(draft, k=4), []
    object.__setattr__(engine.ops, "kv_compact", None)  # a call would fail: a chain must move nothing
    for request in requests():
        build.plain(request)  # the oracle's plain run must not count in this run
    engine.target.model.register_forward_pre_hook(lambda *_: calls.append(1))
    done = engine.run(requests())
    counters = engine.stats.counters()
    steps = engine.stats.steps
    assert counters["target_forwards"] == counters["host_reads"] == len(steps) == len(calls)
    assert counters["kv_bytes_copied"] == 0
    assert counters["num_emitted_tokens"] == sum(len(c.tokens) for c in done) == sum(s.emitted for s in steps)
    assert counters["num_draft_tokens"] == sum(s.proposed for s in steps)
    assert counters["num_accepted_tokens"] == sum(c.kinds.count("accepted") for c in done)
    assert counters["num_accepted_tokens"] == sum(counters["num_accepted_tokens_per_pos"])  # type: ignore[arg-type]
    prefilled = sum(len(r.prompt) - 1 for r in requests())
    assert counters["kv_appended_tokens_total"] == prefilled + sum(s.rows * s.width for s in steps)
    assert counters["prefill_forwards"] == len(requests())
    assert engine.stats.tau == engine.stats.counts["num_emitted_tokens"] / sum(s.rows for s in steps)
    if counters["num_drafts"]:
        drafts, accepted = engine.stats.counts["num_drafts"], engine.stats.counts["num_accepted_tokens"]
        assert engine.stats.mean_acceptance_length == 1 + accepted / drafts
    assert (counters["draft_forwards"] > 0) is (draft == "draft_model")  # type: ignore[operator]


@pytest.mark.slow
def test_a_repeated_run_repeats_its_counters_and_tokens(assemble: Make) -> None:
    engine = assemble(max_rows=2).engine("draft_model", k=3)
    work = requests(SamplingParams(temperature=1.0, max_new_tokens=20))
    first = [c.tokens for c in engine.run(work)], engine.stats.counters()
    assert ([c.tokens for c in engine.run(work)], engine.stats.counters()) == first


@pytest.mark.slow
def test_the_last_row_moves_into_a_freed_place_and_its_bytes_are_counted(assemble: Make) -> None:
    build = assemble(max_rows=3)
    engine = build.engine("draft_model", k=2)
    work = [replace(r, params=SamplingParams(max_new_tokens=n)) for r, n in zip(requests(), (4, 30, 50), strict=False)]
    plain = [build.plain(r) for r in work]
    assert [c.tokens for c in engine.run(work)] == plain
    assert engine.stats.counts["kv_rows_moved_bytes"] == engine.arena.row_bytes


def test_a_waiting_request_takes_a_freed_place_without_a_copy(assemble: Make) -> None:
    engine = assemble(max_rows=2).engine("ngram", k=2)
    same = [Request(i, p, SamplingParams(max_new_tokens=6)) for i, p in enumerate(prompts(4))]
    engine.run(same)
    assert engine.stats.counts["kv_rows_moved_bytes"] == 0
    assert max(step.rows for step in engine.stats.steps) == 2


def test_each_kind_of_token_is_told_apart(assemble: Make) -> None:
    build = assemble()
    request = Request(0, prompts(1)[0], SamplingParams(max_new_tokens=11))
    right = build.engine("oracle(1.0)", k=4).run([request])[0]
    # 11 tokens: two full windows of 4 + bonus, then the last token, for which nothing may be proposed.
    assert right.kinds == (("accepted",) * 4 + ("bonus",)) * 2 + ("plain",)
    wrong = build.engine("oracle(0.0)", k=4).run([request])[0]
    assert set(wrong.kinds) == {"recovered", "plain"}


@pytest.fixture
def new_objects_alone() -> Iterator[None]:
    """The collector looks at no object that is there before: to go through all that libraries make takes a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize(
    "draft",
    [None, "draft_model", *(pytest.param(name, marks=pytest.mark.slow) for name in ("garbage", "eagle", "medusa"))],
)
def test_after_warm_up_no_memory_grows_with_the_steps(
    draft: str | None, assemble: Make, new_objects_alone: None
) -> None:
    engine = assemble(max_length=4096 if draft is None else 512).engine(draft, k=4)

    def tensors_in_use() -> tuple[int, int]:
        gc.collect()
        # Of these types alone: what torch's compiler leaves of other tests has no size.
        tensors = [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]
        return len(tensors), sum(t.nbytes for t in tensors)

    engine.submit([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=400))])
    for _ in range(10):
        engine.step()
    before, allocations = tensors_in_use(), engine.stats.counts["allocations"]
    for _ in range(60):
        engine.step()
    assert tensors_in_use() == before
    assert engine.stats.counts["allocations"] == allocations


def test_a_steps_read_is_queued_before_the_draft_observes_and_waited_for_after(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a GPU works for the draft while the host uses the numbers."""
    engine, done = assemble().engine("eagle", k=2), list[str]()

    def noted(owner: object, name: str, word: str) -> None:
        usual = getattr(owner, name)

        def call(*given: Any) -> Any:
            done.append(word)
            return usual(*given)

        monkeypatch.setattr(owner, name, call)

    noted(HostCopy, "start", "queued")
    noted(engine.draft, "observe", "observed")
    noted(HostCopy, "of", "waited for")
    engine.run(requests(count=1))
    assert done == ["queued", "observed", "waited for"] * len(engine.stats.steps)


def test_a_prefill_is_timed_by_marks_that_are_read_when_its_request_has_ended(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA marks are events: the host's clock would time the launches, and an early question would wait for them."""
    engine = assemble().engine("ngram", k=2)
    marks, asked = itertools.count(), list[tuple[int, int]]()

    def seconds(watch: Stopwatch, start: int, end: int) -> float:
        asked.append((start, end))
        return float(end - start)

    monkeypatch.setattr(Stopwatch, "mark", lambda watch: next(marks))
    monkeypatch.setattr(Stopwatch, "seconds", seconds)
    engine.submit(requests(SamplingParams(max_new_tokens=2), count=1))
    assert not asked, "an admission waited"
    while engine.rows.live:
        engine.step()
    # The marks between are those of the draft's call.
    assert (asked, engine.finished[0].prefill_s) == ([(0, 3)], 3.0)


def test_the_times_of_tokens_count_from_when_their_request_was_submitted(assemble: Make) -> None:
    """By the same clock, read before the first submission and after the last step."""
    engine = assemble(max_rows=1).engine("oracle(0.8)", k=3)
    before = time.perf_counter()
    first, second = engine.run(requests(SamplingParams(max_new_tokens=6), 2))
    took = time.perf_counter() - before
    for done in (first, second):
        assert list(done.times) == sorted(done.times)
        assert 0 < done.times[0] <= done.times[-1] <= took
    assert second.times[0] > first.times[-1], "the second has waited for the first one's row since both were submitted"


def test_no_proposal_reaches_past_the_budget(assemble: Make) -> None:
    engine = assemble().engine("oracle(1.0)", k=6)
    done = engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=9))])[0]
    assert len(done.tokens) == 9
    assert [step.proposed for step in engine.stats.steps] == [6, 1]


@pytest.mark.slow
def test_a_model_at_its_last_position_stops_with_length(assemble: Make) -> None:
    build = assemble("gpt2", max_length=2000)
    request = Request(0, prompts(1)[0] * 13, SamplingParams(max_new_tokens=400))
    done = build.engine("oracle(0.8)", k=4).run([request])[0]
    assert done.finish_reason == "length"
    assert len(request.prompt) + len(done.tokens) == 512
    assert done.tokens == build.plain(request)


@pytest.mark.slow
def test_zero_proposals_is_plain_decoding(assemble: Make) -> None:
    build = assemble()
    engine = build.engine("ngram", k=0)
    done = engine.run(requests())
    assert [c.tokens for c in done] == [build.plain(r) for r in requests()]
    assert engine.stats.counts["num_draft_tokens"] == 0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(0, ()), "the prompt of request 0 is empty"),
        (Request(0, (1,) * 192), "has 192 tokens and at most 191 fit"),
        (Request(0, (1, 300)), "has the token id 300; the target's vocabulary ends at 257"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(request_: Request, message: str, assemble: Make) -> None:
    engine = assemble().engine("ngram")
    with pytest.raises(SpecdecError, match=message):
        engine.run([replace(requests()[0], id=7), request_])
    assert not engine.stats.counts["target_forwards"]


def test_two_requests_of_one_id_are_refused(assemble: Make) -> None:
    with pytest.raises(SpecdecError, match="same id"):
        assemble().engine(None).run([requests()[0], requests()[0]])


class Misfit(Draft):
    """A draft whose window has the wrong shape."""

    def propose(self, context: Context) -> Window:
        return Window(context.tokens[:, :9], context.tokens[:, :9], context.length)


def test_a_window_that_does_not_fit_is_refused_by_name(assemble: Make) -> None:
    engine = assemble().engine("ngram", k=2)
    engine.draft = Misfit()
    with pytest.raises(SpecdecError, match=r"'Misfit' proposed a window that does not fit: got tokens \(1, 9\)"):
        engine.run(requests())


@pytest.mark.parametrize(
    ("proposed", "said"),
    [
        (lambda context: None, "draft 'Proposes' proposed None; expected a specdec.Window"),
        (lambda context: [[1, 2]], r"draft 'Proposes' proposed \[\[1, 2\]\]; expected a specdec.Window"),
        (lambda context: chain_of(context, 258), "draft 'Proposes' proposed the token 258; expected ids from 0 to 257"),
        (lambda context: chain_of(context, -1), "draft 'Proposes' proposed the token -1; expected ids from 0 to 257"),
    ],
)
def test_a_proposal_that_is_no_window_or_of_no_vocabulary_is_refused_by_the_drafts_name(
    proposed: Callable[[Context], Any], said: str, assemble: Make
) -> None:
    class Proposes(Draft):
        def propose(self, context: Context) -> Window:
            found: Window = proposed(context)
            return found

    engine = assemble().engine("ngram", k=2)
    engine.draft = Proposes()
    with pytest.raises(SpecdecError, match=said):
        engine.run(requests())


def chain_of(context: Context, token: int) -> Window:
    last, one = Window.root(context).tokens[:, 0], torch.ones_like(context.length)
    return Window.chain(last, torch.full_like(last, token)[:, None], one)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("tokens", torch.zeros(3, 3, dtype=torch.int64)),
        ("tokens", torch.zeros(2, 5, dtype=torch.int64)),
        ("tokens", torch.zeros(2, 3, dtype=torch.int32)),
        ("parents", torch.zeros(2, 2, dtype=torch.int64)),
        ("parents", torch.zeros(2, 3, dtype=torch.int32)),
        ("width", torch.zeros(2, 1, dtype=torch.int64)),
        ("width", torch.zeros(2, dtype=torch.int32)),
        ("q", torch.zeros(2, 3, 7)),
        ("q", torch.zeros(2, 2, 6)),
        ("confidence", torch.zeros(2, 2)),
        ("confidence", torch.zeros(2, 3, 1)),
        ("confidence", torch.zeros(2, 3, dtype=torch.int64)),
    ],
)
def test_each_part_of_a_window_that_does_not_fit_is_refused_and_shown(part: str, value: torch.Tensor) -> None:
    """Two rows, at most four slots, seven tokens; what was got is said of every part, of q too."""
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    window = Window(zeros, zeros, torch.ones(2, dtype=torch.int64), torch.zeros(2, 2, 7), torch.zeros(2, 3))
    window.check(2, 4, 7, "planted")
    replace(window, q=None, confidence=None).check(2, 4, 7, "planted")
    wrong = replace(window, **{part: value})
    with pytest.raises(SpecdecError) as refused:
        wrong.check(2, 4, 7, "planted")
    said = str(refused.value)
    assert said.startswith("draft 'planted' proposed a window that does not fit")
    assert f"{part} {tuple(value.shape)}" in said
    assert part == "q" or str(value.dtype) in said
    assert wrong.q is not None
    assert f"q {tuple(wrong.q.shape)}" in said


@pytest.mark.slow
def test_an_engine_runs_again_after_a_run_that_failed(assemble: Make) -> None:
    build = assemble()
    engine = build.engine("ngram", k=2)
    good, engine.draft = engine.draft, Misfit()
    with pytest.raises(SpecdecError):
        engine.run(requests())
    engine.draft = good
    assert [c.tokens for c in engine.run(requests())] == [build.plain(r) for r in requests()]


class SeesStates(Garbage):
    """Keeps the states of every token that stays in the text of the only row."""

    needs_hidden = True

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.seen: list[torch.Tensor] = []

    def prefilled(self, row: int, tokens: torch.Tensor, start: int, hidden: torch.Tensor) -> None:
        self.seen.append(hidden[0])

    def observe(self, window: Window, verdict: Verdict, hidden: torch.Tensor | None, own: bool) -> None:
        assert hidden is not None
        self.seen.append(hidden[0, : verdict.num_accepted[0] + 1])


@pytest.mark.parametrize("device", DEVICES)
def test_hidden_states_come_for_every_target_forward(device: str, assemble: Make) -> None:
    build = assemble(device=device, extra=(("draft", "sees_states", SeesStates),))
    engine = build.engine("sees_states", k=2)
    assert isinstance(engine.draft, SeesStates)
    request = requests()[0]
    done = engine.run([request])[0]
    ids = torch.tensor([[*request.prompt, *done.tokens[:-1]]], device=device)
    expected = build.target.twin().base_model(ids, use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(torch.cat(engine.draft.seen), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_requests_that_come_while_others_run_get_the_same_tokens(assemble: Make) -> None:
    build = assemble(max_rows=2)
    work = [Request(i, p, SamplingParams(max_new_tokens=9 + i, temperature=i % 2)) for i, p in enumerate(prompts(4))]
    engine = build.engine("draft_model", k=3)
    engine.submit(work[:1])
    for request in work[1:]:
        engine.step()
        engine.submit([request])
    while engine.rows.live:
        engine.step()
    assert {request.id: build.plain(request) for request in work} == {
        number: done.tokens for number, done in engine.finished.items()
    }


def test_a_request_with_the_id_of_one_that_runs_is_refused_and_changes_nothing(assemble: Make) -> None:
    engine = assemble().engine("ngram")
    engine.submit([Request(7, prompts(1)[0])])
    with pytest.raises(SpecdecError, match="two requests have the same id, 7"):
        engine.submit([Request(8, prompts(1)[0]), Request(7, prompts(1)[0])])
    while engine.rows.live:
        engine.step()
    assert engine.finished.keys() == {7}


@pytest.mark.parametrize("k", [-1, 5])
def test_a_controller_that_breaks_its_own_bound_is_refused(k: int, assemble: Make) -> None:
    engine = assemble().engine("ngram", controller="fixed(k=4)")
    ask(engine, [4, 0, k])
    with pytest.raises(SpecdecError, match=f"the controller Fixed asks for {k} proposals; .* max_k, 4"):
        engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=40))])
