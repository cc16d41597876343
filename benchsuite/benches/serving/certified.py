"""Certificates: is a server's output that of the plain server? What is asked, and what is said of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from typing import Literal

from benchsuite.judge import logprob_ties
from benchsuite.judge.fidelity import FALSE_ALARM
from benchsuite.judge.logprob_ties import Bound, ServedDifference
from benchsuite.judge.transforms import FALSE_ALARM_OF_HEAT, read_tokens
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token

LIST = 5
"""Likeliest tokens asked for at each place: the most that the OpenAI API gives of completions."""

OTHER_BATCH = 4
"""Requests at once in plain's second run, whose batches are others than those of one at a time."""

State = Literal["certified", "bug", "differs, not judged", "inconclusive"]


@dataclass(frozen=True)
class Certificate:
    """What can be said of one endpoint's outputs beside the plain endpoint's.

    ``lines`` say why; the first is the whole in a sentence.
    """

    endpoint: str
    state: State
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ServedAnswers:
    """The answers of one endpoint, by the place of their prompts; None where one failed. ``failures`` by kind."""

    replies: tuple[Reply | None, ...]
    failures: tuple[str, ...] = ()


Read = Callable[[Ask, Reply], tuple[Token, ...] | None]
"""Reads an output: its tokens with the likeliest ones at their places, or None where that cannot be told."""

Connect = Callable[[Endpoint], Client]
"""Makes a client of an endpoint; what is started only when it is asked is started then."""


def ask_all(connect: Connect, endpoint: Endpoint, asks: Sequence[Ask], at_once: int = 1) -> ServedAnswers:
    """Ask for every answer, so many at once; nothing is timed."""
    return asyncio.run(_asked_all(connect(endpoint), asks, at_once))


async def _asked_all(opened: Client, asks: Sequence[Ask], at_once: int) -> ServedAnswers:
    gate, failed = asyncio.Semaphore(at_once), list[str]()
    async with opened as client:

        async def one(ask: Ask) -> Reply | None:
            async with gate:
                try:
                    reply = await client.complete(ask)
                    return replace(reply, tokens=tuple(_cut(token) for token in reply.tokens))
                except EndpointFailure as failure:
                    failed.append(failure.kind)
                    return None

        return ServedAnswers(tuple(await asyncio.gather(*map(one, asks))), tuple(failed))


def _cut(token: Token) -> Token:
    """The token with the likeliest ones alone: some servers add a drawn one that is not among them."""
    return replace(token, top=token.top[:LIST])


