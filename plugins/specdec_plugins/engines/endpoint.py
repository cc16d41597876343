"""endpoint: a server that speaks OpenAI's completions, as a row beside our own."""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any

from specdec import DraftCounts, Generation, Peer, PeerEnv, Request, SamplingParams, SpecdecError, hookimpl
from specdec.characters import decoded
from specdec.errors import unknown
from specdec.peer import PeerFactory, absent, refuse_params
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint, parse_endpoints
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token
from specdec_plugins.endpoints.server_metrics import between, read_body, read_page

COLD: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "other": {},
        "llama_cpp": {"cache_prompt": False},
        "vllm": {"cache_salt": "", "return_tokens_as_token_ids": True},
    }
)
"""Servers, and what their requests have beside OpenAI's names so that no prompt meets its own cache."""

FIRST_TRIES = 3
"""Answers that are asked for until one comes at the first try: the times of another are those of a busy server."""


class EndpointPeer(Peer):
    """An OpenAI-compatible server, asked over HTTP: completions, streamed, one request at a time.

    Its tokens are compared with plain's and not judged: weights, precision and kernels are the server's own. The prompt
    is sent as the target's token ids, or as text to a server that takes no ids; a server that says it read another
    number of tokens is refused. After its first timed answer a prompt is asked once more, untimed, whole and with
    log-probabilities, which name the tokens of every answer of the same text; those of another text are its text in the
    target's tokens, if they are as many as ``usage`` says. vLLM and llama.cpp are asked to pass by their cache of
    prompts; any other server (``server=other``) is asked for one token of a new prompt first, so that every timed
    prompt is in its cache, if it has one, and its time to the first token is no figure.

    A token's time is that of the piece of the stream which completes its text. Drafts are counted as the body of the
    answer counts them (llama.cpp's ``timings``, vLLM's and SGLang's own), else as the server's page of metrics does
    before and after, whom nobody else may ask meanwhile. Each accepted token is a forward less.

    Source: OpenAI API reference, completions; ggml-org/llama.cpp, tools/server/README.md (``cache_prompt``);
    vllm-project/vllm, docs/design/prefix_caching.md (``cache_salt``).
    """

    own_arithmetic = True
    _has_page = True  # until it is known better

    def __init__(
        self,
        env: PeerEnv,
        url: Annotated[str, "the server's address: http://localhost:8000"] = "",
        name: Annotated[str, "in messages, and of the variable SPECDEC_API_KEY_<NAME>"] = "server",
        model: Annotated[str, "of several that the server has"] = "",
        server: Annotated[str, "whose cache of prompts is left unused: vllm, llama_cpp; other: none"] = "other",
        prompt: Annotated[str, "sent as ids or as text"] = "ids",
        plain: Annotated[str, "name of the endpoint that is this server without speculation; none: the first"] = "",
    ) -> None:
        self._endpoint, self._server, self._text = _endpoint_of(url, name, model), server, prompt == "text"
        self._names: Any = env.tokenizer
        self._known: dict[tuple[int, ...], dict[str, tuple[int, ...]]] = {}
        self._loop = asyncio.Runner()
        self._client: Client | None = Client(self._endpoint)
        try:
            self._loop.run(self._client.health())
        except SpecdecError:
            self.close()
            raise

    @classmethod
    def check_options(cls, **options: object) -> None:
        """An address, and known names of a server and of how prompts are sent."""
        _endpoint_of(*(str(options[name]) for name in ("url", "name", "model")))
        for name, choices in (("server", tuple(COLD)), ("prompt", ("ids", "text"))):
            if options[name] not in choices:
                raise unknown(f"{name} of the peer endpoint", str(options[name]), choices)

    @classmethod
    def missing(cls) -> str | None:
        """Whether httpx is installed."""
        return absent("httpx", "endpoints")

    def check_params(self, params: SamplingParams) -> None:
        """Refuse what OpenAI's completions do not have."""
        refuse_params("endpoint", params, ("temperature", "top_p"))

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Decode one request. Raises EndpointFailure, by its kind, for one without a usable answer."""
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Generation:
        prompt = tuple(request.prompt)
        new = prompt not in self._known
        if new and self._warm:
            self._asked(request, 1, stream=False)
        for _ in range(FIRST_TRIES):
            before = self._page()
            reply = self._asked(request, stream=True)
            if reply.attempts == 1:
                break
        else:
            raise EndpointFailure(
                "limited", f"{self._endpoint.name}: {FIRST_TRIES} answers, none at the first try, so none can be timed"
            )
        counts = self._counts(reply, before)
        if new:  # afterwards: a server that learns from its answers has not seen this one when it is first timed
            self._known[prompt] = self._named(request)
        tokens = self._tokens(request, reply)
        warm = self._warm or bool(reply.cached_tokens)
        accepted = None if counts is None else counts.accepted
        forwards = None if accepted is None else max(len(tokens) - 1 - accepted, 0)
        return Generation(tokens, self._emissions(tokens, reply), reply.seconds, forwards, warm, counts)

    def _counts(self, reply: Reply, before: str | None) -> DraftCounts | None:
        """What the server counts of its drafts for one answer; None if it counts none."""
        try:
            said = read_body(reply.body)
            if before is not None and (said is None or said.drafts is None):
                after = self._page()
                said = between(read_page(before), read_page(after)) if after is not None else said
            return None if said is None or said.counts == DraftCounts() else said.counts
        except SpecdecError:
            return None  # words that contradict each other count nothing

    def _page(self) -> str | None:
        """The server's page of metrics; None if it has none of a known server."""
        if not self._has_page or self._client is None:
            return None
        try:
            found = self._loop.run(self._client.page("/metrics"))
            read_page(found)
        except SpecdecError:  # no such page, or another program's
            self._has_page = False
            return None
        return found

    @property
    def _warm(self) -> bool:
        """Whether the server cannot be asked to pass by its cache of prompts."""
        return not COLD[self._server]

    def _asked(self, request: Request, most: int | None = None, **more: Any) -> Reply:
        """Ask for an answer, of ``most`` tokens where it need not be whole."""
        params = request.params
        extra: dict[str, object] = dict(COLD[self._server])
        if "cache_salt" in extra:
            extra["cache_salt"] = uuid.uuid4().hex
        if not params.eos:
            extra["ignore_eos"] = True  # vLLM, SGLang and llama.cpp
        text = decoded(self._names, request.prompt) if self._text else tuple(request.prompt)
        seed = params.seed + request.id if params.temperature else None
        if self._client is None:
            raise SpecdecError(f"the endpoint {self._endpoint.name} is closed; build another")
        ask = Ask(text, most or params.max_new_tokens, params.temperature, params.top_p, seed, extra=extra, **more)
        reply = self._loop.run(self._client.complete(ask))
        if reply.prompt_tokens not in (None, len(request.prompt)):
            raise SpecdecError(
                f"the endpoint {self._endpoint.name} read {reply.prompt_tokens} tokens, the target has "
                f"{len(request.prompt)} for the prompt; serve the target's model, or send ids (prompt=ids)"
            )
        return reply

    def _named(self, request: Request) -> dict[str, tuple[int, ...]]:
        """Ask once, untimed, for the tokens behind a text; empty if the server does not name them."""
        try:
            reply = self._asked(request, stream=False, logprobs=1)
        except EndpointFailure as failure:
            if failure.kind not in ("refused_request", "server_error"):
                raise
            return {}  # the server has no log-probabilities
        ids = [self._id_of(token) for token in reply.tokens]
        whole = tuple(one for one in ids if one is not None)
        return {reply.text: self._ended(request, whole, reply)} if whole and len(whole) == len(ids) else {}

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return dict(self._names.get_vocab())

    def _id_of(self, token: Token) -> int | None:
        """A token's number: the server's, that of ``token_id:7``, or of the only token with this name or text."""
        placed = re.fullmatch(r"token_id:(\d+)", token.text)
        if token.id is not None or placed:
            return token.id if token.id is not None else int(placed[1]) if placed else None
        named = self._vocabulary.get(token.text)
        alike = self._names(token.text, add_special_tokens=False)["input_ids"]
        return named if named is not None else alike[0] if len(alike) == 1 else None

    def _ended(self, request: Request, tokens: tuple[int, ...], reply: Reply) -> tuple[int, ...]:
        """The tokens with the end token, which servers decode and do not send."""
        ends = request.params.eos
        if reply.finish_reason != "stop" or not ends or (tokens and tokens[-1] in ends):
            return tokens
        return (*tokens, ends[0])

    def _tokens(self, request: Request, reply: Reply) -> tuple[int, ...]:
        known = self._known[tuple(request.prompt)].get(reply.text)
        if known is not None:
            return known
        bare = tuple(self._names(reply.text, add_special_tokens=False)["input_ids"])
        tokens = self._ended(request, bare, reply)
        said = reply.completion_tokens
        if not tokens or said not in (None, len(bare), len(tokens)):
            raise SpecdecError(
                f"the endpoint {self._endpoint.name} sent {reply.text[:60]!r}, which is {len(tokens)} of the target's "
                f"tokens, and says {said}: its tokens are not known. Have it give log-probabilities, or measure it "
                "with -m serving, which compares no tokens"
            )
        return tokens

    def _emissions(self, tokens: tuple[int, ...], reply: Reply) -> tuple[tuple[float, int], ...]:
        """Seconds and number of tokens of every piece that completes one; the last piece completes all."""
        whole = [decoded(self._names, tokens[: n + 1], special=False) for n in range(len(tokens))]
        needed = [len(text.rstrip("\N{REPLACEMENT CHARACTER}")) for text in whole]
        read = itertools.accumulate(len(chunk.text) for chunk in reply.chunks)
        found: list[tuple[float, int]] = []
        done = 0
        for chunk, length in zip(reply.chunks, read, strict=True):
            last = chunk is reply.chunks[-1]
            ready = len(tokens) if last else max((n + 1 for n, need in enumerate(needed) if need <= length), default=0)
            if ready > done:
                found.append((chunk.seconds, ready - done))
                done = ready
        return tuple(found) or ((reply.seconds, len(tokens)),)

    def conditions(self) -> dict[str, str]:
        """The server's own, which it does not say."""
        return {"dtype": "the server's", "compile": "the server's"}

    def described(self) -> str:
        """Address, model, how prompts are sent, whether they are in the server's cache, and what of sampling is set."""
        model = f", model {self._endpoint.model}" if self._endpoint.model else ""
        sent = "text" if self._text else "token ids"
        warm = "prompts may be in its cache" if self._warm else "its prompt cache passed by"
        return (
            f"endpoint {self._endpoint.name} at {self._endpoint.url}{model}: prompts sent as {sent}, {warm}; "
            "filters and penalties of sampling are set to neutral values"
        )

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._loop.run(self._client.__aexit__())
            self._loop.close()
        self._client = None


def _endpoint_of(url: str, name: str, model: str) -> Endpoint:
    if not url:
        raise SpecdecError("the peer endpoint has no address; expected endpoint(url=http://localhost:8000)")
    [found] = parse_endpoints(f"{name}={url}" + (f"#{model}" if model else ""))
    return found


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``endpoint``."""
    register("endpoint", EndpointPeer)
