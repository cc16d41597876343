"""Engines with planted faults, each with the check of the kit that finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from benchsuite.conformance.models import families
from specdec import DraftCounts, Generation, PeerEnv, Request, SamplingParams, SpecdecError
from specdec_plugins.engines.transformers import Transformers


class OneTooMany(Transformers):
    """Gives one token more than was asked for."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        more = [replace(r, params=replace(r.params, max_new_tokens=r.params.max_new_tokens + 1)) for r in requests]
        return super().generate(more)


class Endless(Transformers):
    """Ignores the end token."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return super().generate([replace(r, params=replace(r.params, eos=())) for r in requests])


class Altered(Transformers):
    """Gives another token at the end than the target does."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(g, tokens=(*g.tokens[:-1], (g.tokens[-1] + 1) % 256)) for g in super().generate(requests)]


class Miscounted(Transformers):
    """Loses the last emission."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(g, emissions=g.emissions[:-1]) for g in super().generate(requests)]


class Backwards(Transformers):
    """Times its tokens from the last to the first."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(g, emissions=g.emissions[::-1]) for g in super().generate(requests)]


class Unclosed(Transformers):
    """Keeps the model when it is closed."""

    def close(self) -> None:
        """Do nothing."""


class ClosedOnce(Transformers):
    """Cannot be closed a second time."""

    def close(self) -> None:
        if self._model is None:
            raise SpecdecError("there is nothing to close")
        super().close()


class Unchecked(Transformers):
    """Takes any cache, and checks nothing."""

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Accept everything."""


class Late(Unchecked):
    """Looks at its options when the model is there."""

    def __init__(self, env: PeerEnv, cache: str = "dynamic") -> None:
        super().__init__(env, cache)
        Transformers.check_options(cache=cache)


class Reopened(Transformers):
    """Decodes on when it is closed, with a model that it makes anew."""

    def close(self) -> None:
        self._model = None

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        if self._model is None:
            self._model = families.build_model("llama")
        return super().generate(requests)


class Verbose(Transformers):
    """Describes itself in two lines."""

    def described(self) -> str:
        return "transformers\nin float32"


class Vague(Transformers):
    """Does not say whether anything is compiled."""

    def conditions(self) -> dict[str, str]:
        return {"dtype": "float32"}


class Own(Transformers):
    """Says that it rounds in a way of its own."""

    own_arithmetic = True


def _last_altered(done: list[Generation]) -> list[Generation]:
    """The generations with another last token."""
    return [replace(one, tokens=(*one.tokens[:-1], (one.tokens[-1] + 1) % 256)) for one in done]


class Fickle(Transformers):
    """Ends every second call with another token."""

    _calls = 0

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        self._calls += 1
        return _last_altered(super().generate(requests)) if self._calls % 2 else super().generate(requests)


class Born(Transformers):
    """Ends its outputs as the number of the engine wants it."""

    built = 0

    def __init__(self, env: PeerEnv, cache: str = "dynamic") -> None:
        super().__init__(env, cache)
        Born.built += 1
        self._odd = Born.built % 2

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        done = super().generate(requests)
        return _last_altered(done) if self._odd else done


class Cached(Transformers):
    """Keeps the prompts that it has met, and has fewer forwards for them."""

    def __init__(self, env: PeerEnv, cache: str = "dynamic") -> None:
        super().__init__(env, cache)
        self._met: set[tuple[int, ...]] = set()

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        done = [
            replace(one, forwards=(one.forwards or 0) - (request.prompt in self._met))
            for request, one in zip(requests, super().generate(requests), strict=True)
        ]
        self._met |= {request.prompt for request in requests}
        return done


class Speculating(Altered):
    """Speculates, and gives other tokens than its plain decoding."""

    reference = "transformers"


class Circular(Transformers):
    """Speculates by its own word, with a reference that speculates too."""

    reference = "transformers_prompt_lookup"


class Elsewhere(Transformers):
    """Speculates by its own word, with a reference in another dtype."""

    reference = "transformers"

    def conditions(self) -> dict[str, str]:
        return super().conditions() | {"dtype": "bfloat16"}


class Understated(Transformers):
    """Counts every second forward."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(one, forwards=(one.forwards or 0) // 2) for one in super().generate(requests)]


