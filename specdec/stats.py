"""Exact counters and timings of a run.

The counters do not depend on the clock: with a deterministic controller and one seed, they repeat
exactly if the emitted ids repeat.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from specdec.devices import Stopwatch
from specdec.lengths import Ks


class Marks(NamedTuple):
    """Stopwatch marks of a step, in order: its start, then the end of each part.

    The controller chose K; the context was made (``asked``); the draft proposed; the target's forward ended; the policy
    accepted; keys and values were committed; the rows were extended; the draft observed; the step's one read was
    absorbed (``end``).
    """

    start: int
    chosen: int
    asked: int
    proposed: int
    forwarded: int
    judged: int
    committed: int
    extended: int
    observed: int
    end: int


class RowStep(NamedTuple):
    """One row of one step: its proposals, the largest depth of one of them, and the accepted and emitted tokens."""

    proposed: int
    deepest: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class Step:
    """One step.

    ``k`` is the largest number of proposals of a row, ``width`` is W and ``rows`` is B. ``proposed``, ``accepted``
    and ``emitted`` count the tokens of all rows, ``each`` those of each row; ``draft_forwards`` counts those of the
    draft's own model.
    """

    k: int
    width: int
    rows: int
    proposed: int
    accepted: int
    emitted: int
    marks: Marks
    each: tuple[RowStep, ...] = ()
    draft_forwards: int = 0

    @staticmethod
    def of(each: tuple[RowStep, ...], width: int, marks: Marks, draft_forwards: int = 0) -> Step:
        """The step of these rows, with a window of ``width`` slots."""
        proposed, _, accepted, emitted = (sum(counts) for counts in zip(*each, strict=True))
        return Step(width - 1, width, len(each), proposed, accepted, emitted, marks, each, draft_forwards)

    def slots(self, skips_padding: bool) -> float:
        """What a row of the step had to compute, in slots: W or, where padding costs nothing
        (``ArenaModel.skips_padding``), the mean over the rows."""
        return 1 + self.proposed / self.rows if skips_padding else self.width


@dataclass(frozen=True)
class Call:
    """One call into the draft outside a step: ``name`` is the method's, ``start`` and ``end`` are stopwatch marks."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the parts of a step: the controller, the draft (``propose`` and ``observe``), the target's forward,
    acceptance, the commit of keys and values, and the host (the rest)."""

    control: float
    draft: float
    target: float
    accept: float
    commit: float
    host: float

    @property
    def booked(self) -> float:
        """Seconds of all parts except the host."""
        return self.control + self.draft + self.target + self.accept + self.commit

    @property
    def rest(self) -> float:
        """Seconds of all parts except draft and target forward."""
        return self.control + self.accept + self.commit + self.host


@dataclass
class RowStats:
    """A live request so far, in whatever row it is; read-only for controllers.

    ``request`` is its id, ``length`` its tokens with the prompt, ``room`` the most proposals that it can still use, and
    ``steps`` the number of its steps. Of its last step: ``asked`` is K, ``last`` what came of it (None before the
    first), ``confidence`` the draft's own of each proposal (see ``Window.confidence``): None for one without an
    estimate, empty where none has one.
    ``proposed_per_pos`` and ``accepted_per_pos`` are those of ``Stats``, of this request alone.
    """

    request: int
    length: int = 0
    room: int = 0
    steps: int = 0
    asked: int = 0
    last: RowStep | None = None
    confidence: tuple[float | None, ...] = ()
    proposed_per_pos: list[int] = field(default_factory=list)
    accepted_per_pos: list[int] = field(default_factory=list)

    def book(self, row: RowStep, asked: int, confidence: tuple[float | None, ...]) -> None:
        """Add a step of this request."""
        self.steps += 1
        self.asked, self.last, self.confidence = asked, row, confidence
        _raise_first(self.proposed_per_pos, row.deepest)
        _raise_first(self.accepted_per_pos, row.accepted)


@dataclass
class Stats:
    """Counters and steps of the run so far; read-only for controllers.

    ``batch`` is the number of live rows, ``lengths`` their lengths in tokens, and ``rows`` each of them so far, in the
    order in which a controller gives their K; ``waiting`` counts the requests that wait for a row, and ``closed`` says
    that no further ones come before these have ended (``Engine.submit``). ``heeds_price`` says that the draft leaves
    out proposals that are not worth what the controller's ``slot_price`` says they cost.
    ``accepted_per_pos[i]`` counts the proposals accepted at depth i + 1; ``proposed_per_pos[i]`` counts the pairs of
    step and row with a proposal at that depth. ``chosen`` is the controller's K of each step of an engine with a draft:
    one number, or one for each row where they differ. ``ops`` counts the calls of each (op, backend); it is complete
    when the run is over. ``calls`` are the calls into the draft outside steps.
    """

    stopwatch: Stopwatch
    batch: int = 0
    lengths: tuple[int, ...] = ()
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    accepted_per_pos: list[int] = field(default_factory=list)
    proposed_per_pos: list[int] = field(default_factory=list)
    chosen: list[Ks] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ops: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: tuple[RowStats, ...] = ()
    waiting: int = 0
    closed: bool = False
    heeds_price: bool = False

    def proposed(self, count: int, deepest: int) -> None:
        """Count one row's proposals in one step; ``deepest`` is their largest depth, which is ``count`` for a chain."""
        if count:
            self.counts["num_drafts"] += 1
            self.counts["num_draft_tokens"] += count
            _raise_first(self.proposed_per_pos, deepest)

    def accepted(self, count: int) -> None:
        """Count one row's accepted proposals in one step."""
        self.counts["num_accepted_tokens"] += count
        _raise_first(self.accepted_per_pos, count)

    def times(self, step: Step) -> StepTimes:
        """The seconds of each part of a step; waits for the device."""
        control, context, propose, target, accept, commit, extend, observe, absorb = (
            self.stopwatch.seconds(a, b) for a, b in itertools.pairwise(step.marks)
        )
        return StepTimes(control, propose + observe, target, accept, commit, context + extend + absorb)

    def called(self, *names: str) -> float:
        """The seconds of all calls into the draft of these names outside steps; waits for the device."""
        return sum(self.stopwatch.seconds(call.start, call.end) for call in self.calls if call.name in names)

    def counters(self) -> dict[str, int | list[int]]:
        """Every counter that does not depend on the clock, by its public name."""
        names = (
            "target_forwards",
            "prefill_forwards",
            "draft_forwards",
            "num_drafts",
            "num_draft_tokens",
            "num_accepted_tokens",
            "num_emitted_tokens",
            "host_reads",
            "kv_appended_tokens_total",
            "kv_bytes_copied",
            "kv_rows_moved_bytes",
            "allocations",
        )
        return {
            **{name: self.counts[name] for name in (*names, *sorted(set(self.counts) - set(names)))},
            "num_accepted_tokens_per_pos": list(self.accepted_per_pos),
        }

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / proposed; None when nothing was proposed."""
        proposed = self.counts["num_draft_tokens"]
        return self.counts["num_accepted_tokens"] / proposed if proposed else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts, as in vLLM; drafts are the pairs of step and row with proposals; None without any."""
        drafts = self.counts["num_drafts"]
        return 1 + self.counts["num_accepted_tokens"] / drafts if drafts else None

    @property
    def tau(self) -> float | None:
        """Emitted tokens per row and target forward, prefill excluded: 1 for plain decoding."""
        row_forwards = sum(step.rows for step in self.steps)
        return self.counts["num_emitted_tokens"] / row_forwards if row_forwards else None


def _raise_first(totals: list[int], count: int) -> None:
    totals.extend([0] * (count - len(totals)))
    for index in range(count):
        totals[index] += 1
