"""A state machine over the whole engine: requests arrive, get any proposals, stop inside blocks, leave, are cancelled.

The target is a table whose only memory is the arena (``benchsuite.conformance.exact.table_target``), so its output
shows whether every committed cell, position, mask and move is right. The model is a list of tokens for each request:
the greedy chain of the table, after processors that are written again from their definitions
(``benchsuite.conformance.exact.exact_runs.warped``). What these remember must be rolled back with the arena.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchsuite.conformance.exact.exact_runs import warped
from benchsuite.conformance.exact.table_target import Tabular, random_table
from benchsuite.conformance.models import tiny
from benchsuite.judge.sources import Always
from benchsuite.workshop.machines.arena_machine import parents_of
from specdec import Context, Draft, Engine, Request, SamplingParams, Window
from specdec.ledger import adjusts
from specdec_kernels.reference import Reference

ROWS, LONGEST, MOST, VOCABULARY = 3, 40, 5, 5

Shape = tuple[list[int], list[bool]]
"""Parents of a row's window, and for each slot whether its token is the target's."""


TOKENS = st.integers(0, VOCABULARY - 1)

PROCESSORS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        # No two tokens tie after these, so that rounding decides nothing.
        "repetition_penalty": st.sampled_from([0.61, 1.37, 2.03]),
        "frequency_penalty": st.sampled_from([-0.43, 0.29, 1.13]),
        "presence_penalty": st.sampled_from([-0.83, 0.71]),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-1.27, 0.57, 2.19]), min_size=1, max_size=2),
        # Two words forbid at most two of the five tokens, so that never everything is forbidden.
        "bad_words": st.lists(st.lists(TOKENS, min_size=2, max_size=3).map(tuple), min_size=1, max_size=2).map(tuple),
        "min_new_tokens": st.integers(1, 6),
    },
)
"""Parameters of a request that change its logits, each given or not."""


@dataclass
class ScriptedDraft(Draft):
    """Proposes from a script: ``propose_for`` maps a row, its text and its room to tokens and parents."""

    propose_for: Callable[[int, list[int], int], tuple[list[int], list[int]]]
    branches = True

    def propose(self, context: Context) -> Window:
        """Return a window with a tree for each row."""
        trees = [
            self.propose_for(
                row, context.history[row, : context.length_host[row]].tolist(), int(context.max_proposals_host[row])
            )
            for row in range(context.rows)
        ]
        return Window.ragged(context, [tokens for tokens, _ in trees], [parents for _, parents in trees])


class EngineMachine(RuleBasedStateMachine):
    """Up to three live rows of a full or sliding target, greedy, under ``match``."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.expected: dict[int, tuple[int, ...]] = {}
        self.cancelled: dict[int, int] = {}  # how many tokens each cancelled request had
        self.shapes: list[Shape] = []

    @initialize(span=st.sampled_from([None, 1, 3]), seed=st.integers(0, 9))
    def build(self, span: int | None, seed: int) -> None:
        """Build an engine and the table that it decodes."""
        self.distribution, self.span = random_table(seed, VOCABULARY, parts=30), span
        self.engine = Engine(
            Tabular(self.distribution, VOCABULARY, Reference(), span),
            draft=ScriptedDraft(self.proposals),
            policy=tiny.policy_named("match"),
            controller=Always(MOST),
            ops=Reference(),
            max_rows=ROWS,
            max_length=LONGEST,
        )
        self.pointers = [tensor.data_ptr() for tensor in (*self.engine.arena.keys, *self.engine.arena.values)]
        self.steps.append(f"span {span}, seed {seed}")

    def best(self, request: Request, text: list[int]) -> int:
        """Return the request's greedy token after a text, which begins with its prompt."""
        distribution = self.distribution(tuple(text if self.span is None else text[-self.span :]))
        # Greedy is the top of what the other processors leave; these have no temperature.
        whole = replace(request, params=replace(request.params, temperature=1.0))
        left = warped(distribution, whole, tuple(text[len(request.prompt) :]))
        return max(range(VOCABULARY), key=left.__getitem__)

    def proposals(self, row: int, text: list[int], room: int) -> tuple[list[int], list[int]]:
        """Return a row's tree of at most ``room`` nodes: right tokens where its shape says so, else wrong ones."""
        request = self.engine.rows.live[row].request
        parents, right = self.shapes[row]
        size = min(len(parents), room + 1)
        paths = [text]
        for slot in range(1, size):
            before = paths[parents[slot]]
            token = self.best(request, before)
            # Wrong siblings get different tokens.
            paths.append([*before, token if right[slot] else (token + 1 + slot % (VOCABULARY - 1)) % VOCABULARY])
        return [path[-1] for path in paths[1:]], parents[1:size]

    @rule(
        prompt=st.lists(TOKENS, min_size=1, max_size=7),
        most=st.integers(1, 14),
        eos=st.sets(TOKENS, max_size=1),
        processors=st.just({}) | PROCESSORS,
    )
    def enter(self, prompt: list[int], most: int, eos: set[int], processors: dict[str, Any]) -> None:
        """Submit a request; it takes a row if one is free."""
        identity = len(self.expected)
        least = min(processors.get("min_new_tokens", 0), most)
        params = SamplingParams(**{**processors, "min_new_tokens": least}, max_new_tokens=most, eos=tuple(eos))
        request = Request(identity, tuple(prompt), params)
        out: list[int] = []
        while len(out) < most and not (out and out[-1] in eos):
            out.append(self.best(request, [*prompt, *out]))
        self.expected[identity] = tuple(out)
        self.engine.submit([request])
        self.steps.append(f"enter {prompt}, {most} tokens, end {sorted(eos)}, {processors}")

    @rule(data=st.data())
    @precondition(lambda self: self.engine.rows.live)
    def verify(self, data: st.DataObject) -> None:
        """Run one step; every row gets a tree or a chain of right and wrong nodes, or none at all."""
        self.shapes = []
        for _ in self.engine.rows.live:
            size = data.draw(st.integers(1, MOST + 1))
            chain = list(range(-1, size - 1))
            parents = chain if data.draw(st.booleans()) else data.draw(parents_of(size))
            self.shapes.append((parents, [data.draw(st.booleans()) for _ in range(size)]))
        self.steps.append(f"verify {self.shapes}")
        self.engine.step()

    @rule(data=st.data())
    @precondition(lambda self: self.engine.rows.live)
    def leave(self, data: st.DataObject) -> None:
        """Cancel requests, of which some run, some wait and some have ended."""
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.expected)), min_size=1, max_size=3))
        running = {live.request.id: len(live.tokens) for live in self.engine.rows.live}
        at_work = {number for number in self.expected if number not in self.engine.finished} - self.cancelled.keys()
        self.cancelled |= {number: running.get(number, 0) for number in chosen & at_work}
        self.steps.append(f"leave {sorted(chosen)}")
        self.engine.cancel(chosen)
        left = {live.request.id for live in self.engine.rows.live}
        assert not left & chosen, self.steps
        assert len(left) == min(ROWS, len(at_work - chosen)), self.steps
        assert self.engine.waiting == len(at_work - chosen) - len(left), self.steps

    @invariant()
    def what_was_emitted_is_the_targets_own(self) -> None:
        """A live row's tokens are a prefix of the expected output; a finished request's are all of it."""
        for live in self.engine.rows.live if self.expected else []:
            expected = self.expected[live.request.id]
            assert tuple(live.tokens) == expected[: len(live.tokens)], (live.request, live.tokens, expected, self.steps)
        for identity, done in self.engine.finished.items() if self.expected else []:
            assert done.tokens == self.expected[identity], (done.request, done.tokens, self.steps)
            assert identity not in self.cancelled, self.steps
            assert (done.finish_reason == "eos") is (done.tokens[-1] in done.request.params.eos), self.steps

    @invariant()
    def the_arena_holds_all_but_the_pending_token(self) -> None:
        """The arena has committed all tokens of a live row except the pending one, and its storage never moves (I1)."""
        rows = self.engine.rows
        for row, live in enumerate(rows.live):
            length = len(live.request.prompt) + len(live.tokens)
            assert int(self.engine.arena.committed[row]) == length - 1 == int(rows.length[row]) - 1, self.steps
        pointers = [tensor.data_ptr() for tensor in (*self.engine.arena.keys, *self.engine.arena.values)]
        assert pointers == self.pointers, self.steps

    @invariant()
    def penalties_count_what_was_emitted(self) -> None:
        """Of every row with processors the counts are those of its own output: nothing rejected, nothing of another."""
        rows = self.engine.rows
        for row, live in enumerate(rows.live):
            # Rows without processors may be older than the counts, which begin with the first request that has any.
            if adjusts(live.request.params):
                assert rows.ledger.memory is not None
                counted = rows.ledger.memory.emitted[row].tolist()
                expected = [live.tokens.count(token) for token in range(VOCABULARY)]
                assert counted == expected, f"{counted} counted, {expected} emitted: {live.request}, {self.steps}"

    @invariant()
    def counters_add_up(self) -> None:
        """A step makes one read and one forward; the emitted tokens are those of the rows."""
        counts, rows = self.engine.stats.counts, self.engine.rows
        emitted = sum(len(live.tokens) for live in rows.live)
        emitted += sum(len(done.tokens) for done in self.engine.finished.values())
        emitted += sum(self.cancelled.values())
        assert counts["num_emitted_tokens"] == emitted, self.steps
        assert counts["host_reads"] == counts["target_forwards"] == len(self.engine.stats.steps), self.steps
