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
from specdec import Context, Draft, Request, Verdict, Window
from specdec.runtime import Eager
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.eagle_lite import EagleLite
from specdec_plugins.drafts.medusa import Medusa, untrained
from specdec_plugins.growth import STEP
from specdec_plugins.reduced import Reduced

STATES = 80
"""How many hidden states a test can tell apart."""


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


def _lite(alpha: float = -1.0, most: int = 0, reset: bool = False, dtype: torch.dtype = torch.float32) -> EagleLite:
    return EagleLite(_env(torch.eye(STATES, dtype=dtype)), alpha, most, reset)


def _states(*numbers: list[int]) -> Tensor:
    """Hidden states [B, W, H], of which number n has its 1 at place n: the head of ones reads the token n from it."""
    return nn.functional.one_hot(torch.tensor(numbers), STATES).float()


def _known(draft: Draft, rows: int = 3) -> list[tuple[int, int]]:
    """The last two states of each row: with alpha -1, the first is extrapolated to the one before, and this back."""
    before, last = draft.propose(_step(rows, 2)).tokens[:, 1:].T.tolist()
    return list(zip(before, last, strict=True))


def _told(draft: Draft, *pairs: tuple[int, int]) -> None:
    """Each row has read a prompt with these two states at its end."""
    for row, pair in enumerate(pairs):
        draft.admit(row, _request(), (1, 2, 3))
        draft.prefilled(row, torch.zeros(1, 2), 0, _states([*pair]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eagle_without_weights_weighs_its_head_and_goes_on_with_nothing_kept(dtype: torch.dtype) -> None:
    draft = _lite(dtype=dtype)
    assert draft.weight_bytes == STATES**2 * dtype.itemsize
    assert draft.keep(0, (1, 2)) == ()


def test_eagle_without_weights_keeps_the_last_two_states_of_a_prompt_in_chunks_of_any_size() -> None:
    draft = _lite()
    _told(draft, (70, 71), (72, 73), (74, 75))
    draft.admit(1, _request(), (1, 2))
    assert _known(draft) == [(70, 71), (0, 0), (74, 75)], "of states that are 0, the first token is read"
    for chunk, pair in (([1], (0, 1)), ([2], (1, 2)), ([3, 4], (3, 4)), ([5, 6, 7, 8], (7, 8)), ([9], (8, 9))):
        draft.prefilled(1, torch.zeros(1, len(chunk)), 0, _states(chunk))
        assert _known(draft) == [(70, 71), pair, (74, 75)]
    draft.move(1, 0, _request(), (1, 2))
    assert _known(draft) == [(8, 9), (8, 9), (74, 75)]


@pytest.mark.parametrize(("reset", "before"), [(False, [50, 20, 32]), (True, [10, 21, 32])])
def test_eagle_without_weights_takes_the_difference_from_the_state_before_the_last_accepted_one(
    reset: bool, before: list[int]
) -> None:
    """Rows of a window of three proposals: none is accepted, one, all. Before the root is what was known."""
    draft = _lite(reset=reset)
    _told(draft, *[(49, 50)] * 3)
    hidden = _states([10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33])
    window = Window.chain(torch.zeros(3).long(), torch.zeros(3, 3).long(), torch.tensor([3, 3, 3]))
    draft.observe(window, _verdict([0, 1, 3], 4), hidden, True)
    assert _known(draft) == list(zip(before, [10, 21, 33], strict=True))


def test_a_window_that_was_kept_whole_is_no_rejection_however_short_and_other_rows_stay() -> None:
    draft = _lite(reset=True)
    _told(draft, *[(60, 50)] * 3)
    window = Window.chain(torch.zeros(2).long(), torch.zeros(2, 2).long(), torch.tensor([0, 1]))
    draft.observe(window, _verdict([0, 1], 3), _states([10, 11, 12], [20, 21, 22]), True)
    assert _known(draft) == [(50, 10), (20, 21), (60, 50)]


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
    draft = EagleLite(_env(torch.eye(4)), 0.5, 0, False)
    pairs = [[[4.0, 0, 0, 0], [0.0, 0, 3, 0]], [[0.0, 16, 0, 0], [0.0, 9, 0, 8]]]  # 9 - 3.5 is below 8 + 4
    for row, pair in enumerate(pairs):
        draft.admit(row, _request(), (1, 2, 3))
        draft.prefilled(row, torch.zeros(1, 2), 0, torch.tensor([pair]))
    for _ in range(2):  # what is proposed is not kept
        assert draft.propose(_step(2, 3)).tokens[:, 1:].tolist() == [[2, 2, 2], [3, 3, 3]]


@pytest.mark.parametrize(
    ("dtype", "size", "nearest"),
    [(torch.float32, 2, 256), (torch.bfloat16, 2, 256), (torch.float64, 8, 257)],
)
def test_a_reduced_vocabulary_reads_its_own_rows_in_half_the_bytes(dtype: torch.dtype, size: int, nearest: int) -> None:
    """257 has no bfloat16 of its own: the nearest is 256."""
    rows = torch.arange(12, dtype=dtype).view(4, 3)
    rows[1, 1] = 257
    reduced = Reduced(_env(rows), torch.tensor([3, 1]))
    assert (reduced.vocabulary, reduced.ids.tolist(), reduced.weight_bytes) == (4, [3, 1], 6 * size)
    found = reduced.logits(torch.eye(3, dtype=dtype))
    assert (found.dtype, found.tolist()) == (torch.float32, [[9, 3], [10, nearest], [11, 5]])
    reduced.read_with(torch.eye(3))
    assert reduced.weight_bytes == 36
    assert reduced.logits(torch.tensor([4.0, 5, 6])).tolist() == [4, 5, 6]


def _medusa(rows: Tensor | None = None, **options: Any) -> Medusa:
    return Medusa(_env(torch.eye(4) if rows is None else rows), **options)


@pytest.mark.parametrize(("init", "heads"), [(init, heads) for init in ("tie", "copy", "random") for heads in (1, 3)])
def test_untrained_heads_weigh_their_matrices_and_the_head_that_they_read_with(init: str, heads: int) -> None:
    draft = _medusa(torch.randn(5, 4, dtype=torch.float64), num_heads=heads, head_init=init)
    assert draft.weight_bytes == 8 * (heads * 4 * 4 + 5 * 4)
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
    draft = _medusa(torch.eye(STATES))

    def known() -> list[int]:
        found: list[int] = draft.propose(_step(3, 1)).tokens[:, 1].tolist()
        return found

    _told(draft, *[(49, 50)] * 3)
    draft.admit(1, _request(), (1,))
    assert known() == [50, 0, 50], "of a state that is 0, the first token is read"
    draft.prefilled(1, torch.zeros(1, 3), 0, _states([1, 2, 3]))
    assert known() == [50, 3, 50]
    draft.move(1, 0, _request(), (1,))
    assert known() == [3, 3, 50]
    window = Window.chain(torch.zeros(2).long(), torch.zeros(2, 2).long(), torch.tensor([2, 2]))
    draft.observe(window, _verdict([0, 2], 3), _states([10, 11, 12], [20, 21, 22]), True)
    assert known() == [10, 22, 50]


def _drawn_from(logits: list[float], **options: float) -> Tensor:
    """The distribution from which heads draw after a state that the target reads these logits from."""
    draft = _medusa(torch.tensor(logits)[:, None], num_heads=1, **options)
    draft.admit(0, _request(), (1, 2))
    draft.prefilled(0, torch.zeros(1, 1), 0, torch.ones(1, 1, 1))
    window = draft.propose(context(Reference()))
    assert window.q is not None
    return window.q[0, 0]


def test_equal_tokens_stay_up_to_the_mass_before_them_and_1_leaves_all() -> None:
    equal = [0.0] * 4
    left = [int(_drawn_from(equal, top_p=top_p).count_nonzero()) for top_p in (0.2, 0.25, 0.26, 0.5, 0.75, 1.0)]
    assert left == [1, 1, 2, 2, 3, 4]
    sure = [0.0, -16.0]
    assert _drawn_from(sure, top_p=1.0)[1] > 0
    assert _drawn_from(sure, top_p=0.999).tolist() == [1, 0]


@pytest.mark.parametrize("order", list(itertools.permutations([2.0, 1.0, 0.5])))
def test_logits_are_divided_before_they_are_cut(order: tuple[float, ...]) -> None:
    """At temperature 2, probabilities 0.48, 0.29, 0.23: with 0.6, the two likeliest stay; at 1, 0.63 is enough."""
    halved = (torch.tensor(order) / 2).exp() * (torch.tensor(order) > 0.75)
    torch.testing.assert_close(_drawn_from([*order], top_p=0.6, temperature=2.0), halved / halved.sum())
    assert _drawn_from([*order], top_p=0.6).tolist() == [float(number == 2) for number in order]


@pytest.mark.parametrize("room", [1, 2, 3, 6, 10, 12])
def test_a_tree_of_heads_takes_each_depth_from_its_own_head(room: int) -> None:
    """Beam 2 and three heads: two nodes, then twice four, of which two are expanded; the likeliest are proposed."""
    env = _env(torch.randn(6, 4, generator=torch.Generator().manual_seed(5)))
    draft, heads, reduced = Medusa(env, 3, "random", beam=2), untrained(env, 3, "random"), Reduced(env, torch.arange(6))
    hidden = torch.tensor([[[0.7, -1.2, 0.4, 2.0]]])
    draft.admit(0, _request(), (1, 2))
    draft.prefilled(0, torch.zeros(1, 1), 0, hidden)
    assert heads.rows is not None
    reduced.read_with(heads.rows)
    chances = reduced.logits(heads(hidden[0]))[0].log_softmax(dim=-1).tolist()
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
