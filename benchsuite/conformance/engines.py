"""Checks of every engine that runs as a peer: outputs end where they should, repeat, and are timed as they arrived."""

from __future__ import annotations

import gc
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import PreTrainedModel

from benchsuite.conformance.claims import Checks, Failed, same
from benchsuite.conformance.drafts import GREEDY, kit_assembly
from benchsuite.conformance.models import families, tiny
from benchsuite.conformance.models.gguf_file import save_gguf
from benchsuite.judge.sources import EngineSource, Tokens
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm, PeerName, Setting
from benchsuite.measure.peers import PeerRunner
from specdec import Generation, Peer, PeerEnv, Request, SamplingParams, SpecdecError, catalog

SLACK_S = 1e-3
"""Seconds by which the clock of an engine may differ from the kit's."""

FAMILY = "llama-16"
"""The target's family (``models.families``)."""

ROWS, LENGTH = 4, 192
"""The most requests of a call, and tokens of a request, that the kit asks for."""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="specdec-kit-")


def kit_target() -> Path:
    """The kit's target as a GGUF file; written once in a process, to a folder that is removed at its end."""
    path = Path(_folder().name) / "llama.gguf"
    return path if path.exists() else save_gguf(families.build_model(FAMILY), path)


class _Once:
    """The kit's model, made at each call and held by nobody here; ``made`` has a reference for each."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[PreTrainedModel]] = []

    def __call__(self) -> PreTrainedModel:
        model = families.build_model(FAMILY)
        self.made.append(weakref.ref(model))
        return model


def kit_env(model: Any) -> PeerEnv:
    """What the kit gives a factory; ``model`` makes the target."""
    device = torch.device("cpu")
    return PeerEnv(str(kit_target()), device, torch.float32, LENGTH, ROWS, 1, model, catalog.byte_tokenizer())


class EngineChecks(Checks):
    """Checks of an engine; ``conformance.engine`` makes a subclass with the claims filled in."""

    text: ClassVar[str]
    own_arithmetic: ClassVar[bool]
    sampled: ClassVar[bool]
    refuses: ClassVar[tuple[str, ...]]
    extra: ClassVar[tuple[tiny.Extra, ...]]

    def peer(self, text: str = "") -> Peer:
        """Return a new peer on the kit's target; skips where its engine cannot run on this machine."""
        return self._built(text or self.text, _Once())

    def _built(self, text: str, model: Any) -> Peer:
        registry = tiny.registry(*self.extra)
        factory: Any = registry.parse("peer", text)[0].factory
        reason = getattr(factory, "missing", lambda: None)()
        if reason:
            pytest.skip(f"{text}: {reason}")
        return registry.peer(text, kit_env(model))

    def work(self, params: SamplingParams = GREEDY, count: int = 3) -> list[Request]:
        """Return requests of the kit, of different lengths."""
        return tiny.requests(params, count)

    def decoded(self, peer: Peer, work: Sequence[Request]) -> list[Generation]:
        """Return what a peer makes of requests, one by one or, where it batches, at once."""
        return peer.generate(work) if peer.batches else [peer.generate([request])[0] for request in work]

    def tokens(self, peer: Peer, work: Sequence[Request]) -> list[Tokens]:
        """Return the outputs of ``decoded``."""
        return [one.tokens for one in self.decoded(peer, work)]

    def test_it_is_what_it_claims(self) -> None:
        """The claim ``own_arithmetic``; one line for the card; conditions under which its times may be compared."""
        peer = self.peer()
        same(self.text, "own_arithmetic", self.own_arithmetic, peer.own_arithmetic, "the peer says so")
        described, conditions = peer.described(), peer.conditions()
        if not described or "\n" in described:
            raise Failed(f"{self.text} describes itself in one line", repr(described), "Peer.described")
        if not {"dtype", "compile"} <= conditions.keys() or not all(type(v) is str for v in conditions.values()):
            raise Failed(f"{self.text} says its dtype and what is compiled", str(conditions), "Peer.conditions")

    @pytest.mark.parametrize("most", [1, 2, 9])
    def test_it_gives_as_many_tokens_as_are_asked_for(self, most: int) -> None:
        """``max_new_tokens``, where no end token is named."""
        params = SamplingParams(max_new_tokens=most)
        work = [Request(i, prompt, params) for i, prompt in enumerate(tiny.prompts(3))]
        for request, output in zip(work, self.tokens(self.peer(), work), strict=True):
            if len(output) != most:
                raise Failed(f"{self.text} gives max_new_tokens={most}", f"{len(output)} tokens", _prompt(request))

    def test_it_ends_at_the_first_end_token(self) -> None:
        """``eos``; the end token is part of the output."""
        peer = self.peer()
        for request in self.work():
            free = self.tokens(peer, [request])[0]
            end = free[min(5, len(free) - 1)]
            expected = free[: free.index(end) + 1]
            got = self.tokens(peer, [replace(request, params=replace(request.params, eos=(end,)))])[0]
            if got != expected:
                raise Failed(
                    f"{self.text} ends at eos={end}", f"{list(got)}, expected {list(expected)}", _prompt(request)
                )

    def test_greedy_runs_repeat(self) -> None:
        """At temperature 0 a request has the same output again, and in a new engine."""
        peer, work = self.peer(), self.work()
        first = self.tokens(peer, work)
        for name, again in (("again", self.tokens(peer, work)), ("in a new engine", self.tokens(self.peer(), work))):
            _equal(f"greedy runs of {self.text} repeat {name}", work, first, again)

    def test_nothing_is_kept_between_prompts(self) -> None:
        """A request after others, and after itself, is decoded with the tokens and as many forwards as the first."""
        work = self.work()
        fresh = [self.decoded(self.peer(), [request])[0] for request in work]
        peer = self.peer()
        for _ in range(2):
            later = [self.decoded(peer, [request])[0] for request in work]
            claimed = f"{self.text} keeps nothing between prompts"
            _equal(claimed, work, [one.tokens for one in fresh], [one.tokens for one in later])
            for request, one, other in zip(work, fresh, later, strict=True):
                if one.forwards != other.forwards:
                    raise Failed(
                        claimed, f"{other.forwards} forwards, {one.forwards} when it was new", _prompt(request)
                    )

    def test_its_tokens_are_the_targets(self) -> None:
        """Greedy outputs are plain decoding's, or certified ties; not of an engine with arithmetic of its own."""
        if self.own_arithmetic:
            pytest.skip("claimed: own_arithmetic=True")
        build, work = kit_assembly(FAMILY, 1, ()), self.work()
        plain, judge = EngineSource(build.engine(None)), Judge(build.target, range(40))
        other = PeerRunner(Arm(_SETTING, peer=self.text), self.peer())
        for request, pair in zip(work, zip(plain.tokens(work), other.tokens(work), strict=True), strict=True):
            for difference in judge.compare([request], request, plain, other, pair):
                if not difference.tie:
                    raise Failed(f"{self.text} decodes as the target does", str(difference), _prompt(request))

    def test_its_tokens_are_those_of_its_own_plain_decoding(self) -> None:
        """An engine that speculates gives the greedy tokens of its ``reference``, which is registered."""
        peer, work = self.peer(), self.work()
        if peer.reference is None:
            pytest.skip("it has no reference: it decodes plainly")
        reference, conditions = self.peer(peer.reference), peer.conditions()
        if reference.reference is not None:
            raise Failed(
                f"the reference of {self.text} decodes plainly", f"{peer.reference} has one too", "Peer.reference"
            )
        if reference.conditions().get("dtype") != conditions["dtype"]:
            raise Failed(f"the reference of {self.text} has its dtype", str(reference.conditions()), str(conditions))
        claimed = f"{self.text} decodes as {peer.reference} does"
        _equal(claimed, work, self.tokens(reference, work), self.tokens(peer, work))

    def test_emissions_have_every_token_once(self) -> None:
        """Their numbers are at least 1 and add up to the output."""
        for request, one in zip(self.work(), self.decoded(self.peer(), self.work()), strict=True):
            counts = [count for _, count in one.emissions]
            if sum(counts) != len(one.tokens) or min(counts, default=0) < 1:
                measured = f"emissions of {counts} tokens for {len(one.tokens)}"
                raise Failed(f"the emissions of {self.text} add up", measured, _prompt(request))

    def test_times_never_go_back_and_end_with_the_call(self) -> None:
        """Emissions are in order, none before the call or after ``seconds``, which are no more than the call took."""
        peer, work = self.peer(), self.work()
        for call in [work] if peer.batches else [[request] for request in work]:
            start = time.perf_counter()
            done = peer.generate(call)
            took = time.perf_counter() - start + SLACK_S
            for request, one in zip(call, done, strict=True):
                times = [0.0, *(at for at, _ in one.emissions), one.seconds]
                if times != sorted(times) or one.seconds > took:
                    measured = f"emissions at {times[1:-1]} of {one.seconds}, in a call of {took}"
                    raise Failed(f"{self.text} times what happens when it happens", measured, _prompt(request))

    def test_forwards_explain_the_tokens(self) -> None:
        """A forward emits at most K + 1 tokens, and no emission has no forward; not where forwards are not known."""
        peer = self.peer()  # skips the check where the engine cannot run
        k = _k(self.text, self.extra) or 0
        for request, one in zip(self.work(), self.decoded(peer, self.work()), strict=True):
            if one.forwards is None:
                pytest.skip("the engine does not say its forwards")
            most = max(count for _, count in one.emissions)
            if one.forwards < len(one.emissions) - 1 or most > k + 1:
                measured = f"{one.forwards} forwards, emissions of up to {most} tokens, {len(one.emissions)} in all"
                raise Failed(f"{self.text} emits at most K + 1 = {k + 1} tokens a forward", measured, _prompt(request))

    def test_counts_explain_the_tokens(self) -> None:
        """A request's tokens are those of its forwards, one each, and what was accepted; up to K may be cut at its end.

        Not where the engine does not count forwards and accepted proposals."""
        peer = self.peer()
        k = _k(self.text, self.extra) or 0
        for request, one in zip(self.work(), self.decoded(peer, self.work()), strict=True):
            if one.forwards is None or one.counts is None or one.counts.accepted is None:
                pytest.skip("the engine does not say its forwards and what it accepted")
            gained = len(one.tokens) - one.forwards - 1
            if not gained <= one.counts.accepted <= gained + k:
                measured = f"{one.counts.accepted} accepted, {len(one.tokens)} tokens of {one.forwards} + 1 forwards"
                raise Failed(f"{self.text} counts the proposals that it accepts", measured, _prompt(request))

    def test_a_call_of_several_requests_equals_calls_of_one(self) -> None:
        """In request order; only of an engine that batches."""
        peer, work = self.peer(), self.work(count=ROWS)
        if not peer.batches:
            pytest.skip("batches=False: every call has one request")
        single = [peer.generate([request])[0].tokens for request in work]
        _equal(f"{self.text} decodes a batch as its requests alone", work, single, self.tokens(peer, work))

    def test_logits_are_those_that_a_token_is_drawn_from(self) -> None:
        """Where the engine gives any: their largest is the greedy token's, and there are none past the end."""
        peer = self.peer()
        for request in self.work(count=2):
            output = self.tokens(peer, [request])[0]
            for index in (0, len(output) // 2, len(output) - 1):
                logits = peer.logits_at(request, index)
                if logits is None and index == 0:
                    pytest.skip("the engine gives no logits")
                if logits is None or int(logits.argmax()) != output[index]:
                    found = "none" if logits is None else f"largest at {int(logits.argmax())}"
                    measured = f"{found}, the token is {output[index]}"
                    raise Failed(f"{self.text} has the logits of output token {index}", measured, _prompt(request))
            if peer.logits_at(request, len(output)) is not None:
                raise Failed(f"{self.text} has no logits past its end", f"some after {len(output)}", _prompt(request))

    def test_sampling_is_repeated_by_its_seed_or_refused(self) -> None:
        """The claim ``sampled``: a seed gives its tokens again, another seed others; or ``check_params`` refuses."""
        peer, warm = self.peer(), SamplingParams(temperature=1.0, max_new_tokens=16, seed=3)
        try:
            peer.check_params(warm)
        except SpecdecError as error:
            same(self.text, "sampled", self.sampled, False, str(error))
            return
        same(self.text, "sampled", self.sampled, True, "check_params takes temperature=1")
        work, other = self.work(warm), self.work(replace(warm, seed=4))
        first = self.tokens(peer, work)
        _equal(f"{self.text} draws the same again with the same seed", work, first, self.tokens(peer, work))
        if self.tokens(peer, other) == first:
            raise Failed(f"{self.text} draws by the seed", "the same tokens with seeds 3 and 4", "three requests")

    def test_an_option_that_does_not_exist_is_refused(self) -> None:
        """With the options that do, by name."""
        self.peer()
        name = PeerName(self.text).name
        try:
            tiny.registry(*self.extra).peer(f"{name}(no_such_option=1)", kit_env(_Once()))
        except SpecdecError as error:
            if "does not take no_such_option" in str(error):
                return
            measured = f"refused for something else: {error}"
        else:
            measured = "it was built"
        raise Failed(f"{self.text} refuses an option that does not exist", measured, f"{name}(no_such_option=1)")

    def test_wrong_options_are_refused_before_anything_is_loaded(self) -> None:
        """The claim ``refuses``: each of these values raises SpecdecError, and the target was not asked for."""
        self.peer()
        name = PeerName(self.text).name
        for value in self.refuses:
            model = _Once()
            try:
                self._built(f"{name}({value})", model)
            except SpecdecError as error:
                if not model.made:
                    continue
                measured = f"refused after the target was loaded: {error}"
            else:
                measured = "it was built"
            raise Failed(f"{self.text} refuses {value} before anything is loaded", measured, f"{name}({value})")

    def test_closing_frees_the_model_and_ends_it(self) -> None:
        """After ``close``, twice, the target is in memory no more and ``generate`` raises SpecdecError."""
        model = _Once()
        peer, work = self._built(self.text, model), self.work(count=1)
        peer.generate(work)
        peer.close()
        peer.close()
        gc.collect()
        if any(made() is not None for made in model.made):
            raise Failed(
                f"{self.text} frees the target when it is closed", "it is still in memory", "Peer.close, twice"
            )
        try:
            peer.generate(work)
        except SpecdecError:
            return
        raise Failed(f"{self.text} is closed", "generate still decodes", "after Peer.close")


_SETTING = Setting("tiny", "auto", "cpu", "float32", 1, "kit", SamplingParams(max_new_tokens=24))


def _k(text: str, extra: tuple[tiny.Extra, ...]) -> int | None:
    found: int | None = tiny.registry(*extra).parse_peer(text)[1].get("k")
    return found


def _prompt(request: Request) -> str:
    return f"request {request.id}, prompt {list(request.prompt)}"


def _equal(claimed: str, work: Sequence[Request], expected: Sequence[Tokens], got: Sequence[Tokens]) -> None:
    """Raise Failed at the first request whose output is another one."""
    for request, want, have in zip(work, expected, got, strict=True):
        if want != have:
            at = next(
                (i for i, (a, b) in enumerate(zip(want, have, strict=False)) if a != b), min(len(want), len(have))
            )
            measured = f"output token {at} is {list(have[at : at + 3])} …, expected {list(want[at : at + 3])} …"
            raise Failed(claimed, measured, _prompt(request))
