"""Verdicts about drafts whose q is wrong, and about windows without a proposal: what is drawn is the target's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdec.acceptance import block_verdict, finite, stopping, survival, tree_verdict
from specdec.messages import Verdict, Window
from specdec.sampling import Purpose
from specdec_kernels.reference import Reference

ROWS = 200
METHODS = [block_verdict, tree_verdict]
Method = Callable[..., Verdict]


def _judged(method: Method, p: list[list[float]], q: list[list[float]] | None, tokens: list[int]) -> Verdict:
    """Judge one chain in ``ROWS`` rows, each with noise of its own; p has a row for each slot, q for each proposal."""
    width = len(tokens)
    window = Window.chain(
        torch.full((ROWS,), tokens[0]),
        torch.tensor(tokens[1:], dtype=torch.int64).expand(ROWS, -1),
        torch.full((ROWS,), width - 1),
        None if q is None else torch.tensor(q).view(width - 1, len(p[0])).expand(ROWS, -1, -1),
    )
    keys = Reference().noise_keys(torch.arange(ROWS), torch.arange(width).expand(ROWS, -1), 0)
    return method(
        Reference(),
        torch.tensor(p).expand(ROWS, -1, -1),
        window,
        keys[Purpose.ACCEPT],
        keys[Purpose.RESIDUAL],
        keys[Purpose.TARGET],
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_proposal_that_q_says_cannot_be_drawn_is_refused_and_what_q_lacks_is_drawn(method: Method) -> None:
    found = _judged(method, [[0.2, 0.4, 0.4], [0.2, 0.4, 0.4]], [[0.0, 0.5, 0.5]], [1, 0])
    assert found.num_accepted.tolist() == [0] * ROWS
    assert found.next.tolist() == [0] * ROWS, "p is above q at token 0 alone"


@pytest.mark.parametrize("method", METHODS)
def test_where_p_is_q_all_before_a_proposal_without_a_chance_is_kept_and_the_next_token_is_from_p(
    method: Method,
) -> None:
    p = [0.0, 0.5, 0.5]
    found = _judged(method, [p, p, p], [p, p], [2, 1, 0])
    assert found.num_accepted.tolist() == [1] * ROWS
    assert found.path[:, :2].tolist() == [[0, 1]] * ROWS
    counts = torch.bincount(found.next, minlength=3).tolist()
    assert counts[0] == 0
    assert min(counts[1:]) > 60, "both have the chance 1/2: 60 of 200 is 5.6 standard deviations away"


@pytest.mark.parametrize("method", METHODS)
def test_where_p_is_q_the_whole_chain_is_kept_and_the_next_token_is_from_the_last_slot_s_p(method: Method) -> None:
    p, last = [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]
    found = _judged(method, [p, p, p, last], [p, p, p], [2, 0, 1, 2])
    assert found.num_accepted.tolist() == [3] * ROWS
    assert found.path.tolist() == [[0, 1, 2, 3]] * ROWS
    assert found.next.tolist() == [2] * ROWS


@pytest.mark.parametrize("given", [True, False], ids=["empty q", "no q"])
@pytest.mark.parametrize("method", METHODS)
def test_a_window_of_the_root_alone_draws_from_its_p(method: Method, given: bool) -> None:
    found = _judged(method, [[0.0, 1.0, 0.0]], [] if given else None, [2])
    assert found.num_accepted.tolist() == [0] * ROWS
    assert found.path.tolist() == [[0]] * ROWS
    assert found.next.tolist() == [1] * ROWS


@pytest.mark.parametrize("method", METHODS)
def test_a_certain_proposal_is_refused_for_a_token_that_is_not_it(method: Method) -> None:
    found = _judged(method, [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], None, [0, 1])
    kept = found.num_accepted.tolist()
    assert 60 < sum(kept) < 140
    assert found.next.tolist() == [0 if one else 2 for one in kept]


def test_the_shares_that_survive_and_stop_are_those_computed_by_hand() -> None:
    p = torch.tensor([[[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]])
    q = torch.tensor([[[0.25, 0.5, 0.25], [0.25, 0.5, 0.25], [0.25, 0.5, 0.25]]])
    window = Window.chain(torch.tensor([0]), torch.tensor([[1, 0, 1]]), torch.tensor([3]), q)
    kept = survival(p, window)
    # p/q is 1/2 at token 1 and 2 at token 0; what survives is never above 1.
    assert kept.tolist() == [[1.0, 0.5, 1.0, 0.5]]
    # sum max(r p - q, 0): 0.25 at r = 1, 0 at r = 1/2 (there r p is [0.25, 0.125, 0.125]); then s / (s + 1 - r).
    assert stopping(p, window, kept).tolist() == [[1.0, 0.0, 1.0, 0.5]]


def test_the_shares_of_certain_proposals_are_those_computed_by_hand() -> None:
    p = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]])
    window = Window.chain(torch.tensor([0]), torch.tensor([[1, 0]]), torch.tensor([2]))
    kept = survival(p, window)
    assert kept.tolist() == [[1.0, 0.5, 0.125]]
    # r (1 - p(x)) is 0.5, then 0.5 * 0.75; below it 1 - r is added: 0.375 / (0.375 + 0.5).
    assert stopping(p, window, kept).tolist() == [[1.0, pytest.approx(3 / 7), 0.125]]


def test_where_p_is_q_a_chain_stops_nowhere_before_its_end() -> None:
    p = torch.tensor([[[0.25, 0.75]] * 4])
    window = Window.chain(torch.tensor([0]), torch.tensor([[1, 0, 1]]), torch.tensor([3]), p[:, :3])
    kept = survival(p, window)
    assert kept.tolist() == [[1.0] * 4]
    assert stopping(p, window, kept).tolist() == [[1.0] * 4]


def test_the_stop_of_a_row_is_at_its_own_last_proposal() -> None:
    p = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]).expand(3, -1, -1)
    window = Window.chain(torch.tensor([0] * 3), torch.tensor([[1, 0]] * 3), torch.tensor([0, 1, 2]))
    kept = survival(p, window)
    found = stopping(p, window, kept)
    assert [found[row, row].item() for row in range(3)] == [1.0, 0.5, 0.125]


def test_numbers_that_are_not_finite_count_as_nothing_and_the_others_stay() -> None:
    given = torch.tensor([0.25, float("nan"), float("inf"), float("-inf"), 0.75])
    before = given.clone()
    assert finite(given).tolist() == [0.25, 0.0, 0.0, 0.0, 0.75]
    assert torch.equal(given.nan_to_num(7.0), before.nan_to_num(7.0)), "the given tensor is not changed"


def _tree(shape: tuple[int, ...], tokens: list[int], q: Tensor | None, width: int) -> Window:
    """A tree of one shape in every row."""
    return Window(
        torch.tensor(tokens).expand(ROWS, -1),
        torch.tensor((-1, *shape)).expand(ROWS, -1),
        torch.full((ROWS,), width),
        q,
    )


@pytest.mark.parametrize(("width", "accepted"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_only_valid_slots_of_a_tree_are_tried(width: int, accepted: int) -> None:
    """Root 0 with the children 1 and 2, of which 2 is certain in p, and its child 0, which is certain in its p."""
    p = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).expand(ROWS, -1, -1)
    keys = Reference().noise_keys(torch.arange(ROWS), torch.arange(4).expand(ROWS, -1), 0)
    window = _tree((0, 0, 2), [0, 1, 2, 0], None, width)
    found = tree_verdict(Reference(), p, window, keys[Purpose.ACCEPT], keys[Purpose.RESIDUAL], keys[Purpose.TARGET])
    assert found.num_accepted.tolist() == [accepted] * ROWS
    assert found.path.tolist() == [([0, 2, 3][: accepted + 1] + [-1] * 4)[:4]] * ROWS
    assert found.next.tolist() == [[2, 0, 1][accepted]] * ROWS
