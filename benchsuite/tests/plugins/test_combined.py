"""Drafts that are made of others pass every call on to the right ones, and declare what these declare."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import context
from benchsuite.workshop.machines.joined_drafts import hybrid_over
from specdec import Context, Draft, Request, Verdict, Window
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.oracle import Oracle

CALLS = ("admit", "release", "keep", "resume", "move", "prefilled", "observe", "forget")


class Noting(Draft):
    """A draft that notes every call; ``kept`` is what it keeps and ``finds`` what it proposes for each row."""

    def __init__(
        self,
        kept: object = None,
        finds: Any = (),
        weight: int = 0,
        counts: Any = None,
        **flags: Any,
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.kept, self.finds, self.counts = kept, finds, counts or {}
        self.weight_bytes = weight
        self.hidden_layers = flags.get("layers", ())
        for name in ("looks_up", "needs_hidden", "needs_logits", "small_ops", "learns", "branches"):
            setattr(self, name, flags.get(name, False))

    def __getattribute__(self, name: str) -> Any:
        if name not in CALLS:
            return super().__getattribute__(name)

        def call(*given: Any) -> Any:
            self.calls.append((name, *given))
            return self.kept if name == "keep" else None

        return call

    def info(self) -> dict[str, int]:
        return dict(self.counts)

    def look_up(self, context: Context, row: int) -> Any:
        self.calls.append(("look_up", row))
        return self.finds[row]

    def propose(self, context: Context) -> Window:
        self.calls.append(("propose", context))
        return Window.ragged(context, self.finds)


hybrid_of = partial(hybrid_over, rows=4)


def rows_with(room: list[int]) -> Context:
    one = context(Reference(), torch.arange(len(room)) + 11)
    return replace(one, max_proposals=torch.tensor(room), max_proposals_host=np.array(room, dtype=np.int64))


REQUEST = Request(3, (5, 6))


def test_a_hybrid_passes_each_call_to_all_its_sources_and_hidden_states_to_those_that_ask() -> None:
    plain, asking = Noting(looks_up=True), Noting(needs_hidden=True)
    draft, some = hybrid_of(plain, asking), torch.ones(2)
    hidden = torch.ones(1, 2, 3)
    draft.admit(1, REQUEST, (5, 6))
    draft.release(2, (5, 6, 7))
    draft.move(3, 0, REQUEST, (5, 6))
    draft.forget()
    draft.prefilled(1, some, 4, hidden)
    window: Any = "a window"
    verdict: Any = "a verdict"
    draft.observe(window, verdict, hidden, True)
    common = [("admit", 1, REQUEST, (5, 6)), ("release", 2, (5, 6, 7)), ("move", 3, 0, REQUEST, (5, 6)), ("forget",)]
    assert plain.calls == [*common, ("observe", window, verdict, None, False)]
    assert asking.calls == [*common, ("prefilled", 1, some, 4, hidden), ("observe", window, verdict, hidden, False)]


def test_a_hybrid_gives_each_source_the_layers_and_logits_that_it_asked_for() -> None:
    bare = Noting(looks_up=True)
    final = Noting(looks_up=True, needs_hidden=True, needs_logits=True)
    some = Noting(looks_up=True, layers=(1, 4))
    every = Noting(layers=(2, 4), needs_hidden=True, needs_logits=True)
    draft = hybrid_of(bare, final, some, every)
    assert (draft.hidden_layers, draft.needs_hidden, draft.needs_logits) == ((1, 2, 4), True, True)
    hidden, logits = torch.arange(24.0).view(1, 2, 4, 3), torch.ones(1, 2, 5)
    verdict = replace(Verdict(*(torch.zeros(1, 1).long() for _ in range(3))), logits=logits)
    window: Any = "a window"
    draft.prefilled(1, window, 4, hidden)
    draft.observe(window, verdict, hidden, True)
    for source, places, reads in (
        (bare, None, False),
        (final, 3, True),
        (some, [0, 2], False),
        (every, [1, 2, 3], True),
    ):
        name, _, told, states, _ = source.calls.pop()
        assert (name, told.logits is logits, told.path is verdict.path) == ("observe", reads, True)
        assert told.logits is None or reads
        given = [states, *(call[-1] for call in source.calls)]
        assert [call[0] for call in source.calls] == ["prefilled"] * (places is not None)
        assert all(one is None if places is None else torch.equal(one, hidden[:, :, places]) for one in given)
    assert not hybrid_of(bare).needs_logits
    assert hybrid_of(some, every).keep(0, (1, 2)) is None, "a source that reads layers keeps nothing"


@pytest.mark.parametrize(
    ("kept", "asks", "expected"),
    [
        ((None, None), (False, False), [None, None]),
        ((None, "b"), (False, True), [None, "b"]),
        ((None, "b"), (True, False), None),
        (("a", None), (False, True), None),
        (("a", None), (True, False), ["a", None]),
        (("a", "b"), (True, True), ["a", "b"]),
    ],
)
def test_a_hybrid_keeps_what_each_source_keeps_unless_one_would_lack_hidden_states(
    kept: tuple[Any, Any], asks: tuple[bool, bool], expected: Any
) -> None:
    sources = [Noting(k, looks_up=not i, needs_hidden=a) for i, (k, a) in enumerate(zip(kept, asks, strict=True))]
    draft = hybrid_of(*sources)
    assert draft.keep(2, (5, 6)) == expected
    assert [source.calls for source in sources] == [[("keep", 2, (5, 6))]] * 2
    if expected is not None:
        draft.resume(1, REQUEST, (5, 6), expected, 9)
        for source, own in zip(sources, kept, strict=True):
            resumed = ("resume", 1, REQUEST, (5, 6), own, 9)
            assert source.calls[1:] == [("admit", 1, REQUEST, (5, 6)) if own is None else resumed]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_a_hybrid_declares_what_its_sources_declare(first: bool, second: bool) -> None:
    """One that asks, or learns, is enough; small are its ops only if all of them are."""
    flags = ("needs_hidden", "small_ops", "learns")
    one = Noting(looks_up=True, weight=3, counts={"a": 1, "b": 2}, **dict.fromkeys(flags, first))
    two = Noting(looks_up=False, weight=4, counts={"b": 5}, **dict.fromkeys(flags, second))
    draft = hybrid_of(one, two)
    assert (draft.needs_hidden, draft.small_ops, draft.learns) == (first or second, first and second, first or second)
    assert (draft.looks_up, draft.branches, draft.weight_bytes) == (False, False, 7)
    assert draft.info() == {"a": 1, "b": 7}
    assert hybrid_of(one, Noting(looks_up=True)).looks_up is True


def test_a_hybrid_asks_its_model_only_for_rows_that_nothing_was_found_for_and_that_have_room() -> None:
    found = [[[1, 2, 3]], [], []]
    for finds, room, asked in (
        (found, [5, 0, 0], False),
        (found, [5, 1, 0], True),
        (found, [5, 0, 1], True),
        ([[[1]], [[2]], [[3]]], [5, 5, 5], False),
    ):
        model = Noting(finds=[[7, 8], [7], []])
        hybrid_of(Noting(finds=finds, looks_up=True), model).propose(rows_with(room))
        assert [call[0] for call in model.calls] == ["propose"] * asked


def test_a_hybrids_model_has_room_for_its_own_most_and_the_lookups_for_all() -> None:
    lookup, model = Noting(finds=[[[1, 2, 3, 4]], [], []], looks_up=True), Noting(finds=[[9, 9], [7, 8], [6]])
    window = hybrid_of(lookup, model, model_k=2).propose(rows_with([5, 4, 1]))
    [(_, asked)] = model.calls
    assert asked.max_proposals.tolist() == asked.max_proposals_host.tolist() == [0, 2, 1]
    assert window.width.tolist() == [5, 3, 2]
    assert [window.tokens[row, 1 : int(window.width[row])].tolist() for row in range(3)] == [[1, 2, 3, 4], [7, 8], [6]]
    assert [window.parents[row, : int(window.width[row])].tolist() for row in range(3)] == [
        [-1, 0, 1, 2, 3],
        [-1, 0, 1],
        [-1, 0],
    ]
    default = Noting(finds=[[7]] * 3)
    hybrid_of(Noting(finds=[[], [], []], looks_up=True), default).propose(rows_with([9, 4, 5]))
    assert default.calls[0][1].max_proposals.tolist() == [4, 4, 4]


def test_a_hybrids_model_finds_its_room_in_the_same_place_at_every_step() -> None:
    """A part that the model has recorded reads it there again."""
    model = Noting(finds=[[7]] * 3)
    draft = hybrid_of(Noting(finds=[[], [], []], looks_up=True), model)
    for room in ([9, 4, 5], [1, 2, 3]):
        draft.propose(rows_with(room))
    first, second = (asked.max_proposals for _, asked in model.calls)
    assert first.data_ptr() == second.data_ptr()
    assert second.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([[1, 2], [3]], [[4]], [[1, 2]]),
        ([], [[4], [5, 6]], [[4]]),
        ([], [[7]], [[7]]),
        ([], [], []),
    ],
)
@pytest.mark.parametrize("within", [False, True])
def test_a_hybrid_looks_up_one_chain_at_most_the_first_lookups_likeliest(
    first: Any, second: Any, expected: Any, within: bool
) -> None:
    """Also of lookups that find several; within another hybrid, too."""
    draft: Any = hybrid_of(*(Noting(finds=[finds], looks_up=True) for finds in (first, second)))
    draft = hybrid_of(draft) if within else draft
    assert [list(path) for path in draft.look_up(rows_with([5]), 0)] == expected
    window = draft.propose(rows_with([5]))
    assert window.tokens[0, 1 : int(window.width[0])].tolist() == [token for path in expected for token in path]


@pytest.mark.parametrize(
    ("found", "room", "whole"),
    [
        ([[], []], [3, 3], True),
        ([[], []], [3, 0], True),
        ([[[1]], []], [3, 3], False),
        ([[[1]], [[2]]], [3, 3], False),
        ([[[1]], []], [3, 0], False),
    ],
)
def test_a_hybrids_window_is_its_models_own_where_no_row_was_looked_up(
    found: list[list[list[int]]], room: list[int], whole: bool
) -> None:
    """A lookup was never asked for a window; after a step without proposals no window is anybody's."""
    lookup, model = Noting(finds=found, looks_up=True), Noting(finds=[[7, 8], [9]])
    draft, verdict = hybrid_of(lookup, model), Verdict(*(torch.zeros(2, 1).long() for _ in range(3)))
    window = draft.propose(rows_with(room))
    for own in (True, False):
        draft.observe(window, verdict, None, own)
        assert lookup.calls.pop() == ("observe", window, verdict, None, False)
        assert model.calls.pop() == ("observe", window, verdict, None, whole and own)


