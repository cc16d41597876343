"""The engine: one loop for every strategy, batch size and window shape.

A step is one proposal, one target forward and one acceptance. Plain decoding is a step whose window is the
pending token alone; one sequence is a batch of one row; a chain is a tree that does not branch.

The engine knows nothing about text (except stop strings), about which strategies exist, or about pytest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specdec import logprobs
from specdec.confidence import confidence_bits, confidence_read
from specdec.devices import HostCopy, Stopwatch, synchronize
from specdec.errors import SpecdecError
from specdec.interfaces import Backend, Controller, Draft, Policy
from specdec.lengths import Ks, Price, allowed_k, allowed_price, each_k
from specdec.messages import Context, Verdict, Window
from specdec.model import ArenaModel
from specdec.queue import Completion, KeptText, Queue
from specdec.ranks import Lockstep, joined_ranks
from specdec.request import Capacity, Request, SamplingParams, refuse_conflicts
from specdec.rows import TAIL, Kind, Live, Rows
from specdec.runtime import Eager, Runtime, Steps
from specdec.stats import Marks, RowStep, Stats, Step
from specdec.stops import FinishReason, StopWatcher
from specdec.text import TextStream
from specdec.threads import one_torch_thread


class Forward(NamedTuple):
    """What a forward of the target returns: see ``ArenaModel.forward``."""

    logits: Tensor
    hidden: Tensor


SMALL = 1 << 22
"""Logits of a step up to which one thread of torch is enough for its policy: 85 slots of a vocabulary of 49,152."""

Tracer = Callable[[Context, Window, Tensor, Verdict], None]


@dataclass(frozen=True)
class StreamedToken:
    """One token of a stream: the id of its request, the token and its kind, and the text that can be shown with it.

    ``text`` is empty while the text is undecided (see ``TextStream``), and always without a tokenizer.
    ``finish_reason`` is None except at the last token of a request.
    """

    request_id: int
    token: int
    kind: Kind
    text: str
    finish_reason: FinishReason | None = None


class Engine:
    """Runs requests over a target with one draft, one policy and one controller.

    ``draft=None`` is plain decoding. ``max_rows`` requests run at once, the others wait; ``max_length``
    limits prompt and output together, in tokens. ``finished`` holds the completions of the run so far, by request id;
    ``kept``, also across runs, what ended requests with ``keep`` left and no other request has continued yet.
    ``trace``, when set, is called after every acceptance with the context, the window, the raw logits [B, W, V]
    and the verdict; it may read the device, which the step itself must not do. ``replayed()`` says how often the draft
    has asked for plain decoding's output, ``set_up_seconds`` how long the factories of ``draft`` and ``controller``
    took, and ``exact`` whether windows of every width were proved to give the same bits; ``Assembly`` fills in all.

    Raises SpecdecError for a draft that proposes trees with a policy that reads chains only, and for one that reads the
    output of a layer that the target does not have.

    Example: ``Engine(target, draft=None, policy=policy, controller=controller, ops=ops, max_rows=1,
    max_length=256).run([Request(0, prompt)])``
    """

    def __init__(
        self,
        target: ArenaModel,
        *,
        draft: Draft | None,
        policy: Policy,
        controller: Controller,
        ops: Backend,
        max_rows: int,
        max_length: int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        replayed: Callable[[], int] = lambda: 0,
        runtime: Runtime | None = None,
    ) -> None:
        if draft is not None and draft.branches and not policy.trees:
            raise SpecdecError(
                f"the draft {type(draft).__name__} proposes trees and the policy {type(policy).__name__} reads "
                "chains only; choose a policy with trees, for example match"
            )
        self.target, self.draft, self.policy, self.controller, self.ops = target, draft, policy, controller, ops
        self.tokenizer, self.replayed = tokenizer, replayed
        self.runtime = runtime or Eager()
        ranks = joined_ranks()
        self._lockstep = Lockstep(ranks) if ranks and target.sharding else None
        self.set_up_seconds: dict[str, float] = {}
        self.exact = False
        self.max_rows, self.max_length = max_rows, max_length
        self.max_window = 1 if draft is None else controller.max_k + 1
        self.arena = target.arena(max_rows, max_length, self.max_window)
        self._moved_bytes = self.arena.bytes_per_token(target.layers, target.dtype), self.arena.states.state_bytes
        self.rows = Rows(max_rows, max_length + self.max_window, target.vocabulary, target.device)
        self.trace: Tracer | None = None
        self._host = HostCopy(target.device)
        capacity = Capacity(max_length, target.limit, target.vocabulary)
        self.queue = Queue(self.rows, self.arena, target, draft, capacity, max_rows, self.max_window, tokenizer)
        self.queue.taps.refuse_beyond(len(target.layers), type(draft).__name__)
        self._begin()

    def _begin(self) -> None:
        self.stats = Stats(Stopwatch(self.target.device))
        # Ranks choose the same K; prices come from each one's own clock. Where a policy is not coupled, models draw.
        draft, coupled = self.draft, self.policy.coupled
        priced = draft is not None and draft.heeds_price and (draft.looks_up or coupled)
        self.stats.heeds_price = priced and not self._lockstep
        self.stats.counts["allocations"] = self.arena.allocations + self.rows.allocations
        self.queue.begin(self.stats)
        self._streams: list[set[int]] = []  # for each open stream, the ids of which it has not given everything
        self._draft_before = dict(self.draft.info()) if self.draft else {}
        self._draft_forwards = self._draft_before.get("draft_forwards", 0)
        self._ops_before = self.ops.ran()

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests to their ends; returns their completions in the same order. ``stats`` then covers only this run.

        Raises SpecdecError as ``submit`` does, before anything runs.
        """
        self._refuse(requests, taken=())
        self._begin()
        self.rows.clear()
        self._take(requests, closed=True)
        while self.rows.live:
            self.step()
        if self._lockstep:
            self._lockstep.over()
        if self.draft:
            self.stats.counts.update(self.draft.info())
            self.stats.counts.subtract(self._draft_before)
        self.stats.ops = self.ops.ran() - self._ops_before
        return [self.finished[request.id] for request in requests]

    def submit(self, requests: Sequence[Request], closed: bool = False) -> None:
        """Append requests to the queue. As many as there are free rows are prefilled now; each call of ``step`` then
        decodes the live rows (``rows.live``) and fills the rows that become free. ``closed``: no further requests come
        before these have ended, which a controller may use; it changes no output.

        Raises SpecdecError, before anything is prefilled, for an empty prompt, a prompt longer than ``max_length`` or
        the model allows, token ids outside the vocabulary, or an id that another request of the run has.

        Example: ``engine.submit([Request(0, prompt)])``, then ``engine.step()`` while ``engine.rows.live``;
        ``engine.finished[0].tokens`` are its tokens. The counters of ops and of the draft are added by ``run`` alone.
        """
        self._refuse(requests, taken=self.queue.ids)
        self._take(requests, closed)

    def stream(self, requests: Sequence[Request]) -> Generator[StreamedToken, None, None]:
        """Submit requests; returns a generator of their tokens as they are committed, those of a step row by row.

        ``next`` takes steps as they are needed. Several streams may be open at once, and steps be taken by hand between
        them: each yields the tokens of its own requests. Closing the generator cancels those that have not ended.
        Raises SpecdecError as ``submit`` does, at the call; ``next`` raises it when ``run`` has ended the requests.

        Example: ``for token in engine.stream([Request(0, prompt)]): print(token.text, end="", flush=True)``
        """
        self._refuse(requests, taken=self.queue.ids)
        streamed = self._streamed(requests)
        next(streamed)  # to its first yield, which gives no token: close() then cancels also what nobody has read
        return cast(Generator[StreamedToken, None, None], streamed)

    def _streamed(self, requests: Sequence[Request]) -> Generator[StreamedToken | None, None, None]:
        texts = {r.id: TextStream(self.tokenizer, r.params.stop) if self.tokenizer else None for r in requests}
        mine, given, run = set(texts), dict.fromkeys(texts, 0), self.finished
        self._streams.append(mine)
        try:
            self._take(requests)
            yield None
            while mine:
                if self.finished is not run:
                    raise SpecdecError(
                        f"the engine has begun another run, which ended the requests {sorted(mine)} of this stream; "
                        "call submit or stream, not run, while a stream is open"
                    )
                outputs: list[Live | Completion] = [live for live in self.rows.live if live.request.id in mine]
                outputs += [run[number] for number in mine if number in run]
                fresh = False
                for output in outputs:
                    number, start = output.request.id, given[output.request.id]
                    # Slices are copies: a row's lists grow if the reader takes a step of another stream.
                    tokens, kinds = output.tokens[start:], output.kinds[start:]
                    given[number] += len(tokens)
                    for left, token, kind in zip(reversed(range(len(tokens))), tokens, kinds, strict=True):
                        if number not in mine:
                            break  # cancelled by the reader
                        fresh, text = True, texts[number]
                        reason = output.finish_reason if isinstance(output, Completion) and left == 0 else None
                        yield StreamedToken(number, token, kind, text.feed(token, reason) if text else "", reason)
                    if isinstance(output, Completion):
                        mine.discard(number)
                if not fresh and mine:
                    self.step()
        finally:
            if self.finished is run:
                self.cancel(mine)
                self._streams = [others for others in self._streams if others is not mine]

    @property
    def finished(self) -> dict[int, Completion]:
        """The completions of the run so far, by request id."""
        return self.queue.finished

    @property
    def kept(self) -> dict[int, KeptText]:
        """What ended requests with ``keep`` left and no other request has continued yet, by request id."""
        return self.queue.kept

    @property
    def waiting(self) -> int:
        """The number of submitted requests that have no row yet."""
        return len(self.queue.waiting)

    @torch.inference_mode()
    def cancel(self, ids: Collection[int]) -> None:
        """Remove requests at once, those in rows and those that wait; they get no completion.

        A live row leaves as that of an ended request does: the draft releases it, and a waiting request or the last row
        takes its place. Ids of requests that have ended, or that nobody has submitted, change nothing; a cancelled id
        may be used again. Not to be called within a step.

        Example: ``engine.cancel([7])``
        """
        gone = self.queue.cancel(ids)
        for stream in self._streams:
            stream.difference_update(gone)

    @torch.inference_mode()
    def _take(self, requests: Sequence[Request], closed: bool = False) -> None:
        self.stats.closed = closed
        if self._lockstep:
            self._lockstep.begin(requests)
        self.queue.submit(requests, time.perf_counter())

    @torch.inference_mode()
    def step(self) -> None:
        """Run one step: one proposal, one target forward, one acceptance, one read."""
        stats, rows = self.stats, self.rows
        mark = stats.stopwatch.mark
        start = mark()
        k = self._next_k()
        chosen = mark()
        price = self._price() if stats.heeds_price else None
        context = rows.context(k, self.ops, self.policy.coupled, price)
        if self.draft is None or context.max_proposals_host.max() < 1:
            steps, window = self._begun(context, None)
            proposal, asked, own = window, mark(), False
        else:
            asked, own = mark(), True
            with one_torch_thread(self.queue.small_draft):
                proposal = self.draft.propose(context)
            if not isinstance(proposal, Window):
                raise SpecdecError(
                    f"draft {type(self.draft).__name__!r} proposed {proposal!r}; expected a specdec.Window, as "
                    "Window.chain makes, or Window.root(context) where there is nothing to propose"
                )
            sizes = context.rows, self.max_window, self.target.vocabulary
            proposal.check(*sizes, type(self.draft).__name__, priced=price is not None)
            steps, window = self._begun(context, proposal)
        if self._lockstep:
            self._lockstep.step(window)
        proposed = mark()
        try:
            forward, verdict, packed, marks = self._verify(steps, window, context, proposal.confidence)
        except IndexError:  # where ids are looked up on the host; a device has no words for it
            window.check_ids(self.target.vocabulary, type(self.draft).__name__)
            raise
        size = verdict.path.shape[1] + TAIL
        if self.draft:
            self.queue.count_tapped(forward.hidden)
            hidden = forward.hidden if self.queue.taps else None
            seen = replace(verdict, logits=forward.logits) if self.draft.needs_logits else verdict
            # The window as it was proposed, not the copy that a recorded step holds.
            with one_torch_thread(self.queue.small_draft):
                self.draft.observe(proposal, seen, hidden, own)
        observed = mark()
        if self.trace:
            self.trace(context, window, forward.logits, verdict)
        read, told = self.read(packed), None
        if proposal.confidence is not None:
            read, told = np.split(read, [-proposal.tokens.shape[1]], axis=1)
        if self._lockstep:
            read = self._lockstep.read(read, size - TAIL)
        each = self._absorb(read[:, :size], window, told)
        if rows.most_logprobs is not None:
            rows.absorb_logprobs(read[:, size:], verdict.path.shape[1])
        whole = Marks(start, chosen, asked, proposed, *marks, observed, mark())
        stats.steps.append(Step.of(each, window.tokens.shape[1], whole, self._new_draft_forwards()))
        self.queue.leave()

    def _begun(self, context: Context, proposal: Window | None) -> tuple[Steps, Window]:
        """The parts of a step, and the window that they are called with; without a proposal the root alone."""
        steps = self.runtime.steps(self._kind(context, proposal))
        return steps, steps.part(Window.root, context) if proposal is None else steps.hold(proposal)

    def _verify(
        self, steps: Steps, window: Window, context: Context, confidence: Tensor | None = None
    ) -> tuple[Forward, Verdict, Tensor, tuple[int, int, int, int]]:
        """The parts of a step after its proposal; returns also what is to be read, and the mark after each part.

        The draft's confidence [B, W] is read with the rest, and is no part that is recorded: only the host uses it.
        """
        mark, live = self.stats.stopwatch.mark, slice(0, context.rows)
        forward = steps.part(self._forward, window, live)
        forwarded = mark()
        with one_torch_thread(self.target.own_threads and forward.logits.numel() <= SMALL):
            verdict = steps.part(self._judge, window, forward, context)
            judged = mark()
            steps.part(self._commit, verdict, live)
            committed = mark()
            packed = steps.part(self._extend, window, forward, verdict, context)
            if confidence is not None:
                packed = torch.cat([packed, confidence_bits(confidence)], dim=1)
        self._host.start(packed)  # the host uses it while the device works for the draft
        return forward, verdict, packed, (forwarded, judged, committed, mark())

    @torch.inference_mode()
    def warm_up(self, params: SamplingParams | None = None) -> float:
        """Run the parts of every kind of step that requests with ``params`` can take, and so record them; in seconds.

        All batches up to ``max_rows`` and all windows up to the widest chain; nothing of it is seen by later requests,
        and ``stats`` are new. An eager runtime has nothing to record: 0. Raises SpecdecError while requests are live.

        Example: ``engine.warm_up(SamplingParams(temperature=0.7))``
        """
        if self.rows.live or self.queue.waiting:
            raise SpecdecError(
                f"{len(self.rows.live)} requests are live; call warm_up before submit, or after their end"
            )
        if not self.runtime.whole:
            return 0.0
        request = Request(0, (0,), params or SamplingParams())
        synchronize(self.target.device)
        start = time.perf_counter()
        for row in range(self.max_rows):
            self.rows.admit(row, Live(request, self.max_length, StopWatcher(request.params, 1, self.tokenizer)))
            for width in range(self.max_window):
                self._take_once(width, drawn=False)
                if width and request.params.temperature > 0 and not self.policy.coupled:
                    self._take_once(width, drawn=True)
        self.rows.clear()
        self._begin()
        synchronize(self.target.device)
        return time.perf_counter() - start

    def _take_once(self, proposals: int, drawn: bool) -> None:
        """The parts of a step with windows of ``proposals`` zeros a row, in rows of one token."""
        self.rows.length.fill_(1)
        self.arena.committed.fill_(0)
        context = self.rows.context(proposals, self.ops, self.policy.coupled)
        proposal = None
        if proposals:
            tokens = torch.zeros(context.rows, proposals, dtype=torch.int64, device=self.target.device)
            q = torch.full((*tokens.shape, self.target.vocabulary), 1 / self.target.vocabulary, device=tokens.device)
            proposal = Window.chain(tokens[:, 0], tokens, tokens[:, 0] + proposals, q if drawn else None)
        self._verify(*self._begun(context, proposal), context)

    def _kind(self, context: Context, proposal: Window | None) -> Hashable:
        """All that decides which ops the parts of a step launch, and on which tensors."""
        memory = self.rows.ledger.memory
        shape = None if proposal is None else (proposal.tokens.shape[1], proposal.q is None)
        counted = memory is not None and memory.emitted.data_ptr()
        return context.kind, shape, counted, self.rows.most_logprobs

    def _forward(self, window: Window, live: slice) -> Forward:
        longest = self.runtime.longest(int(self.rows.length_host[live].max()), self.max_length)
        return Forward(*self.target.forward(self.arena, window, live, longest - 1, self.queue.taps))

    def _judge(self, window: Window, forward: Forward, context: Context) -> Verdict:
        logits = forward.logits
        if self.policy.chooses and context.params.greedy and context.params.adjustments is None:
            return self.policy.accept(logits, window, context)
        given = logits.float() if self.policy.raw else context.process(logits, window)
        return self.policy.accept(given, window, context)

    def _commit(self, verdict: Verdict, live: slice) -> None:
        self.arena.commit(verdict, live, self.ops, compact=self.draft is not None and self.draft.branches)

    def _extend(self, window: Window, forward: Forward, verdict: Verdict, context: Context) -> Tensor:
        wanted = self.rows.most_logprobs
        chances = None if wanted is None else logprobs.pack(context, forward.logits, window, verdict, wanted)
        packed = self.rows.extend(window, verdict, self.ops)
        more = [] if chances is None else [chances]
        more += [self._lockstep.column(window)] if self._lockstep else []
        return torch.cat([packed, *more], dim=1) if more else packed

    def read(self, packed: Tensor) -> npt.NDArray[np.int64]:
        """Copy ``packed`` to the host: the only transfer of a step from the device. The next read overwrites it."""
        self.stats.counts["host_reads"] += 1
        return self._host.of(packed).numpy()

    def _next_k(self) -> Ks:
        stats = self.stats
        stats.rows = self.rows.counted()
        stats.batch, stats.lengths = len(stats.rows), tuple(row.length for row in stats.rows)
        stats.waiting = self.waiting
        if self.draft is None:
            return 0
        k = allowed_k(self.controller.next_k(stats), stats.batch, self.max_window - 1, type(self.controller).__name__)
        stats.chosen.append(k)
        return k

    def _new_draft_forwards(self) -> int:
        """The forwards of the draft's model since the last call."""
        before, self._draft_forwards = (
            self._draft_forwards,
            self.draft.info().get("draft_forwards", 0) if self.draft else 0,
        )
        return self._draft_forwards - before

    def _price(self) -> Price | None:
        owner = type(self.controller).__name__
        return allowed_price(self.controller.slot_price, self.stats.batch, self.max_window - 1, owner)

    def _absorb(
        self, read: npt.NDArray[np.int64], window: Window, told: npt.NDArray[np.int64] | None
    ) -> tuple[RowStep, ...]:
        """The host side of a step: cut the output at stops and count; ``told`` has the bits of the confidence."""
        stats, counts, now = self.stats, self.stats.counts, time.perf_counter()
        cell, state = self._moved_bytes
        asked = each_k(stats.chosen[-1] if stats.chosen else 0, len(read))
        sure = [()] * len(read) if told is None else confidence_read(told, read[:, 1 - TAIL], type(self.draft).__name__)
        each = []
        for row, (*tokens, accepted, proposed, deepest, moved) in enumerate(read.tolist()):
            kept = self.rows.absorb(row, tokens[: accepted + 1], accepted, proposed, now)
            each.append(RowStep(proposed, deepest, min(accepted, kept), kept))
            self.rows.live[row].counts.book(each[-1], asked[row], sure[row])
            stats.proposed(proposed, deepest)
            stats.accepted(min(accepted, kept))
            counts["num_emitted_tokens"] += kept
            counts["kv_bytes_copied"] += moved * cell + (state if moved else 0)
        counts["target_forwards"] += 1
        counts["kv_appended_tokens_total"] += window.tokens.numel()
        return tuple(each)

    def drop(self, ids: Collection[int]) -> None:
        """Delete the kept keys and values of ended requests; ids of which none are kept change nothing."""
        for number in ids:
            self.kept.pop(number, None)

    def refuse_unfit(self, request: Request) -> None:
        """Raise SpecdecError for a request that ``run`` would refuse; the message says what would be accepted."""
        StopWatcher(request.params, 1, self.tokenizer)  # refuses stop strings without a tokenizer
        self.queue.capacity.refuse(request)

    def _refuse(self, requests: Sequence[Request], taken: Collection[int]) -> None:
        for request in requests:
            self.refuse_unfit(request)
        refuse_conflicts(requests, taken, self.kept, [request for request, _ in self.queue.waiting])
