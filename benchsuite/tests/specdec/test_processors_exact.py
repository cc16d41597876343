"""Processors over logits whose probabilities are exact in binary, so that each bound is met exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from specdec import Request, SamplingParams
from specdec.ledger import stacked
from specdec.messages import Window
from specdec.processors import adjusted, bans, chain_paths, process

CPU = torch.device("cpu")
NEVER = float("-inf")


def _params(*asked: dict[str, Any], vocabulary: int, prompt: tuple[int, ...] = (1,), emitted: int = 0) -> Any:
    requests = [Request(row, prompt, SamplingParams(**one), emitted=emitted) for row, one in enumerate(asked)]
    return stacked(requests, vocabulary, CPU)


@pytest.mark.parametrize(
    ("filters", "logits", "kept"),
    [
        # Top-k: the k-th logit and all that tie with it; 0 and more than the vocabulary keep all.
        ({"top_k": 1}, [1.0, 3.0, 3.0, 0.0], [1, 2]),
        ({"top_k": 2}, [1.0, 3.0, 2.0, 0.0], [1, 2]),
        ({"top_k": 3}, [1.0, 3.0, 2.0, 0.0], [0, 1, 2]),
        ({"top_k": 4}, [1.0, 3.0, 2.0, 0.0], [0, 1, 2, 3]),
        ({"top_k": 9}, [1.0, 3.0, 2.0, 0.0], [0, 1, 2, 3]),
        # Top-p: a token stays while the mass before it is below the share; of equal ones the lower id.
        ({"top_p": 0.25}, [0.0] * 4, [0]),
        ({"top_p": 0.26}, [0.0] * 4, [0, 1]),
        ({"top_p": 0.5}, [0.0] * 4, [0, 1]),
        ({"top_p": 0.75}, [0.0] * 4, [0, 1, 2]),
        ({"top_p": 0.76}, [0.0] * 4, [0, 1, 2, 3]),
        ({"top_p": 0.01}, [0.0] * 4, [0]),
        # Min-p: at least the share of the likeliest token, whatever that is.
        ({"min_p": 1.0}, [0.0, 0.0, -1.0, 0.0], [0, 1, 3]),
        ({"min_p": 0.5}, [5.0, 5.0 - math.log(1.9) / 2, 5.0 - math.log(2.1) / 2, -9.0], [0, 1]),
        # Top-p sees what top-k left, min-p what both left.
        ({"top_k": 2, "top_p": 0.5}, [0.0, 2.0, 2.0, -1.0], [1]),
        ({"top_k": 2, "top_p": 0.51}, [0.0, 2.0, 2.0, -1.0], [1, 2]),
        ({"top_k": 1, "top_p": 0.99, "min_p": 0.9}, [0.0, 2.0, 1.9, -1.0], [1]),
        # Without a share below 1 top-p keeps all, also where another filter runs.
        ({"top_p": 1.0, "min_p": 0.0, "top_k": 4}, [90.0, 0.0, 0.0, -90.0], [0, 1, 2, 3]),
    ],
)
def test_a_filter_keeps_these_tokens_and_their_logits(
    filters: dict[str, Any], logits: list[float], kept: list[int]
) -> None:
    """At each of two places, beside a row without filters."""
    params = _params({"temperature": 0.5, **filters}, {"temperature": 1.0}, vocabulary=4)
    given = torch.tensor([[logits, logits[::-1]]]).expand(2, 2, 4)
    found = process(given, params)
    assert found[0, 0].tolist() == [
        2 * one if token in kept else NEVER for token, one in enumerate(torch.tensor(logits).tolist())
    ]
    assert found[1].tolist() == given[1].tolist()
    assert found.shape == (2, 2, 4)


def test_a_greedy_row_keeps_its_first_top_logit_alone() -> None:
    given = torch.tensor([[[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]]).expand(2, 2, 3)
    hot = [[NEVER, 0.0, NEVER], [0.0, NEVER, NEVER]]
    assert process(given, _params({}, {"top_k": 2}, vocabulary=3)).tolist() == [hot, hot]
    mixed = process(given, _params({}, {"temperature": 2.0}, vocabulary=3))
    assert mixed.tolist() == [hot, [[0.5, 1.5, 1.5], [1.0, 0.0, 0.5]]]
    low = process(given, _params({}, {"temperature": 1.0}, vocabulary=3))
    assert low.tolist() == [hot, given[1].tolist()]


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_processed_logits_are_single_unless_they_were_double(given: torch.dtype, result: torch.dtype) -> None:
    for asked in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}):
        assert process(torch.zeros(1, 1, 3, dtype=given), _params(asked, vocabulary=3)).dtype == result


def test_penalties_see_the_prompt_the_output_and_the_proposals_of_each_slot() -> None:
    """A prompt 0 1 1 of which the last token was emitted, and a chain of 2 then 1 after it."""
    asked = {"repetition_penalty": 2.0, "frequency_penalty": 0.25, "presence_penalty": 0.5}
    logits = torch.tensor([[[4.0, -4.0, 0.5, 3.0, -3.0]]]).expand(1, 3, 5)
    adjustments = _params(asked, vocabulary=5, prompt=(0, 1, 1), emitted=1).adjustments
    paths = chain_paths(torch.tensor([[2, 1]]))
    assert paths.tolist() == [[[-1, -1], [2, -1], [2, 1]]]
    assert adjusted(logits, adjustments, paths).tolist() == [
        [
            [2.0, -8.0 - 0.25 - 0.5, 0.5, 3.0, -3.0],
            [2.0, -8.0 - 0.25 - 0.5, 0.25 - 0.25 - 0.5, 3.0, -3.0],
            [2.0, -8.0 - 2 * 0.25 - 0.5, 0.25 - 0.25 - 0.5, 3.0, -3.0],
        ]
    ]
    first = chain_paths(torch.tensor([[0, 0]]))
    assert adjusted(logits, adjustments, first)[0, :, 0].tolist() == [2.0, 2.0 - 0.75, 2.0 - 1.0]


@pytest.mark.parametrize("size", [0, 1, 2, 4])
def test_the_paths_of_a_chain_are_the_proposals_before_each_slot(size: int) -> None:
    chain = list(range(5, 5 + size))
    expected = [[*chain[:slot], *[-1] * (size - slot)] for slot in range(size + 1)]
    assert chain_paths(torch.tensor([chain, chain]).view(2, size).long()).tolist() == [expected] * 2


@pytest.mark.parametrize("prompt", [(4,), (6, 4), (1, 6, 4)])
def test_a_bad_word_is_forbidden_where_the_text_ends_with_its_other_tokens(prompt: tuple[int, ...]) -> None:
    """Across the end of the prompt too, and never before a text that is too short for it."""
    words = ((3,), (4, 5), (6, 4, 0), (1, 6, 4, 2), (4, 0, 7), (0, 1, 6), (2, 4, 8))
    params = _params({"bad_words": words}, vocabulary=9, prompt=prompt)
    for proposals in ([], [0], [0, 1], [1, 6, 4]):
        paths = chain_paths(torch.tensor([proposals]).view(1, -1).long())
        found = bans(params.adjustments, paths)
        assert found is not None
        assert found.shape == (1, len(proposals) + 1, len(words))
        for slot, numbers in enumerate(found[0].tolist()):
            text = (*prompt, *proposals[:slot])
            expected = {word[-1] for word in words if len(word) == 1 or text[1 - len(word) :] == word[:-1]}
            assert {token for token in numbers if token >= 0} == expected


def test_end_tokens_and_bad_words_are_forbidden_together_and_nothing_without_either() -> None:
    asked = {"bad_words": ((3,), (1, 5)), "eos": (0, 7), "min_new_tokens": 1}
    params = _params(asked, {"bad_words": ((2,),)}, vocabulary=8)
    paths = chain_paths(torch.tensor([[1], [0]]))
    found = bans(params.adjustments, paths)
    assert found is not None
    told = [[sorted(token for token in slot if token >= 0) for slot in row] for row in found.tolist()]
    assert told == [[[0, 3, 5, 7], [3, 5]], [[2], [2]]]
    forbidden = adjusted(torch.zeros(2, 2, 8), params.adjustments, paths)
    assert [
        [[token for token, one in enumerate(slot) if one == NEVER] for slot in row] for row in forbidden.tolist()
    ] == told
    assert set(forbidden.flatten().tolist()) == {0.0, NEVER}
    biased = _params({"logit_bias": {2: 1.0}}, vocabulary=8).adjustments
    assert bans(biased, paths[:1]) is None
    assert adjusted(torch.zeros(1, 2, 8), biased, paths[:1]).tolist() == [[[0.0, 0.0, 1.0, 0, 0, 0, 0, 0]] * 2]


def test_the_places_of_adjustments_that_lack_a_part_are_none_there() -> None:
    def places(asked: dict[str, Any]) -> list[bool]:
        adjustments = _params(asked, vocabulary=5).adjustments
        assert adjustments is not None
        return [place is not None for place in adjustments.places]

    text, bias, ends, penalties, words = [True] * 2, [False], [False] * 2, [False] * 5, [False] * 2
    assert places({"logit_bias": {1: 1.0}}) == [*text, True, *ends, *penalties, *words]
    assert places({"eos": (1,), "min_new_tokens": 1}) == text + bias + [True] * 2 + penalties + words
    assert places({"presence_penalty": 1.0}) == text + bias + ends + [True] * 5 + words
    assert places({"bad_words": ((1, 2),)}) == text + bias + ends + penalties + [True] * 2


def test_a_window_and_a_chain_have_the_same_paths() -> None:
    window = Window.chain(torch.tensor([9]), torch.tensor([[4, 5]]), torch.tensor([2]))
    assert window.paths.tolist() == chain_paths(torch.tensor([[4, 5]])).tolist()


def test_of_many_equal_logits_the_lower_ids_are_kept() -> None:
    params = _params({"temperature": 1.0, "top_p": 0.25}, vocabulary=1024)
    found = process(torch.zeros(1, 1, 1024), params)[0, 0].isfinite()
    assert found.nonzero().flatten().tolist() == list(range(256))