def row_chains(tokens: list[list[int]], proposed: list[int], q: Tensor | None = None) -> Window:
    whole = torch.tensor(tokens)
    return Window.chain(whole[:, 0], whole[:, 1:], torch.tensor(proposed), q)


def oracle_with(cost: Noting | None) -> Oracle:
    env: Any = SimpleNamespace(
        draft=lambda name: cost,
        plain=lambda request: (1, 2, 3),
        seed=0,
        target=SimpleNamespace(vocabulary=9),
        max_window=10,
    )
    return Oracle(env, rate=1.0, cost="something" if cost else "")


def test_an_oracle_passes_each_call_to_its_cost() -> None:
    cost, some, hidden = Noting(counts={"a": 2}), torch.ones(2), torch.ones(1, 2, 3)
    draft = oracle_with(cost)
    draft.admit(1, REQUEST, (5, 6))
    draft.prefilled(1, some, 4, hidden)
    draft.move(1, 0, REQUEST, (5, 6))
    draft.release(0, (5, 6, 7))
    draft.forget()
    assert cost.calls == [
        ("admit", 1, REQUEST, (5, 6)),
        ("prefilled", 1, some, 4, hidden),
        ("move", 1, 0, REQUEST, (5, 6)),
        ("release", 0, (5, 6, 7)),
        ("forget",),
    ]
    assert draft.info() == {"a": 2}
    cost.calls.clear()


