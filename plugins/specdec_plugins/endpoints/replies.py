"""What a server answers: text, tokens with log-probabilities, when each piece came; or the kind of its failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from specdec.errors import SpecdecError

FAILURES: Mapping[str, str] = MappingProxyType(
    {
        "refused": "nothing listens there: start the server, or correct the address",
        "untrusted": "no TLS connection came about: name the certificate's authority in SSL_CERT_FILE, or write http://",
        "reset": "the connection was closed before the answer was whole: see the server's log",
        "timeout": "the answer took longer than the limit: raise it, or ask for fewer tokens",
        "unauthorised": "the server wants another API key: put it into the environment variable of the endpoint",
        "not_found": "the server has no such path or model: name a model that it serves",
        "limited": "the server turns requests away for now: lower concurrency or rate",
        "server_error": "the server failed: see its log",
        "refused_request": "the server does not take this request: its message says what it lacks",
        "redirect": "the address sends elsewhere, which a POST must not follow: name the final address",
        "truncated": "the answer ended in its middle: see the server's or a proxy's log",
        "invalid": "the answer is not what the OpenAI API promises: is this an OpenAI-compatible server?",
        "endless": "the answer went on beyond what was asked for and was cut: the server ignores max_tokens",
        "usage": "the server's usage counts other tokens than it sent: figures by its count would be wrong",
        "cut_off": "the server says that the text ended by itself, and sent nothing of the end: a stop token was lost",
    }
)
"""Every kind of failure, and what to do next."""

RETRIED = ("refused", "reset", "limited", "server_error", "timeout")
"""Kinds that may go away by themselves, if they came before the first byte of an answer."""


class EndpointFailure(SpecdecError):
    """A request that got no usable answer.

    ``kind`` is one of ``FAILURES``; ``status`` the HTTP status, if there was one; ``wait_s`` what Retry-After asked
    for; ``begun``: part of an answer had come; ``attempts``: how often it was tried.
    """

    def __init__(
        self,
        kind: str,
        said: str,
        *,
        status: int | None = None,
        wait_s: float | None = None,
        begun: bool = False,
    ) -> None:
        super().__init__(f"{kind}: {said}. {FAILURES[kind][0].upper()}{FAILURES[kind][1:]}")
        self.kind, self.status, self.wait_s, self.begun = kind, status, wait_s, begun
        self.attempts = 1


@dataclass(frozen=True)
class Token:
    """One generated token as the server names it.

    ``text`` may be empty or part of a character; ``id`` is its number where the server says it; ``logprob`` a natural
    logarithm; ``top`` the server's likeliest tokens at this position, likeliest first, empty if it gave none.
    """

    text: str
    id: int | None = None
    logprob: float | None = None
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer: seconds since the request was sent, its text, its tokens where they are known."""

    seconds: float
    text: str
    tokens: int | None = None


@dataclass(frozen=True)
class Reply:
    """A whole answer.

    ``tokens`` is empty if the server gave no log-probabilities. ``seconds``: from sending the request to the end of the
    answer, of the attempt that succeeded. ``prompt_tokens``, ``completion_tokens`` and ``cached_tokens``, those of the
    prompt that it had in a cache, are the server's own ``usage``; it need not say them.
    ``attempts``: 1 if the first try succeeded; the times of another are not those of an idle server. ``body``: what the
    server added of its own (timings, metrics), the last object that had each name.
    """

    text: str
    tokens: tuple[Token, ...]
    chunks: tuple[Chunk, ...]
    seconds: float
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    attempts: int
    body: Mapping[str, Any]
    cached_tokens: int | None = None

    @property
    def counted(self) -> int | None:
        """Output tokens: those of the log-probabilities, else ``usage``'s; None where only text is known."""
        return len(self.tokens) if self.tokens else self.completion_tokens
