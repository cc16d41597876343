"""A server of an engine from its start to a signal, after which nothing of it is left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType

from benchsuite.benches.serving.restarts import PATIENCE_S, ServersInTurn
from specdec_plugins.endpoints.named import Endpoint

FAREWELL_S = 20.0
"""Seconds in which a server must end; fewer than those that ``--specdec-endpoint-start`` leaves to this process."""


def serve_until_signal(
    engine: str, command: str, port: int, say: Callable[[str], None], patience_s: float = PATIENCE_S
) -> None:
    """Start a server on the loopback address, say where it is once it answers for its health, and wait for SIGINT or
    SIGTERM; then end it and all that it started.

    SpecdecError with its last lines if it does not answer within ``patience_s``, or ends by itself.
    """
    endpoint = Endpoint(engine, f"http://127.0.0.1:{port}")
    try:
        with interrupting_signals(), closing(ServersInTurn({engine: command}, patience_s, FAREWELL_S)) as servers:
            servers.connect(endpoint)
            say(f"{engine} answers at {endpoint.url}")
            servers.wait(endpoint)
    except KeyboardInterrupt:
        say(f"{engine} has ended")


@contextmanager
def interrupting_signals() -> Iterator[None]:
    """Within it SIGINT and SIGTERM raise KeyboardInterrupt, once, so that what was started is ended."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the wait; a second signal does not interrupt the end."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt
