"""Drafts with entries of the text, computed from the target's states: when they are read, and who keeps them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from specdec import Context, Draft, Request, Window
from specdec.arena import Arena, KeptCells, LayerShape
from specdec.interfaces import Env
from specdec.model import PREFILL_CHUNK
from specdec_plugins.backlog import Backlog
from specdec_plugins.reading import known_text

RESTS = 4
"""Steps without proposals of its own after which prompts wait too. At its end a request has one in any case: it has no
room."""

MOST_WAITING = 1024
"""Tokens of a row that may lack their entries: their states are kept until then."""

TOGETHER = 16
"""Tokens that rows may lack to be read in one forward with the others, in which all are as many as those of the row
that lacks most."""


class EntryDraft(Draft):
    """Keeps an entry of each committed token in an arena of its own, and computes it when it is needed.

    While the draft is not asked, the entries of steps and of new prompts wait until it is (``Backlog``): neither plain
    decoding nor another draft's proposals pay for this one, and a request that ends before costs nothing. A subclass
    calls ``_begin`` before it proposes, ``_put_off`` in steps in which it did not (``_asked_now``), and ``_catch_up``
    and ``_lengthen`` before and after it computes entries itself. ``layers`` are the draft's attention layers,
    ``widest`` is its widest window.
    """

    small_ops = True

    def __init__(self, env: Env, layers: Sequence[LayerShape], widest: int) -> None:
        widest = max(env.max_window, min(PREFILL_CHUNK, env.max_length), widest)
        self._arena = Arena(
            layers,
            rows=env.max_rows,
            max_length=env.max_length + widest,
            max_window=widest,
            dtype=env.target.dtype,
            device=env.target.device,
        )
        self._ops, self._runtime = env.ops, env.runtime
        # The host's bound on the entries of a row, those that wait included, and its limit.
        self._longest, self._most_tokens = 0, env.max_length
        self._backlog, self._rested = Backlog(), 0  # what lacks its entries; steps since the last proposals
        self._asked_now = False  # whether it proposes in the step that runs

    @abstractmethod
    def _enter(self, window: Window, hidden: Tensor, rows: slice, longest: int, last: Tensor) -> None:
        """Compute the entries of known text, from the target's states [B, W, …] of its slots.

        Of each row the slots up to ``last`` int64 [B] are text: -1 where none is. In place: the arena's cells past what
        is committed, which the caller commits.
        """

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Empty the row."""
        self._arena.reset(row)
        self._longest = max(self._longest, len(prompt) - 1)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """Forget what the row lacks."""
        self._backlog.drop(row)

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """The entries of all tokens except the last."""
        if row in self._backlog.waiting():
            self._read([row], self._longest)
        return self._arena.keep(row, len(tokens) - 1, self._arena.max_window)

    def resume(self, row: int, request: Request, prompt: tuple[int, ...], kept: object, first: int) -> None:
        """Restore the entries of the common tokens; the target's states of the others follow."""
        assert isinstance(kept, KeptCells)
        self.admit(row, request, prompt)
        self._arena.restore(row, kept, first)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the row's entries, and what it lacks, with the request."""
        self._arena.move(source, row)
        self._backlog.move(source, row)

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Compute the entries of a chunk of the prompt, or let them wait while the draft is not asked."""
        self._backlog.add(row, tokens, hidden)
        if self._rested < RESTS or self._backlog.waiting()[row] > MOST_WAITING:
            self._read([row], start)

    def _put_off(self, tokens: Tensor, hidden: Tensor, counts: Tensor) -> None:
        """Let a step's entries wait: the first ``counts`` int64 [B] of tokens int64 [B, W] and states [B, W, …]."""
        self._rested += 1
        self._lengthen(tokens.shape[1])
        self._backlog.add(0, tokens, hidden, counts)
        for row, waiting in self._backlog.waiting().items():
            if waiting > MOST_WAITING:
                self._read([row], self._longest)

    def _begin(self, context: Context) -> None:
        """The draft is asked: compute what the rows lack."""
        self._longest, self._rested, self._asked_now = int(context.length_host.max()) - 1, 0, True
        self._catch_up()

    def _lengthen(self, tokens: int) -> None:
        """No row has more new entries than ``tokens``."""
        # Without this limit, the bound would grow far too large while another draft's windows are verified.
        self._longest = min(self._longest + tokens, self._most_tokens)

    def _catch_up(self) -> None:
        """Compute the entries of all rows: of one that lacks many by itself, of the others together."""
        for row, count in self._backlog.waiting().items():
            if count > TOGETHER:
                self._read([row], self._longest)
        if self._backlog:
            self._read([*range(max(self._backlog.waiting()) + 1)], self._longest)

    def _read(self, rows: list[int], longest: int) -> None:
        """Compute what neighbouring rows lack, of each as much as of the one that lacks most.

        ``longest``: the host's bound on their entries so far.
        """
        tokens, hidden, counts = self._backlog.of(rows)
        at, widest = slice(rows[0], rows[-1] + 1), self._arena.max_window
        for start in range(0, tokens.shape[1], widest):
            chunk = slice(start, start + widest)
            read = (counts - start).clamp(min=0, max=widest)
            some, bound = known_text(tokens[:, chunk]), min(longest + start, self._longest)
            self._enter(some, hidden[:, chunk], at, bound, read - 1)
            # A row that lacks fewer goes on past its end, where nothing is committed.
            self._arena.committed[at] += read

    def _bound(self) -> int:
        return self._runtime.longest(self._longest, self._most_tokens)
