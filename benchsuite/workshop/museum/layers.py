"""The layers of proof, small enough to run against every mutant.

Each is a function that raises if it finds a bug and returns otherwise. They use the suite's own parts; only the sizes
are smaller.
"""

from __future__ import annotations

import itertools
import json
import math
import random
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
from benchsuite.conformance.drafts import DraftChecks, differ
from benchsuite.conformance.exact import exact_runs
from benchsuite.conformance.exact.enumerator import Shape, chain, context
from benchsuite.conformance.exact.exact_runs import PROMPTS, one, warped
from benchsuite.conformance.exact.keys import in_common
from benchsuite.conformance.exact.table_target import Table, TableDraft, Tabular, random_table
from benchsuite.conformance.guards.read_guard import guarded_steps
from benchsuite.conformance.models import tiny
from benchsuite.judge.fidelity import evenness
from benchsuite.judge.sources import Always
from benchsuite.judge.ties import Judge
from benchsuite.workshop.machines.arena_machine import Rollback
from benchsuite.workshop.machines.engine_machine import EngineMachine
from benchsuite.workshop.machines.feedback_heads import (
    feedback_drafts_follow_the_formula,
    feedback_heads_follow_the_formula,
)
from benchsuite.workshop.machines.joined_drafts import BRIEF, Behind, Listed, hybrid_maker
from benchsuite.workshop.machines.keyed_runs import chance_of_tokens, keyed_tokens
from benchsuite.workshop.machines.processed import slots_beside_transformers
from benchsuite.workshop.machines.random_blocks import random_blocks, slots_see_what_they_should
from benchsuite.workshop.machines.random_module import modules_propose_by_their_formula
from benchsuite.workshop.machines.renamed import shuffled_draft
from benchsuite.workshop.machines.uneven_runs import rows_of_their_own
from benchsuite.workshop.museum.states import given_states
from specdec import (
    Completion,
    Context,
    Draft,
    Engine,
    Request,
    SamplingParams,
    TextStream,
    Verdict,
    Window,
    catalog,
    sampling,
)
from specdec.assembly import Assembly
from specdec.beam import Beams, BeamSearch
from specdec.jobs import OutFile, Prompts, read_jobs, run_jobs
from specdec_kernels.reference import Reference

GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_new_tokens=24)
BESIDE = Listed([[1]], [[1]], [[0]])
FORK, DEEP = Shape((-1, 0, 0)), Shape((-1, 0, 0, 1, 2))
RARE = 1e-8
"""The false-alarm probability of each of the few sampling tests here."""


PENALTIES: dict[str, Any] = {"repetition_penalty": 1.25, "frequency_penalty": 0.75, "presence_penalty": 0.5}
WORDS: dict[str, Any] = {"bad_words": ((1, 0, 0), (0, 1, 1))}
LEAST: dict[str, Any] = {"eos": (1,), "min_new_tokens": 2}


def distribution() -> None:
    """Whole runs are enumerated: processors, ends, rows, rings, chains and trees, drawn and certain."""
    batch = [Request(i, PROMPTS[i], replace(one(1)[0].params, max_new_tokens=n)) for i, n in enumerate((1, 2, 1))]
    ways: tuple[dict[str, Any], ...] = (PENALTIES, {"frequency_penalty": 0.5}, WORDS)
    mixed = [replace(r, params=replace(r.params, **way)) for r, way in zip(batch, ways, strict=True)]
    cases: list[tuple[str, int, Shape, list[Request], dict[str, Any]]] = [
        *(("rejection", 2, chain(2), one(3, **params), {}) for params in (PENALTIES, WORDS, LEAST)),
        *(("rejection", 3, chain(1), one(2, **params), {}) for params in ({"min_p": 0.5}, {"logit_bias": {0: 1.5}})),
        ("tree_rejection", 2, DEEP, one(3, **PENALTIES), {}),
        ("match", 2, chain(1), mixed, {"rows": 2}),
        *((policy, 2, chain(2), one(3), {}) for policy in ("rejection", "block", "tree_rejection", "match")),
        *((policy, 2, chain(2), one(3), {"certain": True}) for policy in ("rejection", "block", "tree_rejection")),
        ("rejection", 3, chain(1), one(2, temperature=0.5), {}),
        ("rejection", 3, chain(1), one(2, top_k=2, top_p=0.6), {"seed": 2}),
        ("match", 3, chain(1), one(2, top_k=2, top_p=0.7), {}),
        *((policy, 2, shape, one(3), {}) for policy in ("tree_rejection", "match") for shape in (FORK, DEEP)),
        ("tree_rejection", 2, FORK, one(2), {"certain": True}),
        # The noise of a residual shows where it has several tokens. With three tokens, most tables show neither a coin
        # that siblings share nor a residual that is not normalised; these do.
        ("rejection", 4, chain(1), one(2), {}),
        ("tree_rejection", 3, FORK, one(3), {"seed": 3}),
        ("rejection", 2, chain(2), one(3, eos=(1,)), {}),
        ("rejection", 2, chain(1), batch, {"rows": 2}),
        ("match", 2, chain(2), one(3), {"span": 2}),
        ("block", 2, chain(2), one(3), {"broken": [math.nan, math.nan]}),
        # A drawn chain that a lookup goes on behind, and one beside a lookup's in a tree.
        ("rejection", 2, chain(3), one(3), {"draft": hybrid_maker(Behind(), model_k=1, extend=True)}),
        (
            "tree_rejection",
            3,
            chain(2),
            one(3, eos=(1, 2)),
            {"draft": hybrid_maker(BESIDE, model_k=1, merge=True), "seed": 1},
        ),
    ]
    for policy, vocabulary, shape, requests, more in cases:
        far = exact_runs.run_distance(tiny.policy_named(policy), vocabulary, shape, requests, **more)
        assert far < 1e-12, (
            f"total variation {far:.4f}: {policy}, {vocabulary} tokens, parents {list(shape.parents)}, {more}"
        )


