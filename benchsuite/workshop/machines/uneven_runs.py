"""A run in which every row has a K of its own, held against what each request was asked, proposed and told.

The requests are more than the rows and end at different steps, so that rows are taken over and move.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models import families, tiny
from benchsuite.judge.sources import EachRow
from benchsuite.workshop.machines.joined_drafts import BRIEF
from specdec import Context, SamplingParams, Verdict, Window
from specdec.runtime import Recorder
from specdec.stats import RowStats, Stats
from specdec_plugins.drafts.oracle import Oracle

MOST = 4


def due_k(row: RowStats) -> int:
    """K of a row: it depends on the request and on its own steps, never on the row that it is in."""
    return (2 * row.request + row.steps * row.steps) % (MOST + 1)


def told_confidence(request: int, length: int, slot: int) -> float:
    """A number from 0 to 1 that another request, text or slot does not have."""
    return (request * 29 + length * 7 + slot) % 128 / 128


class Telling(Oracle):
    """The oracle, with the confidence of ``told_confidence`` in every slot."""

    def propose(self, context: Context) -> Window:
        """The oracle's window; no number of it is read."""
        window = super().propose(context)
        slots = torch.arange(window.tokens.shape[1], device=window.tokens.device)
        base = context.request * 29 + context.length * 7
        return replace(window, confidence=(base[:, None] + slots) % 128 / 128)


class Noted(EachRow):
    """Asks for ``due_k``, and notes what it was told before."""

    def __init__(self) -> None:
        super().__init__(MOST, due_k)
        self.told: list[tuple[RowStats, ...]] = []

    def next_k(self, stats: Stats) -> list[int]:
        """The K of each row."""
        self.told.append(deepcopy(stats.rows))
        return super().next_k(stats)


@dataclass
class _Seen:
    """What a request's steps were, by their windows and verdicts."""

    steps: int = 0
    asked: int = 0
    last: tuple[int, int] | None = None  # proposed and accepted
    confidence: tuple[float | None, ...] = ()
    proposed: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)


def uneven_run() -> None:
    """Six requests in three rows. AssertionError names what a row was asked, proposed or told that is not its own."""
    extra = ("draft", "telling", lambda env: Telling(env, rate=0.7))
    build = tiny.assembly(max_rows=3, backend="reference", extra=(extra,))
    engine, work = build.engine("telling", k=MOST), tiny.requests(SamplingParams(max_new_tokens=9), 6)
    engine.controller = noted = Noted()
    seen = {request.id: _Seen() for request in work}
    widths: list[int] = []
    different = 0

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        nonlocal different
        rows = noted.told[-1]
        ids = context.request.tolist()
        assert [row.request for row in rows] == ids, f"{[row.request for row in rows]} are told, {ids} are decoded"
        different += len({due_k(row) for row in rows}) > 1
        proposed, accepted = (window.width - 1).tolist(), verdict.num_accepted.tolist()
        limits = {one.id: len(one.prompt) + one.params.max_new_tokens for one in work}
        for place, row in enumerate(rows):
            number, length = row.request, int(context.length_host[place])
            own, room = seen[number], limits[number] - length - 1
            assert (row.length, row.room) == (length, room), f"request {number}: length and room"
            last = None if row.last is None else (row.last.proposed, row.last.accepted)
            found = row.steps, row.asked, last, row.confidence
            due = own.steps, own.asked, own.last, own.confidence
            assert found == due, f"request {number} is told {found}, due is {due}"
            for counted, totals in ((own.proposed, row.proposed_per_pos), (own.accepted, row.accepted_per_pos)):
                assert totals == [counted[depth] for depth in range(len(counted))], f"request {number}: by depth"
            k = min(due_k(row), room)
            assert proposed[place] == k, f"request {number} has {proposed[place]} proposals, its K is {k}"
            own.steps, own.asked, own.last = own.steps + 1, due_k(row), (k, accepted[place])
            own.confidence = tuple(told_confidence(number, length, slot) for slot in range(1, k + 1))
            own.proposed.update(range(k))
            own.accepted.update(range(accepted[place]))
        widths.append(window.tokens.shape[1])
        assert widths[-1] == 1 + max(proposed), f"{widths[-1]} slots for {proposed} proposals"

    engine.trace = keep
    done = engine.run(work)
    for one in done:
        assert one.tokens == build.plain(one.request), f"request {one.request.id} has another output"
    stats = engine.stats
    assert stats.counts["kv_rows_moved_bytes"] > 0, "no row has moved: nothing was shown"
    assert different > 3, "rows have one K: nothing was shown"
    assert stats.counts["host_reads"] == len(stats.steps), "one read a step"


