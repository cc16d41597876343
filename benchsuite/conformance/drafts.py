"""Checks of every draft, independent of how good its proposals are."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import ClassVar
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.claims import Checks, Failed, same
from benchsuite.conformance.faked import must_fit_a_gpu
from benchsuite.conformance.guards.read_guard import guarded_steps
from benchsuite.conformance.guards.target_guard import hooked_modules, within_target
from benchsuite.conformance.lent import Loans, refuse_writes
from benchsuite.conformance.models import tiny
from benchsuite.conformance.priced import AtAnyPrice
from benchsuite.conformance.proposals import Proposal, proposals, proposed_from_scratch
from benchsuite.conformance.replayed import must_replay
from benchsuite.judge import fidelity
from benchsuite.judge.favour import favour
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from specdec import Context, Engine, Request, SamplingParams, Window
from specdec.assembly import Assembly
from specdec.confidence import is_chance_or_none
from specdec.taps import Taps

GREEDY = SamplingParams(max_new_tokens=14)
SAMPLED = SamplingParams(temperature=0.8, top_k=40, seed=3, max_new_tokens=14)
LENGTHS = (4, 4, 0, 4, 1, 0, 0, 4, 2)
"""K of consecutive steps, in quarters of the largest K: the draft is skipped in some steps and asked again later."""

CHUNK = 8
"""Tokens of a chunk of a prompt, in the check of chunks."""

LENGTHS_IN_CHUNKS = (1, 2, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK + 1, 2 * CHUNK + 2, 5 * CHUNK + 2)
"""Prompts whose chunks, which hold all tokens but the last, are none, one token, one less one, whole and one more."""

LENT_TO = ("propose", "observe", "prefilled")
"""Methods of a draft that are lent tensors."""

SAMPLED_ROWS = 24
"""Requests whose sampled outputs are tested, all at once: steps are what takes time."""

SLACK = 0.02
"""Share of windows that may differ because rounding decides: two tokens that the draft finds equally likely."""


@cache
def kit_assembly(
    family: str, rows: int, extra: tuple[tiny.Extra, ...], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Assembly:
    """Return an Assembly over a tiny target, cached for later checks."""
    return tiny.assembly(family, max_rows=rows, max_length=256, device=device, dtype=dtype, extra=extra)


See = Callable[[Proposal], None]


class DraftChecks(Checks):
    """Checks of a draft; ``conformance.draft`` makes a subclass with the claims filled in."""

    text: ClassVar[str]
    trees: ClassVar[bool]
    sampled: ClassVar[bool]
    hidden: ClassVar[bool]
    remembers: ClassVar[bool]
    memoryless: ClassVar[bool]
    replays: ClassVar[bool]
    fakes: ClassVar[bool]
    one_read: ClassVar[bool]
    k: ClassVar[int]
    family: ClassVar[str]
    extra: ClassVar[tuple[tiny.Extra, ...]]
    windows: ClassVar[int] = 24  # at most this many, spread over all, are proposed a second time
    repeats: ClassVar[int] = 16  # batches of six requests whose proposals are tested against q

    def engine(self, policy: str = "match", rows: int = 3) -> Engine:
        """Return an engine with the draft under a policy, over a tiny target."""
        return kit_assembly(self.family, rows, self.extra).engine(self.text, policy, k=self.k)

    @property
    def uncoupled(self) -> str:
        """The name of a policy with the target's distribution that does not share the target's noise with the draft."""
        return "tree_rejection" if self.trees else "rejection"

    def part_of_k(self, step: int) -> int:
        """K of a step: all of it, a part or none."""
        return -(-self.k * LENGTHS[step % len(LENGTHS)] // 4)

    def records(
        self, policy: str, params: SamplingParams, rows: int = 3, count: int = 6, see: See = lambda seen: None
    ) -> list[Proposal]:
        """Return its proposals over requests of different lengths that arrive and finish."""
        found = proposals(self.engine(policy, rows), tiny.requests(params, count), self.part_of_k, see)
        if not found:
            raise Failed(f"{self.text} proposes now and then", "it proposed nothing at all", f"{count} requests")
        return found

    def test_it_is_what_it_claims(self) -> None:
        """The claims ``trees``, ``hidden``, ``remembers`` and ``sampled``; states come from the engine alone."""
        engine = self.engine(self.uncoupled)
        draft, before = engine.draft, hooked_modules(kit_assembly(self.family, 2, self.extra).target)
        assert draft is not None
        if hooked_modules(engine.target) != before:
            measured = f"it hooks into {' and '.join(hooked_modules(engine.target))} of the target"
            raise Failed(f"{self.text} reads states that it asks for", measured, "needs_hidden and hidden_layers ask")
        same(self.text, "trees", self.trees, draft.branches, "the class says so")
        same(self.text, "hidden", self.hidden, bool(Taps.of([draft])), "needs_hidden or hidden_layers say so")
        same(self.text, "remembers", self.remembers, draft.learns, "the class says so, as `learns`")
        found = self.records(self.uncoupled, SAMPLED)
        drawn = [seen for seen in found if seen.q is not None]
        same(self.text, "sampled", self.sampled, bool(drawn), str((drawn or found)[0]))
        branching = [seen for seen in found if seen.parents != tuple(range(len(seen.parents)))]
        if branching and not self.trees:
            raise Failed(f"{self.text} claims trees=False", "a window branches", str(shortest(branching)))

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_its_windows_are_well_formed(self, params: SamplingParams) -> None:
        """Token ids exist, parents precede children, proposals fit the room, and rows of q are distributions."""
        vocabulary = self.engine(self.uncoupled).target.vocabulary

        def see(seen: Proposal) -> None:
            wrong = _malformed(seen, vocabulary)
            if wrong:
                raise Failed(f"the windows of {self.text} are well formed", wrong, str(seen))

        self.records(self.uncoupled, params, see=see)

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_it_writes_to_nothing_that_it_was_lent(self, params: SamplingParams) -> None:
        """Context, window, verdict and hidden states belong to the engine, and so do their copies on the host."""
        engine = self.engine(self.uncoupled)
        refuse_writes(self.text, engine.draft, LENT_TO)
        engine.run(tiny.requests(params, 3))

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_it_keeps_nothing_that_it_was_lent(self, params: SamplingParams) -> None:
        """What it was lent in a step is overwritten before the next, and it proposes what it proposed before."""

        def told(lends: bool) -> list[tuple[Proposal, object]]:
            engine = self.engine(self.uncoupled)
            loans = Loans(engine.draft, LENT_TO if lends else ())

            def next_step(step: int) -> int:
                loans.call_back()
                return self.part_of_k(step)

            found = proposals(engine, tiny.requests(params, 4), next_step)
            # A tensor equals no other by ``==``, so that q is compared as numbers.
            return [(replace(seen, q=None), None if seen.q is None else seen.q.tolist()) for seen in found]

        first = told(False)
        if told(True) == first:
            return
        if told(False) != first:
            raise Failed(f"{self.text} proposes the same in every run", "two new engines differ", "four requests")
        raise Failed(
            f"{self.text} keeps nothing that it was lent",
            "it proposes something else where that is overwritten when the next step begins",
            "four requests; what is needed longer is to be copied",
        )

    @pytest.mark.parametrize("policy", ["coupled", "uncoupled"])
    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_what_it_proposes_follows_from_the_text(self, params: SamplingParams, policy: str) -> None:
        """After any history of steps, rows and moves, its proposals are those for the text as a prompt.

        Faults in a draft's own keys and values, positions and rows show here, although the output stays right.
        """
        if not self.memoryless:
            pytest.skip("claimed: memoryless=False")
        chosen = "match" if policy == "coupled" else self.uncoupled
        rows = 1 if self.remembers else 3
        count = 1 if self.remembers else 6
        found = [seen for seen in self.records(chosen, params, rows, count) if seen.room == seen.asked]
        found = found[:: -(-len(found) // self.windows) or 1]
        alone = self.engine(chosen, 1)
        wrong = [(seen, again) for seen in found if not _alike(seen, again := proposed_from_scratch(alone, seen))]
        if len(wrong) > SLACK * len(found):
            seen, again = min(wrong, key=lambda pair: len(pair[0].text))
            raise Failed(
                f"{self.text} claims memoryless=True",
                f"{len(wrong)} of {len(found)} windows are not what it proposes for the same text as a prompt",
                f"{seen}; asked again: {list(again.tokens) if again else 'nothing'}",
            )

    def test_a_prompt_read_in_chunks_is_a_prompt_read_at_once(self) -> None:
        """Its first proposals for prompts of about one and two chunks are those that it makes where one is enough."""
        if not self.memoryless:
            pytest.skip("claimed: memoryless=False, so that two runs may propose differently")
        text, params = tiny.prompts(3)[2], replace(GREEDY, max_new_tokens=self.k + 1)
        work = [Request(length, text[:length], params) for length in LENGTHS_IN_CHUNKS]
        whole = proposals(self.engine(self.uncoupled, 1), work)
        with patch("specdec.model.PREFILL_CHUNK", CHUNK):
            parts = proposals(self.engine(self.uncoupled, 1), work)
        self._agree("reads a prompt in chunks", f"read {CHUNK} tokens at a time, by their lengths", whole, parts)

    def test_a_text_that_goes_on_is_a_text_read_at_once(self) -> None:
        """What it keeps of an ended request serves a request that continues it, all of it or its beginning."""
        if not self.memoryless:
            pytest.skip("claimed: memoryless=False, so that two runs may propose differently")
        kept, anew = (self._next_turns(keep) for keep in (True, False))
        self._agree("goes on with a text that it kept", "that go on with what it kept, by their requests", anew, kept)

    def _agree(self, claim: str, how: str, usual: list[Proposal], other: list[Proposal]) -> None:
        """Raise Failed where the first proposals for a request differ if its text is read in another way."""
        first, again = ({seen.request.id: seen for seen in reversed(found)} for found in (usual, other))
        wrong = sorted(number for number, seen in first.items() if not _alike(seen, again.get(number)))
        if wrong:
            seen, instead = first[wrong[0]], again.get(wrong[0])
            raise Failed(
                f"{self.text} {claim}",
                f"it proposes something else for {len(wrong)} of {len(first)} texts {how}: {wrong}",
                f"{seen}; there: {list(instead.tokens) if instead else 'nothing'}",
            )

    def _next_turns(self, keep: bool) -> list[Proposal]:
        """The proposals for texts that continue those of ended requests, whose ends were kept or not."""
        engine, work = self.engine(self.uncoupled), tiny.requests(replace(GREEDY, max_new_tokens=self.k + 1), 3)
        ended = [done.tokens for done in engine.run([replace(request, keep=keep) for request in work])]
        turns = []
        for request, tokens in zip(work, ended, strict=True):
            text = (*request.prompt, *tokens)
            common = text[: len(text) - 2 * request.id]  # the first is continued whole
            params = replace(GREEDY, max_new_tokens=self.k + 1)
            continued = request.id if keep else None
            turns.append(Request(10 + request.id, (*common, *work[1].prompt), params, continues=continued))
        return proposals(engine, turns[::-1])

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    @pytest.mark.parametrize(
        ("device", "dtype"),
        [
            pytest.param("cpu", torch.float32, id="cpu-float32"),
            pytest.param("cpu", torch.bfloat16, id="cpu-bfloat16"),
            pytest.param("cuda", torch.float32, id="cuda-float32", marks=[pytest.mark.cuda, pytest.mark.gpu]),
            pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=[pytest.mark.cuda, pytest.mark.gpu]),
        ],
    )
    def test_it_changes_no_output(self, params: SamplingParams, device: str, dtype: torch.dtype) -> None:
        """Under ``match`` every output equals plain decoding's, or differs from it at a certified tie."""
        if device == "cuda" and not torch.cuda.is_available():
            pytest.skip("no CUDA device here")
        build = kit_assembly(self.family, 3, self.extra, device, dtype)
        differ(self.text, build, build.engine(self.text, k=self.k), tiny.requests(params, 6))

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_prices_of_slots_change_what_it_proposes_alone(self, params: SamplingParams) -> None:
        """A draft that heeds prices proposes what is worth them, which may be nothing; outputs are plain's."""
        build = kit_assembly(self.family, 3, self.extra)
        engine = build.engine(self.text, k=self.k)
        if not engine.stats.heeds_price:
            pytest.skip("it heeds no prices: Draft.heeds_price is False")
        work = tiny.requests(params, 6)
        engine.controller = AtAnyPrice(self.k)
        differ(f"{self.text} at prices of slots", build, engine, work)
        engine.controller = AtAnyPrice(self.k, [2.0])
        engine.run(work)
        if made := engine.stats.counts["num_draft_tokens"]:
            raise Failed(
                f"{self.text} heeds prices",
                f"it made {made} proposals that each cost 2 tokens",
                "no proposal brings more than one token",
            )

    def test_it_keeps_nothing_that_a_replayed_step_overwrites(self) -> None:
        """Verdict and hidden states of a recorded step are overwritten by the next; a draft copies what it needs."""
        must_replay(self.text, self.family, self.extra, self.text, "match", tiny.requests(GREEDY, 4), self.k)

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_a_step_is_fit_for_a_gpu(self, params: SamplingParams) -> None:
        """On fake tensors: nothing is read or waited for, no devices are mixed, and equal steps make equal launches."""
        if not self.fakes:
            pytest.skip("claimed: fakes=False")
        must_fit_a_gpu(self.text, self.family, self.extra, self.text, self.uncoupled, params, self.k)

    def test_sampled_outputs_have_the_targets_distribution(self) -> None:
        """Some 3,000 tokens are the target's by both tests of a row; docs/proof.md states what these find."""
        build = kit_assembly(self.family, SAMPLED_ROWS, self.extra)
        follows_the_target(self.text, self.uncoupled, build, build.engine(self.text, self.uncoupled, k=self.k), SAMPLED)

    def test_q_is_the_distribution_that_its_proposals_were_drawn_from(self) -> None:
        """A wrong q makes acceptance and residual wrong, which no single output shows."""
        if not self.sampled:
            pytest.skip("claimed: sampled=False")
        engine = kit_assembly(self.family, 32, self.extra).engine(self.text, self.uncoupled, k=self.k)
        work = [
            Request(10 * number + i, prompt, replace(SAMPLED, seed=number, max_new_tokens=48))
            for number in range(self.repeats)
            for i, prompt in enumerate(tiny.prompts(6))
        ]
        coin, bins = random.Random(0), [0] * fidelity.BINS
        worst: tuple[float, str] = (1.0, "")
        for seen in proposals(engine, work):
            if seen.q is None:
                continue  # a hybrid makes certain proposals too
            for place in fidelity.binned(seen.q, seen.tokens, coin):
                bins[place] += 1
            for index, token in enumerate(seen.tokens):
                share = float(seen.q[index, token])
                if share < worst[0]:
                    worst = share, f"after {list(seen.text[-6:])} … token {token}, to which q gives {share:.1e}"
        if fidelity.evenness(bins) < fidelity.FALSE_ALARM:
            raise Failed(f"the proposals of {self.text} are drawn from its q", _uneven(bins), worst[1])

    def test_its_own_noise_is_new_in_every_step(self) -> None:
        """``sampled``: under a policy that is not coupled no draw has the key of an earlier step's.

        A policy may look at a whole window before it rejects, and has then used the noise of what comes again. Within a
        step draws may share a key, as siblings do.
        """
        if not self.sampled:
            pytest.skip("claimed: sampled=False")
        engine, earlier, again = self.engine(self.uncoupled), set[int](), 0
        propose, sample = engine.draft.propose, engine.ops.sample  # type: ignore[union-attr]

        def proposed(context: Context) -> Window:
            nonlocal again
            keys: set[int] = set()

            def kept(logits: Tensor, key: Tensor | None) -> Tensor:
                keys.update([] if key is None else key.flatten().tolist())
                return sample(logits, key)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine.ops, "sample", kept)
                window = propose(context)
            again += len(keys & earlier)
            earlier.update(keys)
            return window

        object.__setattr__(engine.draft, "propose", proposed)
        engine.run(tiny.requests(SAMPLED, 3))
        if again:
            raise Failed(
                f"{self.text} draws by noise that is new in every step",
                f"{again} keys of draws were those of an earlier step, {len(earlier)} were not",
                "three requests; Context.propose_token has such noise",
            )

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_a_step_reads_the_device_once(self, params: SamplingParams) -> None:
        """The host reads the device only in the engine's one read; ``one_read=False``: the draft reads it too."""
        # Longer than six steps in which every proposal is accepted.
        engine, work = self.engine(self.uncoupled), tiny.requests(replace(params, max_new_tokens=60), 3)
        with nullcontext() if self.one_read else pytest.raises(AssertionError, match="a step read the device"):
            guarded_steps(engine, work, 6)

    def test_what_has_ended_is_remembered_only_where_claimed(self) -> None:
        """``remembers``: proposals depend on earlier requests, until ``forget``."""
        # No other check has this prompt: a draft could have kept its output, where no `forget` reaches.
        request = Request(0, tiny.prompts(1, seed=1)[0], GREEDY)
        engine = self.engine(rows=1)
        first = proposals(engine, [request])
        proposals(engine, [replace(request, id=1)])
        learnt = proposals(engine, [request])
        engine.draft.forget()  # type: ignore[union-attr]
        forgotten = proposals(engine, [request])
        same(self.text, "remembers", self.remembers, _differ(first, learnt), str(first[0]))
        if _differ(first, forgotten):
            raise Failed(f"{self.text} forgets", "after forget() it proposes something else", str(first[0]))

    def test_it_replays_only_where_claimed(self) -> None:
        """``replays``: it asks for plain decoding's output, or runs the target. No other claim skips this check."""
        asked, within = 0, list[str]()
        for policy, params in (("match", GREEDY), (self.uncoupled, SAMPLED)):
            engine = self.engine(policy)
            with within_target(engine) as names:
                engine.run(tiny.requests(params, 6))
            asked += engine.replayed()
            within += names
        count = f"{asked} calls of Env.plain in two runs of six requests"
        if within and not asked:
            count += f", and {len(within)} forwards of the target in its {' and '.join(dict.fromkeys(within))}"
        same(self.text, "replays", self.replays, asked > 0 or bool(within), count)

    def test_its_forwards_read_weights(self) -> None:
        """Bytes of a run are ``draft_forwards`` times ``weight_bytes``: a draft that has the one declares the other."""
        engine = self.engine()
        engine.run(tiny.requests(GREEDY, 3))
        assert engine.draft is not None
        forwards, declared = engine.stats.counts["draft_forwards"], engine.draft.weight_bytes
        if (forwards > 0) != (declared > 0):
            measured = f"weight_bytes {declared}, and {forwards} draft_forwards in a run"
            raise Failed(f"{self.text} declares what its forwards read", measured, "three requests")