def test_an_oracles_cost_is_told_its_own_window_where_the_oracles_was_verified_and_is_as_wide() -> None:
    cost, hidden = Noting(finds=[[7, 8]]), torch.ones(1, 2, 3)
    draft, given = oracle_with(cost), Verdict(torch.zeros(1, 1).long(), torch.zeros(1).long(), torch.zeros(1).long())
    draft.admit(0, REQUEST, (5, 6))
    as_wide, wider = row_chains([[0, 1, 2]], [2]), row_chains([[0, 1, 2, 3]], [3])
    for window, own, mine in ((as_wide, True, True), (wider, True, False), (as_wide, False, False)):
        draft.propose(replace(rows_with([2]), history=np.array([[5, 6]]), length_host=np.array([2])))
        draft.observe(window, given, hidden, own)
        name, told, *rest = cost.calls.pop()
        assert (name, rest) == ("observe", [given, hidden, mine])
        assert (told is window) is not mine
        assert told.tokens[0, 1:].tolist() == ([7, 8] if mine else window.tokens[0, 1:].tolist())


def test_an_oracle_without_a_cost_has_nothing_to_pass_on() -> None:
    draft = oracle_with(None)
    draft.admit(1, REQUEST, (5, 6))
    draft.prefilled(1, torch.ones(2), 0, torch.ones(1, 2, 3))
    draft.release(1, (5, 6))
    draft.forget()
    verdict: Verdict = Verdict(torch.zeros(1, 1).long(), torch.zeros(1).long(), torch.zeros(1).long())
    draft.observe(row_chains([[0, 1]], [1]), verdict, None, True)
    assert draft.info() == {}


