"""What is sent to a server and how its answer is judged, case by case, without any connection."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from specdec_plugins.endpoints import client as module
from specdec_plugins.endpoints.client import Ask, Client, _Gathered
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token, own_words, tokens_of


def client(**limits: Any) -> Client:
    return Client(Endpoint("spec", "http://here", "m", **limits), dice=random.Random(0))


@pytest.mark.parametrize(
    ("ask", "changed"),
    [
        (Ask("a", 4), {"stream_options": {"include_usage": True}}),
        (Ask("a", 4, stream=False), {"stream": False}),
        (Ask((1, 2), 4, stream=False), {"stream": False, "prompt": [1, 2]}),
        (Ask("a", 4, 0.5, 0.9, stream=False), {"stream": False, "temperature": 0.5, "top_p": 0.9}),
        (Ask("a", 4, seed=0, stream=False), {"stream": False, "seed": 0}),
        (Ask("a", 4, stop=("x",), stream=False), {"stream": False, "stop": ["x"]}),
        (Ask("a", 4, echo=True, stream=False), {"stream": False, "echo": True}),
        (Ask("a", 4, logprobs=0, stream=False), {"stream": False, "logprobs": 0}),
        (
            Ask("a", 4, extra={"stream": 7, "own": 1}),
            {"stream": 7, "own": 1, "stream_options": {"include_usage": True}},
        ),
    ],
)
def test_a_request_has_these_names_and_no_others(ask: Ask, changed: dict[str, Any]) -> None:
    usual = {"model": "m", "max_tokens": 4, "temperature": 0.0, "stream": True, "prompt": "a"}
    assert ask.body("m") == {**usual, **changed}


def test_a_chat_request_has_one_users_message_and_its_own_way_to_ask_for_log_probabilities() -> None:
    body = Ask("a", 4, logprobs=3, chat=True, stream=False).body("m")
    assert body == {
        "model": "m",
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": False,
        "messages": [{"role": "user", "content": "a"}],
        "logprobs": True,
        "top_logprobs": 3,
    }


STATUSES = {
    **dict.fromkeys((300, 307, 399), "redirect"),
    **dict.fromkeys((400, 402, 422, 499), "refused_request"),
    **dict.fromkeys((401, 403), "unauthorised"),
    **dict.fromkeys((500, 503, 599), "server_error"),
    404: "not_found",
    408: "timeout",
    429: "limited",
}


@pytest.mark.parametrize(("status", "kind"), STATUSES.items())
def test_every_status_that_is_no_success_has_its_kind(status: int, kind: str) -> None:
    answer: Any = SimpleNamespace(status_code=status, headers={"retry-after": "61", "location": "there"})
    with pytest.raises(EndpointFailure) as failed:
        client()._refused(answer, " no \n")
    found = failed.value
    assert (found.kind, found.status, found.begun, found.attempts) == (kind, status, False, 1)
    if kind == "redirect":
        assert f"HTTP {status} to 'there'" in str(found)
        assert found.wait_s is None
    else:
        assert f"HTTP {status}: no" in str(found)
        assert found.wait_s == 61
    assert ("(Retry-After asks for 61 s; a request waits 60 s at most)" in str(found)) == (kind != "redirect")


def test_success_is_no_failure_and_a_wait_that_is_short_enough_is_not_mentioned() -> None:
    for status in (200, 204, 299):
        good: Any = SimpleNamespace(status_code=status, headers={})
        client()._refused(good, "")
    busy: Any = SimpleNamespace(status_code=429, headers={"retry-after": "60"})
    with pytest.raises(EndpointFailure) as failed:
        client()._refused(busy, "x" * 999)
    assert "Retry-After" not in str(failed.value)
    assert str(failed.value).count("x") == module.SHOWN


@pytest.mark.parametrize(
    ("kind", "more", "attempt", "waits"),
    [
        ("refused", {}, 3, True),
        ("refused", {}, 4, False),
        ("refused", {"begun": True}, 1, False),
        ("invalid", {}, 1, False),
        ("limited", {"wait_s": 60.0}, 1, 60.0),
        ("limited", {"wait_s": 60.1}, 1, False),
        ("limited", {"wait_s": 0.0}, 1, 0.0),
    ],
)
def test_a_try_is_repeated_three_times_after_what_the_server_asks_for(
    kind: str, more: dict[str, Any], attempt: int, waits: bool | float
) -> None:
    found = client()._wait(EndpointFailure(kind, "no", **more), attempt)
    if isinstance(waits, bool):
        assert (found is not None) is waits
    else:
        assert found == waits


def test_waits_are_drawn_below_half_a_second_doubled_at_each_try_up_to_a_minute() -> None:
    drawn: list[tuple[float, float]] = []
    one = client(retries=99)
    one._dice = SimpleNamespace(uniform=lambda low, high: drawn.append((low, high)))  # type: ignore[assignment]
    for attempt in (1, 2, 3, 7, 8):
        one._wait(EndpointFailure("reset", "no"), attempt)
    assert drawn == [(0, 0.5), (0, 1.0), (0, 2.0), (0, 32.0), (0, 60.0)]


@pytest.mark.parametrize(("url", "verifies"), [("http://here", False), ("https://here", True)])
def test_a_client_keeps_its_connections_follows_nothing_and_asks_no_proxy(
    url: str, verifies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_API_KEY", "secret")
    made: dict[str, Any] = {}

    def record(**given: Any) -> Any:
        made.update(given)

    stub = SimpleNamespace(
        AsyncClient=record, Timeout=lambda *given, **more: (given, more), Limits=lambda **given: given
    )
    monkeypatch.setattr(module, "_httpx", lambda: stub)
    Client(Endpoint("spec", url))
    assert made == {
        "base_url": url,
        "headers": {"Accept-Encoding": "identity", "Authorization": "Bearer secret"},
        "timeout": ((120.0,), {"connect": 10.0}),
        "limits": {"max_connections": None, "max_keepalive_connections": None, "keepalive_expiry": module.KEPT_S},
        "follow_redirects": False,
        "transport": None,
        "trust_env": False,
        "verify": verifies,
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": ', "truncated"),
        ('{"a": "b', "truncated"),
        ('{"a": "b  ', "truncated"),
        ("", "truncated"),
        ('{"a": }', "invalid"),
        ("<html>", "invalid"),
        ("[1]", "invalid"),
        ('{"usage": [1]}', "invalid"),
        ('{"usage": 3}', "invalid"),
        ('{"error": "no"}', "server_error"),
        ('{"error": {}, "usage": null}', ""),
        ('{"usage": {}}', ""),
    ],
)
def test_a_text_that_is_no_answer_has_its_kind(text: str, kind: str) -> None:
    if not kind:
        assert client()._json(text) == json.loads(text)
        return
    with pytest.raises(EndpointFailure) as failed:
        client()._json(text)
    assert (failed.value.kind, failed.value.begun) == (kind, True)


def gathered(ask: Ask, *objects: dict[str, Any]) -> Reply:
    """The reply made of these objects, which come a second apart."""
    found = _Gathered(client(), ask)
    for seconds, one in enumerate(objects, 1):
        found.add(one, float(seconds))
    return found.reply(9.0)


def object_of(text: str, tokens: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An object of a completion with so many tokens."""
    logprobs = {"tokens": ["a"] * tokens, "token_logprobs": [-1.0] * tokens} if tokens else None
    return {"choices": [{"text": text, "logprobs": logprobs, "finish_reason": finish}], **more}


