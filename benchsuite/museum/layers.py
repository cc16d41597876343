"""The layers of proof, small enough to run against every mutant.

Each is a function that raises if it finds a bug and returns otherwise. They use the suite's own parts; only the sizes
are smaller.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from torch import Tensor

from benchsuite import conformance
from benchsuite.conformance.claims import Failed, failures
from benchsuite.conformance.drafts import differ
from benchsuite.measure.fidelity import evenness
from benchsuite.measure.runners import Always
from benchsuite.measure.ties import Judge
from benchsuite.prove import exact_runs, tiny
from benchsuite.prove.arena_machine import Rollback
from benchsuite.prove.engine_machine import EngineMachine
from benchsuite.prove.enumerator import Shape, chain, context
from benchsuite.prove.exact_runs import PROMPTS, one
from benchsuite.prove.read_guard import guarded_steps
from benchsuite.prove.table_target import TableDraft, Tabular, random_table
from specdec import Engine, Request, SamplingParams, catalog, sampling
from specdec_kernels.reference import Reference

GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_new_tokens=24)
FORK, DEEP = Shape((-1, 0, 0)), Shape((-1, 0, 0, 1, 2))
RARE = 1e-8
"""The false-alarm probability of each of the few sampling tests here."""


def distribution() -> None:
    """Whole runs are enumerated: processors, ends, rows, rings, chains and trees, drawn and certain."""
    batch = [Request(i, PROMPTS[i], replace(one(1)[0].params, max_new_tokens=n)) for i, n in enumerate((1, 2, 1))]
    cases: list[tuple[str, int, Shape, list[Request], dict[str, Any]]] = [
        *((policy, 2, chain(2), one(3), {}) for policy in ("rejection", "block", "tree_rejection", "match")),
        *((policy, 2, chain(2), one(3), {"certain": True}) for policy in ("rejection", "block", "tree_rejection")),
        ("rejection", 3, chain(1), one(2, temperature=0.5), {}),
        ("rejection", 3, chain(1), one(2, top_k=2, top_p=0.6), {"seed": 2}),
        ("match", 3, chain(1), one(2, top_k=2, top_p=0.7), {}),
        *((policy, 2, shape, one(3), {}) for policy in ("tree_rejection", "match") for shape in (FORK, DEEP)),
        ("tree_rejection", 2, FORK, one(2), {"certain": True}),
        # With three tokens, by coincidence, a residual that is not normalised leaves the distribution unchanged.
        ("tree_rejection", 4, FORK, one(3), {}),
        ("rejection", 2, chain(2), one(3, eos=(1,)), {}),
        ("rejection", 2, chain(1), batch, {"rows": 2}),
        ("match", 2, chain(2), one(3), {"span": 2}),
    ]
    for policy, vocabulary, shape, requests, more in cases:
        far = exact_runs.run_distance(tiny.policy_named(policy), vocabulary, shape, requests, **more)
        assert far < 1e-12, (
            f"total variation {far:.4f}: {policy}, {vocabulary} tokens, parents {list(shape.parents)}, {more}"
        )


class _Spy(Reference):
    """Records the keys of every draw and coin."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        assert key is not None
        self.keys.append(key.flatten())
        return super().sample(logits, key)

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        self.keys.append(key.flatten())
        return super().accept(probability, key)


def streams() -> None:
    """No noise key is used for two purposes of one step, nor by two requests."""
    distributions = random_table("p", 3), random_table("q", 3)
    for policy in ("rejection", "block", "tree_rejection"):
        spy = _Spy()
        target = Tabular(distributions[0], 3, spy)
        engine = Engine(
            target,
            draft=TableDraft(distributions[1], chain(3)),
            policy=tiny.policy_named(policy),
            controller=Always(3),
            ops=spy,
            max_rows=2,
            max_length=40,
        )
        marks: list[int] = []
        engine.trace = lambda *_, spy=spy, marks=marks: marks.append(len(spy.keys))
        engine.run([Request(i, (0, 1), replace(SAMPLED, max_new_tokens=12)) for i in range(2)])
        for start, end in zip([0, *marks], marks, strict=False):
            step = torch.cat(spy.keys[start:end]).tolist()
            twice = len(step) - len(set(step))
            assert not twice, f"{policy}: {twice} of {len(step)} keys of a step are used twice"


