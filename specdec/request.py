"""Requests to the engine: prompts and their decoding parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from specdec.errors import SpecdecError

COLDEST = 1e-6
"""The smallest temperature above 0: below it, logits divided by the temperature overflow float32."""

MOST_BIAS = 100
"""The largest bias of a logit, as in OpenAI's API: it decides between any two tokens, and stays finite."""

MOST_LOGPROBS = 100
"""The largest number of alternatives with a log-probability."""


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _between(value: object, low: float, high: float) -> bool:
    return _number(value) and low <= value <= high


def _whole(value: object, low: int, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _ids_are_valid(value: object) -> bool:
    return isinstance(value, tuple) and all(_whole(token, 0) for token in value)


def _biases(value: object) -> bool:
    if not (isinstance(value, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)):
        return False
    in_range = all(_whole(token, 0) and _between(bias, -MOST_BIAS, MOST_BIAS) for token, bias in value)
    return in_range and len({token for token, _ in value}) == len(value)


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (
        lambda heat: _number(heat) and (heat == 0 or COLDEST <= heat < math.inf),
        f"0 (greedy) or at least {COLDEST}",
    ),
    "top_k": (lambda count: _whole(count, 0), "a whole number, 0 (off) or more"),
    "top_p": (lambda share: _number(share) and 0 < share <= 1, "above 0 and at most 1 (1 is off)"),
    "min_p": (lambda share: _between(share, 0, 1), "0 (off) to 1"),
    "seed": (lambda seed: _whole(seed, 0, 2**63 - 1), "a whole number from 0 to 2**63 - 1"),
    "max_new_tokens": (lambda count: _whole(count, 1), "a whole number, 1 or more"),
    "min_new_tokens": (lambda count: _whole(count, 0), "a whole number from 0 to max_new_tokens"),
    "eos": (_ids_are_valid, "a tuple of token ids"),
    "stop": (
        lambda stop: isinstance(stop, tuple) and all(isinstance(text, str) and text for text in stop),
        "a tuple of strings of at least one character",
    ),
    "presence_penalty": (lambda penalty: _between(penalty, -2, 2), "-2 to 2 (0 is off)"),
    "frequency_penalty": (lambda penalty: _between(penalty, -2, 2), "-2 to 2 (0 is off)"),
    "repetition_penalty": (
        lambda penalty: _number(penalty) and 0 < penalty < math.inf,
        "a finite number above 0 (1 is off)",
    ),
    "logit_bias": (_biases, f"a mapping of token ids to numbers from -{MOST_BIAS} to {MOST_BIAS}"),
    "bad_words": (
        lambda words: isinstance(words, tuple) and all(_ids_are_valid(word) and word for word in words),
        "a tuple of tuples of at least one token id",
    ),
    "logprobs": (
        lambda count: count is None or _whole(count, 0, MOST_LOGPROBS),
        f"None (off) or the number of alternatives, a whole number from 0 to {MOST_LOGPROBS}",
    ),
}
"""For each field of ``SamplingParams`` what its values must be, as a test and in words."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded and when it ends.

    Processors are applied in transformers' order and with its meaning (``specdec.processors``), for every token that
    may be emitted, with the history that the token would have:

    - ``logit_bias`` is added to the logits of token ids, as a mapping of id to -100 … 100; it is kept as pairs.
    - ``repetition_penalty`` divides positive and multiplies negative logits of tokens in prompt or output.
    - ``frequency_penalty`` and ``presence_penalty`` are subtracted from the logits of tokens in the output, once for
      each time and once (the definition of OpenAI's API).
    - ``bad_words`` are sequences of token ids that may not be completed.
    - No token of ``eos`` is emitted among the first ``min_new_tokens``; stop strings still end a request.
    - ``temperature`` 0 is greedy, and then the filters are not used; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off.
      ``min_p`` drops tokens with less than this share of the likeliest token's probability.

    ``eos`` are the token ids that end the request, ``stop`` the strings that end it; the ending token is part of the
    output in both cases. ``seed`` and the request's id key all noise. ``logprobs`` asks for the log-probabilities of
    the emitted tokens and of that many likeliest tokens beside each (``specdec.logprobs``).

    Raises SpecdecError, naming the field, when a value is out of range.

    Example: ``SamplingParams(temperature=0.8, top_p=0.95, logit_bias={5: -3.0}, max_new_tokens=32)``
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 64
    eos: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_new_tokens: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(sorted(self.logit_bias.items())))
        for name, (fits, expected) in RANGES.items():
            if not fits(value := getattr(self, name)):
                raise SpecdecError(f"{name} is {value!r}; expected {expected}")
        if self.min_new_tokens > self.max_new_tokens:
            raise SpecdecError(
                f"min_new_tokens is {self.min_new_tokens!r}; expected at most max_new_tokens, {self.max_new_tokens}"
            )
        alone = sorted({word[0] for word in self.bad_words if len(word) == 1} & set(self.eos))
        if alone:
            raise SpecdecError(
                f"bad_words is {self.bad_words!r} and forbids {alone[0]}, which is in eos; to go on past an end "
                "token leave it out of eos, to put off the end use min_new_tokens"
            )

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` as pairs of token id and bias, ids rising."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias


@dataclass(frozen=True)
class Request:
    """One prompt to continue. ``id`` is part of every noise key: equal ids draw equal noise.

    ``prompt`` may be given as any sequence of token ids; it is kept as a tuple. Its last ``emitted`` tokens are output
    of the same request, decoded earlier: penalties count them as such. ``keep`` asks the engine to keep a copy of the
    request's keys and values after its end; ``continues`` is the id of such a request, of which this one uses what
    belongs to the common beginning of both texts (the next turn of a conversation).

    Raises SpecdecError if ``emitted`` is not from 0 to the prompt's length.

    Example: ``Request(0, prompt, keep=True)``, then ``Request(1, (*prompt, *output, *question), continues=0)``
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    emitted: int = 0
    keep: bool = False
    continues: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        if not _whole(self.emitted, 0, len(self.prompt)):
            raise SpecdecError(f"emitted is {self.emitted!r} in request {self.id}; expected 0 to {len(self.prompt)}")

    def alone(self) -> Request:
        """The same request without other requests: its tokens are the same, and no keys and values are kept."""
        return replace(self, keep=False, continues=None) if self.keep or self.continues is not None else self

    def after(self, output: Sequence[int]) -> Request:
        """The same request after ``output``, with the budget that is left (at least 1 token), to be decoded anew."""
        done, params = len(output), self.params
        most = max(params.max_new_tokens - done, 1)
        least = min(max(params.min_new_tokens - done, 0), most)
        params = replace(params, max_new_tokens=most, min_new_tokens=least)
        return replace(self, prompt=(*self.prompt, *output), params=params, emitted=self.emitted + done).alone()