@pytest.mark.parametrize(
    ("objects", "kind"),
    [
        ([object_of("aaaa", 4, "length")], ""),
        ([object_of("aaaaa", 5, "length")], "endless"),
        ([object_of("a")] * 23 + [object_of("a", finish="length")], ""),
        ([object_of("a")] * 24 + [object_of("a", finish="length")], "endless"),
        ([object_of("")] * 99 + [object_of("a", finish="length")], ""),
        ([object_of("a")], "cut_off"),
        ([object_of("aa", 2, "length", usage={"completion_tokens": 2})], ""),
        ([object_of("aa", 2, "stop", usage={"completion_tokens": 2})], ""),
        ([object_of("aa", 2, "stop", usage={"completion_tokens": 3})], ""),
        ([object_of("aa", 2, "length", usage={"completion_tokens": 3})], "usage"),
        ([object_of("aa", 2, "stop", usage={"completion_tokens": 4})], "usage"),
        ([object_of("aa", 2, "stop", usage={"completion_tokens": 1})], "usage"),
        ([object_of("a", finish="length", usage={"completion_tokens": 4})], ""),
        ([object_of("a", finish="length", usage={"completion_tokens": 5})], "usage"),
        ([object_of("a", finish="stop", usage={"completion_tokens": 0})], "usage"),
        ([object_of("", finish="stop", usage={"completion_tokens": 0})], ""),
        ([object_of("a", finish="stop", usage={"completion_tokens": -1})], ""),
        ([{"hello": 1}], "invalid"),
        ([{"choices": [{"text": "a", "finish_reason": "length"}]}, {"usage": {"completion_tokens": 1}}], ""),
        ([{"choices": ["a"]}], "invalid"),
        ([{"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": []}}]}], "cut_off"),
    ],
)
def test_an_answer_of_at_most_four_tokens_is_whole_or_has_its_kind(objects: list[dict[str, Any]], kind: str) -> None:
    if not kind:
        gathered(Ask("x", 4), *objects)
        return
    with pytest.raises(EndpointFailure) as failed:
        gathered(Ask("x", 4), *objects)
    assert (failed.value.kind, failed.value.begun) == (kind, True)


