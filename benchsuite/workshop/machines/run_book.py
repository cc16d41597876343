"""A run of the engine, counted again from its windows and verdicts alone, and compared with what the engine says of it.

The engine's counters, records, completions and rows are results here, never inputs. From the engine come the windows
that the target saw, the paths that a policy accepted, and the calls that a draft was given.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specdec import Completion, Context, Engine, Request, Verdict, Window
from specdec.ledger import adjusts
from specdec.lengths import each_k
from specdec.stats import RowStep

Proposals = dict[tuple[int, tuple[int, ...], int], tuple[tuple[int, ...], ...]]
"""For a request's id, its text and K: the tokens proposed, and their parents."""


@dataclass
class Output:
    """What a request has emitted by the book's own count, with the kind of each token and the step it came in."""

    request: Request
    limit: int
    tokens: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    ended: str | None = None

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and output."""
        return (*self.request.prompt, *self.tokens)


class Book:
    """The book of one run of an engine that has a draft; ``chunk``: the prompt tokens of a forward of a prefill.

    Example: ``with Book(engine, 256).kept() as book: engine.submit(requests)``, then ``engine.step()`` and
    ``book.check()`` while ``engine.rows.live``, and ``book.check_end()``
    """

    def __init__(self, engine: Engine, chunk: int) -> None:
        self.engine, self.chunk = engine, chunk
        self.outputs: dict[int, Output] = {}
        self.cancelled: set[int] = set()
        self.rows: dict[int, int] = {}  # the request of each row, as the draft was told
        self.counts = Counter[str]()
        self.accepted_at = Counter[int]()
        self.proposed_at = Counter[int]()
        self.steps: list[tuple[RowStep, ...]] = []
        self.proposals: Proposals = {}

    @contextmanager
    def kept(self) -> Iterator[Book]:
        """Begin a new run of the engine, and write down what happens in it. In place: the engine's ``trace``, and
        methods of its draft, which are as before afterwards."""
        draft: Any = self.engine.draft
        self.engine.run([])
        self.engine.trace = self._seen
        for name in ("admit", "release", "move"):
            object.__setattr__(draft, name, self._told(getattr(draft, name), getattr(self, f"_{name}")))
        try:
            yield self
        finally:
            self.engine.trace = None
            for name in ("admit", "release", "move"):
                object.__delattr__(draft, name)

    def _told(self, method: Callable[..., None], note: Callable[..., None]) -> Callable[..., None]:
        """A method of the draft that the engine calls; a call that the draft makes itself is its own affair."""

        def called(*arguments: Any) -> None:
            if not self._inside:
                note(*arguments)
            inside, self._inside = self._inside, True
            try:
                method(*arguments)
            finally:
                self._inside = inside

        return called

    _inside = False

    def _admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        assert row not in self.rows, f"row {row} is given to request {request.id}; {self.rows[row]} is still in it"
        assert prompt == request.prompt, "a draft is told another prompt than the request has"
        self.rows[row] = request.id
        limit = min(request.params.max_new_tokens, self.engine.max_length - len(prompt))
        self.outputs[request.id] = Output(request, limit)
        self.counts["prefill_forwards"] += -(-(len(prompt) - 1) // self.chunk)
        self.counts["kv_appended_tokens_total"] += len(prompt) - 1

    def _release(self, row: int, tokens: tuple[int, ...]) -> None:
        out = self.outputs[self.rows.pop(row)]
        assert tokens == out.text, f"request {out.request.id} is released with {tokens}, its text is {out.text}"

    def _move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        assert row not in self.rows, f"request {request.id} moves to row {row}; {self.rows[row]} is still in it"
        self.rows[row] = self.rows.pop(source)
        out = self.outputs[request.id]
        assert self.rows[row] == request.id, "another request moves than the draft is told"
        assert tokens == out.text, f"request {request.id} moves with {tokens}, its text is {out.text}"
        self.counts["kv_rows_moved_bytes"] += self.engine.arena.row_bytes

    def _seen(self, context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        """A step, after its acceptance: each row's window and path must be sound, and are counted."""
        ks = each_k(self.engine.stats.chosen[-1], context.rows)
        each = []
        for row, number in enumerate(context.request.tolist()):
            assert self.rows.get(row) == number, f"row {row} decodes request {number}; the draft knows {self.rows}"
            width = int(window.width[row])
            tokens, parents = (part[row, :width].tolist() for part in (window.tokens, window.parents))
            path = [slot for slot in verdict.path[row].tolist() if slot >= 0]
            assert len(path) == 1 + int(verdict.num_accepted[row]), "a path and the number accepted"
            each.append(self._row(self.outputs[number], ks[row], tokens, parents, path, int(verdict.next[row])))
        self.steps.append(tuple(each))
        self.counts["kv_appended_tokens_total"] += window.tokens.numel()

    def _row(
        self, out: Output, k: int, tokens: list[int], parents: list[int], path: list[int], following: int
    ) -> RowStep:
        proposed, accepted, text = len(tokens) - 1, len(path) - 1, out.text
        room = min(k, out.limit - len(out.tokens) - 1)
        assert proposed <= room, f"{proposed} proposals to request {out.request.id}, there is room for {room}"
        assert tokens[0] == text[-1], f"the pending token is {tokens[0]}, the text ends with {text[-1]}"
        assert path[0] == 0, f"a path begins at {path[0]}"
        assert [parents[slot] for slot in path[1:]] == path[:-1], f"{path} is no path of the parents {parents}"
        depths = [0] * len(tokens)
        for slot in range(1, len(tokens)):
            assert 0 <= parents[slot] < slot, f"the parents {parents} are no tree"
            depths[slot] = depths[parents[slot]] + 1
        if proposed and room == k:
            self.proposals[out.request.id, text, k] = tuple(tokens[1:]), tuple(parents[1:])
        kept = 0
        for token in [*(tokens[slot] for slot in path[1:]), following]:
            last = "plain" if proposed == 0 else "bonus" if accepted == proposed else "recovered"
            out.tokens.append(token)
            out.kinds.append("accepted" if kept < accepted else last)
            out.steps.append(len(self.steps))
            kept += 1
            out.ended = self.ending(out)
            if out.ended:
                break
        row = RowStep(proposed, max(depths), min(accepted, kept), kept)
        self._count(row, path)
        return row

    def _count(self, row: RowStep, path: list[int]) -> None:
        self.counts["num_drafts"] += row.proposed > 0
        self.counts["num_draft_tokens"] += row.proposed
        self.counts["num_accepted_tokens"] += row.accepted
        self.counts["num_emitted_tokens"] += row.emitted
        self.accepted_at.update(range(row.accepted))
        self.proposed_at.update(range(row.deepest))
        arena, size = self.engine.arena, self.engine.target.dtype.itemsize
        cell = sum(2 * layer.heads * layer.head_dim * size for layer in arena.layers)
        state = sum(ring[0, 0].nbytes for ring in arena.states.rings.values())
        moved = sum(slot != depth for depth, slot in enumerate(path))
        self.counts["kv_bytes_copied"] += moved * cell + (state if moved else 0)

    def ending(self, out: Output) -> str | None:
        """Why an output ends with its last token; the whole of it is decoded."""
        params = out.request.params
        if out.tokens[-1] in params.eos:
            return "eos"
        if params.stop:
            assert self.engine.tokenizer
            said = self.engine.tokenizer.decode(out.tokens)
            if any(stop in said for stop in params.stop):
                return "stop"
        return "length" if len(out.tokens) == out.limit else None

    def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel requests of the engine."""
        self.cancelled |= {number for number in numbers if number not in self.engine.finished}
        self.engine.cancel(numbers)

    def check(self) -> None:
        """Between steps: rows, arena, penalties and counters are the book's. AssertionError names what is not."""
        engine, rows = self.engine, self.engine.rows
        live = {row: live.request.id for row, live in enumerate(rows.live)}
        assert live == self.rows, f"the engine has the requests {live} in its rows, the draft was told {self.rows}"
        for row, number in live.items():
            out = self.outputs[number]
            assert rows.live[row].tokens == out.tokens, f"request {number}: tokens"
            committed, length = int(engine.arena.committed[row]), len(out.text)
            assert committed == length - 1, f"request {number}: {committed} cells for {length} tokens"
            if adjusts(out.request.params):
                assert rows.ledger.memory is not None
                counted = rows.ledger.memory.emitted[row]
                done = out.text[len(out.request.prompt) - out.request.emitted :]
                expected = {token: done.count(token) for token in done}
                found = {int(token): int(counted[token]) for token in counted.nonzero()[:, 0]}
                assert found == expected, f"penalties of request {number} count {found}, emitted are {expected}"
        self._check_counts()

    def _check_counts(self) -> None:
        stats = self.engine.stats
        steps = len(self.steps)
        expected = {**self.counts, "host_reads": steps, "target_forwards": steps}
        for name, count in expected.items():
            assert stats.counts[name] == count, f"{name} is {stats.counts[name]}, counted were {count}"
        for found, counted, name in (
            (stats.accepted_per_pos, self.accepted_at, "accepted"),
            (stats.proposed_per_pos, self.proposed_at, "proposed"),
        ):
            due = [counted[place] for place in range(max(counted, default=-1) + 1)]
            assert found == due, f"{name} by depth are {found}, counted were {due}"
        assert [step.each for step in stats.steps] == self.steps, "the records of steps and rows"
        for step, rows in zip(stats.steps, self.steps, strict=True):
            sums = tuple(map(sum, zip(*rows, strict=True)))
            own = step.proposed, step.accepted, step.emitted
            assert own == (sums[0], sums[2], sums[3]), f"a step says {own}, its rows say {sums}"
            assert step.rows == len(rows)
            assert max(row.proposed for row in rows) <= step.k == step.width - 1, "the width of a step"
        emitted, drafts = self.counts["num_emitted_tokens"], self.counts["num_drafts"]
        accepted, proposed = self.counts["num_accepted_tokens"], self.counts["num_draft_tokens"]
        row_steps = sum(map(len, self.steps))
        assert stats.tau == (emitted / row_steps if row_steps else None), "tau"
        assert stats.acceptance_rate == (accepted / proposed if proposed else None), "acceptance rate"
        assert stats.mean_acceptance_length == (1 + accepted / drafts if drafts else None), "mean acceptance length"

    def check_end(self) -> None:
        """After the last request: nothing is left in a row, and every completion is the book's."""
        assert not self.engine.rows.live
        assert not self.engine.waiting
        assert not self.rows, f"the draft still has the requests {self.rows} in its rows"
        ended = {number for number, out in self.outputs.items() if out.ended}
        assert self.engine.finished.keys() == ended, f"{sorted(self.engine.finished)} have ended, due are {ended}"
        assert not ended & self.cancelled
        open_ = self.outputs.keys() - ended - self.cancelled
        assert not open_, f"requests {open_} neither ended nor were cancelled"
        for number, done in self.engine.finished.items():
            self._check_completion(self.outputs[number], done)
        emitted = sum(len(out.tokens) for out in self.outputs.values())
        assert self.counts["num_emitted_tokens"] == emitted, "emitted tokens and those of all requests"

    @staticmethod
    def _check_completion(out: Output, done: Completion) -> None:
        number = out.request.id
        assert list(done.tokens) == out.tokens, f"request {number}: {done.tokens}, counted were {out.tokens}"
        assert list(done.kinds) == out.kinds, f"request {number}: {done.kinds}, counted were {out.kinds}"
        assert done.finish_reason == out.ended, f"request {number} ends by {done.finish_reason}, due is {out.ended}"
        wanted = out.request.params.logprobs
        assert len(done.logprobs) == (0 if wanted is None else len(out.tokens)), f"log-probabilities of {number}"
        assert len(done.times) == len(out.tokens), f"times of request {number}"
        together = [step == before for before, step in itertools.pairwise(out.steps)]
        for same, (before, at) in zip(together, itertools.pairwise(done.times), strict=True):
            assert (at == before) if same else (at > before), f"times of request {number}: {done.times}"