def rows_of_their_own() -> None:
    """Rows have the K, the counts and the confidences that are their own, also those of a hybrid's sources."""
    uneven_run()
    for text in HYBRIDS:
        hybrid_run(text)
    for policy, temperature in (("match", 0.0), ("rejection", 0.8)):
        model_run(policy, temperature)


HYBRIDS = (
    "hybrid(sources='brief, telling', model_k=3)",
    "hybrid(sources='brief, telling', model_k=2, extend=True, slots=4)",
    "hybrid(sources='brief, telling', model_k=3, merge=True, slots=4)",
)
"""A lookup without a confidence before a draft that has one: rows of either, chains of both, and trees of both."""


def hybrid_run(text: str) -> None:
    """Six requests in three rows, drafted by one of ``HYBRIDS``.

    AssertionError names a row that is told another confidence than its last window's proposals have, by their paths, in
    the window of the source that tells.
    """
    proposed: list[Window] = []

    class Kept(Telling):
        def propose(self, context: Context) -> Window:
            proposed.append(super().propose(context))
            return proposed[-1]

    extra = BRIEF, ("draft", "telling", lambda env: Kept(env, rate=0.7))
    build = tiny.assembly(max_rows=3, backend="reference", extra=extra)
    engine, work = build.engine(text, k=MOST), tiny.requests(SamplingParams(max_new_tokens=40), 6)
    engine.controller = noted = Noted()
    alone, merges = build.engine("brief", max_rows=3).draft, "merge" in text
    assert alone
    due: dict[int, tuple[float | None, ...]] = {}
    kinds = Counter[tuple[bool, bool]]()

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in noted.told[-1]:
            expected = due.get(row.request, ())
            assert row.confidence == expected, f"request {row.request} is told {row.confidence}, due is {expected}"
        for place, number in enumerate(context.request.tolist()):
            own: dict[tuple[int, ...], float] = {}
            if proposed and (merges or not alone.look_up(context, place)):
                length = int(context.length_host[place])
                for slot, path in enumerate(_paths(proposed[0], place), 1):
                    own[path] = told_confidence(number, length, slot)
            sure = [own.get(path) for path in _paths(window, place)]
            due[number] = tuple(sure) if any(chance is not None for chance in sure) else ()
            kinds[None in sure, len({*sure}) > 1] += 1
        proposed.clear()

    engine.trace = keep
    engine.run(work)
    assert len(due) == len(work)
    assert kinds[False, True] > 5, "hardly any row has an estimate for each proposal"
    assert kinds[True, True] > 5 or not merges, "hardly any row has both kinds"


def _paths(window: Window, row: int) -> list[tuple[int, ...]]:
    """The tokens on the way to each proposal of a row."""
    return [tuple(path[path >= 0].tolist()) for path in window.paths[row, 1 : int(window.width[row])]]


class NotedConfidences(Noted):
    """Notes what it is told, and says that it reads confidences."""

    reads_confidence = True


def model_run(policy: str, temperature: float, recorder: Recorder | None = None) -> None:
    """Five requests in three rows, drafted by a model.

    AssertionError names a row that is told another confidence than the probabilities of its last proposals by
    transformers, before any processor.
    """
    noted = NotedConfidences()
    with tempfile.TemporaryDirectory() as folder:
        network, path = families.build_model("llama", 1), tiny.save_target("llama", Path(folder), seed=1)
        build = tiny.assembly(max_rows=3, backend="reference", extra=(("controller", "reading", lambda env: noted),))
        engine = build.engine(f"draft_model(model={path})", policy, "reading", recorder=recorder)
    due: dict[int, tuple[float, ...]] = {}
    different = set[float]()

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in noted.told[-1]:
            expected = due.get(row.request, ())
            told = f"request {row.request} is told {row.confidence}, due is {expected}"
            assert row.confidence == pytest.approx(expected, abs=1e-4), told
        for place, number in enumerate(context.request.tolist()):
            text = context.history[place, : context.length_host[place]].tolist()
            proposed = window.tokens[place, 1 : int(window.width[place])].tolist()
            law = network(torch.tensor([text + proposed])).logits[0, len(text) - 1 :].softmax(dim=-1)
            due[number] = tuple(float(law[index, token]) for index, token in enumerate(proposed))
            different.update(due[number])

    engine.trace = keep
    engine.run(tiny.requests(SamplingParams(max_new_tokens=9, temperature=temperature, seed=5, top_k=40), 5))
    assert len(different) > 20, "hardly any proposal has a confidence"
