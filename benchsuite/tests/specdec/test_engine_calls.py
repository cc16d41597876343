"""What an engine tells its draft and its target, call by call, and what it counts of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.tests.rig import Make
from specdec import Context, Draft, Engine, Request, SamplingParams, Verdict, Window
from specdec.arena import Arena, KeptCells, LayerShape
from specdec.devices import HostCopy
from specdec.queue import KeptText
from specdec_kernels.reference import Reference


class _Telling(Draft):
    """Proposes nothing, or the pending token again; writes down every call."""

    def __init__(self, hidden: bool, proposes: bool = False) -> None:
        self.needs_hidden, self._proposes = hidden, proposes
        self.told: list[tuple[Any, ...]] = []
        self.asked: list[tuple[list[int], Window]] = []

    def propose(self, context: Context) -> Window:
        window = Window.root(context)
        if self._proposes:
            k = int(context.max_proposals_host.max())
            window = Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)
        self.asked.append((context.max_proposals_host.tolist(), window))
        return window

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self.told.append(("admit", row, request.id, prompt))

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        self.told.append(("release", row, tokens))

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        self.told.append(("move", source, row, request.id, tokens))

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        self.told.append(("keep", row, tokens))
        return f"kept of {tokens[0]}"

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        self.told.append(("resume", row, request.id, prompt, kept, first))

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        self.told.append(("prefilled", row, tokens.tolist(), start, tuple(hidden.shape[:2])))

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        given = self.asked[-1][1] if self.asked else None
        shape = None if hidden is None else tuple(hidden.shape[:2])
        self.told.append(("observe", own, window is given, tuple(window.tokens.shape), shape))

    def info(self) -> Mapping[str, int]:
        """A count that is there from the first proposal on."""
        return {"times_asked": len(self.asked)} if self.asked else {}


def _engine(assemble: Make, draft: Draft, rows: int, k: int = 3) -> Engine:
    return assemble(max_rows=rows, extra=(("draft", "telling", lambda env: draft),)).engine("telling", k=k)


def _request(number: int, prompt: tuple[int, ...], tokens: int, **more: Any) -> Request:
    return Request(number, prompt, SamplingParams(max_new_tokens=tokens), **more)


class _Copying(HostCopy):
    """Writes down every tensor whose copy begins and that is read."""

    told: list[tuple[Any, ...]]

    def start(self, tensor: Tensor) -> None:
        self.told.append(("start", tensor))
        super().start(tensor)

    def of(self, tensor: Tensor) -> Tensor:
        self.told.append(("read", tensor))
        return super().of(tensor)


def test_what_a_step_reads_is_on_its_way_to_the_host_while_the_draft_observes(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = _Telling(hidden=False, proposes=True)
    _Copying.told = draft.told
    monkeypatch.setattr("specdec.engine.HostCopy", _Copying)
    engine = _engine(assemble, draft, 1)
    engine.run([_request(0, (5, 6), 6)])
    steps = [call for call in draft.told if call[0] in ("start", "observe", "read")]
    assert [name for name, *_ in steps] == ["start", "observe", "read"] * len(engine.stats.steps)
    assert all(begun[1] is read[1] for begun, read in zip(steps[::3], steps[2::3], strict=True))


@pytest.mark.parametrize("hidden", [False, True])
def test_a_draft_is_told_of_every_request_that_comes_moves_and_ends(hidden: bool, assemble: Make) -> None:
    """The last live row takes each freed row once nobody waits; a step with nothing to propose is observed too."""
    draft = _Telling(hidden)
    engine = _engine(assemble, draft, 4)
    work = [
        *(_request(0, (5, 6), 1), _request(1, (7, 8, 9), 2), _request(2, (1,), 4), _request(3, (2, 3), 4)),
        _request(4, (4, 4), 1),
    ]
    done = {one.request.id: (*one.request.prompt, *one.tokens) for one in engine.run(work)}
    shown = 1 if hidden else None

    def admitted(row: int, number: int) -> list[tuple[Any, ...]]:
        prompt = work[number].prompt
        after = [("prefilled", row, [list(prompt[:-1])], 0, (1, len(prompt) - 1))] if len(prompt) > 1 else []
        return [("admit", row, number, prompt), *(after if hidden else [])]

    def observed(rows: int, given: bool = True) -> tuple[Any, ...]:
        return ("observe", given, given, (rows, 1), (rows, shown) if shown else None)

    assert draft.told == [
        *(call for row in range(4) for call in admitted(row, row)),
        observed(4),
        ("release", 0, done[0]),
        *admitted(0, 4),
        observed(4),
        ("release", 0, done[4]),
        ("release", 1, done[1]),
        # From the end: the last row takes the second of the freed rows, the one before it the first.
        ("move", 3, 1, 3, done[3][:4]),
        ("move", 2, 0, 2, done[2][:3]),
        observed(2),
        observed(2, given=False),
        ("release", 0, done[2]),
        ("release", 1, done[3]),
    ]
    names = [one[0] for one in draft.told if one[0] != "observe"]
    booked = [call.name for call in engine.stats.calls]
    assert sorted(booked) == sorted(names)
    assert all(call.start < call.end for call in engine.stats.calls)
    assert [asked for asked, _ in draft.asked] == [[0, 1, 3, 3], [0, 0, 2, 2], [1, 1]]
    counts, cells = engine.stats.counts, sum(len(one.prompt) - 1 for one in work)
    assert counts["times_asked"] == len(draft.asked) == 3
    assert counts["kv_rows_moved_bytes"] == 2 * engine.arena.row_bytes
    assert counts["prefill_forwards"] == 4
    assert counts["target_forwards"] == counts["host_reads"] == 4
    assert counts["kv_appended_tokens_total"] == cells + 4 + 4 + 2 + 2
    assert counts["num_emitted_tokens"] == 12
    assert engine.stats.chosen == [3] * 4
    assert engine.kept == {}
    engine.run([_request(0, (5, 6), 3)])
    assert engine.stats.counts["times_asked"] == 2


def test_a_draft_is_asked_while_it_may_propose_one_token(assemble: Make) -> None:
    draft = _Telling(False, proposes=True)
    engine = _engine(assemble, draft, 1)
    engine.run([_request(0, (5, 6), 2)])
    first = engine.stats.steps[0]
    assert (draft.asked[0][0], first.proposed, first.k, first.width) == ([1], 1, 1, 2)
    assert len(draft.asked) == 1


def test_a_request_continues_with_what_another_left_in_the_target_and_in_the_draft(assemble: Make) -> None:
    draft = _Telling(False)
    engine = _engine(assemble, draft, 2)
    cell = Arena.bytes_per_token(engine.arena.layers, engine.target.dtype)
    done = engine.run([_request(0, (5, 6, 7), 2, keep=True), _request(1, (8, 9), 1, keep=True)])
    texts = [(*one.request.prompt, *one.tokens) for one in done]
    kept = [call for call in draft.told if call[0] == "keep"]
    assert kept == [("keep", 1, texts[1]), ("keep", 0, texts[0])]
    assert engine.stats.counts["kv_kept_bytes_copied"] == cell * (4 + 2)
    assert engine.stats.counts["kv_reused_tokens"] == 0
    assert {number: (one.tokens, one.cells.length, one.drafted) for number, one in engine.kept.items()} == {
        0: (texts[0], 4, "kept of 5"),
        1: (texts[1], 2, "kept of 8"),
    }
    draft.told.clear()
    prompts = (*texts[0], 3), (8, 9, 11, 12)
    engine.run([_request(2, prompts[0], 1, continues=0), _request(3, prompts[1], 1, continues=1)])
    assert [call for call in draft.told if call[0] in ("admit", "resume")] == [
        ("resume", 0, 2, prompts[0], "kept of 5", 4),
        ("resume", 1, 3, prompts[1], "kept of 8", 2),
    ]
    assert engine.kept == {}
    assert engine.stats.counts["kv_reused_tokens"] == 4 + 2
    assert engine.stats.counts["kv_kept_bytes_copied"] == cell * (4 + 2)
    # What was not read again: 1 and 1 tokens are prefilled, and each prompt's last one is in the step's window.
    assert engine.stats.counts["kv_appended_tokens_total"] == 1 + 1 + 2


def test_a_request_that_shares_no_beginning_with_what_it_continues_starts_anew(assemble: Make) -> None:
    draft = _Telling(False)
    engine = _engine(assemble, draft, 1)
    engine.run([_request(0, (5, 6, 7), 1, keep=True)])
    draft.told.clear()
    engine.run([_request(1, (9, 6, 7), 1, continues=0)])
    assert draft.told[0] == ("admit", 0, 1, (9, 6, 7))
    assert engine.stats.counts["kv_reused_tokens"] == engine.stats.counts["kv_kept_bytes_copied"] == 0


@pytest.mark.parametrize(
    ("hidden", "drafted", "wrapped", "prompt", "usable"),
    [
        (False, None, False, (1, 2, 3, 9), 3),
        (False, "state", True, (1, 2, 3, 4, 5), 4),
        (True, "state", False, (1, 2, 3, 9), 2),
        (True, "state", False, (1, 2, 9), 1),
        (True, "state", False, (1, 9), 0),
        (True, "state", False, (9, 9), 0),
        (True, None, False, (1, 2, 3, 9), 0),
        (True, "state", True, (1, 2, 3, 4, 5), 0),
    ],
)
def test_a_draft_that_pairs_states_with_tokens_has_the_last_common_token_read_again(
    hidden: bool, drafted: object, wrapped: bool, prompt: tuple[int, ...], usable: int
) -> None:
    kept = KeptText((1, 2, 3, 4, 5), KeptCells(4, wrapped, (), ()), drafted)
    assert kept.usable(prompt, needs_hidden=hidden) == usable


def test_a_forward_is_told_the_number_of_committed_tokens_and_no_less(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = assemble(max_rows=2).engine(None)
    told: list[tuple[int, int]] = []
    forward = engine.target.forward

    def watched(arena: Arena, window: Window, rows: slice, longest: int, *taps: Any) -> Any:
        told.append((longest, int(arena.committed[rows].max())))
        return forward(arena, window, rows, longest, *taps)

    monkeypatch.setattr(engine.target, "forward", watched)
    engine.run([_request(0, (1,), 3), _request(1, (5, 6, 7, 8), 2)])
    assert told == [(3, 3), (4, 4), (2, 2)]


def test_an_engine_that_is_made_by_hand_has_asked_for_no_plain_output(assemble: Make) -> None:
    made = assemble().engine(None)
    engine = Engine(
        made.target,
        draft=None,
        policy=made.policy,
        controller=made.controller,
        ops=made.ops,
        max_rows=1,
        max_length=16,
    )
    assert (engine.replayed(), engine.exact, engine.set_up_seconds, engine.tokenizer) == (0, False, {}, None)
    assert (engine.stats.batch, engine.stats.lengths, engine.stats.steps) == (0, (), [])
    assert (engine.runtime.name, engine.trace, engine.waiting) == ("eager", None, 0)


@pytest.mark.parametrize("rows", [slice(0, 3), slice(0, 2), slice(1, 3), slice(2, 3)])
def test_a_layer_s_cells_are_those_of_the_rows_of_the_forward(rows: slice) -> None:
    arena = Arena(
        [LayerShape(1, 4, None), LayerShape(1, 4, 3)],
        rows=3,
        max_length=20,
        max_window=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for tensor in (*arena.keys, *arena.values):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    count = rows.stop - rows.start
    window = Window.chain(torch.zeros(count).long(), torch.zeros(count, 1).long(), torch.ones(count).long())
    plan = arena.plan(window, Reference(), rows, 0)
    for layer, span in enumerate((None, 3)):
        cells = plan.at(layer)
        assert cells.keys.tolist() == arena.keys[layer][rows].tolist()
        assert cells.values.tolist() == arena.values[layer][rows].tolist()
        assert cells.keys.data_ptr() == arena.keys[layer][rows].data_ptr()
        assert cells.cells is plan.cells[span]
        assert cells.mask is plan.mask[span]
        assert cells.used is (plan.used if span is None else None)


def test_times_are_those_of_each_step_since_a_request_was_submitted(
    assemble: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, clock = assemble().engine(None), iter(range(100, 200))
    monkeypatch.setattr("specdec.engine.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    done = engine.run([_request(0, (5, 6), 2), _request(1, (7,), 1)])
    assert [one.times for one in done] == [(1.0, 2.0), (3.0,)]
    engine.submit([_request(2, (5,), 2)])
    engine.step()
    engine.submit([_request(3, (5,), 1)])
    assert engine.waiting == 1
    engine.step()
    engine.step()
    assert engine.finished[2].times == (1.0, 3.0)
    assert engine.finished[3].times == (2.0,)


def _filled() -> Arena:
    """An arena of three rows, a full layer and a ring of five cells, in which no two numbers are equal."""
    arena = Arena(
        [LayerShape(1, 2, None), LayerShape(2, 2, 3)],
        rows=3,
        max_length=20,
        max_window=3,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for number, tensor in enumerate((*arena.keys, *arena.values)):
        tensor.copy_(torch.arange(1, tensor.numel() + 1).view(tensor.shape) + 10_000 * number)
    arena.committed[:] = torch.tensor([4, 2, 9])
    return arena


@pytest.mark.parametrize(("cells", "copied"), [(None, (64, 5)), (4, (4, 4)), (9, (9, 5))])
def test_a_row_that_moves_takes_its_cells_along_and_says_how_many_bytes(
    cells: int | None, copied: tuple[int, int]
) -> None:
    arena, before = _filled(), _filled()
    assert arena.move(2, 0, cells) == 4 * 2 * 2 * (copied[0] + 2 * copied[1])
    assert arena.committed.tolist() == [9, 2, 9]
    for mine, old in zip((*arena.keys, *arena.values), (*before.keys, *before.values), strict=True):
        taken = copied[0] if mine.shape[2] == 64 else copied[1]
        assert torch.equal(mine[0, :, :taken], old[2, :, :taken])
        assert torch.equal(mine[0, :, taken:], old[0, :, taken:])
        assert torch.equal(mine[1:], old[1:])
    arena.reset(1)
    assert arena.committed.tolist() == [9, 0, 9]


@pytest.mark.parametrize("compact", [False, True])
def test_the_path_of_a_tree_is_moved_together_and_every_path_is_committed(compact: bool) -> None:
    """Slots 0, 2 and 3 after 2 committed cells, and slots 0 and 2 after 9, in which the ring begins anew."""
    arena, before = _filled(), _filled()
    path = torch.tensor([[0, 2, 3], [0, 2, -1]])
    arena.commit(Verdict(path, torch.tensor([2, 1]), torch.tensor([7, 7])), slice(1, 3), Reference(), compact)
    assert arena.committed.tolist() == [4, 5, 11]
    moves = {(1, 4): 3, (1, 5): 4, (2, 11): 10} if compact else {}
    for mine, old in zip((*arena.keys, *arena.values), (*before.keys, *before.values), strict=True):
        size, expected = mine.shape[2], old.clone()
        for (row, source), target in moves.items():
            expected[row, :, target % size] = old[row, :, source % size]
        assert torch.equal(mine, expected)


@pytest.mark.parametrize(
    ("policy", "raw"), [("typical", True), ("topk_agree", True), ("match", False), ("block", False)]
)
def test_a_policy_is_given_the_target_s_own_logits_only_where_it_asks_for_them(
    policy: str, raw: bool, assemble: Make
) -> None:
    """Of 256 tokens, top_k=3 leaves three that are not -inf."""
    engine, finite = assemble().engine("garbage", policy, k=2), list[int]()
    accept = engine.policy.accept

    def watched(logits: Tensor, window: Window, context: Context) -> Verdict:
        finite.extend(logits.isfinite().sum(2).flatten().tolist())
        return accept(logits, window, context)

    object.__setattr__(engine.policy, "accept", watched)
    engine.run([Request(0, (5, 6), SamplingParams(temperature=0.7, top_k=3, max_new_tokens=4))])
    assert finite
    assert set(finite) == {engine.target.vocabulary if raw else 3}
