"""A draft reads each token that it lacks once, keeps only what was kept, and leaves nothing behind where a row ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import context
from benchsuite.conformance.models.tiny import ask, prompts
from benchsuite.tests.rig import Make, saved_head
from specdec import Request, SamplingParams, Verdict, Window
from specdec.arena import KeptCells
from specdec.processors import Adjustments, Penalties
from specdec.runtime import Eager
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.draft_model import DraftModel
from specdec_plugins.drafts.tree import Tree, _numbers
from specdec_plugins.growth import wanted


class _Echo:
    """A model whose only logit after a token is the token; it notes the windows that it reads."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.windows = vocabulary, list[Window]()
        self.prefilled: list[tuple[int, tuple[int, ...], int]] = []

    def forward(self, arena: Any, window: Window, rows: slice, longest: int) -> tuple[Tensor, None]:
        self.windows.append(window)
        return window.tokens[:, :, None].float(), None

    def prefill(self, arena: Any, row: int, known: tuple[int, ...], first: int) -> list[None]:
        self.prefilled.append((row, known, first))
        return []


def _draft(committed: list[int], most: int = 3, vocabulary: int = 1000, wide: int = 1) -> Any:
    """A draft model's own parts: rows with so many cells, of which ``most`` are written at once."""
    draft: Any = object.__new__(DraftModel)
    noted: list[tuple[Any, ...]] = []
    draft._arena = SimpleNamespace(
        committed=torch.tensor(committed),
        max_window=most,
        noted=noted,
        restore=lambda row, kept, usable: noted.append(("restore", row, usable)),
        keep=lambda row, length, spare: ("kept", row, length, spare),
        move=lambda source, row: noted.append(("move", source, row)),
    )
    draft._model, draft._vocabulary, draft._runtime = _Echo(vocabulary), wide, Eager()
    draft._fed, draft._behind, draft._asked = np.array(committed), 1, 0
    draft._proposed, draft._forwards = None, 0
    return draft


def _texts(*lengths: int, room: int = 8) -> Any:
    """Rows of so many tokens: token i of row r is 100 (r + 1) + i."""
    tokens = torch.arange(room)[None] + 100 * torch.arange(1, len(lengths) + 1)[:, None]
    host = np.array(lengths)
    return SimpleNamespace(tokens=tokens, length=torch.tensor(lengths), length_host=host, rows=len(lengths))


def test_a_forward_reads_the_tokens_after_the_cells_up_to_its_width() -> None:
    """The row that lacks fewer reads on past its end, at the last place where there is one, and keeps no more."""
    draft = _draft([1, 6])
    logits, missing = draft._feed(_texts(5, 8), slice(0, 2), 9, 3)
    assert logits[:, :, 0].tolist() == [[101, 102, 103], [206, 207, 207]]
    assert missing.tolist() == [3, 2]
    assert draft._arena.committed.tolist() == [4, 8]
    [window] = draft._model.windows
    assert window.parents.tolist() == [[-1, 0, 1]] * 2
    assert window.width.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("committed", "lengths", "behind", "widths"),
    [
        ([4], [5], 1, [1]),
        ([2, 4], [5, 5], 3, [3]),
        ([0, 1, 2, 3, 4], [5, 5, 5, 5, 5], 5, [3, 2]),
        ([1, 2, 5], [5, 3, 6], 4, [3, 1]),
        ([0, 6], [7, 7], 7, [3, 3, 1]),
        ([4, 6], [5, 7], 2, [2]),
    ],
)
def test_a_draft_that_caught_up_has_what_follows_each_rows_pending_token(
    committed: list[int], lengths: list[int], behind: int, widths: list[int]
) -> None:
    draft, texts = _draft(committed), _texts(*lengths)
    found = draft._catch_up(texts, behind, 9)
    assert found[:, 0, 0].tolist() == [100 * (row + 1) + length - 1 for row, length in enumerate(lengths)]
    assert found.shape == (len(lengths), 1, 1)
    assert draft._arena.committed.tolist() == lengths
    assert [window.tokens.shape[1] for window in draft._model.windows] == widths


