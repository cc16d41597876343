"""What a ledger holds of its rows, tensor by tensor: when it is made, after requests enter, and as its parts are asked
for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec import Request, SamplingParams
from specdec.ledger import Ledger, Memory, _needs, _wider, output_paths, stacked
from specdec.sampling import stream

CPU = torch.device("cpu")
FULL = SamplingParams(
    temperature=0.5,
    top_k=4,
    top_p=0.75,
    min_p=0.25,
    seed=9,
    repetition_penalty=1.5,
    frequency_penalty=0.25,
    presence_penalty=-0.5,
    logit_bias={1: 2.0, 5: -1.0},
    bad_words=((4,), (1, 5), (3, 2, 0)),
    eos=(2, 6),  # the second is the first id past the vocabulary
    min_new_tokens=3,
)
PLAIN = SamplingParams(eos=(3,))


def _told(part: Any) -> dict[str, tuple[torch.dtype, Any]]:
    """Each tensor of a part: its dtype and its numbers."""
    return {name: (value.dtype, value.tolist()) for name, value in vars(part).items() if isinstance(value, Tensor)}


def _new(rows: int) -> dict[str, tuple[torch.dtype, Any]]:
    return {
        "bias": (torch.float32, [[0.0] * 6] * rows),
        "seen": (torch.bool, [[False] * 6] * rows),
        "emitted": (torch.int32, [[0] * 6] * rows),
        "repetition": (torch.float32, [1.0] * rows),
        "frequency": (torch.float32, [0.0] * rows),
        "presence": (torch.float32, [0.0] * rows),
        "least": (torch.int64, [0] * rows),
        "ends": (torch.int64, [[]] * rows),
        "prefix": (torch.int64, [[]] * rows),
        "last": (torch.int64, [[]] * rows),
    }


def test_a_new_memory_changes_no_logit() -> None:
    assert _told(Memory(2, 6, CPU)) == _new(2)


def test_a_memory_holds_of_each_request_what_its_processors_need_and_of_the_others_nothing() -> None:
    memory = Memory(3, 6, CPU)
    memory.admit(1, Request(7, (1, 2, 2, 5, 5), FULL, emitted=2))
    assert _told(memory) == {
        "bias": (torch.float32, [[0.0] * 6, [0.0, 2.0, 0.0, 0.0, 0.0, -1.0], [0.0] * 6]),
        "seen": (torch.bool, [[False] * 6, [False, True, True, False, False, True], [False] * 6]),
        "emitted": (torch.int32, [[0] * 6, [0, 0, 0, 0, 0, 2], [0] * 6]),
        "repetition": (torch.float32, [1.0, 1.5, 1.0]),
        "frequency": (torch.float32, [0.0, 0.25, 0.0]),
        "presence": (torch.float32, [0.0, -0.5, 0.0]),
        "least": (torch.int64, [0, 8, 0]),
        "ends": (torch.int64, [[-1, -1], [2, -1], [-1, -1]]),
        "prefix": (torch.int64, [[[-1, -1]] * 3, [[-1, -1], [-1, 1], [3, 2]], [[-1, -1]] * 3]),
        "last": (torch.int64, [[-1] * 3, [4, 5, 0], [-1] * 3]),
    }
    memory.move(1, 0)
    assert all(values[0] == values[1] for _, values in _told(memory).values())
    memory.admit(1, Request(8, (4,), PLAIN))
    told = {name: values[1] for name, (_, values) in _told(memory).items()}
    assert told == {
        "bias": [0.0] * 6,
        "seen": [False, False, False, False, True, False],
        "emitted": [0] * 6,
        "repetition": 1.0,
        "frequency": 0.0,
        "presence": 0.0,
        "least": 1,
        "ends": [3, -1],
        "prefix": [[-1, -1]] * 3,
        "last": [-1] * 3,
    }


def test_only_tokens_up_to_their_number_are_counted_in_the_first_rows() -> None:
    memory = Memory(4, 4, CPU)
    memory.count(torch.tensor([[1, 1, 0], [2, 3, 3], [3, 3, 3]]), torch.tensor([3, 1, 0]))
    memory.count(torch.tensor([[1, 2, 2], [0, 0, 1]]), torch.tensor([1, 2]))
    assert memory.emitted.tolist() == [[1, 3, 0, 0], [2, 0, 1, 0], [0] * 4, [0] * 4]


def test_a_ledger_holds_the_numbers_of_its_rows_and_a_memory_from_the_first_need_on() -> None:
    ledger = Ledger(3, 6, CPU)
    floats = {name: (torch.float32, [0.0] * 3) for name in ("temperature", "top_p", "min_p")}
    assert _told(ledger) == {name: (torch.int64, [0] * 3) for name in ("stream", "top_k")} | floats
    assert (ledger.memory, ledger.allocations) == (None, 5)
    ledger.admit(0, Request(3, (1,), PLAIN))
    assert ledger.memory is None
    ledger.admit(2, Request(7, (1, 2), FULL))
    assert ledger.memory is not None
    streams = [int(stream(torch.tensor(seed), torch.tensor(number))) for seed, number in ((0, 3), (9, 7))]
    assert _told(ledger) == {
        "stream": (torch.int64, [streams[0], 0, streams[1]]),
        "top_k": (torch.int64, [0, 0, 4]),
        "temperature": (torch.float32, [0.0, 0.0, 0.5]),
        "top_p": (torch.float32, [1.0, 0.0, 0.75]),
        "min_p": (torch.float32, [0.0, 0.0, 0.25]),
    }
    ledger.move(2, 1)
    assert all(values[1] == values[2] for part in (ledger, ledger.memory) for _, values in _told(part).values())


@pytest.mark.parametrize(
    ("asked", "greedy", "filtered"),
    [
        ([{}], True, False),
        ([{"top_k": 1, "top_p": 0.5, "min_p": 0.5}], True, False),
        ([{"temperature": 1.0}], False, False),
        ([{"temperature": 0.5, "top_k": 1}], False, True),
        ([{"temperature": 0.5, "top_p": 0.99}], False, True),
        ([{"temperature": 0.5, "min_p": 0.01}], False, True),
        ([{"temperature": 1.0, "min_p": 1.0}], False, True),
        ([{}, {"temperature": 1.0}], False, False),
        ([{"top_k": 3}, {"temperature": 1.0}], False, False),
        ([{}, {"temperature": 1.0, "top_k": 5}], False, True),
    ],
)
def test_a_batch_is_greedy_if_all_rows_are_and_filtered_if_a_sampled_row_is(
    asked: list[dict[str, Any]], greedy: bool, filtered: bool
) -> None:
    requests = [Request(row, (1,), SamplingParams(**given)) for row, given in enumerate(asked)]
    found = stacked(requests, 6, CPU)
    assert (found.greedy, found.filtered, found.adjustments) == (greedy, filtered, None)


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({}, (False, False, False, False)),
        ({"logit_bias": {1: 1.0}}, (True, False, False, False)),
        ({"repetition_penalty": 2.0}, (False, True, False, False)),
        ({"frequency_penalty": 1.0}, (False, True, False, False)),
        ({"presence_penalty": 1.0}, (False, True, False, False)),
        ({"bad_words": ((1,),)}, (False, False, True, False)),
        ({"eos": (1,), "min_new_tokens": 1}, (False, False, False, True)),
        ({"eos": (1,)}, (False, False, False, False)),
        ({"min_new_tokens": 1}, (False, False, False, False)),
    ],
)
def test_each_part_of_the_memory_is_given_where_a_row_needs_it_and_no_other(
    given: dict[str, Any], needs: tuple[bool, ...]
) -> None:
    assert _needs(SamplingParams(**given)) == needs
    ledger = Ledger(3, 6, CPU)
    for row, params in enumerate((SamplingParams(), SamplingParams(**given), FULL)):
        ledger.admit(row, Request(row, (1,), params))
    memory, tokens, length = ledger.memory, torch.zeros(2, 3).long(), torch.tensor([1, 2])
    assert memory is not None
    found = memory.adjustments([SamplingParams(), SamplingParams(**given)], tokens, length)
    if not any(needs):
        assert found is None
        return
    assert found is not None
    assert found.tokens is tokens
    assert found.length is length
    parts = (found.bias, found.penalties, found.words, found.least)
    assert tuple(part is not None for part in parts) == needs
    assert (found.least is None) is (found.ends is None)
    expected: dict[str, Any] = {
        "bias": memory.bias,
        "least": memory.least,
        "ends": memory.ends,
        "penalties": {
            name: getattr(memory, name) for name in ("seen", "emitted", "repetition", "frequency", "presence")
        },
        "words": {"prefix": memory.prefix, "last": memory.last},
    }
    for name, part in asdict(found).items():
        if name in expected and part is not None:
            whole = expected[name]
            pairs = zip(part.values(), whole.values(), strict=True) if isinstance(whole, dict) else [(part, whole)]
            for view, of in pairs:
                assert view.tolist() == of[:2].tolist()


def test_the_texts_of_a_stack_are_whole_numbers_and_its_rows_those_of_its_requests() -> None:
    found = stacked([Request(0, (1, 2, 3), FULL), Request(1, (4,), FULL)], 6, CPU)
    assert found.adjustments is not None
    assert (found.adjustments.tokens.dtype, found.adjustments.length.dtype) == (torch.int64, torch.int64)
    assert found.adjustments.tokens.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert found.temperature.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("output", "paths"),
    [
        ((5,), [[[]]]),
        ((5, 6), [[[-1], [5]]]),
        ((5, 6, 7), [[[-1, -1], [5, -1], [5, 6]]]),
        ((5, 6, 7, 8), [[[-1, -1, -1], [5, -1, -1], [5, 6, -1], [5, 6, 7]]]),
    ],
)
def test_each_token_of_an_output_follows_those_before_it(output: tuple[int, ...], paths: Any) -> None:
    found = output_paths(output, CPU)
    assert found.dtype == torch.int64
    assert found.tolist() == paths
    assert found.shape == (1, len(output), len(output) - 1)


def test_a_wider_tensor_has_its_new_places_after_the_old_and_before_the_ends_of_words() -> None:
    line = torch.tensor([[3, 4], [5, 6]])
    assert _wider(line, 4).tolist() == [[3, 4, -1, -1], [5, 6, -1, -1]]
    assert _wider(line, 3).tolist() == [[3, 4, -1], [5, 6, -1]]
    words = torch.tensor([[[3, 4]]])
    assert _wider(words, 1, 3).tolist() == [[[-1, 3, 4]]]
    assert _wider(words, 2, 2).tolist() == [[[3, 4], [-1, -1]]]
    assert _wider(words, 3, 4).tolist() == [[[-1, -1, 3, 4], [-1] * 4, [-1] * 4]]
    for same in (_wider(line, 2), _wider(line, 1), _wider(line, 0)):
        assert same is line
    for alike in (_wider(words, 1, 2), _wider(words, 0, 0), _wider(words, 1, 1)):
        assert alike is words
