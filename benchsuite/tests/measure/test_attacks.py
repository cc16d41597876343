"""Attacks on the numbers, planted: ways to look faster than one is, and what the suite calls each of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaModel

from benchsuite.measure import guards
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.paired import Series
from benchsuite.measure.plan import MeasuringPlan
from benchsuite.measure.rows import Row
from benchsuite.measure.session import Bench
from benchsuite.measure.units import disjoint_batches
from benchsuite.measure.workloads import Question
from benchsuite.report import tables
from benchsuite.tests.rig import SETTING, slow_after
from specdec import Context, Draft, Request, SpecdecError, Verdict, Window
from specdec.interfaces import Env

HERE = SETTING.replaced(backend="reference", max_new_tokens=16)


def prepared(
    setting: Setting = HERE, plan: MeasuringPlan | None = None, controller: str = "fixed", **drafts: Any
) -> Bench:
    """A Bench over the tiny target with these drafts at K 4, whose factories are given by name."""
    bench = Bench(plan or MeasuringPlan(prompts=2))
    for name, factory in drafts.items():
        bench.registry.add("draft", name, factory, "the attacks")
    bench.prepare([Arm(setting, draft=name, controller=controller, k=4) for name in drafts])
    return bench


def drafted_row(bench: Bench, draft: str) -> Row:
    """The row of a draft, measured if it is the first that is asked for."""
    arm = next(arm for arm in bench.arms if arm.draft == draft)
    return bench.row(arm, lambda what: None)


def both(bench: Bench) -> tuple[Series, Series]:
    """The series of the one draft of a measured Bench, and plain's."""
    series = next(iter(bench._comparisons.values())).series
    return next(one for arm, one in series.items() if arm.draft), next(one for arm, one in series.items() if arm.plain)


class Lazy(Draft):
    """Proposes nothing, ever: its speed is plain decoding's."""

    def __init__(self, env: Env) -> None:
        self.env = env

    def propose(self, context: Context) -> Window:
        return Window.root(context)


class SecretReplayer(Lazy):
    """Asks for plain's output and proposes it, without saying that it replays."""

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self.script, self.start = self.env.plain(request), len(prompt)

    def propose(self, context: Context) -> Window:
        at = int(context.length_host[0]) - self.start
        return Window.ragged(context, [self.script[at : at + int(context.max_proposals_host[0])]])


class DecodesBeforehand(SecretReplayer):
    """Decodes the whole answer with the target's weights while its prompt is read, and proposes it."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.twin: Any = env.target.twin()

    @torch.inference_mode()
    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        text = [*prompt]
        for _ in range(request.params.max_new_tokens):
            text.append(int(self.twin(torch.tensor([text])).logits[0, -1].argmax()))
        self.script, self.start = tuple(text[len(prompt) :]), len(prompt)


class SecretLearner(Lazy):
    """Remembers the longest output of each prompt, and forgets nothing when it is told to."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.seen: dict[tuple[int, ...], tuple[int, ...]] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self.prompt = prompt

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        self.seen[self.prompt] = max(self.seen.get(self.prompt, ()), tokens, key=len)

    def propose(self, context: Context) -> Window:
        at, most = int(context.length_host[0]), int(context.max_proposals_host[0])
        return Window.ragged(context, [self.seen.get(self.prompt, ())[at : at + most]])


class Declared(SecretLearner):
    """The same, but it says so, and forgets when it is told to."""

    learns = True

    def forget(self) -> None:
        self.seen.clear()


