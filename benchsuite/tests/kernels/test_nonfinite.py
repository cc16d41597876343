"""Rows of logits or of q with NaN or infinity: tokens stay in the vocabulary, other rows get what they get alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models import tiny
from benchsuite.conformance.models.tiny import registry
from benchsuite.conformance.ops.agreement import run_op
from benchsuite.conformance.ops.cases import CASES, EVERY
from benchsuite.tests.rig import INTERPRETED, slow_after
from specdec import Request, SamplingParams, Verdict, Window, sampling
from specdec.ledger import stacked
from specdec_plugins.drafts.draft_model import DraftModel
from specdec_plugins.reduced import Reduced

NAN, INF = math.nan, math.inf
BACKENDS = ["reference", "cpu", pytest.param("triton", marks=INTERPRETED)]
SIZE = 37  # two vectors of any width, and a rest


def bad_rows() -> Iterator[Tensor]:
    """Logits [SIZE] with NaN or infinity: everywhere, in a vector, in the rest after the vectors, at both ends."""
    fine = torch.linspace(-2, 2, SIZE)
    for bad in (NAN, INF):
        for places in ([0], [20], [SIZE - 1], [0, SIZE - 1], list(range(1, SIZE)), list(range(SIZE))):
            yield fine.index_fill(0, torch.tensor(places), bad)
    yield fine.index_fill(0, torch.tensor([3]), INF).index_fill(0, torch.tensor([30]), NAN)
    yield torch.full((SIZE,), -INF)


@pytest.mark.parametrize("noisy", [False, True], ids=["argmax", "drawn"])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_token_drawn_from_a_row_with_nan_or_infinity_is_in_the_vocabulary(name: str, noisy: bool) -> None:
    ops, fine = registry().backend(name), torch.linspace(-2, 2, SIZE).flip(0)
    keys = sampling.mix(torch.arange(3))[:, None] if noisy else None
    alone = ops.sample(fine.expand(3, 1, SIZE), keys)
    for row in bad_rows():
        drawn = ops.sample(torch.stack([fine, row, fine])[:, None], keys)
        assert 0 <= int(drawn[1]) < SIZE, row
        assert drawn[::2].equal(alone[::2])


FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 3},
    {"top_k": SIZE - 1},
    {"top_p": 0.5},
    {"min_p": 0.1},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.1},
    {name: values[0] for name, values in EVERY.items()},
]


@pytest.mark.parametrize("params", FILTERS, ids=lambda params: ",".join(params) or "none")
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_sampled_row_with_nan_or_infinity_stays_without_a_distribution(name: str, params: dict[str, Any]) -> None:
    """So its q says so: where a filter dropped the NaN, proposals would be drawn from what nobody computed."""
    ops, fine = registry().backend(name), torch.linspace(-2, 2, SIZE).flip(0)
    asked = [Request(i, (1, 2), SamplingParams(**{"temperature": 0.7, **params})) for i in range(3)]
    given = stacked(asked, SIZE, torch.device("cpu"))
    paths = torch.zeros(3, 1, 0, dtype=torch.int64)
    alone = ops.process(fine.expand(3, 1, SIZE), given, paths)
    for row in bad_rows():
        got = ops.process(torch.stack([fine, row, fine])[:, None], given, paths)
        assert not got[1].softmax(dim=-1).isfinite().any(), (row, got[1])
        assert got[::2].equal(alone[::2])


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_greedy_row_takes_its_first_nan_else_its_first_infinity(name: str) -> None:
    """A NaN is above everything, as in torch's ``max``: a greedy draft's token is then the same on every backend."""
    params = stacked([Request(0, (1,), SamplingParams(temperature=0.0))], SIZE, torch.device("cpu"))
    for row in bad_rows():
        got = registry().backend(name).process(row[None, None], params, None)[0, 0]
        first = row.isnan().nonzero() if row.isnan().any() else (row == row.max()).nonzero()
        assert got.tolist() == [0.0 if i == int(first[0]) else -INF for i in range(SIZE)], row


RULES = ("rejection_sample", "block_sample", "tree_sample")


@pytest.mark.parametrize("op", RULES)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_of_q_without_a_number_is_rejected_and_leaves_the_other_rows_alone(name: str, op: str) -> None:
    """Every proposal of the row would be accepted if q were right; none is, and the token is drawn from p itself."""
    ops, case = registry().backend(name), next(case for case in CASES if case.op == op and case.name == "equal")
    p, window, *keys = case.make(torch.Generator().manual_seed(1), torch.float32)
    q = window.q
    assert q is not None
    p, q, window = p[:6], q[:6], Window(window.tokens[:6], window.parents[:6], window.width[:6], q[:6])
    keys = [key[:6] for key in keys]
    width = window.width.index_fill(0, torch.tensor([2]), window.tokens.shape[1])
    window = replace(window, width=width)
    before = run_op(ops, op, (p, window, *keys))
    assert int(before[1][2]) > 0
    for bad in (NAN, INF):
        told = q.index_fill(0, torch.tensor([2]), bad)
        path, accepted, following = run_op(ops, op, (p, replace(window, q=told), *keys))
        assert int(accepted[2]) == 0
        own = sampling.gumbel(keys[1][2, 0], p.shape[2])  # the residual's noise: a proposal was rejected
        assert int(following[2]) == int((p[2, 0].log() + own).argmax())
        others = torch.arange(6) != 2
        for got, expected in zip((path, accepted, following), before, strict=True):
            assert got[others].equal(expected[others])


@pytest.mark.parametrize("op", RULES)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_target_without_a_distribution_gives_a_token_of_the_vocabulary(name: str, op: str) -> None:
    """vllm#53029: such a row gave a token equal to the size of the vocabulary, which broke another step's lookup."""
    ops, case = registry().backend(name), next(case for case in CASES if case.op == op and case.name == "broken")
    p, window, *keys = case.make(torch.Generator().manual_seed(1), torch.float32)
    p = p.index_fill(0, torch.arange(0, len(p), 2), NAN)
    path, accepted, following = run_op(ops, op, (p, window, *keys))
    assert bool((following >= 0).all() & (following < p.shape[2]).all())
    assert bool((accepted < window.width).all() & (path < window.tokens.shape[1]).all())