def streams() -> None:
    """No noise key is used by two requests, or under two seeds."""
    for policy, shape in itertools.product(("rejection", "block", "tree_rejection", "match"), (chain(3), DEEP)):
        built = tiny.policy_named(policy)
        if built.trees or shape is not DEEP:
            for other, keys in in_common(built, shape).items():
                assert not keys, f"{policy}: {keys} keys of a request are also those of {other}"


def keyed() -> None:
    """Tokens of whole runs with the engine's own noise follow the target, given the two before them (docs/proof.md)."""
    target, draft = (4, 4, 6), (9, 1, 4)
    tokens = keyed_tokens(tiny.policy_named("rejection"), target, draft, chain(3), 128, 96)
    found = chance_of_tokens(tokens, target)
    assert found > RARE, f"{tokens.numel()} tokens, each after the two before it: {found:.0e}"


def _tabular(distributions: tuple[Table, Table], vocabulary: int, shape: Shape, policy: str) -> Engine:
    """An engine of two rows whose target and draft are tables, and which always proposes the whole shape."""
    ops = Reference()
    return Engine(
        Tabular(distributions[0], vocabulary, ops),
        draft=TableDraft(distributions[1], shape),
        policy=tiny.policy_named(policy),
        controller=Always(len(shape.parents) - 1),
        ops=ops,
        max_rows=2,
        max_length=40,
    )


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
    long = tiny.requests(replace(GREEDY, max_new_tokens=40))
    guarded_steps(build.engine("oracle(0.8)", k=4), long, 6)
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
    # Cheap checks first: a mutant that one of them finds is not run against the others.
    _certify(conformance.draft("suffix(min_match=1)", remembers=True), "remembered")
    _certify(conformance.draft("eagle(reset=False)", sampled=True, hidden=True), "read_in_chunks")
    feedback_heads_follow_the_formula()
    feedback_drafts_follow_the_formula()
    slots_see_what_they_should()
    blocks = conformance.draft("blocks", sampled=True, hidden=True, k=3, factory=random_blocks)
    _certify(blocks, "follows_from_the_text|goes_on_is_a_text")
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
        text = f'hybrid(sources="brief, draft_model(model={itself})", merge=True, model_k=3, slots=7)'
        engine = tiny.assembly("llama", max_rows=3, backend="reference", extra=(BRIEF,)).engine(text, k=7)
        least: list[int] = []
        engine.trace = lambda context, window, logits, verdict: least.extend(
            int(kept) for kept, room in zip(verdict.num_accepted, context.max_proposals_host, strict=True) if room == 7
        )
        engine.run(tiny.requests(GREEDY, 5))
        assert min(least) >= 3, f"of three proposals of the target itself {min(least)} are kept beside a lookup's"
    modules_propose_by_their_formula()
    _certify(conformance.draft("draft_model", sampled=True), "q_is_the_distribution|follows_from_the_text")
    _certify(conformance.draft("shuffled", sampled=True, factory=shuffled_draft), "follows_from_the_text")
    _certify(conformance.draft("medusa(head_init=random)", sampled=True, hidden=True), "follows_from_the_text")


