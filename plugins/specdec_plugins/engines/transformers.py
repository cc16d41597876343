"""transformers: its own ``generate``, one token a forward, on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from specdec import DraftCounts, Generation, Peer, PeerEnv, Request, SpecdecError, hookimpl
from specdec.devices import Stopwatch, synchronize
from specdec.errors import unknown
from specdec.peer import PeerFactory

CACHES = ("dynamic", "static")
"""Implementations of transformers' cache that a peer can be given."""

Cache = Annotated[str, "dynamic: it grows with the text; static: allocated at its full length"]


class OutputPenalties(LogitsProcessor):  # type: ignore[misc]  # transformers is typed in parts only
    """Frequency and presence penalties by OpenAI's definition, for ``generate``, which has neither.

    ``prompt`` is the number of tokens before the output.
    """

    def __init__(self, frequency: float, presence: float, prompt: int) -> None:
        self.frequency, self.presence, self.prompt = frequency, presence, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] less the penalties of each row's output; a new tensor."""
        output = input_ids[:, self.prompt :]
        count = torch.zeros_like(scores).scatter_add_(1, output, torch.ones_like(output, dtype=scores.dtype))
        return scores - self.frequency * count - self.presence * (count > 0)


def generate_arguments(request: Request) -> dict[str, Any]:
    """The arguments with which transformers' ``generate`` decodes a request: length, ends, processors.

    Stop strings are left out, because ``generate`` wants a tokenizer for them.
    """
    params, prompt = request.params, len(request.prompt) - request.emitted
    found: dict[str, Any] = {
        "max_new_tokens": params.max_new_tokens,
        "eos_token_id": list(params.eos) or None,
        "do_sample": params.temperature > 0,
    }
    if params.temperature > 0:
        found |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        found |= {"min_p": params.min_p} if params.min_p else {}
    if params.bias:
        found["sequence_bias"] = [[[token], value] for token, value in params.bias]
    if params.bad_words:
        found["bad_words_ids"] = [list(word) for word in params.bad_words]
    if params.repetition_penalty != 1:
        found["repetition_penalty"] = params.repetition_penalty
    if params.min_new_tokens and params.eos:
        found["min_new_tokens"] = params.min_new_tokens
    if params.frequency_penalty or params.presence_penalty:
        penalties = OutputPenalties(params.frequency_penalty, params.presence_penalty, prompt)
        found["logits_processor"] = LogitsProcessorList([penalties])
    return found


class Transformers(Peer):
    """transformers' ``generate``, one token a forward. Its forward is not compiled.

    Resets the generation config of the model.

    Source: huggingface/transformers, generation/utils.py.
    """

    _proposes = False
    """Whether ``generate`` verifies candidates, on which some versions (5.17) call stopping criteria too."""

    def __init__(self, env: PeerEnv, cache: Cache = "dynamic") -> None:
        self._load(env, {"cache_implementation": cache})
        self._cache_kind = cache

    @classmethod
    def check_options(cls, **options: object) -> None:
        """The cache is one that transformers has."""
        if options["cache"] not in CACHES:
            raise unknown("cache of the peer transformers", str(options["cache"]), CACHES)

    def _load(self, env: PeerEnv, given: dict[str, Any]) -> None:
        """Take the model; ``given`` are the arguments of ``generate`` that do not follow from a request."""
        self._model: Any = env.model()
        self._own, self._cache_kind = given, "dynamic"
        self.set_up_seconds: dict[str, float] = {}
        # The model's own defaults, for example a repetition penalty, would change the output.
        self._model.generation_config = GenerationConfig()

    def _given(self) -> dict[str, Any]:
        # On CUDA transformers would compile the forward over a static cache by itself.
        return {"disable_compile": True, **self._own}

    def _opened(self) -> Any:
        if self._model is None:
            raise SpecdecError("this peer of transformers is closed; build another")
        return self._model

    @torch.inference_mode()
    def _generate(self, request: Request, **more: Any) -> Any:
        ids = torch.tensor([request.prompt], device=self._opened().device)
        if request.params.temperature > 0:
            torch.manual_seed(request.params.seed + request.id)
        return self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=0,
            **generate_arguments(request),
            **self._given(),
            **more,
        )

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one request; its tokens are timed as ``generate`` appends them."""
        return [self._timed(request) for request in requests]

    def _timed(self, request: Request) -> Generation:
        device = self._opened().device
        arrivals, steps = _Arrivals(device), _Candidates()
        synchronize(device)
        start = arrivals.watch.mark()
        with ExitStack() as noting:
            if self._proposes:
                noting.enter_context(arrivals.after_forwards_of(self._model))
                noting.enter_context(steps.of(self._model))
            out = self._generate(request, stopping_criteria=[arrivals])
        output = tuple(out[0, len(request.prompt) :].tolist())
        seconds = arrivals.watch.seconds(start, arrivals.watch.mark())
        emissions = arrivals.emissions(start, len(request.prompt), len(output))
        return Generation(output, emissions, seconds, len(arrivals.seen) - 1, counts=steps.counts)

    def logits_at(self, request: Request, index: int) -> Tensor | None:
        """Generate again, and take the logits of output token ``index``."""
        out = self._generate(request, output_logits=True, return_dict_in_generate=True)
        return out.logits[index][0].float() if index < len(out.logits) else None

    def conditions(self) -> dict[str, str]:
        """The model's dtype; nothing is compiled."""
        return {"dtype": str(self._model.dtype).removeprefix("torch."), "compile": "no"}

    def described(self) -> str:
        """Version, cache, attention and dtype."""
        return (
            f"transformers {transformers.__version__} generate: {self._cache_kind} cache, "
            f"{self._model.config._attn_implementation} attention, {self.conditions()['dtype']}, not compiled"
        )

    def close(self) -> None:
        """Let go of the model, which other peers may still use."""
        self._model = None


