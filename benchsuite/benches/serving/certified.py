"""Certifying: endpoints answer the same prompts, and their answers are compared with the plain endpoint's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from benchsuite.benches.serving.asked import LIST, Connect, Read, ServedAnswers, ask_all
from benchsuite.benches.serving.certificate import (
    Certificate,
    GreedyEvidence,
    PlainOfItsOwn,
    UnsteadyPlain,
)
from benchsuite.benches.serving.echoes import echoed
from benchsuite.benches.serving.sampled import sampled_evidence
from benchsuite.benches.serving.timed_texts import TimedEvidence, TimedText, timed_evidence
from benchsuite.judge import logprob_ties
from benchsuite.judge.logprob_ties import Bound, ServedDifference
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply, Token

LOCAL = "the local judge"
"""The name of a local model that reads in the plain server's place."""

OTHER_BATCH = 4
"""Requests at once in plain's second run, whose batches are others than those of one at a time."""


def certify(
    endpoints: Sequence[Endpoint],
    prompts: Sequence[str],
    ask: Ask,
    dtype: str = "unknown",
    connect: Connect = Client,
    read: Read | None = None,
    timed: Mapping[str, Sequence[TimedText]] = MappingProxyType({}),
) -> list[Certificate]:
    """Ask all endpoints for all prompts, with log-probabilities, and certify each by the first one.

    Greedy requests (temperature 0) are compared token by token, sampled ones at temperature 1 as a distribution. Raises
    ValueError for another temperature or ``top_p``: servers differ in whether their log-probabilities are those before
    or after these.
    ``read``: reads outputs in the plain server's place, such as a local model with the same weights (``LocalJudge``).
    ``timed``: greedy texts that were timed, by the endpoints' names; they must be the certified ones.
    """
    if ask.temperature not in (0, 1):
        raise ValueError(f"got temperature {ask.temperature:g}; a certificate needs 0 or 1")
    if ask.temperature and ask.top_p != 1:
        raise ValueError(f"got top_p {ask.top_p:g}; a certificate of sampled outputs needs 1")
    plain, *others = endpoints
    asks = _asks(ask, prompts)
    if ask.temperature:
        reading, judge = (read, LOCAL) if read else (partial(echoed, connect, plain), plain.name)
        control = sampled_evidence(connect, reading, judge, plain, asks)
        if control.state == "bug":
            return [Certificate(one.name, PlainOfItsOwn(plain.name, control)) for one in others]
        return [Certificate(one.name, sampled_evidence(connect, reading, judge, one, asks)) for one in others]
    first = ask_all(connect, plain, asks)
    if read is not None:
        return [
            _read_locally(read, plain, first, one, ask_all(connect, one, asks), asks, dtype, timed.get(one.name, ()))
            for one in others
        ]
    second = ask_all(connect, plain, asks, OTHER_BATCH)
    pairs = [(one.tokens, two.tokens) for one, two in zip(first.replies, second.replies, strict=True) if one and two]
    bound = logprob_ties.bound_of(pairs, dtype)
    own = [found for n, pair in enumerate(pairs) if (found := logprob_ties.compare_outputs(n, *pair, bound))]
    unlike = [str(one) for one in own if one.kind == "bug"]
    known = {n: (reply, reply.tokens) for n, reply in enumerate(first.replies) if reply}
    of_plain, lines = timed_evidence(timed.get(plain.name, ()), known, bound, ask.max_tokens)
    if unlike or of_plain.wrong:
        return [Certificate(one.name, UnsteadyPlain(plain.name), (*unlike, *lines)[:1]) for one in others]
    return [
        _greedy(connect, one.name, first, ask_all(connect, one, asks), bound, plain, asks, timed.get(one.name, ()))
        for one in others
    ]


def _asks(ask: Ask, prompts: Sequence[str]) -> list[Ask]:
    """One request for each different prompt: the same prompt twice would be the same evidence twice.

    So would be one seed for all prompts: servers make the same random numbers of it for each.
    """
    seeds = range(ask.seed, ask.seed + len(prompts)) if ask.seed is not None else [None] * len(prompts)
    return [
        replace(ask, prompt=prompt, seed=seed, logprobs=LIST, stream=False)
        for prompt, seed in zip(dict.fromkeys(prompts), seeds, strict=False)
    ]


