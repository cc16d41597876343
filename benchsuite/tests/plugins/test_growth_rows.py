"""A tree of several rows is each row's own, a node at the limit is left out, and forecasts begin from nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import context
from specdec import Context, Window
from specdec_kernels.reference import Reference
from specdec_plugins.forecast import Times
from specdec_plugins.growth import STEP, Forest, Growth


def _rows(*rooms: int) -> Context:
    """Rows with this room each; their pending tokens are 0."""
    found = context(Reference(), torch.arange(1, len(rooms) + 1))
    return replace(found, max_proposals=torch.tensor(rooms))


def _grown(first: Tensor, after: list[Tensor], ids: Tensor | None, beam: int, widths: list[int]) -> Growth:
    growth = Growth(first, ids, beam, widths)
    for distribution in after:
        growth.expand(distribution)
    return growth


def _valid(window: Window, row: int) -> tuple[list[int], list[int]]:
    width = int(window.width[row])
    return window.tokens[row, :width].tolist(), window.parents[row, :width].tolist()


@pytest.mark.parametrize(("beam", "widths"), [(1, []), (2, []), (3, []), (4, [2, 2, 1])])
@pytest.mark.parametrize("least", [0.0, 0.05])
@pytest.mark.parametrize("reduced", [False, True])
def test_a_rows_tree_does_not_depend_on_the_rows_beside_it(
    beam: int, widths: list[int], least: float, reduced: bool
) -> None:
    """Three rows of other distributions and other room, grown together and one by one."""
    generator, ids = torch.Generator().manual_seed(1), torch.tensor([8, 2, 6, 4]) if reduced else None
    frontier = [min(beam, 4), beam] if not widths else [2, 4]

    def drawn(*shape: int) -> Tensor:
        return (2 * torch.randn(*shape, 4, generator=generator)).log_softmax(dim=-1)

    first, after = drawn(3), [drawn(3, size) for size in frontier]
    rooms = (2, 5, 9)
    together = _grown(first, after, ids, beam, widths)
    window = together.window(_rows(*rooms), 7, least)
    for row, room in enumerate(rooms):
        own = slice(row, row + 1)
        alone = _grown(first[own], [one[own] for one in after], ids, beam, widths)
        for name in ("tokens", "parents", "score", "frontier", "paths"):
            assert torch.equal(getattr(together, name)[own], getattr(alone, name)), name
        assert _valid(window, row) == _valid(alone.window(_rows(room), min(room, 7), least), 0)
    assert {tensor.dtype for tensor in (window.tokens, window.parents, window.width)} == {torch.int64}


def test_nodes_of_two_rows_are_these() -> None:
    """Beam 2 over three tokens; each row's nodes in the order in which they are made, with scores of whole paths."""
    first = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]).log()
    growth = Growth(first, torch.tensor([50, 30, 20]), 2)
    assert growth.tokens.tolist() == [[50, 30], [20, 30]]
    assert growth.parents.tolist() == [[-1, -1]] * 2
    assert growth.frontier.tolist() == [[0, 1]] * 2
    assert growth.paths.tolist() == [[[50], [30]], [[20], [30]]]
    growth.expand(torch.tensor([[[0.1, 0.8, 0.1], [0.3, 0.1, 0.6]], [[0.2, 0.5, 0.3], [0.9, 0.06, 0.04]]]).log())
    assert growth.tokens.tolist() == [[50, 30, 30, 50, 20, 50], [20, 30, 30, 20, 50, 30]]
    assert growth.parents.tolist() == [[-1, -1, 0, 0, 1, 1]] * 2
    # Of 0.4, 0.05, 0.18 and 0.09, and of 0.35, 0.21, 0.18 and 0.012.
    assert growth.frontier.tolist() == [[2, 4], [2, 3]]
    assert growth.paths.tolist() == [[[50, 30], [30, 20]], [[20, 30], [20, 20]]]
    chances = [[0.5, 0.3, 0.4, 0.05, 0.18, 0.09], [0.7, 0.2, 0.35, 0.21, 0.18, 0.012]]
    depths = torch.tensor([1, 1, 2, 2, 2, 2])
    torch.testing.assert_close(growth.score, torch.tensor(chances).log() - STEP * depths)
    window = growth.window(_rows(9, 2), 4, 0.0)
    assert _valid(window, 0) == ([0, 50, 30, 30, 20], [-1, 0, 0, 1, 2])
    assert _valid(window, 1) == ([0, 20, 30], [-1, 0, 1]), "the likeliest two are 0.7 and 0.35, one after the other"
    forest = Forest()
    forest.window(Growth(first, None, 2))
    assert forest.nodes is not None
    assert forest.nodes.tolist() == [[0, 1], [0, 1]]


def test_a_node_is_proposed_only_above_the_smallest_chance() -> None:
    growth = Growth(torch.tensor([[0.5, 0.3, 0.2]]).log(), None, 3)
    growth.score = torch.log(torch.tensor([[0.5, 0.25, 0.125]]))
    found = [_valid(growth.window(_rows(9), 3, least), 0)[0] for least in (0.0, 0.1, 0.125, 0.25, 0.5)]
    assert found == [[0, 0, 1, 2], [0, 0, 1, 2], [0, 0, 1], [0, 0], [0]]
    growth.score = torch.tensor([[-torch.inf, -1.0, -torch.inf]])
    assert _valid(growth.window(_rows(9), 3, 0.0), 0) == ([0, 1], [-1, 0])


def test_the_cost_of_one_proposal_is_the_cost_of_each_until_others_are_known() -> None:
    times = Times()
    assert [times.at(key) for key in (0, 1, 5)] == [0.0] * 3
    times.seen(1, 3.0)
    assert [times.at(key) for key in (0, 1, 2, 4)] == [3.0, 3.0, 6.0, 12.0]
    times.seen(3, 5.0)
    assert [times.at(key) for key in (0, 1, 2, 3, 4)] == [3.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("proportional", [False, True])
def test_a_key_that_was_measured_has_its_median_to_the_last_bit(proportional: bool) -> None:
    """0.1 times 3 divided by 3 is not 0.1 in floating point: nothing may be computed where something was measured."""
    times = Times(proportional)
    times.seen(3, 0.1)
    assert times.at(3) == 0.1
    times.seen(6, 0.2)
    assert (times.at(3), times.at(6)) == (0.1, 0.2)