class DiskCache(SecretLearner):
    """Keeps its answers in a file, so that another process knows them before its first run."""

    def __init__(self, env: Env, file: Path) -> None:
        super().__init__(env)
        self.file = file
        self.seen = self.read()

    def read(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        kept = json.loads(self.file.read_text()) if self.file.exists() else []
        return {tuple(prompt): tuple(tokens) for prompt, tokens in kept}

    def write(self) -> None:
        self.file.write_text(json.dumps([*self.seen.items()]))

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        super().release(row, tokens)
        self.write()


class CacheOfAnotherRun(DiskCache):
    """The same, but within a run it learns nothing: the file is written when the process ends."""

    def __init__(self, env: Env, file: Path) -> None:
        super().__init__(env, file)
        self.known = self.seen
        self.seen = dict(self.known)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        SecretLearner.release(self, row, tokens)

    def propose(self, context: Context) -> Window:
        at, most = int(context.length_host[0]), int(context.max_proposals_host[0])
        return Window.ragged(context, [self.known.get(self.prompt, ())[at : at + most]])


class PatientLearner(SecretLearner):
    """Trusts what it remembers from the ninth token on: of a short budget it guesses nothing."""

    def propose(self, context: Context) -> Window:
        if int(context.length_host[0]) - len(self.prompt) < 9:
            return Window.root(context)
        return super().propose(context)


class Hanging(Lazy):
    """Proposes as often as it is allowed to, then never returns."""

    def propose(self, context: Context) -> Window:
        while True:
            pass


class BackgroundWorker(Lazy):
    """Proposes little, and hands work to a thread that goes on when the run has ended, in the time of other rows."""

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        threading.Thread(target=self.work, name="background").start()

    def work(self) -> None:
        start = time.thread_time()
        while time.thread_time() - start < 0.2:
            pass


class ThreadBorrower(Lazy):
    """Gives the target's forward a second thread of torch, which no other row has."""

    def propose(self, context: Context) -> Window:
        self.usual = torch.get_num_threads()
        torch.set_num_threads(self.usual + 1)
        return super().propose(context)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        torch.set_num_threads(self.usual)


class HandClock:
    """A clock that nothing moves but ``spend``."""

    now = 100.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[HandClock]:
    """In place of the machine's clock."""
    made = HandClock()
    monkeypatch.setattr(time, "perf_counter", made)
    yield made
    monkeypatch.undo()


def working(clock: HandClock, where: str) -> Callable[[Env], Draft]:
    """A draft that proposes the pending token and whose method ``where`` takes a second."""

    class Working(Lazy):
        def propose(self, context: Context) -> Window:
            k = int(context.max_proposals_host.max())
            return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)

    original = getattr(Working, where)

    def method(self: Draft, *given: Any) -> Any:
        clock.spend(1.0)
        return original(self, *given)

    setattr(Working, where, method)
    return Working


@pytest.mark.slow
@pytest.mark.parametrize("where", slow_after(1, ["propose", "observe", "release"]))
def test_work_in_any_call_of_a_step_is_drafting(where: str, clock: HandClock) -> None:
    bench = prepared(worker=working(clock, where))
    row = drafted_row(bench, "worker")
    calls = len(row.measured) if where == "release" else sum(step["k_used"] > 0 for step in row.steps)
    if where == "observe":
        calls = len(row.steps)  # also after a step without proposals
    seconds = sum(step["draft_ms"] for step in row.steps) / 1e3 + sum(run["draft_between_s"] for run in row.measured)
    assert seconds == pytest.approx(calls, rel=1e-3)
    assert row.info["draft_share"] > 0.99
    assert row.info["overhead"] < 0.01
    one_slot = sum(step["verify_ms"] for step in drafted_row(bench, "worker").steps) / 1e3 / len(row.steps)
    assert row.info["draft_cost"] * one_slot * sum(step["k_used"] for step in row.steps) > 0.4 * calls


@pytest.mark.slow
def test_work_while_a_prompt_is_read_is_in_the_time_to_the_first_token(clock: HandClock) -> None:
    row = drafted_row(prepared(worker=working(clock, "admit")), "worker")
    info = row.info
    assert info["ttft_draft_ms"] == pytest.approx(1000, rel=1e-3)
    assert info["ttft_ms"] > 1000
    assert info["e2e_s"] > 1
    assert sum(step["draft_ms"] for step in row.steps) < 1, "the prompt is no decoding"


@pytest.mark.slow
def test_work_while_it_should_forget_is_in_the_next_runs_time(clock: HandClock) -> None:
    row = drafted_row(prepared(worker=working(clock, "forget")), "worker")
    assert all(run["wall_s"] - run["decode_s"] > 1 for run in row.measured)
    assert row.info["ttft_ms"] > 1000


@pytest.mark.slow
def test_a_draft_that_reads_plains_output_replays() -> None:
    bench = prepared(replayer=SecretReplayer, lazy=Lazy)
    row = drafted_row(bench, "replayer")
    assert row.info["tau"] > 3, "the attack does not pay"
    assert row.info["marks"] == ["replays"]
    assert "(replays)" in " ".join(map(str, tables.rows_table([row], tables.SPEED).rows[0]))
    assert drafted_row(bench, "lazy").info["marks"] == []


@pytest.mark.slow
def test_a_draft_that_decodes_the_answer_in_admit_is_slower_from_prompt_to_last_token(clock: HandClock) -> None:
    """It was recommended at 6.01x. A forward takes a second here, whoever calls it."""
    forward = LlamaModel.forward

    def second(self: Any, *given: Any, **named: Any) -> Any:
        clock.spend(1.0)
        return forward(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaModel, "forward", second)
        row = drafted_row(prepared(beforehand=DecodesBeforehand), "beforehand")
    assert row.info["tau"] > 3, "the attack does not pay"
    assert row.info["marks"] == [], "it neither replays nor learns"
    assert row.info["e2e_speedup"] < 1 < row.info["speedup"]


