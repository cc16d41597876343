"""Peers: transformers' own decoding on the same weights, its options, and how it is run and timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
import transformers
from torch import Tensor
from transformers import (
    CompileConfig,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StaticCache,
)

from benchsuite.measure.runners import Emission, Outcome, mean_length
from benchsuite.measure.sources import Tokens
from specdec.devices import Stopwatch, synchronize
from specdec.errors import SpecdecError, unknown
from specdec.ranks import Place
from specdec.registry import Entry, Registry
from specdec.request import Request

if TYPE_CHECKING:
    from benchsuite.measure.matrix import Arm

CACHES = ("dynamic", "static")
"""Implementations of transformers' cache that a peer can be given."""


def _generate(
    cache: Annotated[str, "dynamic: it grows with the text; static: allocated at its full length"] = "dynamic",
) -> dict[str, object]:
    """transformers' ``generate``, one token a forward."""
    if cache not in CACHES:
        raise unknown("cache of the peer transformers", str(cache), CACHES)
    return {"cache_implementation": cache}


def _prompt_lookup(
    k: Annotated[int, "proposals of a step, prompt_lookup_num_tokens"] = 10,
    ngram: Annotated[int, "longest run of tokens that is looked up, max_matching_ngram_size"] = 2,
) -> dict[str, object]:
    """transformers' ``generate`` with prompt lookup, whose cache is always dynamic. The defaults are transformers'."""
    for name, value in (("k", k), ("ngram", ngram)):
        # Without this check generate reads ngram=0 as 2, and meets a wrong k only after its model is loaded.
        if type(value) is not int or value < 1:
            raise SpecdecError(
                f"{name} of the peer transformers_prompt_lookup is {value!r}; expected a whole number, 1 or more"
            )
    return {"prompt_lookup_num_tokens": k, "max_matching_ngram_size": ngram}


def _compiled() -> dict[str, object]:
    """transformers' ``generate`` over a static cache, its decoding forward compiled by ``torch.compile``."""
    return {}


COMPILED = "transformers_compiled"
"""The peer that ``CompiledRunner`` runs."""

PEERS: Mapping[str, Callable[..., dict[str, object]]] = MappingProxyType(
    {"transformers": _generate, "transformers_prompt_lookup": _prompt_lookup, COMPILED: _compiled}
)
"""Each peer's function from its options to the arguments of ``generate``; SpecdecError for a value that it refuses."""


def default_peers(kind: str) -> list[str]:
    """Return the peers of ``--specdec-peer auto`` on a kind of device.

    On CUDA the compiled one is among them, because our steps are recorded there: a forward that the host launches op by
    op is no measure for them. Elsewhere compiling takes longer than a short run, and collective calls are not compiled.
    """
    compiled = kind == "cuda" and Place.of(os.environ) is None
    return ["transformers", "transformers_prompt_lookup", *([COMPILED] if compiled else [])]


@dataclass(frozen=True)
class Peer:
    """A peer and the value of each of its options, defaults included."""

    name: str
    options: Mapping[str, Any]

    @property
    def k(self) -> int | None:
        """K, the proposals of a step; None for a peer that proposes nothing."""
        return self.options.get("k")

    @property
    def label(self) -> str:
        """The name in words: ``transformers prompt lookup``."""
        return self.name.replace("_", " ")

    @property
    def shown(self) -> str:
        """K, and every option that differs from its default: ``k=10``; empty if there is none."""
        usual = Entry(PEERS[self.name], "", ()).options
        return ", ".join(f"{n}={value}" for n, value in self.options.items() if n == "k" or value != usual[n])

    @property
    def text(self) -> str:
        """The text that ``parse_peer`` reads as this peer, the same however it was written."""
        return f"{self.name}({self.shown})" if self.shown else self.name


class _Names(Registry):
    """The registry's parser, over the names of ``PEERS``."""

    def entry(self, kind: str, name: str) -> Entry:
        if name not in PEERS:
            raise unknown(kind, name, (*PEERS, "auto", "none"))
        return Entry(PEERS[name], "", ())


@cache
def parse_peer(text: str) -> Peer:
    """Return the peer that ``name`` or ``name(option=value)`` names.

    Raises SpecdecError with the choices for an unknown peer, option or value.

    Example: ``parse_peer("transformers_prompt_lookup(k=4)").text`` is ``transformers_prompt_lookup(k=4)``.
    """
    entry, given = _Names({}).parse("peer", text)
    options = {**entry.options, **given}
    entry.factory(**options)
    return Peer(text.partition("(")[0].strip(), MappingProxyType(options))


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


class TransformersRunner:
    """transformers' own ``generate`` on the same weights, with the peer's options. Its forward is not compiled.

    Resets the generation config of ``model``.

    Example: ``TransformersRunner(arm, judge.model, parse_peer("transformers_prompt_lookup(k=4)")).run(requests)``
    """

    learns = False

    def __init__(self, arm: Arm, model: PreTrainedModel, peer: Peer) -> None:
        self.arm, self.model, self.peer = arm, model, peer
        self.set_up_seconds: dict[str, float] = {}
        # The model's own defaults, for example a repetition penalty, would change the output.
        model.generation_config = GenerationConfig()

    def warm_up(self, first: Request) -> None:
        """Do nothing: nothing is recorded or compiled."""

    def _given(self) -> dict[str, Any]:
        """The arguments of ``generate`` that do not follow from a request."""
        # On CUDA transformers would compile the forward over a static cache by itself.
        return {"disable_compile": True, **PEERS[self.peer.name](**self.peer.options)}

    @torch.inference_mode()
    def _generate(self, request: Request, **more: Any) -> Any:
        ids = torch.tensor([request.prompt], device=self.model.device)
        if request.params.temperature > 0:
            torch.manual_seed(request.params.seed + request.id)
        generate: Any = self.model.generate
        return generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=0,
            **generate_arguments(request),
            **self._given(),
            **more,
        )

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Generate each request; its decoding time begins with its first emission."""
        device = self.model.device
        tokens: list[Tokens] = []
        emissions: list[list[Emission]] = []
        wall, decoding, decoded, forwards = 0.0, 0.0, 0, 0
        for request in requests:
            arrivals = _Arrivals(device)
            synchronize(device)
            start = arrivals.watch.mark()
            out = self._generate(request, stopping_criteria=[arrivals])
            output = tuple(out[0, len(request.prompt) :].tolist())
            seconds = arrivals.watch.seconds(start, arrivals.watch.mark())
            found = arrivals.emissions(start, len(request.prompt), len(output))
            after = len(output) - found[0][1]
            tokens.append(output)
            emissions.append(found)
            wall += seconds
            decoding += seconds - found[0][0] if after else 0.0
            decoded += after
            forwards += len(arrivals.seen) - 1
        return Outcome(tokens, wall, decoding, decoded, emissions, forwards, mean_length(requests, tokens))

    def tokens(self, requests: Sequence[Request]) -> list[Tokens]:
        """Generate each request."""
        return self.run(requests).tokens

    def forget(self) -> None:
        """Do nothing: no state is kept between prompts."""

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """Generate again and return the logits [V] of output token ``index``; None if the run ends before."""
        chosen = next(r for r in requests if r.id == request)
        out = self._generate(chosen, output_logits=True, return_dict_in_generate=True)
        return out.logits[index][0].float() if index < len(out.logits) else None

    def conditions(self) -> dict[str, str]:
        """What two arms must have in common for their times to be compared: ``dtype`` and ``compile``."""
        return {"dtype": str(self.model.dtype).removeprefix("torch."), "compile": "no"}

    def described(self) -> str:
        """The line of the card: version, cache, attention, dtype and, for prompt lookup, its options."""
        config: Any = self.model.config
        options = dict(self.peer.options)
        line = (
            f"transformers {transformers.__version__} generate: {options.pop('cache', 'dynamic')} cache, "
            f"{config._attn_implementation} attention, {self.conditions()['dtype']}, not compiled"
        )
        lookup = ", ".join(f"{name}={value}" for name, value in options.items())
        return f"{line}; prompt lookup {lookup}" if lookup else line


MOST_GRAPHS = 256
"""Compiled forms of the forward that may be kept in a process: torch counts those of all models and lengths together,
and its own limit of 8 is for functions that should not be compiled at all."""


def _may_compile() -> AbstractContextManager[None]:
    limits: Any = torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS, accumulated_recompile_limit=MOST_GRAPHS)
    return cast(AbstractContextManager[None], limits)


class CompiledRunner(TransformersRunner):
    """``generate`` over one static cache of ``max_length`` tokens, its decoding forward compiled by ``torch.compile``.

    On CUDA the mode is ``reduce-overhead``, which records graphs, elsewhere ``default``; prefill is never compiled, as
    in transformers. Nothing is compiled in a run that is timed: ``warm_up`` compiles, and a run for which something
    else must be compiled (a sliding window that fills up) is made again. All of this is booked as set-up. A forward
    that cannot be compiled as one graph raises torch's error.

    Example: ``CompiledRunner(arm, judge.model, parse_peer("transformers_compiled"), 256).run(requests)``
    """

    def __init__(self, arm: Arm, model: PreTrainedModel, peer: Peer, max_length: int) -> None:
        super().__init__(arm, model, peer)
        self.set_up_seconds["compile"] = 0.0
        self._mode = "reduce-overhead" if model.device.type == "cuda" else "default"
        self._config = CompileConfig(fullgraph=True, mode=self._mode)
        self._config._compile_all_devices = True  # without it transformers compiles on accelerators alone
        # Another cache for each request would have other addresses, for which graphs would be recorded again.
        self._cache = StaticCache(config=model.config, max_cache_len=max_length)

    def warm_up(self, first: Request) -> None:
        """Compile the decoding forward."""
        self._compile([first])

    def _given(self) -> dict[str, Any]:
        self._cache.reset()
        return {"compile_config": self._config, "past_key_values": self._cache}

    def _compile(self, requests: Sequence[Request]) -> None:
        start = time.perf_counter()
        with _may_compile():
            super().run(requests)
        self.set_up_seconds["compile"] += time.perf_counter() - start

    def logits_at(self, requests: Sequence[Request], request: int, index: int) -> Tensor | None:
        """As ``TransformersRunner``; what has to be compiled for it is compiled."""
        with _may_compile():
            return super().logits_at(requests, request, index)

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Generate each request, as ``TransformersRunner`` does; again, if something had to be compiled."""
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                return super().run(requests)
        except RuntimeError:
            self._compile(requests)  # where the error was another one, it is raised here
        with torch.compiler.set_stance("fail_on_recompile"):
            return super().run(requests)

    def conditions(self) -> dict[str, str]:
        """``dtype``, and as ``compile`` the mode of torch.compile."""
        return {**super().conditions(), "compile": self._mode}

    def described(self) -> str:
        """The line of the card: version, cache, attention, dtype, mode."""
        config: Any = self.model.config
        return (
            f"transformers {transformers.__version__} generate: static cache, {config._attn_implementation} attention, "
            f"{self.conditions()['dtype']}, compiled by torch.compile, mode {self._mode}"
        )


