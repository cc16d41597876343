"""What a step takes from the rows and what it leaves in them: contexts, emitted tokens, kinds, times, logprobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from specdec import Request, SamplingParams
from specdec.logprobs import TokenLogprobs
from specdec.messages import Verdict, Window
from specdec.rows import TAIL, Live, Rows
from specdec.stops import StopWatcher
from specdec_kernels.reference import Reference

PENALISED = SamplingParams(max_new_tokens=9, presence_penalty=1.0)


def _live(number: int, prompt: tuple[int, ...], params: SamplingParams, limit: int) -> Live:
    return Live(Request(number, prompt, params), limit, StopWatcher(params, limit - len(prompt), None))


def _rows(*params: SamplingParams, limit: int = 9) -> Rows:
    """Rows with a request of two tokens for each of these parameters, in an arena of three."""
    rows = Rows(3, 16, 11, torch.device("cpu"))
    for row, one in enumerate(params):
        rows.admit(row, _live(row + 4, (row + 1, 9), one, limit))
    return rows


def test_a_request_that_has_just_come_has_emitted_nothing_at_no_time() -> None:
    live = _live(1, (2, 3), PENALISED, 9)
    assert (live.tokens, live.kinds, live.times, live.logprobs, live.finish) == ([], [], [], [], None)
    assert (live.submitted, live.prefill) == (0.0, (0, 0))


def test_new_rows_hold_whole_zeros_on_both_sides() -> None:
    rows = Rows(2, 5, 7, torch.device("cpu"))
    for tensor in (rows.tokens, rows.length, rows.request, rows.limit):
        assert tensor.dtype == torch.int64
        assert not tensor.any()
    for array in (rows.history, rows.length_host, rows.limit_host):
        assert array.dtype == np.int64
        assert not array.any()
    assert rows.tokens.shape == rows.history.shape == (2, 5)
    assert (rows.live, rows.most_logprobs) == ([], None)
    assert rows.allocations == 5 + rows.ledger.allocations


def test_a_request_that_takes_a_freed_row_leaves_the_other_rows_their_requests() -> None:
    rows = _rows(PENALISED, PENALISED, PENALISED)
    rows.admit(0, _live(9, (8,), PENALISED, 7))
    rows.admit(1, _live(10, (7,), PENALISED, 7))
    assert [live.request.id for live in rows.live] == [9, 10, 6]
    assert rows.request.tolist() == [9, 10, 6]
    rows.drop()
    assert [live.request.id for live in rows.live] == [9, 10]
    rows.clear()
    assert rows.live == []


@pytest.mark.parametrize(
    ("k", "proposals"), [(0, [0, 0, 0]), (1, [1, 1, 0]), (2, [2, 2, 0]), (5, [5, 2, 0]), (9, [6, 2, 0])]
)
@pytest.mark.parametrize("coupled", [False, True])
def test_a_context_is_the_live_rows_and_leaves_room_for_the_token_after_the_proposals(
    k: int, proposals: list[int], coupled: bool
) -> None:
    rows, ops = Rows(4, 16, 11, torch.device("cpu")), Reference()
    for row, limit in enumerate((9, 5, 3)):
        rows.admit(row, _live(row + 4, (row + 1, 9), PENALISED, limit))
    context = rows.context(k, ops, coupled)
    assert context.request.tolist() == [4, 5, 6]
    assert [row[:2] for row in context.tokens.tolist()] == [row[:2] for row in context.history.tolist()]
    assert [row[:2] for row in context.tokens.tolist()] == [[1, 9], [2, 9], [3, 9]]
    assert context.length.tolist() == context.length_host.tolist() == [2, 2, 2]
    assert context.max_proposals.tolist() == context.max_proposals_host.tolist() == proposals
    assert context.params is rows.params()
    assert (context.ops, context.coupled, context.rows) == (ops, coupled, 3)


def test_the_numbers_of_proposals_are_always_at_one_place() -> None:
    """A recorded step reads them there."""
    rows = _rows(PENALISED)
    contexts = [rows.context(k, Reference(), False) for k in (3, 1)]
    assert contexts[0].max_proposals.data_ptr() == contexts[1].max_proposals.data_ptr()
    assert contexts[0].length.data_ptr() == rows.length.data_ptr()
    assert contexts[0].max_proposals.tolist() == [1]


def test_a_step_reads_the_emitted_tokens_and_four_numbers_a_row_and_counts_every_emitted_token() -> None:
    rows = _rows(PENALISED, PENALISED, PENALISED)
    window = Window.chain(torch.tensor([9, 9, 9]), torch.tensor([[5, 6], [5, 6], [5, 6]]), torch.tensor([2, 2, 0]))
    path = torch.tensor([[0, 1, 2], [0, 1, -1], [0, -1, -1]])
    verdict = Verdict(path, torch.tensor([2, 1, 0]), torch.tensor([7, 8, 3]))
    packed = rows.extend(window, verdict, Reference())
    assert TAIL == 4
    assert packed.shape == (3, 3 + TAIL)
    found = [row[: count + 1] for row, count in zip(packed.tolist(), (2, 1, 0), strict=True)]
    assert found == [[5, 6, 7], [5, 8], [3]]
    assert packed[:, -TAIL:].tolist() == [[2, 2, 2, 0], [1, 2, 2, 0], [0, 0, 0, 0]]
    assert rows.length.tolist() == [5, 4, 3]
    assert [row[:n] for row, n in zip(rows.tokens.tolist(), (5, 4, 3), strict=True)] == [
        [1, 9, 5, 6, 7],
        [2, 9, 5, 8],
        [3, 9, 3],
    ]
    memory = rows.ledger.memory
    assert memory is not None
    emitted = [{token: n for token, n in enumerate(row) if n} for row in memory.emitted.tolist()]
    assert emitted == [{5: 1, 6: 1, 7: 1}, {5: 1, 8: 1}, {3: 1}]
    rows.extend(window, verdict, Reference())
    assert rows.length.tolist() == [8, 6, 4]
    plain = _rows(SamplingParams())
    one = Window.chain(torch.tensor([9]), torch.zeros(1, 0).long(), torch.tensor([0]))
    plain.extend(one, Verdict(torch.tensor([[0]]), torch.tensor([0]), torch.tensor([4])), Reference())
    assert plain.length.tolist() == [3, 0, 0]
    assert plain.ledger.memory is None


@pytest.mark.parametrize(
    ("emitted", "accepted", "proposed", "kinds"),
    [
        ([3], 0, 0, ["plain"]),
        ([3], 0, 1, ["recovered"]),
        ([3, 4], 1, 1, ["accepted", "bonus"]),
        ([3, 4], 1, 2, ["accepted", "recovered"]),
        ([3, 4, 5], 2, 2, ["accepted", "accepted", "bonus"]),
        ([3, 4, 5], 2, 7, ["accepted", "accepted", "recovered"]),
    ],
)
def test_each_emitted_token_has_its_kind_and_its_time(
    emitted: list[int], accepted: int, proposed: int, kinds: list[str]
) -> None:
    rows = _rows(PENALISED, PENALISED)
    assert rows.absorb(1, emitted, accepted, proposed, 2.5) == len(emitted)
    live = rows.live[1]
    assert (live.tokens, live.kinds, live.times, live.finish) == (emitted, kinds, [2.5] * len(emitted), None)
    assert rows.history[1, : 2 + len(emitted)].tolist() == [2, 9, *emitted]
    assert rows.length_host.tolist() == [2, 2 + len(emitted), 0]
    assert rows.absorb(1, [8], 0, 0, 3.5) == 1
    assert rows.history[1, : 3 + len(emitted)].tolist() == [2, 9, *emitted, 8]
    assert (live.tokens, live.kinds) == ([*emitted, 8], [*kinds, "plain"])
    assert live.times == [2.5] * len(emitted) + [3.5]
    assert rows.length_host.tolist() == [2, 3 + len(emitted), 0]


@pytest.mark.parametrize(
    ("end", "kept", "kinds"),
    [(3, 1, ["accepted"]), (4, 2, ["accepted"] * 2), (5, 3, ["accepted", "accepted", "bonus"])],
)
def test_a_row_keeps_nothing_after_its_end_but_is_as_long_as_on_the_device(
    end: int, kept: int, kinds: list[str]
) -> None:
    rows = _rows(SamplingParams(eos=(end,)))
    assert rows.absorb(0, [3, 4, 5], 2, 2, 1.0) == kept
    live = rows.live[0]
    assert (live.tokens, live.kinds, live.times) == ([3, 4, 5][:kept], kinds, [1.0] * kept)
    assert live.finish is not None
    assert rows.history[0].tolist() == [1, 9, *[3, 4, 5][:kept], *[0] * (14 - kept)]
    assert rows.length_host.tolist() == [5, 0, 0]


def _packed(*tokens: float) -> Any:
    """One row of a read: for each token its log-probability and one alternative, raw and processed."""
    numbers = []
    for token in tokens:
        for chance in (token, token - 1):
            bits = np.array([chance], dtype=np.float32).view(np.int32)[0]
            numbers += [int(bits), 7, int(bits)]
    return numbers


def test_logprobs_go_to_the_rows_that_ask_and_end_with_their_tokens() -> None:
    rows = _rows(SamplingParams(logprobs=1), SamplingParams(), SamplingParams(logprobs=0, eos=(3,)))
    assert rows.context(1, Reference(), False).rows == 3
    assert rows.most_logprobs == 1
    for row in range(3):
        rows.absorb(row, [3, 4], 1, 1, 0.0)
    rows.absorb_logprobs(np.array([_packed(-1, -2, -3)] * 3), 3)

    def told(raw: float, some: bool) -> TokenLogprobs:
        top = (((7, raw),), ((7, raw - 1),)) if some else ((), ())
        return TokenLogprobs(raw, raw - 1, *top)

    assert [live.logprobs for live in rows.live] == [[told(-1, True), told(-2, True)], [], [told(-1, False)]]
    rows.absorb(0, [5], 0, 0, 0.0)
    rows.absorb_logprobs(np.array([_packed(-4, -5, -6)] * 3), 3)
    assert rows.live[0].logprobs == [told(-1, True), told(-2, True), told(-4, True)]
    assert rows.live[2].logprobs == [told(-1, False)]


@pytest.mark.parametrize(
    ("asked", "most"), [([None, None], None), ([0, None], 0), ([None, 3], 3), ([2, 5], 5), ([5, 0], 5)]
)
def test_as_many_alternatives_are_computed_as_the_row_that_wants_most(asked: list[Any], most: Any) -> None:
    rows = _rows(*(SamplingParams(logprobs=one) for one in asked))
    rows.params()
    assert rows.most_logprobs == most
    rows.clear()
    rows.admit(0, _live(1, (1, 2), SamplingParams(), 9))
    rows.params()
    assert rows.most_logprobs is None