def _certify(kit: type[DraftChecks], only: str) -> None:
    """Raise AssertionError if a draft fails one of the kit's checks whose names match ``only``."""
    kit.windows, kit.repeats = 16, 4
    for name, said in failures(kit, only=only):
        raise AssertionError(f"{name} of {kit.text}: {said}")


def ties() -> None:
    """The bound of a tie is small, a corrupt arena cannot certify itself, and a token follows from its arm's logits."""
    build = tiny.assembly(backend="reference")
    judge = Judge(build.target, range(40))
    assert judge.bound < 1e-3, f"the bound is {judge.bound:.1e}"
    apart = judge._own_difference()
    assert judge.bound <= 4 * apart, f"the bound is {judge.bound / apart:.0f} times the model's own difference"
    engine = build.engine("oracle(1.0)", k=4)
    forward, accept = engine.target.forward, engine.policy.accept

    def corrupt(*given: Any) -> tuple[Tensor, Tensor]:
        logits, hidden = forward(*given)
        top = logits.topk(2, dim=-1)
        gap = top.values[..., :1] - top.values[..., 1:]
        # In wide windows the runner-up wins, so every token follows from the arm's own logits.
        if logits.shape[1] > 1:
            logits = logits.scatter_add(2, top.indices[..., 1:], gap * 2 + 1e-2)
        return logits, hidden

    def second(logits: Tensor, window: Window, context: Context) -> Verdict:
        # The logits stay right, so that only the token shows that the arm does not choose by them.
        verdict = accept(logits, window, context)
        last = logits[torch.arange(len(logits)), verdict.path.amax(dim=1)]
        return replace(verdict, next=last.topk(2, dim=-1).indices[:, 1])

    _must_not_certify("a corrupt arena", build, engine, engine.target, "forward", corrupt)
    _must_not_certify("an arm that emits its runner-up", build, engine, engine.policy, "accept", second)


def _must_not_certify(text: str, build: Assembly, engine: Engine, part: object, name: str, wrong: Any) -> None:
    """Raise AssertionError if outputs pass while the method ``name`` of a part of the engine is ``wrong``."""
    right = getattr(part, name)
    object.__setattr__(part, name, wrong)
    try:
        differ(text, build, engine, tiny.requests(replace(GREEDY, max_new_tokens=6), 2))
    except Failed:
        return
    finally:
        object.__setattr__(part, name, right)
    raise AssertionError(f"{text} certified itself")


def processors() -> None:
    """Every slot of drawn chains and trees has the distribution of transformers' classes for its own history."""
    draw, size, vocabulary = random.Random(0), 5, 7
    for _ in range(24):
        texts = [tuple(draw.choices(range(vocabulary), k=draw.randint(1, 6))) for _ in range(6)]
        requests = [Request(row, texts[row], _drawn_params(draw, vocabulary)) for row in range(3)]
        tokens = [draw.choices(range(vocabulary), k=size) for _ in requests]
        parents = [[-1, *(draw.randrange(slot) for slot in range(1, size))] for _ in requests]
        window = Window(torch.tensor(tokens), torch.tensor(parents), torch.full((3,), size))
        generator = torch.Generator().manual_seed(draw.randrange(2**32))
        logits = 3 * torch.randn(3, size, vocabulary, generator=generator, dtype=torch.float64)
        for place, ours, theirs in slots_beside_transformers(requests, texts[3:], window, logits):
            far = float((ours - theirs).abs().max())
            assert far < 1e-6, f"a share is off by {far:.4f}: {place}"


def _drawn_params(draw: random.Random, vocabulary: int) -> SamplingParams:
    """Parameters with any of the processors, each of them on or off."""

    def ids(most: int, least: int = 0) -> tuple[int, ...]:
        return tuple(draw.sample(range(vocabulary), k=draw.randint(least, most)))

    eos, words = ids(2), [ids(3, 1) for _ in range(draw.randrange(4))]
    return SamplingParams(
        temperature=draw.choice((0.0, 0.4, 1.7)),
        top_k=draw.choice((0, 4)),
        top_p=draw.choice((0.3, 0.9, 1.0)),
        min_p=draw.choice((0.0, 0.05, 0.4)),
        repetition_penalty=draw.choice((1.0, 0.7, 1.3)),
        presence_penalty=draw.choice((0.0, -1.0, 2.0)),
        frequency_penalty=draw.choice((0.0, 0.3, -0.5)),
        logit_bias=dict.fromkeys(ids(2), draw.choice((-9.0, 1.0, 6.0))),
        bad_words=tuple(word for word in words if len(word) > 1 or word[0] not in eos),
        eos=eos,
        min_new_tokens=draw.randint(0, 8),
        max_new_tokens=12,
    )


