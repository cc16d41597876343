"""Lookup drafts count, share, learn and forget exactly as computed by hand on a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specdec import Request
from specdec_plugins.automaton import REACH, Automaton
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.drafts.suffix import Suffix
from specdec_plugins.lookup import History, Lookup, merged

_ENV: Any = None


def _read(*tokens: int) -> Automaton:
    automaton, state = Automaton(), Automaton.ROOT
    for token in tokens:
        state = automaton.extend(state, token)
    return automaton


def _request(number: int) -> Request:
    return Request(number, (1,))


def _asked(draft: Lookup, row: int, text: Sequence[int], limit: int = 4) -> list[list[int]]:
    return [list(path) for path in draft.continuations(row, np.array(text), limit)]


def test_an_empty_automaton_has_a_root_that_nothing_leads_to() -> None:
    automaton = Automaton()
    assert vars(automaton) == {"after": [{}], "link": [-1], "length": [0], "count": [0], "steps": 0}
    assert automaton.longest(Automaton.ROOT) == Automaton.ROOT == 0


def test_the_automaton_of_three_tokens_has_these_states() -> None:
    """For 7 8 8: 1 is 7, 2 is 7 8, 3 is 7 8 8, and 4 is 8, split off 2, because 8 also occurs after 8."""
    automaton = _read(7, 8, 8)
    assert vars(automaton) == {
        "after": [{7: 1, 8: 4}, {8: 2}, {8: 3}, {}, {8: 3}],
        "link": [-1, 0, 4, 4, 0],
        "length": [0, 1, 2, 3, 1],
        "count": [0, 1, 1, 1, 2],
        "steps": 5,
    }
    assert [automaton.longest(state) for state in range(5)] == [0, 1, 2, 4, 4]


def test_a_second_text_shares_the_states_of_the_first() -> None:
    """After 7 8, a text 8 splits 8 off 7 8; a text 7 then finds its state, which counts one more."""
    automaton = _read(7, 8)
    assert automaton.extend(Automaton.ROOT, 8) == 3
    assert automaton.extend(Automaton.ROOT, 7) == 1
    assert vars(automaton) == {
        "after": [{7: 1, 8: 3}, {8: 2}, {}, {}],
        "link": [-1, 0, 3, 0],
        "length": [0, 1, 2, 1],
        "count": [0, 2, 1, 2],
        "steps": 4,
    }


def test_only_the_longest_strings_of_a_place_are_counted() -> None:
    """Of one token again and again, each place counts its 32 longest ends; the string of n has ends up to n + 31."""
    automaton = _read(*[5] * 40)
    assert REACH == 32
    assert automaton.count == [0, *[min(32, 41 - n) for n in range(1, 41)]]


def test_tokens_after_a_state_share_by_their_counts_and_equally_where_there_are_none() -> None:
    automaton, draft = _read(1, 2, 1, 3, 1, 2, 1, 4), Suffix(_ENV)
    state = automaton.after[Automaton.ROOT][1]
    assert draft._likeliest(automaton, state, 3) == [(2, 0.5), (3, 0.25), (4, 0.25)]
    assert draft._likeliest(automaton, state, 1) == [(2, 0.5)]
    automaton.count = [0] * len(automaton.count)
    assert draft._likeliest(automaton, state, 2) == [(2, 1 / 3), (3, 1 / 3)]


def test_suffix_counts_every_token_of_every_row_once() -> None:
    draft = Suffix(_ENV)
    seen = [dict(draft.info())]
    draft.admit(0, _request(0), (1, 2, 3))
    seen.append(dict(draft.info()))
    draft.admit(1, _request(1), ())
    seen.append(dict(draft.info()))
    _asked(draft, 0, [1, 2, 3, 4])
    seen.append(dict(draft.info()))
    _asked(draft, 1, [8])
    seen.append(dict(draft.info()))
    draft.release(0, (1, 2, 3, 4, 5, 6))
    seen.append(dict(draft.info()))
    draft.release(1, (8,))
    seen.append(dict(draft.info()))
    assert seen == [{"suffix_indexed_tokens": count} for count in (0, 3, 3, 4, 5, 7, 7)]


@pytest.mark.parametrize("learns", [True, False])
def test_a_row_that_ended_or_moved_leaves_nothing_in_its_place(learns: bool) -> None:
    draft = Suffix(_ENV, earlier=learns)
    draft.admit(0, _request(0), (1, 2))
    draft.admit(1, _request(1), (3, 4, 5))
    assert {row: known for row, (_, _, known) in draft._rows.items()} == {0: 2, 1: 3}
    moved = draft._rows[1]
    draft.release(0, (1, 2))
    assert list(draft._rows) == [1]
    draft.move(1, 0, _request(1), (3, 4, 5))
    assert draft._rows == {0: moved}
    assert (moved[0] is draft._shared) is learns
    draft.release(0, (3, 4, 5))
    assert draft._rows == {}


@pytest.mark.parametrize(("learns", "found"), [(True, [[7, 8]]), (False, [])])
def test_a_prompt_is_known_to_other_rows_from_its_admission(learns: bool, found: list[list[int]]) -> None:
    """Before the row proposes for the first time, and also if it never does."""
    draft = Suffix(_ENV, earlier=learns)
    draft.admit(0, _request(0), (5, 6, 7, 8))
    draft.admit(1, _request(1), ())
    assert _asked(draft, 1, [5, 6]) == found


def test_what_was_learnt_is_gone_once_it_is_forgotten() -> None:
    draft = Suffix(_ENV)
    draft.admit(0, _request(0), (5, 6, 7))
    draft.release(0, (5, 6, 7))
    draft.forget()
    assert vars(draft._shared) == vars(Automaton())
    draft.admit(0, _request(1), (5, 6))
    assert _asked(draft, 0, [5, 6]) == []
    assert draft.info() == {"suffix_indexed_tokens": 5}, "tokens are counted, not kept"


def test_a_short_match_proposes_one_token_however_small_the_factor() -> None:
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    lengths = []
    for factor in (0.01, 0.34, 0.66, 0.67, 1.0, 1.4):
        draft = Suffix(_ENV, factor=factor)
        draft.admit(0, _request(0), ())
        lengths.append([len(path) for path in _asked(draft, 0, text, 9)])
    assert lengths == [[1], [1], [1], [2], [3], [4]]


class _Fixed(Lookup):
    """Answers with the same paths and notes what it was asked."""

    def __init__(self, most: int, paths: list[list[int]]) -> None:
        super().__init__(most)
        self.paths, self.asked = paths, list[tuple[int, list[int], int]]()

    def continuations(self, row: int, history: History, limit: int) -> Sequence[Sequence[int]]:
        self.asked.append((row, history.tolist(), limit))
        return self.paths


def _rooms(*rooms: int) -> Any:
    """A step of rows whose texts are 1, 2 and so on tokens long, with this room for proposals."""
    count = len(rooms)
    return SimpleNamespace(
        rows=count,
        history=np.arange(10 * count).reshape(count, 10),
        length_host=np.arange(1, count + 1),
        max_proposals_host=np.array(rooms),
        tokens=torch.zeros(count, 10, dtype=torch.int64),
        pending=torch.arange(90, 90 + count),
    )


def test_a_row_is_looked_up_by_its_own_text_unless_it_has_no_room() -> None:
    draft = _Fixed(1, [[5, 6], [7]])
    window = draft.propose(_rooms(0, 1, 2))
    assert draft.asked == [(1, [10, 11], 1), (2, [20, 21, 22], 2)]
    assert window.tokens.tolist() == [[90, 0, 0], [91, 5, 6], [92, 5, 6]]
    assert window.parents.tolist() == [[-1, 0, 1]] * 3
    assert window.width.tolist() == [1, 3, 3]


def test_several_continuations_are_a_tree_within_the_room_of_each_row() -> None:
    draft = _Fixed(2, [[5, 6], [7]])
    window = draft.propose(_rooms(3, 2, 1))
    assert window.tokens.tolist() == [[90, 5, 7, 6], [91, 5, 7, 0], [92, 5, 0, 0]]
    assert [window.parents[row, : int(window.width[row])].tolist() for row in range(3)] == [
        [-1, 0, 0, 1],
        [-1, 0, 0],
        [-1, 0],
    ]
    assert [draft.branches, _Fixed(1, []).branches, _Fixed(3, []).branches] == [True, False, True]


def test_rows_without_any_match_have_a_window_of_the_pending_token() -> None:
    for most in (1, 2):
        window = _Fixed(most, []).propose(_rooms(4, 4))
        assert (window.tokens.tolist(), window.width.tolist()) == ([[90], [91]], [1, 1])


@pytest.mark.parametrize(
    ("paths", "limit", "tokens", "parents"),
    [
        ([[]], 3, [], []),
        ([[4]], 1, [4], [0]),
        ([[4]], 0, [], []),
        ([[4, 4, 4]], 9, [4, 4, 4], [0, 1, 2]),
        ([[1, 2], [1, 2]], 9, [1, 2], [0, 1]),
        ([[1, 2], [3, 2], [1, 5, 6]], 9, [1, 3, 2, 2, 5, 6], [0, 0, 1, 2, 1, 5]),
        ([[1, 2], [3, 2], [1, 5, 6]], 4, [1, 3, 2, 2], [0, 0, 1, 2]),
    ],
)
def test_a_merged_tree_has_each_beginning_once(
    paths: list[list[int]], limit: int, tokens: list[int], parents: list[int]
) -> None:
    assert merged(paths, limit) == (tokens, parents)


@pytest.mark.parametrize(
    ("text", "sizes", "branches", "expected"),
    [
        ([], (1, 1), 1, []),
        ([3], (1, 1), 1, []),
        ([3, 3], (1, 1), 1, [[3]]),
        ([1, 2, 1, 2], (2, 2), 1, [[1, 2]]),
        ([1, 2, 3, 1, 2], (3, 3), 1, []),
        ([1, 2, 3, 9, 1, 2], (4, 2), 1, [[3, 9, 1]]),
        ([1, 4, 1, 5, 1, 4, 1], (1, 1), 1, [[4, 1]]),
        ([1, 4, 1, 5, 1, 4, 1], (1, 1), 2, [[4, 1], [5, 1, 4]]),
        ([1, 4, 1, 5, 1, 4, 1], (1, 1), 3, [[4, 1], [5, 1, 4]]),
    ],
)
def test_ngram_finds_these_continuations_of_short_texts(
    text: list[int], sizes: tuple[int, int], branches: int, expected: list[list[int]]
) -> None:
    most, least = sizes
    assert Ngram(_ENV, most, least, branches).continuations(0, np.array(text, dtype=np.int64), 3) == expected
