"""The client: one request to an OpenAI-compatible server, streamed or not, with its time limits and retries."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from specdec.errors import SpecdecError, unknown
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import (
    RETRIED,
    Chunk,
    EndpointFailure,
    Reply,
    Token,
    own_words,
    tokens_of,
)

if TYPE_CHECKING:
    import httpx

BACK_OFF_S = 0.5
"""The first wait between two tries is drawn below this; each further one below twice as much."""

LONGEST_WAIT_S = 60.0
"""Longest wait before a try, also where Retry-After asks for more: the request then fails as ``limited``."""

SHOWN = 200
"""Characters of an answer that a message shows."""

MOST_BYTES = 2**27
"""Longest answer: log-probabilities of a long prompt's tokens are some ten MiB."""

KEPT_S = 2.0
"""How long a connection is kept without a request. uvicorn closes its own after 5: a request must not meet that."""

BEHIND_S = 0.1
"""Longest time for what a server sends behind the end of a stream."""


@dataclass(frozen=True)
class Ask:
    """One request.

    ``prompt``: a text, or token ids where the server takes them. ``logprobs``: how many likeliest tokens are wanted at
    each position; None: no log-probabilities at all. ``chat``: the prompt is one message of a user, and the server
    applies the chat template. ``echo``: the prompt's own tokens come back with their log-probabilities (completions).
    ``extra``: further names of the body, a server's own.
    """

    prompt: str | tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    chat: bool = False
    stream: bool = True
    echo: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, model: str) -> dict[str, Any]:
        """The JSON of the request."""
        found: dict[str, Any] = {
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": self.stream,
        }
        if self.chat:
            if not isinstance(self.prompt, str):
                raise SpecdecError("a chat request takes a text; got token ids: ask with chat=False")
            found["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            found["prompt"] = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        if self.top_p != 1:
            found["top_p"] = self.top_p
        if self.seed is not None:
            found["seed"] = self.seed
        if self.stop:
            found["stop"] = list(self.stop)
        if self.echo:
            found["echo"] = True
        if self.stream:
            found["stream_options"] = {"include_usage": True}
        if self.logprobs is not None:
            found |= {"logprobs": True, "top_logprobs": self.logprobs} if self.chat else {"logprobs": self.logprobs}
        return found | dict(self.extra)


class Client:
    """Asks one endpoint, over connections that are kept. Its methods are coroutines.

    ``sleep`` and ``dice`` are for tests: waits between tries, and their jitter. ``transport`` is httpx's; None is the
    network.

    Example: ``async with Client(endpoint) as client: reply = await client.complete(Ask("Once", 16))``
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dice: random.Random | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._sleep, self._dice = sleep, dice or random.Random()
        http = _httpx()
        self._errors = http
        self._model: str | None = endpoint.model
        headers = {"Accept-Encoding": "identity"}  # a compressed stream comes in other pieces than the server's
        if endpoint.key:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        self._http: httpx.AsyncClient = http.AsyncClient(
            base_url=endpoint.url,
            headers=headers,
            timeout=http.Timeout(endpoint.read_s, connect=endpoint.connect_s),
            limits=http.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEPT_S),
            follow_redirects=False,
            transport=transport,
            verify=not endpoint.url.startswith("http:"),  # to read the certificates takes longer than many requests
            trust_env=False,  # a proxy of the environment would be measured with the server
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def health(self) -> None:
        """Raise EndpointFailure unless the server answers ``/health`` or, where it has none, ``/v1/models``."""
        try:
            await self.page("/health")
        except EndpointFailure as failure:
            if failure.kind not in ("not_found", "refused_request", "unauthorised"):
                raise
            await self.models()

    async def models(self) -> list[str]:
        """The names of the models that the server serves."""
        text = await self.page("/v1/models")
        try:
            return [str(one["id"]) for one in json.loads(text)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise self._failure(
                "invalid", f"/v1/models is no list of models ({type(error).__name__}: {error})"
            ) from None

    async def page(self, path: str) -> str:
        """The text of a page, for example ``/metrics``."""

        async def once() -> str:
            async with asyncio.timeout(self.endpoint.total_s), self._http.stream("GET", path) as answer:
                text = await self._read(answer)
            self._refused(answer, text)
            return text

        found, _ = await self._tried(once)
        return str(found)

    async def complete(self, ask: Ask) -> Reply:
        """Ask, and return the whole answer. Raises EndpointFailure by its kind.

        What may go away by itself is tried again, up to ``endpoint.retries`` times, after a time drawn below
        ``BACK_OFF_S`` doubled at each try (full jitter), or after what Retry-After asks for. Nothing is tried again
        once a part of an answer has come.
        """
        model = await self._served()
        path = "/v1/chat/completions" if ask.chat else "/v1/completions"
        body = ask.body(model)

        async def once() -> Reply:
            async with asyncio.timeout(self.endpoint.total_s):
                return await (self._streamed(path, body, ask) if ask.stream else self._whole(path, body, ask))

        reply, attempts = await self._tried(once)
        return Reply(**{**vars(reply), "attempts": attempts})

    async def _served(self) -> str:
        """The model's name; of a server with one model, that one's."""
        if self._model is None:
            names = await self.models()
            if len(names) != 1:
                raise unknown(
                    f"model of the endpoint {self.endpoint.name}",
                    "",
                    names,
                    "name it behind the address: name=url#model",
                )
            self._model = names[0]
        return self._model

    async def _tried(self, once: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._named(once), attempt
            except EndpointFailure as failure:
                failure.attempts = attempt
                wait = self._wait(failure, attempt)
                if wait is None:
                    raise
            await self._sleep(wait)

    def _wait(self, failure: EndpointFailure, attempt: int) -> float | None:
        """Seconds before the next try; None if there is none."""
        if failure.kind not in RETRIED or failure.begun or attempt > self.endpoint.retries:
            return None
        if failure.wait_s is not None:
            return failure.wait_s if failure.wait_s <= LONGEST_WAIT_S else None
        return self._dice.uniform(0, min(LONGEST_WAIT_S, BACK_OFF_S * 2 ** (attempt - 1)))

    async def _named(self, once: Callable[[], Awaitable[Any]]) -> Any:
        """The same with httpx's errors, and asyncio's, as failures of a kind."""
        http, limits = self._errors, self.endpoint
        try:
            return await once()
        except http.ConnectTimeout:
            raise self._failure("timeout", f"no connection within {limits.connect_s:g} s") from None
        except http.TimeoutException:
            raise self._failure("timeout", f"nothing came for {limits.read_s:g} s", begun=True) from None
        except TimeoutError:
            raise self._failure("timeout", f"not done after {limits.total_s:g} s", begun=True) from None
        except http.ConnectError as error:
            raise self._failure("refused", str(error) or "no connection") from None
        except http.TransportError as error:
            raise self._failure("reset", str(error) or type(error).__name__) from None
        except http.DecodingError as error:
            raise self._failure("invalid", f"the answer cannot be decompressed: {error}", begun=True) from None

    def _start_of(self, text: str) -> str:
        """What a message shows of an answer. The key is taken out before the cut, which would leave a part of it."""
        return self.endpoint.hidden(text)[:SHOWN].strip()

    def _failure(self, kind: str, said: str, **more: Any) -> EndpointFailure:
        text = self.endpoint.hidden(said)
        return EndpointFailure(kind, f"{self.endpoint.name} ({self.endpoint.url}): {text}", **more)

    def _refused(self, answer: httpx.Response, text: str) -> None:
        """Raise for a status that is no success."""
        status = answer.status_code
        if status < 300:
            return
        said = f"HTTP {status}: {self._start_of(text)}"
        if status < 400:
            raise self._failure("redirect", f"HTTP {status} to {answer.headers.get('location')!r}", status=status)
        kind = {401: "unauthorised", 403: "unauthorised", 404: "not_found", 429: "limited", 408: "timeout"}.get(
            status, "server_error" if status >= 500 else "refused_request"
        )
        wait = retry_after(answer.headers.get("retry-after"))
        if wait is not None and wait > LONGEST_WAIT_S:
            said += f" (Retry-After asks for {wait:g} s; a request waits {LONGEST_WAIT_S:g} s at most)"
        raise self._failure(kind, said, status=status, wait_s=wait)

    async def _read(self, answer: httpx.Response) -> str:
        """The text of a whole answer. What breaks off has begun, and is not asked for again."""
        pieces, size = [], 0
        try:
            async for piece in answer.aiter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MOST_BYTES:
                    raise self._failure("endless", f"an answer is longer than {MOST_BYTES >> 20} MiB", begun=True)
        except self._errors.TimeoutException:
            raise
        except self._errors.TransportError as error:
            raise self._failure("reset", f"in the middle of an answer: {error}", begun=True) from None
        return b"".join(pieces).decode("utf-8", "replace")

    async def _whole(self, path: str, body: dict[str, Any], ask: Ask) -> Reply:
        start = time.perf_counter()
        async with self._http.stream("POST", path, json=body) as answer:
            text = await self._read(answer)
        seconds = time.perf_counter() - start
        self._refused(answer, text)
        found = self._json(text)
        gathered = _Gathered(self, ask)
        gathered.add(found, seconds)
        return gathered.reply(seconds)

    async def _streamed(self, path: str, body: dict[str, Any], ask: Ask) -> Reply:
        start = time.perf_counter()
        gathered = _Gathered(self, ask)
        async with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code >= 300:
                self._refused(answer, await self._read(answer))
            done = False
            events = self._events(answer.aiter_bytes())
            try:
                async for data in events:
                    if data == "[DONE]":
                        done = True
                        break
                    gathered.add(self._json(data), time.perf_counter() - start)
            except self._errors.TimeoutException:
                raise
            except self._errors.TransportError as error:
                raise self._failure("reset", f"in the middle of a stream: {error}", begun=True) from None
            seconds = time.perf_counter() - start
            # A connection whose answer is not read to its end is closed, and the next request would time a new one.
            with contextlib.suppress(self._errors.HTTPError, EndpointFailure, TimeoutError):
                async with asyncio.timeout(BEHIND_S):
                    async for _ in events:
                        pass
        if not done and gathered.finish is None:
            raise self._failure("truncated", "the stream ended without [DONE] and without finish_reason", begun=True)
        return gathered.reply(seconds)

    async def _events(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
        """The data of server-sent events. A line is decoded when it is whole: a character may lie in two pieces."""
        left, size = b"", 0
        async for piece in pieces:
            size += len(piece)
            if size > MOST_BYTES:
                raise self._failure("endless", f"a stream is longer than {MOST_BYTES >> 20} MiB", begun=True)
            *lines, left = (left + piece).split(b"\n")
            if len(left) > 2**20:
                raise self._failure("endless", "a line of a stream is longer than 1 MiB", begun=True)
            for line in lines:
                if line.startswith(b"data:"):
                    yield self._decoded(line[5:].strip())
                elif line.startswith(b"{"):  # an error that a server wrote into a stream it had begun
                    yield self._decoded(line.strip())
        if left.strip().startswith(b"data:"):
            yield self._decoded(left.strip()[5:].strip())

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._failure("invalid", f"a line of the stream is not UTF-8: {error}", begun=True) from None

    def _json(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            ended = getattr(error, "pos", 0) >= len(text.rstrip()) or "Unterminated" in str(error)
            raise self._failure(
                "truncated" if ended else "invalid", f"no JSON: {self._start_of(text)!r} ({error})", begun=True
            ) from None
        except RecursionError:
            raise self._failure("invalid", f"JSON too deep to be read: {self._start_of(text)!r}", begun=True) from None
        if not isinstance(found, dict):
            raise self._failure("invalid", f"expected an object, got {self._start_of(text)!r}", begun=True)
        if not isinstance(found.get("usage") or {}, dict):
            said = self._start_of(str(found["usage"]))
            raise self._failure("invalid", f"expected an object of counts as usage, got {said}", begun=True)
        if found.get("error"):
            said = self._start_of(json.dumps(found["error"]))
            raise self._failure("server_error", f"an error in the answer: {said}", begun=True)
        return found


class _Gathered:
    """An answer as it comes in."""

    def __init__(self, client: Client, ask: Ask) -> None:
        self.client, self.ask = client, ask
        self.finish: str | None = None
        self._text: list[str] = []
        self._tokens: list[Token] = []
        self._chunks: list[Chunk] = []
        self._usage: Mapping[str, Any] = {}
        self._own: dict[str, Any] = {}

    def add(self, found: Mapping[str, Any], seconds: float) -> None:
        """One object of a stream, or the whole answer."""
        self._own |= own_words(found)
        self._usage = found.get("usage") or self._usage
        choices = found.get("choices")
        if choices is None and not self._usage:
            raise self.client._failure("invalid", f"no choices in {self.client._start_of(str(found))}", begun=True)
        if not choices:
            return  # the last object of a stream has the usage alone
        try:
            choice = choices[0]
            part = choice.get("delta") or choice.get("message") or choice
            # A reasoning model's thoughts are generated tokens as well, under two names.
            pieces = [part.get(name) for name in ("reasoning_content", "reasoning", "content", "text")]
            text = "".join(str(piece) for piece in pieces if piece)
            tokens = tokens_of(choice)
            # vLLM's numbers of tokens, and SGLang's words, which stand beside the text.
            beside = ("token_ids", "prompt_token_ids", "meta_info")
            self._own |= {name: choice[name] for name in beside if choice.get(name) is not None}
            self.finish = choice.get("finish_reason") or self.finish
        except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
            said = f"a choice cannot be read ({type(error).__name__}: {error})"
            raise self.client._failure("invalid", said, begun=True) from None
        if text or tokens:
            self._chunks.append(Chunk(seconds, text, len(tokens) or None))
        self._text.append(text)
        self._tokens += tokens
        most = self.ask.max_tokens
        if not self.ask.echo and (len(self._tokens) > most or len(self._chunks) > 2 * most + 16):
            raise self.client._failure(
                "endless", f"{max(len(self._tokens), len(self._chunks))} pieces for max_tokens {most}", begun=True
            )

    def reply(self, seconds: float) -> Reply:
        """The whole answer, checked."""
        if self.finish is None:
            raise self.client._failure("cut_off", "the answer has no finish_reason", begun=True)
        prompt, completion = (_count(self._usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        seen = len(self._tokens)
        # The token that ended the text is counted by some servers and not sent.
        fitting = (seen, seen + 1) if self.finish == "stop" else (seen,)
        if seen and completion is not None and completion not in fitting and not self.ask.echo:
            said = f"usage says {completion} tokens, {seen} came with log-probabilities"
            raise self.client._failure("usage", said, begun=True)
        if completion is not None and completion > self.ask.max_tokens:
            said = f"usage says {completion} tokens, max_tokens was {self.ask.max_tokens}"
            raise self.client._failure("usage", said, begun=True)
        if completion == 0 and "".join(self._text):
            raise self.client._failure("usage", "usage says 0 tokens, and a text came", begun=True)
        return Reply(
            "".join(self._text),
            tuple(self._tokens),
            tuple(self._chunks),
            seconds,
            prompt,
            completion,
            self.finish,
            1,
            self._own,
        )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def retry_after(text: str | None, now: float | None = None) -> float | None:
    """Return the seconds that a Retry-After header asks for: a number, or a date; None for anything else.

    Source: RFC 9110, section 10.2.3.

    Example: ``retry_after("2")`` is 2.0.
    """
    if not text:
        return None
    if text.isascii() and text.strip().isdigit():
        return float(text)
    try:
        at = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None
    return max(0.0, at - (time.time() if now is None else now))


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise SpecdecError(
            "endpoints are asked with httpx, which is not installed: pip install 'specdec-bench[endpoints]'"
        ) from None
    return httpx