def _greedy(
    connect: Connect,
    name: str,
    plain: ServedAnswers,
    other: ServedAnswers,
    bound: Bound,
    server: Endpoint,
    asks: Sequence[Ask],
    timed: Sequence[TimedText],
) -> Certificate:
    both = _both(plain, other)
    known, most = {n: (b, b.tokens) for n, _, b in both}, asks[0].max_tokens
    if not any(a.tokens for _, a, _ in both) or not any(b.tokens for _, _, b in both):
        return _texts_alone(name, both, plain, other, timed_evidence(timed, known, None, most))
    of_timed, apart = timed_evidence(timed, known, bound, most)
    differences = [found for n, a, b in both if (found := _compared(n, a, b, bound))]
    scored = list[ServedDifference]()
    judged = list[Sequence[Token]]()
    for n, a, b in both:
        read = echoed(connect, server, asks[n], b)
        if read is not None:
            scored += logprob_ties.score_outputs(n, read, b.tokens, bound)
        # What follows a first difference is judged only where plain reads it.
        shared = 0 if _silent(b) else logprob_ties.parting(a.tokens, b.tokens) + 1
        judged.append(a.tokens[:shared] if read is None else read)
    drifted = [(n, *one) for n, a, b in both for one in logprob_ties.drifts(a.tokens, b.tokens, bound)]
    prompts = [str(ask.prompt) for ask in asks]
    # A first difference that was scored is the same difference.
    places = {(one.prompt, one.place) for one in differences}
    every = [*differences, *(one for one in scored if (one.prompt, one.place) not in places)]
    kinds = {kind: [one for one in every if one.kind == kind] for kind in ("bug", "not judged", "tie")}
    evidence = GreedyEvidence(
        "plain",
        len(asks),
        len(both),
        len(both) - len(differences),
        (*plain.failures, *other.failures),
        sum(map(len, judged)),
        wrong=len(kinds["bug"]),
        ties=len(kinds["tie"]),
        near=logprob_ties.near_ties(judged, bound)[0],
        unjudged=len(kinds["not judged"]),
        one_in=logprob_ties.smallest_rate(judged, bound),
        timed=of_timed,
    )
    details = [f"{one}; the prompt: {prompts[one.prompt][-60:]!r}" for of_kind in kinds.values() for one in of_kind[:3]]
    if drifted:
        prompt, place, nats = max(drifted, key=lambda one: one[2])
        details.append(
            f"{len(drifted)} lists of equal texts are further apart than the bound, by up to {nats:.3g} nats at prompt "
            f"{prompt}, token {place}: the tokens agree and the probabilities do not; see the cache after a rollback"
        )
    return Certificate(name, evidence, (str(bound), *details, *apart))


def _both(plain: ServedAnswers, other: ServedAnswers) -> list[tuple[int, Reply, Reply]]:
    """The prompts that both answered, by their places."""
    return [(n, a, b) for n, (a, b) in enumerate(zip(plain.replies, other.replies, strict=True)) if a and b]


def _silent(reply: Reply) -> bool:
    """Whether a reply has a text and no log-probabilities, so that its tokens are unknown."""
    return bool(reply.text) and not reply.tokens


def _compared(prompt: int, plain: Reply, other: Reply, bound: Bound) -> ServedDifference | None:
    """The first difference of two replies; of texts alone where one has no log-probabilities."""
    if not (_silent(plain) or _silent(other)):
        return logprob_ties.compare_outputs(prompt, plain.tokens, other.tokens, bound)
    if plain.text == other.text:
        return None
    return ServedDifference(prompt, 0, plain.text[:60], other.text[:60], "not judged", None, ((), ()))


def _read_locally(
    read: Read,
    server: Endpoint,
    plain: ServedAnswers,
    endpoint: Endpoint,
    other: ServedAnswers,
    asks: Sequence[Ask],
    dtype: str,
    timed: Sequence[TimedText],
) -> Certificate:
    """Judge outputs by a reader; plain's own show how far honest tokens lie from the reader's likeliest."""
    both, failures = _both(plain, other), (*plain.failures, *other.failures)
    of_plain = [tokens for n, a, _ in both if (tokens := read(asks[n], a))]
    of_other = {n: tokens for n, _, b in both if (tokens := read(asks[n], b))}
    equal, nothing = sum(a.text == b.text for _, a, b in both), TimedEvidence(asks[0].max_tokens)
    evidence = GreedyEvidence("judge", len(asks), len(both), equal, failures, timed=nothing)
    if not of_plain or not of_other:
        return Certificate(endpoint.name, replace(evidence, unreadable=(endpoint if of_plain else server).name))
    apart = [token.top[0][1] - (token.logprob or 0.0) for tokens in of_plain for token in tokens]
    bound = logprob_ties.bound_from(max(apart) / 2, len(apart), dtype)
    every = [one for n, tokens in of_other.items() for one in logprob_ties.score_outputs(n, tokens, tokens, bound)]
    bugs, doubtful = ([one for one in every if one.kind == kind] for kind in ("bug", "not judged"))
    of_timed, lines = timed_evidence(timed, {n: (b, of_other.get(n, ())) for n, _, b in both}, bound, nothing.most)
    evidence = replace(
        evidence,
        timed=of_timed,
        tokens=sum(map(len, of_other.values())),
        wrong=len(bugs),
        unjudged=len(doubtful),
        one_in=logprob_ties.smallest_rate([*of_other.values()], bound),
        unread=len(both) - len(of_other),
    )
    near = (
        f"a token within {bound.nats:.3g} nats of the judge's likeliest may be chosen: plain's own lie up to "
        f"{max(apart):.2g} from it"
    )
    return Certificate(endpoint.name, evidence, (near, *map(str, [*bugs, *doubtful][:3]), *lines))


def _texts_alone(
    name: str,
    both: Sequence[tuple[int, Reply, Reply]],
    plain: ServedAnswers,
    other: ServedAnswers,
    timed: tuple[TimedEvidence, list[str]],
) -> Certificate:
    differ = [n for n, a, b in both if a.text != b.text]
    failures = (*plain.failures, *other.failures)
    equal = len(both) - len(differ)
    evidence = GreedyEvidence(
        "none", len(plain.replies), len(both), equal, failures, unjudged=len(differ), timed=timed[0]
    )
    which = f"the texts of prompts {', '.join(map(str, differ))} are not plain's"
    return Certificate(name, evidence, (*((which,) if differ else ()), *timed[1]))
