"""Outputs as the plain server reads them: its own log-probabilities at their places, by ``echo``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchsuite.benches.serving.asked import LIST, WIDE, Connect, ask_all
from benchsuite.judge import logprob_ties
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply, Token


def longest_list(connect: Connect, server: Endpoint, ask: Ask) -> int:
    """Return how many likeliest tokens a server names at each place of a text that it reads: ``WIDE``, or ``LIST``."""
    tokens, _ = _echo(connect, server, _reading(ask, WIDE))
    return WIDE if tokens else LIST


def echoed(connect: Connect, server: Endpoint, ask: Ask, reply: Reply, listed: int = LIST) -> tuple[Token, ...] | None:
    """Return an output's tokens with the server's lists at their places, by ``echo``; None where it has no such thing.
    A list has so many tokens as are ``listed``.

    Where servers name tokens by numbers, prompt and output are sent as these; else as text, and None is returned if
    that is other tokens than were generated, whose places would be others'. No text shows the token that ended an
    output: its list is that of what the server would say next. Of a reply without tokens their number alone is known,
    if at all: its text may be read as other tokens than were generated.
    """
    if ask.chat or not (reply.text or reply.tokens):
        return None
    reading = _reading(ask, listed)
    ids = [token.id for token in reply.tokens]
    before = None if None in ids or not ids else _ids_of(connect, server, reading)
    prompt: str | tuple[int, ...]
    if before is not None:
        prompt = (*before, *(number for number in ids if number is not None))
    elif isinstance(ask.prompt, str):
        prompt = ask.prompt + reply.text
    else:
        return None
    tokens, ahead = _echo(connect, server, replace(reading, prompt=prompt))
    if not reply.tokens:
        alone, _ = _echo(connect, server, reading)
        mine = tokens[len(alone) :]
        counted = len(mine) if reply.counted is None else reply.counted
        # An end token is counted and has no text.
        fits = logprob_ties.parting(alone, tokens) == len(alone) > 0 and counted - len(mine) in (0, 1)
        return mine if fits and mine else None
    if _ends_with(tokens, reply.tokens):
        return tokens[len(tokens) - len(reply.tokens) :]
    *shown, last = reply.tokens
    if reply.finish_reason != "stop" or ahead is None or not _ends_with(tokens, shown):
        return None
    ended = replace(ahead, text=last.text, id=last.id, logprob=dict(ahead.top).get(last.text))
    return *tokens[len(tokens) - len(shown) :], ended


def _reading(ask: Ask, listed: int) -> Ask:
    """A request that has a server read the prompt, and say one token behind it."""
    return replace(ask, max_tokens=1, echo=True, temperature=0.0, stop=(), logprobs=listed)


def _ends_with(tokens: Sequence[Token], output: Sequence[Token]) -> bool:
    """Whether tokens that the server has read are a prompt and this output."""
    mine = tokens[len(tokens) - len(output) :]
    return len(tokens) > len(output) and logprob_ties.parting(mine, output) == len(mine)


def _echo(connect: Connect, server: Endpoint, ask: Ask) -> tuple[tuple[Token, ...], Token | None]:
    """The tokens of a request's own text, as the server reads them, and the one that it generates behind them; none
    where it does not say them."""
    [found] = ask_all(connect, server, [ask]).replies
    return (found.tokens[:-1], found.tokens[-1]) if found and found.tokens else ((), None)


def _ids_of(connect: Connect, server: Endpoint, ask: Ask) -> tuple[int, ...] | None:
    """The numbers of the prompt's tokens, as the server echoes them; None where it does not say them."""
    if not isinstance(ask.prompt, str):
        return ask.prompt
    ids = [token.id for token in _echo(connect, server, ask)[0]]
    return tuple(number for number in ids if number is not None) if ids and None not in ids else None
