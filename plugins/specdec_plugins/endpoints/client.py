"""The client: one request to an OpenAI-compatible server, streamed or not, with its time limits and retries."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from specdec.errors import SpecdecError, unknown
from specdec_plugins.endpoints.answers import AnswerError, AnswerReader, models_of
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import RETRIED, EndpointFailure, Reply

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

EACH_PIECE = "continuous_usage_stats"
"""The option of a stream that has every piece say how many tokens there are so far: vLLM's and SGLang's."""

NUMBERS = "return_token_ids"
"""The option of an answer with log-probabilities that also numbers its tokens: vLLM's. A text read again may be other
tokens, and does not show the one that ended it."""

NEUTRAL: Mapping[str, float] = MappingProxyType(
    {
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "typical_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "repeat_penalty": 1.0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
    }
)
"""Fields of sampling, each with the value that changes nothing.

Every request says them: a server gives a field that is left out a default of its own (vLLM that of
generation_config.json, llama.cpp top_k 40, top_p 0.95 and min_p 0.05). Sources: vLLM's and SGLang's sampling
parameters; ggml-org/llama.cpp, tools/server/README.md, for ``typical_p``, ``repeat_penalty``, ``xtc_probability`` and
``dry_multiplier``.
"""


@dataclass(frozen=True)
class Ask:
    """One request.

    ``prompt``: a text, or token ids where the server takes them. ``logprobs``: how many likeliest tokens are wanted at
    each position; None: no log-probabilities at all. ``chat``: the prompt is one message of a user, and the server
    applies the chat template; ``messages`` are a whole conversation in its place. ``echo``: the prompt's own tokens
    come back with their log-probabilities (completions). ``extra``: further names of the body, a server's own.
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
    messages: tuple[Mapping[str, Any], ...] = ()

    @property
    def sampling(self) -> str:
        """What the request says of sampling, in words.

        Example: ``temperature 1, top_p 1, top_k -1, min_p 0, …``
        """
        said = {"temperature": self.temperature, **NEUTRAL, "top_p": self.top_p, **self.extra}
        return ", ".join(f"{name} {value:g}" for name, value in said.items() if type(value) in (int, float))

    @property
    def optional(self) -> frozenset[str]:
        """The names that a server need not take: what they say is a default's value, or a wish."""
        set_here = {*self.extra, *(["top_p"] if self.top_p != NEUTRAL["top_p"] else [])}
        wishes = {EACH_PIECE} if self.stream else {NUMBERS} if self._numbered else set[str]()
        return frozenset((NEUTRAL.keys() - set_here) | wishes)

    @property
    def _numbered(self) -> bool:
        """Whether the tokens of an answer are wished for by their numbers too."""
        return self.logprobs is not None and not self.stream

    def body(self, model: str, without: Collection[str] = ()) -> dict[str, Any]:
        """The JSON of the request, without some of its ``optional`` names."""
        found: dict[str, Any] = {
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": self.stream,
        }
        if self.chat:
            if not isinstance(self.prompt, str):
                raise SpecdecError("a chat request takes a text; got token ids: ask with chat=False")
            user = {"role": "user", "content": self.prompt}
            found["messages"] = [dict(one) for one in self.messages or (user,)]
        elif self.messages:
            raise SpecdecError("messages are those of a chat; got a completion: ask with chat=True, or with a prompt")
        else:
            found["prompt"] = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        sampling = {**NEUTRAL, "top_p": self.top_p}
        found |= {name: value for name, value in sampling.items() if name not in without}
        if self.seed is not None:
            found["seed"] = self.seed
        if self.stop:
            found["stop"] = list(self.stop)
        if self.echo:
            found["echo"] = True
        if self.stream:
            found["stream_options"] = {"include_usage": True} | (
                {EACH_PIECE: True} if EACH_PIECE not in without else {}
            )
        if self._numbered and NUMBERS not in without:
            found[NUMBERS] = True
        if self.logprobs is not None:
            found |= {"logprobs": True, "top_logprobs": self.logprobs} if self.chat else {"logprobs": self.logprobs}
        return found | dict(self.extra)


