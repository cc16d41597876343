"""Bad servers are the normal case: each fault has its kind, is tried again where that may help, and loses nothing."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchsuite.tests.faulty import DONE, STREAM, Fault, FaultyServer, event, plain_answer
from benchsuite.tests.our_server import MODEL, Bugs, OurServer
from benchsuite.tests.rig import Make, slow_after
from specdec import SpecdecError
from specdec_plugins.endpoints import client as client_module
from specdec_plugins.endpoints.client import BACK_OFF_S, LONGEST_WAIT_S, Ask, Client, retry_after
from specdec_plugins.endpoints.named import KEY, Endpoint, parse_endpoints
from specdec_plugins.endpoints.replies import FAILURES, RETRIED, EndpointFailure, Reply

SECRET = "sk-very-secret-0123456789"
WHOLE = Fault(
    (STREAM, event("Hi"), event("", reason="length", usage={"prompt_tokens": 1, "completion_tokens": 1}), DONE)
)


def replied(url: str, ask: Ask | None = None, retries: int = 0, **limits: Any) -> tuple[Reply, list[float]]:
    """The reply of a server, and the waits between tries, which are not waited for."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def run() -> Reply:
        endpoint = replace(Endpoint("spec", url, "m", retries=retries), **limits)
        async with Client(endpoint, sleep=sleep, dice=random.Random(0)) as client:
            return await client.complete(ask or Ask("Once", 4))

    return asyncio.run(run()), waits


def failure(scripts: list[Fault], ask: Ask | None = None, retries: int = 0, **limits: Any) -> EndpointFailure:
    with FaultyServer(scripts) as server, pytest.raises(EndpointFailure) as error:
        replied(server.url, ask, retries, **limits)
    return error.value


LOGPROBS = {"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{"a": -0.1}, {"b": -0.2}]}

FAULTS = {
    "reset-before": (Fault(resets=True), "reset"),
    "reset-mid-stream": (Fault((STREAM, event("Hi")), resets=True), "reset"),
    "closed-mid-stream": (Fault((STREAM, event("Hi"))), "truncated"),
    "401": (Fault((plain_answer("401 Unauthorized", '{"error": "key"}'),)), "unauthorised"),
    "403": (Fault((plain_answer("403 Forbidden", "{}"),)), "unauthorised"),
    "404-model": (Fault((plain_answer("404 Not Found", '{"error": "no model"}'),)), "not_found"),
    "400": (Fault((plain_answer("400 Bad Request", '{"error": "echo"}'),)), "refused_request"),
    "429": (Fault((plain_answer("429 Too Many Requests", "{}"),)), "limited"),
    "500": (Fault((plain_answer("500 Internal Server Error", "oops"),)), "server_error"),
    "error-in-stream": (
        Fault((STREAM, event("Hi"), b'data: {"error": {"message": "OOM"}}\n\n', DONE)),
        "server_error",
    ),
    "truncated-json": (Fault((STREAM, b'data: {"choices": [{"text": "Hi\n\n', DONE)), "truncated"),
    "invalid-json": (Fault((STREAM, b"data: <html>\n\n", DONE)), "invalid"),
    "a-list": (Fault((STREAM, b"data: [1]\n\n", DONE)), "invalid"),
    "no-choices": (Fault((STREAM, b'data: {"hello": 1}\n\n', DONE)), "invalid"),
    "not-utf8": (Fault((STREAM, b'data: {"choices": [{"text": "\xe2\x82"}]}\n\n', DONE)), "invalid"),
    "nan": (
        Fault((STREAM, event("a", logprobs={"tokens": ["a"], "token_logprobs": [float("nan")]}), DONE)),
        "invalid",
    ),
    "stall": (Fault((STREAM, event("Hi")), hangs=True), "timeout"),
    "never-ends": (Fault((STREAM, event("Hi")), forever=True), "endless"),
    "usage-too-high": (
        Fault((STREAM, event("ab", reason="length", logprobs=LOGPROBS, usage={"completion_tokens": 4}), DONE)),
        "usage",
    ),
    "usage-beyond-max": (Fault((STREAM, event("a", reason="length", usage={"completion_tokens": 9}), DONE)), "usage"),
    "usage-zero": (Fault((STREAM, event("a", reason="length", usage={"completion_tokens": 0}), DONE)), "usage"),
    "usage-no-object": (Fault((STREAM, b'data: {"choices": [{"text": "a"}], "usage": [1]}\n\n', DONE)), "invalid"),
    "too-deep": (Fault((STREAM, b"data: " + b"[" * 100_000 + b"\n\n", DONE)), "invalid"),
    "not-compressed": (Fault((plain_answer("200 OK", "no gzip", "Content-Encoding: gzip"),)), "invalid"),
    "redirect": (Fault((plain_answer("307 Temporary Redirect", "", "Location: http://elsewhere/"),)), "redirect"),
    "stop-token-lost": (Fault((STREAM, event("Hi"), DONE)), "cut_off"),
}


@pytest.mark.parametrize(("script", "kind"), FAULTS.values(), ids=[*FAULTS])
def test_a_fault_has_its_kind_and_says_what_to_do(script: Fault, kind: str) -> None:
    found = failure([script], read_s=0.3)
    assert found.kind == kind
    assert FAILURES[kind][1:] in str(found)
    assert "spec (http://127.0.0.1" in str(found)


def test_every_kind_of_failure_is_met_by_a_fault() -> None:
    assert {kind for _, kind in FAULTS.values()} | {"refused", "untrusted"} == set(FAILURES)


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EndpointFailure, match="nothing listens|Nothing listens") as error:
        replied(f"http://127.0.0.1:{port}")
    assert error.value.kind == "refused"