@pytest.mark.slow
def test_a_draft_that_learns_across_prompts_is_marked_whatever_it_says() -> None:
    bench = prepared(plan=MeasuringPlan(prompts=2, pairs=2), learner=SecretLearner, declared=Declared, lazy=Lazy)
    for name, tau in (("learner", 1.5), ("declared", 1.0)):
        row = drafted_row(bench, name)
        assert row.info["marks"] == ["learns"], name
        assert (row.info["tau"] > 1.2) is (tau > 1.2), "forget comes before each pass over the prompts"
    assert drafted_row(bench, "lazy").info["marks"] == []


@pytest.mark.slow
def test_a_learner_that_waits_until_the_ninth_token_is_found_although_it_declares_nothing() -> None:
    row = drafted_row(prepared(plan=MeasuringPlan(prompts=1, pairs=2), patient=PatientLearner), "patient")
    assert row.info["tau"] > 1.1, "the attack does not pay"
    assert (row.info["marks"], row.info["verdict"]) == (["learns"], "not comparable")
    assert row.info["not_comparable"].startswith("learnt: it guessed more of a prompt when it was asked again")


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "said"), [(DiskCache, "learnt: "), (CacheOfAnotherRun, "known: ")])
def test_a_cache_on_disk_that_an_earlier_run_filled_is_found(cache: type[DiskCache], said: str, tmp_path: Path) -> None:
    made = list[DiskCache]()

    def factory(env: Env) -> Draft:
        made.append(cache(env, tmp_path / "answers.json"))
        return made[-1]

    first = drafted_row(prepared(plan=MeasuringPlan(prompts=4), cache=factory), "cache")
    made[-1].write()
    again = drafted_row(prepared(plan=MeasuringPlan(prompts=4), cache=factory), "cache")
    assert first.info["tau"] < 1.5
    assert again.info["tau"] > 2.5, "the attack does not pay"
    assert (again.info["marks"], again.info["verdict"]) == (["learns"], "not comparable")
    assert again.info["not_comparable"].startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["ngram", "suffix(earlier=False)", "oracle(0.8)", "draft_model", "eagle"])
def test_an_honest_draft_knows_no_prompt_and_learns_none(draft: str) -> None:
    bench = Bench(MeasuringPlan(prompts=1))
    bench.prepare([Arm(HERE, draft=draft, k=4)])
    row = drafted_row(bench, draft)
    assert row.info["marks"] == (["replays"] if draft == "oracle(0.8)" else [])
    ours, _ = both(bench)
    assert ours.twins
    assert guards.remembered([ours]) is None


@pytest.mark.slow
def test_what_a_draft_learnt_before_a_unit_is_gone_before_the_next() -> None:
    """A draft that heeds ``forget`` and does not declare that it learns starts every run afresh."""

    class Forgetful(Declared):
        learns = False

    row = drafted_row(prepared(plan=MeasuringPlan(prompts=2, pairs=3), forgetful=Forgetful), "forgetful")
    assert row.info["counters"]["num_draft_tokens"] == 0
    assert row.info["marks"] == []


@pytest.mark.slow
def test_a_draft_that_never_proposes_is_not_comparable() -> None:
    row = drafted_row(prepared(lazy=Lazy), "lazy")
    assert row.info["verdict"] == "not comparable"
    assert row.info["not_comparable"].startswith("no proposals")
    said = "lazy/match/fixed/4, chat: not comparable: no proposals"
    assert sum(said in line for line in tables.notes([], [row])) == 1
    whole = replace(row, arm=replace(row.arm, setting=row.arm.setting.without_workload))
    assert sum("not comparable: no proposals" in line for line in tables.notes([whole], [row])) == 1, "not said again"


@pytest.mark.slow
def test_a_draft_that_hangs_fails_by_name_and_the_others_go_on() -> None:
    bench = prepared(plan=MeasuringPlan(prompts=1, timeout=2.0), hanging=Hanging, lazy=Lazy)
    row = drafted_row(bench, "hanging")
    assert row.failure
    assert "hanging could not be measured: hanging, warming up: the run took longer than 2 s" in row.failure
    assert drafted_row(bench, "lazy").info["tokens_per_s"] > 0


@pytest.mark.slow
def test_work_in_a_background_thread_fails_its_row_by_name_and_nothing_is_timed_beside_it() -> None:
    bench = prepared(background=BackgroundWorker, lazy=Lazy)
    row = drafted_row(bench, "background")
    assert row.failure
    assert "background could not be measured: the thread background worked on for " in row.failure
    assert drafted_row(bench, "lazy").failure is None
    assert len(drafted_row(bench, "lazy").measured) == 2


