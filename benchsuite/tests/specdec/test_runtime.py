"""Parts of steps that are recorded and replayed decode what parts decode that run op by op."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import context
from benchsuite.conformance.guards.tape import Tape
from benchsuite.conformance.models import tiny
from benchsuite.tests.eagle3_heads import EAGLE3_HEAD
from benchsuite.tests.rig import POLICIES, pairs_in_turn, saved_head, slow_after
from specdec import Context, Draft, Engine, Policy, Purpose, Request, SamplingParams, SpecdecError, Verdict, Window
from specdec.assembly import Assembly
from specdec.interfaces import Contract, Env
from specdec.ops import Ops
from specdec.processors import Adjustments, Words
from specdec.runtime import Graphed, addresses
from specdec_kernels.reference import Reference

DRAFTS = (
    *("ngram", "ngram(branches=2)", "suffix", "garbage", "oracle(0.8)", "draft_model", "tree(beam=2, depth=2)"),
    *("medusa", "medusa(head_init=random, beam=2)", "eagle", "hybrid(sources='suffix, ngram, eagle')"),
    *("medusa(num_heads=3, head_init={medusa!r})", "eagle(head={eagle!r})", "eagle(head={eagle!r}, beam=2, depth=2)"),
    *("eagle(head={eagle!r}, leaves=2)", "hybrid(sources='ngram(n_min=1), eagle(head={eagle}, leaves=2)')"),
    *("hybrid(sources='ngram(n_min=1), eagle(head={eagle})')", "hybrid(sources='ngram, draft_model')"),
    *(f"eagle3(head={EAGLE3_HEAD!r})", f"eagle3(head={EAGLE3_HEAD!r}, layers=1-0, beam=2, depth=2)"),
)
"""``{eagle}`` and ``{medusa}`` stand for files of heads."""

ON_DEVICE = ("garbage", "draft_model", "tree", "medusa", "eagle")
"""Drafts that propose on the device alone, and record it."""

PARAMS: dict[str, Callable[[int], SamplingParams]] = {
    "alike": lambda row: SamplingParams(max_new_tokens=9),
    "mixed": lambda row: SamplingParams(max_new_tokens=16, temperature=row % 2 * 0.8, top_k=row * 5),
    "penalties": lambda row: SamplingParams(
        max_new_tokens=9,
        repetition_penalty=1.2,
        presence_penalty=0.3 * row,
        logit_bias={7: 1.0},
        bad_words=((5, 6), (9,)),
        min_new_tokens=3,
        eos=(11, 256),
    ),
    "ended": lambda row: SamplingParams(max_new_tokens=12, eos=tuple(range(0, 256, 5)), stop=("a",)),
    "logprobs": lambda row: SamplingParams(max_new_tokens=12, logprobs=row or None),
}
"""What each of four requests asks for; two or three rows have the others wait."""

TURNS = tuple(itertools.product((0.0, 1.0), PARAMS, (1, 2, 3), ("fixed", "adaptive")))


def _cases() -> Iterator[Any]:
    """Each draft with a quarter of the policies that take its windows, in settings that take turns; all under
    --specdec-deep."""
    pairs = pairs_in_turn(DRAFTS, POLICIES, groups=4)
    fitting = [one for one in pairs if tiny.policy_named(one.values[1]).trees or "=2" not in one.values[0]]
    for index, one in enumerate(sorted(fitting, key=lambda one: len(one.marks))):
        turn = TURNS[11 * index % len(TURNS)]  # 11 has no factor in common with their number, so that all have turns
        yield pytest.param(*one.values, *turn, id="-".join(map(str, (*one.values, *turn))), marks=one.marks)


@pytest.fixture(scope="module")
def recordable() -> Callable[[int], Assembly]:
    """Assemblies over a tiny Llama on the reference, by their number of rows."""
    made: dict[int, Assembly] = {}

    def assembly(rows: int) -> Assembly:
        if rows not in made:
            made[rows] = tiny.assembly(max_rows=rows, backend="reference")
        return made[rows]

    return assembly


def _runtime(engine: Engine) -> Graphed:
    assert isinstance(engine.runtime, Graphed)
    return engine.runtime


@pytest.fixture(scope="module")
def heads(recordable: Callable[[int], Assembly], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files of heads of the recordable target."""
    folder = tmp_path_factory.mktemp("heads")
    return {kind: saved_head(kind, recordable(1), folder) for kind in ("eagle", "medusa")}


