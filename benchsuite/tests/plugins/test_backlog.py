"""What a draft has not read yet: each row has its tokens in their order, and what nobody asks for costs nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, cycle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchsuite.conformance.models import tiny
from benchsuite.tests.proposed_windows import proposed_windows
from specdec import Context, Engine, Env, SamplingParams, Window
from specdec.arena import LayerShape, Plan
from specdec_plugins import backlog, entries
from specdec_plugins.backlog import Backlog
from specdec_plugins.drafts import draft_model
from specdec_plugins.feedback import FeedbackDraft, FeedbackHead
from specdec_plugins.whole_blocks import BlockDraft, BlockHead

ROWS = 4
DEEDS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, ROWS - 1), st.integers(1, 9)),
    st.tuples(st.just("step"), st.integers(1, ROWS), st.just(1)),
    st.tuples(st.just("window"), st.integers(1, ROWS), st.integers(2, 5)),
    st.tuples(st.just("drop"), st.integers(0, ROWS - 1), st.just(0)),
    st.tuples(st.just("move"), st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)),
    st.tuples(st.just("take"), st.integers(0, ROWS - 1), st.integers(1, ROWS)),
)


@given(st.lists(DEEDS, max_size=60), st.sampled_from([0, 7, backlog.SLACK]))
def test_a_row_gets_its_tokens_in_their_order_whatever_the_other_rows_do(
    deeds: list[tuple[str, int, int]], slack: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog, "SLACK", slack)
        _done_as_by_a_twin(deeds)


def _done_as_by_a_twin(deeds: list[tuple[str, int, int]]) -> None:
    """The twin has plain lists, in which None stands for a token of a window that does not count; each state is twice
    its token and its opposite."""
    waiting, twin, numbers = Backlog(), dict[int, list[int | None]](), count()
    for deed, first, other in deeds:
        if deed in {"add", "step", "window"}:
            rows, start, width = (1, first, other) if deed == "add" else (first, 0, other)
            fresh = [[next(numbers) for _ in range(width)] for _ in range(rows)]
            tokens = torch.tensor(fresh)
            counts = tokens[:, 0] % width + 1 if deed == "window" else None
            waiting.add(start, tokens, _states(tokens), counts)
            for row, some in enumerate(fresh, start):
                kept = width if counts is None else int(counts[row])
                twin.setdefault(row, []).extend([*some[:kept], *[None] * (width - kept)])
            tokens.fill_(-1)  # as the next step may do
        elif deed == "drop":
            waiting.drop(first)
            twin.pop(first, None)
        elif deed == "move" and first != other:
            waiting.move(first, other)
            twin.pop(other, None)
            if first in twin:
                twin[other] = twin.pop(first)
        elif deed == "take" and (rows_taken := [*range(first, min(ROWS, first + other))]):
            if not any(row in twin for row in rows_taken):
                continue
            expected = [twin.pop(row, []) for row in rows_taken]
            tokens, states, counts = waiting.of(rows_taken)
            texts = [[token for token in some if token is not None] for some in expected]
            assert counts.tolist() == [*map(len, texts)]
            assert tokens.shape == (len(rows_taken), max(map(len, expected)))
            assert [some[:most] for some, most in zip(tokens.tolist(), counts.tolist(), strict=True)] == texts
            assert torch.equal(states, _states(tokens))
        assert waiting.waiting() == {row: len(some) for row, some in twin.items()}
        assert bool(waiting) == bool(twin)


def _states(tokens: Tensor) -> Tensor:
    return torch.stack([2.0 * tokens, -1.0 * tokens], dim=2)


class EntryReader(FeedbackHead):
    """A head whose entries are its tokens; it counts those that it reads, and always proposes the first token."""

    weight_bytes, ids, size = 0, None, 1

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary, self.layers, self.read, self.entries = vocabulary, [LayerShape(1, 1, None)], 0, Tensor()

    def feature(self, hidden: Tensor) -> Tensor:
        return hidden[..., :1]

    def step(self, tokens: Tensor, feature: Tensor, plan: Plan) -> Tensor:
        at = plan.at(0)
        new = tokens[:, None, :, None].to(at.keys.dtype)
        plan.ops.kv_append(at.keys, at.values, new, new, at.cells)
        self.read += tokens.numel()
        self.entries = at.keys[:, 0, :, 0]
        return feature

    def logits(self, feature: Tensor) -> Tensor:
        return feature.new_zeros(*feature.shape[:-1], self._vocabulary)


class EntryReading(FeedbackDraft):
    """Drafts with ``EntryReader``, and finds the whole text of each row among the entries when it is asked."""

    needs_hidden = True

    def __init__(self, env: Env) -> None:
        self.reader = EntryReader(env.target.vocabulary)
        super().__init__(env, self.reader, 0, 1, 1, 0.0)

    def propose(self, context: Context) -> Window:
        window = super().propose(context)
        for row in range(context.rows) if int(context.max_proposals_host.max()) > 1 else ():
            text = context.history[row, 1 : context.length_host[row]].tolist()
            assert self.reader.entries[row, : len(text)].tolist() == text
        return window


def reading_engine() -> tuple[Engine, EntryReader]:
    """An engine of three rows whose draft reads, and what does it."""
    engine = tiny.assembly(max_rows=3, extra=(("draft", "reading", EntryReading),)).engine("reading", k=3)
    assert isinstance(engine.draft, EntryReading)
    return engine, engine.draft.reader


@pytest.mark.parametrize("rest", [1, 3, 5, 11, 40])
@pytest.mark.parametrize(("together", "most"), [(16, 1024), (0, 1024), (3, 9)])
def test_a_head_that_is_asked_has_read_all_of_each_text(
    rest: int, together: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come, go and move while it rests, longer and shorter than prompts wait for; one by one and together."""
    monkeypatch.setattr(entries, "TOGETHER", together)
    monkeypatch.setattr(entries, "MOST_WAITING", most)
    engine = reading_engine()[0]
    tiny.ask(engine, cycle([3, *[0] * rest]))
    work = tiny.requests(SamplingParams(max_new_tokens=12), count=6)
    for turn in range(2):
        engine.run([replace(request, id=request.id + 10 * turn) for request in work])
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"