def _runs(draft: str, policy: str, params: SamplingParams) -> tuple[list[tuple[int, ...]], list[int], list[int]]:
    """The outputs of two requests, how many proposals each had accepted, and all proposed tokens."""
    engine = tiny.assembly(max_rows=2, backend="reference").engine(draft, policy, k=3)
    accepted, proposed = [0, 0], list[int]()

    def look(context: Any, window: Window, logits: Tensor, verdict: Verdict) -> None:
        proposed.extend(window.tokens.flatten().tolist())
        for row, request in enumerate(context.request.tolist()):
            accepted[request] += int(verdict.num_accepted[row])

    engine.trace = look
    asked = [Request(i, prompt[:9], replace(params, max_new_tokens=10)) for i, prompt in enumerate(tiny.prompts(2))]
    return [done.tokens for done in engine.run(asked)], accepted, proposed


def _broken_in_the_first_row(of: Callable[..., Any], bad: float) -> Callable[..., Any]:
    def broken(*given: Any) -> Any:
        found = of(*given)
        logits = found[0] if isinstance(found, tuple) else found
        logits = logits.index_fill(0, torch.tensor([0]), bad)
        return (logits, *found[1:]) if isinstance(found, tuple) else logits

    return broken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "policy", "bad"),
    slow_after(
        1,
        [
            *(("draft_model", policy, NAN) for policy in ("match", "rejection", "block", "tree_rejection")),
            ("tree", "match", INF),
            ("medusa(head_init=random)", "block", INF),
            ("medusa(head_init=random, beam=2)", "tree_rejection", NAN),
        ],
    ),
)
def test_a_draft_without_logits_in_one_row_emits_tokens_and_leaves_the_other_row_alone(
    draft: str, policy: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy, sampled = SamplingParams(), SamplingParams(temperature=1.0, seed=5, top_k=9)
    before = [_runs(draft, policy, params) for params in (greedy, sampled)]
    for owner, name in ((DraftModel, "_over_target"), (Reduced, "logits")):
        monkeypatch.setattr(owner, name, _broken_in_the_first_row(getattr(owner, name), bad))
    for params, (outputs, kept, _) in zip((greedy, sampled), before, strict=True):
        got, accepted, proposed = _runs(draft, policy, params)
        assert got[1] == outputs[1]
        assert accepted[1] == kept[1]
        assert min(proposed) >= 0
        assert max(proposed) < 258
        assert len(got[0]) == len(outputs[0])
        if params is greedy or policy == "match":
            assert got[0] == outputs[0]  # plain decoding's
        elif policy != "tree_rejection" or "beam" not in draft:
            assert accepted[0] == 0  # q says that there is no distribution
