"""Servers that are started in turn, where a machine has room for one: each by its user's command, when it is asked."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from benchsuite.machine.groups import end_group
from benchsuite.machine.user_files import UserFileError, user_yaml
from specdec.errors import SpecdecError, unknown
from specdec_plugins.endpoints.client import Client
from specdec_plugins.endpoints.named import KEY, Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure

PATIENCE_S = 900.0
"""Seconds in which a server must answer for its health: a large model loads for minutes."""

FAREWELL_S = 30.0
"""Seconds in which a server must end after SIGTERM; it is killed then, with all that it has started."""

PAUSE_S = 0.1
"""Seconds between two questions for its health."""

ABSENT = ("refused", "timeout")
"""Kinds of failure of an address where no server is."""

LOADING = ("reset", "limited", "server_error", "not_found")
"""Kinds of failure of a server that is still loading its model; any other does not go away."""

LAST = 12
"""Lines of a server's output that a message shows."""


def read_commands(path: Path, endpoints: Sequence[Endpoint]) -> dict[str, str]:
    """Return the command of each endpoint in a YAML file, ``plain: vllm serve …``, one line each.

    Raises SpecdecError for a file that holds something else, for names that are no endpoints, for endpoints of one
    address without a command each, and for a command with an API key in it, which would be kept with the results.
    """
    try:
        found = user_yaml(path)
    except UserFileError as error:
        raise SpecdecError(f"--specdec-endpoint-start: {error}; expected lines like plain: vllm serve …") from None
    if not all(isinstance(text, str) and text.strip() for text in found.values()):
        raise SpecdecError(
            f"--specdec-endpoint-start {path}: expected one command for each name, as in plain: vllm serve …"
        )
    names = [endpoint.name for endpoint in endpoints]
    for name in found:
        if name not in names:
            raise unknown("endpoint", str(name), names, f"{path} has the command of each that is to be started.")
    for endpoint in endpoints:
        shared = [one.name for one in endpoints if one.url == endpoint.url]
        if len(shared) > 1 and endpoint.name not in found:
            raise SpecdecError(
                f"the endpoints {', '.join(shared)} have one address, and {path} has no command for {endpoint.name}: "
                "name the command that starts each"
            )
        if endpoint.key and endpoint.key in str(found.get(endpoint.name, "")):
            raise SpecdecError(
                f"the command of {endpoint.name} in {path} has the API key in it; leave it to the environment: "
                f"{KEY} is handed on to what is started"
            )
    return {str(name): str(text) for name, text in found.items()}


class ServersInTurn:
    """Starts the server of an endpoint when ``connect`` is called with it, and ends another's at the same address
    first.

    ``commands``: by the endpoints' names; an endpoint without one is taken to run. What a server prints goes to a file
    of its own, whose last lines a message shows. ``starts`` counts how often each was started; ``refused``: fields
    of requests that each refuses. ``patience_s``: for its health; ``farewell_s``: for its end after SIGTERM.

    Example: ``with ServersInTurn({"plain": "vllm serve m"}) as servers: async with servers.connect(endpoint) as client:
    …``
    """

    def __init__(
        self, commands: Mapping[str, str], patience_s: float = PATIENCE_S, farewell_s: float = FAREWELL_S
    ) -> None:
        self.commands, self.patience_s, self.farewell_s = commands, patience_s, farewell_s
        self.starts: dict[str, int] = {}
        self.refused: dict[str, set[str]] = {}  # by the endpoints' names
        self._running: dict[str, tuple[str, subprocess.Popen[bytes], IO[bytes]]] = {}  # by address

    def connect(self, endpoint: Endpoint) -> Client:
        """Return a client of an endpoint whose server answers for its health. SpecdecError if it does not.

        Inside of an event loop only for an endpoint whose server runs already.
        """
        if endpoint.name in self.commands and self._name_at(endpoint.url) != endpoint.name:
            self._end(endpoint.url)
            self._start(endpoint)
        return Client(endpoint, refused=self.refused.setdefault(endpoint.name, set()))

    def wait(self, endpoint: Endpoint) -> None:
        """Wait for as long as the server that was started for an endpoint runs. SpecdecError when it has ended, which
        none does that was not told to."""
        _, process, out = self._running[endpoint.url]
        ended = process.wait()
        raise SpecdecError(
            f"the server of {endpoint.name} ended with {ended}, its last lines:\n{endpoint.hidden(_last_lines(out))}"
        )

    def close(self) -> None:
        """End every server that was started."""
        for url in list(self._running):
            self._end(url)

    def _name_at(self, url: str) -> str | None:
        running = self._running.get(url)
        return running[0] if running and running[1].poll() is None else None

    def _start(self, endpoint: Endpoint) -> None:
        before = _answered(endpoint)
        if before is None or before.kind not in ABSENT:
            how = f"it says {before}" if before else "it says that it is ready"
            raise SpecdecError(
                f"something answers at {endpoint.url} already, before the server of {endpoint.name} is started, and "
                f"would be measured in its place ({how}); end it, or name another address"
            )
        out = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the server
        command = self.commands[endpoint.name]
        try:
            # A group of its own, so that what it starts ends with it.
            process = subprocess.Popen(shlex.split(command), stdout=out, stderr=out, start_new_session=True)
        except OSError as error:
            out.close()
            said = f"the command of {endpoint.name}, {command!r}, cannot be run: {error.strerror}"
            raise SpecdecError(f"{said}; correct it in the file of --specdec-endpoint-start") from None
        self._running[endpoint.url] = endpoint.name, process, out
        self.starts[endpoint.name] = self.starts.get(endpoint.name, 0) + 1
        end = time.monotonic() + self.patience_s
        while True:
            failure, ended = _answered(endpoint), process.poll()
            if failure is None and ended is None:
                return
            if ended is not None or time.monotonic() > end or (failure and failure.kind not in (*ABSENT, *LOADING)):
                why = f"ended with {ended}" if ended is not None else f"does not answer ({failure})"
                said = _last_lines(out)
                self._end(endpoint.url)
                raise SpecdecError(
                    f"the server of {endpoint.name} {why} after {self.patience_s - (end - time.monotonic()):.0f} s; "
                    f"its command is {command!r}, its last lines:\n{endpoint.hidden(said)}"
                )
            time.sleep(PAUSE_S)

    def _end(self, url: str) -> None:
        if url not in self._running:
            return
        _, process, out = self._running.pop(url)
        end_group(process, self.farewell_s)
        out.close()


def _answered(endpoint: Endpoint) -> EndpointFailure | None:
    """None if a server at the address answers for its health now; else why it does not."""

    async def asked() -> None:
        async with Client(endpoint.impatient()) as client:
            await client.health()

    try:
        asyncio.run(asked())
    except EndpointFailure as failure:
        return failure
    return None


def _last_lines(out: IO[bytes]) -> str:
    out.seek(0)
    return "\n".join(out.read().decode("utf-8", "replace").splitlines()[-LAST:])