def _alike(seen: Proposal, again: Proposal | None) -> bool:
    if again is None or (seen.tokens, seen.parents) != (again.tokens, again.parents):
        return False
    if seen.confidence is None or again.confidence is None:
        return seen.confidence is again.confidence
    return all(abs(one - other) < 1e-3 for one, other in zip(seen.confidence, again.confidence, strict=True))


def _differ(first: list[Proposal], second: list[Proposal]) -> bool:
    return [(seen.text, seen.tokens) for seen in first] != [(seen.text, seen.tokens) for seen in second]


def shortest(found: list[Proposal]) -> Proposal:
    """Return the smallest example of several."""
    return min(found, key=lambda seen: (len(seen.text), len(seen.tokens)))


def _uneven(bins: list[int]) -> str:
    return (
        f"of {sum(bins)} probability integral transforms ten equal bins hold {bins}, {sum(bins) / len(bins):.0f} each "
        f"expected; chance {fidelity.evenness(bins):.1e}"
    )


def _malformed(seen: Proposal, vocabulary: int) -> str | None:
    if not seen.tokens:
        return "a width below 1: it counts the pending token too"
    if len(seen.tokens) > seen.room:
        return f"{len(seen.tokens)} proposals where {seen.room} were asked for"
    if not all(0 <= token < vocabulary for token in seen.tokens):
        return f"a token id outside 0 … {vocabulary - 1}"
    if not all(0 <= parent <= index for index, parent in enumerate(seen.parents)):
        return "a parent that is no earlier slot"
    unsure = [chance for chance in seen.confidence or () if not is_chance_or_none(chance)]
    if unsure:
        return f"a confidence of {unsure[0]}, which is no chance from 0 to 1"
    if seen.q is not None:
        if seen.q.dtype != torch.float32:
            return f"q of {seen.q.dtype}"
        if not bool(torch.isfinite(seen.q).all()) or bool((seen.q < 0).any()):
            return "q is not finite, or negative somewhere"
        if bool(((seen.q.sum(dim=1) - 1).abs() > 1e-4).any()):
            return f"rows of q sum to {[round(total, 4) for total in seen.q.sum(dim=1).tolist()]}"
        shares = seen.q.gather(1, torch.tensor(seen.tokens)[:, None])[:, 0].tolist()
        if not all(shares):
            return "a token that its own q calls impossible"
    return None


