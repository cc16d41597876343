"""The client's words and times at every edge, and how the peer of a server asks, counts and names tokens."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from benchsuite.tests.faulty import DONE, event
from specdec import Request, SamplingParams, SpecdecError, catalog
from specdec_plugins.endpoints import client as module
from specdec_plugins.endpoints.client import Ask, Client, retry_after
from specdec_plugins.endpoints.named import KEY, Endpoint, parse_endpoints
from specdec_plugins.endpoints.replies import FAILURES, Chunk, EndpointFailure, Reply, Token
from specdec_plugins.engines.endpoint import EndpointPeer, _endpoint_of


def _said(kind: str, text: str) -> str:
    """A failure's whole text."""
    return f"{kind}: spec (http://here): {text}. {FAILURES[kind][0].upper()}{FAILURES[kind][1:]}"


def _asking(**given: Any) -> Client:
    return Client(Endpoint("spec", "http://here", "m", retries=0), **given)


@pytest.mark.parametrize(
    ("error", "kind", "text", "begun"),
    [
        (httpx.ConnectTimeout("x"), "timeout", "no connection within 10 s", False),
        (httpx.ReadTimeout("x"), "timeout", "nothing came for 120 s", True),
        (TimeoutError(), "timeout", "not done after 600 s", True),
        (httpx.ConnectError("no route"), "refused", "no route", False),
        (httpx.ConnectError(""), "refused", "no connection", False),
        (httpx.ReadError("gone"), "reset", "gone", False),
        (httpx.ReadError(""), "reset", "ReadError", False),
        (httpx.DecodingError("bad"), "invalid", "the answer cannot be decompressed: bad", True),
    ],
)
def test_an_error_of_the_connection_is_a_failure_of_its_kind(
    error: Exception, kind: str, text: str, begun: bool
) -> None:
    async def once() -> None:
        raise error

    with pytest.raises(EndpointFailure) as failed:
        asyncio.run(_asking()._named(once))
    found = failed.value
    assert (found.kind, str(found), found.begun) == (kind, _said(kind, text), begun)