def test_a_reply_is_all_that_came() -> None:
    first = object_of("é", 1, own=1, other=None)
    first["choices"][0] |= {"token_ids": [7], "meta_info": {"x": 1}, "prompt_token_ids": None}
    second = {"choices": [{"delta": {"reasoning_content": "r", "content": "c", "reasoning": None}}], "own": 2}
    third = object_of("", 0, "stop", usage={"prompt_tokens": 5, "completion_tokens": 2})
    found = gathered(Ask("x", 4), first, second, third)
    assert (found.text, found.seconds, found.finish_reason, found.attempts) == ("érc", 9.0, "stop", 1)
    assert found.tokens == (Token("a", 7, -1.0),)
    assert [(chunk.seconds, chunk.text, chunk.tokens) for chunk in found.chunks] == [(1.0, "é", 1), (2.0, "rc", None)]
    assert (found.prompt_tokens, found.completion_tokens, found.counted) == (5, 2, 1)
    assert found.body == {"own": 2, "token_ids": [7], "meta_info": {"x": 1}}
    assert gathered(Ask("x", 4), object_of("ab", finish="length", usage={"completion_tokens": 1})).counted == 1
    assert gathered(Ask("x", 4), object_of("ab", finish="length")).counted is None
    echoed = gathered(Ask("x", 1, echo=True), object_of("aaaa", 4, "length", usage={"completion_tokens": 1}))
    assert len(echoed.tokens) == 4


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({}, ()),
        ({"logprobs": {}}, ()),
        ({"logprobs": {"tokens": ["a"]}}, (Token("a"),)),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [0.001]}}, (Token("a", None, 0.001),)),
        (
            {"logprobs": {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [{"b": -2, "a": -1}]}},
            (Token("a", None, None, (("a", -1.0), ("b", -2.0))),),
        ),
        (
            {
                "logprobs": {
                    "content": [
                        {"token": "a", "id": 3, "logprob": -1, "top_logprobs": [{"token": "b", "logprob": -0.5}]},
                        {"token": "c"},
                    ]
                }
            },
            (Token("a", 3, -1.0, (("b", -0.5),)), Token("c")),
        ),
        ({"logprobs": {"content": []}}, ()),
        ({"logprobs": {"tokens": ["a"]}, "token_ids": ["9"]}, (Token("a", 9),)),
    ],
)
def test_tokens_are_read_from_lists_side_by_side_and_from_content(choice: Any, tokens: Any) -> None:
    assert tokens_of(choice) == tokens


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [0.0011]}}, "the token 'a' has the log-probability 0.0011"),
        ({"logprobs": {"tokens": ["a"], "top_logprobs": [{"b": 0.01}]}}, "the token 'a' has the log-probability 0.01"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": ["nan"]}}, "the token 'a' has the log-probability nan"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [-1, -1]}}, "1 tokens, 2 token_logprobs, 1 top_logprobs"),
        ({"logprobs": {"tokens": ["a"], "top_logprobs": [None, None]}}, "1 tokens, 1 token_logprobs, 2 top_logprobs"),
        ({"logprobs": {"tokens": ["a", "b"]}, "token_ids": [1]}, "logprobs are no list of tokens"),
        ({"logprobs": {"token_logprobs": [1]}}, "logprobs are no list of tokens"),
        ({"logprobs": ["a"]}, "logprobs are no list of tokens"),
    ],
)
def test_lists_that_are_no_tokens_are_refused(choice: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tokens_of(choice)


def test_a_servers_own_words_are_all_but_the_apis() -> None:
    names = ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "timings", "empty")
    assert own_words({name: None if name == "empty" else 1 for name in names}) == {"timings": 1}