def draws_and_coins() -> None:
    """Draws and coins of the ops follow their distributions, tested with 200,000 samples (docs/proof.md)."""
    ops, keys = tiny.registry().backend("reference"), sampling.mix(torch.arange(200_000))
    for shares in ([0.5, 0.25, 0.125, 0.125], [0.3, 0.3, 0.399, 0.001]):
        # The offset leaves the softmax unchanged, but not its rounding in half precision.
        logits = torch.tensor(shares).log() + 20
        asked = context(ops, sampling.stream(torch.zeros(2, dtype=torch.int64), torch.arange(2)))
        position = torch.arange(100_000).expand(2, -1)
        drawn = asked.choose(logits.expand(2, 100_000, 4), position, sampling.Purpose.TARGET)
        counts = torch.bincount(drawn.flatten(), minlength=4).double()
        expected = torch.tensor(shares, dtype=torch.float64) * len(keys)
        statistic = float(((counts - expected) ** 2 / expected).sum())
        chance = float(torch.special.gammaincc(torch.tensor(1.5).double(), torch.tensor(statistic / 2).double()))
        assert chance > RARE, f"{counts.long().tolist()} draws where {expected.long().tolist()} are due: {chance:.0e}"
    bins = torch.bincount((sampling.uniform(keys) * 4096).long(), minlength=4096).tolist()
    assert evenness(bins) > RARE, f"uniforms in 4096 bins: {evenness(bins):.0e}"
    for share in (0.001, 0.5, 0.9995):
        kept = float(ops.accept(torch.full(keys.shape, share), keys).double().mean())
        bound = 6 * (share * (1 - share) / len(keys)) ** 0.5
        assert abs(kept - share) < bound, f"a coin of {share} shows {kept:.5f}"