def logprobs() -> None:
    """Logprobs of emitted tokens and of the likeliest are those of the target's table, wherever a token lay in its
    window."""
    tables = random_table("p", 4, parts=40), random_table("q", 4, parts=40)
    ways: tuple[dict[str, Any], ...] = ({}, PENALTIES | WORDS | {"min_p": 0.1})
    cases = (("match", chain(3)), ("rejection", chain(3)), ("match", DEEP), ("tree_rejection", DEEP))
    for (policy, shape), way, heat in itertools.product(cases, ways, (0.0, 0.8)):
        params = SamplingParams(temperature=heat, max_new_tokens=12, logprobs=2, **way)
        for done in _tabular(tables, 4, shape, policy).run([Request(i, PROMPTS[i], params) for i in range(3)]):
            _compare_logprobs(done, tables[0], f"{policy}, parents {list(shape.parents)}, temperature {heat}, {way}")


def _compare_logprobs(done: Completion, table: Table, where: str) -> None:
    """Raise if a token's logprobs are not those of the table after the text before the token."""
    request, params = done.request, done.request.params
    if params.temperature == 0:  # the distribution before a greedy row becomes one-hot
        request = replace(request, params=replace(params, temperature=1.0, min_p=0.0))
    for index, (token, found) in enumerate(zip(done.tokens, done.logprobs, strict=True)):
        raw = table((*request.prompt, *done.tokens[:index]))
        for name, ours, top, shares in (
            ("raw", found.raw, found.top_raw, raw),
            ("processed", found.processed, found.top_processed, warped(raw, request, done.tokens[:index])),
        ):
            likeliest = sorted(shares, reverse=True)[: params.logprobs]
            pairs = zip((ours, *(chance for _, chance in top)), (shares[token], *likeliest), strict=True)
            for got, share in pairs:
                assert math.isclose(math.exp(got), share, abs_tol=1e-5), (
                    f"{name} logprob {got:.4f}, the target's share is {share:.4f}: token {index} of {where}"
                )
            assert all(math.isclose(math.exp(chance), shares[other], abs_tol=1e-5) for other, chance in top), where


def streamed_text() -> None:
    """A stream shows each character once and whole, and nothing of a stop string, however it is cut into tokens."""
    tokenizer = catalog.byte_tokenizer()
    for said, stop, due in (
        ("é 日本語 🙂👩‍🚀!", (), "é 日本語 🙂👩‍🚀!"),
        ("an EN and the END", ("END",), "an EN and the "),
        ("a\nb\n\n", ("\n\n", "never"), "a\nb"),
        ("held to the EN", ("END",), "held to the EN"),
    ):
        stream, shown = TextStream(tokenizer, stop), ""
        *before, last = tokenizer.encode(said, add_special_tokens=False)
        for token in before:
            shown += stream.feed(token)
            assert due.startswith(shown), f"{shown!r} is shown, {due!r} is due"
        shown += stream.feed(last, "stop" if any(part in said for part in stop) else "length")
        assert shown == due, f"{shown!r} is shown, {due!r} is due"


class _Guests(Draft):
    """Proposes nothing; keeps the book of which request is in which row, and raises if it is told nonsense."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        assert row not in self.rows, f"row {row} is given to request {request.id}, and {self.rows[row]} is still in it"
        self.rows[row] = request.id

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        del self.rows[row]

    def propose(self, context: Context) -> Window:
        return Window.root(context)


def cancels() -> None:
    """Streams that are read in turns, closed and cancelled: each gives its own tokens once, and the draft's rows are
    those of the engine."""
    table, guests = random_table("p", 5), _Guests()
    engine = Engine(
        Tabular(table, 5, Reference()),
        draft=guests,
        policy=tiny.policy_named("match"),
        controller=Always(1),
        ops=Reference(),
        max_rows=2,
        max_length=40,
    )
    work = [Request(i, PROMPTS[i % 3], SamplingParams(max_new_tokens=6 + i)) for i in range(6)]
    due = {request.id: _greedy(table, request) for request in work}
    readers = [engine.stream([request]) for request in work]
    got: dict[int, list[int]] = {request.id: [] for request in work}
    for turn in range(200):
        number = turn % 6
        # Some read less often, so that tokens of several steps wait for them.
        if number % 2 == 0 or turn % 4 == 1:
            item = next(readers[number], None)
            got[number] += [item.token] if item else []
        if turn == 1:  # of the requests that run one leaves, and of those that wait another
            readers[1].close()
            engine.cancel([5])
        live = {row: live.request.id for row, live in enumerate(engine.rows.live)}
        assert guests.rows == live, f"the draft has the requests {guests.rows} in its rows, the engine {live}"
        assert turn < 1 or not {1, 5} & set(live.values()), f"of {live} a request was cancelled"
    for number, tokens in got.items():
        expected = due[number][:1] if number == 1 else () if number == 5 else due[number]
        assert tuple(tokens) == expected, f"request {number} gave {tokens}, {list(expected)} is due"


def _greedy(table: Table, request: Request) -> tuple[int, ...]:
    """The table's own greedy output."""
    out: list[int] = []
    for _ in range(request.params.max_new_tokens):
        shares = table((*request.prompt, *out))
        out.append(max(range(len(shares)), key=shares.__getitem__))
        if out[-1] in request.params.eos:
            break
    return tuple(out)


