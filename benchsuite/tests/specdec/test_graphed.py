"""Recorded steps beside eager ones: on a GPU as CUDA graphs, and, on any machine, faults that recordings can have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchsuite.conformance.guards.read_guard import guarded_steps
from benchsuite.conformance.guards.tape import SharedPool, Tape
from benchsuite.conformance.models import tiny
from benchsuite.tests.rig import slow_after
from specdec import Engine, Request, SamplingParams
from specdec.assembly import Assembly
from specdec.messages import Context
from specdec.runtime import CudaGraphs, Recorder

DRAFTS = (
    *("ngram", "suffix", "garbage", "oracle(0.8)", "draft_model", "tree(beam=2, depth=2)", "medusa", "eagle"),
    *("medusa(head_init=random, beam=2)", "hybrid(sources='suffix, ngram, eagle')", "oracle(0.8, cost='draft_model')"),
)
POLICIES = ("match", "rejection", "block", "tree_rejection")
GPU = (pytest.mark.cuda, pytest.mark.gpu)

Assembled = Callable[[str, torch.dtype, int], Assembly]


@pytest.fixture(scope="module")
def assembled() -> Assembled:
    """Assemblies over a tiny Llama, by device, dtype and rows; on a CPU over the reference, whose calls a tape sees."""
    made: dict[tuple[str, torch.dtype, int], Assembly] = {}

    def assembly(device: str, dtype: torch.dtype, rows: int) -> Assembly:
        key = device, dtype, rows
        if key not in made:
            backend = "reference" if device == "cpu" else "auto"
            made[key] = tiny.assembly(device=device, dtype=dtype, max_rows=rows, backend=backend)
        return made[key]

    return assembly


def _strategies() -> Iterator[tuple[str | None, str]]:
    """Plain decoding, and every draft with every policy that takes its windows."""
    yield None, "match"
    for draft, policy in itertools.product(DRAFTS, POLICIES):
        if tiny.policy_named(policy).trees or not ("tree" in draft or "beam" in draft):
            yield draft, policy


def _requests(temperature: float, **more: Any) -> list[Request]:
    params = SamplingParams(max_new_tokens=16, temperature=temperature, **more)
    return [Request(row, prompt, params) for row, prompt in enumerate(tiny.prompts(3))]


def _decoded(engine: Engine, requests: Sequence[Request]) -> tuple[list[tuple[int, ...]], int, int]:
    tokens = [done.tokens for done in engine.run(requests)]
    return tokens, engine.stats.counts["num_accepted_tokens"], engine.stats.counts["target_forwards"]


def _recorder(device: str) -> Recorder:
    return CudaGraphs() if device == "cuda" else Tape()


DEVICES = [pytest.param("cuda", marks=GPU), "cpu"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 2), (torch.bfloat16, 1)], ids=["float32-2", "bfloat16-1"])
@pytest.mark.parametrize(("draft", "policy"), list(_strategies()))
@pytest.mark.cuda
@pytest.mark.gpu
def test_graphs_decode_what_eager_steps_decode(
    draft: str | None, policy: str, dtype: torch.dtype, rows: int, temperature: float, assembled: Assembled
) -> None:
    assembly, requests = assembled("cuda", dtype, rows), _requests(temperature)
    eager = assembly.engine(draft, policy, k=3, eager=True)
    graphed = assembly.engine(draft, policy, k=3, recorder=CudaGraphs())
    graphed.warm_up(requests[0].params)
    assert _decoded(graphed, requests) == _decoded(eager, requests)
    assert graphed.runtime.notes == ()
    assert graphed.runtime.recorded


BIAS: dict[str, Any] = {"logit_bias": dict.fromkeys(range(1, 256, 2), 9.0)}

PROCESSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": (BIAS, {}),
    "none": ({}, {}),
    "top-k": ({"top_k": 2}, {"top_k": 3}),
    "penalties": ({"repetition_penalty": 0.25}, {}),
    "min-p, top-p": ({"min_p": 0.7}, {"top_p": 0.3}),
    "bias, penalties": (BIAS, {"repetition_penalty": 0.25, "presence_penalty": -2.0, "frequency_penalty": -2.0}),
    "greedy": ({"temperature": 0.0}, {"temperature": 0.0}),
    "bias, words": (BIAS, {"bad_words": tuple((word,) for word in range(0, 256, 3))}),
    "bias, least": (BIAS, {"min_new_tokens": 6, "eos": tuple(range(0, 256, 2))}),
    "greedy, penalties": ({"temperature": 0.0, "repetition_penalty": 0.25}, {"temperature": 0.0}),
    "top-k, least": ({"top_k": 5}, {"min_new_tokens": 6, "eos": tuple(range(1, 256, 2)), "top_p": 0.5}),
}
"""What two requests ask for, whose steps all have one shape."""


def _two_requests(processed: tuple[dict[str, Any], dict[str, Any]]) -> list[Request]:
    params = [SamplingParams(**{"max_new_tokens": 6, "temperature": 1.5, **one}) for one in processed]
    return [Request(row, prompt, one) for row, (prompt, one) in enumerate(zip(tiny.prompts(2), params, strict=True))]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backwards", slow_after(1, [False, True]))
@pytest.mark.parametrize("policy", slow_after(1, ["match", "rejection"]))
def test_a_recorded_step_is_not_replayed_for_one_of_the_same_shape_with_other_processors(
    device: str, policy: str, backwards: bool, assembled: Assembled
) -> None:
    """Of any two, one is recorded first forwards and the other backwards; the very first is replayed at the end."""
    assembly = assembled(device, torch.float32, 2)
    eager = assembly.engine("garbage", policy, k=2, eager=True)
    graphed = assembly.engine("garbage", policy, k=2, recorder=_recorder(device))
    names = [*PROCESSED][:: -1 if backwards else 1]
    expected = {name: _decoded(eager, _two_requests(PROCESSED[name])) for name in names}
    assert len({str(tokens) for tokens, *_ in expected.values()}) == len(names), "two ask for the same"
    for name in names:
        assert _decoded(graphed, _two_requests(PROCESSED[name])) == expected[name], name
    recorded = graphed.runtime.recorded
    assert _decoded(graphed, _two_requests(PROCESSED[names[0]])) == expected[names[0]]
    assert graphed.runtime.recorded == recorded


@pytest.mark.slow
def test_a_replay_whose_kind_ignores_filters_decodes_otherwise(
    assembled: Assembled, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly, whole = assembled("cpu", torch.float32, 2), Context.kind
    assert isinstance(whole, property)

    def without_filters(self: Context) -> Hashable:
        return whole.fget(replace(self, params=replace(self.params, filtered=False)))

    monkeypatch.setattr(Context, "kind", property(without_filters))
    graphed = assembly.engine("garbage", "match", k=3, recorder=Tape())
    _decoded(graphed, _requests(0.8))
    requests = _requests(0.8, top_k=1)
    assert _decoded(graphed, requests) != _decoded(assembly.engine("garbage", "match", k=3), requests)


@pytest.mark.cuda
@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("draft", "policy"),
    [
        ("ngram", "match"),
        ("garbage", "rejection"),
        ("draft_model", "match"),
        ("eagle", "block"),
        ("tree(beam=2, depth=2)", "tree_rejection"),
        ("medusa", "match"),
    ],
)
def test_a_step_on_a_gpu_waits_for_nothing_but_its_read(
    draft: str, policy: str, graphs: bool, assembled: Assembled
) -> None:
    assembly, requests = assembled("cuda", torch.bfloat16, 2), _requests(0.8)
    engine = assembly.engine(draft, policy, k=3, eager=not graphs, recorder=CudaGraphs() if graphs else None)
    engine.run(requests)  # what is compiled, allocated or recorded at first
    guarded_steps(engine, [replace(request, id=request.id + 10) for request in requests], 3)


def _shared(assembly: Assembly, draft: str, policy: str, controller: str, later: bool) -> tuple[Engine, SharedPool]:
    pool = SharedPool(later_alone=later)
    engine = assembly.engine(draft, policy, controller, k=3, recorder=pool)
    pool.persistent = [tensor for stack in engine.arena.stacks for tensor in (stack.keys, stack.values)]
    pool.persistent += [engine.arena.committed]
    pool.persistent += [tensor for tensor in vars(engine.rows).values() if isinstance(tensor, torch.Tensor)]
    return engine, pool


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "policy"),
    slow_after(
        1,
        [
            *(("garbage", "match"), ("draft_model", "match"), ("garbage", "rejection"), ("draft_model", "rejection")),
            *(("tree(beam=2, depth=2)", "match"), ("medusa", "match"), ("eagle", "match"), ("eagle", "rejection")),
            *(("medusa(head_init=random, beam=2)", "tree_rejection"), ("ngram", "match")),
            *(("hybrid(sources='suffix, ngram, eagle')", "match"), ("oracle(0.8, cost='draft_model')", "match")),
        ],
    ),
)
@pytest.mark.parametrize(
    ("rows", "temperature", "controller"), [(1, 0.0, "fixed"), (2, 0.8, "adaptive(window=2)")], ids=["one", "two"]
)
def test_one_pool_of_memory_for_all_graphs_changes_nothing(
    draft: str, policy: str, rows: int, temperature: float, controller: str, assembled: Assembled
) -> None:
    """Temporaries of a graph are free after its capture, so that results of later captures may lie there."""
    assembly, requests = assembled("cpu", torch.float32, rows), _requests(temperature)
    engine, pool = _shared(assembly, draft, policy, controller, later=True)
    assert _decoded(engine, requests) == _decoded(assembly.engine(draft, policy, controller, k=3), requests)
    assert pool.overwritten


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["match", "rejection"])
def test_an_overwritten_result_of_an_earlier_graph_is_found(policy: str, assembled: Assembled) -> None:
    """The control: results of the graphs before, which a step still reads, are overwritten too."""
    assembly, requests = assembled("cpu", torch.float32, 1), _requests(0.0)
    engine, _ = _shared(assembly, "draft_model", policy, "fixed", later=False)
    expected = _decoded(assembly.engine("draft_model", policy, "fixed", k=3), requests)
    try:
        found = _decoded(engine, requests)
    except (RuntimeError, IndexError):
        return  # a token that is none
    assert found != expected
