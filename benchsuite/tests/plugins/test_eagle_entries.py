"""EAGLE's layer reads each state with the token after it, and keeps as many entries as tokens were kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec import Request, Verdict, Window
from specdec.runtime import Eager
from specdec_plugins.drafts.eagle import Eagle


class _Layer:
    """A layer whose estimate is 1000 times the state that it reads plus the token beside it."""

    def turn(self, position: None, dtype: torch.dtype) -> None:
        """No positions."""

    def __call__(self, ops: None, embedded: Tensor, hidden: Tensor, *rest: Any) -> Tensor:
        return 1000 * hidden + embedded


def _eagle(committed: list[int], longest: int = 0, most: int = 99) -> Any:
    """An Eagle's own parts, of rows with so many entries; ``read`` notes each forward: tokens, rows and the bound."""
    draft: Any = object.__new__(Eagle)
    read: list[tuple[list[list[int]], slice, int]] = []

    def plan(window: Window, ops: None, rows: slice, bound: int) -> Any:
        assert window.width.tolist() == [window.tokens.shape[1]] * len(window.tokens)
        read.append((window.tokens.tolist(), rows, bound))
        return SimpleNamespace(position=None, at=lambda layer: layer)

    def reset(row: int) -> None:
        draft._arena.committed[row] = 0

    draft._arena = SimpleNamespace(committed=torch.tensor(committed), plan=plan, reset=reset)
    draft._head, draft._ops, draft._weights = _Layer(), None, None
    draft._embed = lambda tokens: tokens[:, :, None].float()
    draft._state = torch.full((len(committed), 1), 7.0)
    draft._prompts, draft._deferred, draft._proposed = {}, [], None
    draft._longest, draft._most_tokens, draft._asked, draft._forwards = longest, most, 0, 0
    draft._runtime, draft.read = Eager(), read
    return draft


def _hidden(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)[:, :, None]


def _plain(draft: Any, following: list[int], states: list[float]) -> None:
    """A step without proposals."""
    after, none = torch.tensor(following), torch.zeros(len(following)).long()
    window = Window.chain(none, none[:, None][:, :0], none)
    draft.observe(window, Verdict(none[:, None], none, after), _hidden(*[[state] for state in states]))


def test_a_prompts_states_are_read_with_the_tokens_after_them() -> None:
    draft = _eagle([9, 9, 9])
    draft.admit(1, Request(0, (1,)), (11, 12, 13, 14, 15))
    assert (draft._longest, draft._arena.committed.tolist()) == (4, [9, 0, 9])
    assert draft._state[:, 0].tolist() == [7, 0, 7]
    assert (draft._prompts[1].tolist(), draft._prompts[1].dtype) == ([[11, 12, 13, 14, 15]], torch.int64)
    draft.prefilled(1, torch.zeros(1, 1), 0, _hidden([1.0]))
    draft.prefilled(1, torch.zeros(1, 3), 1, _hidden([2.0, 3.0, 4.0]))
    assert draft.read == [([[12]], slice(1, 2), 0), ([[13, 14, 15]], slice(1, 2), 1)]
    assert draft._arena.committed.tolist() == [9, 4, 9]
    assert draft._state[:, 0].tolist() == [7, 4015, 7]
    draft.admit(0, Request(1, (1,)), (11, 12))
    assert draft._longest == 4, "the bound is of the longest row"
    draft.release(1, (1,) * 9)
    draft.release(2, (1,) * 9)
    assert list(draft._prompts) == [0]
    assert draft.info() == {"draft_forwards": 0}


def test_steps_without_proposals_are_read_together_in_their_order() -> None:
    draft = _eagle([5, 8, 3], longest=8, most=10)
    _plain(draft, [21, 22], [1.0, 2.0])
    _plain(draft, [23, 24], [3.0, 4.0])
    _plain(draft, [25, 26], [5.0, 6.0])
    assert (draft.read, draft.info()) == ([], {"draft_forwards": 0})
    draft._catch_up()
    draft._catch_up()
    assert draft.read == [([[21, 23, 25], [22, 24, 26]], slice(0, 2), 8)]
    assert draft.info() == {"draft_forwards": 1}
    assert draft._arena.committed.tolist() == [8, 11, 3]
    assert draft._state[:, 0].tolist() == [5025, 6026, 7]
    assert draft._longest == 10, "no row is longer than a sequence may be"
    draft._longest = 4
    _plain(draft, [27], [9.0])
    draft._catch_up()
    assert draft.read[1:] == [([[27]], slice(0, 1), 4)]
    assert (draft._longest, draft.info()) == (5, {"draft_forwards": 2})
    assert draft._arena.committed.tolist() == [9, 11, 3]