@dataclass(frozen=True)
class Capacity:
    """Which requests an engine takes.

    ``max_length``: tokens of prompt and output together for which it was built; ``positions``: those of the model, None
    for any number; ``vocabulary``: token ids from 0 to one less.
    """

    max_length: int
    positions: int | None
    vocabulary: int

    @property
    def longest(self) -> int:
        """The most tokens of prompt and output together."""
        return self.max_length if self.positions is None else min(self.max_length, self.positions)

    def refuse(self, request: Request) -> None:
        """Raise SpecdecError for a prompt that is empty or too long, or a token id outside the vocabulary."""
        length, most = len(request.prompt), self.longest
        if length == 0:
            raise SpecdecError(f"the prompt of request {request.id} is empty; give it at least one token")
        if length >= most:
            remedy = "raise max_length" if most == self.max_length else "take a model with more positions"
            raise SpecdecError(
                f"the prompt of request {request.id} has {length} tokens and at most {most - 1} fit "
                f"(the engine was built for {self.max_length}, the model has "
                f"{self.positions or 'unlimited'} positions); shorten it or {remedy}"
            )
        params = request.params
        places = {
            "prompt": request.prompt,
            "logit_bias": [token for token, _ in params.bias],
            "bad_words": [token for word in params.bad_words for token in word],
        }
        for name, tokens in places.items():
            strange = [token for token in tokens if not 0 <= token < self.vocabulary]
            if strange:
                raise SpecdecError(
                    f"the {name} of request {request.id} has the token id {strange[0]}; the target's vocabulary "
                    f"ends at {self.vocabulary - 1}: was it made by another tokenizer?"
                )


def refuse_conflicts(
    requests: Sequence[Request], taken: Collection[int], kept: Collection[int], waiting: Sequence[Request]
) -> None:
    """Raise SpecdecError for an id that another request has (``taken``: those of the run), and for a request that
    continues one that is not ``kept``, or that another one continues (``waiting``: those that have no row yet)."""
    seen = set(taken)
    for request in requests:
        if request.id in seen:
            raise SpecdecError(
                f"two requests have the same id, {request.id}; the noise is keyed by it, so give each its own"
            )
        seen.add(request.id)
    continued = [request.continues for request in waiting if request.continues is not None]
    for request in requests:
        if request.continues is None:
            continue
        if request.continues not in kept or request.continues in continued:
            raise SpecdecError(
                f"request {request.id} continues {request.continues}, whose keys and values are not here; kept are "
                f"those of {sorted(kept) or 'no request'}. Ask for them with keep=True; one request may "
                "continue another, once, after its end"
            )
        continued.append(request.continues)