def follows_the_target(draft: str, policy: str, build: Assembly, engine: Engine, params: SamplingParams) -> None:
    """Raise Failed where 125 tokens of each of ``SAMPLED_ROWS`` requests do not have the target's distribution."""
    judge = Judge(build.target, range(40))
    work = [
        Request(10 * number + i, prompt, replace(params, seed=number, max_new_tokens=125))
        for number in range(4)
        for i, prompt in enumerate(tiny.prompts(6))
    ]
    outputs = [done.tokens for done in engine.run(work)]
    found = fidelity.Fidelity(favour=favour(engine, work, outputs))
    for request, output in zip(work, outputs, strict=True):
        found += fidelity.examine(judge, request, output, output)
    if found.failure:
        raise Failed(
            f"outputs of {draft} under {policy} have the target's distribution",
            found.failure,
            f"{len(work)} requests at temperature {params.temperature}, top-k {params.top_k}",
        )


def differ(text: str, build: Assembly, engine: Engine, work: list[Request]) -> None:
    """Raise Failed where an output differs from plain decoding's and the difference is not a certified tie."""
    other = EngineSource(engine)
    # An assembly decodes a request plainly once, for all drafts that are compared with it.
    expected, got = [build.plain(request) for request in work], other.tokens(work)
    if expected == got:
        return
    plain, judge = EngineSource(build.engine(None, max_rows=1)), Judge(build.target, range(40))
    for request, pair in zip(work, zip(expected, got, strict=True), strict=True):
        for difference in judge.compare(work, request, plain, other, pair):
            if not difference.tie:
                raise Failed(f"{text} changes no output", str(difference), f"prompt {list(request.prompt)}")