def test_a_wait_until_a_date_is_measured_from_now_and_blanks_around_a_number_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 1445412480.0))
    assert retry_after("Wed, 21 Oct 2015 07:28:10 GMT") == 10.0
    assert retry_after("Wed, 21 Oct 2015 07:28:10 GMT", now=0.0) == 1445412490.0
    assert [retry_after(text) for text in ("0", " 7 ", "")] == [0.0, 7.0, None]


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second at each look, from 100."""
    seconds = iter(range(100, 200))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))


def _answered(ask: Ask, *pieces: bytes) -> tuple[Reply, list[httpx.Request]]:
    """The reply of a server whose answer comes in these pieces, and what it was asked."""
    asked: list[httpx.Request] = []

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            for piece in pieces:
                yield piece

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, stream=Pieces())

    async def run() -> Reply:
        async with _asking(transport=httpx.MockTransport(answer)) as one:
            return await one.complete(ask)

    return asyncio.run(run()), asked


@pytest.mark.usefixtures("ticks")
def test_pieces_of_a_stream_are_timed_from_the_request_to_the_reason_of_the_end() -> None:
    """Counts and the mark of the end come behind it, and are no part of the answer."""
    last = event("", reason="length", usage={"prompt_tokens": 1, "completion_tokens": 2})
    reply, asked = _answered(Ask("x", 4), event("a"), event("b"), last, DONE)
    chunks = (Chunk(1.0, "a"), Chunk(2.0, "b"))
    assert reply == Reply("ab", (), chunks, 3.0, 1, 2, "length", 1, reply.body)
    assert [(str(one.url), one.method) for one in asked] == [("http://here/v1/completions", "POST")]
    assert json.loads(asked[0].content) == Ask("x", 4).body("m")


@pytest.mark.usefixtures("ticks")
def test_a_whole_answer_is_one_piece_at_its_end() -> None:
    body = {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "own": 3}
    ask = Ask("x", 4, chat=True, stream=False)
    reply, asked = _answered(ask, json.dumps(body).encode())
    assert reply == Reply("ab", (), (Chunk(1.0, "ab"),), 1.0, None, None, "stop", 1, {"own": 3})
    assert [(str(one.url), one.method) for one in asked] == [("http://here/v1/chat/completions", "POST")]
    assert json.loads(asked[0].content) == ask.body("m")


@pytest.mark.parametrize(("names", "says"), [([], ""), (["a", "b"], "a, b")])
def test_one_model_is_asked_for_once_and_none_or_several_must_be_named(names: list[str], says: str) -> None:
    pages: list[str] = []

    async def run(found: list[str]) -> list[str]:
        def answer(request: httpx.Request) -> httpx.Response:
            pages.append(f"{request.method} {request.url.path}")
            return httpx.Response(200, json={"data": [{"id": name} for name in found]})

        async with Client(Endpoint("spec", "http://here"), transport=httpx.MockTransport(answer)) as one:
            return [await one._served(), await one._served()]

    assert asyncio.run(run(["m"])) == ["m", "m"]
    assert pages == ["GET /v1/models"]
    with pytest.raises(SpecdecError, match=f"^unknown model of the endpoint spec .*{says}.*name=url#model"):
        asyncio.run(run(names))


def test_a_list_of_models_that_is_none_is_refused() -> None:
    async def run() -> Any:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"models": []}))
        async with _asking(transport=transport) as one:
            return await one.models()

    with pytest.raises(EndpointFailure) as failed:
        asyncio.run(run())
    said = '/v1/models: no list of models (there is no data): {"models":[]}'
    assert str(failed.value) == _said("invalid", said)


def test_without_httpx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(SpecdecError) as missing:
        _asking()
    assert str(missing.value) == (
        "endpoints are asked with httpx, which is not installed: pip install 'specdec-bench[endpoints]'"
    )


def test_a_key_belongs_to_the_endpoint_of_its_name_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    assert Endpoint("my.server-2", "u").key is None
    assert Endpoint("x", "u").hidden("None") == "None"
    monkeypatch.setenv(KEY, "!all~")
    monkeypatch.setenv("SPECDEC_API_KEY_MY_SERVER_2", 'o/"n')
    assert Endpoint("my.server-2", "u").key == 'o/"n'
    assert Endpoint("my", "u").key == "!all~", "the first and the last visible sign"
    assert Endpoint("my.server-2", "u").hidden('a o/"n b o/\\"n c o\\/"n') == "a [key] b [key] c [key]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("=http://x", "--specdec-endpoint '=http://x'; expected name=url, for example plain=http://localhost:8000"),
        (
            "a/b=http://x",
            "--specdec-endpoint 'a/b=http://x'; expected name=url, for example plain=http://localhost:8000",
        ),
        ("me:pw@x?key", "--specdec-endpoint 'x'; expected name=url, for example plain=http://localhost:8000"),
        ("me:pw@x?key=3", "--specdec-endpoint 'x'; expected name=url, for example plain=http://localhost:8000"),
        ("x?key=3", "--specdec-endpoint 'x'; expected name=url, for example plain=http://localhost:8000"),
        ("", "--specdec-endpoint is empty; expected name=url, for example plain=http://localhost:8000"),
        ("a=http://", "the endpoint 'a' has the address 'http://'; expected http://host:port or https://host"),
        ("a=http://x:0", "the endpoint 'a' has the address 'http://x:0'; expected http://host:port or https://host"),
        ("a=http://u:p#q@x", "the endpoint 'a' has the address '\u2026'; expected http://host:port or https://host"),
        ("a=ftp://x#m", "the endpoint 'a' has the address 'ftp://x'; expected http://host:port or https://host"),
    ],
)
def test_what_is_no_endpoint_is_refused_without_what_may_be_a_secret(text: str, says: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        parse_endpoints(text)
    assert str(refused.value) == says


def test_an_address_loses_its_last_slashes_and_its_version_alone() -> None:
    found = parse_endpoints("a=http://x:1/v1/api/, b = https://y/a=b/v1//#m#n , c=http://z#")
    assert found == [
        Endpoint("a", "http://x:1/v1/api"),
        Endpoint("b", "https://y/a=b", "m#n"),
        Endpoint("c", "http://z"),
    ]
    assert _endpoint_of("http://x", "n", "m") == Endpoint("n", "http://x", "m")
    assert _endpoint_of("http://x", "n", "") == Endpoint("n", "http://x")


@pytest.fixture(name="peer")
def _unconnected_peer() -> Iterator[Any]:
    """The peer of a server that is not there, whose client notes what it is asked."""
    one: Any = object.__new__(EndpointPeer)
    one._endpoint, one._server, one._text = Endpoint("spec", "http://here"), "other", False
    one._names, one._known, one._loop = catalog.byte_tokenizer(), {}, asyncio.Runner()
    one.asked, one.answers = list[Ask](), list[Any]()

    async def complete(ask: Ask) -> Reply:
        one.asked.append(ask)
        answer = one.answers.pop(0) if one.answers else _reply("a")
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Reply)
        return answer

    async def no_page(path: str) -> str:
        raise EndpointFailure("not_found", path)

    one._client = SimpleNamespace(complete=complete, page=no_page)
    yield one
    one._loop.close()


def _reply(text: str, *tokens: Token, finish: str = "length", said: int | None = None, attempts: int = 1) -> Reply:
    return Reply(text, tokens, (Chunk(1.0, text),) if text else (), 3.0, 2, said, finish, attempts, {})


def _request(**params: Any) -> Request:
    return Request(5, (7, 8), SamplingParams(max_new_tokens=6, **params))


def test_a_request_is_asked_for_with_its_seed_its_ends_and_what_passes_by_a_cache(peer: Any) -> None:
    cases: tuple[tuple[str, dict[str, Any], int | None, dict[str, object], int | None], ...] = (
        ("other", {}, None, {"ignore_eos": True}, None),
        ("other", {"eos": (3,), "seed": 9}, 1, {}, None),
        ("other", {"eos": (3,), "seed": 9, "temperature": 0.5, "top_p": 0.25}, None, {}, 14),
        ("llama_cpp", {"eos": (3,)}, None, {"cache_prompt": False}, None),
    )
    for server, params, most, extra, seed in cases:
        peer._server = server
        peer._asked(_request(**params), most, stream=False, logprobs=2)
        temperature, top_p = params.get("temperature", 0.0), params.get("top_p", 1.0)
        assert peer.asked.pop() == Ask(
            (7, 8), most or 6, temperature, top_p, seed, stream=False, logprobs=2, extra=extra
        )
    peer._server, peer._text = "vllm", True
    for _ in range(2):
        peer._asked(_request(eos=(3,)))
    salts = [ask.extra.pop("cache_salt") for ask in peer.asked]
    assert [len(salt) for salt in salts] == [32, 32]
    assert salts[0] != salts[1]
    text = catalog.byte_tokenizer().decode([7, 8])
    assert peer.asked == [Ask(text, 6, extra={"return_tokens_as_token_ids": True})] * 2
    peer._client = None
    with pytest.raises(SpecdecError, match=r"^the endpoint spec is closed; build another$"):
        peer._asked(_request())


@pytest.mark.parametrize(
    ("token", "number"),
    [
        (Token("a", 0), 0),
        (Token("token_id:7", 9), 9),
        (Token("token_id:0"), 0),
        (Token("a token_id:7"), None),
        (Token("token_id:7x"), None),
        (Token("a"), "a"),
        (Token("ab"), None),
        (Token(""), None),
    ],
)
def test_a_token_has_the_servers_number_or_that_of_its_name_or_of_its_only_text(
    token: Token, number: int | str | None, peer: Any
) -> None:
    alone = catalog.byte_tokenizer()("a")["input_ids"]
    assert peer._id_of(token) == (alone[0] if number == "a" else number)
    assert peer._vocabulary == catalog.byte_tokenizer().get_vocab()


@pytest.mark.parametrize(
    ("finish", "eos", "tokens", "ended"),
    [
        ("stop", (50, 51), (1, 2), (1, 2, 50)),
        ("stop", (50, 51), (), (50,)),
        ("stop", (50, 51), (1, 51), (1, 51)),
        ("stop", (50, 51), (51, 1), (51, 1, 50)),
        ("stop", (), (1, 2), (1, 2)),
        ("length", (50, 51), (1, 2), (1, 2)),
    ],
)
def test_an_end_that_was_not_sent_is_the_first_of_the_requests_ends(
    finish: str, eos: tuple[int, ...], tokens: tuple[int, ...], ended: tuple[int, ...], peer: Any
) -> None:
    assert peer._ended(_request(eos=eos), tokens, _reply("x", finish=finish)) == ended


def test_a_text_is_named_whole_or_not_at_all(peer: Any) -> None:
    request = _request(eos=(3,))
    for reply, named in (
        (_reply("xy", Token("x", 4), Token("y", 5)), {"xy": (4, 5)}),
        (_reply("xy", Token("x", 4), Token("y", 5), finish="stop"), {"xy": (4, 5, 3)}),
        (_reply("xy", Token("x", 4), Token("yz")), {}),
        (_reply("xy"), {}),
        (EndpointFailure("refused_request", "no"), {}),
        (EndpointFailure("server_error", "no"), {}),
    ):
        peer.answers.append(reply)
        assert peer._named(request) == named
    assert peer.asked == [Ask((7, 8), 6, stream=False, logprobs=1)] * 6
    peer.answers.append(EndpointFailure("limited", "no"))
    with pytest.raises(EndpointFailure, match="limited"):
        peer._named(request)


def test_tokens_of_a_text_are_believed_where_as_many_were_counted(peer: Any) -> None:
    ids = tuple(catalog.byte_tokenizer()("ab")["input_ids"])
    peer._known[(7, 8)] = {"cd": (1, 2, 3)}
    assert peer._tokens(_request(), _reply("cd", said=9)) == (1, 2, 3), "they are known"
    for said in (None, 2):
        assert peer._tokens(_request(eos=(3,)), _reply("ab", said=said)) == ids
    for said in (None, 2, 3):
        assert peer._tokens(_request(eos=(3,)), _reply("ab", finish="stop", said=said)) == (*ids, 3)
    for reply, count in ((_reply("ab", said=3), 2), (_reply("ab", said=1), 2), (_reply(""), 0)):
        with pytest.raises(SpecdecError) as refused:
            peer._tokens(_request(), reply)
        assert str(refused.value) == (
            f"the endpoint spec sent {reply.text!r}, which is {count} of the target's tokens, and says "
            f"{reply.completion_tokens}: its tokens are not known. Have it give log-probabilities, or measure it with "
            "-m serving, which compares no tokens"
        )


@pytest.mark.parametrize(
    ("pieces", "emissions"),
    [
        (["abcd"], [(1.0, 4)]),
        (["a", "", "bc", "d"], [(1.0, 1), (3.0, 2), (4.0, 1)]),
        (["", "ab", "cd"], [(2.0, 2), (3.0, 2)]),
        (["abcd", ""], [(1.0, 4)]),
        (["ab"], [(1.0, 4)]),
        (["a", ""], [(1.0, 1), (2.0, 3)]),
        ([], [(9.0, 4)]),
    ],
)
def test_a_token_arrives_with_the_piece_that_completes_it_and_the_last_piece_completes_all(
    pieces: list[str], emissions: list[tuple[float, int]], peer: Any
) -> None:
    chunks = tuple(Chunk(float(second), text) for second, text in enumerate(pieces, 1))
    reply = Reply("".join(pieces), (), chunks, 9.0, None, None, "length", 1, {})
    ids = tuple(catalog.byte_tokenizer()("abcd")["input_ids"])
    assert peer._emissions(ids, reply) == tuple(emissions)


def test_a_prompt_is_timed_at_its_first_try_and_named_once(peer: Any) -> None:
    ids = tuple(catalog.byte_tokenizer()("ab")["input_ids"])
    peer.answers += [_reply("a"), _reply("ab", attempts=2), _reply("ab"), _reply("ab"), _reply("ab")]
    for _ in range(2):
        [done] = peer.generate([_request(eos=(3,))])
        assert (done.tokens, done.emissions, done.seconds) == (ids, ((1.0, 2),), 3.0)
    assert [(ask.max_tokens, ask.stream, ask.logprobs) for ask in peer.asked] == [
        (1, False, None),
        (6, True, None),
        (6, True, None),
        (6, False, 1),
        (6, True, None),
    ]
    peer.answers += [_reply("ab", attempts=2)] * 3
    with pytest.raises(EndpointFailure) as failed:
        peer.generate([_request(eos=(3,))])
    assert failed.value.kind == "limited"
    assert "limited: spec: 3 answers, none at the first try, so none can be timed. " in str(failed.value)


def test_a_server_is_described_by_its_address_its_model_and_its_cache(peer: Any) -> None:
    assert peer.conditions() == {"dtype": "the server's", "compile": "the server's"}
    neutral = "filters and penalties of sampling are set to neutral values"
    assert peer.described() == (
        f"endpoint spec at http://here: prompts sent as token ids, prompts may be in its cache; {neutral}"
    )
    peer._endpoint, peer._server, peer._text = Endpoint("spec", "http://here", "m"), "vllm", True
    assert peer.described() == (
        f"endpoint spec at http://here, model m: prompts sent as text, its prompt cache passed by; {neutral}"
    )


def test_a_closed_peer_has_closed_its_connections_and_its_loop_once(peer: Any) -> None:
    client = peer._client = _asking()
    peer.close()
    assert peer._client is None
    assert client._http.is_closed
    with pytest.raises(RuntimeError):
        peer._loop.get_loop()
    peer.close()