@pytest.mark.slow
def test_threads_of_torch_that_only_one_row_has_fail_it_by_name() -> None:
    before = torch.get_num_threads()
    bench = prepared(borrower=ThreadBorrower, lazy=Lazy)
    row = drafted_row(bench, "borrower")
    assert row.failure
    assert f"borrower could not be measured: torch was set from {before} to {before + 1} threads" in row.failure
    assert torch.get_num_threads() == before
    assert drafted_row(bench, "lazy").failure is None


def test_a_batch_has_no_prompt_twice_and_no_prompt_is_in_two() -> None:
    questions = [Question((text,)) for text in "abcdefgh"]
    batches = disjoint_batches("chat", questions, 3)
    used = [question for batch in batches for question in batch.questions]
    assert len(batches) == 2
    assert len(set(used)) == len(used) == 6
    with pytest.raises(SpecdecError, match=r"--specdec-batch 4 takes 4 different prompts at once, and chat has 2;"):
        prepared(replace(HERE, batch=4), lazy=Lazy)


def test_copies_of_a_prompt_never_share_a_batch_and_are_one_independent_unit() -> None:
    twice = [Question((text,)) for text in "aabb"]
    batches = disjoint_batches("mine", twice, 2)
    assert [batch.places for batch in batches] == [(0, 2), (1, 3)]
    assert {batch.number for batch in batches} == {0}
    with pytest.raises(SpecdecError, match="takes 3 different prompts at once, and mine has 2"):
        disjoint_batches("mine", twice, 3)


@pytest.mark.slow
def test_a_prompt_repeated_many_times_has_no_interval(tmp_path: Path) -> None:
    path = tmp_path / "copies.jsonl"
    path.write_text(json.dumps({"question_id": 1, "turns": ["Say it again."]}) + "\n" * 1)
    path.write_text(path.read_text() * 8)
    info = drafted_row(prepared(replace(HERE, workload=str(path)), MeasuringPlan(), lazy=Lazy), "lazy").info
    assert (info["units"], info["speedup_low"]) == (1, None)


@pytest.mark.parametrize("tokens", [(7,) * 40, (1, 2, 3) * 16, (9, 8, 7, 6, 5, 4) * 2 + (1, 2) * 12])
def test_an_output_that_loops_is_called_a_loop(tokens: tuple[int, ...]) -> None:
    assert guards.loops(tokens)


@pytest.mark.parametrize("tokens", [tuple(range(48)), (1, 2) * 5, tuple(range(24)) * 2, (1, 2) * 12 + tuple(range(24))])
def test_an_output_that_does_not_end_in_a_loop_is_none(tokens: tuple[int, ...]) -> None:
    assert not guards.loops(tokens)


@pytest.mark.slow
def test_speeds_on_looping_outputs_are_not_comparable() -> None:
    """Lookups guess a loop: a target whose output repeats itself makes every lookup look good."""
    bench = prepared(replayer=SecretReplayer)
    drafted_row(bench, "replayer")
    ours, base = both(bench)
    assert guards.why_not([ours], [base]) is None
    base.outcomes = [replace(outcome, tokens=[(5,) * 24]) for outcome in base.outcomes]
    ours.outcomes = [replace(outcome, tokens=[(5,) * 24]) for outcome in ours.outcomes]
    assert (guards.why_not([ours], [base]) or "").startswith("loops: 2 of 2 outputs")


@pytest.mark.slow
def test_outputs_of_different_lengths_are_not_comparable() -> None:
    bench = prepared(replayer=SecretReplayer)
    drafted_row(bench, "replayer")
    ours, base = both(bench)
    ours.outcomes = [replace(outcome, tokens=[outcome.tokens[0][:10]]) for outcome in ours.outcomes]
    assert (guards.why_not([ours], [base]) or "").startswith("lengths: ")


@pytest.mark.slow
def test_an_arm_of_another_dtype_compilation_or_backend_is_not_comparable() -> None:
    bench = prepared(replayer=SecretReplayer)
    drafted_row(bench, "replayer")
    ours, base = both(bench)
    for name, value in (("dtype", "int8"), ("compile", "yes")):
        other = replace(ours, conditions={**ours.conditions, name: value})
        assert (guards.why_not([other], [base]) or "").startswith(f"{name}: {value}, the baseline's is")
    for outcome in ours.outcomes:
        assert outcome.stats
        ran = {op: count for op, count in outcome.stats.ops.items() if op[0] == "sample"}
        outcome.stats.ops.subtract(ran)
        outcome.stats.ops += type(outcome.stats.ops)({("sample", "triton"): 1})
    assert (guards.why_not([ours], [base]) or "").startswith("backend: sample ran on triton, the baseline's on ")
