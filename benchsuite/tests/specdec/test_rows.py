"""The state of rows: a row that moves takes all of it along, and a new request finds nothing of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specdec import Request, SamplingParams
from specdec.rows import Live, Rows
from specdec.stops import StopWatcher

VOCABULARY = 11
LONGEST = 16

ALL = SamplingParams(
    temperature=0.7,
    top_k=5,
    top_p=0.9,
    min_p=0.1,
    seed=3,
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    presence_penalty=-0.5,
    logit_bias={2: 1.5, 7: -3.0},
    bad_words=((4,), (1, 5), (6, 2, 8)),
    eos=(9, 10),
    min_new_tokens=4,
    max_new_tokens=6,
)
WORK = [
    Request(5, (1, 2, 3, 4, 5, 6), ALL, emitted=2),
    Request(6, (7, 8), SamplingParams(presence_penalty=1.0, max_new_tokens=3, seed=1)),
    Request(7, (3, 3, 9), SamplingParams(temperature=1.0, min_p=0.3, bad_words=((3, 1),), max_new_tokens=8)),
]


def filled_rows(*requests: Request) -> Rows:
    """Rows with one request after the other."""
    rows = Rows(3, LONGEST, VOCABULARY, torch.device("cpu"))
    for row, request in enumerate(requests):
        enter(rows, row, request)
    return rows


def enter(rows: Rows, row: int, request: Request) -> None:
    limit = len(request.prompt) + request.params.max_new_tokens
    rows.admit(row, Live(request, limit, StopWatcher(request.params, limit, None)))


def state(rows: Rows, row: int) -> dict[str, Any]:
    """All that is known of a row, by name; of its tokens those that are valid."""
    length = int(rows.length_host[row])
    found: dict[str, Any] = {"live": rows.live[row].request}

    def values(part: object) -> Iterator[tuple[str, Any]]:
        for name, value in vars(part).items():
            if isinstance(value, Tensor | np.ndarray) and name != "_room":
                yield f"{type(part).__name__}.{name}", value[row].tolist()

    for part in (rows, rows.ledger, rows.ledger.memory):
        found |= values(part) if part is not None else {}
    return {name: value[:length] if name in ("Rows.tokens", "Rows.history") else value for name, value in found.items()}


def test_two_of_these_requests_differ_in_everything_that_a_row_knows() -> None:
    rows = filled_rows(*WORK)
    first, last = state(rows, 0), state(rows, 2)
    assert {name for name in first if first[name] == last[name]} == set()
    assert len(first) > 20


@pytest.mark.parametrize("source", [1, 2])
def test_a_row_that_moves_takes_along_all_that_is_known_of_it(source: int) -> None:
    rows = filled_rows(*WORK)
    before, others = state(rows, source), state(rows, 3 - source)
    rows.move(source, 0)
    assert state(rows, 0) == before
    assert state(rows, 3 - source) == others


@pytest.mark.parametrize("after", WORK, ids=["all processors", "a penalty", "sampled"])
def test_a_request_finds_nothing_of_the_one_that_had_its_row(after: Request) -> None:
    # The other rows are as wide, so that only what is left can differ.
    used, new = filled_rows(WORK[0], WORK[0], WORK[2]), filled_rows(after, WORK[0], WORK[2])
    enter(used, 0, after)
    assert state(used, 0) == state(new, 0)


def test_the_parameters_of_a_batch_are_those_of_its_live_rows() -> None:
    rows = filled_rows(*WORK)
    assert [len(rows.params().temperature), rows.params().greedy, rows.params().filtered] == [3, False, True]
    rows.drop()
    assert [len(rows.params().temperature), rows.params().filtered] == [2, True]
    rows.move(1, 0)
    rows.drop()
    assert [len(rows.params().temperature), rows.params().greedy, rows.params().filtered] == [1, True, False]
    assert rows.params().adjustments is not None
    rows.clear()
    enter(rows, 0, Request(1, (1,)))
    assert rows.params().adjustments is None