def events_of(*pieces: bytes) -> list[str]:
    """The data of events that come in these pieces."""

    async def run() -> list[str]:
        async def come() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return [data async for data in client()._events(come())]

    return asyncio.run(run())


def test_events_are_lines_of_data_and_errors_and_what_is_left_at_the_end() -> None:
    assert events_of(b"data: a\n\n: no\nevent: x\nda", b"ta:b \r\n{no\n  data: c\ndata:d") == ["a", "b", "{no", "d"]
    assert events_of(b"data: a\n", b"  data: b ", b" ") == ["a", "b"]
    assert events_of(b"", b"da") == []


def test_a_stream_or_a_line_or_an_answer_is_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"data:" + b"x" * (2**20 - 5)
    assert len(events_of(line, b"\n")[0]) == 2**20 - 5
    with pytest.raises(EndpointFailure, match="a line of a stream is longer than 1 MiB"):
        events_of(line + b"x", b"\n")
    monkeypatch.setattr(module, "MOST_BYTES", 9)
    assert events_of(b"data:a\n", b"da") == ["a"]
    with pytest.raises(EndpointFailure, match="a stream is longer than"):
        events_of(b"data:a\n", b"dat")

    def read(*pieces: bytes) -> str:
        async def come() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        answer: Any = SimpleNamespace(aiter_bytes=come)
        return asyncio.run(client()._read(answer))

    assert read(b"12345", b"678", b"\xff") == "12345678\ufffd"
    with pytest.raises(EndpointFailure, match="an answer is longer than") as failed:
        read(b"12345", b"67890")
    assert (failed.value.kind, failed.value.begun) == ("endless", True)


def test_the_model_and_the_health_of_a_server_are_asked_for_where_they_are() -> None:
    asked: list[str] = []
    answers = {"/health": 200, "/v1/models": 200}

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(answers[request.url.path], json={"data": [{"id": "one"}]})

    async def run(what: str) -> Any:
        endpoint = Endpoint("spec", "http://here", retries=0)
        async with Client(endpoint, transport=httpx.MockTransport(answer)) as one:
            return await getattr(one, what)()

    assert asyncio.run(run("_served")) == "one"
    asyncio.run(run("health"))
    assert asked == ["/v1/models", "/health"]
    for status in (404, 400, 401):
        asked.clear()
        answers["/health"] = status
        asyncio.run(run("health"))
        assert asked == ["/health", "/v1/models"]
    for status in (500, 429):
        answers["/health"] = status
        with pytest.raises(EndpointFailure):
            asyncio.run(run("health"))


def test_an_impatient_endpoint_is_asked_once_for_two_seconds() -> None:
    whole = Endpoint("spec", "http://here", "m")
    assert (whole.connect_s, whole.read_s, whole.total_s, whole.retries) == (10.0, 120.0, 600.0, 3)
    assert (module.SHOWN, module.MOST_BYTES, module.KEPT_S, module.BEHIND_S) == (200, 2**27, 2.0, 0.1)
    assert whole.impatient() == Endpoint("spec", "http://here", "m", 2.0, 2.0, 2.0, 0)