def peer_runner(arm: Arm, model: PreTrainedModel, peer: Peer, max_length: int) -> TransformersRunner:
    """Return the runner of a peer, for requests of at most ``max_length`` tokens, prompt and output together."""
    if peer.name == COMPILED:
        return CompiledRunner(arm, model, peer, max_length)
    return TransformersRunner(arm, model, peer)


class _Arrivals:
    """A stopping criterion that never stops. ``generate`` calls it after each forward, and it notes when and how long
    the text is: on CUDA by an event, so that the host does not wait.
    """

    def __init__(self, device: torch.device) -> None:
        self.watch = Stopwatch(device)
        self.seen: list[tuple[int, int]] = []
        self._go_on = torch.zeros(1, dtype=torch.bool, device=device)

    def __call__(self, ids: Tensor, scores: object, **_: Any) -> Tensor:
        self.seen.append((self.watch.mark(), ids.shape[1]))
        return self._go_on

    def emissions(self, start: int, prompt: int, output: int) -> list[Emission]:
        """The emissions of an output of ``output`` tokens, timed from the mark ``start``."""
        found, before = [], prompt
        for mark, length in self.seen:
            # On MPS transformers runs one forward more than it returns tokens of.
            now = min(length, prompt + output)
            if now > before:
                found.append((self.watch.seconds(start, mark), now - before))
            before = now
        return found
