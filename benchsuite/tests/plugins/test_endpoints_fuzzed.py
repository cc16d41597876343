"""Answers of servers with fields removed, nulled, retyped, doubled and reordered, cut at any byte: read or refused.

The whole client reads them. Whatever it returns is what a reader of thirty lines finds in the same objects.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchsuite.tests.changed_json import changed_json
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply

MOST = 8
"""Tokens that are asked for."""

ENDS = (b"\n", b"\r\n", b"\r")


@dataclass(frozen=True)
class SentAnswer:
    """An answer: its objects, how they are sent, and where the bytes are cut."""

    objects: list[Any]
    stream: bool
    chat: bool
    end: bytes
    cuts: list[int]
    done: bool

    @property
    def body(self) -> bytes:
        """The bytes of the whole answer."""
        if not self.stream:
            return json.dumps(self.objects[0]).encode()
        lines = [b"data: " + json.dumps(one).encode() + self.end + self.end for one in self.objects]
        return b"".join(lines) + (b"data: [DONE]" + 2 * self.end if self.done else b"")


@st.composite
def good_answers(draw: st.DrawFn) -> SentAnswer:
    """An answer of one to eight tokens, in one of the API's forms."""
    words = draw(st.lists(st.sampled_from([" a", " of", "é", " 😀", "\n"]), min_size=1, max_size=MOST))
    chat, stream, named = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    reason = draw(st.sampled_from(["stop", "length", ""]))
    counts = draw(st.sampled_from(["last", "every", "never"]))
    thought = draw(st.sampled_from(["reasoning", "reasoning_content", "content"])) if chat else "text"
    size = draw(st.integers(1, 3)) if stream else len(words)
    objects = []
    for at in range(0, len(words), size):
        part = words[at : at + size]
        usage = {"prompt_tokens": 5, "completion_tokens": min(at + size, len(words))}
        last = at + size >= len(words)
        choice = _choice(part, thought if at == 0 else "content" if chat else "text", chat, stream, named)
        choice["finish_reason"] = reason if last or reason == "" else None
        one: dict[str, Any] = {"id": "x", "object": "chunk", "choices": [choice]}
        if counts == "every" or (counts == "last" and last and not stream):
            one["usage"] = usage
        objects.append(one)
    if counts == "last" and stream:
        objects.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(words)}})
    return SentAnswer(objects, stream, chat, draw(st.sampled_from(ENDS)), draw(st.lists(st.integers(0, 2000))), True)


def _choice(words: list[str], field: str, chat: bool, stream: bool, named: bool) -> dict[str, Any]:
    text = "".join(words)
    likeliest = [{"token": word, "logprob": -0.5} for word in words]
    if chat:
        found: dict[str, Any] = {"index": 0, "delta" if stream else "message": {"role": "assistant", field: text}}
        content = [{**one, "top_logprobs": [one]} for one in likeliest]
        return found | {"logprobs": {"content": content} if named else None}
    lists = {
        "tokens": words,
        "token_logprobs": [-0.5] * len(words),
        "top_logprobs": [{word: -0.5} for word in words],
    }
    return {"index": 0, "text": text, "logprobs": lists if named else None}


@st.composite
def changed_answers(draw: st.DrawFn) -> SentAnswer:
    """The same with up to three changes anywhere in its objects, and their order."""
    sent = draw(good_answers())
    objects = draw(changed_json(sent.objects))
    done = draw(st.booleans()) or draw(st.booleans())
    return SentAnswer(objects or [{}], sent.stream, sent.chat, sent.end, sent.cuts, done)


def fuzzed_reply(sent: SentAnswer) -> Reply:
    """The reply of a client whose server sends these bytes in these pieces."""
    body = sent.body
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in sent.cuts)})

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for start, stop in itertools.pairwise(places):
                yield body[start:stop]

    kind = "text/event-stream" if sent.stream else "application/json"

    async def run() -> Reply:
        answer = httpx.Response(200, headers={"content-type": kind}, stream=Pieces())
        transport = httpx.MockTransport(lambda request: answer)
        async with Client(Endpoint("spec", "http://here", "m", retries=0), transport=transport) as one:
            return await one.complete(Ask("x", MOST, chat=sent.chat, stream=sent.stream, logprobs=1))

    return asyncio.run(run())


