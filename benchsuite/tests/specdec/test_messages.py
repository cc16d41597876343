"""Windows and verdicts against walks over lists: ancestors, depths, paths, first good children, emitted tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from specdec import SpecdecError
from specdec.ledger import stacked
from specdec.messages import Context, Verdict, Window
from specdec.request import Request, SamplingParams
from specdec.sampling import Purpose
from specdec_kernels.reference import Reference


def _walk(parents: list[int], node: int) -> list[int]:
    """The slots from the root to a node, by its parents."""
    up = [node]
    while up[-1]:
        up.append(parents[up[-1]])
    return up[::-1]


def _padded(values: list[int], size: int) -> list[int]:
    return [*values, *[-1] * (size - len(values))]


def _grown(size: int, rows: int, coin: random.Random) -> Window:
    """Trees of ``size`` slots, the first row a chain, with widths from 1 to ``size``."""
    parents = [
        [-1, *(slot - 1 if row == 0 else coin.randrange(max(0, slot - 3), slot) for slot in range(1, size))]
        for row in range(rows)
    ]
    tokens = [[coin.randrange(50) for _ in range(size)] for _ in range(rows)]
    width = [size, *(coin.randint(1, size) for _ in range(rows - 1))]
    return Window(torch.tensor(tokens), torch.tensor(parents), torch.tensor(width))


@pytest.mark.parametrize("size", range(1, 10))
def test_a_window_knows_ancestors_depths_and_paths_as_a_walk_over_its_parents_does(size: int) -> None:
    coin = random.Random(size)
    window = _grown(size, 12, coin)
    for row, (tokens, parents, width) in enumerate(
        zip(window.tokens.tolist(), window.parents.tolist(), window.width.tolist(), strict=True)
    ):
        walks = [_walk(parents, node) for node in range(size)]
        assert window.ancestors[row].tolist() == [[slot in walk for slot in range(size)] for walk in walks]
        assert window.depth[row].tolist() == [len(walk) - 1 for walk in walks]
        assert window.deepest[row].item() == max(len(walk) - 1 for walk in walks[:width])
        assert window.paths[row].tolist() == [_padded([tokens[slot] for slot in walk[1:]], size - 1) for walk in walks]
        for node in range(size):
            found = window.path_to(torch.full((12,), node))
            assert found[row].tolist() == _padded(walks[node], size)
    assert window.paths.dtype == window.path_to(torch.zeros(12, dtype=torch.int64)).dtype == torch.int64
    assert window.paths.shape == (12, size, size - 1)


@pytest.mark.parametrize("size", range(1, 7))
def test_a_first_good_child_replaces_the_choice_of_its_parent_alone(size: int) -> None:
    coin = random.Random(100 + size)
    window = _grown(size, 40, coin)
    good = torch.tensor([[coin.random() < 0.5 for _ in range(size)] for _ in range(40)])
    choices = torch.tensor([[100 + coin.randrange(50) for _ in range(size)] for _ in range(40)])
    expected = choices.tolist()
    for row in range(40):
        for slot in reversed(range(1, int(window.width[row]))):  # the first child writes last
            if good[row, slot]:
                expected[row][int(window.parents[row, slot])] = int(window.tokens[row, slot])
    assert window.prefer(good, choices).tolist() == expected


def test_a_chain_is_the_pending_token_and_its_proposals() -> None:
    q = torch.rand(2, 2, 5)
    window = Window.chain(torch.tensor([5, 6]), torch.tensor([[7, 8], [9, 0]]), torch.tensor([2, 1]), q)
    assert window.tokens.tolist() == [[5, 7, 8], [6, 9, 0]]
    assert window.parents.tolist() == [[-1, 0, 1], [-1, 0, 1]]
    assert window.width.tolist() == [3, 2]
    assert window.q is q


def test_a_copy_has_its_own_numbers_and_takes_over_those_of_another() -> None:
    q = torch.rand(1, 2, 5)
    window = Window.chain(torch.tensor([5]), torch.tensor([[7, 8]]), torch.tensor([2]), q)
    other = Window(torch.tensor([[1, 2, 3]]), torch.tensor([[-1, 0, 0]]), torch.tensor([2]), torch.rand(1, 2, 5))
    certain = replace(other, q=None)
    copied = window.copied()
    assert [t.tolist() for t in (copied.tokens, copied.parents, copied.width)] == [[[5, 7, 8]], [[-1, 0, 1]], [3]]
    assert copied.q is not None
    assert copied.q is not q
    assert torch.equal(copied.q, q)
    assert copied.parents.is_contiguous(), "the parents of a chain are one row, shown in all of them"
    copied.copy_(certain)
    assert torch.equal(copied.q, q), "nothing was given for it"
    copied.copy_(other)
    assert other.q is not None
    for mine, given in zip(
        (copied.tokens, copied.parents, copied.width, copied.q),
        (other.tokens, other.parents, other.width, other.q),
        strict=True,
    ):
        assert torch.equal(mine, given)
    assert window.tokens.tolist() == [[5, 7, 8]]
    assert certain.copied().q is None
    sure = certain.copied()
    sure.copy_(window)
    assert sure.q is None
    assert sure.tokens.tolist() == [[5, 7, 8]]


def test_a_depth_that_was_computed_elsewhere_is_not_computed_again() -> None:
    window = Window.chain(torch.tensor([5]), torch.tensor([[7]]), torch.tensor([1]))
    given = torch.tensor([[0, 1]])
    window.remember(given)
    assert window.depth is given


def test_emitted_tokens_are_the_accepted_ones_then_the_next() -> None:
    window = Window(
        torch.tensor([[9, 1, 2, 3]] * 4),
        torch.tensor([[-1, 0, 0, 2]] * 4),
        torch.tensor([4] * 4),
    )
    paths = torch.tensor([[0, -1, -1, -1], [0, 1, -1, -1], [0, 2, -1, -1], [0, 2, 3, -1]])
    verdict = Verdict(paths, torch.tensor([0, 1, 1, 2]), torch.tensor([40, 41, 42, 43]))
    emitted = verdict.emitted(window)
    assert emitted.shape == (4, 4)
    assert [row[: count + 1] for row, count in zip(emitted.tolist(), (0, 1, 1, 2), strict=True)] == [
        [40],
        [1, 41],
        [2, 42],
        [2, 3, 43],
    ]
    assert bool(((emitted >= 0) & (emitted < 50)).all()), "ids past the end are valid"
    states = torch.arange(4 * 4 * 3).view(4, 4, 3)
    assert verdict.last(states).tolist() == [states[row, slot].tolist() for row, slot in enumerate((0, 1, 2, 3))]


def test_a_verdict_of_the_root_alone_emits_the_next_token() -> None:
    verdict = Verdict(torch.tensor([[0]]), torch.tensor([0]), torch.tensor([4]))
    assert verdict.emitted(Window.chain(torch.tensor([5]), torch.zeros(1, 0).long(), torch.tensor([0]))).tolist() == [
        [4]
    ]


def _context(*params: SamplingParams, coupled: bool = False) -> Context:
    """Rows of 3, 4, … tokens, of at most 8."""
    asked = [Request(10 + row, tuple(range(row, row + 3 + row)), one) for row, one in enumerate(params)]
    length = np.array([len(request.prompt) for request in asked])
    history = np.zeros((len(asked), 8), dtype=np.int64)
    for row, request in enumerate(asked):
        history[row, : len(request.prompt)] = request.prompt
    return Context(
        request=torch.tensor([request.id for request in asked]),
        tokens=torch.tensor(history),
        history=history,
        length=torch.tensor(length),
        length_host=length,
        max_proposals=torch.full((len(asked),), 4),
        max_proposals_host=np.full(len(asked), 4),
        params=stacked(asked, 12, torch.device("cpu")),
        ops=Reference(),
        coupled=coupled,
    )


GREEDY, WARM = SamplingParams(), SamplingParams(temperature=1.0)


def test_a_window_of_the_host_s_proposals_is_padded_to_the_longest_row() -> None:
    context = _context(GREEDY, GREEDY, GREEDY)
    chains = Window.ragged(context, [[7], [], [8, 9, 1]])
    assert chains.tokens.tolist() == [[2, 7, 0, 0], [4, 0, 0, 0], [6, 8, 9, 1]]
    assert chains.parents.tolist() == [[-1, 0, 1, 2]] * 3
    assert chains.width.tolist() == [2, 1, 4]
    trees = Window.ragged(context, [[7, 8], [], [8, 9, 1]], [[0, 0], [], [0, 0, 1]])
    assert trees.tokens.tolist() == [[2, 7, 8, 0], [4, 0, 0, 0], [6, 8, 9, 1]]
    assert trees.parents.tolist() == [[-1, 0, 0, 2], [-1, 0, 1, 2], [-1, 0, 0, 1]]
    assert trees.width.tolist() == [3, 1, 4]
    none = Window.ragged(context, [[], [], []])
    assert (none.tokens.tolist(), none.width.tolist()) == ([[2], [4], [6]], [1, 1, 1])
    for window in (chains, trees, none):
        window.check(3, 4, 12, "ours")
        assert window.q is None


def test_the_root_alone_is_the_pending_token() -> None:
    window = Window.root(_context(GREEDY, GREEDY))
    assert window.tokens.tolist() == [[2], [4]]
    assert window.parents.tolist() == [[-1], [-1]]
    assert window.width.tolist() == [1, 1]
    assert window.q is None


def test_a_context_knows_its_rows_pending_tokens_and_step() -> None:
    context = _context(GREEDY, WARM, GREEDY)
    assert context.rows == 3
    assert context.pending.tolist() == [2, 4, 6]
    assert context.step.tolist() == [[3], [4], [5]]


def test_the_kind_of_a_step_is_its_rows_its_filters_and_where_its_adjustments_are() -> None:
    assert _context(GREEDY).kind == (1, True, False, None)
    assert _context(GREEDY, WARM).kind == (2, False, False, None)
    assert _context(SamplingParams(temperature=1.0, top_k=2)).kind == (1, False, True, None)
    biased = _context(SamplingParams(logit_bias={1: 1.0}))
    assert biased.params.adjustments is not None
    assert biased.kind == (1, True, False, biased.params.adjustments.places)


def test_a_draw_has_the_noise_of_its_row_place_purpose_and_number_and_a_greedy_one_none() -> None:
    position = torch.arange(40).view(2, 20)
    logits = torch.zeros(2, 20, 12)
    warm = _context(WARM, WARM)

    def noisy(purpose: Purpose, draw: Any) -> list[list[int]]:
        found: list[list[int]] = (
            Reference().sample(logits, Reference().noise_keys(warm.params.stream, position, draw)[purpose]).tolist()
        )
        return found

    assert warm.choose(logits, position, Purpose.RESIDUAL).tolist() == noisy(Purpose.RESIDUAL, 0)
    assert warm.choose(logits, position, Purpose.RESIDUAL, 3).tolist() == noisy(Purpose.RESIDUAL, 3)
    assert warm.propose_token(logits, position).tolist() == noisy(Purpose.DRAFT, torch.tensor([[3], [4]]))
    assert replace(warm, coupled=True).propose_token(logits, position).tolist() == noisy(Purpose.TARGET, 0)
    assert len({str(noisy(purpose, draw)) for purpose in Purpose for draw in (0, 1, 3)}) == 12
    greedy = _context(GREEDY, GREEDY)
    ranked = torch.arange(12.0).expand(2, 20, 12)
    assert greedy.choose(ranked, position, Purpose.TARGET).tolist() == [[11] * 20] * 2


@pytest.mark.parametrize("shape", [(2,), (2, 3, 1)])
def test_tokens_that_are_no_table_are_refused(shape: tuple[int, ...]) -> None:
    two = torch.zeros(2, 3, dtype=torch.int64)
    window = Window(torch.zeros(shape, dtype=torch.int64), two, two[:, 0])
    with pytest.raises(SpecdecError) as refused:
        window.check(2, 4, 7, "planted")
    assert str(refused.value) == (
        f"draft 'planted' proposed a window that does not fit: got tokens {shape} torch.int64, parents (2, 3) "
        "torch.int64, width (2,) torch.int64, q None, confidence None; expected int64 [2, W], [2, W], [2] with W from "
        "1 to 4, q None or [2, W - 1, 7], and confidence None or floats [2, W]"
    )


@pytest.mark.parametrize("size", [0, 1, 4, 5])
def test_a_window_has_from_one_slot_to_the_widest(size: int) -> None:
    window = Window(
        torch.zeros(2, size, dtype=torch.int64),
        torch.zeros(2, size, dtype=torch.int64),
        torch.ones(2, dtype=torch.int64),
        torch.zeros(2, size - 1, 7) if size else None,
    )
    if size in (1, 4):
        window.check(2, 4, 7, "planted")
        return
    with pytest.raises(SpecdecError, match=rf"got tokens \(2, {size}\)"):
        window.check(2, 4, 7, "planted")