class _Arrivals:
    """A stopping criterion that never stops. ``generate`` calls it after each forward, and it notes when and how long
    the text is: on CUDA by an event, so that the host does not wait.

    Where ``generate`` verifies candidates, transformers 5.17 also calls it on each candidate, before the forward.
    Within ``after_forwards_of(model)`` only the first call after a forward of the model is an arrival.
    """

    def __init__(self, device: torch.device) -> None:
        self.watch = Stopwatch(device)
        self.seen: list[tuple[int, int]] = []
        self._go_on = torch.zeros(1, dtype=torch.bool, device=device)
        self._hooked, self._forwarded = False, False

    @contextmanager
    def after_forwards_of(self, model: Any) -> Iterator[None]:
        """Note only calls that follow a forward of ``model``. A compiled model would be compiled again for the hook."""

        def forwarded(*_: object) -> None:
            self._forwarded = True

        self._hooked, hook = True, model.register_forward_hook(forwarded)
        try:
            yield
        finally:
            hook.remove()

    def __call__(self, ids: Tensor, scores: object, **_: Any) -> Tensor:
        if self._forwarded or not self._hooked:
            self.seen.append((self.watch.mark(), ids.shape[1]))
            self._forwarded = False
        return self._go_on

    def emissions(self, start: int, prompt: int, output: int) -> tuple[tuple[float, int], ...]:
        """The emissions of an output of ``output`` tokens, timed from the mark ``start``."""
        found, before = [], prompt
        for mark, length in self.seen:
            # On MPS transformers runs one forward more than it returns tokens of.
            now = min(length, prompt + output)
            if now > before:
                found.append((self.watch.seconds(start, mark), now - before))
            before = now
        return tuple(found)


class _Candidates:
    """Notes how many candidates each step of ``generate`` had, and how many of them matched, as ``generate`` tells the
    generator of its candidates. ``counts`` is None of a version of transformers that makes no such generator."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self._noted = False

    @property
    def counts(self) -> DraftCounts | None:
        """The counts of these steps."""
        return DraftCounts.of_steps(self.found) if self._noted else None

    @contextmanager
    def of(self, model: Any) -> Iterator[None]:
        """Note the steps of a model's ``generate``."""
        make = getattr(model, "_get_candidate_generator", None)
        if make is None:
            yield
            return
        self._noted = True

        def noting(*given: Any, **named: Any) -> Any:
            made = make(*given, **named)
            propose, hear = made.get_candidates, made.update_candidate_strategy

            def get_candidates(ids: Tensor, *more: Any, **others: Any) -> Any:
                candidates = propose(ids, *more, **others)
                self.found.append((candidates[0].shape[1] - ids.shape[1], 0))
                return candidates

            def update_candidate_strategy(ids: Tensor, scores: Tensor, matches: Any) -> Any:
                self.found[-1] = self.found[-1][0], int(matches)
                return hear(ids, scores, matches)

            made.get_candidates, made.update_candidate_strategy = get_candidates, update_candidate_strategy
            return made

        model._get_candidate_generator = noting
        try:
            yield
        finally:
            del model._get_candidate_generator


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``transformers``."""
    register("transformers", Transformers)