def reference_reply(sent: SentAnswer) -> tuple[str, int | None]:
    """What the objects of an answer say: the text, and how many tokens it has."""
    objects = sent.objects if sent.stream else sent.objects[:1]
    text, names, unnamed, used, reason = "", list[str](), False, None, ""
    for one in json.loads(json.dumps(objects)):
        used = one["usage"].get("completion_tokens") if one.get("usage") else used
        for choice in one.get("choices") or []:
            part = choice.get("delta") or choice.get("message") or {}
            thought = part.get("reasoning_content") or part.get("reasoning")
            said = part.get("content") or part.get("text") or choice.get("text")
            new = "".join(_plain(value) for value in (thought, said, part.get("refusal")))
            chances = choice.get("logprobs") or {}
            named = [one["token"] for one in chances.get("content") or []] or chances.get("tokens") or []
            text, names, unnamed = text + new, names + named, unnamed or (bool(new) and not named)
            reason = choice.get("finish_reason") or reason
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    shown, spelt = "".join(text.split()), "".join("".join(names).split())
    fits = used in (len(names), len(names) + (reason != "length"))
    fits = fits and (spelt == shown or (reason != "length" and spelt.startswith(shown)))
    return text, len(names) if names and (fits or not unnamed) else used


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "".join(_plain(one) for one in value)
    return str(value["text"]) if isinstance(value, dict) else value or ""


@pytest.mark.slow
def test_an_answer_that_nobody_changed_is_what_its_words_say() -> None:
    """The fuzzer's own answers are good ones, so that what it refuses is refused for the change."""

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    @given(good_answers())
    def check(sent: SentAnswer) -> None:
        assert (fuzzed_reply(sent).text, fuzzed_reply(sent).counted) == reference_reply(sent)

    check()


def _read_or_refused(sent: SentAnswer) -> None:
    try:
        reply = fuzzed_reply(sent)
    except EndpointFailure:
        return
    assert (reply.text, reply.counted) == reference_reply(sent)
    json.dumps([reply.text, reply.body, [token.text for token in reply.tokens]], allow_nan=False).encode()


# A token whose text is lost, and a text whose token is not named: one name too few for two tokens.
LOST_AND_UNNAMED = [
    {"choices": [{"logprobs": {"content": [{"token": "é", "logprob": -0.5}]}}]},
    {"choices": [{"delta": {"content": " a"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
]


@example(SentAnswer(LOST_AND_UNNAMED, True, True, b"\n", [], True))
@example(SentAnswer([{"choices": [{"text": "a\ud83d", "finish_reason": "stop"}]}], True, False, b"\n", [], True))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(changed_answers())
def test_a_changed_answer_is_read_for_what_it_says_or_refused(sent: SentAnswer) -> None:
    _read_or_refused(sent)


@pytest.mark.slow
def test_many_changed_answers_are_read_for_what_they_say_or_refused(pytestconfig: pytest.Config) -> None:
    """Half a minute; an hour with --specdec-deep."""
    examples = 800_000 if pytestconfig.getoption("specdec_deep") else 8_000

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    @given(changed_answers())
    def check(sent: SentAnswer) -> None:
        _read_or_refused(sent)

    check()


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=300), st.booleans(), st.lists(st.integers(0, 300), max_size=5))
def test_bytes_that_are_no_answer_are_refused(body: bytes, stream: bool, cuts: list[int]) -> None:
    class Raw(SentAnswer):
        @property
        def body(self) -> bytes:
            return body

    with pytest.raises(EndpointFailure):
        fuzzed_reply(Raw([], stream, False, b"\n", cuts, done=False))
