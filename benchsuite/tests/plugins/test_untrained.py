"""Drafts on hidden states, called without an engine: which states they keep, what they propose, count and weigh."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchsuite.conformance.exact.enumerator import context
from specdec import Context, Request, Verdict, Window
from specdec.runtime import Eager
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.eagle_lite import EagleLite
from specdec_plugins.drafts.medusa import Medusa
from specdec_plugins.growth import STEP
from specdec_plugins.reduced import Reduced


def _env(rows: Tensor, max_rows: int = 3, seed: int = 0) -> Any:
    """A target with this head [V, H], whose embeddings are of the same shape."""
    head, embedding = nn.Linear(rows.shape[1], rows.shape[0], bias=False), nn.Embedding(*rows.shape)
    head.weight.data = rows
    embedding.weight.data = rows.clone()
    model = SimpleNamespace(get_output_embeddings=lambda: head, get_input_embeddings=lambda: embedding)
    target = SimpleNamespace(model=model, vocabulary=len(rows), dtype=rows.dtype, device=rows.device)
    return SimpleNamespace(target=target, ops=Reference(), max_rows=max_rows, seed=seed, runtime=Eager())


def _step(rows: int, room: int) -> Context:
    """Greedy rows with room for this many proposals."""
    found = context(Reference(), torch.arange(1, rows + 1))
    params = replace(found.params, temperature=found.params.temperature * 0, greedy=True)
    return replace(found, params=params, max_proposals=found.length * room, max_proposals_host=found.length_host * room)


def _request() -> Request:
    return Request(0, (1,))


def _verdict(accepted: list[int], width: int) -> Verdict:
    kept = torch.tensor(accepted)
    slots = torch.arange(width).expand(len(accepted), -1)
    return Verdict(torch.where(slots <= kept[:, None], slots, -1), kept, torch.zeros_like(kept))


def _lite(alpha: float = 1.0, most: int = 0, reset: bool = False, dtype: torch.dtype = torch.float32) -> EagleLite:
    return EagleLite(_env(torch.eye(4, dtype=dtype)), alpha, most, reset)


def _numbers(states: Tensor) -> list[float]:
    """The first number of each row's state."""
    found: list[float] = states[:, 0].tolist()
    return found