def test_a_server_that_speaks_no_tls_is_not_said_to_be_absent() -> None:
    def refuse() -> None:
        with listening.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=refuse, daemon=True).start()
        with pytest.raises(EndpointFailure, match=r"SSL_CERT_FILE.*http://") as error:
            replied(f"https://127.0.0.1:{listening.getsockname()[1]}", retries=3)
    assert (error.value.kind, error.value.attempts) == ("untrusted", 1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_of_an_own_authority_is_believed_if_the_environment_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = "openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=localhost -addext"
    subprocess.run([*made.split(), "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    with FaultyServer([WHOLE], context) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(EndpointFailure) as error:
            replied(url)
        assert error.value.kind == "untrusted"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "c.pem"))
        assert replied(url)[0].text == "Hi"


@pytest.mark.slow
def test_a_server_that_drips_is_ended_by_the_total_limit() -> None:
    """Comments come faster than the read limit, and no answer: only the limit of the whole answer ends it."""
    found = failure([Fault((STREAM, b": still here\n\n"), forever=True)], read_s=5.0, total_s=0.3)
    assert (found.kind, found.begun) == ("timeout", True)


@pytest.mark.parametrize("at", slow_after(4, range(1, 12)))
def test_a_character_in_two_pieces_is_read_whole(at: int) -> None:
    """The event is cut at each of its last bytes, in the middle of a character, of CRLF and of the data."""
    whole = event("é€😀", reason="length").replace(b"\n\n", b"\r\n\r\n")
    with FaultyServer([Fault((STREAM, whole[:-at], whole[-at:], b": a comment\r\n\r\n", DONE))]) as server:
        reply, _ = replied(server.url)
    assert reply.text == "é€😀"
    cut = whole.index("€".encode()) + 1
    with FaultyServer([Fault((STREAM, whole[:cut], whole[cut:], DONE))]) as server:
        assert replied(server.url)[0].text == "é€😀"


WHOLE_FAULTS = {
    "broken-off": (Fault((plain_answer("200 OK", "{}").replace(b"Length: 2", b"Length: 9"),)), "reset"),
    "reset": (Fault((plain_answer("200 OK", "{}").replace(b"Length: 2", b"Length: 9"),), resets=True), "reset"),
    "stall": (Fault((plain_answer("200 OK", "{}").replace(b"Length: 2", b"Length: 9"),), hangs=True), "timeout"),
    "not-compressed": (Fault((plain_answer("200 OK", "no gzip", "Content-Encoding: gzip"),)), "invalid"),
    "truncated": (Fault((plain_answer("200 OK", '{"choices": [{'),)), "truncated"),
}


@pytest.mark.parametrize(("script", "kind"), slow_after(1, WHOLE_FAULTS.values()), ids=[*WHOLE_FAULTS])
def test_a_whole_answer_that_has_begun_is_not_asked_for_again(script: Fault, kind: str) -> None:
    with FaultyServer([script, WHOLE]) as server:
        with pytest.raises(EndpointFailure) as error:
            replied(server.url, Ask("Once", 4, stream=False), retries=3, read_s=0.3)
        assert (error.value.kind, error.value.begun, len(server.requests)) == (kind, True, 1)


@pytest.mark.parametrize("status", ["200 OK", "500 Oops"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_answer_without_an_end_is_cut(status: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the memory is full: no line, no event and no status says when it is too much."""
    monkeypatch.setattr(client_module, "MOST_BYTES", 2**17)
    head = plain_answer(status, "").replace(b"Length: 0", b"Length: 99999999999")
    found = failure([Fault((head, b": x\n" * 4096), forever=True)], Ask("Once", 4, stream=stream), total_s=30)
    assert (found.kind, found.attempts) == ("endless", 1)


def test_streams_share_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is read to its end, also behind [DONE]: no request times a connection of its own."""
    monkeypatch.setattr(client_module, "KEPT_S", 60.0)
    came: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            came.append(self.client_address)
            self.rfile.read(int(self.headers["Content-Length"]))
            data = event("Hi", reason="length") + DONE
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))

    async def run(url: str) -> None:
        async with Client(Endpoint("spec", url, "m")) as client:
            for _ in range(3):
                assert (await client.complete(Ask("Once", 4))).text == "Hi"

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        asyncio.run(run(f"http://127.0.0.1:{server.server_address[1]}"))
        server.shutdown()
    assert len(came) == 3
    assert len(set(came)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "behind",
    [Fault((b"",), hangs=True), Fault((b"data: {not json\n\n",)), Fault((b"data: x\n\n",), resets=True)],
    ids=["hangs", "noise", "reset"],
)
def test_what_comes_behind_the_end_changes_no_answer(behind: Fault) -> None:
    whole = replace(behind, pieces=(*WHOLE.pieces, *behind.pieces))
    with FaultyServer([whole]) as server:
        reply, waits = replied(server.url)
    assert (reply.text, reply.attempts, waits) == ("Hi", 1, [])


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"])
def test_a_gateway_that_has_no_server_yet_is_asked_again(status: str) -> None:
    with FaultyServer([Fault((plain_answer(status, "{}", "Retry-After: 3"),)), WHOLE]) as server:
        reply, waits = replied(server.url, retries=1)
    assert (reply.text, reply.attempts, waits) == ("Hi", 2, [3.0])


@pytest.mark.parametrize("name", ["429", "500", "reset-before"])
def test_what_may_go_away_is_tried_again_with_growing_waits(name: str) -> None:
    script = FAULTS[name][0]
    with FaultyServer([script, script, WHOLE]) as server:
        reply, waits = replied(server.url, retries=2)
    assert (reply.text, reply.attempts, len(server.requests)) == ("Hi", 3, 3)
    assert [0 <= wait <= BACK_OFF_S * 2**n for n, wait in enumerate(waits)] == [True, True]
    assert failure([script], retries=2).attempts == 3


@pytest.mark.parametrize("name", ["401", "404-model", "400", "redirect", "invalid-json", "usage-zero"])
def test_what_will_not_go_away_is_asked_once(name: str) -> None:
    with FaultyServer([FAULTS[name][0], WHOLE]) as server:
        with pytest.raises(EndpointFailure):
            replied(server.url, retries=3)
        assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["reset-mid-stream", "closed-mid-stream", "error-in-stream"])
def test_an_answer_that_has_begun_is_not_asked_for_again(name: str) -> None:
    """The server may have generated the text already: a second run would be timed in a warm cache."""
    with FaultyServer([FAULTS[name][0], WHOLE]) as server:
        with pytest.raises(EndpointFailure) as error:
            replied(server.url, retries=3)
        assert (len(server.requests), error.value.begun) == (1, True)


def test_retry_after_is_honoured() -> None:
    wait = Fault((plain_answer("429 Too Many Requests", "{}", "Retry-After: 7"),))
    with FaultyServer([wait, WHOLE]) as server:
        reply, waits = replied(server.url, retries=1)
    assert (waits, reply.attempts) == ([7.0], 2)
    too_long = Fault((plain_answer("429 Too Many Requests", "{}", f"Retry-After: {LONGEST_WAIT_S + 1:.0f}"),))
    found = failure([too_long, WHOLE], retries=1)
    assert found.attempts == 1
    assert "Retry-After asks for 61 s; a request waits 60 s" in str(found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 3.0),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("soon", None),
        ("-4", None),
        ("²", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, now=1445412480.0) == seconds  # 07:28:00


@pytest.mark.slow
def test_the_key_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server writes it back, at a place where the message is cut in the middle of it."""
    monkeypatch.setenv(KEY, SECRET)
    for pad in range(150, 215, 8):  # a message is cut at 200: twice at least within the key
        text = "x" * pad + SECRET
        for told in (
            plain_answer("401 Unauthorized", text),
            plain_answer("307 Temporary Redirect", "", f"Location: http://{text}"),
            STREAM + json.dumps({"error": {"message": text}}).encode() + b"\n",
            STREAM + f"data: {text}\n\n".encode(),
            STREAM + f"data: {json.dumps([text])}\n\n".encode(),
            STREAM + f"data: {json.dumps({'said': text})}\n\n".encode(),
            STREAM + f"data: {json.dumps({'choices': [{}], 'usage': text})}\n\n".encode(),
        ):
            with FaultyServer([Fault((told,))]) as server:
                with pytest.raises(EndpointFailure) as error:
                    replied(server.url)
                assert f"Bearer {SECRET}".encode() in server.requests[0]
            assert "sk-ve" not in str(error.value) + repr(error.value)
    endpoint = Endpoint("spec", "http://127.0.0.1:1")
    assert SECRET not in repr(endpoint)
    monkeypatch.setenv(f"{KEY}_SPEC", "other")
    assert endpoint.key == "other"


@pytest.mark.parametrize("sign", ["\r", "\n", " ", "é", "€", "\x7f"])
@pytest.mark.parametrize("variable", [KEY, f"{KEY}_SPEC"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(
    variable: str, sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, SECRET + sign)
    with FaultyServer([WHOLE]) as server, pytest.raises(SpecdecError, match=f"the API key in {variable} has") as error:
        replied(server.url)
    assert not server.requests
    assert "sk-ve" not in str(error.value) + repr(error.value)


def test_a_key_is_hidden_as_json_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, 'sk/very"secret')
    endpoint = Endpoint("spec", "http://127.0.0.1:1")
    for written in ('sk/very"secret', 'sk/very\\"secret', 'sk\\/very"secret'):
        assert endpoint.hidden(f"<{written}>") == "<[key]>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=http://x:abc", "expected http://host:port.*Port"),
        ("a=http://x:99999", "expected http://host:port.*range"),
        ("a=http://x:0", "expected http://host:port"),
        ("a=http://[::1", "expected http://host:port.*IPv6"),
        ("a=http://x y", "expected http://host:port"),
        (f"a=user:{SECRET}@x", "would be stored"),
        (f"a=http:/user:{SECRET}@x", "would be stored"),
        (f"a=http://user:{SECRET}#more@x", "expected http://host:port"),
        ("", "empty"),
        ("http://localhost:8000", "expected name=url"),
        ("plain=localhost:8000", "expected http://host:port"),
        ("plain=ftp://localhost", "expected http://host:port"),
        ("a=http://x, a=http://y", "names 'a' twice"),
        (f"a=http://user:{SECRET}@x", "would be stored"),
        (f"a=http://x/?api_key={SECRET}", "would be stored"),
    ],
)
def test_a_wrong_list_of_endpoints_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecdecError, match=said) as error:
        parse_endpoints(text)
    assert SECRET not in str(error.value)


def test_endpoints_are_named() -> None:
    assert parse_endpoints("plain=http://localhost:8000/v1/, spec=https://x/api#m") == [
        Endpoint("plain", "http://localhost:8000"),
        Endpoint("spec", "https://x/api", "m"),
    ]
    assert parse_endpoints("a=http://[::1]:80#org/m@2")[0] == Endpoint("a", "http://[::1]:80", "org/m@2")


@pytest.mark.parametrize("stream", slow_after(1, [True, False]), ids=["stream", "whole"])
@pytest.mark.parametrize("chat", slow_after(1, [True, False]), ids=["chat", "completions"])
@pytest.mark.parametrize("draft", slow_after(1, [None, "ngram"]))
def test_our_own_server_is_read(draft: str | None, chat: bool, stream: bool, assemble: Make) -> None:
    """The same tokens with and without a draft, and their log-probabilities are those of the engine."""
    prompt = "once upon once upon"
    with OurServer(assemble().engine(draft, k=4 if draft else 0)) as server:
        endpoint_reply, _ = asked_ours(server, Ask(prompt, 12, logprobs=3, chat=chat, stream=stream))
    assert len(endpoint_reply.tokens) == endpoint_reply.completion_tokens == 12
    assert all(len(token.top) == 3 and token.top[0][1] >= token.top[1][1] for token in endpoint_reply.tokens)
    assert all(token.logprob == dict(token.top)[token.text] for token in endpoint_reply.tokens), "greedy: the likeliest"
    assert endpoint_reply.finish_reason == "length"
    with OurServer(assemble().engine(None, k=0)) as server:
        plain, _ = asked_ours(server, Ask(prompt, 12, logprobs=3, chat=chat, stream=not stream))
    assert [token.id for token in plain.tokens] == [token.id for token in endpoint_reply.tokens]
    assert plain.text == endpoint_reply.text


def asked_ours(server: OurServer, ask: Ask) -> tuple[Reply, list[float]]:
    async def run() -> Reply:
        async with Client(Endpoint("ours", server.url)) as client:
            await client.health()
            assert await client.models() == [MODEL]
            return await client.complete(ask)

    return asyncio.run(run()), []


@pytest.mark.slow
def test_a_stream_says_the_tokens_of_each_piece_if_its_server_takes_the_wish(assemble: Make) -> None:
    """A server that refuses it is asked without from then on; one that refuses something else is not."""
    asked: list[Ask] = [Ask("once upon", 12), Ask("once upon", 12), Ask((1, -5), 4), Ask("a b", 12, stream=False)]

    def ended(server: OurServer) -> list[Any]:
        async def run() -> list[Any]:
            async with Client(Endpoint("ours", server.url, MODEL, retries=0)) as client:
                return await asyncio.gather(*(_reply_or_kind(client, one) for one in asked))

        return asyncio.run(run())

    for bugs, counted in ((Bugs(), True), (Bugs(strict=True), False), (Bugs(no_usage=True), False)):
        with OurServer(assemble().engine("ngram", k=4), bugs) as server:
            first, again, refused, whole = ended(server)
        for found in (first, again):
            counts = [chunk.tokens for chunk in found.chunks]
            assert (sum(counts) == 12) if counted else (set(counts) == {None})
            assert found.attempts == 1
        assert refused == "refused_request"
        assert whole.counted == 12


async def _reply_or_kind(client: Client, ask: Ask) -> Reply | str:
    try:
        return await client.complete(ask)
    except EndpointFailure as failure:
        return failure.kind


@pytest.mark.slow
def test_echo_scores_the_text_of_a_prompt(assemble: Make) -> None:
    """What was generated greedily, asked for again as a prompt, has the same log-probabilities at its places."""
    with OurServer(assemble().engine(None, k=0)) as server:
        first, _ = asked_ours(server, Ask((104, 105, 32), 8, logprobs=2))
        ids = (104, 105, 32, *(token.id or 0 for token in first.tokens))
        scored, _ = asked_ours(server, Ask(ids, 1, logprobs=2, echo=True))
    assert [token.id for token in scored.tokens[: len(ids)]] == [*ids]
    for one, other in zip(scored.tokens[3 : len(ids)], first.tokens, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [name for name, _ in one.top] == [name for name, _ in other.top]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bugs", "kind"), [(Bugs(no_end=True), "cut_off"), (Bugs(usage=3), "usage")], ids=["no_end", "usage"]
)
def test_planted_bugs_of_our_server_are_found(bugs: Bugs, kind: str, assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0), bugs) as server, pytest.raises(EndpointFailure) as error:
        asked_ours(server, Ask("hi", 8, logprobs=1))
    assert error.value.kind == kind


def test_a_server_with_several_models_wants_one_named() -> None:
    async def run(url: str) -> Reply:
        async with Client(Endpoint("spec", url)) as client:
            client.models = several  # type: ignore[method-assign]
            return await client.complete(Ask("x", 1))

    async def several() -> list[str]:
        return ["a", "b"]

    with FaultyServer([WHOLE]) as server, pytest.raises(SpecdecError, match="name=url#model"):
        asyncio.run(run(server.url))


def test_token_ids_of_a_prompt_cannot_be_chatted() -> None:
    with pytest.raises(SpecdecError, match="takes a text"):
        Ask((1, 2), 4, chat=True).body("m")


def test_only_kinds_that_exist_are_tried_again() -> None:
    assert set(RETRIED) < set(FAILURES)


@pytest.mark.slow
def test_a_changed_token_differs_from_plain(assemble: Make) -> None:
    with (
        OurServer(assemble().engine(None, k=0)) as plain,
        OurServer(assemble().engine(None, k=0), Bugs(change=2)) as bad,
    ):
        good, _ = asked_ours(plain, Ask("hello", 24, logprobs=2))
        wrong, _ = asked_ours(bad, Ask("hello", 24, logprobs=2))
    differ = [a.id != b.id for a, b in zip(good.tokens, wrong.tokens, strict=True)]
    assert 4 < sum(differ) < 20