def rollback() -> None:
    """The state machines over the arena and the engine, a few runs of each, without shrinking."""
    few = settings(
        max_examples=12,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(Rollback, settings=few)
    run_state_machine_as_test(EngineMachine, settings=few)


def equality() -> None:
    """Speculative outputs equal plain's on tiny models: full layers and rings, changing rows, greedy and sampled."""
    for family in ("llama", "gemma3"):
        build = tiny.assembly(family, max_rows=3, backend="reference")
        for params in (GREEDY, SAMPLED):
            for draft, policy in (("oracle(0.8)", "match"), ("ngram(n_min=1, branches=3)", "match")):
                engine = build.engine(draft, policy, k=4)
                differ(f"{draft} under {policy} on {family}", build, engine, tiny.requests(params, 5))
        engine = build.engine("oracle(0.8)", "rejection", k=4)
        differ(f"rejection on {family}", build, engine, tiny.requests(GREEDY, 5))
    mixed = [replace(r, params=replace(r.params, temperature=r.id % 2)) for r in tiny.requests(SAMPLED, 5)]
    differ("greedy rows beside sampled ones", build, build.engine("oracle(0.8)", k=4), mixed)


def stops() -> None:
    """Every kind of end at many places of an accepted block; nothing past it is emitted or counted."""
    build = tiny.assembly(backend="reference")
    base = Request(0, tiny.prompts(1)[0], SamplingParams(max_new_tokens=30))
    full = build.plain(base)
    text = catalog.byte_tokenizer()
    ways = [
        *((replace(base.params, eos=(full[place],)), full.index(full[place]) + 1) for place in range(7)),
        *((replace(base.params, max_new_tokens=most), most) for most in (1, 4, 7, 11)),
    ]
    for place in (3, 6, 8):
        stop = text.decode(list(full[place : place + 3]))
        end = next(n for n in range(1, 31) if stop in text.decode(list(full[:n])))
        ways.append((replace(base.params, stop=(stop,)), end))
    engine = tiny.assembly(backend="reference", extra=(tiny.past_stops(full),)).engine("past_stops", k=4)
    for params, end in ways:
        done = engine.run([replace(base, params=params)])[0]
        assert done.tokens == full[:end], f"{len(done.tokens)} tokens where {end} are due, {params.eos or params.stop}"
        counts = engine.stats.counts
        assert counts["num_emitted_tokens"] == end, f"{counts['num_emitted_tokens']} counted, {end} emitted"
        accepted = done.kinds.count("accepted")
        counted = counts["num_accepted_tokens"]
        assert counted == accepted, f"{counted} counted as accepted of {accepted}"
        assert max(step.proposed for step in engine.stats.steps) < max(2, params.max_new_tokens), "past the budget"


def counters() -> None:
    """The exact numbers of what a step reads, copies and counts."""
    build = tiny.assembly(max_rows=2, backend="reference")
    engine, work = build.engine("oracle(0.8)", k=4), tiny.requests(GREEDY)
    guarded_steps(build.engine("oracle(0.8)", k=4), work, 6)
    object.__setattr__(engine.ops, "kv_compact", None)  # a call would fail: a chain must move nothing
    done = engine.run(work)
    stats, counts = engine.stats, engine.stats.counts
    accepted = sum(c.kinds.count("accepted") for c in done)
    assert counts["num_emitted_tokens"] == sum(len(c.tokens) for c in done), "emitted tokens"
    assert counts["num_accepted_tokens"] == accepted == sum(stats.accepted_per_pos), "accepted tokens"
    assert counts["host_reads"] == counts["target_forwards"] == len(stats.steps), "one read and one forward a step"
    assert stats.mean_acceptance_length == 1 + accepted / counts["num_drafts"], "mean acceptance length"
    assert stats.acceptance_rate == accepted / counts["num_draft_tokens"], "acceptance rate"
    assert stats.tau == counts["num_emitted_tokens"] / sum(step.rows for step in stats.steps), "tau"
    prefilled = sum(len(request.prompt) - 1 for request in work)
    appended = prefilled + sum(step.rows * step.width for step in stats.steps)
    assert counts["kv_appended_tokens_total"] == appended, "cells written"


def drafting() -> None:
    """A draft that is the target itself is always accepted; proposals of drafts depend on the text only."""
    with tempfile.TemporaryDirectory() as folder:
        itself = tiny.save_target("llama", Path(folder))
        build = tiny.assembly("llama", max_rows=3, backend="reference")
        for params in (GREEDY, SAMPLED):
            engine = build.engine(f"draft_model(model={itself})", k=4)
            tiny.ask(engine, [4, 4, 0, 4, 0, 0, 4, 1, 4] * 40)
            engine.run(tiny.requests(params, 5))
            rate = engine.stats.acceptance_rate
            assert rate == 1.0, f"of the target as its own draft {rate:.2f} are kept"
        engine = build.engine(f"tree(model={itself}, widths=2-2-2)", k=14)
        whole: set[int] = set()
        engine.trace = lambda context, window, logits, verdict: whole.update(
            int(kept) for kept, room in zip(verdict.num_accepted, context.max_proposals_host, strict=True) if room == 14
        )
        engine.run(tiny.requests(GREEDY, 3))
        assert whole == {3}, f"a tree of the target itself is kept to depths {whole}, not 3"
    kits = (
        (conformance.draft("draft_model", sampled=True), "q_is_the_distribution|follows_from_the_text"),
        (conformance.draft("medusa(head_init=random)", sampled=True, hidden=True), "follows_from_the_text"),
        (conformance.draft("suffix(min_match=1)", remembers=True), "remembered"),
    )
    for kit, only in kits:
        kit.windows, kit.repeats = 24, 8
        for name, said in failures(kit, only=only):
            raise AssertionError(f"{name} of {kit.text}: {said}")


def ties() -> None:
    """The bound of a tie is small, and a corrupt arena cannot certify itself."""
    build = tiny.assembly(backend="reference")
    judge = Judge(build.target, range(40))
    assert judge.bound < 1e-3, f"the bound is {judge.bound:.1e}"
    engine = build.engine("oracle(1.0)", k=4)
    forward = engine.target.forward

    def corrupt(*given: Any) -> tuple[Tensor, Tensor]:
        logits, hidden = forward(*given)
        top = logits.topk(2, dim=-1)
        gap = top.values[..., :1] - top.values[..., 1:]
        # In wide windows the runner-up wins, so every token follows from the arm's own logits.
        if logits.shape[1] > 1:
            logits = logits.scatter_add(2, top.indices[..., 1:], gap * 2 + 1e-2)
        return logits, hidden

    object.__setattr__(engine.target, "forward", corrupt)
    try:
        differ("a corrupt arena", build, engine, tiny.requests(GREEDY, 2))
    except Failed:
        return
    finally:
        object.__setattr__(engine.target, "forward", forward)
    raise AssertionError("a corrupt arena certified itself")


LAYERS: dict[str, Callable[[], None]] = {
    "distribution": distribution,
    "streams": streams,
    "power": draws_and_coins,
    "rollback": rollback,
    "equality": equality,
    "stops": stops,
    "counters": counters,
    "drafting": drafting,
    "ties": ties,
}