def test_a_head_that_rests_reads_nothing() -> None:
    """Requests come and go, and nobody asks: after the first of them, which might have been, none is read."""
    engine, reader = reading_engine()
    tiny.ask(engine, cycle([0]))
    work = tiny.requests(SamplingParams(max_new_tokens=12), count=6)
    engine.run(work)
    first, reader.read = reader.read, 0
    assert 0 < first == sum(len(request.prompt) - 1 for request in work[:3]), "a new engine reads what comes at once"
    engine.run([replace(request, id=request.id + 10) for request in work])
    assert reader.read == 0


class EntrySum(BlockHead):
    """A block's tokens are digits of the sum of all entries of the text, which are the target's states."""

    weight_bytes, block, mask, proposals = 0, 3, 0, 2

    def __init__(self) -> None:
        self.layers = [LayerShape(1, 1, None)]

    def enter(self, states: Tensor, plan: Plan) -> None:
        at = plan.at(0)
        new = states[:, None, :, :1]
        plan.ops.kv_append(at.keys, at.values, new, new, at.cells)

    def window(self, context: Context, block: Tensor, plan: Plan, k: int) -> Window:
        keys = plan.at(0).keys[:, 0, :, 0].double()
        text = torch.arange(keys.shape[1]) < context.length[:, None] - 1
        whole = (torch.where(text, keys, 0.0).sum(dim=1) * 1e6).long().abs()
        tokens = torch.stack([whole // 256**place % 256 for place in range(k)], dim=1)
        return Window.chain(context.pending, tokens, context.max_proposals.clamp(max=k))


class EntrySums(BlockDraft):
    """Drafts with ``EntrySum``."""

    needs_hidden = True

    def __init__(self, env: Env) -> None:
        super().__init__(env, EntrySum(), (), 0)


@pytest.mark.parametrize("draft", ["sums", "draft_model", "tree(beam=2, depth=2)"])
@pytest.mark.parametrize("rest", [1, 11, 26])
def test_what_waits_is_what_would_have_been_read_at_once(
    draft: str, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six requests in three rows, by a draft that rests and by one that reads prompts and steps as they come. After 26
    steps without proposals a row that was not read has moved."""
    asked, params = [2, *[0] * rest], SamplingParams(max_new_tokens=8)
    found = []
    for rests, most in ((entries.RESTS, entries.MOST_WAITING), (10**9, 0)):
        for module in (entries, draft_model):
            monkeypatch.setattr(module, "RESTS", rests)
        monkeypatch.setattr(entries, "MOST_WAITING", most)
        engine = tiny.assembly(max_rows=3, backend="reference", extra=(("draft", "sums", EntrySums),)).engine(
            draft, k=2
        )
        windows = proposed_windows(engine, asked, params)
        found.append([(text.tolist(), window.tokens.tolist()) for text, window in windows])
    assert found[0] == found[1] != []