def _engine_kinds(engine: Engine) -> set[Hashable]:
    """The kinds of the engine's own parts: those of a draft begin with the draft."""
    return {kind for kind in _runtime(engine).kinds if isinstance(kind, tuple) and not isinstance(kind[0], Draft)}


def _asked(params: Callable[[int], SamplingParams], temperature: float) -> list[Request]:
    asked = [params(row) for row in range(4)]
    warm = [one if one.temperature else replace(one, temperature=temperature) for one in asked]
    return [Request(row, prompt, one) for row, (prompt, one) in enumerate(zip(tiny.prompts(4), warm, strict=True))]


def _decoded(engine: Engine, requests: Sequence[Request]) -> list[tuple[object, ...]]:
    return [(done.tokens, done.kinds, done.finish_reason, done.logprobs) for done in engine.run(requests)]


@pytest.mark.slow
@pytest.mark.parametrize(("draft", "policy", "temperature", "params", "rows", "controller"), list(_cases()))
def test_replayed_parts_decode_and_count_what_parts_do_that_run(
    recordable: Callable[[int], Assembly],
    draft: str,
    policy: str,
    temperature: float,
    params: str,
    rows: int,
    controller: str,
    heads: dict[str, str],
) -> None:
    requests, draft = _asked(PARAMS[params], temperature), draft.format(**heads)
    for request in requests if "oracle" in draft else ():
        recordable(rows).plain(request)  # or only the engine that runs first would count it
    run = recordable(rows).engine(draft, policy, controller, 4)
    replayed = recordable(rows).engine(draft, policy, controller, 4, recorder=Tape())
    assert _decoded(replayed, requests) == _decoded(run, requests)
    assert replayed.stats.counters() == run.stats.counters()
    assert replayed.stats.ops == run.stats.ops
    assert replayed.stats.counts["host_reads"] == len(replayed.stats.steps)
    assert len(_engine_kinds(replayed)) < len(replayed.stats.steps), "no step was replayed"
    if draft.startswith(ON_DEVICE):
        assert len(_runtime(replayed).kinds) > len(_engine_kinds(replayed)), "the draft recorded nothing"


@pytest.mark.slow
def test_what_one_run_recorded_the_next_replays(recordable: Callable[[int], Assembly]) -> None:
    engine, plain = recordable(2).engine("garbage", k=3, recorder=Tape()), recordable(2).engine("garbage", k=3)
    runtime = _runtime(engine)
    requests = _asked(PARAMS["mixed"], 0.0)
    engine.run(requests)
    kinds = len(runtime.kinds)
    again = [replace(request, id=request.id + 10) for request in requests]
    assert _decoded(engine, again) == _decoded(plain, again)
    assert len(runtime.kinds) == kinds


