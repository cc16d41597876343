"""A request alone and after some of its output, what a bias may be given as, and how much of a kept text is common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec import Request, SamplingParams, SpecdecError
from specdec.arena import Arena, KeptCells, LayerShape
from specdec.queue import KeptText

PARAMS = SamplingParams(temperature=0.5, max_new_tokens=5, min_new_tokens=3, eos=(1,))


@pytest.mark.parametrize("given", [{"keep": True}, {"continues": 3}, {"continues": 0}, {"keep": True, "continues": 4}])
def test_a_request_alone_keeps_nothing_and_continues_nothing(given: dict[str, Any]) -> None:
    request = Request(7, (1, 2), PARAMS, emitted=1)
    assert replace(request, **given).alone() == request
    assert request.alone() is request


@pytest.mark.parametrize(
    ("output", "most", "least"),
    [((), 5, 3), ((8,), 4, 2), ((8, 9, 8), 2, 0), ((8,) * 4, 1, 0), ((8,) * 5, 1, 0), ((8,) * 9, 1, 0)],
)
def test_a_request_after_output_has_the_budget_that_is_left(output: tuple[int, ...], most: int, least: int) -> None:
    request = Request(7, (1, 2), PARAMS, emitted=1, keep=True, continues=2)
    assert request.after(output) == Request(
        7, (1, 2, *output), replace(PARAMS, max_new_tokens=most, min_new_tokens=least), emitted=1 + len(output)
    )


def test_a_least_length_is_never_above_the_budget_that_is_left() -> None:
    params = SamplingParams(max_new_tokens=3, min_new_tokens=3)
    for done, left in ((0, 3), (1, 2), (2, 1), (3, 1)):
        after = Request(0, (4,), params).after((5,) * done).params
        assert (after.max_new_tokens, after.min_new_tokens) == (left, 3 - done)


@pytest.mark.parametrize("emitted", [-1, 3, 1.0, True, None])
def test_no_more_is_emitted_than_the_prompt_has(emitted: Any) -> None:
    with pytest.raises(SpecdecError) as refused:
        Request(7, (1, 2), emitted=emitted)
    assert str(refused.value) == f"emitted is {emitted!r} in request 7; expected 0 to 2"
    assert [Request(7, (1, 2), emitted=count).emitted for count in (0, 1, 2)] == [0, 1, 2]


def test_a_prompt_is_kept_as_a_tuple_and_a_bias_as_rising_pairs() -> None:
    assert Request(0, [3, 4]).prompt == (3, 4)  # type: ignore[arg-type]  # any sequence will do
    assert SamplingParams(logit_bias={7: 1.0, 2: -3}).bias == ((2, -3), (7, 1.0))
    assert SamplingParams().bias == ()


@pytest.mark.parametrize(
    "bias", [([3, 1.0],), (3, 1.0), ((3,),), ("ab",), ((True, 1.0),), ((3, True),), ((3, "1"),), ((-1, 0.0),)]
)
def test_a_bias_that_is_no_tuple_of_an_id_and_a_number_is_refused(bias: Any) -> None:
    with pytest.raises(SpecdecError) as refused:
        SamplingParams(logit_bias=bias)
    assert str(refused.value) == f"logit_bias is {bias!r}; expected a mapping of token ids to numbers from -100 to 100"


@pytest.mark.parametrize(("words", "refused"), [(((7,),), True), (((7, 8),), False), (((8, 7),), False), ((), False)])
def test_a_bad_word_of_one_end_token_alone_is_refused(words: Any, refused: bool) -> None:
    if not refused:
        assert SamplingParams(bad_words=words, eos=(7,)).bad_words == words
        return
    with pytest.raises(SpecdecError) as said:
        SamplingParams(bad_words=words, eos=(9, 7))
    assert str(said.value) == (
        "bad_words is ((7,),) and forbids 7, which is in eos; to go on past an end token leave it out of eos, to put "
        "off the end use min_new_tokens"
    )


def test_a_least_length_above_the_largest_is_refused_in_these_words() -> None:
    with pytest.raises(SpecdecError) as refused:
        SamplingParams(min_new_tokens=5, max_new_tokens=4)
    assert str(refused.value) == "min_new_tokens is 5; expected at most max_new_tokens, 4"


@pytest.mark.parametrize(
    ("prompt", "common", "wrapped"),
    [
        # Of the kept text 1 2 3 4 5 the first four have cells; a prompt's last token is always read anew.
        ((1,), 0, 0),
        ((1, 2), 1, 0),
        ((1, 2, 3, 4), 3, 0),
        ((1, 2, 3, 4, 5), 4, 4),
        ((1, 2, 3, 4, 5, 6), 4, 4),
        ((1, 2, 3, 4, 9, 9, 9), 4, 4),
        ((1, 2, 9, 4, 5, 6), 2, 0),
        ((9, 2, 3, 4, 5, 6), 0, 0),
        ((1, 2, 3, 9, 5, 6), 3, 0),
    ],
)
def test_the_cells_of_the_common_beginning_can_be_used_of_a_ring_all_or_none(
    prompt: tuple[int, ...], common: int, wrapped: int
) -> None:
    for ring, expected in ((False, common), (True, wrapped)):
        kept = KeptText((1, 2, 3, 4, 5), KeptCells(4, ring, (), ()))
        assert kept.common(prompt) == expected


SHAPES = [LayerShape(2, 4, None), LayerShape(1, 8, 3), LayerShape(2, 4, None)]


def _arena(max_length: int = 60, max_window: int = 5) -> Arena:
    return Arena(
        SHAPES,
        rows=2,
        max_length=max_length,
        max_window=max_window,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(("max_length", "cells"), [(1, 64), (59, 64), (60, 64), (61, 128), (124, 128), (125, 192)])
def test_a_full_layer_has_room_for_the_longest_text_and_the_widest_window_after_it(max_length: int, cells: int) -> None:
    """In buckets of 64 cells; a window starts at the last token of a text, so one slot of it needs no further cell."""
    assert _arena(max_length).capacity == {None: cells, 3: 7}


def test_an_arena_says_what_it_allocated_and_how_many_bytes_a_row_and_a_token_take() -> None:
    arena = _arena()
    assert arena.allocations == 2 * 2 + 1, "keys and values of two shapes, and the count of committed cells"
    assert arena.row_bytes == 4 * 2 * (2 * 2 * 4 * 64 + 8 * 7)
    assert Arena.bytes_per_token(SHAPES, torch.float32) == 4 * 2 * (2 * 4 + 8 + 2 * 4)
    assert Arena.bytes_per_token(SHAPES, torch.bfloat16) == 2 * 2 * (2 * 4 + 8 + 2 * 4)
    one = Arena(SHAPES, rows=1, max_length=60, max_window=5, dtype=torch.float32, device=torch.device("cpu"))
    assert one.row_bytes == arena.row_bytes
    assert {(*tensor.shape,) for tensor in one.keys} == {(1, 2, 64, 4), (1, 1, 7, 8)}
    assert one.committed.tolist() == [0]


def test_what_is_kept_of_a_row_is_restored_in_another_and_counted() -> None:
    arena = _arena()
    for number, tensor in enumerate((*arena.keys, *arena.values)):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 1000 * number)
    arena.committed[:] = torch.tensor([9, 2])
    # The ring of 3 + 5 - 1 cells has lost its first cell as soon as 3 cells are committed and 5 were written after.
    assert [arena.keep(0, length, 5).wrapped for length in (1, 2, 3, 9)] == [False, False, True, True]
    assert [arena.keep(0, length, 4).wrapped for length in (3, 4)] == [False, True]
    for length, ring, wrapped in ((2, 2, False), (9, 7, True)):
        kept = arena.keep(0, length, 5)
        assert (kept.length, kept.wrapped) == (length, wrapped)
        assert [tensor.shape[1] for tensor in (*kept.keys, *kept.values)] == [length, ring] * 2
        size = 4 * 2 * (2 * 2 * 4 * length + 8 * ring)
        assert kept.nbytes == size
        other = _arena()
        assert other.restore(1, kept, length) == size
        assert other.committed.tolist() == [0, length]
        for mine, theirs in zip((*arena.keys, *arena.values), (*other.keys, *other.values), strict=True):
            cells = min(length, mine.shape[2]) if mine.shape[2] > 7 else ring
            assert torch.equal(mine[0, :, :cells], theirs[1, :, :cells])
            assert not theirs[0].any()
            assert not theirs[1, :, cells:].any()
    shorter = _arena()
    assert shorter.restore(0, arena.keep(0, 2, 5), 1) == 4 * 2 * (2 * 2 * 4 + 8)
    assert shorter.committed.tolist() == [1, 0]