class Client:
    """Asks one endpoint, over connections that are kept. Its methods are coroutines.

    ``refused``: names of optional fields that the server is known to refuse, which several clients of a server may
    share; added to in place. ``sleep`` and ``dice`` are for tests: waits between tries, and their jitter.
    ``transport`` is httpx's; None is the network.

    Example: ``async with Client(endpoint) as client: reply = await client.complete(Ask("Once", 16))``
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        refused: set[str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dice: random.Random | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._sleep, self._dice = sleep, dice or random.Random()
        http = _httpx()
        self._errors = http
        self._model: str | None = endpoint.model
        self.refused = set() if refused is None else refused
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
            # To read the certificates takes longer than many requests. SSL_CERT_FILE and SSL_CERT_DIR are believed.
            verify=not endpoint.url.startswith("http:") and http.create_ssl_context(trust_env=True),
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
            return models_of(text)
        except AnswerError as error:
            raise self._failure("invalid", f"/v1/models: {self._shown(error)}") from None

    async def page(self, path: str) -> str:
        """The text of a page, for example ``/metrics``."""

        async def once() -> str:
            async with asyncio.timeout(self.endpoint.total_s), self._http.stream("GET", path) as answer:
                found = await self._read(answer)
            self._refused(answer, found)
            return found.decode("utf-8", "replace")

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

        async def asked(without: Collection[str]) -> tuple[Any, int]:
            async def once() -> Reply:
                async with asyncio.timeout(self.endpoint.total_s):
                    return await self._answered(path, ask.body(model, without), ask)

            return await self._tried(once)

        without = frozenset(self.refused)
        while True:
            try:
                reply, attempts = await asked(without)
                break
            except EndpointFailure as failure:
                fewer = without | _named_in(failure, ask.optional)
                if fewer == without:
                    raise  # what is left was not refused, or not by its name
                without = fewer
        self.refused |= without
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
            kind = "untrusted" if _is_of_tls(error) else "refused"
            raise self._failure(kind, str(error) or "no connection") from None
        except http.TransportError as error:
            raise self._failure("reset", str(error) or type(error).__name__) from None
        except http.DecodingError as error:
            raise self._failure("invalid", f"the answer cannot be decompressed: {error}", begun=True) from None
        except AnswerError as error:
            raise self._failure(error.kind, self._shown(error), begun=True) from None

    def _start_of(self, text: str) -> str:
        """What a message shows of an answer. The key is taken out before the cut, which would leave a part of it."""
        return self.endpoint.hidden(text)[:SHOWN].strip()

    def _shown(self, error: AnswerError) -> str:
        said = self._start_of(error.said)
        return f"{said}: {self._start_of(error.excerpt)}" if error.excerpt else said

    def _failure(self, kind: str, said: str, **more: Any) -> EndpointFailure:
        text = self.endpoint.hidden(said)
        return EndpointFailure(kind, f"{self.endpoint.name} ({self.endpoint.url}): {text}", **more)

    def _refused(self, answer: httpx.Response, body: bytes) -> None:
        """Raise for a status that is no success."""
        status = answer.status_code
        if status < 300:
            return
        said = f"HTTP {status}: {self._start_of(body.decode('utf-8', 'replace'))}"
        if status < 400:
            raise self._failure("redirect", f"HTTP {status} to {answer.headers.get('location')!r}", status=status)
        kind = {401: "unauthorised", 403: "unauthorised", 404: "not_found", 429: "limited", 408: "timeout"}.get(
            status, "server_error" if status >= 500 else "refused_request"
        )
        wait = retry_after(answer.headers.get("retry-after"))
        if wait is not None and wait > LONGEST_WAIT_S:
            said += f" (Retry-After asks for {wait:g} s; a request waits {LONGEST_WAIT_S:g} s at most)"
        raise self._failure(kind, said, status=status, wait_s=wait)

    async def _read(self, answer: httpx.Response) -> bytes:
        """A whole answer. What breaks off has begun, and is not asked for again."""
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
        return b"".join(pieces)

    async def _answered(self, path: str, body: dict[str, Any], ask: Ask) -> Reply:
        """The reply to one request. A server that does not stream what was asked as a stream answers whole."""
        start = time.perf_counter()
        reader = AnswerReader(ask.max_tokens, ask.echo)
        async with self._http.stream("POST", path, json=body) as answer:
            if not ask.stream or answer.status_code >= 300 or _is_json(answer.headers):
                found = await self._read(answer)
                seconds = time.perf_counter() - start
                self._refused(answer, found)
                reader.whole(found, seconds)
                return reader.reply(seconds)
            pieces, size = answer.aiter_bytes(), 0
            try:
                async for piece in pieces:
                    size += len(piece)
                    if size > MOST_BYTES:
                        raise self._failure("endless", f"a stream is longer than {MOST_BYTES >> 20} MiB", begun=True)
                    reader.feed(piece, time.perf_counter() - start)
                    if reader.done:
                        break
            except self._errors.TimeoutException:
                raise
            except self._errors.TransportError as error:
                raise self._failure("reset", f"in the middle of a stream: {error}", begun=True) from None
            seconds = time.perf_counter() - start
            # A connection whose answer is not read to its end is closed, and the next request would time a new one.
            with contextlib.suppress(self._errors.HTTPError, TimeoutError):
                async with asyncio.timeout(BEHIND_S):
                    async for piece in pieces:
                        size += len(piece)
                        if size > MOST_BYTES:
                            break
        return reader.reply(seconds)


def _named_in(failure: EndpointFailure, optional: frozenset[str]) -> frozenset[str]:
    """Those of the optional names that a refusal names, so that the request may be sent again without them."""
    if failure.begun:
        return frozenset()
    said = str(failure)
    of_streams = {EACH_PIECE} & optional if "stream_options" in said else set()
    return frozenset({name for name in optional if re.search(rf"\b{name}\b", said)} | of_streams)


def _is_of_tls(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is one of TLS: a certificate, or a server that speaks no TLS."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_json(headers: httpx.Headers) -> bool:
    return str(headers.get("content-type", "")).partition(";")[0].strip().lower() == "application/json"


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