def _states(*numbers: list[float]) -> Tensor:
    """Hidden states [B, W, 4], each of one number, which is not 0 for any slot."""
    return torch.tensor(numbers)[:, :, None].expand(-1, -1, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eagle_without_weights_weighs_its_head_and_keeps_states_of_the_targets_kind(dtype: torch.dtype) -> None:
    draft = _lite(dtype=dtype)
    assert draft.weight_bytes == 16 * dtype.itemsize
    for states in (draft._last, draft._before):
        assert (states.shape, states.dtype, int(states.count_nonzero())) == ((3, 4), dtype, 0)
    assert draft.keep(0, (1, 2)) == ()


def test_eagle_without_weights_keeps_the_last_two_states_of_a_prompt_in_chunks_of_any_size() -> None:
    draft = _lite()
    draft._last[:], draft._before[:] = 70, 80
    draft.admit(1, _request(), (1, 2))
    assert (_numbers(draft._last), _numbers(draft._before)) == ([70, 0, 70], [80, 0, 80])
    found = []
    for chunk in ([1.0], [2.0], [3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0]):
        draft.prefilled(1, torch.zeros(1, len(chunk)), 0, _states(chunk))
        found.append((_numbers(draft._before), _numbers(draft._last)))
    pairs = [(0.0, 1.0), (1.0, 2.0), (3.0, 4.0), (7.0, 8.0), (8.0, 9.0)]
    assert found == [([80, before, 80], [70, last, 70]) for before, last in pairs]
    draft.move(1, 0, _request(), (1, 2))
    assert (_numbers(draft._before), _numbers(draft._last)) == ([8, 8, 80], [9, 9, 70])


@pytest.mark.parametrize(("reset", "before"), [(False, [50.0, 20.0, 32.0]), (True, [10.0, 21.0, 32.0])])
def test_eagle_without_weights_takes_the_difference_from_the_state_before_the_last_accepted_one(
    reset: bool, before: list[float]
) -> None:
    """Rows of a window of three proposals: none is accepted, one, all. Before the root is what was known."""
    draft = _lite(reset=reset)
    draft._last[:] = 50
    hidden = _states([10.0, 11.0, 12.0, 13.0], [20.0, 21.0, 22.0, 23.0], [30.0, 31.0, 32.0, 33.0])
    window = Window.chain(torch.zeros(3).long(), torch.zeros(3, 3).long(), torch.tensor([3, 3, 3]))
    draft.observe(window, _verdict([0, 1, 3], 4), hidden)
    assert (_numbers(draft._last), _numbers(draft._before)) == ([10, 21, 33], before)


def test_a_window_that_was_kept_whole_is_no_rejection_however_short_and_other_rows_stay() -> None:
    draft = _lite(reset=True)
    draft._last[:], draft._before[:] = 50, 60
    window = Window.chain(torch.zeros(2).long(), torch.zeros(2, 2).long(), torch.tensor([0, 1]))
    draft.observe(window, _verdict([0, 1], 3), _states([10.0, 11.0, 12.0], [20.0, 21.0, 22.0]))
    assert (_numbers(draft._last), _numbers(draft._before)) == ([10, 21, 50], [50, 20, 60])


def test_eagle_without_weights_counts_a_forward_for_each_proposal_up_to_its_own_most() -> None:
    for most, expected in ((0, [0, 3, 4, 9]), (2, [0, 2, 3, 5]), (9, [0, 3, 4, 9])):
        draft = _lite(most=most)
        found, proposed = [dict(draft.info())], 0
        for room in (3, 1, 5):
            window = draft.propose(_step(2, room))
            proposed += window.tokens.shape[1] - 1
            found.append(dict(draft.info()))
            assert found[-1] == {"draft_forwards": proposed}
        assert found == [{"draft_forwards": count} for count in expected]


def test_eagle_without_weights_proposes_the_largest_number_of_each_extrapolated_state() -> None:
    """0 0 3 0 after 4 0 0 0 with alpha 0.5: the differences are (-4, 0, 3, 0) halved again and again."""
    draft = _lite(alpha=0.5)
    draft._before[0], draft._last[0] = torch.tensor([4.0, 0, 0, 0]), torch.tensor([0.0, 0, 3, 0])
    draft._before[1], draft._last[1] = torch.tensor([0.0, 0, 0, 0]), torch.tensor([0.0, 9, 0, 8])
    draft._before[1, 1] = 16.0  # 9 - 3.5 is below 8 + 4
    assert draft.propose(_step(2, 3)).tokens[:, 1:].tolist() == [[2, 2, 2], [3, 3, 3]]
    assert _numbers(draft._last[:2]) == [0, 0], "what is proposed is not kept"


@pytest.mark.parametrize(
    ("dtype", "read", "size"),
    [(torch.float32, torch.bfloat16, 2), (torch.bfloat16, torch.bfloat16, 2), (torch.float64, torch.float64, 8)],
)
def test_a_reduced_vocabulary_reads_its_own_rows_in_half_the_bytes(
    dtype: torch.dtype, read: torch.dtype, size: int
) -> None:
    reduced = Reduced(_env(torch.arange(12, dtype=dtype).view(4, 3)), torch.tensor([3, 1]))
    assert (reduced.vocabulary, reduced.ids.tolist(), reduced.weight_bytes) == (4, [3, 1], 6 * size)
    rows: Any = reduced._rows
    assert (rows.dtype, rows.tolist()) == (read, [[9, 10, 11], [3, 4, 5]])
    found = reduced.logits(torch.tensor([[1.0, 0, 0], [0, 0, 1]], dtype=dtype))
    assert (found.dtype, found.tolist()) == (torch.float32, [[9, 3], [11, 5]])
    reduced.read_with(torch.eye(3))
    assert reduced.weight_bytes == 36
    assert reduced.logits(torch.tensor([4.0, 5, 6])).tolist() == [4, 5, 6]


def _medusa(rows: Tensor | None = None, **options: Any) -> Medusa:
    return Medusa(_env(torch.eye(4) if rows is None else rows), **options)


@pytest.mark.parametrize(("init", "heads"), [(init, heads) for init in ("tie", "copy", "random") for heads in (1, 3)])
def test_untrained_heads_weigh_their_matrices_and_the_head_that_they_read_with(init: str, heads: int) -> None:
    draft = _medusa(torch.randn(5, 4, dtype=torch.float64), num_heads=heads, head_init=init)
    assert draft.weight_bytes == 8 * (heads * 4 * 4 + 5 * 4)
    assert (draft._hidden.shape, draft._hidden.dtype) == ((3, 4), torch.float64)
    assert draft.keep(0, (1, 2)) == ()


def test_heads_run_once_for_each_window_however_deep() -> None:
    draft = _medusa(num_heads=2)
    found, widths = [dict(draft.info())], []
    for room in (1, 5, 2):
        widths.append(draft.propose(_step(2, room)).tokens.shape[1])
        found.append(dict(draft.info()))
    assert widths == [2, 3, 3]
    assert found == [{"draft_forwards": count} for count in range(4)]


def test_heads_read_the_last_state_that_a_row_was_told_of() -> None:
    draft = _medusa()
    draft._hidden[:] = 50
    draft.admit(1, _request(), (1,))
    assert _numbers(draft._hidden) == [50, 0, 50]
    draft.prefilled(1, torch.zeros(1, 3), 0, _states([1.0, 2.0, 3.0]))
    assert _numbers(draft._hidden) == [50, 3, 50]
    draft.move(1, 0, _request(), (1,))
    assert _numbers(draft._hidden) == [3, 3, 50]
    window = Window.chain(torch.zeros(2).long(), torch.zeros(2, 2).long(), torch.tensor([2, 2]))
    draft.observe(window, _verdict([0, 2], 3), _states([10.0, 11.0, 12.0], [20.0, 21.0, 22.0]))
    assert _numbers(draft._hidden) == [10, 22, 50]


def test_equal_tokens_stay_up_to_the_mass_before_them_and_1_leaves_all() -> None:
    equal = torch.zeros(1, 1, 4)
    left = [int(_medusa(top_p=top_p)._warped(equal).isfinite().sum()) for top_p in (0.2, 0.25, 0.26, 0.5, 0.75, 1.0)]
    assert left == [1, 1, 2, 2, 3, 4]
    sure = torch.tensor([[[0.0, -1000.0]]])
    assert _medusa(top_p=1.0)._warped(sure).tolist() == sure.tolist()
    assert _medusa(top_p=0.999)._warped(sure).tolist() == [[[0.0, -torch.inf]]]


def test_each_heads_logits_are_divided_and_cut_by_themselves() -> None:
    """Probabilities 0.5, 0.3, 0.2 in any order; with 0.6, the two likeliest stay."""
    orders = list(itertools.permutations([0.5, 0.3, 0.2]))
    logits = torch.tensor(orders).log().view(2, 3, 3)
    found = _medusa(top_p=0.6, temperature=2.0)._warped(2 * logits)
    expected = torch.where(logits.exp() > 0.25, logits, -torch.inf)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("room", [1, 2, 3, 6, 10, 12])
def test_a_tree_of_heads_takes_each_depth_from_its_own_head(room: int) -> None:
    """Beam 2 and three heads: two nodes, then twice four, of which two are expanded; the likeliest are proposed."""
    draft = _medusa(
        torch.randn(6, 4, generator=torch.Generator().manual_seed(5)), num_heads=3, head_init="random", beam=2
    )
    draft._hidden[0] = torch.tensor([0.7, -1.2, 0.4, 2.0])
    assert draft._untrained is not None
    chances = draft._reduced.logits(draft._untrained(draft._hidden[:1]))[0].log_softmax(dim=-1).tolist()
    nodes: list[tuple[tuple[int, ...], float]] = []
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for head in chances[: min(room, 3)]:
        best = torch.tensor(head).topk(2).indices.tolist()
        new = [((*path, token), score + head[token] - STEP) for path, score in frontier for token in best]
        nodes += new
        kept = sorted(sorted(range(len(new)), key=lambda i: -new[i][1])[:2])
        frontier = [new[i] for i in kept]
    likeliest = sorted(sorted(range(len(nodes)), key=lambda i: -nodes[i][1])[:room])
    window = draft.propose(_step(1, room))
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(window.tokens[0, 1:].tolist(), window.parents[0, 1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    assert paths[1:] == [nodes[i][0] for i in likeliest]
    assert int(window.width[0]) == len(paths) == min(room, len(nodes)) + 1
    assert draft.info() == {"draft_forwards": 1}