def certify(
    endpoints: Sequence[Endpoint],
    prompts: Sequence[str],
    ask: Ask,
    dtype: str = "unknown",
    connect: Connect = Client,
    read: Read | None = None,
) -> list[Certificate]:
    """Ask all endpoints for all prompts, with log-probabilities, and certify each by the first one.

    Greedy requests (temperature 0) are compared token by token, sampled ones at temperature 1 as a distribution. Raises
    ValueError for another temperature or ``top_p``: servers differ in whether their log-probabilities are those before
    or after these.
    ``read``: reads outputs in the plain server's place, such as a local model with the same weights (``LocalJudge``).
    """
    if ask.temperature not in (0, 1):
        raise ValueError(f"got temperature {ask.temperature:g}; a certificate needs 0 or 1")
    if ask.temperature and ask.top_p != 1:
        raise ValueError(f"got top_p {ask.top_p:g}; a certificate of sampled outputs needs 1")
    plain, *others = endpoints
    asks = _asks(ask, prompts)
    if ask.temperature:
        reading = read or partial(echoed, connect, plain)
        return [_sampled(connect, reading, plain.name, other, asks) for other in others]
    first = ask_all(connect, plain, asks)
    if read is not None:
        return [_read_locally(read, first, one.name, ask_all(connect, one, asks), asks, dtype) for one in others]
    second = ask_all(connect, plain, asks, OTHER_BATCH)
    pairs = [(one.tokens, two.tokens) for one, two in zip(first.replies, second.replies, strict=True) if one and two]
    bound = logprob_ties.bound_of(pairs, dtype)
    own = [found for n, pair in enumerate(pairs) if (found := logprob_ties.compare_outputs(n, *pair, bound))]
    unlike = [one for one in own if one.kind == "bug"]
    if unlike:
        line = f"INCONCLUSIVE: {plain.name} asked twice is not itself, so that nothing can be compared with it"
        return [Certificate(one.name, "inconclusive", (f"{one.name}: {line}", str(unlike[0]))) for one in others]
    return [_greedy(connect, other.name, first, ask_all(connect, other, asks), bound, plain, asks) for other in others]


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
) -> Certificate:
    both = [(n, a, b) for n, (a, b) in enumerate(zip(plain.replies, other.replies, strict=True)) if a and b]
    if not both:
        kinds = ", ".join(sorted({*plain.failures, *other.failures})) or "nothing was asked"
        return Certificate(name, "inconclusive", (f"{name}: INCONCLUSIVE: no prompt was answered by both ({kinds})",))
    outputs = [a.tokens for _, a, _ in both]
    if not any(outputs) or not any(b.tokens for _, _, b in both):
        return _texts_alone(name, both)
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
    certificate = _verdict(name, judged, differences, scored, bound, drifted, prompts)
    missing = len(asks) - len(both)
    if not missing:
        return certificate
    kinds = ", ".join(sorted({*plain.failures, *other.failures}))
    line = f"{missing} of {len(asks)} prompts were not answered by both ({kinds})"
    if certificate.state == "certified":
        return Certificate(name, "inconclusive", (f"{name}: INCONCLUSIVE: {line}", *certificate.lines))
    return replace(certificate, lines=(*certificate.lines, line))


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
    read: Read, plain: ServedAnswers, name: str, other: ServedAnswers, asks: Sequence[Ask], dtype: str
) -> Certificate:
    """Judge outputs by a reader; plain's own show how far honest tokens lie from the reader's likeliest."""
    both = [(n, a, b) for n, (a, b) in enumerate(zip(plain.replies, other.replies, strict=True)) if a and b]
    of_plain = [tokens for n, a, _ in both if (tokens := read(asks[n], a))]
    of_other = {n: tokens for n, _, b in both if (tokens := read(asks[n], b))}
    if not of_plain or not of_other:
        line = f"{name}: INCONCLUSIVE: no text of {'plain' if not of_plain else name} can be read token by token"
        return Certificate(name, "inconclusive", (line,))
    apart = [token.top[0][1] - (token.logprob or 0.0) for tokens in of_plain for token in tokens]
    floor = logprob_ties.FLOORS[dtype]
    bound = Bound(min(logprob_ties.MOST, max(max(apart), floor)), max(apart) / 2, len(apart), floor)
    every = [one for n, tokens in of_other.items() for one in logprob_ties.score_outputs(n, tokens, tokens, bound)]
    bugs = [one for one in every if one.kind == "bug"]
    rate = logprob_ties.smallest_rate([*of_other.values()], bound)
    finds = "nothing would be found" if rate is None else f"one changed token in {rate:.0f} is found with 99 %"
    count = sum(map(len, of_other.values()))
    equal = sum(a.text == b.text for _, a, b in both)
    seen = f"{len(of_other)} read by the local judge, {count:,} tokens"
    head = f"{equal} of {len(both)} outputs are plain's, {seen}; {finds}"
    rest = (
        f"a token within {bound.nats:.3g} nats of the judge's likeliest may be chosen: plain's own lie up to "
        f"{max(apart):.2g} from it",
        *map(str, bugs[:3]),
    )
    if bugs:
        return Certificate(name, "bug", (f"{name}: FAILED: {len(bugs)} tokens are not the judge's; {head}", *rest))
    unread = len(both) - len(of_other)
    if unread and equal < len(both):
        return Certificate(name, "differs, not judged", (f"{name}: {unread} texts could not be read; {head}", *rest))
    return Certificate(name, "certified", (f"{name}: certified: {head}", *rest))


def _texts_alone(name: str, both: Sequence[tuple[int, Reply, Reply]]) -> Certificate:
    differ = [n for n, a, b in both if a.text != b.text]
    if not differ:
        line = f"{name}: {len(both)} of {len(both)} texts are plain's; no log-probabilities were given"
        return Certificate(name, "certified", (line,))
    line = (
        f"{name}: differs, not judged: the texts of prompts {', '.join(map(str, differ))} are not plain's, and without "
        "log-probabilities rounding cannot be told from a bug; start the servers with them"
    )
    return Certificate(name, "differs, not judged", (line,))


def echoed(connect: Connect, server: Endpoint, ask: Ask, reply: Reply) -> tuple[Token, ...] | None:
    """Return an output's tokens with the server's lists at their places, by ``echo``; None where it has no such thing.

    Where servers name tokens by numbers, prompt and output are sent as these; else as text, and None is returned if
    that is other tokens than were generated, whose places would be others'.
    """
    if ask.chat or not reply.tokens:
        return None
    reading = replace(ask, max_tokens=1, echo=True, temperature=0.0, stop=())
    ids = [token.id for token in reply.tokens]
    before = None if None in ids else _ids_of(connect, server, reading)
    prompt: str | tuple[int, ...]
    if before is not None:
        prompt = (*before, *(number for number in ids if number is not None))
    elif isinstance(ask.prompt, str):
        prompt = ask.prompt + reply.text
    else:
        return None
    [found] = ask_all(connect, server, [replace(reading, prompt=prompt)]).replies
    if found is None:
        return None
    # The answer has one generated token behind the echoed ones.
    tokens = found.tokens[:-1] if len(found.tokens) > 1 else ()
    mine = tokens[len(tokens) - len(reply.tokens) :]
    fits = len(tokens) > len(reply.tokens) and logprob_ties.parting(mine, reply.tokens) == len(mine)
    return tuple(mine) if fits else None


