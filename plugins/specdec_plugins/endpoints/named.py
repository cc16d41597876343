"""Endpoints by name: what ``--specdec-endpoint`` lists."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from specdec.errors import SpecdecError
from specdec.lists import split_list

KEY = "SPECDEC_API_KEY"
"""The environment variable of the API key; ``SPECDEC_API_KEY_<NAME>`` is that of one endpoint."""


@dataclass(frozen=True)
class Endpoint:
    """A server: its name in tables, its address without ``/v1``, and a model (None: the only one that it serves).

    Time limits in seconds: ``connect_s`` to a connection, ``read_s`` between two pieces of an answer, ``total_s`` of a
    whole answer. ``retries``: attempts after the first. The API key is read from the environment when it is needed, and
    is no part of this object.
    """

    name: str
    url: str
    model: str | None = None
    connect_s: float = 10.0
    read_s: float = 120.0
    total_s: float = 600.0
    retries: int = 3

    @property
    def key(self) -> str | None:
        """The API key: that of ``SPECDEC_API_KEY_<NAME>``, else of ``SPECDEC_API_KEY``; None where neither is set."""
        own = "".join(sign if sign.isalnum() else "_" for sign in self.name).upper()
        for variable in (f"{KEY}_{own}", KEY):
            if key := os.environ.get(variable):
                # No header can carry others, and the errors of HTTP libraries would show the whole of it.
                if not all("!" <= sign <= "~" for sign in key):
                    raise SpecdecError(
                        f"the API key in {variable} has a blank, a line break or a letter outside of ASCII; expected "
                        f"visible ASCII alone: set it again, without what was copied with it"
                    )
                return key
        return None

    def impatient(self) -> Endpoint:
        """The same with limits of two seconds and without retries: to see whether it answers now."""
        return replace(self, connect_s=2.0, read_s=2.0, total_s=2.0, retries=0)

    def hidden(self, text: str) -> str:
        """The text without the API key, also as JSON writes it."""
        if key := self.key:
            for written in (key, json.dumps(key)[1:-1], key.replace("/", "\\/")):
                text = text.replace(written, "[key]")
        return text


def parse_endpoints(text: str) -> list[Endpoint]:
    """Return the endpoints of ``name=url`` or ``name=url#model``, separated by commas.

    Raises SpecdecError for what is no name or address, for two of one name, and for an address that holds a secret.

    Example: ``parse_endpoints("plain=http://localhost:8000, spec=http://localhost:8001#smollm2")``
    """
    found: dict[str, Endpoint] = {}
    for part in split_list(text):
        name, equals, address = part.partition("=")
        name = name.strip()
        if not equals or not name or any(mark in name for mark in "/@?"):  # an address without a name
            raise SpecdecError(
                f"--specdec-endpoint {_shown(part)!r}; expected name=url, for example plain=http://localhost:8000"
            )
        if name in found:
            raise SpecdecError(f"--specdec-endpoint names {name!r} twice; give each address a name of its own")
        found[name] = _endpoint(name, address.strip())
    if not found:
        raise SpecdecError("--specdec-endpoint is empty; expected name=url, for example plain=http://localhost:8000")
    return list(found.values())


def _endpoint(name: str, address: str) -> Endpoint:
    whole, _, model = address.partition("#")
    if "@" in whole or "?" in whole:
        raise SpecdecError(
            f"the address of the endpoint {name!r} has a user, a password or a query, which would be stored with the "
            f"results; leave them out and put the API key into the environment variable {KEY}"
        )
    shown = "…" if "@" in address else whole  # a password may hold the # that ends the address
    expected = f"the endpoint {name!r} has the address {shown!r}; expected http://host:port or https://host"
    try:
        url = urlsplit(whole)
        port = url.port  # raises for what is none
    except ValueError as error:
        raise SpecdecError(expected if "@" in address else f"{expected} ({error})") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or any(map(str.isspace, whole)):
        raise SpecdecError(expected)
    path = url.path.rstrip("/").removesuffix("/v1")
    return Endpoint(name, f"{url.scheme}://{url.netloc}{path}", model or None)


def _shown(part: str) -> str:
    """The part without what may be a secret."""
    return part.split("@")[-1].split("?")[0]
