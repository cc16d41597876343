"""Certifying: endpoints answer the same prompts, and their answers are compared with the plain endpoint's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from benchsuite.benches.serving.asked import LIST, Connect, Read, ask_all
from benchsuite.benches.serving.certificate import Certificate, PlainOfItsOwn, UnsteadyPlain
from benchsuite.benches.serving.echoes import echoed, longest_list
from benchsuite.benches.serving.greedy import Greedy
from benchsuite.benches.serving.sampled import sampled_evidence
from benchsuite.benches.serving.timed_texts import AskedFor, TimedText
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint

LOCAL = "the local judge"
"""The name of a local model that reads in the plain server's place."""


def certify(
    endpoints: Sequence[Endpoint],
    prompts: Sequence[str],
    ask: Ask,
    dtype: str = "unknown",
    connect: Connect = Client,
    read: Read | None = None,
    timed: Mapping[str, Sequence[TimedText]] = MappingProxyType({}),
    before_new: str = "",
) -> list[Certificate]:
    """Ask all endpoints for all prompts, with log-probabilities, and certify each by the first one.

    Greedy requests (temperature 0) are compared token by token, sampled ones at temperature 1 as a distribution. Raises
    ValueError for another temperature or ``top_p``: servers differ in whether their log-probabilities are those before
    or after these.
    ``read``: reads outputs in the plain server's place, such as a local model with the same weights (``LocalJudge``).
    ``timed``: texts that were timed, by the endpoints' names. Greedy ones must be the certified ones, and sampled ones
    must follow the same distribution. ``before_new``: a text that no server has met. All prompts are asked for a second
    time with it before them, so that no server has them in a cache; without it none is.
    """
    if ask.temperature not in (0, 1):
        raise ValueError(f"got temperature {ask.temperature:g}; a certificate needs 0 or 1")
    if ask.temperature and ask.top_p != 1:
        raise ValueError(f"got top_p {ask.top_p:g}; a certificate of sampled outputs needs 1")
    plain, *others = endpoints
    known = [*dict.fromkeys(prompts)]
    new = [before_new + prompt for prompt in known] if before_new else []
    asks, asked_for = _asks(ask, [*known, *new]), AskedFor(ask.max_tokens, len(known), len(new))
    texts = {one.name: timed.get(one.name, ()) for one in endpoints}
    if ask.temperature:
        listed = LIST if read else longest_list(connect, plain, asks[0])
        reading, judge = (read, LOCAL) if read else (partial(echoed, connect, plain, listed=listed), plain.name)
        evidence = partial(sampled_evidence, connect, reading, judge, asks, asked_for)
        control = evidence(plain, texts[plain.name])
        if control.state == "bug":
            return [Certificate(one.name, PlainOfItsOwn(plain.name, control)) for one in others]
        found = {one.name: evidence(one, texts[one.name]) for one in others}
        return [
            Certificate(name, replace(one, kept=replace(one.kept, plain=control.kept.server)))
            for name, one in found.items()
        ]
    greedy = Greedy(connect, plain, asks, asked_for, dtype)
    if read is not None:
        return [greedy.read_by(read, one, ask_all(connect, one, asks), texts[one.name]) for one in others]
    if unlike := greedy.unlike_itself(texts[plain.name]):
        return [Certificate(one.name, UnsteadyPlain(plain.name), unlike[:1]) for one in others]
    return [greedy.certificate(one.name, ask_all(connect, one, asks), texts[one.name]) for one in others]


def _asks(ask: Ask, prompts: Sequence[str]) -> list[Ask]:
    """One request for each of different prompts: the same prompt twice would be the same evidence twice.

    So would be one seed for all prompts: servers make the same random numbers of it for each. No seed is one of those
    with which so many prompts were timed.
    """
    seeds = [None if ask.seed is None else ask.seed + len(prompts) + place for place in range(len(prompts))]
    return [
        replace(ask, prompt=prompt, seed=seed, logprobs=LIST, stream=False)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