def test_forwards_of_catching_up_are_counted_by_the_widest_window() -> None:
    found = []
    for bound, fed in ((1, 4), (3, 4), (9, 4), (9, 2), (4, 1), (9, 0)):
        draft = _draft([fed, 3])
        draft._behind = bound
        behind = draft._catching_up(_texts(5, 4))
        found.append((behind, draft._forwards))
        assert draft._fed.tolist() == [5, 4]
    assert found == [(1, 1), (1, 1), (1, 1), (3, 1), (4, 2), (5, 2)]
    draft = _draft([4, 3])
    for _ in range(2):
        draft._catching_up(_texts(5))
        draft._fed[:], draft._behind = [4, 3], 9
    assert draft._fed.tolist() == [4, 3]
    assert draft._forwards == 2


def test_only_rows_of_the_step_count_as_read() -> None:
    draft = _draft([4, 1])
    assert draft._catching_up(_texts(5)) == 1
    assert draft._fed.tolist() == [5, 1]


def test_own_proposals_are_rolled_back_to_what_was_accepted() -> None:
    """Of four proposals three were read; the last one never is, so of all four accepted, three stay."""
    draft = _draft([13, 13, 13, 13])
    window = Window.chain(torch.zeros(4).long(), torch.zeros(4, 4).long(), torch.tensor([4, 4, 4, 4]))
    draft._asked, draft._proposed = 4, window
    kept = torch.tensor([0, 2, 3, 4])
    draft.observe(window, Verdict(torch.zeros(4, 5).long(), kept, kept), None)
    assert draft._arena.committed.tolist() == [10, 12, 13, 13]
    assert draft._asked == 0


def test_of_another_drafts_window_the_common_beginning_stays() -> None:
    """Ours is 1 2 3; the windows verified begin with none, one, all of it, or are accepted less far."""
    draft = _draft([12, 12, 12, 12])
    mine = Window.chain(torch.zeros(4).long(), torch.tensor([[1, 2, 3]] * 4), torch.tensor([3] * 4))
    theirs = torch.tensor([[9, 2, 3, 4], [1, 9, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    draft._asked, draft._proposed = 3, mine
    kept = torch.tensor([4, 4, 4, 1])
    window = Window.chain(torch.zeros(4).long(), theirs, torch.tensor([4] * 4))
    draft.observe(window, Verdict(torch.zeros(4, 5).long(), kept, kept), None)
    assert draft._arena.committed.tolist() == [10, 11, 12, 11]
    assert draft._asked == 0


def test_steps_that_were_not_asked_add_their_windows_to_what_is_missing() -> None:
    draft = _draft([12])
    verdict = Verdict(torch.zeros(1, 1).long(), torch.tensor([0]), torch.tensor([0]))
    for width in (1, 3):
        draft.observe(
            Window.chain(torch.zeros(1).long(), torch.zeros(1, width - 1).long(), verdict.next), verdict, None
        )
    assert (draft._behind, draft._arena.committed.tolist()) == (5, [12])


def test_a_prompt_is_read_in_the_drafts_own_tokens_but_for_its_last() -> None:
    draft = _draft([0, 0], vocabulary=50)
    draft.admit(1, Request(0, (1,)), (3, 49, 50, 70))
    assert draft._model.prefilled == [(1, (3, 49, 49, 49), 0)]
    assert draft._fed.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("length", "wrapped", "first", "usable"),
    [
        (5, False, 3, 3),
        (5, False, 5, 5),
        (5, False, 7, 5),
        (5, True, 3, 0),
        (5, True, 5, 5),
        (5, True, 7, 5),
        (5, False, 0, 0),
        (0, True, 3, 0),
    ],
)
def test_a_kept_row_is_restored_as_far_as_it_is_common_and_whole(
    length: int, wrapped: bool, first: int, usable: int
) -> None:
    """A ring that has begun to overwrite itself cannot be cut: it is used whole or not at all."""
    draft = _draft([0, 0])
    draft.resume(1, Request(0, (1,)), tuple(range(9)), KeptCells(length, wrapped, (), ()), first)
    assert draft._arena.noted == ([("restore", 1, usable)] if usable else [])
    assert draft._model.prefilled == [(1, tuple(range(9)), usable)]
    assert draft._fed.tolist() == [0, 8]


def test_what_is_kept_has_been_read_and_is_not_the_last_token() -> None:
    draft = _draft([4, 9])
    assert draft.keep(0, (1,) * 9) == ("kept", 0, 4, 3)
    assert draft.keep(1, (1,) * 9) == ("kept", 1, 8, 3)
    draft.move(1, 0, Request(0, (1,)), (1,) * 9)
    assert draft._arena.noted == [("move", 1, 0)]
    assert draft._fed.tolist() == [9, 9]


def test_a_drafts_logits_are_cut_or_padded_with_what_is_impossible() -> None:
    draft = _draft([0], wide=3)
    none = -torch.inf
    for given, expected in (
        ([1, 2], [1, 2, none]),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 4, 5], [1, 2, 3]),
        ([7], [7, none, none]),
    ):
        found = draft._over_target(torch.tensor([[given, given]], dtype=torch.float32))
        assert found.tolist() == [[expected, expected]]
    draft._model.vocabulary = 6
    window = draft._known(Window.chain(torch.tensor([7]), torch.tensor([[5, 6, 0]]), torch.tensor([3])))
    assert window.tokens.tolist() == [[5, 5, 5, 0]]


