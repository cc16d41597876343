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
from specdec_plugins.endpoints.client import NEUTRAL, Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure


def client(**limits: Any) -> Client:
    return Client(Endpoint("spec", "http://here", "m", **limits), dice=random.Random(0))


@pytest.mark.parametrize(
    ("ask", "changed"),
    [
        (Ask("a", 4), {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
        (Ask("a", 4, stream=False), {"stream": False}),
        (Ask((1, 2), 4, stream=False), {"stream": False, "prompt": [1, 2]}),
        (Ask("a", 4, 0.5, 0.9, stream=False), {"stream": False, "temperature": 0.5, "top_p": 0.9}),
        (Ask("a", 4, seed=0, stream=False), {"stream": False, "seed": 0}),
        (Ask("a", 4, stop=("x",), stream=False), {"stream": False, "stop": ["x"]}),
        (Ask("a", 4, echo=True, stream=False), {"stream": False, "echo": True}),
        (Ask("a", 4, logprobs=0, stream=False), {"stream": False, "logprobs": 0, "return_token_ids": True}),
        (
            Ask("a", 4, extra={"stream": 7, "own": 1}),
            {"stream": 7, "own": 1, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
    ],
)
def test_a_request_has_these_names_and_no_others(ask: Ask, changed: dict[str, Any]) -> None:
    usual = {"model": "m", "max_tokens": 4, "temperature": 0.0, "stream": True, "prompt": "a", **NEUTRAL}
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
        "return_token_ids": True,
        **NEUTRAL,
    }


@pytest.mark.parametrize(
    "name", ["top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty", "repeat_penalty"]
)
def test_a_request_says_what_it_does_not_set_since_a_server_has_defaults_of_its_own(name: str) -> None:
    """Issue of llama.cpp, which samples with top_k 40, top_p 0.95 and min_p 0.05 where a request says nothing."""
    assert name in Ask("a", 4, 1.0).body("m")
    assert name not in Ask("a", 4, 1.0).body("m", without={name})


class RefusingFields:
    """A server that refuses the fields ``names``, one a message or ``at_once``."""

    def __init__(self, *names: str, at_once: bool = False) -> None:
        self.names, self.at_once = names, at_once
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        sent = [name for name in self.names if name in body or name in body.get("stream_options", {})]
        if sent:
            return httpx.Response(400, text=f"not permitted: {', '.join(sent if self.at_once else sent[:1])}")
        choice = {"index": 0, "text": "b", "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    def asked(self, *asks: Ask) -> set[str]:
        """The fields that are known to be refused after these requests."""
        refused: set[str] = set()

        async def run() -> None:
            transport = httpx.MockTransport(self)
            async with Client(Endpoint("spec", "http://here", "m"), refused=refused, transport=transport) as found:
                for ask in asks:
                    await found.complete(ask)

        asyncio.run(run())
        return refused


@pytest.mark.parametrize(
    ("server", "tries"),
    [
        (RefusingFields(), 1),
        (RefusingFields("top_k"), 2),
        (RefusingFields("top_k", "min_p", "xtc_probability"), 4),
        (RefusingFields("top_k", "min_p", "xtc_probability", at_once=True), 2),
        (RefusingFields("top_k", "continuous_usage_stats"), 3),
    ],
    ids=["none", "one", "one after the other", "at once", "a wish of streams too"],
)
def test_a_field_that_a_server_refuses_is_left_out_of_this_request_and_of_all_later_ones(
    server: RefusingFields, tries: int
) -> None:
    refused = server.asked(Ask("a", 1), Ask("b", 1))
    assert refused == set(server.names)
    assert [body["prompt"] for body in server.bodies] == ["a"] * tries + ["b"]
    assert NEUTRAL.keys() - refused <= server.bodies[-1].keys(), "nothing else is left out"


def test_the_numbers_of_tokens_are_a_wish_of_answers_that_come_whole_with_log_probabilities() -> None:
    server = RefusingFields("return_token_ids")
    known: dict[str, Any] = {"stream": False, "logprobs": 1}
    assert server.asked(Ask("a", 1, **known), Ask("b", 1, **known)) == {"return_token_ids"}
    assert ["return_token_ids" in body for body in server.bodies] == [True, False, False]
    for ask in (Ask("a", 1, logprobs=1), Ask("a", 1, stream=False)):
        assert "return_token_ids" not in ask.body("m").keys() | ask.optional


def test_a_field_is_refused_by_its_whole_name() -> None:
    server = RefusingFields("top_k", "my_top_p")
    assert server.asked(Ask("a", 1, extra={"my_own": 1})) == {"top_k"}
    with pytest.raises(EndpointFailure, match="not permitted: my_top_p"):
        server.asked(Ask("a", 1, extra={"my_top_p": 1}))


@pytest.mark.parametrize("ask", [Ask("a", 1, 1.0, 0.9), Ask("a", 1, extra={"top_p": 0.9})], ids=["set", "extra"])
def test_a_value_that_was_asked_for_is_never_left_out(ask: Ask) -> None:
    server = RefusingFields("top_p", "min_p")
    with pytest.raises(EndpointFailure, match="not permitted: top_p"):
        server.asked(ask)
    assert [body["top_p"] for body in server.bodies] == [0.9]


def test_a_request_that_fails_without_a_field_too_fails_with_its_last_message_and_nothing_is_learnt_of_fields() -> None:
    def failing(request: httpx.Request) -> httpx.Response:
        named = "min_p" in json.loads(request.content)
        return httpx.Response(400, text="no min_p in this version" if named else "no model")

    refused: set[str] = set()

    async def run() -> None:
        transport = httpx.MockTransport(failing)
        async with Client(Endpoint("spec", "http://here", "m"), refused=refused, transport=transport) as found:
            await found.complete(Ask("a", 1))

    with pytest.raises(EndpointFailure, match="no model"):
        asyncio.run(run())
    assert not refused


class PiecewiseStream(httpx.AsyncByteStream):
    """An answer in pieces, which notes those that were read."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.read = pieces, list[bytes]()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.read.append(piece)
            yield piece


def test_what_follows_the_end_of_a_stream_is_read_since_the_connection_would_be_closed_otherwise() -> None:
    choice = {"index": 0, "text": "b", "finish_reason": "length"}
    said = [{"choices": [choice]}, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}]
    events = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in said) + b"data: [DONE]\n\n"
    stream = PiecewiseStream(events, b": so long\n\n", b": and thanks\n\n")

    async def run() -> None:
        answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)
        transport = httpx.MockTransport(lambda request: answer)
        async with Client(Endpoint("spec", "http://here", "m"), transport=transport) as found:
            assert (await found.complete(Ask("a", 1))).text == "b"

    asyncio.run(run())
    assert stream.read == [*stream.pieces]


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
        client()._refused(answer, b" no \n")
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
        client()._refused(good, b"")
    busy: Any = SimpleNamespace(status_code=429, headers={"retry-after": "60"})
    with pytest.raises(EndpointFailure) as failed:
        client()._refused(busy, b"x" * 999)
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


@pytest.mark.parametrize(("url", "verifies"), [("http://here", False), ("https://here", {"trust_env": True})])
def test_a_client_keeps_its_connections_follows_nothing_and_asks_no_proxy(
    url: str, verifies: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_API_KEY", "secret")
    made: dict[str, Any] = {}

    def record(**given: Any) -> Any:
        made.update(given)

    stub = SimpleNamespace(
        AsyncClient=record,
        Timeout=lambda *given, **more: (given, more),
        Limits=lambda **given: given,
        create_ssl_context=lambda **given: given,
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


def test_a_request_says_in_words_what_it_sends_of_sampling() -> None:
    """The card of a run has it: parameters that a request leaves out are a server's own defaults."""
    ask = Ask("a", 4, temperature=0.7, top_p=0.9, extra={"min_p": 0.5, "cache_prompt": False, "name": "x"})
    body = ask.body("m")
    said = dict(part.rsplit(" ", 1) for part in ask.sampling.split(", "))
    assert {name: float(value) for name, value in said.items()} == {
        name: pytest.approx(body[name]) for name in ("temperature", *NEUTRAL)
    }