@pytest.mark.parametrize("call", ["admit", "keep", "propose", "release", "observe"])
def test_whatever_needs_a_rows_entries_first_reads_those_that_are_missing(call: str) -> None:
    draft = _eagle([5, 8])
    draft._arena.max_window = 4
    draft._arena.keep = lambda row, length, spare: (row, length, spare, draft._arena.committed.tolist())
    draft._prompts[1] = torch.zeros(1, 1)
    _plain(draft, [21, 22], [1.0, 2.0])
    if call == "admit":
        draft.admit(1, Request(0, (1,)), (1, 2))
        assert draft._arena.committed.tolist() == [6, 0]
        return
    if call == "keep":
        assert draft.keep(1, (1,) * 10) == (1, 9, 4, [6, 9])
    elif call == "release":
        draft.release(1, (1,) * 10)
    elif call == "observe":
        kept = torch.tensor([0, 0])
        window = Window.chain(kept, kept[:, None], kept + 1)
        draft.observe(window, Verdict(torch.tensor([[0, -1]] * 2), kept, kept), _hidden([1.0, 2.0], [3.0, 4.0]))
        assert draft._arena.committed.tolist() == [7, 10]
        return
    else:
        step: Any = SimpleNamespace(length_host=torch.tensor([7, 10]), max_proposals_host=torch.tensor([0, 2]), kind=0)
        draft.branches, draft._most = False, 0
        draft._chain = lambda context, k, longest: (k, longest)
        assert draft.propose(step) == (2, 10)
        assert draft.read[0][2] == 9
    assert draft._arena.committed.tolist() == [6, 9]


def test_the_only_rows_last_steps_are_not_read_when_it_ends() -> None:
    draft = _eagle([5])
    _plain(draft, [21], [1.0])
    draft.release(0, (1,) * 7)
    assert (draft.read, draft._deferred, draft.info()) == ([], [], {"draft_forwards": 0})


def test_after_own_proposals_the_accepted_ones_and_the_next_token_become_entries() -> None:
    """Three proposals to each row, of which none, two or all were accepted."""
    draft = _eagle([5, 6, 7, 9], longest=20)
    window = Window.chain(torch.zeros(3).long(), torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), torch.tensor([3] * 3))
    draft._asked, draft._proposed = 3, window
    path = torch.tensor([[0, -1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]])
    states = _hidden([10.0, 11.0, 12.0, 13.0], [20.0, 21.0, 22.0, 23.0], [30.0, 31.0, 32.0, 33.0])
    draft.observe(window, Verdict(path, torch.tensor([0, 2, 3]), torch.tensor([91, 92, 93])), states)
    [(tokens, rows, bound)] = draft.read
    assert (rows, bound, draft._longest) == (slice(0, 3), 20, 24)
    assert [row[: kept + 1] for row, kept in zip(tokens, [0, 2, 3], strict=True)] == [[91], [4, 5, 92], [7, 8, 9, 93]]
    assert draft._arena.committed.tolist() == [6, 9, 11, 9]
    assert draft._state[:, 0].tolist() == [10091, 22092, 33093, 7]
    assert draft.info() == {"draft_forwards": 1}


@pytest.mark.parametrize(("own", "width"), [(True, 3), (False, 5)])
def test_of_a_trees_window_its_path_is_read_which_is_no_longer_than_was_asked(own: bool, width: int) -> None:
    """Slots 2 and 4 were accepted; another draft's window is read as far as its own path may go."""
    draft = _eagle([5], longest=97)
    tokens, parents = torch.tensor([[0, 1, 2, 3, 4]]), torch.tensor([[-1, 0, 0, 1, 2]])
    window = Window(tokens, parents, torch.tensor([5]))
    draft._asked, draft._proposed = 2, window if own else None
    verdict = Verdict(torch.tensor([[0, 2, 4, -1, -1]]), torch.tensor([2]), torch.tensor([95]))
    draft.observe(window, verdict, _hidden([10.0, 11.0, 12.0, 13.0, 14.0]))
    [(read, _, _)] = draft.read
    assert (read[0][:3], len(read[0])) == ([2, 4, 95], width)
    assert draft._state[:, 0].tolist() == [14095]
    assert draft._arena.committed.tolist() == [8]
    assert draft._longest == 99