def request_files() -> None:
    """A run over a file of requests that was killed within a line of its results is gone on with: each line has its
    own output, once."""
    tables, ends = (random_table("p", 5), random_table("q", 5)), (3,)
    asked = [
        Request(i, PROMPTS[i % 3], SamplingParams(max_new_tokens=8 + i, eos=(4,) if i % 2 else ends)) for i in range(6)
    ]
    due = [list(_greedy(tables[0], request)) for request in asked]
    lines = [
        {"prompt_ids": r.prompt, "max_new_tokens": r.params.max_new_tokens}
        | ({"eos": r.params.eos} if r.id % 2 else {})  # the others have the ends that all lines have
        for r in asked
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        source.write_text("\n".join(map(json.dumps, lines)))
        jobs = read_jobs(source, SamplingParams(), {})
        for most in (2, len(jobs)):
            engine = _tabular(tables, 5, chain(2), "match")
            with OutFile(path, jobs) as out:
                left = [job for job in jobs if job.index not in out.done]
                with Prompts(catalog.byte_tokenizer(), left) as prompts:
                    for job, done in itertools.islice(run_jobs(engine, prompts, ends), most):
                        out.keep(job, done, "")
            if most == 2:
                path.write_bytes(path.read_bytes() + b'{"id": 5, "ind')
        written = path.read_text().splitlines()
        assert len(written) == len(jobs), f"{len(written)} lines of results, {len(jobs)} are due"
        for result in map(json.loads, written):
            tokens, expected = result["tokens"], due[result["index"]]
            assert tokens == expected, f"line {result['index'] + 1} has {tokens}, {expected} is due"


def beams() -> None:
    """As wide as all texts but their last token a beam search is exhaustive: its scores are the best of all texts."""
    vocabulary, length = 3, 4
    for seed, way in itertools.product(
        range(3), ({}, PENALTIES | {"repetition_penalty": 1.7}, {"bad_words": ((1, 2),)})
    ):
        table = random_table(seed, vocabulary, parts=40)
        params = SamplingParams(max_new_tokens=length, **way)
        request, width = Request(0, PROMPTS[2], params), vocabulary ** (length - 1)
        search = BeamSearch(Tabular(table, vocabulary, Reference()), width=width, max_length=16)
        found = search.run([request], Beams(width, width))[0]
        scores = {
            out: _log_probability(table, request, out) / length
            for out in itertools.product(range(vocabulary), repeat=length)
        }
        best = sorted(scores.values(), reverse=True)
        for place, one_found in enumerate(found):
            own = scores[one_found.tokens]
            assert math.isclose(one_found.score, own, abs_tol=1e-5), (
                f"{one_found.tokens} scores {own:.4f}, the search says {one_found.score:.4f}: {way}"
            )
            assert math.isclose(own, best[place], abs_tol=1e-5), f"text {place} scores {own:.4f}, not {best[place]:.4f}"


def _log_probability(table: Table, request: Request, out: tuple[int, ...]) -> float:
    """What a beam search adds up: each token's log-probability after processors, which do not make it sum to 1."""
    return sum(
        exact_runs.adjusted_logits(table((*request.prompt, *out[:index])), request, out[:index])[token]
        for index, token in enumerate(out)
    )


LAYERS: dict[str, Callable[[], None]] = {
    "distribution": distribution,
    "streams": streams,
    "keyed": keyed,
    "power": draws_and_coins,
    "rollback": rollback,
    "equality": equality,
    "stops": stops,
    "counters": counters,
    "drafting": drafting,
    "ties": ties,
    "processors": processors,
    "logprobs": logprobs,
    "text": streamed_text,
    "cancels": cancels,
    "beams": beams,
    "files": request_files,
    "lengths": rows_of_their_own,
    "states": given_states,
}