@pytest.mark.parametrize(("asked", "behind"), [(0, 2), (3, 5)])
def test_a_trees_nodes_were_never_kept(asked: int, behind: int) -> None:
    draft: Any = object.__new__(Tree)
    draft._behind, draft._asked = 1, asked
    draft.observe(Window.chain(torch.zeros(1).long(), torch.zeros(1, 9).long(), torch.ones(1).long()), None, None)
    assert (draft._behind, draft._asked) == (behind, 0)


def test_widths_are_numbers_with_a_hyphen_between_them() -> None:
    assert [_numbers(text) for text in ("", "3", "4-2-1", "12-10")] == [[], [3], [4, 2, 1], [12, 10]]


@pytest.mark.parametrize("asked", [[0] * 99, [2, 0] * 50])
def test_eagles_row_that_ended_leaves_no_prompt_and_no_step_behind(
    asked: list[int], tmp_path: Path, assemble: Make
) -> None:
    """Steps without proposals are read together, 32 at once at most; those at a request's end are never read."""
    build = assemble(max_length=160, backend="reference")
    engine = build.engine(f"eagle(head={saved_head('eagle', build, tmp_path)!r})", k=2)
    draft: Any = engine.draft
    assert draft.info() == {"draft_forwards": 0}
    assert (draft._asked, draft._longest) == (0, 0)
    ask(engine, asked)
    new = 65 if not any(asked) else 12
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=new))])
    assert (draft._prompts, draft._deferred) == ({}, [])
    if not any(asked):
        assert draft.info() == {"draft_forwards": 2}
    assert draft.info() == {"draft_forwards": engine.stats.counts["draft_forwards"]}


def _adjusted(sampled: bool, **parts: Any) -> Any:
    rows = context(Reference(), torch.tensor([11, 12]))
    params = replace(
        rows.params, temperature=rows.params.temperature * sampled, greedy=not sampled, adjustments=_parts(**parts)
    )
    return replace(rows, params=params, coupled=not sampled)


def _parts(**parts: Any) -> Adjustments:
    return Adjustments(torch.zeros(2, 8).long(), torch.ones(2).long(), **parts)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("ids", [None, [3, 0, 2]])
def test_a_tree_is_grown_by_biased_and_penalised_logits(ids: list[int] | None, sampled: bool) -> None:
    """The bias is of the whole vocabulary; each token on a node's path is penalised there and nowhere else."""
    columns = [0, 1, 2, 3] if ids is None else ids
    given = None if ids is None else torch.tensor(ids)
    logits = torch.randn(2, 2, len(columns), generator=torch.Generator().manual_seed(6))
    bias = torch.tensor([[0.0, 1.0, -2.0, 3.0], [4.0, 0.0, 0.5, -1.0]])
    found = wanted(_adjusted(sampled, bias=bias), logits, 1, None, given, 4)
    torch.testing.assert_close(found, (logits + bias[:, None, columns]).log_softmax(dim=-1))
    one = torch.ones(2)
    penalties = Penalties(
        seen=torch.zeros(2, 4, dtype=torch.bool),
        emitted=torch.zeros(2, 4, dtype=torch.int32),
        repetition=one,
        frequency=one * 0.5,
        presence=one * 0.25,
    )
    for paths in (None, torch.tensor([[[3], [0]], [[2], [3]]])):
        less = torch.zeros(2, 2, 4)
        if paths is not None:
            less.scatter_(2, paths, 0.75)
        found = wanted(_adjusted(sampled, penalties=penalties), logits, 1, paths, given, 4)
        torch.testing.assert_close(found, (logits - less[:, :, columns]).log_softmax(dim=-1))
