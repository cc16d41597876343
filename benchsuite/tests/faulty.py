"""A server of faults: for each connection a script of bytes, so that tests meet every way in which servers are bad."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

MODELS = json.dumps({"object": "list", "data": [{"id": "m"}]})


def plain_answer(status: str, body: bytes | str, *headers: str) -> bytes:
    """A whole HTTP answer. Example: ``plain_answer("429 Too Many Requests", "{}", "Retry-After: 2")``."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + data


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
"""The head of a streamed answer."""


def event(
    text: str = "", *, reason: str | None = None, usage: Mapping[str, object] | None = None, **more: Any
) -> bytes:
    """One server-sent event of a completion."""
    found = {"choices": [{"index": 0, "text": text, "finish_reason": reason, **more}], "usage": usage}
    return f"data: {json.dumps(found, ensure_ascii=False)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Fault:
    """What a server does with one request: send ``pieces`` one by one, then close, hang or reset the connection.

    ``forever``: the last piece is sent again and again until the client goes.
    """

    pieces: tuple[bytes, ...] = ()
    hangs: bool = False
    resets: bool = False
    forever: bool = False


class FaultyServer:
    """Answers the n-th POST by the n-th script (the last one for all further ones), GETs with a model named ``m``.

    ``requests`` has what came, as bytes. With ``tls`` its connections are encrypted.

    Example: ``with FaultyServer([Fault((plain_answer("500 Oops", "no"),))]) as server: ask(server.url)``
    """

    def __init__(self, scripts: Sequence[Fault], tls: ssl.SSLContext | None = None) -> None:
        self.scripts, self._tls = list(scripts), tls
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._over = threading.Event()
        self._posts = threading.Semaphore(0)

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._socket.close()

    def wait(self, posts: int) -> None:
        """Return when so many more POSTs have come; TimeoutError after a minute without one."""
        for _ in range(posts):
            if not self._posts.acquire(timeout=60):
                raise TimeoutError(f"{len(self.requests)} requests came, and no further one in a minute")

    def _serve(self) -> None:
        posts = 0
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            try:
                connection = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            except ssl.SSLError:
                continue  # the client does not believe the certificate
            request = _read(connection)
            if not request:
                connection.close()
                continue
            script = Fault((plain_answer("200 OK", MODELS),))
            if request.startswith(b"POST"):
                self.requests.append(request)
                script = self.scripts[min(posts, len(self.scripts) - 1)]
                posts += 1
                self._posts.release()
            threading.Thread(target=self._play, args=(connection, script), daemon=True).start()

    def _play(self, connection: socket.socket, script: Fault) -> None:
        with connection:
            try:
                for piece in script.pieces:
                    connection.sendall(piece)
                while script.forever and not self._over.is_set():
                    connection.sendall(script.pieces[-1])
                if script.resets:
                    # Closing with a linger of 0 sends a reset in place of an end.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif script.hangs:
                    self._over.wait()
            except OSError:
                return  # the client has gone


def _read(connection: socket.socket) -> bytes:
    """One request, with its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
    )
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            break
        body += piece
    return head + b"\r\n\r\n" + body
