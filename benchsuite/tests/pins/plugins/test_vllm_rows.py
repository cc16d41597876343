"""Pins of test_vllm_rows.py: tests that read what is private."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchsuite.tests.vllm_rig import vllm_config
from specdec import SpecdecError
from specdec_plugins.for_vllm import KEY, SpecdecProposer

ROWS, LENGTH = 3, 32


class _Told:
    """A proposer whose draft notes what it is told, and proposes the place and twice the place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = vllm_config(4, ROWS, LENGTH, 258, {KEY: "ngram"})
        self.proposer: Any = SpecdecProposer(config)
        self.told: list[tuple[Any, ...]] = []
        draft = self.proposer._draft
        monkeypatch.setattr(
            draft, "admit", lambda place, request, prompt: self.told.append(("in", place, request.id, prompt))
        )
        monkeypatch.setattr(draft, "release", lambda place, tokens: self.told.append(("out", place, tokens)))
        monkeypatch.setattr(draft, "look_up", lambda context, place: [[place, 2 * place], [99]])

    def step(self, *rows: tuple[list[int], int]) -> tuple[list[list[int]], list[tuple[Any, ...]]]:
        """One call; each row is its text and how many of its last tokens are new. The proposals, and what was told."""
        lengths, tokens = np.zeros(ROWS, dtype=np.int32), np.zeros((ROWS, LENGTH), dtype=np.int32)
        for row, (text, _) in enumerate(rows):
            tokens[row, : len(text)], lengths[row] = text, len(text)
        self.told.clear()
        found = self.proposer.propose([text[len(text) - new :] for text, new in rows], lengths, tokens)
        return found, [*self.told]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> _Told:
    return _Told(monkeypatch)


def test_rows_keep_their_place_while_others_come_pause_swap_and_leave(told: _Told) -> None:
    assert told.step(([1, 2, 3], 0), ([4, 5, 6], 1)) == ([[], [2, 4]], [("in", 2, 0, (4, 5))]), "a prompt is read"
    found = told.step(([1, 2, 3, 7], 1), ([4, 5, 6, 8, 9], 2))
    assert found == ([[1, 2], [2, 4]], [("in", 1, 1, (1, 2, 3))])
    assert told.step(([4, 5, 6, 8, 9, 1], 1), ([1, 2, 3, 7, 2], 1)) == ([[2, 4], [1, 2]], []), "they have swapped"
    found = told.step(([1, 2, 3, 7, 2, 3], 1))
    assert found == ([[1, 2]], [("out", 2, (4, 5, 6, 8, 9, 1))])
    assert told.step() == ([], [("out", 1, (1, 2, 3, 7, 2, 3))])
    assert told.step(([1, 2], 1)) == ([[2, 4]], [("in", 2, 2, (1,))])


def test_rows_with_equal_texts_have_a_place_each(told: _Told) -> None:
    told.step(([1, 2], 1), ([3, 4], 1))
    found, changes = told.step(([3, 4, 5], 1), ([3, 4, 5], 1), ([1, 2, 6], 1))
    assert found == [[1, 2], [0, 0], [2, 4]]
    assert changes == [("in", 0, 2, (3, 4))], "the second of them is new, and none has left"
    found, changes = told.step(([3, 4, 5, 6], 1), ([3, 4, 5, 6], 1), ([1, 2, 6, 7], 1))
    assert (found, changes) == ([[1, 2], [0, 0], [2, 4]], [])


def test_a_row_of_another_length_or_of_other_tokens_is_another_request(told: _Told) -> None:
    told.step(([1, 2, 3], 1))
    for text, new in (([1, 2, 4, 5], 1), ([1, 2, 4, 5, 6, 7], 1), ([1, 2, 4, 5], 1)):
        _, changes = told.step((text, new))
        assert [change[0] for change in changes] == ["out", "in"]
        assert changes[1][3] == tuple(text[:-new])


@pytest.mark.slow
def test_texts_and_lengths_are_kept_as_whole_numbers(told: _Told) -> None:
    told.step(([1, 2, 3], 1))
    assert (told.proposer._history.dtype, told.proposer._lengths.dtype) == ("int64", "int64")
    assert told.proposer._history[2, :4].tolist() == [1, 2, 3, 0]
    assert told.proposer._lengths.tolist() == [0, 0, 3]
    [[first, _]], _ = told.step(([1, 2, 3, 4], 1))
    assert type(first) is int


def test_room_for_one_proposal_is_used_and_none_is_not_asked_for(told: _Told) -> None:
    assert told.step(([1] * (LENGTH - 2), 1))[0] == [[2, 4]]
    assert told.step(([1] * (LENGTH - 1), 1))[0] == [[]]
    told.proposer._draft.look_up = lambda context, place: []
    assert told.step(([1, 2], 1))[0] == [[]]


def test_a_configuration_without_anything_additional_names_no_draft() -> None:
    config = vllm_config(4, ROWS, LENGTH, 258, {})
    config.additional_config = None
    with pytest.raises(SpecdecError, match=r"^SpecdecProposer was given no draft \(got None\); name one"):
        SpecdecProposer(config)


def test_a_model_that_is_loaded_changes_nothing(told: _Told) -> None:
    told.proposer.load_model("a model", more=1)
    assert told.step(([1, 2], 1)) == ([[2, 4]], [("in", 2, 0, (1,))])
