"""Servers that answer in this process, without HTTP: a function makes each reply, and every request is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from benchsuite.benches.serving.restarts import ServersInTurn
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Chunk, EndpointFailure, Reply, Token


def made_up_reply(text: str, tokens: Sequence[Token] = (), counted: int | None = None, **other: Any) -> Reply:
    """An answer that came in a second, a piece for each character."""
    chunks = tuple(Chunk((n + 1) / len(text), sign, 1) for n, sign in enumerate(text))
    told: dict[str, Any] = {
        "chunks": chunks,
        "seconds": 1.0,
        "prompt_tokens": 3,
        "completion_tokens": counted,
        "finish_reason": "length",
        "attempts": 1,
        "body": {},
    }
    return Reply(text, tuple(tokens), **{**told, **other})


@dataclass
class MadeUpServer:
    """Makes replies by ``answer``, which may raise EndpointFailure; its ``/metrics`` are the next of ``pages``.

    ``heard`` has every request in order, and ``"health"``; ``most`` is the largest number of requests at once; ``open``
    counts clients that are not closed.
    """

    answer: Callable[[Ask], Reply]
    pages: list[str] = field(default_factory=list)
    heard: list[Ask | str] = field(default_factory=list)
    most: int = 0
    now: int = 0
    open: int = 0

    @property
    def asked(self) -> list[Ask]:
        """The requests for answers."""
        return [one for one in self.heard if isinstance(one, Ask)]


class MadeUpClient(Client):
    """Asks a server of this process."""

    def __init__(self, endpoint: Endpoint, server: MadeUpServer, refused: set[str]) -> None:
        super().__init__(endpoint, refused=refused)
        self.server = server

    async def __aenter__(self) -> Self:
        self.server.open += 1
        return await super().__aenter__()

    async def __aexit__(self, *failure: object) -> None:
        self.server.open -= 1
        await super().__aexit__(*failure)

    async def health(self) -> None:
        """Always well."""
        self.server.heard.append("health")

    async def page(self, path: str) -> str:
        """The next page of counters."""
        if path != "/metrics" or not self.server.pages:
            raise EndpointFailure("not_found", f"no {path}")
        self.server.heard.append(path)
        return self.server.pages.pop(0)

    async def complete(self, ask: Ask) -> Reply:
        """The server's answer, after others had a turn."""
        server = self.server
        server.heard.append(ask)
        server.now += 1
        server.most = max(server.most, server.now)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return server.answer(ask)
        finally:
            server.now -= 1


class MadeUpServers(ServersInTurn):
    """Servers of this process by the names of their endpoints. Those of ``commands`` have room for one at a time:
    each is started when another one of them ran before."""

    def __init__(self, servers: Mapping[str, MadeUpServer], commands: Sequence[str] = ()) -> None:
        super().__init__(dict.fromkeys(commands, "true"))
        self.servers, self.running = servers, ""

    def connect(self, endpoint: Endpoint) -> Client:
        """A client of the server of this name."""
        if endpoint.name in self.commands and self.running != endpoint.name:
            self.running = endpoint.name
            self.starts[endpoint.name] = self.starts.get(endpoint.name, 0) + 1
            self.servers[endpoint.name].heard.append("start")
        refused = self.refused.setdefault(endpoint.name, set())
        return MadeUpClient(endpoint, self.servers[endpoint.name], refused)

    def close(self) -> None:
        """Nothing was started."""
