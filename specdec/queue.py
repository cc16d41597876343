"""Requests from their submission to their end: those that wait, those in rows, and what ended ones leave behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specdec.arena import Arena, KeptCells
from specdec.interfaces import Draft
from specdec.logprobs import TokenLogprobs
from specdec.model import ArenaModel
from specdec.request import Capacity, Request
from specdec.rows import Kind, Live, Rows
from specdec.stats import Call, Stats
from specdec.stops import FinishReason, StopWatcher
from specdec.taps import Taps
from specdec.threads import one_torch_thread


@dataclass(frozen=True)
class Completion:
    """A finished request: its tokens, the kind of each token, the reason for its end, and the time of each token.

    ``times`` are seconds from the submission of the request to the emission of each token, waiting included; tokens
    of one step have one time. ``prefill_s`` is the duration of the prefill, calls of the draft included, in seconds.
    ``logprobs`` are those of each token, or empty if the request did not ask for them.
    """

    request: Request
    tokens: tuple[int, ...]
    kinds: tuple[Kind, ...]
    finish_reason: FinishReason
    times: tuple[float, ...]
    prefill_s: float
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class KeptText:
    """The text of an ended request, a copy of the keys and values of all its tokens except the last, and what the draft
    keeps (None: nothing)."""

    tokens: tuple[int, ...]
    cells: KeptCells
    drafted: object = None

    def common(self, prompt: tuple[int, ...]) -> int:
        """How many cells can be used for ``prompt``: those of the common beginning, without the prompt's last token.

        A ring that has begun to overwrite itself holds the end of its own text only, so none if the texts part earlier.
        """
        most = min(self.cells.length, len(prompt) - 1)
        same = next((i for i in range(most) if self.tokens[i] != prompt[i]), most)
        return 0 if self.cells.wrapped and same < self.cells.length else same

    def usable(self, prompt: tuple[int, ...], needs_hidden: bool) -> int:
        """How many cells can be used for ``prompt`` with a draft that reads hidden states, or with one that does not.

        The first kind pairs a state with the token after it, so it needs the last common token's state again. A ring
        that has overwritten itself cannot be shortened for that.
        """
        common = self.common(prompt)
        if not needs_hidden:
            return common
        return 0 if self.drafted is None or self.cells.wrapped else max(common - 1, 0)


class Queue:
    """The requests of an engine's run, on their way through its rows.

    A request waits until a row is free. On its admission the draft learns of it and the target reads its prompt; at its
    end it leaves ``finished`` a completion by its id, and ``kept``, which outlives a run, what another request may
    continue. Reads and writes rows, arena and the draft's state, and counts in the ``stats`` of ``begin``. ``taps`` are
    the hidden states that the draft asks for.
    """

    def __init__(
        self,
        rows: Rows,
        arena: Arena,
        target: ArenaModel,
        draft: Draft | None,
        capacity: Capacity,
        max_rows: int,
        max_window: int,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self.rows, self.arena, self.target, self.draft = rows, arena, target, draft
        self.capacity, self.max_rows, self.max_window, self.tokenizer = capacity, max_rows, max_window, tokenizer
        self.taps = Taps.of([draft] if draft else [])
        self.small_draft = target.own_threads and draft is not None and draft.small_ops
        self.kept: dict[int, KeptText] = {}

    def begin(self, stats: Stats) -> None:
        """Begin a run without requests, counted in ``stats``; what is kept stays."""
        self.stats = stats
        self.finished: dict[int, Completion] = {}
        self.waiting: deque[tuple[Request, float]] = deque()  # with the time of submission
        self.ids: set[int] = set()

    def submit(self, requests: Sequence[Request], now: float) -> None:
        """Append requests, and admit as many as there are free rows."""
        self.ids.update(request.id for request in requests)
        self.waiting.extend((request, now) for request in requests)
        while self.waiting and len(self.rows.live) < self.max_rows:
            self._admit(len(self.rows.live), *self.waiting.popleft())

    def cancel(self, ids: Collection[int]) -> set[int]:
        """Remove requests, those in rows and those that wait; returns the ids of those that were there."""
        freed = [row for row, live in enumerate(self.rows.live) if live.request.id in ids]
        gone = {self.rows.live[row].request.id for row in freed}
        gone.update(request.id for request, _ in self.waiting if request.id in ids)
        self.waiting = deque(entry for entry in self.waiting if entry[0].id not in gone)
        self.ids -= gone
        for row in freed:
            self._release(row, self.rows.live[row])
        self._refill(freed)
        return gone

    def leave(self) -> None:
        """Remove finished rows; a waiting request, or else the last live row, takes each free row."""
        freed = [row for row, live in enumerate(self.rows.live) if live.finish]
        for row in freed:
            live = self.rows.live[row]
            assert live.finish
            times = tuple(t - live.submitted for t in live.times)
            self.finished[live.request.id] = Completion(
                live.request,
                tuple(live.tokens),
                tuple(live.kinds),
                live.finish,
                times,
                self.stats.stopwatch.seconds(*live.prefill),  # its events are over: the step has been read
                tuple(live.logprobs),
            )
            if live.request.keep:
                self._keep(row, live)
            self._release(row, live)
        self._refill(freed)

    def _admit(self, row: int, request: Request, submitted: float) -> None:
        start = self.stats.stopwatch.mark()
        limit = min(len(request.prompt) + request.params.max_new_tokens, self.capacity.longest)
        watcher = StopWatcher(request.params, limit - len(request.prompt), self.tokenizer)
        live = Live(request, limit, watcher, submitted=submitted)
        first = self._start(row, request)
        for position, tokens, hidden in self.target.prefill(self.arena, row, request.prompt, first, self.taps):
            self.stats.counts["prefill_forwards"] += 1
            self.stats.counts["kv_appended_tokens_total"] += tokens.shape[1]
            if self.draft and self.taps:
                self.count_tapped(hidden)
                with self._attributed("prefilled"):
                    self.draft.prefilled(row, tokens, position, hidden)
        self.rows.admit(row, live)
        live.prefill = start, self.stats.stopwatch.mark()

    def _start(self, row: int, request: Request) -> int:
        """Give the request to the draft, and restore what the request that it continues left.

        Returns the number of the prompt's tokens whose cells are in place.
        """
        kept = None if request.continues is None else self.kept.pop(request.continues)
        first = 0 if kept is None else kept.usable(request.prompt, needs_hidden=bool(self.taps))
        if kept is not None and first:
            self.stats.counts["kv_kept_bytes_copied"] += self.arena.restore(row, kept.cells, first)
            self.stats.counts["kv_reused_tokens"] += first
        if self.draft is None:
            return first
        if kept is not None and first and kept.drafted is not None:
            with self._attributed("resume"):
                self.draft.resume(row, request, request.prompt, kept.drafted, first)
        else:
            with self._attributed("admit"):
                self.draft.admit(row, request, request.prompt)
        return first

    def count_tapped(self, hidden: Tensor) -> None:
        """Count what was copied out of layers for the draft; the states after the final norm alone are no copy."""
        if self.taps.layers:
            self.stats.counts["hidden_bytes_copied"] += hidden.nbytes

    def _keep(self, row: int, live: Live) -> None:
        text = (*live.request.prompt, *live.tokens)
        cells = self.arena.keep(row, len(text) - 1, self.max_window)
        self.stats.counts["kv_kept_bytes_copied"] += cells.nbytes
        drafted = None
        if self.draft:
            with self._attributed("keep"):
                drafted = self.draft.keep(row, text)
        self.kept[live.request.id] = KeptText(text, cells, drafted)

    def _release(self, row: int, live: Live) -> None:
        if self.draft:
            with self._attributed("release"):
                self.draft.release(row, (*live.request.prompt, *live.tokens))

    def _refill(self, freed: list[int]) -> None:
        """Give each freed row, in ascending order, to a waiting request, or else to the last live row."""
        while freed and self.waiting:
            self._admit(freed.pop(0), *self.waiting.popleft())
        # From the end, so that the last row is either the freed row itself or live.
        for row in reversed(freed):
            last = len(self.rows.live) - 1
            if row < last:
                self._move(last, row)
            self.rows.drop()

    def _move(self, source: int, row: int) -> None:
        self.stats.counts["kv_rows_moved_bytes"] += self.arena.move(source, row)
        self.rows.move(source, row)
        live = self.rows.live[row]
        if self.draft:
            with self._attributed("move"):
                self.draft.move(source, row, live.request, (*live.request.prompt, *live.tokens))

    @contextmanager
    def _attributed(self, name: str) -> Iterator[None]:
        """Record the time of a call into the draft outside a step."""
        start = self.stats.stopwatch.mark()
        with one_torch_thread(self.small_draft):
            yield
        self.stats.calls.append(Call(name, start, self.stats.stopwatch.mark()))
