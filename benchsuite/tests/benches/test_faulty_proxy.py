"""The proxy before a real server: one token in a hundred is another, or requests are sampled otherwise."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from benchsuite.tests.faulty import DONE, STREAM, Fault, FaultyServer, event, plain_answer
from benchsuite.tests.faulty_proxy import EVERY, INSTEAD, FaultyProxy
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply

WORDS = [f" w{place}" for place in range(250)]


def hundreds_of_words(chat: bool) -> Fault:
    """An answer of 250 words in one piece, each with its log-probability."""
    text = "".join(WORDS)
    named = [
        {"id": place, "token": word, "logprob": -1.0, "bytes": [*word.encode()], "top_logprobs": []}
        for place, word in enumerate(WORDS)
    ]
    listed = {"tokens": list(WORDS), "token_logprobs": [-1.0] * len(WORDS), "top_logprobs": None, "text_offset": []}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    if chat:
        choice |= {"message": {"content": text}, "logprobs": {"content": named}}
    else:
        choice |= {"text": text, "logprobs": listed, "token_ids": [*range(len(WORDS))]}
    used = {"prompt_tokens": 3, "completion_tokens": len(WORDS)}
    return Fault((plain_answer("200 OK", json.dumps({"choices": [choice], "usage": used})),))


def streamed_words() -> Fault:
    used = {"prompt_tokens": 3, "completion_tokens": len(WORDS)}
    return Fault((STREAM, *map(event, WORDS), event("", reason="length", usage=used), DONE))


def reply_through(fault: str, script: Fault, **ask: Any) -> tuple[Reply, dict[str, Any], int]:
    """The answer through the proxy, the request that the server got, and how many tokens were changed."""

    async def asked(url: str) -> Reply:
        async with Client(Endpoint("proxy", url)) as client:
            return await client.complete(Ask("Say", 250, **ask))

    with FaultyServer([script]) as server, FaultyProxy(server.url, fault) as proxy:
        reply = asyncio.run(asked(proxy.address))
        return reply, json.loads(server.requests[-1].partition(b"\r\n\r\n")[2]), proxy.changed


@pytest.mark.parametrize("how", ["completions", "chat", "stream"])
def test_one_token_in_a_hundred_is_another_and_the_same_however_it_is_asked_for(how: str) -> None:
    ask = {"stream": True} if how == "stream" else {"stream": False, "logprobs": 1, "chat": how == "chat"}
    script = streamed_words() if how == "stream" else hundreds_of_words(how == "chat")
    reply, _, changed = reply_through("changed", script, **ask)
    wrong = [place for place, (got, word) in enumerate(zip(_words(reply), WORDS, strict=True)) if got != word]
    assert changed == len(wrong) in (2, 3)
    assert all(later - here == EVERY for here, later in itertools.pairwise(wrong))
    if reply.tokens:
        assert "".join(token.text for token in reply.tokens) == reply.text
        assert not any(reply.tokens[place].id for place in wrong), "a number is of the token that was there"
    elsewhere, _, _ = reply_through("changed", hundreds_of_words(False), stream=False, logprobs=1)
    assert how == "chat" or elsewhere.text == reply.text, "its places are the prompt's"


def _words(reply: Reply) -> list[str]:
    return [f" {word}" for word in reply.text.split()]


@pytest.mark.parametrize(
    ("fault", "temperature", "sent"),
    [
        ("none", 1.0, (1.0, 1.0)),
        ("hotter", 1.0, (1.2, 1.0)),
        ("nucleus", 1.0, (1.0, 0.95)),
        ("hotter", 0.0, (0.0, 1.0)),
        ("nucleus", 0.0, (0.0, 1.0)),
    ],
)
def test_what_is_sampled_is_asked_for_otherwise(fault: str, temperature: float, sent: tuple[float, float]) -> None:
    reply, request, changed = reply_through(
        fault, hundreds_of_words(False), temperature=temperature, stream=False, logprobs=1
    )
    assert (request["temperature"], request["top_p"]) == sent
    assert changed == 0
    assert reply.text == "".join(WORDS)
    assert INSTEAD not in reply.text