@pytest.mark.slow
@pytest.mark.parametrize("policy", slow_after(1, ["match", "rejection"]))
@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 0.9]))
def test_after_a_warm_up_nothing_is_recorded_and_nothing_decoded_otherwise(
    recordable: Callable[[int], Assembly], policy: str, temperature: float
) -> None:
    engine = recordable(2).engine("draft_model", policy, k=3, recorder=Tape())
    plain = recordable(2).engine("draft_model", policy, k=3)
    params = SamplingParams(max_new_tokens=12, temperature=temperature)
    assert engine.warm_up(params) > 0
    kinds = _engine_kinds(engine)
    requests = _asked(lambda row: params, 0.0)
    assert _decoded(engine, requests) == _decoded(plain, requests)
    assert engine.stats.counters() == plain.stats.counters()
    assert engine.stats.ops == plain.stats.ops
    assert _engine_kinds(engine) == kinds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "temperature", "drawn"), slow_after(1, [("rejection", 0.9, 1), ("rejection", 0.0, 0), ("match", 0.9, 0)])
)
def test_a_warm_up_takes_every_window_of_every_batch_over_rows_of_one_token(
    policy: str, temperature: float, drawn: int, recordable: Callable[[int], Assembly], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn proposals too, uniform ones, where a policy reads the draft's distribution; each in an empty arena."""
    engine = recordable(2).engine("draft_model", policy, k=2, recorder=Tape())
    taken: list[tuple[int, int, bool]] = []
    verify, before = engine._verify, engine.stats

    def watched(steps: Any, window: Window, context: Context) -> Any:
        rows, width = window.tokens.shape
        taken.append((rows, width, window.q is not None))
        assert context.rows == rows
        assert context.length.tolist() == [1] * rows
        assert engine.arena.committed.tolist() == [0, 0]
        assert not window.tokens.any()
        assert window.parents.tolist() == [list(range(-1, width - 1))] * rows
        assert window.width.tolist() == [width] * rows
        if window.q is not None:
            assert window.q.shape == (rows, width - 1, engine.target.vocabulary)
            torch.testing.assert_close(window.q.sum(dim=2), torch.ones(rows, width - 1))
            assert float(window.q.max()) == float(window.q.min())
        return verify(steps, window, context)

    waits: list[int] = []
    monkeypatch.setattr("specdec.engine.synchronize", lambda device: waits.append(len(taken)))
    monkeypatch.setattr(engine, "_verify", watched)
    clock = iter([100.0, 103.0])
    real = time.perf_counter
    monkeypatch.setattr("specdec.engine.time", SimpleNamespace(perf_counter=lambda: next(clock, None) or real()))
    assert engine.warm_up(SamplingParams(temperature=temperature)) == 3.0
    widths = [(1, False), (2, False), (3, False)] + [(2, True), (3, True)] * drawn
    assert sorted(taken) == sorted((rows, *each) for rows in (1, 2) for each in widths)
    assert waits == [0, len(taken)], "what the device did before is not counted, and what it does is"
    assert not engine.rows.live
    assert engine.stats is not before
    assert engine.stats.counts.keys() == {"allocations"}
    eager = recordable(1).engine("draft_model", policy, k=2)
    assert eager.warm_up() == 0.0


def test_a_warm_up_is_refused_while_requests_are_live(recordable: Callable[[int], Assembly]) -> None:
    engine = recordable(1).engine(None, k=0, recorder=Tape())
    engine.submit([Request(0, (1, 2), SamplingParams(max_new_tokens=4))])
    with pytest.raises(SpecdecError, match="1 requests are live; call warm_up before submit"):
        engine.warm_up()


class Moody(Policy):
    """``match`` with a fault in it."""

    coupled = True

    def __init__(self, fault: Callable[[int, Tensor], Tensor]) -> None:
        self._fault, self._calls = fault, 0

    def contract(self, params: SamplingParams) -> Contract:
        """Nothing."""
        return "lossy"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Change the logits first."""
        self._calls += 1
        return context.ops.verify_prefix(window, self._fault(self._calls, logits).argmax(dim=-1))


def _moody(fault: Callable[[int, Tensor], Tensor]) -> tuple[Engine, Engine]:
    def factory(env: Env) -> Policy:
        return Moody(fault)

    assembly = tiny.assembly(backend="reference", extra=(("policy", "moody", factory),))
    return assembly.engine("garbage", "moody", k=2), assembly.engine("garbage", "moody", k=2, recorder=Tape())


def test_a_part_that_counts_on_the_host_is_found() -> None:
    run, replayed = _moody(lambda calls, logits: logits.roll(calls, dims=-1))
    requests = [Request(0, (1, 2, 3), SamplingParams(max_new_tokens=8))]
    assert _decoded(replayed, requests) != _decoded(run, requests)


def test_a_part_that_reads_is_refused() -> None:
    def reads(calls: int, logits: Tensor) -> Tensor:
        return logits + float(logits[0, 0, 0].item())

    _, replayed = _moody(reads)
    with pytest.raises(RuntimeError, match="a part that reads cannot be recorded"):
        replayed.run([Request(0, (1, 2, 3), SamplingParams(max_new_tokens=8))])


class Refusing:
    """Records as CUDA does, without running; refuses functions of one name."""

    name, runs = "refusing", False

    def __init__(self, refused: str) -> None:
        self._refused = refused

    def __call__(self, function: Any, given: Sequence[object]) -> tuple[Any, Callable[[], None]]:
        """Raise as a capture does."""
        context = given[-1]
        if function.__name__ == self._refused and isinstance(context, Context):
            context.choose(torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64), Purpose.TARGET)
            raise RuntimeError("operation not permitted when stream is capturing")
        raise RuntimeError("refused")


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["draft_model", "tree(beam=2, depth=3)"])
def test_a_recorded_draft_is_verified_anew_where_the_engines_parts_cannot_be_recorded(
    recordable: Callable[[int], Assembly], draft: str
) -> None:
    """The draft then returns one window at every step, whose tokens and parents change under it."""
    engine, plain = recordable(2).engine(draft, k=5, recorder=Tape()), recordable(2).engine(draft, k=5)
    engine.runtime = Graphed(Refusing("everything"), engine.ops)
    penalised = _asked(
        lambda row: SamplingParams(max_new_tokens=20, frequency_penalty=0.5), 0.8 * draft.startswith("tree")
    )
    assert _decoded(engine, penalised) == _decoded(plain, penalised)
    assert engine.stats.counts["target_forwards"] == plain.stats.counts["target_forwards"]


def test_kinds_tell_tensors_of_other_shapes_at_one_address_apart() -> None:
    tensor = torch.zeros(4, 6)
    parts = (tensor, tensor[:3], tensor[:, :3], tensor.t()[:4])
    assert len({addresses(part) for part in parts}) == len(parts)


def test_kinds_tell_longer_lists_of_end_tokens_and_words_at_one_address_apart() -> None:
    """A ledger's lists grow by copies, and a later copy may lie where an earlier one was freed."""
    asked, memory = context(Reference()), torch.zeros(12, dtype=torch.int64)
    lists = [{"least": asked.length, "ends": memory[:count].view(1, count)} for count in (1, 2, 3)]
    words = [Words(memory[: m * n].view(1, m, n), memory[:m].view(1, m)) for m, n in ((1, 1), (1, 2), (2, 1), (2, 3))]
    several: list[dict[str, Any]] = [*lists, *({"words": one} for one in words)]
    kinds = [
        replace(asked, params=replace(asked.params, adjustments=Adjustments(asked.tokens, asked.length, **one))).kind
        for one in several
    ]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.slow
def test_a_part_that_cannot_be_recorded_runs_op_by_op_and_is_named(recordable: Callable[[int], Assembly]) -> None:
    engine, plain = recordable(1).engine("ngram", k=2), recordable(1).engine("ngram", k=2)
    assert isinstance(engine.ops, Ops)
    engine.runtime = runtime = Graphed(Refusing("_judge"), engine.ops)
    requests = _asked(PARAMS["alike"], 0.0)
    assert _decoded(engine, requests) == _decoded(plain, requests)
    assert engine.stats.ops == plain.stats.ops
    assert runtime.notes
    assert all("cannot be recorded" in note for note in runtime.notes)