class Boastful(Transformers):
    """Says that one proposal was accepted in every request, of none that were made."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(one, counts=DraftCounts(accepted=1)) for one in super().generate(requests)]


class Bursting(Transformers):
    """Says that two tokens arrived together where no forward proposes."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [
            replace(one, emissions=((one.emissions[1][0], 2), *one.emissions[2:])) for one in super().generate(requests)
        ]


class Shuffling(Transformers):
    """Batches, and returns a batch from the last to the first."""

    batches = True

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return super().generate(requests)[::-1]


class OneLate(Transformers):
    """Gives the logits after the token in place of those before it."""

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        return super().logits_at(request, index + 1)


class Fleeting(Transformers):
    """Has the logits of the first token alone."""

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        return None if index else super().logits_at(request, index)


class Boundless(Transformers):
    """Has logits also past its end."""

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        return super().logits_at(request, min(index, request.params.max_new_tokens - 1))


class Seedless(Transformers):
    """Draws with a seed of its own."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return super().generate([replace(r, params=replace(r.params, seed=7)) for r in requests])


class Fresh(Transformers):
    """Draws with another seed each time."""

    _seeds = 0

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        self._seeds += 1
        return super().generate([replace(r, params=replace(r.params, seed=self._seeds)) for r in requests])


class Unsampled(Transformers):
    """Decodes greedily alone."""

    def check_params(self, params: SamplingParams) -> None:
        if params.temperature:
            raise SpecdecError("temperature is not for this engine")


class Obliging(Transformers):
    """Takes an option that does nothing."""

    def __init__(self, env: PeerEnv, cache: str = "dynamic", no_such_option: int = 0) -> None:
        super().__init__(env, cache)


ENGINES: list[tuple[type[Transformers], str, str]] = [
    (Verbose, "is_what_it_claims", "describes itself in one line"),
    (Vague, "is_what_it_claims", "what is compiled"),
    (Own, "is_what_it_claims", "own_arithmetic=False.*own_arithmetic=True"),
    (OneTooMany, "as_many_tokens_as_are_asked_for", "gives max_new_tokens=1.*2 tokens"),
    (Endless, "ends_at_the_first_end_token", "ends at eos"),
    (Fickle, "greedy_runs_repeat", "repeat again"),
    (Born, "greedy_runs_repeat", "repeat in a new engine"),
    (Fickle, "nothing_is_kept", "keeps nothing between prompts.*output token"),
    (Cached, "nothing_is_kept", "keeps nothing between prompts.*when it was new"),
    (Altered, "its_tokens_are_the_targets", "decodes as the target does"),
    (Speculating, "those_of_its_own_plain", "decodes as transformers does"),
    (Circular, "those_of_its_own_plain", "reference of planted decodes plainly"),
    (Elsewhere, "those_of_its_own_plain", "has its dtype"),
    (Miscounted, "emissions_have_every_token_once", "emissions of planted add up"),
    (Backwards, "times_never_go_back", "times what happens when it happens"),
    (Understated, "forwards_explain", "forwards, emissions of up to 1"),
    (Bursting, "forwards_explain", r"K \+ 1 = 1 .*emissions of up to 2"),
    (Boastful, "counts_explain", "1 accepted, 14 tokens of 13"),
    (Shuffling, "several_requests_equals", "decodes a batch as its requests alone"),
    (OneLate, "logits_are_those", "has the logits of output token 0"),
    (Fleeting, "logits_are_those", "measured: none, the token is"),
    (Boundless, "logits_are_those", "no logits past its end"),
    (Seedless, "repeated_by_its_seed", "the same tokens with seeds 3 and 4"),
    (Fresh, "repeated_by_its_seed", "draws the same again"),
    (Unsampled, "repeated_by_its_seed", "sampled=True.*sampled=False"),
    (Obliging, "option_that_does_not_exist", "an option that does not exist.*it was built"),
    (Late, "wrong_options_are_refused", "refused after the target was loaded"),
    (Unchecked, "wrong_options_are_refused", "it was built"),
    (Unclosed, "closing_frees", "still in memory"),
    (ClosedOnce, "closing_frees", "there is nothing to close"),
    (Reopened, "closing_frees", "generate still decodes"),
]
"""The fault, a part of the name of the check that finds it, and what that says."""
