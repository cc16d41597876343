"""Runners: each runs an arm of the engine or of a peer on requests; all are timed in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from benchsuite.measure.matrix import Arm
from benchsuite.measure.sources import EngineSource, Tokens, TokenSource
from specdec.devices import synchronize
from specdec.engine import Engine
from specdec.request import Request
from specdec.stats import Stats, Step, StepTimes

PEER_PROPOSALS = 4
"""Proposals of a step of transformers' prompt lookup, if no arm of the engine gives another K."""


@dataclass(frozen=True)
class Outcome:
    """One run of one unit: the outputs in request order, and their decoding time in seconds.

    ``decode_s`` excludes prefill and covers ``decoded`` tokens. ``ttft_s`` (to the first token) and ``tpot_s`` (per
    further token) are per request. ``forwards`` counts decoding forwards, over ``mean_length`` tokens of context each.
    ``stats`` is None for a peer.
    """

    tokens: list[Tokens]
    decode_s: float
    decoded: int
    ttft_s: list[float]
    tpot_s: list[float]
    forwards: int
    mean_length: float
    stats: Stats | None = None

    @property
    def seconds_per_token(self) -> float:
        """Decoding seconds per token; the tokens of all rows of a batch count."""
        return self.decode_s / self.decoded

    @property
    def timed(self) -> list[tuple[Step, StepTimes]]:
        """Every step of the engine with its times; empty for a peer."""
        return [(step, self.stats.times(step)) for step in self.stats.steps] if self.stats else []


class Runner(TokenSource, Protocol):
    """Runs and times an arm, and returns its logits where an output must be judged."""

    arm: Arm

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Decode requests and measure the time."""

    def forget(self) -> None:
        """Drop everything that the draft has learnt from earlier runs."""


class EngineRunner(EngineSource):
    """An engine with one strategy; without a draft, plain decoding."""

    def __init__(self, arm: Arm, engine: Engine) -> None:
        super().__init__(engine)
        self.arm = arm

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Decode requests; the decoding time is the run's time minus its prefills."""
        device = self.engine.target.device
        synchronize(device)
        start = time.perf_counter()
        done = self.engine.run(requests)
        synchronize(device)
        total = time.perf_counter() - start
        return Outcome(
            tokens=[completion.tokens for completion in done],
            decode_s=total - sum(completion.prefill_s for completion in done),
            decoded=sum(len(completion.tokens) for completion in done),
            ttft_s=[completion.times[0] for completion in done],
            tpot_s=[(c.times[-1] - c.times[0]) / (len(c.tokens) - 1) for c in done if len(c.tokens) > 1],
            forwards=self.engine.stats.counts["target_forwards"],
            mean_length=_mean_length(requests, [completion.tokens for completion in done]),
            stats=self.engine.stats,
        )

    def forget(self) -> None:
        """Call ``forget`` of the draft."""
        if self.engine.draft:
            self.engine.draft.forget()


class TransformersRunner:
    """transformers' own ``generate``, plain or with prompt lookup, on the same weights.

    Resets the generation config of ``model`` and adds a hook that counts its forwards.
    """

    def __init__(self, arm: Arm, model: PreTrainedModel, proposals: int) -> None:
        self.arm, self.model = arm, model
        self.lookup = {"prompt_lookup_num_tokens": proposals} if arm.peer == "transformers_prompt_lookup" else {}
        self.forwards = 0
        # The model's own defaults, for example a repetition penalty, would change the output.
        model.generation_config = GenerationConfig()
        model.register_forward_pre_hook(self._count)

    def _count(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.forwards += 1

    @torch.inference_mode()
    def _generate(self, request: Request, **options: Any) -> Any:
        params = request.params
        ids = torch.tensor([request.prompt], device=self.model.device)
        sampling: dict[str, Any] = {"do_sample": False}
        if params.temperature > 0:
            torch.manual_seed(params.seed + request.id)
            sampling = {
                "do_sample": True,
                "temperature": params.temperature,
                "top_k": params.top_k,
                "top_p": params.top_p,
            }
        # None would fall back to the model's own end token.
        end = list(params.eos) or [-1]
        generate: Any = self.model.generate
        return generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=params.max_new_tokens,
            eos_token_id=end,
            pad_token_id=0,
            **sampling,
            **self.lookup,
            **options,
        )

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Generate each request; the decoding time begins after its first token."""
        tokens, ttft, tpot = [], [], []
        seconds, decoded, forwards = 0.0, 0, 0
        for request in requests:
            marks = _Marks(len(request.prompt), lambda: synchronize(self.model.device))
            self.forwards = 0
            synchronize(self.model.device)
            start = time.perf_counter()
            out = self._generate(request, stopping_criteria=[marks])
            synchronize(self.model.device)
            end = time.perf_counter()
            output = tuple(out[0, len(request.prompt) :].tolist())
            tokens.append(output)
            ttft.append(marks.first - start)
            forwards += self.forwards - 1
            after = len(output) - marks.count
            if after > 0:
                tpot.append((end - marks.first) / after)
                seconds += end - marks.first
                decoded += after
        return Outcome(tokens, seconds, decoded, ttft, tpot, forwards, _mean_length(requests, tokens))

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Generate each request."""
        return self.run(requests).tokens

    def forget(self) -> None:
        """Do nothing: no state is kept between prompts."""

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Generate again and return the logits [V] of one step (plain generate only); None if the run ends before."""
        chosen = next(r for r in requests if r.id == request)
        out = self._generate(chosen, output_logits=True, return_dict_in_generate=True)
        return out.logits[index][0].float() if index < len(out.logits) else None


def _mean_length(requests: Sequence[Request], tokens: Sequence[tuple[int, ...]]) -> float:
    return mean(len(r.prompt) + len(t) / 2 for r, t in zip(requests, tokens, strict=True))


class _Marks:
    """A stopping criterion that never stops. It is called after each forward and records the time of its first call."""

    def __init__(self, prompt: int, wait: Callable[[], None]) -> None:
        self.prompt, self.wait = prompt, wait
        self.first, self.count = 0.0, 0

    def __call__(self, ids: Tensor, scores: object, **_: Any) -> Tensor:
        if not self.first:
            self.wait()
            self.first, self.count = time.perf_counter(), ids.shape[1] - self.prompt
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