@pytest.mark.parametrize("flag", [False, True])
def test_an_oracle_declares_what_its_cost_declares(flag: bool) -> None:
    draft = oracle_with(Noting(weight=5, needs_hidden=flag, small_ops=flag, learns=flag))
    assert (draft.needs_hidden, draft.small_ops, draft.learns, draft.weight_bytes) == (flag, flag, flag, 5)
    assert (draft.looks_up, draft.branches) == (False, False)
    alone = oracle_with(None)
    assert (alone.needs_hidden, alone.small_ops, alone.learns, alone.weight_bytes) == (False, True, False, 0)
    reading = oracle_with(Noting(layers=(0, 3), needs_logits=flag))
    assert (reading.hidden_layers, reading.needs_logits) == ((0, 3), flag)
    assert (alone.hidden_layers, alone.needs_logits) == ((), False)


def test_an_oracle_follows_its_script_from_where_the_output_stands_to_the_scripts_end() -> None:
    draft = oracle_with(None)
    draft.admit(0, REQUEST, (5, 6))
    for text, room, expected in (
        ([5, 6], 2, [1, 2]),
        ([5, 6], 9, [1, 2, 3]),
        ([5, 6, 1], 1, [2]),
        ([5, 6, 1], 0, []),
        ([5, 6, 1, 2], 9, [3]),
        ([5, 6, 1, 2, 3], 9, []),
        ([5, 6, 2], 9, []),
        ([5, 6, 1, 9], 9, []),
    ):
        lent: Any = SimpleNamespace(
            length_host=[len(text)], history=np.array([[*text, 0, 0]]), max_proposals_host=[room]
        )
        assert draft._follow(lent, 0) == expected