def _ids_of(connect: Connect, server: Endpoint, ask: Ask) -> tuple[int, ...] | None:
    """The numbers of the prompt's tokens, as the server echoes them; None where it does not say them."""
    if not isinstance(ask.prompt, str):
        return ask.prompt
    [found] = ask_all(connect, server, [ask]).replies
    ids = [token.id for token in found.tokens[:-1]] if found else []
    return tuple(number for number in ids if number is not None) if ids and None not in ids else None


def _verdict(
    name: str,
    outputs: Sequence[Sequence[Token]],
    differences: Sequence[ServedDifference],
    scored: Sequence[ServedDifference],
    bound: Bound,
    drifted: Sequence[tuple[int, int, float]],
    prompts: Sequence[str],
) -> Certificate:
    # A first difference that was scored is the same difference.
    places = {(one.prompt, one.place) for one in differences}
    every = [*differences, *(one for one in scored if (one.prompt, one.place) not in places)]
    bugs = [one for one in every if one.kind == "bug"]
    ties = [one for one in every if one.kind == "tie"]
    open_ = [one for one in every if one.kind == "not judged"]
    near, _ = logprob_ties.near_ties(outputs, bound)
    rate = logprob_ties.smallest_rate(outputs, bound)
    finds = "nothing would be found" if rate is None else f"one changed token in {rate:.0f} is found with 99 %"
    equal, tokens = len(outputs) - len(differences), sum(map(len, outputs))
    head = f"{equal} of {len(outputs)} outputs are plain's, {len(ties)} ties, {tokens:,} tokens judged; {finds}"
    shown = [f"{one}; the prompt: {prompts[one.prompt][-60:]!r}" for one in (*bugs[:3], *open_[:3], *ties[:3])]
    if drifted:
        prompt, place, nats = max(drifted, key=lambda one: one[2])
        shown.append(
            f"{len(drifted)} lists of equal texts are further apart than the bound, by up to {nats:.3g} nats at prompt "
            f"{prompt}, token {place}: the tokens agree and the probabilities do not; see the cache after a rollback"
        )
    rest = (str(bound), *shown)
    if bugs:
        return Certificate(name, "bug", (f"{name}: FAILED: {len(bugs)} tokens are not plain's; {head}", *rest))
    if logprob_ties.too_many_ties(len(ties), near):
        line = f"{name}: FAILED: {len(ties)} of {near} places where a tie can be are ties, a coin would make half"
        return Certificate(name, "bug", (f"{line}; {head}", *rest))
    if open_:
        return Certificate(name, "differs, not judged", (f"{name}: {len(open_)} differences not judged; {head}", *rest))
    if rate is None:
        return Certificate(name, "inconclusive", (f"{name}: INCONCLUSIVE: {head}", *rest))
    return Certificate(name, "certified", (f"{name}: certified: {head}", *rest))


def _sampled(connect: Connect, reading: Read, judge: str, other: Endpoint, asks: Sequence[Ask]) -> Certificate:
    """Read an endpoint's sampled outputs under the plain one's lists.

    Which outputs can be read may depend on their tokens. The p-values are therefore multiplied by the number of ways in
    which so many could have been left out (Boole's inequality), and outputs that nobody read are not certified.
    """
    answers = ask_all(connect, other, asks)
    read = [reading(ask, reply) for ask, reply in zip(asks, answers.replies, strict=True) if reply]
    sample = read_tokens([tokens for tokens in read if tokens], most=LIST)
    name = other.name
    if not sample.tokens:
        line = (
            f"{name}: INCONCLUSIVE: {judge} cannot read a text with log-probabilities (echo), or splits it into "
            "other tokens; nothing is said of the distribution"
        )
        return Certificate(name, "inconclusive", (line,))
    left = len(asks) - sum(map(bool, read))
    ways = comb(len(asks), left)
    even, heat = (min(1.0, p * ways) for p in (sample.evenness, sample.heat_p))
    factor = sample.heat_found()
    finds = "no factor of the temperature up to 4" if factor is None else f"a temperature {factor:.2f} times as high"
    needs = f"1.1 times needs {sample.tokens_for(1.1):,.0f} tokens, 1.2 times {sample.tokens_for(1.2):,.0f} tokens"
    head = (
        f"{sample.tokens:,} tokens of {other.name} under {judge}'s list: transforms p={even:.2g}, "
        f"log-probabilities p={heat:.2g}; {finds} is found with 99 %; {needs}"
    )
    if left:
        kinds = f" ({', '.join(sorted(set(answers.failures)))})" if answers.failures else ""
        head += f"; {left} of {len(asks)} outputs are missing{kinds}, or {judge} reads them as other tokens"
    if even < FALSE_ALARM or heat < FALSE_ALARM_OF_HEAT:
        return Certificate(name, "bug", (f"{name}: FAILED: not plain's distribution; {head}",))
    if left:
        return Certificate(name, "inconclusive", (f"{name}: INCONCLUSIVE, not all outputs could be read: {head}",))
    state: State = "certified" if factor is not None else "inconclusive"
    said = "certified" if factor is not None else "INCONCLUSIVE, too few tokens"
    return Certificate(name, state, (f"{name}: {said}: {head}",))
